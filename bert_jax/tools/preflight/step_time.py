"""Estimates the time of a step on many chips from the compiler's cycles.

Two clocks turn cycles into seconds: `calibrated`, by which a large bfloat16 product runs at the
chip's peak, and `data_sheet`, at which the chip's matrix units reach that peak. The MFU by the
second is what others publish. Both are given for computing alone and, where the maker publishes the
bandwidth of the links, with communication (links.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from bert_jax.command_line import aligned
from bert_jax.tools.preflight import hlo, links
from bert_jax.tools.preflight.chips import Chip

# A step that contains these cannot be timed, since the compiler gives them no cycles.
WITHOUT = {'Pallas kernels': 'Pallas kernels', 'unknown': 'operations of unknown cost'}


def step_times(
  program: hlo.Program, mesh: Mesh, chip: Chip, flops: float, full_steps: float, chips: int
) -> dict[str, Any]:
  """Estimates the time of a step, as valid JSON:

  estimates: {clock: {compute_only: {step_s, mfu, chip_hours}, with_communication: as compute_only},
    where with_communication is missing with one chip, or if the links' bandwidth is not published;
    {} for a program with kernels or other work whose time the compiler does not know;
  transfers: [links.Row as a dict]; interconnect: the bandwidth they use, None if it is not
    published, when they have no seconds; uncounted: see hlo.Program.

  flops: of the model, over all devices; chips: how many there are; full_steps: the rows of the run
  whose chip_hours are given, in full batches."""
  network = links.Network(mesh, chip.published)
  rows = links.rows(program, network)
  cycles = sum(program.cycles().values())
  blocking = sum(row.seconds for row in rows if not row.beside)
  clocks = {'calibrated': chip.seconds_per_cycle}
  if chip.data_sheet_seconds:
    clocks['data_sheet'] = chip.data_sheet_seconds
  estimates = {}
  for clock, cycle in clocks.items():
    seconds = {'compute_only': cycles * cycle}
    if network.known and mesh.size > 1:
      seconds['with_communication'] = cycles * cycle + blocking
    estimates[clock] = {}
    for name, step_s in seconds.items():
      estimates[clock][name] = {
        'step_s': step_s,
        'mfu': flops / mesh.size / chip.peak / step_s,
        'chip_hours': full_steps * step_s * chips / 3600,
      }
  report = {
    'transfers': [dataclasses.asdict(row) for row in rows],
    'interconnect': chip.published.interconnect if network.known else None,
    'uncounted': program.uncounted(),
  }
  return {'estimates': {} if missing(report) else estimates} | report


def missing(report: Mapping[str, Any]) -> str:
  """Names the work without cycles for which a step cannot be timed: '2 Pallas kernels', or ''."""
  counts = report['uncounted']
  return ' and '.join(f'{counts[x]} {words}' for x, words in WITHOUT.items() if x in counts)


def fullest(report: Mapping[str, Any]) -> list[Any]:
  """The most complete estimate by each clock, with communication if known; [] if there is none."""
  estimates = report['estimates'].values()
  return [x.get('with_communication', x['compute_only']) for x in estimates]


def text_of(report: Mapping[str, Any]) -> list[str]:
  """Lines about what is not counted, and about the communication between devices."""
  lines = []
  if lacking := missing(report):
    lines.append(f'no time and no MFU: the compiler gives no cycles to {lacking}')
  rest = [f'{name} {n:,}' for name, n in report['uncounted'].items() if name not in WITHOUT]
  if rest:
    lines.append(f'not counted, since the compiler gives them no cycles: {", ".join(rest)}')
  speed = 'a bandwidth that is not published'
  if report['interconnect']:
    speed = f'{report["interconnect"] / 1e9:,.0f} GB/s of all links of a chip, as published'
  lines.append(f'between devices, in a step, by {speed}:')
  table = [('  nothing',)]
  if report['transfers']:
    table = [_cells(row) for row in report['transfers']]
  return lines + aligned(table)


def _cells(row):
  time = f'{1e3 * row["seconds"]:.2f} ms'
  if row['beside']:
    time += ', beside computing'
  kind = f'  {row["number"]} x {row["kind"]}'
  size = f'{row["bytes"] / 1e6:,.1f} MB'
  return kind, row['axes'] or '-', size, time
