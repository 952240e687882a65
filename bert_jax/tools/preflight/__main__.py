"""Compiles a config's training step for TPUs without having any, and estimates how it will run.

    python -m bert_jax.tools.preflight --config configs/pretrain.py:size=base \
        --topology v5e:4x4 --config.batch_size=1024 [--slices 2] [--price 1.2 [--spot 0.5]] [--json]
    python -m bert_jax.tools.preflight ... --largest-batch
    python -m bert_jax.tools.preflight ... --sweep remat
    python -m bert_jax.tools.preflight ... --best

The real compiler (pip install libtpu; no TPU) compiles the real step with the config's mesh, and
refuses what does not fit. Its estimated cycles become an estimated time and MFU (money.py), without
and with communication between the chips (links.py). Nothing is timed. Only sizes matter: no data is
read, and no weights but a teacher's (Objective.constants). Compiled programs are kept, and not
compiled again (compilation.py).
"""

import json
import logging
import math
import tempfile
from pathlib import Path

import jax

from bert_jax import config as config_lib
from bert_jax import sharding, step, tokenizers
from bert_jax.command_line import command_line
from bert_jax.convert import hub
from bert_jax.errors import InputError
from bert_jax.models.stack import REMAT_POLICIES
from bert_jax.run import teacher
from bert_jax.tasks import TASKS, teaching
from bert_jax.tools import arguments
from bert_jax.tools.preflight import best as search
from bert_jax.tools.preflight import chips, compilation
from bert_jax.tools.preflight import hlo as compiled_program
from bert_jax.tools.preflight import money as pods

log = logging.getLogger('bert_jax')

STEPS = 1_000_000  # assumed for a run whose length depends on its data
LARGEST = 5  # how many buffers are named
MOST_ROWS = 2**14  # on each data shard
SWEEPS = {
  'batch': [{'batch_size': n} for n in (8, 16, 32, 64, 128, 256)],  # rows on each data shard
  'accumulation': [{'optimizer.accumulation': n} for n in (1, 2, 4, 8, 16)],
  'remat': [{'model.remat': name} for name in REMAT_POLICIES],
  'attention': [
    {'model.attention_implementation': name, 'model.attention_probs_dropout_prob': 0.0}
    for name in ('einsum', 'xla', 'splash')
  ],
  'scan': [{'model.scan_layers': value} for value in (False, True)],
  'mesh': [
    {'mesh.data': data, 'mesh.fsdp': fsdp, 'mesh.tensor': tensor}
    for data, fsdp, tensor in ((-1, 1, 1), (1, -1, 1), (-1, 1, 2), (-1, 4, 1))
  ],
}


def objective_of(config):
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


def preflight(config, devices, chip):
  """Compiles a config for devices; returns a report, a dict of valid JSON. chip: a chips.Chip."""
  config = config_lib.check(config)
  mesh = sharding.mesh_of(config, TASKS[config.objective], devices)
  objective = objective_of(config)
  flops = 3 * objective.flops(config.batch_size)  # backward is twice the forward pass
  steps = config.steps or STEPS
  timeline = config_lib.timeline_of(config, steps)
  program = step.program(config, objective, mesh, timeline)
  with jax.set_mesh(mesh), sharding.activation_rules():
    lowered = program.lower()
    where = list(mesh.devices.flat)
    options = sharding.compiler_options(mesh)
    compiled = compilation.compiled(lowered, where, 'a step for', options)
  warnings = []
  if compiled.resharded:
    warnings.append(
      f'{compiled.resharded} involuntary full rematerialisations: a sharding changes between uses'
    )
  state = [
    (math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize, sharding.path_name(path))
    for path, x in jax.tree_util.tree_flatten_with_path(program.state)[0]
  ]
  out = {
    'devices': f'{len(devices)} x {devices[0].device_kind}',
    'mesh': {name: int(n) for name, n in mesh.shape.items()},
    'rows_per_data_shard': config.batch_size // (mesh.shape['data'] * mesh.shape['fsdp']),
    'fits': bool(compiled.text),
    'hbm_limit': chip.hbm,
    'dtype': config.model.dtype,
    'model_flops': int(flops),
    'compile_s': round(compiled.seconds, 1),
    'cached': compiled.cached,
    'largest_of_state': named(sorted(state, reverse=True)[:LARGEST]),
  }
  if not compiled.text:
    used = compiled.used
    return out | {'hbm_bytes': used, 'hbm_over': used - chip.hbm, 'warnings': warnings}
  parsed = compiled_program.Program(compiled.text)
  cycles = parsed.cycles()
  total = sum(cycles.values())
  # Some kinds of chips are two devices each.
  number = len({(getattr(d, 'slice_index', 0), *d.coords) for d in devices})
  if loops := parsed.endless():
    warnings.append(f'{len(loops)} loops of unknown length, such as {loops[0]}, are left out')
  if choices := parsed.choices():
    warnings.append(
      f'{len(choices)} conditionals, such as {choices[0]}, count all of their branches; of layers '
      'with a window and without, model.scan_layers=false gives the true sum'
    )
  products = parsed.float32_products(r'/layer')
  if products and config.model.dtype != 'float32':
    warnings.append(f'{len(products)} float32 matrix products in the layers, such as {products[0]}')
  sizes = compiled.sizes
  hbm = sum(sizes.values()) - 2 * sizes['alias']  # aliased arguments and results share memory
  full_steps = timeline.rows_before(steps) / config.batch_size
  out |= pods.step_times(parsed, mesh, chip, flops, full_steps, number)
  if any(i.opcode in ('send', 'recv') for i, _ in parsed.scheduled()):
    warnings.append('what slices send one another outside of collectives is left out of the times')
  return out | {
    'hbm_bytes': hbm,
    'hbm_over': hbm - chip.hbm,
    'hbm_temporaries': sizes['temp'],
    'largest_temporaries': named(parsed.largest(LARGEST)),
    'estimated_cycles': total,
    'cycles': cycles,
    'steps': steps,
    'full_steps': full_steps,
    'warnings': warnings,
  }


