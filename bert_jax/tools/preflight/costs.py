"""The table of what a run takes on one or several topologies: time, dollars, and tokens."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.command_line import aligned
from bert_jax.errors import InputError
from bert_jax.tools.preflight import step_time

HEADER = (
  'topology', 'chips, hosts', 'fits', 'step, ms', 'MFU', 'MFU of computing alone', 'hours',
  'chip-hours', 'on demand', 'spot', 'steps for 100 dollars', 'tokens/s a host', 'tokens', 'passes',
)  # fmt: skip


def table(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """The lines of a table of {topology: report with its `cost`}, a column for each topology."""
  lines = aligned([*zip(HEADER, *(_column(*pair) for pair in reports.items()))])
  if any(report['fits'] is None for report in reports.values()):
    lines.append('?: not compiled; by the MFU that BERT of this width reaches with as many tokens')
    lines.append('   a chip; other models may cost twice as much')
  first = next(iter(reports.values()))
  if first['passes'] is None:
    lines.append('passes are known of a prepared corpus, which data.train is not')
  assumed = ' assumed: its length depends on its data' * first['assumed']
  return [*lines, f'{first["steps"]:,} steps{assumed}; without evaluations and checkpoints']


def line(report: Mapping[str, Any]) -> str:
  """A report in short: whether it fits; if so how fast a step is and, with what `cost` gives, its
  price."""
  fits, step, mfu, alone = _speed(report)
  speed = f'; a step of {step} ms, MFU {mfu} (of computing alone {alone})'
  if report.get('dollars'):
    speed += f'; {_dollars(report["dollars"])} on demand'
  return fits + speed * report['fits']


def _dollars(amounts: Sequence[float]) -> str:
  return between(amounts, '${:,.2f}' if max(amounts, default=0) < 100 else '${:,.0f}')


def between(numbers: Sequence[float], form: str) -> str:
  """Formats a range as '9 to 11', or '9' if both ends read the same; '-' if it is empty."""
  return ' to '.join(dict.fromkeys(form.format(x) for x in sorted(numbers))) or '-'


def _speed(report: Mapping[str, Any]) -> list[str]:
  """The cells from 'fits' to 'MFU of computing alone'."""
  rows, fits = step_time.fullest(report), {None: '?', True: 'yes', False: 'NO'}[report['fits']]
  if 'refused' in report:  # the sentence ends with what to do
    fits += f'; {report["refused"].rstrip(".").rpartition("; ")[2]}'
  elif report['fits'] is not None:
    fits += f', {report["hbm_bytes"] / 1e9:.1f} of {report["hbm_limit"] / 1e9:.1f} GB'
  known = report['estimates'].values() if report['fits'] else ()  # before, it is not told apart
  alone = [x['compute_only']['mfu'] for x in known]
  shares = [between(x, '{:.0%}') for x in ([row['mfu'] for row in rows], alone)]
  return [fits, between([1e3 * row['step_s'] for row in rows], '{:,.1f}'), *shares]


def _column(name: str, report: Mapping[str, Any]) -> list[str]:
  tokens = report['tokens'] / report['full_steps'] / report['hosts']  # of a step
  paid = [report.get(key, []) for key in ('dollars', 'spot_dollars')]
  return [
    name, f'{report["chips"]}, {report["hosts"]}', *_speed(report),
    *(
      between(x, '{:,.1f}' if max(x, default=0) >= 1 else '{:,.2f}')
      for x in ([24 * x for x in report.get('days', [])], report.get('chip_hours', []))
    ),
    *map(_dollars, paid),
    between([float(f'{100 * report["steps"] / x:.3g}') for x in paid[0]], '{:,.0f}'),
    between([tokens / x['step_s'] for x in step_time.fullest(report)], '{:,.0f}'),
    f'{report["tokens"] / 1e9:,.4g} B', f'{report["passes"]:.3g}' if report['passes'] else '-',
  ]  # fmt: skip


def rates(price: str, spot: str, number: int) -> list[tuple[float, float]]:
  """[(dollars for a chip-hour, share of it on a spot chip)] of each topology, or NaN."""
  out = []
  if spot and not price:
    raise InputError('--spot is a share of --price; give both.')
  for name, text, most in (('price', price, 1e6), ('spot', spot, 1.0)):
    amounts = [float(x) if re.fullmatch(r'\d*\.?\d+', x) else 0 for x in text.split(',') if text]
    if not all(0 < x <= most for x in amounts):
      use = '--price is dollars for a chip-hour, such as 1.2, --spot a share of it, such as 0.4'
      raise InputError(f'--{name} {text} makes no sense: {use}; one for all topologies, or each.')
    if len(amounts) not in (0, 1, number):
      fault = f'--{name} has {len(amounts)} values, and there are {number} topologies'
      raise InputError(f'{fault}; give one value for all, or one for each.')
    out.append((amounts or [math.nan]) * number)
  return list(zip(*out))[:number]


def cost(report: Mapping[str, Any], rate: tuple[float, float]) -> dict[str, Any]:
  """{'days', 'chip_hours', 'dollars', 'spot_dollars': [least, most]} of a run; {}: no estimate."""
  (price, spot), rows = rate, step_time.fullest(report)
  if not rows:
    return {}
  days = sorted(report['full_steps'] * row['step_s'] / 86400 for row in rows)
  hours = sorted(row['chip_hours'] for row in rows)
  out: dict[str, Any] = {'days': [days[0], days[-1]], 'chip_hours': [hours[0], hours[-1]]}
  if not math.isnan(price):
    out |= {'price': price, 'dollars': [price * x for x in out['chip_hours']]}
  if not math.isnan(price * spot):
    out |= {'spot': spot, 'spot_dollars': [spot * x for x in out['dollars']]}
  return out
