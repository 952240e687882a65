"""The pictures of a report: final values, curves, and a gallery of all scores.

Each arm has its own marker, line style and colour; the colours differ in lightness too, for grey
print. Bands and error bars are 95 % intervals of the mean over the seeds, with three seeds or more;
a dot is a seed.
"""

import itertools
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.tools.report import arms as report_arms
from bert_jax.tools.report.arms import Arm
from bert_jax.tools.report.curves import ALONG, Line, changes, curve, is_as_along_steps
from bert_jax.tools.report.panels import Panel, Row
from bert_jax.tools.report.statistics import interval, step_of, top_of
from bert_jax.workdir import records
from bert_jax.workdir.recorded import Run

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure, SubFigure

WIDTHS = {'': 6.75, '-column': 3.25}  # inches: of two columns of a paper, and of one
HIGHEST, LOWEST = 7.5, 1.5  # inches of the rows of a picture, and of one
MARKERS = 'osD^vPX*'
# A stroke and a gap in turn, in points, after where they begin.
LINES = '-', '--', '-.', ':', (0, (8, 2)), (0, (8, 2, 2, 2, 2, 2)), (0, (1, 4)), (0, (3, 5))
# Fonts that journals take, letters that fit the widths, and two lines around the axes.
STYLE = {'pdf.fonttype': 42, 'ps.fonttype': 42, 'font.size': 8}
STYLE |= {'axes.spines.top': False, 'axes.spines.right': False}
GREY = (0.299, 0.587, 0.114)  # what red, green and blue add to the lightness (ITU-R BT.601)
LIGHTEST = 0.75  # lighter colours are hard to see on white


# ---- Parts of pictures --------------------------------------------------------------------------


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
  if level := panel.level(metric, of_curves=True):
    # Losses begin above it, and there they would cross its name.
    firsts = [y[0] for line in axis.lines if len(y := line.get_ydata()) > 1]
    low, high = axis.get_ylim()
    below = min(firsts, default=low) > level.value > low + 0.2 * (high - low)
    draw_level(axis, *level, upright=False, below=below)
  low, high = axis.get_ylim()
  draw(arm for arm in panel.arms if arm.label in lost)
  if lost:  # whose curves may end at the edge, where they would press all others into a corner
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
    scores = report_arms.by_length(arm.runs, metric)
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


def add_legend(figure: 'Figure | SubFigure', axis: 'Axes') -> None:
  """Puts the legend of an axis below the figure or subfigure."""
  handles, labels = axis.get_legend_handles_labels()
  if handles:
    letters = 15 * figure.bbox.width / figure.dpi
    columns = max(1, min(len(labels), int(letters / (8 + max(map(len, labels))))))
    figure.legend(handles, labels, loc='outside lower center', ncols=columns, frameon=False)


