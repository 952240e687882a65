"""Estimates the time of a step on many chips from the compiler's cycles.

Two clocks turn cycles into seconds: `calibrated`, by which a large bfloat16 product runs at the
chip's peak, and `data_sheet`, at which the chip's matrix units reach that peak. The MFU by the
second is what others publish. Both are given for computing alone and, where the maker publishes the
bandwidth of the links, with communication (links.py).
"""

import collections
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
  transfers: [links.Row as a dict], their times by the calibrated clock; interconnect: the bandwidth
    they use, None if it is not published; collective_bytes: {kind: bytes on one device};
  uncounted: see hlo.Program.

  flops: of the model, over all devices; chips: how many there are; full_steps: the rows of the run
  whose chip_hours are given, in full batches."""
  network, published = links.Network(mesh, chip.published), chip.published
  estimates, first = {}, links.Timeline(program, network, chip.seconds_per_cycle)
  share = flops / mesh.size / chip.peak
  clocks = {'calibrated': chip.seconds_per_cycle, 'data_sheet': chip.data_sheet_seconds}
  for clock, cycle in clocks.items():
    if not cycle:
      continue
    seconds = {'compute_only': sum(program.cycles().values()) * cycle}
    if network.known and mesh.size > 1:
      seconds['with_communication'] = links.Timeline(program, network, cycle).seconds
    estimates[clock] = {name: row(t, share / t, full_steps, chips) for name, t in seconds.items()}
  moved = sum((collections.Counter({x.kind: x.bytes}) for x in first.rows), collections.Counter())
  wire = {'bytes_per_s': published.interconnect, 'source': published.source}
  out = {
    'transfers': [dataclasses.asdict(row) for row in first.rows] if network.known else [],
    'interconnect': wire if network.known else None,
    'collective_bytes': dict(moved),
    'uncounted': program.uncounted(),
  }
  return {'estimates': {} if missing(out) else estimates} | out


def row(step_s: float, mfu: float, full_steps: float, chips: int) -> dict[str, float]:
  return {'step_s': step_s, 'mfu': mfu, 'chip_hours': full_steps * step_s * chips / 3600}


def missing(report: Mapping[str, Any]) -> str:
  """Names the work without cycles for which a step cannot be timed: '2 Pallas kernels', or ''."""
  counts = report['uncounted']
  return ' and '.join(f'{counts[x]} {words}' for x, words in WITHOUT.items() if x in counts)


def fullest(report: Mapping[str, Any]) -> list[Any]:
  """The most complete estimate by each clock, with communication if known; [] if there is none."""
  estimates = report.get('estimates', {}).values()
  return [x.get('with_communication', x['compute_only']) for x in estimates]


def text_of(report: Mapping[str, Any]) -> list[str]:
  """Lines about what is not counted, and about the communication between devices."""
  lines, moved = [], report['collective_bytes']
  if lacking := missing(report):
    lines.append(f'no time and no MFU: the compiler gives no cycles to {lacking}')
  rest = [f'{name} {n:,}' for name, n in report['uncounted'].items() if name not in WITHOUT]
  if rest:
    lines.append(f'not counted, since the compiler gives them no cycles: {", ".join(rest)}')
  wire, each = report['interconnect'], 'between devices, each step and device'
  if not moved:
    return [*lines, 'between devices: nothing']
  if not wire:
    sizes = ', '.join(f'{kind} {n / 1e6:,.1f} MB' for kind, n in moved.items())
    return [*lines, f'{each}: {sizes}; no bandwidth of the links of this chip is published']
  rows = []
  for row in report['transfers']:
    took, waited = (f'{1e3 * row[x]:.2f} ms' for x in ('seconds', 'waited'))
    what = f'  {row["number"]} x {row["kind"]}', row['axes'] or '-', f'{row["bytes"] / 1e6:,.1f} MB'
    how = ', beside compute' if row['beside'] else ''
    rows.append((*what, took, f'waited for {waited}{how}'))
  speed = f'{wire["bytes_per_s"] / 1e9:,.0f} GB/s of all links of a chip ({wire["source"]})'
  return [*lines, f'{each}, by {speed} and the calibrated clock:', *aligned(rows)]
