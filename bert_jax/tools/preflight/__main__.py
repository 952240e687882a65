"""Estimates how a config trains on TPUs, without having any: at once by their data sheet, then by
compiling its step for them.

    python -m bert_jax.tools.preflight --config configs/pretrain.py:size=base \
        --topology v5e:4x4 --config.batch_size=1024 [--price 1.2 [--spot 0.5]] [--json]
    python -m bert_jax.tools.preflight ... --compare v5litepod-64,v6e-32,v5p-16 --price 1.2,2.7,4.2
    python -m bert_jax.tools.preflight ... --best (or --largest-batch)

The real compiler (pip install libtpu; no TPU) compiles the real step with the config's mesh, and
refuses what does not fit. Its cycles become an estimated time and MFU (step_time.py), without and
with communication (links.py). What is compiled is kept, and nothing is timed.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import sharding
from bert_jax.command_line import command_line, command_parser
from bert_jax.errors import InputError, log
from bert_jax.tasks import TASKS
from bert_jax.tools.preflight import chips, costs, estimate, step_time
from bert_jax.tools.preflight.compilation import USUALLY


def table(report: estimate.Report) -> str:
  kept = ', compiled before and kept' if report['cached'] else ''
  lines = [
    f'{report["devices"]}, mesh {report["mesh"]}, '
    f'{report["rows_per_data_shard"]} rows on each data shard{kept}',
    f'model FLOPs of a step: {report["model_flops"]:.4g}, model.dtype={report["dtype"]}'
    + ' (bfloat16 is faster on TPUs)' * (report['dtype'] == 'float32'),
  ]
  for key in ('largest_of_state', 'largest_temporaries'):
    buffers = report.get(key, [])
    lines += [f'largest buffers of {key.rpartition("_")[2]} on a device:'] * bool(buffers)
    lines += [f'  {x["bytes"] / 1e6:10,.1f} MB  {x["name"]}' for x in buffers]
  if report['fits']:
    total = report['estimated_cycles']
    lines.append('compiler-estimated cycles:')
    lines += [f'  {n:14,}  {n / total:5.1%}  {part}' for part, n in report['cycles'].items()]
    lines += [f'  {total:14,}  together', *step_time.text_of(report)]
  return '\n'.join(lines + [f'warning: {w}' for w in report['warnings']])


def compiled(
  args: argparse.Namespace,
  overrides: Sequence[str],
  config: ConfigDict,
  topology: str,
  rate: tuple[float, float],
) -> Iterator[estimate.Report]:
  """Yields the report of a config, or of what is searched, on a topology, then of what fits.

  rate: (dollars for a chip-hour, share of it on a spot chip), or NaN.
  """
  devices = chips.devices_of(topology, config.mesh.slices)
  if not args.largest_batch:
    sharding.mesh_of(config, TASKS[config.objective], devices)  # or an InputError
  chip = chips.Chip(devices[0])
  notes, found = list[str](), list[Mapping[str, Any]]()  # of a search, as they come; what fits

  def note(text: str) -> None:
    notes.append(text)
    log.info('%s', text)

  def attempt(fields: Mapping[str, Any]) -> estimate.Report | None:
    if found and not args.best:
      return None  # the first that fits is enough
    changed = ' '.join(f'{name}={value}' for name, value in fields.items()) or 'the config as it is'
    try:
      report = estimate.estimate(estimate.changed(config, fields), devices, chip)
    except InputError as error:
      if not fields:
        raise
      log.warning('%s is not possible: %s', changed, error)
      return None
    found.extend([fields] * report['fits'])
    note(f'{changed}: {costs.line(report)}')
    return report

  yield {'notes': notes}
  if args.largest_batch:
    yield estimate.largest_batch(config, devices, chip, note)
    return
  report = estimate.estimate(config, devices, chip)
  yield report
  if not report['fits']:
    log.warning('%s DOES NOT FIT; now it is searched what does', topology)
  if args.best or not report['fits']:
    best = estimate.fastest(args.config, overrides, config, devices, attempt)
    speed = ['with this: ' + costs.line(best | costs.cost(best, rate))] * best['fits']
    yield best if args.best else report | {'notes': [*best['notes'], *speed]}


def text_of(args: argparse.Namespace, reports: Mapping[str, estimate.Report]) -> str:
  first, *_ = reports.values()
  if args.json:
    each = [{'topology': name} | report for name, report in reports.items()]
    return json.dumps(each if args.compare else first)
  about = [f'{name}: {x}' for name, report in reports.items() for x in report.get('notes', [])]
  whole = [] if args.compare or first['fits'] is None else [table(first)]
  return '\n'.join([*whole, *costs.table(reports), *about])


def main(argv: Sequence[str] | None = None) -> None:
  more = 'Any field of the config is set as --config.NAME=VALUE, such as mesh.slices.'
  parser = command_parser('tools.preflight', __doc__, epilog=more)
  add, topology = parser.add_argument, 'such as v5e:4x4, or a name of the cloud: v5litepod-16'
  add('--config', required=True, metavar='FILE[:ARGS]')
  where = parser.add_mutually_exclusive_group(required=True)
  where.add_argument('--topology', metavar='CHIP:AxB', help=topology)
  where.add_argument('--compare', metavar='TOPOLOGY,..', help='one table; exits with 0 if any fits')
  add('--price', default='', help='dollars for a chip-hour; 1.2,2.7: of each topology')
  add('--spot', default='', help='price of a spot chip, as a share of --price')
  add('--json', action='store_true', help='print JSON')
  either = parser.add_mutually_exclusive_group()
  either.add_argument('--largest-batch', action='store_true', help='search it')
  either.add_argument('--best', action='store_true', help='search the fastest step')
  args, overrides = parser.parse_known_args(argv)
  with command_line():
    jax.config.update('jax_platforms', 'cpu')  # libtpu complains where there is no TPU
    names = [*dict.fromkeys((args.compare or args.topology).split(','))]
    rates = dict(zip(names, costs.rates(args.price, args.spot, len(names))))
    log.info('preflight of %s for %s: nothing is rented or run', args.config, ', '.join(names))
    config = config_lib.load(args.config, overrides)
    config = estimate.of_its_run(config, config_lib.names_of(overrides))
    objective = estimate.objective_of(config)
    reports = {name: estimate.at_once(config, objective, name) for name in names}
    for name, report in reports.items() if not args.largest_batch else ():
      try:
        _, number, *_ = chips.counted(name, config.mesh.slices)
        sized = estimate.changed(config, {'init_from': ''})  # its heads are known
        sharding.check_tpus(number, sized, TASKS[config.objective])
      except InputError as error:  # what cannot be has no price
        if not args.compare:
          raise
        report |= {'fits': False, 'estimates': {}, 'refused': str(error), 'notes': [str(error)]}
    priced = lambda: {name: x | costs.cost(x, rates[name]) for name, x in reports.items()}
    possible = [(name, report) for name, report in reports.items() if report['fits'] is None]
    if possible:
      log.info('%s', '\n'.join(costs.table(priced())))
      log.info('now its step is compiled, usually in %s, unless it is kept', USUALLY)
      log.info('Ctrl-C prints what is known')
    try:
      for name, known in possible:
        try:
          for report in compiled(args, overrides, config, name, rates[name]):
            reports[name] |= report
        except InputError as error:
          if not args.compare:
            raise
          reports[name] = known | {'notes': [str(error)]}
    except KeyboardInterrupt:
      print(text_of(args, priced()))
      raise KeyboardInterrupt('stopped: this is known; what was compiled is kept') from None
    print(text_of(args, priced()))
    if not any(report['fits'] for report in reports.values()):
      raise InputError('the config was not seen to fit as it is; what to do is said above.')


if __name__ == '__main__':
  main()