def named(pairs):
  return [{'name': name, 'bytes': int(size)} for size, name in pairs]


def largest_batch(config, devices, chip):
  """Searches the largest batch that fits, to within a sixteenth, and returns its report. Two
  batches, the config's first, give the memory of a row; the third is near the largest that should
  fit."""
  mesh = sharding.make_mesh(**sharding.axes_of(config, devices), devices=devices)
  shards = mesh.shape['data'] * mesh.shape['fsdp']
  unit = shards * config.optimizer.accumulation
  reports = {}
  low, high, step = 0, max(1, min(config.batch_size // unit, MOST_ROWS)), 0
  log.info(
    'searching the largest batch_size, from %d to %d and to within a sixteenth: usually 4 to 8 '
    'compilations',
    high * unit,
    MOST_ROWS * unit,
  )

  def attempt(rows):
    report = preflight(changed(config, {'batch_size': rows * unit}), devices, chip)
    verdict = f'{_gb(abs(report["hbm_over"]))} {"left" if report["fits"] else "too much"}'
    log.info('batch_size %d (%d a data shard): %s', rows * unit, rows * unit // shards, verdict)
    reports[rows] = report | {'batch_size': rows * unit}
    return report['fits']

  while attempt(high):
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
    low, high = (middle, high) if attempt(middle) else (low, middle)
  if not low:
    raise InputError(f'not even {unit} rows fit; use more chips, fsdp or remat.')
  return reports[low]


def changed(config, fields):
  """A copy of a config with some fields changed, {name: value}."""
  config = config.copy_and_resolve_references()
  config.update_from_flattened_dict(fields)
  return config


def table(report):
  """The text of a report."""
  kept = ', compiled before and kept' if report['cached'] else ''
  lines = [
    f'{report["devices"]}, mesh {report["mesh"]}, '
    f'{report["rows_per_data_shard"]} rows on each data shard{kept}',
    f'{"fits" if report["fits"] else "DOES NOT FIT"}: {_gb(report["hbm_bytes"])} of '
    f'{_gb(report["hbm_limit"])} HBM, {_gb(abs(report["hbm_over"]))} '
    + ('left' if report['hbm_over'] <= 0 else 'too much'),
    f'model FLOPs of a step: {report["model_flops"]:.4g}, model.dtype={report["dtype"]}'
    + ' (bfloat16 is faster on TPUs)' * (report['dtype'] == 'float32'),
  ]
  for key in ('largest_of_state', 'largest_temporaries'):
    lines += [f'  {x["bytes"] / 1e6:10,.1f} MB  {x["name"]}' for x in report.get(key, [])]
  if report['fits']:
    total = report['estimated_cycles']
    lines.append('compiler-estimated cycles:')
    lines += [f'  {n:14,}  {n / total:5.1%}  {part}' for part, n in report['cycles'].items()]
    lines += [f'  {total:14,}  together', *pods.text_of(report)]
  return '\n'.join(lines + [f'warning: {w}' for w in report['warnings']])


def line_of(text, report):
  """A report as one line of a sweep; text: the fields changed."""
  if not report['fits']:
    return f'{text:40} does not fit: {_gb(report["hbm_over"])} too much'
  memory = f'{_gb(report["hbm_bytes"]):>9}'
  cycles = f'{text:40} {memory}  {report["estimated_cycles"]:13,} cycles'
  if not report['estimates']:
    return f'{cycles}  no MFU: {pods.missing(report)} count no cycles'
  mfus = report['estimates']['calibrated'].items()
  return f'{cycles}  estimated MFU ' + ', '.join(
    f'{name.replace("_", " ")} {x["mfu"]:.1%}' for name, x in mfus
  )


def _gb(size):
  """Formats bytes as '15.91 GB', of 10^9 bytes, as bandwidths are published."""
  return f'{size / 1e9:.2f} GB'


def sweep(kind, config, devices, chip):
  """Yields (fields changed, report) of each variant of SWEEPS[kind]."""
  for fields in SWEEPS[kind]:
    if kind == 'batch':
      mesh = sharding.make_mesh(**sharding.axes_of(config, devices), devices=devices)
      shards = mesh.shape['data'] * mesh.shape['fsdp']
      fields = {'batch_size': fields['batch_size'] * shards}
    text = ' '.join(f'{name.partition(".")[2] or name}={value}' for name, value in fields.items())
    try:
      yield text, preflight(changed(config, fields), devices, chip)
    except InputError as error:
      log.warning('%s: %s', text, error)


def best(config, devices, chip, show):
  """Searches the fastest step: (fields, report, report of the config as it is), see best.search.
  show: called with a line about each attempt."""

  def attempt(fields):
    text = ' '.join(f'{name}={value}' for name, value in fields.items()) or 'the config as it is'
    try:
      report = preflight(changed(config, fields), devices, chip)
    except InputError as error:
      if not fields:
        raise
      log.warning('%s: %s', text, error)
      return None
    show(line_of(text, report))
    return report

  return search.search(config, devices, attempt)


def main(argv=None):
  more = 'Any field of the config is set as --config.NAME=VALUE.'
  parser = arguments.parser('preflight', __doc__, epilog=more)
  parser.add_argument('--config', required=True, metavar='FILE[:ARGS]')
  parser.add_argument(
    '--topology',
    required=True,
    metavar='CHIP:AxB',
    help='such as v5e:4x4, or a name of the cloud: v5litepod-16',
  )
  parser.add_argument('--slices', type=int, help='of that topology, joined by DCN')
  parser.add_argument('--price', type=pods.dollars, help='dollars for a chip-hour')
  parser.add_argument('--spot', type=float, help='price of a spot chip, as a share of --price')
  parser.add_argument('--json', action='store_true', help='print JSON')
  either = parser.add_mutually_exclusive_group()
  either.add_argument('--sweep', choices=SWEEPS, help='compare variants in one table')
  either.add_argument('--largest-batch', action='store_true', help='search it')
  either.add_argument(
    '--best', action='store_true', help='search mesh, accumulation, remat and attention'
  )
  args, overrides = parser.parse_known_args(argv)
  with command_line():
    pods.check_money(args.price, args.spot, args.sweep)
    log.info('preflight of %s for %s: nothing is rented or run', args.config, args.topology)
    if args.slices is not None:
      overrides.append(f'--config.mesh.slices={args.slices}')
    config = config_lib.load(args.config, overrides)
    devices = chips.devices_of(args.topology, config.mesh.slices)
    if not args.sweep and not args.largest_batch:
      # Reports a mistake before anything is compiled.
      sharding.mesh_of(config, TASKS[config.objective], devices)
    chip = chips.Chip(devices[0])
    if args.sweep:
      for text, report in sweep(args.sweep, config, devices, chip):
        row = {'variant': text} | report
        print(json.dumps(row) if args.json else line_of(text, report), flush=True)
      return
    more = []
    if args.best:
      fields, report, as_it_is = best(config, devices, chip, log.info)
      command = search.command(args.config, overrides, fields)
      if not report['fits']:
        raise InputError('nothing that was tried fits; use more chips or fewer rows.')
      ratio, gain = None, 'the config as it is does not fit; this does'
      if as_it_is['fits']:
        ratio = search.seconds(report) / search.seconds(as_it_is)
        gain = f'a step takes {ratio:.1%} of the time of the config as it is'
      more = [gain, command]
      report |= {'fields': fields, 'step_time_over_config_as_it_is': ratio, 'command': command}
    else:
      report = (largest_batch if args.largest_batch else preflight)(config, devices, chip)
    if args.json:
      print(json.dumps(report | pods.cost(report, args.price, args.spot)))
      return
    minutes = config.checkpoint.minutes
    money = pods.money_text(report, args.price, args.spot, minutes)
    print('\n'.join([table(report), *money, *more]))


if __name__ == '__main__':
  main()
