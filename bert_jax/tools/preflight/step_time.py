"""Estimates the time of a step on many chips from the compiler's cycles.

A cycle takes as long as if a large bfloat16 product ran at the chip's peak. The cycles of kernels
are those of their schedules (schedules.py) at the clock of the chip. The time is given for
computing alone and, where the maker publishes the bandwidth of the links, with communication
(links.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from bert_jax.command_line import aligned
from bert_jax.tools.preflight import hlo, links
from bert_jax.tools.preflight.chips import Chip

FEW = 4  # chips, with which more are compared where they do little
LOW = 0.3  # an MFU below which chips do little
LOSS = 0.05  # a share of chip-hours that is worth a word


def step_times(
  program: hlo.Program, mesh: Mesh, chip: Chip, flops: float, full_steps: float, chips: int
) -> dict[str, Any]:
  """Estimates the time of a step, as valid JSON:

  estimates: {compute_only: {step_s, mfu, chip_hours}, with_communication: as compute_only}, where
    with_communication is missing with one chip, or if the links' bandwidth is not published; {} for
    a program with kernels or other work whose time the compiler does not know;
  transfers: [links.Row as a dict]; interconnect: the bandwidth they use, None if it is not
    published, when they have no seconds; uncounted: see hlo.Program.

  flops: of the model, over all devices; chips: how many there are; full_steps: the rows of the run
  whose chip_hours are given, in full batches."""
  network = links.Network(mesh, chip.published)
  rows = links.rows(program, network)
  computing = sum(program.cycles().values()) * chip.seconds_per_cycle
  seconds = {'compute_only': computing}
  if network.known and mesh.size > 1:
    seconds['with_communication'] = computing + sum(row.seconds for row in rows if not row.beside)
  estimates = {}
  for name, step_s in seconds.items():
    estimates[name] = {
      'step_s': step_s,
      'mfu': flops / mesh.size / chip.peak / step_s,
      'chip_hours': full_steps * step_s * chips / 3600,
    }
  uncounted = program.uncounted()
  return {
    'estimates': {} if uncounted else estimates,
    'transfers': [dataclasses.asdict(row) for row in rows],
    'interconnect': chip.published.interconnect if network.known else None,
    'uncounted': uncounted,
  }


def fullest(report: Mapping[str, Any]) -> dict[str, float] | None:
  """The most complete estimate, with communication if it is known; None if there is none."""
  estimates = report['estimates']
  return estimates.get('with_communication') or estimates.get('compute_only')


def advice(report: Mapping[str, Any]) -> list[str]:
  """A sentence on fewer chips, if these many do little, also by waiting for one another."""
  whole = fullest(report)
  if whole is None or whole['mfu'] >= LOW or report['chips'] <= FEW:
    return []
  fewer, here = report['estimates']['compute_only']['chip_hours'], whole['chip_hours']
  if here * (1 - LOSS) < fewer:
    return []
  return [
    f'an MFU of {whole["mfu"]:.0%}: it belongs on 1 to {FEW} chips; if it fits, {FEW} take at '
    f'least {fewer / FEW:,.1f} hours and {fewer:,.1f} chip-hours, and these {report["chips"]} '
    f'{here / report["chips"]:,.1f} hours and {here:,.1f} chip-hours'
  ]


def text_of(report: Mapping[str, Any]) -> list[str]:
  """Lines about what has no time, and about the communication between devices."""
  lines = advice(report)
  for kind, number in report['uncounted'].items():
    lines.append(f'no time and no MFU: the compiler gives no cycles to {number} {kind}')
  speed = 'a bandwidth that is not published'
  if report['interconnect']:
    speed = f'{report["interconnect"] / 1e9:,.0f} GB/s of all links of a chip, as published'
  lines.append(f'between devices, in a step, by {speed}:')
  table = [('  nothing',)]
  if report['transfers']:
    table = [_cells(row) for row in report['transfers']]
  return lines + aligned(table)


def _cells(row):
  time = f'{1e3 * row["seconds"]:.2f} ms' if row['seconds'] else '-'
  if row['beside']:
    time += ', beside computing'
  kind = f'  {row["number"]} x {row["kind"]}'
  size = f'{row["bytes"] / 1e6:,.1f} MB'
  return kind, row['axes'] or '-', size, time
