"""The table of what a run takes on one or several topologies: time and dollars."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.command_line import aligned
from bert_jax.errors import InputError
from bert_jax.tools.preflight import step_time

HEADER = (
  'topology', 'chips', 'fits', 'step, ms', 'MFU', 'MFU of computing alone', 'hours', 'chip-hours',
  'dollars', 'on spot chips',
)  # fmt: skip


def table(reports: Mapping[str, Mapping[str, Any]], prices: Sequence[float], spot: float) -> str:
  """A table of {topology: report}, a column for each. prices: dollars for a chip-hour of each, or
  []; spot: the share of it that a spot chip costs, or 0."""
  columns = [HEADER]
  for i, (name, report) in enumerate(reports.items()):
    price = prices[i] if prices else 0.0
    columns.append((name, str(report['chips']), *_cells(report, price, spot)))
  first = next(iter(reports.values()))
  assumed = ', assumed, since its length depends on its data' if first['assumed'] else ''
  length = f'{first["steps"]:,} steps{assumed}; {first["tokens"] / 1e9:,.4g} B tokens'
  return '\n'.join([*aligned([*zip(*columns)]), f'{length}; without evaluations and checkpoints'])


def _cells(report, price, spot):
  rows = step_time.fullest(report)
  hours = [row['chip_hours'] for row in rows]
  dollars = [price * x for x in hours if price]
  return (
    fits(report),
    between([1e3 * row['step_s'] for row in rows], '{:,.1f}'),
    between([row['mfu'] for row in rows], '{:.0%}'),
    between([x['compute_only']['mfu'] for x in report['estimates'].values()], '{:.0%}'),
    between([x / report['chips'] for x in hours], '{:,.2f}'),
    between(hours, '{:,.2f}'),
    between(dollars, '${:,.2f}'),
    between([spot * x for x in dollars if spot], '${:,.2f}'),
  )


def fits(report: Mapping[str, Any]) -> str:
  word = 'yes' if report['fits'] else 'NO'
  return f'{word}, {report["hbm_bytes"] / 1e9:.1f} of {report["hbm_limit"] / 1e9:.1f} GB'


def between(numbers: Sequence[float], form: str) -> str:
  """Formats a range as '9 to 11', or '9' if both ends read the same; '-' if it is empty."""
  return ' to '.join(dict.fromkeys(form.format(x) for x in sorted(numbers))) or '-'


def prices_of(text: str, number: int) -> list[float]:
  """Dollars for a chip-hour of so many topologies: one amount for all, or one for each; []: ''."""
  try:
    prices = [float(x) for x in text.split(',') if text]
  except ValueError:
    prices = [0.0]
  if not all(0 < price < 1e6 for price in prices) or len(prices) not in (0, 1, number):
    raise InputError(
      f'--price {text} makes no sense: give dollars for a chip-hour, such as 1.2; '
      f'one for all {number} topologies, or one for each.'
    )
  return prices * number if len(prices) == 1 else prices
