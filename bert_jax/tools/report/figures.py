"""The pictures of a report: final values, curves, and a gallery of all scores.

Bands and error bars are 95 % intervals of the mean over the seeds, with three seeds or more; a dot
is a seed. What they are drawn of is in parts.py.
"""

import statistics
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bert_jax.tools.report import arms as report_arms
from bert_jax.tools.report import parts
from bert_jax.tools.report.curves import ALONG, curve, is_as_along_steps
from bert_jax.tools.report.panels import Panel
from bert_jax.workdir import records
from bert_jax.workdir.recorded import Run

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure, SubFigure

WIDTHS = {'': 6.75, '-column': 3.25}  # inches: of two columns of a paper, and of one
HIGHEST, LOWEST = 7.5, 1.5  # inches of the rows of a picture, and of one
# Fonts that journals take, letters that fit the widths, and two lines around the axes.
STYLE = {'pdf.fonttype': 42, 'ps.fonttype': 42, 'font.size': 8}
STYLE |= {'axes.spines.top': False, 'axes.spines.right': False}


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
  labels = [parts.plain(fill(row.label)) for row in rows]
  high = max(0.32, *(0.06 + 0.15 * (1 + label.count('\n')) for label in labels))
  figure, (axis,) = new(1, 0.7 + high * len(rows), width)
  labels_lost = panel.lost()
  lost = [row for row in rows if row.label in labels_lost and row.label != panel.baseline]
  draw = lambda row: parts.draw_seeds(axis, row, rows.index(row), parts.looks(panel)[row.label])
  for row in rows:
    if row not in lost:
      draw(row)
    if row.label == panel.baseline:
      axis.axvline(row.mean, color='0.6', linewidth=0.8, zorder=0)
  low, high = axis.get_xlim()
  # What is further away would press all others into a corner.
  is_near = lambda x: 3 * low - 2 * high < x < 3 * high - 2 * low
  for row in lost:
    if is_near(row.mean):
      draw(row)
    else:
      parts.draw_far(axis, row, rows.index(row))
  level = panel.level(metric)
  if level and is_near(level.value):
    parts.draw_level(axis, *level, upright=True)
  axis.set(yticks=range(len(rows)), yticklabels=labels)
  # In a column of text long labels leave less room than the name of a metric takes.
  where = 'right' if width == WIDTHS['-column'] else 'center'
  axis.set_xlabel(parts.plain(panel.named(metric)), loc=where)
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
    parts.draw_curves(axis, panel, metric, along)
  add_legend(figure, axes[0])
  return figure


def side_by_side(panels: Sequence[Panel]) -> 'Figure':
  """Draws the curves of several panels, of training too."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(6 * len(panels), 4.3), layout='constrained')
  for panel, part in zip(panels, figure.subfigures(1, len(panels), squeeze=False).flat):
    metric, axis = panel.metrics[0], part.subplots()
    parts.draw_curves(axis, panel, metric, 'step')
    trained = {arm.label: curve(arm.runs, metric, 'step', 'train') for arm in panel.arms}
    trained = {label: means for label, means in trained.items() if len(means) > 1}
    for label, means in trained.items():  # within the limits of the curves, if there are some
      look = parts.looks(panel)[label] | {'marker': ''}
      axis.plot(*list(zip(*means))[:2], linewidth=0.7, alpha=0.6, **look)
    every = ' or '.join(sorted({str(run.log_every or 'some') for run in panel.runs}))
    said = [f'thin: in training, means of {every} steps'] * bool(trained)
    said = '; '.join([*said, *['hollow: all rows'] * panel.reads_part])
    name = f'{panel.learned}{f" ({said})" * bool(said)}\n{panel.told_by}'.strip()
    axis.set_title(parts.plain(name), fontsize=9, wrap=True)
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
  among = ', of the arms that learned' * (len(sound) < sum(bool(row.values) for row in rows))
  return f'{label} differs most from {panel.baseline}{among}: {most.mean:+.4f} ({tested}). '


def widest(panel: Panel, metric: str, lengths: Sequence[str]) -> str:
  """A sentence on the length of text at which the arms differ most; '' if they do not."""
  arms, gaps = [report_arms.by_length(arm.runs, metric) for arm in panel.arms], {}
  for length in lengths:
    means = [statistics.fmean(scores[length][1]) for scores in arms if length in scores]
    gaps[length] = max(means) - min(means)
  gap, length = max((gap, length) for length, gap in gaps.items())
  return f'The arms differ most at {length} tokens, by {gap:.4f}. ' if gap else ''


def left_out(panel: Panel, figure: 'Figure') -> str:
  """A sentence on the arms that beat no guess, if a part of their curves is beyond the limits."""
  curves = [
    (x, axis) for axis in figure.axes for x in axis.lines if x.get_transform() == axis.transData
  ]
  values = [(axis.get_ylim(), y) for x, axis in curves for y in x.get_ydata()]
  is_cut = any(y < low or y > high for (low, high), y in values)
  lost = '; '.join(panel.lost())
  return f' What is far from the others is not shown of {lost}.' if lost and is_cut else ''


def panel_figures(panel: Panel, width: float = WIDTHS['']) -> Iterator[tuple[str, str, 'Figure']]:
  """Yields (name, caption, figure) for each picture of a panel. width: in inches."""
  metric = panel.metrics[0]
  name = panel.words.get(metric, metric)
  dots = 'A dot is a seed, the marker their mean with its 95 % interval (from 3 seeds on)'
  grey = ', the grey line the mean of the baseline' if panel.baseline else ''
  final = finals(panel, metric, width)
  has_arrow = any(arrow in text.get_text() for text in final.axes[0].texts for arrow in '→←')
  far = ' An arrow has the mean of an arm that is far away.' if has_arrow else ''
  yield 'final', f'{headline(panel, metric)}{name}, final values. {dots}{grey}.{far}', final
  bands = 'Mean over the seeds with its 95 % interval (from 3 seeds on).'
  on = f'on the evaluation data. {bands}'
  on += (
    ' Hollow: all rows, at the end; lines, dotted ones too, are of a part of them.'
    * panel.reads_part
  )
  drawn = lambda score, along: any(len(curve(arm.runs, score, along)) > 1 for arm in panel.arms)
  known = [x for x in ALONG if x != 'seconds' or alone(panel.runs)]
  if along := [x for x in known if drawn(metric, x)]:
    alike = [x for x in along[1:] if is_as_along_steps(panel.runs, metric, x)]
    same = f' Along {" and ".join(ALONG[x] for x in alike)} they look the same.' if alike else ''
    each = [(metric, x) for x in along if x not in alike]
    figure = several(panel, each, 2.4, width)
    yield 'curves', f'{name} {on}{left_out(panel, figure)}{same}', figure
  if len(names := [(x, 'step') for x in panel.metrics if drawn(x, 'step')]) > 1:
    figure = several(panel, names, 2.0, width)
    yield 'scores', f'All scores {on}{left_out(panel, figure)}', figure
  if len(lengths := report_arms.lengths(panel.arms, metric)) > 1:
    figure, (axis,) = new(1, 2.6, width)
    parts.draw_lengths(axis, panel, metric, lengths)
    lesson = widest(panel, metric, lengths)
    caption = f'{lesson}{name} by the length of the texts, at the last step. {bands}'
    add_legend(figure, axis)
    yield 'lengths', caption, figure
