"""The table of what a run takes on one or several topologies: time and dollars."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.command_line import aligned
from bert_jax.errors import InputError
from bert_jax.tools.preflight import step_time

HEADER = (
  'topology', 'chips', 'fits', 'step, ms', 'MFU', 'MFU of computing alone', 'hours', 'chip-hours',
  'dollars',
)  # fmt: skip


def table(reports: Mapping[str, Mapping[str, Any]], prices: Sequence[float]) -> str:
  """A table of {topology: report}, a column for each. prices: dollars for a chip-hour of each."""
  columns = [HEADER]
  for price, (name, report) in zip(prices, reports.items(), strict=True):
    columns.append((name, str(report['chips']), *_cells(report, price)))
  first = next(iter(reports.values()))
  assumed = ', assumed, since its length depends on its data' if first['assumed'] else ''
  length = f'{first["steps"]:,} steps{assumed}; {first["tokens"] / 1e9:,.4g} B tokens'
  return '\n'.join([*aligned([*zip(*columns)]), f'{length}; without evaluations and checkpoints'])


def _cells(report, price):
  rows = step_time.fullest(report)
  alone = [clock['compute_only'] for clock in report['estimates'].values()]
  hours = [row['chip_hours'] for row in rows]
  return (
    fits(report),
    between([1e3 * row['step_s'] for row in rows], '{:,.1f}'),
    between([row['mfu'] for row in rows], '{:.0%}'),
    between([row['mfu'] for row in alone], '{:.0%}'),
    between([x / report['chips'] for x in hours], '{:,.2f}'),
    between(hours, '{:,.2f}'),
    between([price * x for x in hours if price], '${:,.2f}'),
  )


def fits(report: Mapping[str, Any]) -> str:
  word = 'yes' if report['fits'] else 'NO'
  return f'{word}, {report["hbm_bytes"] / 1e9:.1f} of {report["hbm_limit"] / 1e9:.1f} GB'


def between(numbers: Sequence[float], form: str) -> str:
  """Formats a range as '9 to 11', or '9' if both ends read the same; '-' if it is empty."""
  return ' to '.join(dict.fromkeys(form.format(x) for x in sorted(numbers))) or '-'


def prices_of(text: str, number: int) -> list[float]:
  """Dollars for a chip-hour of so many topologies: one amount for all, or one for each; 0: ''."""
  try:
    prices = [float(x) for x in text.split(',')] if text else [0.0]
  except ValueError:
    raise InputError(f'--price {text} is no number of dollars, such as 1.2 or 1.2,2.7.') from None
  if len(prices) == 1:
    prices *= number
  if len(prices) != number:
    raise InputError(f'--price {text}: give one for all {number} topologies, or one for each.')
  return prices
