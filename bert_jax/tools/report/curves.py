"""The numbers of curves: the evaluations of runs by step, tokens, FLOPs and seconds."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from bert_jax import notebooks
from bert_jax.timeline import RATE
from bert_jax.tools.report import arms as report_arms
from bert_jax.tools.report.panels import Panel
from bert_jax.tools.report.statistics import interval, step_of, top_of
from bert_jax.workdir.recorded import Run

# {name of a quantity: the label of its axis}
ALONG = {'step': 'step', 'tokens': 'tokens trained on'}
ALONG |= {'flops': 'FLOPs of the training', 'seconds': 'seconds of training'}
# The points of a line: (x, mean, its interval or None).
Line = Sequence[tuple[float, float, tuple[float, float] | None]]


def points(run: Run, metric: str, kind: str = 'eval') -> list[dict[str, float]]:
  """[{'step', 'tokens', 'flops', 'seconds', 'value'}] of a run's Points of a kind; '': of all its
  evaluations. Tokens without padding, seconds of training alone; NaN if not recorded."""
  known = [(0, 0.0, 0.0)]  # (step, tokens, seconds)
  last, tokens, seconds = 0, 0.0, 0.0
  for point in run.training:
    # After a resume, the first line's speed covers only the steps since then; it is used for all.
    speed, rate, seen = map(point.values.get, ('steps_per_s', 'tokens_per_s', 'seen_tokens'))
    passed = (point.step - last) / speed if speed else math.nan
    seconds += passed
    tokens = tokens + (rate or math.nan) * passed if seen is None else seen
    known.append((last := point.step, tokens, seconds))
  out, (steps, *each) = [], zip(*known)
  between = lambda step: [float(np.interp(step, steps, x)) for x in each]
  chosen = [point for point in run.evaluations if kind in ('', point.kind)]
  for point in notebooks.without_jag(run.training) if kind == 'train' else chosen:
    if (value := point.values.get(metric)) is not None:
      tokens, seconds = between(point.step) if point.step <= last else (math.nan, math.nan)
      line = {'step': point.step, 'tokens': tokens, 'seconds': seconds}
      out.append(line | {'flops': run.flops_before(point.step), 'value': value})
  return out


def curve(runs: Sequence[Run], metric: str, along: str, kind: str = 'eval') -> Line:
  """A mean curve at the steps that all runs have. x: the mean of a quantity of ALONG."""
  each = ({point['step']: point for point in points(run, metric, kind)} for run in runs)
  by_step = list(filter(None, each))
  shared = sorted(set.intersection(*map(set, by_step))) if by_step else []
  out, examples = [], report_arms.examples(runs, metric)
  beside = [name for run in runs[:1] for point in run.evaluations[:1] for name in point.values]
  for step in shared:
    values = [x[step]['value'] for x in by_step]
    place = statistics.fmean(x[step][along] for x in by_step)
    if math.isfinite(place):
      rounded = step_of(examples, top_of(metric, values, beside))
      within = interval(values, rounded, metric, beside)
      out.append((place, statistics.fmean(values), within))
  return out


def is_as_along_steps(runs: Sequence[Run], metric: str, along: str) -> bool:
  """Whether curves look along a quantity as they do along steps: no point lies elsewhere by a
  hundredth of the axis. Not if there is no point, or the quantity of one is not recorded."""
  places = [(point[along], point['step']) for run in runs for point in points(run, metric)]
  most, last = map(max, zip(*places)) if places else (math.nan, math.nan)
  near = lambda place, step: abs(place * last - step * most) < 0.01 * most * last
  return near(most, last) and all(near(*x) for x in places)


def changes(panel: Panel) -> set[tuple[int, str]]:
  """(step, new value) of what changes during the runs, other than the learning rate."""
  lines = [run.timeline for arm in panel.arms for run in arm.runs if run.fields.get('steps')]
  known = [change for line in lines if line for change in line.changes()]
  return {(x.step, str(x.after)) for x in known if x.field != RATE}
