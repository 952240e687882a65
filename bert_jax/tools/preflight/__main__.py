"""Estimates how a config trains on TPUs, without having any, by compiling its step for them.

    python -m bert_jax.tools.preflight --config configs/pretrain.py:size=base \
        --topology v5e:4x4 --config.batch_size=1024 [--price 1.2] [--json]
    python -m bert_jax.tools.preflight ... --topology v5e:8x8,v6e:4x8,v5p:2x2x2 --price 1.2,2.7,4.2
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
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import sharding
from bert_jax.command_line import WARNING_PREFIX, command_line, command_parser
from bert_jax.errors import InputError, log
from bert_jax.tasks import TASKS
from bert_jax.tools.preflight import best, chips, costs, estimate, step_time


def text_of(report: estimate.Report) -> str:
  """What is known of one topology: cycles, communication and warnings."""
  lines = [
    f'{report["devices"]}, mesh {report["mesh"]}, '
    f'{report["rows_per_data_shard"]} rows on each data shard',
    f'model FLOPs of a step: {report["model_flops"]:.4g}, model.dtype={report["dtype"]}',
  ]
  if report['fits']:
    total = report['estimated_cycles']
    lines.append('compiler-estimated cycles:')
    for part, number in report['cycles'].items():
      lines.append(f'  {number:14,}  {number / total:5.1%}  {part}')
    lines.append(f'  {total:14,}  together')
    lines += step_time.text_of(report)
  lines += [WARNING_PREFIX + warning for warning in report['warnings']]
  return '\n'.join(lines)


def report_of(
  name: str, config: ConfigDict, command: Sequence[str], search: bool
) -> estimate.Report:
  """The report of a config on a topology; with `search` of the fastest fields, beside the command
  that trains with them. command: the one that trains the config as it is, without a workdir."""
  devices = chips.devices_of(name, config.mesh.slices)
  sharding.mesh_of(config, TASKS[config.objective], devices)  # refused before a chip is measured
  chip = chips.Chip(devices[0])
  report = estimate.estimate(config, devices, chip)
  if search:
    fields, report = best.search(config, report, devices, chip)
    changes = [f'--config.{field}={value}' for field, value in fields.items()]
    train = shlex.join([*command, *changes, '--workdir', 'WORKDIR'])
    log.info('the fastest of what was tried on %s: %s', name, train)
    report |= {'fields': fields, 'command': train}
  return report


def main(argv: Sequence[str] | None = None) -> None:
  more = 'Any field of the config is set as --config.NAME=VALUE, such as mesh.slices.'
  parser = command_parser('tools.preflight', __doc__, epilog=more)
  add = parser.add_argument
  where = 'such as v5e:4x4 or v5p:2x2x4; of several one table, and status 0 if any fits'
  add('--config', required=True, metavar='FILE[:ARGS]')
  add('--topology', required=True, metavar='CHIP:AxB,..', help=where)
  add('--price', default='', help='dollars for a chip-hour; 1.2,2.7: of each topology')
  add('--json', action='store_true', help='print JSON')
  add('--best', action='store_true', help='search the fastest step')
  args, overrides = parser.parse_known_args(argv)
  with command_line():
    jax.config.update('jax_platforms', 'cpu')  # libtpu complains where there is no TPU
    names = list(dict.fromkeys(args.topology.split(',')))
    prices = dict(zip(names, costs.prices_of(args.price, len(names))))
    config = config_lib.load(args.config, overrides)
    config = estimate.of_its_run(config, config_lib.names_of(overrides))
    command = ['python', '-m', 'bert_jax.train', '--config', args.config, *overrides]
    reports: dict[str, dict[str, Any]] = {}
    for name in names:
      try:
        reports[name] = report_of(name, config, command, args.best)
      except InputError as error:
        if len(names) == 1:
          raise
        log.warning('%s: %s', name, error)
    if not reports:
      raise InputError('the config is possible on none of these topologies; why is said above.')
    if args.json:
      print(json.dumps([{'topology': name} | report for name, report in reports.items()]))
    else:
      if len(names) == 1:
        print(text_of(reports[names[0]]))
      print(costs.table(reports, [prices[name] for name in reports]))
    if not any(report['fits'] for report in reports.values()):
      raise InputError(
        'the config does not fit; use more chips, mesh.fsdp, optimizer.accumulation or model.remat '
        '(--best tries them).'
      )


if __name__ == '__main__':
  main()
