"""Estimates a config's training step by the data sheet of the chips, and by compiling it: memory,
cycles, time. Searches the largest batch, and the mesh, accumulation, remat and attention with which
it takes least time."""

import bisect
import math
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import sharding, step, tokenizers
from bert_jax.corpus import store
from bert_jax.errors import InputError, log
from bert_jax.models.stack import REMAT_POLICIES
from bert_jax.objectives.base import Objective
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.run import initialization, speed
from bert_jax.tasks import TASKS, teaching
from bert_jax.text import files
from bert_jax.tools.preflight import chips, compilation, costs, hlo, step_time
from bert_jax.tools.preflight.compilation import USUALLY, Devices
from bert_jax.workdir.checkpoint import newest_meta

STEPS = 1_000_000  # assumed for a run whose length depends on its data
# The most and least of encoders with rows of 128 (launch/README), and the width below which they
# reach less: products shrink with its square, and what they read and write with the width. USUAL:
# of other chips. They reach less with fewer than ENOUGH tokens a device, too: gradients, summed and
# applied once a step, take about as long as the products of SUMMED tokens.
MFU, USUAL = {'TPU v6e': (0.45, 0.2, 768)}, (0.75, 0.3, 512)
ENOUGH, SUMMED = 8192, 1200
LARGEST = 5  # how many buffers are named
MOST_ROWS = 2**14  # on each data shard
Report = dict[str, Any]  # valid JSON
Fields = dict[str, Any]
# {field: value} -> the report of the config with these fields, or None if it is impossible.
Attempt = Callable[[Mapping[str, Any]], Report | None]
# Settings are changed one after the other, and an improvement is kept, so that few steps are
# compiled. Less than 2 % is no improvement: that much comes and goes with the compiler's fusions.
NOISE = 0.02
ATTENTION = ('einsum', 'xla')  # the compiler knows no time for the kernel, splash


def of_its_run(config: ConfigDict, set_by_user: Collection[str] = ()) -> ConfigDict:
  """The config with what its run takes from elsewhere: the sizes of the model of init_from, and the
  vocabulary of prepared corpora. set_by_user: see train.train."""
  start = initialization.start_of(config, '', weights=False)
  config, task = initialization.adopt_model(config, start, set_by_user), TASKS[config.objective]
  parts = files.parts(config.data.train, config.corpus.languages) if task.reads_corpus else []
  others = [part for _, part in parts if not store.is_prepared(part)]
  is_here = lambda part: '://' in part or os.path.isfile(os.path.expanduser(part))
  for part in (part for part in others if part and not (files.is_named(part) or is_here(part))):
    try:
      files.expand(part)
    except InputError as error:
      log.warning('data.train: %s (the model is of vocab_size=%d)', error, config.model.vocab_size)
  return task.resolve(config) if parts and not others else config


def objective_of(config: ConfigDict) -> Objective:
  """The objective of a config, with stand-ins for the words and the labels of its data."""
  task = TASKS[config.objective]
  config = task.stand_in(config.copy_and_resolve_references())
  words = (f'w{i}' for i in range(config.model.vocab_size - len(tokenizers.RESERVED)))
  tokenizer = tokenizers.wordpiece_tokenizer([*tokenizers.RESERVED, *words])
  if teaching.has_teacher(config):
    from bert_jax.run import teacher  # slow to import

    tokenizer = tokenizers.load_folder(teacher.folder_of(config))
    return teacher.taught(config, task.objective(config, tokenizer), tokenizer)
  return task.objective(config, tokenizer)


def length_of(config: ConfigDict) -> Report:
  """{'steps', 'assumed': are they STEPS, 'full_steps': its rows in full batches, 'tokens': all
  positions of rows, both from where resume_from is, 'passes' over a prepared corpus, else None}."""
  text, rows, size = 0, 0.0, config.batch_size * config.data.seq_length
  if store.is_prepared(config.data.train):
    text = sum(x['tokens'] for x in store.read_meta(config.data.train)['kept'].values())
    times = config.corpus.dupe_factor if config.corpus.rows in PAIRS else 1
    rows = times * text / config.data.seq_length
  steps = config_lib.step_count(config, rows) or STEPS
  begins = (newest_meta(config.resume_from) or {'step': 0})['step'] if config.resume_from else 0
  before = config_lib.timeline_of(config, steps).rows_before
  tokens = (before(steps) - before(min(begins, steps))) * config.data.seq_length
  out = {'steps': steps, 'tokens': tokens, 'passes': tokens / text if text else None}
  return out | {'assumed': not (config.steps or rows), 'full_steps': tokens / size}


