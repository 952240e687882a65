"""The pictures of a report: final values, curves, and a gallery of all scores.

Each arm has its own marker, line style and colour; the colours differ in lightness too, for grey
print. Bands and error bars are 95 % intervals of the mean over the seeds, with three seeds or more;
a dot is a seed.
"""

import bisect
import math
import statistics

import numpy as np

from bert_jax import notebooks
from bert_jax.tools.report import arms as report_arms
from bert_jax.tools.report.statistics import interval, step_of
from bert_jax.workdir.records import Run

WIDTH = 9.0  # inches
MARKERS, LINES = 'osD^vPX*', ('-', '--', '-.', ':')
GREY = (0.299, 0.587, 0.114)  # what red, green and blue add to the lightness (ITU-R BT.601)
LIGHTEST = 0.75  # lighter colours are hard to see on white
# {name of a quantity: the label of its axis}
ALONG = {
  'step': 'step',
  'tokens': 'tokens trained on',
  'flops': 'FLOPs of the training',
  'seconds': 'seconds of training',
}


def colours(count):
  """`count` colours of viridis, from dark to light in equal steps of grey."""
  from matplotlib import colormaps

  every = colormaps['viridis'](np.linspace(0, 1, 256))
  grey = every[:, :3] @ GREY  # it rises from the first to the last
  return every[np.searchsorted(grey, np.linspace(grey[0], LIGHTEST, count))]


def looks(panel):
  """The line style of each arm, {label: arguments of matplotlib}."""
  each = zip(panel.arms, colours(len(panel.arms)))
  return {
    arm.label: dict(color=colour, marker=MARKERS[i % len(MARKERS)], linestyle=LINES[i % len(LINES)])
    for i, (arm, colour) in enumerate(each)
  }


def points(run: Run, metric: str, kind: str = 'eval') -> list[dict[str, float]]:
  """The points of a run's curve, [{'step', 'tokens', 'flops', 'seconds', 'value'}], in evaluations
  or (kind 'train') in training. tokens: without padding; seconds: of training alone, without
  evaluations and saving. NaN where not recorded."""
  known, tokens, seconds = [(0, 0.0, 0.0)], 0.0, 0.0
  for point in run.training:
    # After a resume, the first line's speed covers only the steps since then; it is used for all.
    steps, speed = point.step - known[-1][0], point.values.get('steps_per_s')
    passed = steps / speed if speed else math.nan
    seconds += passed
    rate = point.values.get('tokens_per_s', math.nan)
    tokens = point.values.get('seen_tokens', tokens + rate * passed)
    known.append((point.step, tokens, seconds))
  out = []
  shown = notebooks.without_jag(run.training) if kind == 'train' else run.evaluations
  for point in shown:
    if (value := point.values.get(metric)) is not None:
      before = known[bisect.bisect_right(known, point.step, key=lambda x: x[0]) - 1]
      exact = before if before[0] == point.step else (0, math.nan, math.nan)
      out.append(
        {
          'step': point.step,
          'tokens': exact[1],
          'seconds': exact[2],
          'flops': run.flops_before(point.step),
          'value': value,
        }
      )
  return out


def curve(runs, metric, along, kind='eval'):
  """A mean curve, [(x, mean over the runs, its interval or None)], at the steps that all runs have.
  x: the mean of a quantity of ALONG."""
  by_step = [{point['step']: point for point in points(run, metric, kind)} for run in runs]
  by_step = [x for x in by_step if x]
  shared = sorted(set.intersection(*map(set, by_step))) if by_step else []
  out, examples = [], report_arms.examples(runs, metric)
  for step in shared:
    values = [x[step]['value'] for x in by_step]
    place = statistics.fmean(x[step][along] for x in by_step)
    if math.isfinite(place):
      within = interval(values, step_of(examples, values))
      out.append((place, statistics.fmean(values), within))
  return out


