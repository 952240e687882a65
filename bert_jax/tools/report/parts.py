"""What the pictures of a report are drawn of: curves, dots with intervals, levels, bars by length.

Each arm has its own marker, line style and colour; the colours differ in lightness too, for grey
print.
"""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.tools.report.arms import Arm, by_length
from bert_jax.tools.report.curves import ALONG, Line, changes, curve
from bert_jax.tools.report.panels import Panel, Row
from bert_jax.tools.report.statistics import interval, step_of, top_of

if TYPE_CHECKING:
  from matplotlib.axes import Axes

MARKERS = 'osD^vPX*'
# A stroke and a gap in turn, in points, after where they begin.
LINES = '-', '--', '-.', ':', (0, (8, 2)), (0, (8, 2, 2, 2, 2, 2)), (0, (1, 4)), (0, (3, 5))
GREY = (0.299, 0.587, 0.114)  # what red, green and blue add to the lightness (ITU-R BT.601)
LIGHTEST = 0.65  # lighter colours are hard to see on white, dots most of all


def colours(count: int) -> np.ndarray:
  """`count` colours of viridis, from dark to light in equal steps of grey."""
  from matplotlib import colormaps

  every = colormaps['viridis'](np.linspace(0, 1, 256))
  grey = every[:, :3] @ GREY  # it rises from the first to the last
  return every[np.searchsorted(grey, np.linspace(grey[0], LIGHTEST, count))]


def looks(panel: Panel) -> dict[str, dict[str, Any]]:
  """The line style of each arm, {label: arguments of matplotlib}."""
  labels = [arm.label for arm in panel.arms]
  each = zip(colours(len(labels)), itertools.cycle(MARKERS), itertools.cycle(LINES))
  return {label: dict(zip(('color', 'marker', 'linestyle'), x)) for label, x in zip(labels, each)}


def plain(label: str) -> str:
  return label.replace('$', r'\$')  # two $ would begin and end a formula


def draw_line(axis: 'Axes', means: Line, look: dict[str, Any], label: str) -> None:
  """Draws a line with about 20 markers and a band."""
  every = -(-len(means) // 20) or 1
  x, y = [x for x, _, _ in means], [y for _, y, _ in means]
  axis.plot(x, y, label=plain(label), markersize=3.5, linewidth=1.3, markevery=every, **look)
  if band := [(x, *within) for x, _, within in means if within]:
    x, low, high = zip(*band)
    axis.fill_between(x, low, high, color=look['color'], alpha=0.15, linewidth=0)


def draw_level(axis: 'Axes', value: float, kind: str, upright: bool, below: bool = False) -> None:
  """Draws a baseline as a dotted line with its name: upright, or else from left to right, where the
  name stands at the beginning, since curves end with large markers, above or below the line."""
  from matplotlib.transforms import offset_copy

  (axis.axvline if upright else axis.axhline)(value, color='0.45', linestyle=':', linewidth=1)
  place, side = ((value, 1), 'center') if upright else ((0.01, value), 'left')
  where = axis.get_xaxis_transform() if upright else axis.get_yaxis_transform()
  clear = offset_copy(where, axis.figure, y=-1.5 if below else 1.5, units='points')
  look = {'color': '0.35', 'ha': side, 'va': 'top' if below else 'bottom', 'fontsize': 8}
  axis.text(*place, kind, transform=clear, **look)


def draw_apart(axis: 'Axes', means: Line, look: dict[str, Any], label: str) -> None:
  """Draws the last point as a hollow marker with its interval, which no line joins."""
  for x, mean, within in means[-1:]:
    around = [[abs(end - mean)] for end in within] if within else None
    hollow = look | {'linestyle': '', 'markerfacecolor': 'white', 'markersize': 6, 'capsize': 2}
    axis.errorbar(x, mean, yerr=around, label=plain(label), zorder=3, **hollow)


def draw_curves(axis: 'Axes', panel: Panel, metric: str, along: str) -> None:
  """Draws the curve of each arm and, apart from it, its evaluation of all rows."""
  from matplotlib.ticker import EngFormatter, MaxNLocator

  def draw(arms: Iterable[Arm]) -> None:
    for arm in arms:
      look, means = looks(panel)[arm.label], curve(arm.runs, metric, along)
      has_line = len(means) > 1
      if has_line:
        draw_line(axis, means, look, arm.label)
      apart = curve(arm.runs, metric, along, 'whole') or ([] if has_line else means)
      draw_apart(axis, apart, look, '' if has_line else arm.label)

  lost = panel.lost()
  draw(arm for arm in panel.arms if arm.label not in lost)
  has_sound = axis.has_data()
  has_curves = any(len(curve(arm.runs, metric, along)) > 1 for arm in panel.arms)
  if level := panel.level(metric, of_curves=has_curves):
    # Losses begin above it, and there they would cross its name.
    firsts = [y[0] for line in axis.lines if len(y := line.get_ydata()) > 1]
    low, high = axis.get_ylim()
    below = min(firsts, default=low) > level.value > low + 0.2 * (high - low)
    draw_level(axis, *level, upright=False, below=below)
  low, high = axis.get_ylim()
  draw(arm for arm in panel.arms if arm.label in lost)
  # Curves of the lost may end at the edge, where they would press all others into a corner.
  if lost and has_sound:
    lowest, highest = axis.dataLim.intervaly
    lowest, highest = max(lowest, 2 * low - high), min(highest, 2 * high - low)
    axis.set_ylim(min(low, lowest), max(high, highest))
  for step, value in sorted(changes(panel)) if along == 'step' else ():
    draw_level(axis, step, value, upright=True)
  axis.set(xlabel=ALONG[along], ylabel=plain(panel.named(metric)))
  if axis.get_xlim()[1] >= 10_000:
    axis.xaxis.set_major_formatter(EngFormatter())  # 250 k
  ticks = min(5, int(3.3 * axis.bbox.width / axis.figure.dpi))
  axis.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10]))


