"""Searches the mesh, accumulation, remat and attention with which a step takes least time."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax import sharding
from bert_jax.errors import InputError, log
from bert_jax.models.stack import REMAT_POLICIES
from bert_jax.tasks import TASKS
from bert_jax.tools.preflight import chips, costs, estimate, step_time
from bert_jax.tools.preflight.compilation import Devices

NOISE = 0.02  # that much comes and goes with the compiler's fusions, and is no improvement


def seconds(report: Mapping[str, Any]) -> float:
  """Estimated seconds of a step (with communication if known); inf if it does not fit."""
  estimate = step_time.fullest(report)
  return estimate['step_s'] if estimate else math.inf


def choices(
  config: ConfigDict, report: Mapping[str, Any], devices: Devices
) -> Iterator[tuple[str, Any]]:
  """Yields (field, value) that may be better than the config's, in the order of their effect:
  parameters whole on each chip, sharded over one side of the slice, or over all of it; gathered
  layer by layer; more or fewer microbatches; less kept for the backward pass, or more; another
  kernel of attention. report: of the config as it is."""
  mesh = sharding.mesh_of(config, TASKS[config.objective], devices).shape
  within = len(devices) // config.mesh.slices // mesh['tensor']
  side = max(1 + max(column) for column in zip(*(d.coords for d in devices)))
  for size in sorted({1, side, within} - {mesh['fsdp']}, reverse=True):
    if within % size == 0:
      yield 'mesh.fsdp', size
  yield 'mesh.gather', 'layer'
  parts = config.optimizer.accumulation
  for number in (parts * 2, parts * 4, parts * 16, parts // 2, parts // 4, parts // 16):
    if number and config.batch_size % number == 0:
      yield 'optimizer.accumulation', number
  for policy in REMAT_POLICIES:
    yield 'model.remat', policy
  attention = 'model.attention_implementation'
  picked = ''
  if config.model.attention_implementation == 'auto' and report['fits']:
    picked = 'splash' if report['kernels'] else 'einsum'
    log.info('%s=auto is %s', attention, picked)
  for kind in ('einsum', 'xla', 'splash'):
    if kind != picked:
      yield attention, kind


def search(
  config: ConfigDict, report: dict[str, Any], devices: Devices, chip: chips.Chip
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Tries one field after the other, and keeps what is faster, or the first to fit: (the changed
  fields, the report with them). report: of the config as it is."""
  fields: dict[str, Any] = {}
  if report['fits'] and report['kernels'] and math.isinf(seconds(report)):
    log.info('kernels have no time on these chips; the search begins with einsum')
    fields = {'model.attention_implementation': 'einsum'}
    report = estimate.estimate(estimate.changed(config, fields), devices, chip)
  for name, value in choices(config, report, devices):
    if estimate.changed(config, fields)[name.partition('.')[0]][name.partition('.')[2]] == value:
      continue
    tried = fields | {name: value}
    if name == 'mesh.fsdp':
      tried['mesh.data'] = -1
    try:
      other = estimate.estimate(estimate.changed(config, tried), devices, chip)
    except InputError as error:
      log.info('%s=%s is not possible: %s', name, value, error)
      continue
    log.info('%s=%s: %s, %.1f ms', name, value, costs.fits(other), 1e3 * seconds(other))
    if seconds(other) < (1 - NOISE) * seconds(report):
      fields, report = tried, other
  return fields, report
