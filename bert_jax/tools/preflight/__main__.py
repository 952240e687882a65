"""Estimates how a config trains on TPUs, without having any, by compiling its step for them.

    python -m bert_jax.tools.preflight --config configs/pretrain.py:size=base \
        --topology v5e:4x4 --config.batch_size=1024 [--price 1.2 [--spot 0.5]] [--json]
    python -m bert_jax.tools.preflight ... --compare v5e:8x8,v6e:4x8,v5p:2x2x2 --price 1.2,2.7,4.2
    python -m bert_jax.tools.preflight ... --best

The real compiler (pip install libtpu; no TPU) compiles the real step with the config's mesh, and
refuses what does not fit. Its cycles become an estimated time and MFU (step_time.py), without and
with communication (links.py). What is compiled is kept, and nothing is timed.
"""

import json
import shlex
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax.command_line import command_line, command_parser
from bert_jax.errors import InputError, log
from bert_jax.tools.preflight import best, chips, costs, estimate, step_time


def text_of(report: estimate.Report) -> str:
  """What is known of one topology: the largest buffers, cycles, communication and warnings."""
  lines = [
    f'{report["devices"]}, mesh {report["mesh"]}, '
    f'{report["rows_per_data_shard"]} rows on each data shard',
    f'model FLOPs of a step: {report["model_flops"]:.4g}, model.dtype={report["dtype"]}',
  ]
  for key in ('largest_of_state', 'largest_temporaries'):
    if report.get(key):
      lines.append(f'largest buffers of {key.rpartition("_")[2]} on a device:')
      lines += [f'  {x["bytes"] / 1e6:10,.1f} MB  {x["name"]}' for x in report[key]]
  if report['fits']:
    total = report['estimated_cycles']
    lines.append('compiler-estimated cycles:')
    lines += [f'  {n:14,}  {n / total:5.1%}  {part}' for part, n in report['cycles'].items()]
    lines += [f'  {total:14,}  together', *step_time.text_of(report)]
  return '\n'.join(lines + [f'warning: {warning}' for warning in report['warnings']])


def main(argv: Sequence[str] | None = None) -> None:
  more = 'Any field of the config is set as --config.NAME=VALUE, such as mesh.slices.'
  parser = command_parser('tools.preflight', __doc__, epilog=more)
  add = parser.add_argument
  add('--config', required=True, metavar='FILE[:ARGS]')
  where = parser.add_mutually_exclusive_group(required=True)
  where.add_argument('--topology', metavar='CHIP:AxB', help='such as v5e:4x4 or v5p:2x2x4')
  where.add_argument('--compare', metavar='TOPOLOGY,..', help='one table; exits with 0 if any fits')
  add('--price', default='', help='dollars for a chip-hour; 1.2,2.7: of each topology')
  add('--spot', type=float, default=0.0, help='price of a spot chip, as a share of --price')
  add('--json', action='store_true', help='print JSON')
  add('--best', action='store_true', help='search the fastest step')
  args, overrides = parser.parse_known_args(argv)
  with command_line():
    jax.config.update('jax_platforms', 'cpu')  # libtpu complains where there is no TPU
    names = list(dict.fromkeys((args.compare or args.topology).split(',')))
    prices = costs.prices_of(args.price, len(names))
    if not 0 <= args.spot <= 1 or (args.spot and not prices):
      raise InputError(f'--spot {args.spot:g} is a share of --price, from 0 to 1; give both.')
    config = config_lib.load(args.config, overrides)
    config = estimate.of_its_run(config, config_lib.names_of(overrides))
    reports: dict[str, dict[str, Any]] = {}
    for name in names:
      devices = chips.devices_of(name, config.mesh.slices)
      try:
        estimate.check_mesh(config, devices)  # before a chip is measured
        chip = chips.Chip(devices[0])
        report = estimate.estimate(config, devices, chip)
        if args.best:
          fields, report = best.search(config, report, devices, chip)
          changes = [f'--config.{field}={value}' for field, value in fields.items()]
          command = ['python', '-m', 'bert_jax.train', '--config', args.config, *overrides]
          train = shlex.join([*command, *changes, '--workdir', 'WORKDIR'])
          log.info('the fastest of what was tried on %s: %s', name, train)
          report |= {'fields': fields, 'command': train}
      except InputError as error:
        if not args.compare:
          raise
        log.warning('%s: %s', name, error)
        continue
      reports[name] = report
    if not reports:
      raise InputError('the config is possible on none of these topologies; why is said above.')
    if args.json:
      known = [{'topology': name} | report for name, report in reports.items()]
      print(json.dumps(known if args.compare else known[0]))
    else:
      if args.topology:
        print(text_of(reports[args.topology]))
      in_order = [prices[names.index(name)] for name in reports] if prices else []
      print(costs.table(reports, in_order, args.spot))
    if not any(report['fits'] for report in reports.values()):
      raise InputError(
        'the config does not fit; use more chips, mesh.fsdp, optimizer.accumulation or model.remat '
        '(--best tries them).'
      )


if __name__ == '__main__':
  main()