def draw_seeds(axis: 'Axes', row: Row, place: int, look: dict[str, Any]) -> None:
  """Draws the line of an arm: a dot for each seed and their mean with its interval."""
  values, mean = list(row.values.values()), statistics.fmean(row.values.values())
  heights = np.linspace(0.12, 0.24, len(values)) + place
  axis.plot(values, heights, 'o', color=look['color'], alpha=0.75, markersize=3, mew=0)
  around = [[abs(end - mean)] for end in row.interval] if row.interval else None
  axis.errorbar(mean, place - 0.08, xerr=around, capsize=3, markersize=6, elinewidth=1.6, **look)


def draw_far(axis: 'Axes', row: Row, place: int) -> None:
  """Writes a mean outside an axis at its left or right edge, with an arrow."""
  mean = statistics.fmean(row.values.values())
  is_right = mean > statistics.fmean(axis.get_xlim())
  edge, side, text = (1, 'right', f'{mean:.4g} →') if is_right else (0, 'left', f' ← {mean:.4g}')
  where, box = axis.get_yaxis_transform(), {'facecolor': 'white', 'linewidth': 0, 'pad': 1}
  axis.text(edge, place, text, transform=where, ha=side, va='center', bbox=box)


def draw_lengths(axis: 'Axes', panel: Panel, metric: str, lengths: Sequence[str]) -> None:
  """Draws the scores by length of text, for the runs that have them."""
  counts, beside = {}, panel.metrics
  step = lambda count, scores: step_of(count, top_of(metric, scores, beside))
  within = lambda count, scores: interval(scores, step(count, scores), metric, beside)
  for arm in panel.arms:
    scores = by_length(arm.runs, metric)
    counts |= {x: count for x, (count, _) in scores.items()}
    there = [(i, *scores[x]) for i, x in enumerate(lengths) if x in scores]
    means = [(i, statistics.fmean(x), within(count, x)) for i, count, x in there]
    draw_line(axis, means, looks(panel)[arm.label], arm.label)
  labels = [f'{x}\n({counts[x]:,})' for x in lengths]
  axis.set(xticks=range(len(lengths)), xlabel='tokens of a text (texts)')
  axis.set_ylabel(plain(panel.named(metric)))
  widths = 0.6 * len(labels) * (2 + max(map(len, lengths)))  # of all labels, for a height of 1
  points = 72 * axis.bbox.width / axis.figure.dpi
  axis.set_xticklabels(labels, fontsize=min(7, max(5, points / widths)))
