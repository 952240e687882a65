"""Searches the mesh, accumulation, remat and attention with which a step takes the least time.

One setting is changed after the other, and an improvement is kept, so that few steps are compiled.
Less than 2 % is no improvement: such differences come and go with the compiler's fusions.
"""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax import sharding
from bert_jax.errors import InputError
from bert_jax.models.stack import REMAT_POLICIES
from bert_jax.tasks import TASKS
from bert_jax.tools.preflight import money
from bert_jax.tools.preflight.compilation import Devices
from bert_jax.tools.preflight.estimate import Report

Fields = dict[str, Any]
# {field: value} -> the report of the config with these fields, or None if it is impossible.
Attempt = Callable[[Mapping[str, Any]], Report | None]

NOISE = 0.02
ATTENTION = ('einsum', 'xla')  # the compiler knows no time for the kernel, splash


def seconds(report: Report) -> float:
  """Estimated seconds of a step (with communication if known); inf if it does not fit."""
  if not report['fits']:
    return math.inf
  if not report['estimates']:
    raise InputError(
      f'the time of a step with {money.missing(report)} cannot be estimated; set '
      'model.attention_implementation to einsum or xla.'
    )
  return money.fullest(report['estimates']['calibrated'])['step_s']


def meshes(config: ConfigDict, devices: Devices) -> list[Fields]:
  """The meshes to try, as fields: parameters whole on each chip, or sharded over one side of the
  slice, over 16 chips, or over the whole slice."""
  mesh = sharding.mesh_of(config, TASKS[config.objective], devices).shape
  within = len(devices) // config.mesh.slices // mesh['tensor']
  sides = [1 + max(column) for column in zip(*(d.coords for d in devices))]
  sizes = sorted({n for n in (1, max(sides), 16, within) if within % n == 0} - {mesh['fsdp']})
  return [{'mesh.data': -1, 'mesh.fsdp': n} for n in reversed(sizes)]


def doubling(numbers: Sequence[int], start: int) -> Iterator[int]:
  """Thins a sorted list so that neighbours, from `start` on, differ by a factor of two or more."""
  for n in numbers:
    if max(n, start) >= 2 * min(n, start):
      yield n
      start = n


def search(config: ConfigDict, devices: Devices, attempt: Attempt) -> tuple[Fields, Report, Report]:
  """Searches the best fields: (they, their report, the report of the config as it is)."""
  as_it_is = attempt({}) or {}
  best: tuple[Fields, Report] = {}, as_it_is

  def better(fields: Fields) -> bool:
    nonlocal best
    fields = best[0] | fields
    report = attempt(fields)
    if not report or (report['fits'] and not report['estimates']):
      return False
    is_better = seconds(report) < (1 - NOISE) * seconds(best[1])
    best = (fields, report) if is_better else best
    return is_better

  seconds(as_it_is)  # raises if its time cannot be estimated
  for fields in meshes(config, devices):
    better(fields)
  parts = config.optimizer.accumulation
  mesh = sharding.mesh_of(config, TASKS[config.objective], devices).shape
  shards = mesh['data'] * mesh['fsdp']
  possible = [n for n in range(1, config.batch_size + 1) if config.batch_size % (n * shards) == 0]
  more, fewer = [n for n in possible if n > parts], [n for n in possible[::-1] if n < parts]
  for numbers in (more, fewer):
    for n in doubling(numbers, parts):
      if not better({'optimizer.accumulation': n}) and best[1]['fits']:
        break
    if 'optimizer.accumulation' in best[0] or not best[1]['fits']:
      break
  names = tuple(REMAT_POLICIES)
  now = names.index(config.model.remat)
  for name in names[:now] if best[1]['fits'] else names[now + 1 :]:
    if better({'model.remat': name}):
      break
  for name in ATTENTION:
    if name != config.model.attention_implementation:
      better({'model.attention_implementation': name})
  return *best, as_it_is


def command(config_file: str, overrides: Sequence[str], fields: Fields) -> str:
  """The command that trains with the fields found."""
  more = [f'--config.{name}={value}' for name, value in fields.items()]
  words = ['python', '-m', 'bert_jax.train', '--config', config_file, *overrides, *more]
  return shlex.join([*words, '--workdir', 'WORKDIR'])


def found(
  file: str, overrides: Sequence[str], config: ConfigDict, devices: Devices, attempt: Attempt
) -> tuple[Report, list[str]]:
  """The report of the best fields, with what is gained and how to train with them, in words too."""
  fields, report, as_it_is = search(config, devices, attempt)
  if not report['fits']:
    raise InputError('nothing that was tried fits; use more chips or fewer rows.')
  ratio, gain = None, 'the config as it is does not fit; this does'
  if as_it_is['fits']:
    ratio = seconds(report) / seconds(as_it_is)
    gain = f'a step takes {ratio:.1%} of the time of the config as it is'
  train = command(file, overrides, fields)
  more = {'fields': fields, 'step_time_over_config_as_it_is': ratio, 'command': train}
  return report | more, [gain, train]
