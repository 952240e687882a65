"""Estimates time, chip-hours and cost of a step on many chips from the compiler's cycles.

Two clocks turn cycles into seconds: `calibrated`, by which a large bfloat16 product runs at the
chip's peak, and `data_sheet`, at which the chip's matrix units reach that peak. The MFU by the
second is what others publish. Both are given for computing alone and, where the maker publishes the
bandwidth of the links, with communication (links.py).
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

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
    'transfers': [row._asdict() for row in first.rows] if network.known else [],
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


def dollars(text: str) -> float:
  """Parses '1.2' or '$1.2'. argparse prints the sentence of an ArgumentTypeError."""
  try:
    return float(text.removeprefix('$'))
  except ValueError:
    sentence = f'{text!r} is no price; give dollars for a chip-hour, such as 1.2'
    raise argparse.ArgumentTypeError(sentence) from None


def check(price: float | None, spot: float | None) -> None:
  """InputError unless --price and --spot are plausible amounts."""
  if price is not None and not price > 0:
    raise InputError(f'--price {price:g} is no price; give dollars for a chip-hour, such as 1.2.')
  if spot is not None and (price is None or not 0 < spot <= 1):
    use = 'between 0 and 1; give both, such as --price 1.2 --spot 0.5'
    raise InputError(f'--spot {spot:g} is a share of --price, {use}.')


def cost(
  report: Mapping[str, Any], price: float | None, spot: float | None = None
) -> dict[str, Any]:
  """The cost of a run, {'days', 'chip_hours', 'dollars', 'spot_dollars': [least, most]}, by the two
  clocks, communication included if known. price: of a chip-hour; spot: the share of it."""
  rows = [fullest(x) for x in report.get('estimates', {}).values()]  # empty if it does not fit
  if not rows:
    return {}
  span = lambda numbers: [min(numbers), max(numbers)]
  hours = span([row['chip_hours'] for row in rows])
  days = span([report['full_steps'] * row['step_s'] / 86400 for row in rows])
  out: dict[str, Any] = {'days': days, 'chip_hours': hours}
  if price is not None:
    out |= {'price': price, 'dollars': [price * x for x in hours]}
    if spot is not None:
      out |= {'spot': spot, 'spot_dollars': [spot * price * x for x in hours]}
  return out


def _between(numbers: Sequence[float], form: str = '{:,.0f}') -> str:
  """Formats a range as '9 to 11', or '9' if both numbers read the same."""
  return ' to '.join(dict.fromkeys(form.format(n) for n in numbers))


def text_of(report: Mapping[str, Any]) -> list[str]:
  """Lines about time and communication."""
  lines, estimates = [], report['estimates']
  if lacking := missing(report):
    lines.append(
      f'no time and no MFU: the compiler gives no cycles to {lacking}, while what they compute is '
      'among the model FLOPs'
    )
  if estimates:
    names = [name.replace('_', ' ') for name in next(iter(estimates.values()))]
    lines.append(f'{"estimated, by the clock":32}' + ''.join(f'{name:>38}' for name in names))
    for clock, by in estimates.items():
      cells = [
        f'{1e3 * r["step_s"]:.2f} ms, MFU {r["mfu"]:.1%}, {r["chip_hours"]:,.1f} chip-hours'
        for r in by.values()
      ]
      lines.append(f'  {CLOCKS[clock]:30}' + ''.join(f'{cell:>38}' for cell in cells))
    lines.append('  (MFU by the clock of the data sheet is the one that others publish)')
  rest = [f'{name} {n:,}' for name, n in report['uncounted'].items() if name not in WITHOUT]
  if rest:
    lines.append(f'not counted, since the compiler gives them no cycles: {", ".join(rest)}')
  return lines + _moved(report)


def _moved(report: Mapping[str, Any]) -> list[str]:
  """Lines about the communication between devices."""
  if not report['collective_bytes']:
    return ['between devices: nothing']
  if not report['interconnect']:
    moved = ', '.join(f'{k} {n / 1e6:,.1f} MB' for k, n in report['collective_bytes'].items())
    return [
      f'between devices, each step and device: {moved}; no bandwidth of the links of this chip is '
      'published, so no time is given for it'
    ]
  wire = report['interconnect']
  lines = [
    f'between devices, each step and device, by {wire["bytes_per_s"] / 1e9:,.0f} GB/s of all links '
    f'of a chip ({wire["source"]}) and the first clock:'
  ]
  for row in report['transfers']:
    how = ', beside compute' if row['beside'] else ''
    lines.append(
      f'  {row["number"]:5} x {row["kind"]:15} {row["axes"] or "-":12}'
      f'{row["bytes"] / 1e6:10,.1f} MB {1e3 * row["seconds"]:8.2f} ms, '
      f'waited for {1e3 * row["waited"]:.2f} ms{how}'
    )
  return lines


def money_text(
  report: Mapping[str, Any], price: float | None, spot: float | None, minutes: float
) -> list[str]:
  """Lines about the cost of the whole run; minutes: between two checkpoints."""
  costs = cost(report, price, spot)
  if not costs:
    return []
  form = '{:,.2f}' if max(costs.get('dollars', [0])) < 100 else '{:,.0f}'
  dollars = lambda numbers: f'${_between(numbers, form)}'.replace('to ', 'to $')
  short = max(costs['days']) < 2
  time = [24 * x if short else x for x in costs['days']]
  line = (
    f'{report["steps"]:,} steps, without their data, evaluations and checkpoints: '
    f'{_between(time, "{:,.1f}")} {"hours" if short else "days"}, '
    f'{_between(costs["chip_hours"])} chip-hours'
  )
  if price is None:
    return [f'{line} (--price says the dollars)']
  lines = [f'{line}, {dollars(costs["dollars"])} at ${price:g} a chip-hour']
  taken = (
    'spot chips may be taken away at any time; what was computed since the last checkpoint '
    f'(every {minutes:g} minutes) is then computed again'
  )
  if spot is None:
    return [*lines, f'{taken}. Their price changes: --spot 0.5 says what half of it makes']
  cheaper = dollars(costs['spot_dollars'])
  return [*lines, f'on spot chips at {spot:g} of that price {cheaper}; {taken}']
