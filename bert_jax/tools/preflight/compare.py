"""The table of what a run takes on one or several topologies: time, dollars, and tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.command_line import aligned
from bert_jax.tools.preflight import step_time

HEADER = (
  'topology', 'chips, hosts', 'fits', 'step, ms', 'MFU', 'of computing alone', 'hours',
  'chip-hours', 'on demand', 'spot', 'tokens/s a host', 'tokens', 'passes',
)  # fmt: skip


def table(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """The lines of a table of {topology: report with its money.cost}."""
  lines = aligned([HEADER, *(_row(*pair) for pair in reports.items())])
  if any(report['fits'] is None for report in reports.values()):
    lines.append('?: not compiled; by an MFU that models from BERT-base on reach on such chips')
  first = next(iter(reports.values()))
  assumed = ' assumed: its length depends on its data' * first['assumed']
  return [*lines, f'{first["steps"]:,} steps{assumed}; without evaluations and checkpoints']


def line(report: Mapping[str, Any]) -> str:
  """A report in short: whether it fits, and how fast a step is."""
  return '{}; a step of {} ms, MFU {} (of computing alone {})'.format(*_speed(report))


def between(numbers: Sequence[float], form: str) -> str:
  """Formats a range as '9 to 11', or '9' if both ends read the same; '-' if it is empty."""
  return ' to '.join(dict.fromkeys(form.format(x) for x in sorted(numbers))) or '-'


def _speed(report: Mapping[str, Any]) -> list[str]:
  """The cells from 'fits' to 'of computing alone'."""
  rows, fits = step_time.fullest(report), {None: '?', True: 'yes', False: 'NO'}[report['fits']]
  if report['fits'] is not None:
    fits += f', {report["hbm_bytes"] / 1e9:.1f} of {report["hbm_limit"] / 1e9:.1f} GB'
  alone = [x['compute_only']['mfu'] for x in report['estimates'].values()]
  shares = [between(x, '{:.0%}') for x in ([row['mfu'] for row in rows], alone)]
  return [fits, between([1e3 * row['step_s'] for row in rows], '{:,.1f}'), *shares]


def _row(name: str, report: Mapping[str, Any]) -> list[str]:
  tokens = report['tokens'] / report['full_steps'] / report['hosts']  # of a step
  paid = [report.get(key, []) for key in ('dollars', 'spot_dollars')]
  return [
    name, f'{report["chips"]}, {report["hosts"]}', *_speed(report),
    between([24 * x for x in report.get('days', [])], '{:,.1f}'),
    between(report.get('chip_hours', []), '{:,.1f}'),
    *(between(x, '${:,.2f}' if max(x, default=0) < 100 else '${:,.0f}') for x in paid),
    between([tokens / x['step_s'] for x in step_time.fullest(report)], '{:,.0f}'),
    f'{report["tokens"] / 1e9:,.4g} B', f'{report["passes"]:.3g}' if report['passes'] else '-',
  ]  # fmt: skip
