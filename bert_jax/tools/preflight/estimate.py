"""Compiles a config's training step for devices and reports its memory, cycles and time."""

import logging
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import sharding, step, tokenizers
from bert_jax.convert import hub
from bert_jax.errors import InputError
from bert_jax.run import teacher
from bert_jax.tasks import TASKS, teaching
from bert_jax.tools.preflight import compilation, hlo, money
from bert_jax.tools.preflight.compilation import Devices

if TYPE_CHECKING:
  from bert_jax.objectives.base import Objective
  from bert_jax.tools.preflight.chips import Chip

log = logging.getLogger('bert_jax')

STEPS = 1_000_000  # assumed for a run whose length depends on its data
LARGEST = 5  # how many buffers are named
MOST_ROWS = 2**14  # on each data shard
Report = dict[str, Any]  # valid JSON


def objective_of(config: ConfigDict) -> 'Objective':
  """The objective of a config, with stand-ins for the words and the labels of its data."""
  task = TASKS[config.objective]
  config = task.stand_in(config.copy_and_resolve_references())
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / 'vocab.txt'
    words = (f'w{i}' for i in range(config.model.vocab_size - len(tokenizers.RESERVED)))
    path.write_text('\n'.join([*tokenizers.RESERVED, *words]) + '\n')
    tokenizer = tokenizers.load(path)
  if teaching.has_teacher(config):
    tokenizer = tokenizers.load_folder(hub.folder(config.teacher))
  return teacher.taught(config, task.objective(config, tokenizer), tokenizer)


def estimate(config: ConfigDict, devices: Devices, chip: 'Chip') -> Report:
  """Compiles a config for devices and reports what its step takes."""
  config = config_lib.check(config)
  mesh = sharding.mesh_of(config, TASKS[config.objective], devices)
  objective = objective_of(config)
  flops = 3 * objective.flops(config.batch_size)  # backward is twice the forward pass
  steps = config.steps or STEPS
  timeline = config_lib.timeline_of(config, steps)
  program = step.program(config, objective, mesh, timeline)
  with jax.set_mesh(mesh), sharding.activation_rules():
    lowered, where = program.lower(), list(mesh.devices.flat)
    options = sharding.compiler_options(mesh)
    compiled = compilation.compiled(lowered, where, 'a step for', options)
  warnings = []
  if n := compiled.resharded:
    warnings.append(f'{n} involuntary full rematerialisations: a sharding changes between uses')
  state = [
    (math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize, sharding.path_name(path))
    for path, x in jax.tree_util.tree_flatten_with_path(program.state)[0]
  ]
  sizes = compiled.sizes  # aliased arguments and results share memory
  used = sum(sizes.values()) - 2 * sizes['alias'] if compiled.text else compiled.used
  out = {
    'devices': f'{len(devices)} x {devices[0].device_kind}',
    'mesh': {name: int(n) for name, n in mesh.shape.items()},
    'rows_per_data_shard': config.batch_size // (mesh.shape['data'] * mesh.shape['fsdp']),
    'fits': bool(compiled.text),
    'hbm_limit': chip.hbm,
    'hbm_bytes': used,
    'hbm_over': used - chip.hbm,
    'dtype': config.model.dtype,
    'model_flops': int(flops),
    'compile_s': round(compiled.seconds, 1),
    'cached': compiled.cached,
    'largest_of_state': _named(sorted(state, reverse=True)[:LARGEST]),
    'warnings': warnings,
  }
  if not compiled.text:
    return out
  parsed = hlo.Program(compiled.text)
  warnings += _warnings(parsed, config.model.dtype)
  cycles, full_steps = parsed.cycles(), timeline.rows_before(steps) / config.batch_size
  # Some kinds of chips are two devices each.
  number = len({(getattr(d, 'slice_index', 0), *d.coords) for d in devices})
  out |= {'hbm_temporaries': sizes['temp']}
  out |= {'largest_temporaries': _named(parsed.largest(LARGEST))}
  out |= {'estimated_cycles': sum(cycles.values()), 'cycles': cycles}
  out |= {'steps': steps, 'full_steps': full_steps}
  return out | money.step_times(parsed, mesh, chip, flops, full_steps, number)


def _named(pairs: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
  return [{'name': name, 'bytes': int(size)} for size, name in pairs]


def _warnings(program: hlo.Program, dtype: str) -> list[str]:
  """Sentences on what a program's cycles leave out or count twice, and on what makes it slow."""
  out = []
  if loops := program.endless():
    out.append(f'{len(loops)} loops of unknown length, such as {loops[0]}, are left out')
  if choices := program.choices():
    out.append(
      f'{len(choices)} conditionals, such as {choices[0]}, count all of their branches; of layers '
      'with a window and without, model.scan_layers=false gives the true sum'
    )
  products = program.float32_products(r'/layer')
  if products and dtype != 'float32':
    out.append(f'{len(products)} float32 matrix products in the layers, such as {products[0]}')
  if any(i.opcode in ('send', 'recv') for i, _ in program.scheduled()):
    out.append('what slices send one another outside of collectives is left out of the times')
  return out


def largest_batch(config: ConfigDict, devices: Devices, chip: 'Chip') -> Report:
  """Searches the largest batch that fits, to within a sixteenth, and returns its report. Two
  batches, the config's first, give the memory of a row; the third is near the largest that should
  fit."""
  mesh = sharding.make_mesh(**sharding.axes_of(config, devices), devices=devices)
  shards = mesh.shape['data'] * mesh.shape['fsdp']
  unit = shards * config.optimizer.accumulation
  reports: dict[int, Report] = {}
  low, high, step = 0, max(1, min(config.batch_size // unit, MOST_ROWS)), 0
  span = f'from {high * unit} to {MOST_ROWS * unit} and to within a sixteenth'
  log.info('searching the largest batch_size, %s: usually 4 to 8 compilations', span)

  def fits(rows: int) -> bool:
    report = estimate(changed(config, {'batch_size': rows * unit}), devices, chip)
    verdict = f'{gigabytes(abs(report["hbm_over"]))} {"left" if report["fits"] else "too much"}'
    log.info('batch_size %d (%d a data shard): %s', rows * unit, rows * unit // shards, verdict)
    reports[rows] = report | {'batch_size': rows * unit}
    return report['fits']

  while fits(high):
    low = high
    if low == MOST_ROWS:
      break
    if len(reports) == 1:
      high = 2 * low
    elif len(reports) == 2:
      before, over = (reports[rows]['hbm_over'] for rows in (low // 2, low))
      row = max(1, (over - before) // (low // 2))
      high = max(2 * low, int(0.95 * (low - over // row)))
    else:
      step = 2 * step or max(1, low // 16)
      high = low + step
    high = min(high, MOST_ROWS)
  while high - low > max(1, high // 16):
    middle = (low + high) // 2
    low, high = (middle, high) if fits(middle) else (low, middle)
  if not low:
    raise InputError(f'not even {unit} rows fit; use more chips, fsdp or remat.')
  return reports[low]


def changed(config: ConfigDict, fields: Mapping[str, Any]) -> ConfigDict:
  """A copy of a config with some fields changed, {name: value}."""
  config = config.copy_and_resolve_references()
  config.update_from_flattened_dict(fields)
  return config


def gigabytes(size: float) -> str:
  """Formats bytes as '15.91 GB', of 10^9 bytes, as bandwidths are published."""
  return f'{size / 1e9:.2f} GB'
