"""The pictures of a panel: final values beside paired differences, and the curves of all scores.
Bands and bars are 95 % intervals over seeds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bert_jax.tools.report.comparison import NONE, by_seed, rounding
from bert_jax.tools.report.statistics import interval

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

  from bert_jax.tools.report.panels import Panel

WIDTH = 6.75  # inches, of two columns of a paper
STYLE = {
  'pdf.fonttype': 42,  # fonts that journals take
  'font.size': 8,
  'axes.spines.top': False,
  'axes.spines.right': False,
}


def new(rows: int, columns: int, height: float) -> tuple['Figure', list['Axes']]:
  from matplotlib.figure import Figure

  figure = Figure(figsize=(WIDTH, height * rows + 0.3), layout='constrained')
  axes = figure.subplots(rows, columns, squeeze=False)
  return figure, list(axes.flat)


def plain(label: str) -> str:
  return label.replace('$', r'\$')  # two $ would begin and end a formula


def finals(panel: 'Panel') -> 'Figure':
  """Final values of each arm and their differences to the baseline, seed by seed."""
  table = panel.compared(panel.metric)
  df = panel.final(panel.metric)
  number = len(table)
  columns = 2 if table.difference.notna().any() else 1
  figure, axes = new(1, columns, 0.6 + 0.35 * number)
  base = by_seed(df[df.arm == panel.baseline])
  for place, (arm, row) in enumerate(table.iterrows()):
    seeds = by_seed(df[df.arm == arm])
    draw_seeds(axes[0], place, list(seeds.values()), row['mean'], row.low, row.high)
    if pd.notna(row.difference):
      values = [value - base[seed] for seed, value in seeds.items() if seed in base]
      draw_seeds(axes[1], place, values, row.difference, row.difference_low, row.difference_high)
  for axis in axes:
    axis.set(yticks=[], ylim=(number - 0.5, -0.5))
  left = axes[0]
  low, high = left.get_xlim()
  left.axvline(df['level'].mean(), color='0.5', linestyle=':', linewidth=1)
  left.set_xlim(low, high)  # a guess may be far away
  left.set_yticks(range(number), [plain(arm).replace(',', ',\n') for arm in table.index])
  left.set_xlabel(plain(panel.metric))
  for right in axes[1:]:
    right.axvline(0, color='0.6', linewidth=0.8, zorder=0)
    right.set_xlabel('difference to the baseline')
  return figure


def draw_seeds(
  axis: 'Axes', place: int, values: Sequence[float], mean: float, low: float, high: float
) -> None:
  """A dot for each seed and, above them, their mean with its interval."""
  colour = f'C{place % 10}'
  axis.plot(values, np.full(len(values), place + 0.15), 'o', color=colour, alpha=0.7, ms=3)
  around = None if pd.isna(low) else [[mean - low], [high - mean]]
  axis.errorbar(mean, place - 0.08, xerr=around, fmt='s', color=colour, capsize=3, ms=5)


def curves(panel: 'Panel') -> 'Figure | None':
  """All scores along the steps, the judging one first."""
  evaluations = panel.df[panel.df.kind == 'eval'].groupby('metric').step.nunique()
  metrics = [metric for metric in panel.metrics if evaluations.get(metric, 0) > 1]
  if not metrics:
    return None
  columns = min(3, len(metrics))
  rows = -(-len(metrics) // columns)
  figure, axes = new(rows, columns, 2.4)
  for axis, metric in zip(axes, metrics):
    draw_curves(axis, panel, metric)
  for axis in axes[len(metrics) :]:
    axis.remove()
  handles, labels = axes[0].get_legend_handles_labels()
  across = max(1, 100 // (8 + max(map(len, labels))))
  figure.legend(handles, labels, loc='outside lower center', ncols=across, frameon=False)
  return figure


def draw_curves(axis: 'Axes', panel: 'Panel', metric: str) -> None:
  """The mean curve of each arm; a dotted line is what a guess scores on the same rows."""
  df = panel.df[(panel.df.metric == metric) & (panel.df.kind == 'eval')]
  df = df[df.run.isin(panel.runs.run[panel.runs.counts])]
  for number, arm in enumerate(panel.arms):
    colour = f'C{number % 10}'
    means = mean_curve(df[df.arm == arm], metric)
    axis.plot(means.x, means.y, color=colour, label=plain(arm), marker='.', linewidth=1.2)
    axis.fill_between(means.x, means.low, means.high, color=colour, alpha=0.15, linewidth=0)
  level = df['level'].mean()
  if pd.notna(level):
    axis.axhline(level, color='0.5', linestyle=':', linewidth=1, label='a guess')
  axis.set(xlabel='step', ylabel=plain(metric))


def mean_curve(df: pd.DataFrame, metric: str) -> pd.DataFrame:
  """The columns x, y, low, high of a mean curve, at the steps that all runs have."""
  df = df[df.value.notna()]
  runs = df.run.nunique()
  rows = []
  for step, at in df.groupby('step'):
    if at.run.nunique() == runs:
      low, high = interval(list(at.value), rounding(at, metric), metric) or NONE
      rows.append((step, at.value.mean(), low, high))
  return pd.DataFrame(rows, columns=['x', 'y', 'low', 'high'], dtype=float)