def at_once(config: ConfigDict, objective: Objective, topology: str) -> Report:
  """A report like `estimate`'s, before anything is compiled: by the peak of the chips."""
  kind, devices, number, hosts = chips.counted(topology, config.mesh.slices)
  peak = devices * speed.peak_flops_of(kind)
  ideal, out = 3 * objective.flops(config.batch_size) / peak, length_of(config)
  row = lambda mfu: {'compute_only': step_time.row(ideal / mfu, mfu, out['full_steps'], number)}
  *range_of_mfu, width = MFU.get(kind, USUAL)
  share = min(1, config.model.hidden_size / width)
  tokens = min(ENOUGH, config.batch_size * config.data.seq_length / devices)
  share *= tokens / (tokens + SUMMED) * (ENOUGH + SUMMED) / ENOUGH
  estimates = {f'mfu_{mfu:g}': row(share * mfu) for mfu in range_of_mfu}
  return {'fits': None, 'chips': number, 'hosts': hosts, 'estimates': estimates} | out


def estimate(config: ConfigDict, devices: Devices, chip: chips.Chip) -> Report:
  """Compiles a config for devices and reports what its step takes."""
  config = config_lib.check(config)
  mesh = sharding.mesh_of(config, TASKS[config.objective], devices)
  objective = objective_of(config)
  flops = 3 * objective.flops(config.batch_size)  # backward is twice the forward pass
  read = length_of(config)
  program = step.program(config, objective, mesh, config_lib.timeline_of(config, read['steps']))
  with jax.set_mesh(mesh), sharding.activation_rules():
    lowered, where = program.lower(), list(mesh.devices.flat)
    compiled = compilation.compiled(lowered, where, 'a step for', sharding.compiler_options(mesh))
  said = f'{compiled.resharded} involuntary full rematerialisations: a sharding changes midway'
  warnings = [said] * bool(compiled.resharded)
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
    'estimates': {},
    **read,
  }
  if not compiled.text:
    return out
  parsed = hlo.Program(compiled.text)
  warnings += _warnings(parsed, config.model.dtype)
  cycles = parsed.cycles()
  # Some kinds of chips are two devices each.
  number = len({(getattr(d, 'slice_index', 0), *d.coords) for d in devices})
  out |= {'hbm_temporaries': sizes['temp']}
  out |= {'largest_temporaries': _named(parsed.largest(LARGEST))}
  out |= {'estimated_cycles': sum(cycles.values()), 'cycles': cycles}
  return out | step_time.step_times(parsed, mesh, chip, flops, read['full_steps'], number)


