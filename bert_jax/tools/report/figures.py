"""The pictures of a panel: final values beside paired differences, curves, all scores, and scores
by the length of texts. Bands and bars are 95 % intervals over seeds."""

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
STYLE = {'pdf.fonttype': 42, 'font.size': 8, 'svg.hashsalt': 'report'}  # fonts that journals take
STYLE |= {'axes.spines.top': False, 'axes.spines.right': False}
# {column of the long table: the label of its axis}
ALONG = {'step': 'step', 'tokens': 'tokens trained on', 'flops': 'FLOPs of the training'}


def new(rows: int, columns: int, height: float) -> tuple['Figure', list['Axes']]:
  from matplotlib.figure import Figure

  figure = Figure(figsize=(WIDTH, height * rows + 0.3), layout='constrained')
  return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def plain(label: str) -> str:
  return label.replace('$', r'\$')  # two $ would begin and end a formula


def finals(panel: 'Panel') -> 'Figure':
  """Final values of each arm and their differences to the baseline, seed by seed."""
  table, df = panel.compared(panel.metric), panel.final(panel.metric)
  columns = 2 if table.difference.notna().any() else 1
  figure, axes = new(1, columns, 0.6 + 0.35 * len(table))
  base = by_seed(df[df.arm == panel.baseline])
  for place, (arm, row) in enumerate(table.iterrows()):
    seeds = by_seed(df[df.arm == arm])
    draw_seeds(axes[0], place, list(seeds.values()), row['mean'], row.low, row.high)
    if row.difference == row.difference:
      values = [value - base[seed] for seed, value in seeds.items() if seed in base]
      draw_seeds(axes[1], place, values, row.difference, row.difference_low, row.difference_high)
  level, (low, high) = df['level'].mean(), axes[0].get_xlim()
  if 2 * low - high < level < 2 * high - low:  # further away it would press all into a corner
    axes[0].axvline(level, color='0.5', linestyle=':', linewidth=1)
  labels = [plain(arm).replace(',', ',\n') for arm in table.index]
  axes[0].set(yticks=range(len(table)), yticklabels=labels)
  axes[0].set(xlabel=plain(panel.name(panel.metric)), ylim=(len(table) - 0.5, -0.5))
  for axis in axes[1:]:
    axis.axvline(0, color='0.6', linewidth=0.8, zorder=0)
    axis.set(yticks=[], ylim=(len(table) - 0.5, -0.5))
    axis.set_xlabel('difference to the baseline')
  return figure


def draw_seeds(
  axis: 'Axes', place: int, values: Sequence[float], mean: float, low: float, high: float
) -> None:
  """A dot for each seed and, above them, their mean with its interval."""
  colour = f'C{place % 10}'
  axis.plot(values, np.full(len(values), place + 0.15), 'o', color=colour, alpha=0.7, ms=3)
  around = [[mean - low], [high - mean]] if low == low else None
  axis.errorbar(mean, place - 0.08, xerr=around, fmt='s', color=colour, capsize=3, ms=5)


def curves(panel: 'Panel') -> 'Figure | None':
  """The judging metric along steps and, where arms differ in them by step, tokens and FLOPs."""
  df = panel.df[(panel.df.metric == panel.metric) & (panel.df.kind == 'eval') & (panel.df.step > 0)]
  if df.step.nunique() < 2:
    return None
  along = ['step']
  for name in ('tokens', 'flops'):
    by_step = (df[name] / df.step).dropna()
    if len(by_step) and by_step.max() > 1.01 * by_step.min():  # else they would look the same
      along.append(name)
  figure, axes = new(1, len(along), 2.4)
  for axis, name in zip(axes, along):
    draw_curves(axis, panel, panel.metric, name)
  add_legend(figure, axes[0])
  return figure


def scores(panel: 'Panel') -> 'Figure | None':
  """All scores along the steps."""
  evaluations = panel.df[panel.df.kind == 'eval'].groupby('metric').step.nunique()
  metrics = [metric for metric in panel.metrics if evaluations.get(metric, 0) > 1]
  if len(metrics) < 2:
    return None
  figure, axes = new(-(-len(metrics) // 3), min(3, len(metrics)), 1.9)
  for axis, metric in zip(axes, metrics):
    draw_curves(axis, panel, metric, 'step')
  for axis in axes[len(metrics) :]:
    axis.remove()
  add_legend(figure, axes[0])
  return figure


def draw_curves(axis: 'Axes', panel: 'Panel', metric: str, along: str) -> None:
  """The mean curve of each arm; where it is of a part of the rows, the evaluation of all rows
  stands apart as a hollow marker. A dotted line is what a guess scores on the same rows."""
  df = panel.df[(panel.df.metric == metric) & panel.df.run.isin(panel.runs.run[panel.runs.counts])]
  for number, arm in enumerate(panel.arms):
    colour, mine = f'C{number % 10}', df[df.arm == arm]
    means = mean_curve(mine[mine.kind == 'eval'], metric, along, panel.metrics)
    axis.plot(means.x, means.y, color=colour, label=plain(arm), marker='.', linewidth=1.2)
    axis.fill_between(means.x, means.low, means.high, color=colour, alpha=0.15, linewidth=0)
    whole = mean_curve(mine[mine.kind == 'whole'], metric, along, panel.metrics)
    axis.plot(whole.x[-1:], whole.y[-1:], 'o', color=colour, markerfacecolor='white')
  for kind, name, style in ('eval', 'a guess', ':'), ('whole', 'a guess, all rows', (0, (1, 4))):
    level = df[df.kind == kind]['level'].mean()
    if level == level:
      axis.axhline(level, color='0.5', linestyle=style, linewidth=1, label=name)
  axis.set(xlabel=ALONG[along], ylabel=plain(panel.name(metric)))


def mean_curve(df: pd.DataFrame, metric: str, along: str, beside: Sequence[str]) -> pd.DataFrame:
  """The columns x, y, low, high of a mean curve, at the steps that all runs have."""
  df, rows = df[df.value.notna() & df[along].notna()], []
  for _, at in df.groupby('step'):
    if at.run.nunique() == df.run.nunique():
      low, high = interval(list(at.value), rounding(at, metric, beside), metric, beside) or NONE
      rows.append((at[along].mean(), at.value.mean(), low, high))
  return pd.DataFrame(rows, columns=['x', 'y', 'low', 'high'])


def lengths(panel: 'Panel') -> 'Figure | None':
  """Bars of the judging metric by the length of the texts."""
  means = panel.by_length()
  if means.shape[1] < 2:
    return None
  figure, (axis,) = new(1, 1, 2.2)
  for number, arm in enumerate(means.index):
    places = np.arange(means.shape[1]) + 0.8 * number / len(means)
    axis.bar(places, means.loc[arm], 0.8 / len(means), color=f'C{number % 10}', label=plain(arm))
  axis.set(xticks=range(means.shape[1]), xticklabels=means.columns, xlabel='tokens of a text')
  axis.set_ylabel(plain(panel.name(panel.metric)))
  add_legend(figure, axis)
  return figure


def add_legend(figure: 'Figure', axis: 'Axes') -> None:
  handles, labels = axis.get_legend_handles_labels()
  columns = max(1, 100 // (8 + max(map(len, labels), default=0)))
  figure.legend(handles, labels, loc='outside lower center', ncols=columns, frameon=False)


DRAWN = {'final': finals, 'curves': curves, 'scores': scores, 'lengths': lengths}
