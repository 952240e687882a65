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
  rows = [[title] for title in HEADER]
  for price, (name, report) in zip(prices, reports.items(), strict=True):
    cells = (name, str(report['chips']), *_cells(report, price))
    for row, cell in zip(rows, cells, strict=True):
      row.append(cell)
  first = next(iter(reports.values()))
  assumed = ', assumed, since its length depends on its data' if first['assumed'] else ''
  length = f'{first["steps"]:,} steps{assumed}; {first["tokens"] / 1e9:,.4g} B tokens'
  model = 'by a cost model; without evaluations and checkpoints'
  return '\n'.join([*aligned(rows), f'{length}; {model}'])


def _cells(report, price):
  row = step_time.fullest(report)
  if row is None:
    return fits(report), '-', '-', '-', '-', '-', '-'
  hours = row['chip_hours']
  return (
    fits(report),
    f'{1e3 * row["step_s"]:,.1f}',
    f'{row["mfu"]:.0%}',
    f'{report["estimates"]["compute_only"]["mfu"]:.0%}',
    f'{hours / report["chips"]:,.2f}',
    f'{hours:,.2f}',
    f'${price * hours:,.2f}' if price else '-',
  )


def fits(report: Mapping[str, Any]) -> str:
  word = 'yes' if report['fits'] else 'NO'
  return f'{word}, {report["hbm_bytes"] / 1e9:.1f} of {report["hbm_limit"] / 1e9:.1f} GB'


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
