"""Estimates time, chip-hours and cost of a step on many chips from the compiler's cycles.

Two clocks turn cycles into seconds: `calibrated`, by which a large bfloat16 product runs at the
chip's peak, and `data_sheet`, at which the chip's matrix units reach that peak. The MFU by the
second is what others publish. Both are given for computing alone and, where the maker publishes the
bandwidth of the links, with communication (links.py).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from bert_jax.command_line import aligned
from bert_jax.errors import InputError
from bert_jax.tools.preflight import hlo, links

if TYPE_CHECKING:
  from bert_jax.tools.preflight.chips import Chip

CLOCKS = {'calibrated': 'of a large product at its peak', 'data_sheet': 'of the data sheet'}
# A step that contains these cannot be timed, since the compiler gives them no cycles.
WITHOUT = {'Pallas kernels': 'Pallas kernels', 'unknown': 'operations of unknown cost'}


def step_times(
  program: hlo.Program, mesh: Mesh, chip: 'Chip', flops: float, full_steps: float, chips: int
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
    estimates[clock] = {
      name: {'step_s': t, 'mfu': share / t, 'chip_hours': full_steps * t * chips / 3600}
      for name, t in seconds.items()
    }
  wire = {'bytes_per_s': published.interconnect, 'source': published.source}
  out = {
    'transfers': [dataclasses.asdict(row) for row in first.rows] if network.known else [],
    'interconnect': wire if network.known else None,
    'collective_bytes': first.bytes(),
    'uncounted': program.uncounted(),
  }
  return {'estimates': {} if missing(out) else estimates} | out


def missing(report: Mapping[str, Any]) -> str:
  """Names the work without cycles for which a step cannot be timed: '2 Pallas kernels', or ''."""
  counts = report['uncounted']
  return ' and '.join(f'{counts[x]} {words}' for x, words in WITHOUT.items() if x in counts)


def fullest(estimate: Mapping[str, Any]) -> Any:
  """The most complete estimate by a clock: with communication, if known."""
  return estimate.get('with_communication', estimate['compute_only'])


def check(price: float | None, spot: float | None) -> None:
  """InputError unless --price and --spot are plausible amounts."""
  if price is not None and not price > 0:
    raise InputError(f'--price {price:g} is no price; give dollars for a chip-hour, such as 1.2.')
  if spot is not None and (price is None or not 0 < spot <= 1):
    raise InputError(f'--spot {spot:g} is a share of --price, between 0 and 1; give both.')


def cost(
  report: Mapping[str, Any], price: float | None, spot: float | None = None
) -> dict[str, Any]:
  """The cost of a run, {'days', 'chip_hours', 'dollars', 'spot_dollars': [least, most]}, by the two
  clocks, communication included if known. price: of a chip-hour; spot: the share of it."""
  rows = [fullest(x) for x in report.get('estimates', {}).values()]
  if not rows:  # it does not fit, or its time is not known
    return {}
  days = sorted(report['full_steps'] * row['step_s'] / 86400 for row in rows)
  hours = sorted(row['chip_hours'] for row in rows)
  out: dict[str, Any] = {'days': [days[0], days[-1]], 'chip_hours': [hours[0], hours[-1]]}
  if price is not None:
    out |= {'price': price, 'dollars': [price * x for x in out['chip_hours']]}
  if price is not None and spot is not None:
    out |= {'spot': spot, 'spot_dollars': [spot * x for x in out['dollars']]}
  return out


def _between(numbers: Sequence[float], form: str) -> str:
  """Formats a range as '9 to 11', or '9' if both numbers read the same."""
  return ' to '.join(dict.fromkeys(form.format(n) for n in numbers))


def text_of(report: Mapping[str, Any]) -> list[str]:
  """Lines about time and communication."""
  lines, estimates = [], report['estimates']
  if lacking := missing(report):
    lines.append(f'no time and no MFU: the compiler gives no cycles to {lacking}')
  if estimates:
    rows = [('estimated, by the clock', *(x.replace('_', ' ') for x in estimates['calibrated']))]
    for clock, by in estimates.items():
      cell = '{:.2f} ms, MFU {:.1%}, {:,.1f} chip-hours'
      cells = (cell.format(1e3 * r['step_s'], r['mfu'], r['chip_hours']) for r in by.values())
      rows.append((f'  {CLOCKS[clock]}', *cells))
    lines += aligned(rows)
    lines.append('  (MFU by the clock of the data sheet is the one that others publish)')
  rest = [f'{name} {n:,}' for name, n in report['uncounted'].items() if name not in WITHOUT]
  if rest:
    lines.append(f'not counted, since the compiler gives them no cycles: {", ".join(rest)}')
  return lines + _moved(report)


def _moved(report: Mapping[str, Any]) -> list[str]:
  """Lines about the communication between devices."""
  if not report['collective_bytes']:
    return ['between devices: nothing']
  wire, each = report['interconnect'], 'between devices, each step and device'
  if not wire:
    moved = ', '.join(f'{k} {n / 1e6:,.1f} MB' for k, n in report['collective_bytes'].items())
    return [f'{each}: {moved}; no bandwidth of the links of this chip is published']
  rows = []
  for row in report['transfers']:
    took, waited = (f'{1e3 * row[x]:.2f} ms' for x in ('seconds', 'waited'))
    what = f'  {row["number"]} x {row["kind"]}', row['axes'] or '-', f'{row["bytes"] / 1e6:,.1f} MB'
    how = ', beside compute' if row['beside'] else ''
    rows.append((*what, took, f'waited for {waited}{how}'))
  speed = f'{wire["bytes_per_s"] / 1e9:,.0f} GB/s of all links of a chip ({wire["source"]})'
  return [f'{each}, by {speed} and the first clock:', *aligned(rows)]


def money_text(
  report: Mapping[str, Any], price: float | None, spot: float | None, minutes: float
) -> list[str]:
  """Lines about the cost of the whole run; minutes: between two checkpoints."""
  costs = cost(report, price, spot)
  if not costs:
    return []
  form = '${:,.2f}' if max(costs.get('dollars', [0])) < 100 else '${:,.0f}'
  short = max(costs['days']) < 2
  time = _between([24 * x if short else x for x in costs['days']], '{:,.1f}')
  line = (
    f'{report["steps"]:,} steps, without their data, evaluations and checkpoints: '
    f'{time} {"hours" if short else "days"}, {_between(costs["chip_hours"], "{:,.0f}")} chip-hours'
  )
  if price is None:
    return [f'{line} (--price says the dollars)']
  lines = [f'{line}, {_between(costs["dollars"], form)} at ${price:g} a chip-hour']
  again = f'every {minutes:g} minutes a checkpoint, from which what is lost is computed again'
  taken = f'spot chips may be taken away at any time ({again})'
  if spot is None:
    return [*lines, f'{taken}; their price changes: --spot 0.5 says what half of it makes']
  return [*lines, f'at {spot:g} of that {_between(costs["spot_dollars"], form)}; {taken}']
