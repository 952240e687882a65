"""Compiles a config's training step for TPUs without having any, and estimates how it will run.

    python -m bert_jax.tools.preflight --config configs/pretrain.py:size=base \
        --topology v5e:4x4 --config.batch_size=1024 [--slices 2] [--price 1.2 [--spot 0.5]] [--json]
    python -m bert_jax.tools.preflight ... --largest-batch
    python -m bert_jax.tools.preflight ... --best

The real compiler (pip install libtpu; no TPU) compiles the real step with the config's mesh, and
refuses what does not fit. Its cycles become an estimated time and MFU (money.py), without and with
communication (links.py). Nothing is timed, and nothing read but a teacher's weights.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax import config as config_lib
from bert_jax import sharding
from bert_jax.command_line import command_line
from bert_jax.errors import InputError, log
from bert_jax.tasks import TASKS
from bert_jax.tools import arguments
from bert_jax.tools.preflight import chips, estimate, money


def table(report: estimate.Report) -> str:
  """The text of a report."""
  kept = ', compiled before and kept' if report['cached'] else ''
  over = report['hbm_over']
  lines = [
    f'{report["devices"]}, mesh {report["mesh"]}, '
    f'{report["rows_per_data_shard"]} rows on each data shard{kept}',
    f'{"fits" if report["fits"] else "DOES NOT FIT"}: {estimate.gigabytes(report["hbm_bytes"])} of '
    f'{estimate.gigabytes(report["hbm_limit"])} HBM, {estimate.gigabytes(abs(over))} '
    + ('left' if over <= 0 else 'too much'),
    f'model FLOPs of a step: {report["model_flops"]:.4g}, model.dtype={report["dtype"]}'
    + ' (bfloat16 is faster on TPUs)' * (report['dtype'] == 'float32'),
  ]
  for key in ('largest_of_state', 'largest_temporaries'):
    lines += [f'  {x["bytes"] / 1e6:10,.1f} MB  {x["name"]}' for x in report.get(key, [])]
  if report['fits']:
    total = report['estimated_cycles']
    lines.append('compiler-estimated cycles:')
    lines += [f'  {n:14,}  {n / total:5.1%}  {part}' for part, n in report['cycles'].items()]
    lines += [f'  {total:14,}  together', *money.text_of(report)]
  return '\n'.join(lines + [f'warning: {w}' for w in report['warnings']])


def line_of(fields: Mapping[str, Any], report: estimate.Report) -> str:
  """A report of a config with some fields changed as one line."""
  text = ' '.join(f'{name}={value}' for name, value in fields.items()) or 'the config as it is'
  if not report['fits']:
    return f'{text:40} does not fit: {estimate.gigabytes(report["hbm_over"])} too much'
  memory = f'{estimate.gigabytes(report["hbm_bytes"]):>9}'
  cycles = f'{text:40} {memory}  {report["estimated_cycles"]:13,} cycles'
  if not report['estimates']:
    return f'{cycles}  no MFU: {money.missing(report)} count no cycles'
  mfus = report['estimates']['calibrated'].items()
  shown = ', '.join(f'{name.replace("_", " ")} {x["mfu"]:.1%}' for name, x in mfus)
  return f'{cycles}  estimated MFU {shown}'


def main(argv: Sequence[str] | None = None) -> None:
  more = 'Any field of the config is set as --config.NAME=VALUE.'
  parser = arguments.parser('preflight', __doc__, epilog=more)
  add, topology = parser.add_argument, 'such as v5e:4x4, or a name of the cloud: v5litepod-16'
  add('--config', required=True, metavar='FILE[:ARGS]')
  add('--topology', required=True, metavar='CHIP:AxB', help=topology)
  add('--slices', type=int, help='of that topology, joined by DCN')
  add('--price', type=float, help='dollars for a chip-hour')
  add('--spot', type=float, help='price of a spot chip, as a share of --price')
  add('--json', action='store_true', help='print JSON')
  either = parser.add_mutually_exclusive_group()
  either.add_argument('--largest-batch', action='store_true', help='search it')
  either.add_argument('--best', action='store_true', help='search the fastest step')
  args, overrides = parser.parse_known_args(argv)
  with command_line():
    money.check(args.price, args.spot)
    log.info('preflight of %s for %s: nothing is rented or run', args.config, args.topology)
    if args.slices is not None:
      overrides.append(f'--config.mesh.slices={args.slices}')
    config = config_lib.load(args.config, overrides)
    devices = chips.devices_of(args.topology, config.mesh.slices)
    if not args.largest_batch:
      sharding.mesh_of(config, TASKS[config.objective], devices)  # or an InputError
    chip = chips.Chip(devices[0])

    def attempt(fields: Mapping[str, Any]) -> estimate.Report | None:
      try:
        report = estimate.estimate(estimate.changed(config, fields), devices, chip)
      except InputError as error:
        if not fields:
          raise
        log.warning('%s: %s', ' '.join(f'{name}={x}' for name, x in fields.items()), error)
        return None
      log.info(line_of(fields, report))
      return report

    if args.best:
      report, sentences = estimate.fastest(args.config, overrides, config, devices, attempt)
    else:
      one = estimate.largest_batch if args.largest_batch else estimate.estimate
      report, sentences = one(config, devices, chip), []
    if args.json:
      print(json.dumps(report | money.cost(report, args.price, args.spot)))
      return
    costs = money.money_text(report, args.price, args.spot, config.checkpoint.minutes)
    print('\n'.join([table(report), *costs, *sentences]))


if __name__ == '__main__':
  main()