def _named(pairs: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
  return [{'name': name, 'bytes': int(size)} for size, name in pairs]


def _warnings(program: hlo.Program, dtype: str) -> list[str]:
  """Sentences on what a program's cycles leave out or count twice, and on what makes it slow."""
  out = []
  if loops := program.endless():
    out.append(f'{len(loops)} loops of unknown length, such as {loops[0]}, are left out')
  if choices := program.choices():
    true = 'model.scan_layers=false gives the true sum'
    out.append(f'{len(choices)} conditionals, such as {choices[0]}, count all branches; {true}')
  products = program.float32_products(r'/layer')
  if products and dtype != 'float32':
    out.append(f'{len(products)} float32 matrix products in the layers, such as {products[0]}')
  if any(i.opcode in ('send', 'recv') for i, _ in program.scheduled()):
    out.append('what slices send one another outside of collectives is left out of the times')
  return out


def largest_batch(
  config: ConfigDict, devices: Devices, chip: chips.Chip, note: Callable[[str], None]
) -> Report:
  """The report of the largest batch that fits, to within a sixteenth, by doubling and halving.
  `note` is told of each that was tried."""
  axes = sharding.axes_of(config, len(devices), devices[0].platform)
  mesh = sharding.make_mesh(**axes, devices=devices)
  shards = mesh.shape['data'] * mesh.shape['fsdp']
  unit = shards * config.optimizer.accumulation
  reports: dict[int, Report] = {}
  low, high = 0, max(1, min(config.batch_size // unit, MOST_ROWS))
  span = f'from {high * unit} to {MOST_ROWS * unit} and to within a sixteenth'
  log.info('searching the largest batch_size, %s: mostly 5 to 10 compilations of %s', span, USUALLY)

  def fits(rows: int) -> bool:
    report = estimate(changed(config, {'batch_size': rows * unit}), devices, chip)
    note(f'batch_size={rows * unit}: {costs.line(report)}')
    reports[rows] = report | {'batch_size': rows * unit}
    return report['fits']

  while low < MOST_ROWS and fits(high):
    low, high = high, min(2 * high, MOST_ROWS)
  while high - low > max(1, high // 16):
    middle = (low + high) // 2
    low, high = (middle, high) if fits(middle) else (low, middle)
  if not low:
    raise InputError(f'not even {unit} rows fit; use more chips, fsdp or remat.')
  return reports[low] | {'notes': [f'the largest batch_size that fits is {low * unit}']}


def seconds(report: Report) -> float:
  """Estimated seconds of a step (with communication if known); inf if it does not fit."""
  if not report['fits']:
    return math.inf
  if not report['estimates']:
    what = f'the time of {step_time.missing(report)} cannot be estimated'
    raise InputError(f'{what}; set model.attention_implementation to einsum or xla.')
  return step_time.fullest(report)[0]['step_s']


def search(config: ConfigDict, devices: Devices, attempt: Attempt) -> tuple[Fields, Report, Report]:
  """Searches the best fields: (they, their report, the report of the config as it is)."""
  as_it_is = attempt({}) or {}
  best: tuple[Fields, Report] = {}, as_it_is
  least = seconds(as_it_is)  # raises if its time cannot be estimated

  def better(name: str, value: Any, most: float = 1 - NOISE) -> bool:
    """Keeps a value that is the first to fit, or takes less than `most` of the least seconds."""
    nonlocal best, least
    fields = best[0] | ({'mesh.data': -1} if name == 'mesh.fsdp' else {}) | {name: value}
    report = attempt(fields)
    if not report or not report['fits'] or (best[1]['fits'] and not report['estimates']):
      return False
    took = seconds(report) if report['estimates'] else math.inf
    if is_better := took < most * least or not best[1]['fits']:
      best, least = (fields, report), min(least, took)
    return is_better

  # Parameters whole on each chip, or sharded over one side of the slice, over 16 chips, or over the
  # whole slice.
  mesh = sharding.mesh_of(config, TASKS[config.objective], devices).shape
  within = len(devices) // config.mesh.slices // mesh['tensor']
  sides = [1 + max(column) for column in zip(*(d.coords for d in devices))]
  sizes = {n for n in (1, max(sides), 16, within) if within % n == 0} - {mesh['fsdp']}
  for n in sorted(sizes, reverse=True):
    better('mesh.fsdp', n)
  if best[0].get('mesh.fsdp', mesh['fsdp']) > 1 and config.mesh.gather == 'step':
    better('mesh.gather', 'layer')
  parts, shards = config.optimizer.accumulation, mesh['data'] * mesh['fsdp']
  possible = [n for n in range(1, config.batch_size + 1) if config.batch_size % (n * shards) == 0]
  at = bisect.bisect(possible, parts)
  more, fewer = possible[at:], possible[:at][::-1]
  for numbers, most in ((more, 1 - NOISE), (fewer, 1 + NOISE)):  # the fewest that are as fast
    tried = parts
    for n in numbers:
      if max(n, tried) < 2 * min(n, tried):
        continue
      tried = n
      if not better('optimizer.accumulation', n, most) and best[1]['fits']:
        break
    if 'optimizer.accumulation' in best[0] or not best[1]['fits']:
      break
  names = tuple(REMAT_POLICIES)
  now = names.index(config.model.remat)
  for name in names[:now] if best[1]['fits'] else names[now + 1 :]:
    if better('model.remat', name):
      break
  for name in ATTENTION:
    if name != config.model.attention_implementation:
      better('model.attention_implementation', name)
  return *best, as_it_is


def fastest(
  file: str, overrides: Sequence[str], config: ConfigDict, devices: Devices, attempt: Attempt
) -> Report:
  """The report of the best fields, with what is gained and how to train with them, in words too."""
  tries: list[Any] = []
  search(config, devices, lambda fields: tries.append(fields) or {'fits': False})
  log.info('searching, mostly in less than %d compilations of %s', len(tries), USUALLY)
  fields, report, as_it_is = search(config, devices, attempt)
  if not report['fits']:
    return report | {'notes': ['nothing that was tried fits; use more chips or fewer rows']}
  ratio, gain = None, 'the config as it is does not fit; this does'
  if as_it_is['fits']:
    ratio = seconds(report) / seconds(as_it_is)
    gain = f'a step takes {ratio:.1%} of the time of the config as it is'
  if not fields:
    gain = 'nothing that was tried is faster than the config as it is'
  more = [f'--config.{name}={value}' for name, value in fields.items()]
  words = ['python', '-m', 'bert_jax.train', '--config', file, *overrides, *more]
  train = shlex.join([*words, '--workdir', 'WORKDIR'])
  facts = {'fields': fields, 'step_time_over_config_as_it_is': ratio, 'command': train}
  return report | facts | {'notes': [gain, train]}


def changed(config: ConfigDict, fields: Mapping[str, Any]) -> ConfigDict:
  """A copy of a config with some fields changed, {name: value}."""
  config = config.copy_and_resolve_references()
  config.update_from_flattened_dict(fields)
  return config