def new(count: int, height: float, width: float) -> tuple['Figure', list['Axes']]:
  """Makes (a figure, its axes in rows of two or three; in a column of text of one, or of two if
  they are many). height: of a row, in inches, or less where many rows would not fit a page."""
  from matplotlib.figure import Figure

  columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
  if width == WIDTHS['-column']:
    columns = 1 if count <= 3 else 2
  rows = -(-count // columns)
  height = min(height, max(LOWEST, HIGHEST / rows)) if rows > 1 else height
  figure = Figure(figsize=(width, height * rows + 0.4), layout='constrained')
  axes = list(figure.subplots(rows, columns, squeeze=False).flat)
  for axis in axes[count:]:
    axis.remove()
  return figure, axes[:count]


# ---- Pictures -----------------------------------------------------------------------------------


def finals(panel: Panel, metric: str, width: float) -> 'Figure':
  """Draws final values: a line for each arm with its seeds as dots, its mean and its interval. An
  arm that beats no guess and is far from those that do has its mean as a text at the edge."""
  rows = [row for row in panel.rows(metric) if row.values]
  kept = {'break_long_words': False, 'break_on_hyphens': False}
  fill = lambda label: textwrap.fill(label, round(8 * width), **kept)  # at most half the width
  labels = [plain(fill(row.label)) for row in rows]
  high = max(0.32, *(0.06 + 0.15 * (1 + label.count('\n')) for label in labels))
  figure, (axis,) = new(1, 0.7 + high * len(rows), width)
  lost = [row for row in rows if row.label in panel.lost() and row.label != panel.baseline]
  draw = lambda row: draw_seeds(axis, row, rows.index(row), looks(panel)[row.label])
  for row in rows:
    if row not in lost:
      draw(row)
    if row.label == panel.baseline:
      axis.axvline(row.mean, color='0.6', linewidth=0.8, zorder=0)
  low, high = axis.get_xlim()
  # What is further away would press all others into a corner.
  is_near = lambda x: 2 * low - high < x < 2 * high - low
  for row in lost:
    if all(map(is_near, row.values.values())):
      draw(row)
    else:
      draw_far(axis, row, rows.index(row))
  level = panel.level(metric)
  if level and is_near(level.value):
    draw_level(axis, *level, upright=True)
  axis.set(yticks=range(len(rows)), yticklabels=labels)
  # In a column of text long labels leave less room than the name of a metric takes.
  where = 'right' if width == WIDTHS['-column'] else 'center'
  axis.set_xlabel(plain(panel.named(metric)), loc=where)
  axis.set_ylim(len(rows) - 0.5, -0.5)
  # How many ticks there are depends on the layout, which leaves room for the last only if it stays.
  figure.draw_without_rendering()
  low, high = axis.get_xlim()
  axis.set_xticks([tick for tick in axis.get_xticks() if low <= tick <= high])
  return figure


def several(panel: Panel, curves: Sequence[tuple], height: float, width: float) -> 'Figure':
  """Draws several curves of a panel, [(metric, quantity of ALONG)], side by side."""
  figure, axes = new(len(curves), height, width)
  for axis, (metric, along) in zip(axes, curves):
    draw_curves(axis, panel, metric, along)
  add_legend(figure, axes[0])
  return figure


def side_by_side(panels: Sequence[Panel]) -> 'Figure':
  """Draws the curves of several panels, of training too."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(6 * len(panels), 4.3), layout='constrained')
  for panel, part in zip(panels, figure.subfigures(1, len(panels), squeeze=False).flat):
    metric, axis = panel.metrics[0], part.subplots()
    for arm in panel.arms:
      if means := curve(arm.runs, metric, 'step', 'train'):
        look = looks(panel)[arm.label] | {'marker': ''}
        axis.plot(*list(zip(*means))[:2], linewidth=0.7, alpha=0.6, **look)
    draw_curves(axis, panel, metric, 'step')
    every = ' or '.join(sorted({str(run.log_every or 'some') for run in panel.runs}))
    thin = f'thin: in training, means of {every} steps' + '; hollow: all rows' * panel.reads_part
    name = f'{panel.objective} ({thin})\n{panel.evaluated_on}'.strip()
    axis.set_title(plain(name), fontsize=9, wrap=True)
    add_legend(part, axis)
  return figure


def alone(runs: Sequence[Run]) -> bool:
  """Whether no run of a sweep shared its machine with others. One of which that is not recorded (it
  still trains, or is of an earlier version) counts as if it had."""
  sweeps = filter(None, map(records.read_sweep, {run.path.parent for run in runs}))
  jobs = {sweep.path / name: x.jobs for sweep in sweeps for name, x in sweep.ended.items()}
  return all(jobs.get(run.path, 1) == 1 for run in runs)


def headline(panel: Panel, metric: str) -> str:
  """A sentence on the arm that differs most from the baseline, but for arms that collapsed or beat
  no guess; '' if there is nothing to say."""
  rows, lost = panel.rows(metric), panel.lost()
  sound = [row for row in rows if row.values_without_collapsed and row.label not in lost]
  differing = [(x, row.label) for row in sound if (x := row.difference)]
  if not differing or panel.is_unbeaten(rows):
    return ''
  most, label = max(differing, key=lambda pair: abs(pair[0].mean))
  tested = 'not tested' if most.corrected is None else f'p = {most.corrected:.2g}, corrected'
  return f'{label} differs most from {panel.baseline}: {most.mean:+.4f} ({tested}). '


def widest(panel: Panel, metric: str, lengths: Sequence[str]) -> str:
  """A sentence on the length of text at which the arms differ most; '' if they do not."""
  arms, gaps = [report_arms.by_length(arm.runs, metric) for arm in panel.arms], {}
  for length in lengths:
    means = [statistics.fmean(scores[length][1]) for scores in arms if length in scores]
    gaps[length] = max(means) - min(means)
  gap, length = max((gap, length) for length, gap in gaps.items())
  return f'The arms differ most at {length} tokens, by {gap:.4f}. ' if gap else ''


def panel_figures(panel: Panel, width: float = WIDTHS['']) -> Iterator[tuple[str, str, 'Figure']]:
  """Yields (name, caption, figure) for each picture of a panel. width: in inches."""
  metric = panel.metrics[0]
  name = panel.words.get(metric, metric)
  dots = 'A dot is a seed, the marker their mean with its 95 % interval (from 3 seeds on)'
  grey = ', the grey line the mean of the baseline' if panel.baseline else ''
  lost = '; '.join(panel.lost())
  far = ' An arrow has the mean of an arm that is far away.' if lost else ''
  said = f'{headline(panel, metric)}{name}, final values. {dots}{grey}.{far}'
  yield 'final', said, finals(panel, metric, width)
  bands = 'Mean over the seeds with its 95 % interval (from 3 seeds on).'
  on = f'on the evaluation data. {bands}'
  on += ' Hollow: all rows, at the end; lines are of a part of them.' * panel.reads_part
  on += f' What is far from the others is not shown of {lost}.' if lost else ''
  drawn = lambda score, along: any(len(curve(arm.runs, score, along)) > 1 for arm in panel.arms)
  known = [x for x in ALONG if x != 'seconds' or alone(panel.runs)]
  if along := [x for x in known if drawn(metric, x)]:
    alike = [x for x in along[1:] if is_as_along_steps(panel.runs, metric, x)]
    same = f' Along {" and ".join(ALONG[x] for x in alike)} they look the same.' if alike else ''
    each = [(metric, x) for x in along if x not in alike]
    yield 'curves', f'{name} {on}{same}', several(panel, each, 2.4, width)
  if len(names := [(x, 'step') for x in panel.metrics if drawn(x, 'step')]) > 1:
    yield 'scores', f'All scores {on}', several(panel, names, 2.0, width)
  if len(lengths := report_arms.lengths(panel.arms, metric)) > 1:
    figure, (axis,) = new(1, 2.6, width)
    draw_lengths(axis, panel, metric, lengths)
    lesson = widest(panel, metric, lengths)
    caption = f'{lesson}{name} by the length of the texts, at the last step. {bands}'
    add_legend(figure, axis)
    yield 'lengths', caption, figure