def draw_line(axis, means, look, label):
  """Draws [(x, mean, its interval or None)] with about 20 markers and a band."""
  axis.plot(
    [x for x, _, _ in means],
    [y for _, y, _ in means],
    label=label,
    markersize=3.5,
    linewidth=1.3,
    markevery=-(-len(means) // 20) or 1,
    **look,
  )
  band = [(x, *within) for x, _, within in means if within]
  if band:
    axis.fill_between(*zip(*band), color=look['color'], alpha=0.15, linewidth=0)


def draw_curves(axis, panel, metric, along):
  for arm in panel.arms:
    means = curve(arm.runs, metric, along)
    if not means:
      continue
    draw_line(axis, means, looks(panel)[arm.label], arm.label)
  if level := panel.level(metric):
    axis.axhline(level[0], color='0.45', linestyle=':', linewidth=1)
    axis.annotate(
      level[1],
      (1, level[0]),
      xycoords=('axes fraction', 'data'),
      color='0.35',
      ha='right',
      va='bottom',
      fontsize=8,
    )
  axis.set(xlabel=ALONG[along], ylabel=panel.named(metric))
  axis.spines[['top', 'right']].set_visible(False)


def with_legend(figure, axis):
  """Puts the legend of an axis below the figure or subfigure."""
  handles, labels = axis.get_legend_handles_labels()
  if handles:
    letters = 12 * figure.bbox.width / figure.dpi
    columns = max(1, min(len(labels), int(letters / (8 + max(map(len, labels))))))
    figure.legend(handles, labels, loc='outside lower center', ncols=columns, frameon=False)
  return figure


def new(count, height):
  """Makes (a figure, its list of axes in rows of two or three). height: of a row, in inches."""
  from matplotlib.figure import Figure

  columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
  rows = -(-count // columns)
  figure = Figure(figsize=(WIDTH, height * rows + 0.4), layout='constrained')
  axes = list(figure.subplots(rows, columns, squeeze=False).flat)
  for axis in axes[count:]:
    axis.remove()
  return figure, axes[:count]


def finals(panel, metric):
  """Draws final values: a line for each arm with its seeds as dots, its mean and its interval."""
  rows = [row for row in panel.rows(metric) if row.values]
  figure, (axis,) = new(1, 0.7 + 0.38 * len(rows))
  for place, row in enumerate(rows):
    look, count = looks(panel)[row.label], len(row.values)
    for i, value in enumerate(row.values.values()):
      height = place + 0.12 + 0.12 * i / max(1, count - 1)
      axis.plot(
        value, height, 'o', color=look['color'], markersize=3.5, alpha=0.75, markeredgewidth=0
      )
    arms = None
    if row.interval:
      arms = [[row.mean - row.interval[0]], [row.interval[1] - row.mean]]
    axis.errorbar(
      row.mean,
      place - 0.08,
      xerr=arms,
      marker=look['marker'],
      color=look['color'],
      capsize=3,
      markersize=6,
      elinewidth=1.6,
    )
    if row.label == panel.baseline:
      axis.axvline(row.mean, color='0.6', linewidth=0.8, zorder=0)
  low, high = axis.get_xlim()
  level = panel.level(metric)
  # An outlier would press all others into a corner; the table has it.
  if level and 2 * low - high < level[0] < 2 * high - low:
    axis.axvline(level[0], color='0.45', linestyle=':', linewidth=1)
    axis.annotate(
      level[1],
      (level[0], 1),
      xycoords=('data', 'axes fraction'),
      color='0.35',
      ha='center',
      va='bottom',
      fontsize=8,
      annotation_clip=False,
    )
  labels = [row.label for row in rows]
  axis.set(yticks=range(len(rows)), yticklabels=labels, xlabel=panel.named(metric))
  axis.set_ylim(len(rows) - 0.5, -0.5)
  axis.spines[['top', 'right']].set_visible(False)
  return figure


def along_all(panel, metric):
  """Draws the curve of a metric over steps, tokens, FLOPs and seconds, as far as recorded."""
  there = [x for x in ALONG if any(curve(arm.runs, metric, x) for arm in panel.arms)]
  if not there:
    return None
  figure, axes = new(len(there), 3.1)
  for axis, name in zip(axes, there):
    draw_curves(axis, panel, metric, name)
  return with_legend(figure, axes[0])


def gallery(panel):
  """Draws the curve of each score over the steps."""
  names = [x for x in panel.metrics if any(curve(arm.runs, x, 'step') for arm in panel.arms)]
  if len(names) < 2:
    return None
  figure, axes = new(len(names), 2.5)
  for axis, name in zip(axes, names):
    draw_curves(axis, panel, name, 'step')
  return with_legend(figure, axes[0])


def draw_lengths(axis, panel, metric, lengths):
  """Draws the scores by length of text, for the runs that have them."""
  for arm in panel.arms:
    scores = report_arms.by_length(arm.runs, metric)
    there = [(i, *scores[x]) for i, x in enumerate(lengths) if x in scores]
    means = [(i, statistics.fmean(x), interval(x, step_of(count, x))) for i, count, x in there]
    draw_line(axis, means, looks(panel)[arm.label], arm.label)
  counts = {
    x: count
    for arm in panel.arms
    for x, (count, _) in report_arms.by_length(arm.runs, metric).items()
  }
  labels = [f'{x}\n({counts[x]:,})' for x in lengths]
  axis.set(xticks=range(len(lengths)), xlabel='tokens of a text (texts)', ylabel=metric)
  axis.set_xticklabels(labels, fontsize=8 if len(labels) < 6 else 6)
  axis.spines[['top', 'right']].set_visible(False)


def over_lengths(panel, metric):
  """Draws the final values over the length of a text, if runs have scores by length."""
  if not (lengths := report_arms.lengths(panel.arms, metric)):
    return None
  figure, (axis,) = new(1, 3.2)
  draw_lengths(axis, panel, metric, lengths)
  return with_legend(figure, axis)


def side_by_side(panels):
  """Draws the curves of several panels, of training too, and below them the scores by length."""
  from matplotlib.figure import Figure

  lengths = [report_arms.lengths(panel.arms, panel.metrics[0]) for panel in panels]
  height = 3.9 * (1 + any(lengths)) + 0.4
  figure = Figure(figsize=(6 * len(panels), height), layout='constrained')
  parts = figure.subfigures(1, len(panels), squeeze=False).flat
  for panel, part, each in zip(panels, parts, lengths):
    metric, axes = panel.metrics[0], part.subplots(1 + bool(each), 1, squeeze=False).flat
    for arm in panel.arms:
      if means := curve(arm.runs, metric, 'step', 'train'):
        look = looks(panel)[arm.label] | {'marker': ''}
        axes[0].plot(*list(zip(*means))[:2], linewidth=0.7, alpha=0.6, **look)
    draw_curves(axes[0], panel, metric, 'step')
    name = f'{panel.objective} (thin: in training)\n{panel.evaluated_on}'.strip()
    axes[0].set_title(name, fontsize=9, wrap=True)
    if each:
      draw_lengths(axes[1], panel, metric, each)
    with_legend(part, axes[0])
  return figure


def panel_figures(panel):
  """Yields (name, caption, figure) for each picture of a panel."""
  metric = panel.metrics[0]
  dots = 'A dot is a seed, the marker their mean with its 95 % interval (from 3 seeds on)'
  grey = ', the grey line the mean of the baseline' if panel.baseline else ''
  yield 'final', f'{metric}, final values. {dots}{grey}.', finals(panel, metric)
  bands = 'Mean over the seeds with its 95 % interval.'
  if figure := along_all(panel, metric):
    yield 'curves', f'{metric} on the evaluation data. {bands}', figure
  if figure := gallery(panel):
    yield 'scores', f'All scores on the evaluation data. {bands}', figure
  if figure := over_lengths(panel, metric):
    yield 'lengths', f'{metric} by the length of the texts, at the last step. {bands}', figure
