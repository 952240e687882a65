"""Compares the arms of each objective in panels, with their differences to a baseline.

A panel holds arms of one objective that were evaluated in one way, on the same rows and masks, with
the same vocabulary, so that their numbers can be compared.
"""

import collections
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bert_jax.errors import InputError, suggestion
from bert_jax.files import Path
from bert_jax.metrics import CROSS_ENTROPIES, LOSSES, Level, own_levels
from bert_jax.tasks import TASKS
from bert_jax.tools.report import arms as report_arms
from bert_jax.tools.report import missing_runs
from bert_jax.tools.report.arms import Arm
from bert_jax.tools.report.statistics import Difference, differences, interval, step_of, top_of
from bert_jax.workdir.recorded import Run

Under = Mapping[Path, Mapping[str, Any]]  # what each run was evaluated under, see arms.judged
NO_SCORES = ('constant', 'masked')  # values of an evaluation that are not scores


class Row(NamedTuple):
  """The values of a metric over an arm's seeds, and their statistics."""

  label: str
  values: dict[int, float]  # {seed: value}
  values_without_collapsed: dict[int, float]
  mean: float | None  # None without a value
  interval: tuple[float, float] | None
  difference: Difference | None  # to the baseline


@dataclass
class Panel:
  objective: str
  arms: list[Arm]
  metrics: list[str]  # the first one judges
  baseline: str  # the label of an arm, or ''
  evaluated_on: str  # how its evaluation differs from the other panels' of its task, or ''
  words: Mapping[str, str]  # {a metric, or the path of a sweep's folder: what it is called}
  sweep: str = ''  # the folders of its runs, as they are called, if other panels have others
  # {label: (runs that are in no table, runs)} of arms that have some
  missing: Mapping[str, tuple[int, int]] = field(default_factory=dict)

  @property
  def runs(self) -> list[Run]:
    return [run for arm in self.arms for run in arm.runs]

  @property
  def learned(self) -> str:
    """What its runs learn, 'masked words alone'; if they differ in it, their objective."""
    configs = [run.config for run in self.runs if run.config]
    said = {TASKS[config.objective].card(config).trained_for.replace('`', '') for config in configs}
    return said.pop() if len(said) == 1 else self.objective

  @property
  def told_by(self) -> str:
    """What sets it apart from other panels: its sweep, and how it was evaluated."""
    return '; '.join(filter(None, (self.sweep, self.evaluated_on)))

  @property
  def reads_part(self) -> bool:
    """Whether curves are of a part of the rows, and an evaluation of all stands apart."""
    return any(run.curve and len(run.curve) < len(run.evaluations) for run in self.runs)

  def rows(self, metric: str) -> list[Row]:
    """A Row for each arm; p values are corrected for all comparisons of this metric."""
    values = {arm.label: report_arms.values_of(arm.runs, metric) for arm in self.arms}
    every = [value for by_seed in values.values() for value in by_seed.values()]
    step = step_of(report_arms.examples(self.runs, metric), top_of(metric, every, self.metrics))
    sound = lambda arm: [run for run in arm.runs if not run.collapsed()]
    gone = [arm.label for arm in self.arms if arm.runs and not sound(arm)]
    compared = differences(values, self.baseline, step, gone) if self.baseline else {}
    out = []
    for arm in self.arms:
      kept = report_arms.values_of(sound(arm), metric)
      each = list(values[arm.label].values())
      mean = statistics.fmean(each) if each else None
      within = interval(each, step, metric, self.metrics)
      out.append(Row(arm.label, values[arm.label], kept, mean, within, compared.get(arm.label)))
    return out

  def named(self, metric: str) -> str:
    """What a metric is called; a loss is called so, or, with a unigram baseline, is in nats."""
    level, name = self.level(metric), self.words.get(metric, metric)
    if not level or not level.kind.startswith(CROSS_ENTROPIES):
      return name
    return f'{name}, {"nats" if level.kind.startswith("unigram") else "loss"}'

  def level(self, metric: str, of_curves: bool = False) -> Level | None:
    """The baseline that a metric must beat, such as the unigram loss, on the rows of the values
    that count or of the curves. If arms read other parts, or do not record it, it is of all."""
    splits = [run.facts.split('eval') for run in self.runs]
    level = next((x.baselines[metric] for x in splits if metric in x.baselines), None)
    points = [point for run in self.runs if (point := run.counted())]
    if own := [x[metric] for point in points if metric in (x := own_levels(point.values))]:
      return Level(statistics.fmean(x.value for x in own), own[0].kind)
    counted = {point.kind for point in points}
    if level is None or not (of_curves or counted == {'eval'}):
      return level
    parts = {x.part.get(metric) for x in splits}
    is_part = self.reads_part or parts != {None}
    of_all = level._replace(kind=f'{level.kind} of all rows') if is_part else level
    return (len(parts) == 1 and parts.pop()) or of_all

  def is_unbeaten(self, rows: Sequence[Row]) -> bool:
    """Whether the first metric has a baseline and no Row's mean is better."""
    means, level = [row.mean for row in rows if row.mean is not None], self.level(self.metrics[0])
    if not level or not means:
      return False
    return min(means) >= level.value if level.kind.startswith(LOSSES) else max(means) <= level.value

  def lost(self) -> list[str]:
    """The labels of arms that beat no guess, where others do."""
    rows = [row for row in self.rows(self.metrics[0]) if row.values]
    labels = [row.label for row in rows if self.is_unbeaten([row])]
    return labels if len(labels) < len(rows) else []


@dataclass
class Report:
  """The panels of some runs, and remarks on runs that are not in them."""

  panels: list[Panel]
  runs: list[Run]  # all, including runs that are not counted
  status: dict[Path, str]  # {path: why its run is not counted, or deserves a look}
  # {objective: (names of fields in which runs differ, {label: [values]})}
  differences: dict[str, tuple[list[str], dict[str, Sequence[str]]]]
  remarks: list[str]


def report(
  runs: Sequence[Run],
  folders: Iterable[Path | str],
  metric: str = '',
  baseline: str = '',
  renamed: Sequence[str] = (),
  remarks: Sequence[str] = (),
) -> Report:
  """Makes the Report of runs. baseline: an arm; '': the sweep's. renamed: ['OLD=NEW', ...], arms,
  metrics and folders of sweeps."""
  runs, evaluated_on = report_arms.judged(runs)
  folders = list(map(Path, folders))
  counted, copies = report_arms.without_copies(runs)
  status = {path: f'a copy of {first}: counted once' for path, first in copies.items()}
  baselines, planned, failed = missing_runs.planned_in(folders)
  is_said = tuple(f'{path} ' for path in failed)
  remarks = [*planned, *(x for x in remarks if not x.startswith(is_said))]
  panels, fields, arm_of = [], {}, {}
  words = {old: new for old, _, new in (text.rpartition('=') for text in renamed)}
  places = report_arms.names_of_folders(runs)
  columns = {*metrics_of(runs), *places.values()}
  unused = {text for text in renamed if text.rpartition('=')[0] not in columns}
  words |= {path: words.get(name, name) for path, name in places.items()}
  called = set()  # by all names of all arms
  of = lambda run: run.fields['objective']
  for objective, some in itertools.groupby(sorted(counted, key=of), of):
    arms = report_arms.arms_of(some := list(some), words)
    for arm in arms:
      status |= missing_runs.unfinished(arm.runs)
    arm_of |= {run.path: arm for arm in arms for run in arm.runs}
    unused -= report_arms.rename(arms, renamed)
    called |= {name for arm in arms for name in (*arm.names, arm.label)}
    remarks += (f'{objective}: {said}' for said in missing_runs.of_several_commits(arms))
    if any(run.path not in status for arm in arms for run in arm.runs):
      for arm in arms:  # else the results so far are shown
        arm.runs = [run for run in arm.runs if run.path not in status]
    fields[objective] = report_arms.differing(arms)
    own = {} if baseline else baselines
    panels += panels_of(objective, arms, evaluated_on, metric, baseline, own, remarks, words)
  place = lambda run: (_place(run, folders), run.path.parent)
  panels.sort(key=lambda panel: min(map(place, panel.runs)))
  shown = {*copies, *(run.path for panel in panels for run in panel.runs)}
  sweeps = [report_arms.sweeps_of(panel.runs, words) for panel in panels]
  for panel, sweep in zip(panels, sweeps):
    panel.sweep = sweep if len({*sweeps}) > 1 else ''
    panel.missing = missing_runs.by_arm(panel.runs, arm_of, shown)
  status |= missing_runs.fruitless(counted, metric)
  for panel in panels:
    status = missing_runs.changed_length(panel.runs) | status
  if not any(metric in panel.metrics if metric else panel.metrics for panel in panels):
    names = sorted(metrics_of(runs))
    there = ', '.join(names) or 'none yet'
    raise InputError(f'no run has an evaluated {metric or "metric"}; there are {there}.')
  labels = [label for _, of_arms in fields.values() for label in of_arms]
  if unused:
    text = min(unused)
    _refuse(text, [*labels, *sorted(columns)], called | columns, *text.rpartition('=')[::2])
  if baseline and baseline not in called:
    _refuse(baseline, labels, called | columns)
  if baseline and not any(panel.baseline for panel in panels if len(panel.arms) > 1):
    remarks.append(f'nothing is compared with {baseline}: no other arm is judged in the same way')
  told = {path: why for path, why in status.items() if path not in failed}
  status |= {path: f'failed: {error}' for path, error in failed.items() if path in status}
  remarks += missing_runs.remarks_on(runs, told, arm_of, words)
  return Report(panels, runs, status, fields, remarks)


def _refuse(text, shown, called, old='', new=''):
  """Raises an InputError for an arm that is not there: --label OLD=NEW or, without these, the
  --baseline. shown, called: the names that there are, and those by which they may be called."""
  said = f'--label {text} says (OLD is {old}, NEW is {new})' if old else f'--baseline {text} says'
  form = f'; write --label {text}=NEW.' if old and text in called else ''
  fault = f'no arm, or several, is called as {said}; there are {", ".join(dict.fromkeys(shown))}'
  raise InputError(fault + (form or suggestion(old or text, called) or '.'))


def _place(run, folders):
  """Which of the folders a run is in: tables stand in their order."""
  around = run.path, *run.path.parents
  return next((n for n, folder in enumerate(folders) if folder in around), 0)


def panels_of(
  objective: str,
  arms: Sequence[Arm],
  under: Under,
  metric: str,
  baseline: str,
  baselines: Mapping[Path, str],
  remarks: list[str],
  words: Mapping[str, str],
) -> list[Panel]:
  """The Panels of an objective; panels with a baseline come first. That is the arm that the user
  calls so, or else the baseline of a sweep, {folder: its name}, of the panel's own sweeps first.
  Labels name the sweep only where a panel has several."""
  ways = collections.defaultdict(list)  # {ways in which runs were evaluated: arms}
  for arm in arms:
    if arm.runs:
      ways[frozenset(tuple(under[run.path].items()) for run in arm.runs)].append(arm)
  for some in ways.values():
    labels = [arm.label.removesuffix(arm.sweep) for arm in some]
    if len({*labels}) == len(labels):
      for arm, label in zip(some, labels):
        arm.label = label
  of_sweeps = lambda some: [baselines.get(run.path.parent) for arm in some for run in arm.runs]
  names = [*filter(None, dict.fromkeys([baseline, *of_sweeps(arms)]))]
  called = lambda some, name: [arm.label for arm in some if name in arm.names | {arm.label}]
  matching, chosen = {}, {}
  for way, some in ways.items():
    own = sorted(names, key=lambda name: name not in of_sweeps(some))
    matching[way] = next(filter(None, (called(some, name) for name in own)), [])
    chosen[way] = matching[way][0] if len(matching[way]) == 1 else ''
  baseline = baseline or next(iter(names), '')
  if baseline and len(arms) > 1 and not any(chosen.values()):
    how = 'several arms match' if any(matching.values()) else 'no arm matches'
    there = ', '.join(dict.fromkeys(arm.label for arm in arms))
    remarks.append(f'{objective}: {how} the baseline {baseline}; there are {there}')
  out, several = [], 0
  for way in sorted(ways, key=lambda way: not chosen[way]):
    runs = [run for arm in ways[way] for run in arm.runs]
    if not (names := metrics_of(runs)):
      continue
    judge = collections.Counter(run.judge for run in runs).most_common(1)[0][0]
    if metric and metric not in names:
      remarks.append(f'{objective}: no evaluation has {metric}; there are {", ".join(names)}')
    first = next((name for name in (metric, judge) if name in names), names[0])
    names.sort(key=lambda name: name != first)
    label = chosen[way]
    ordered = sorted(ways[way], key=lambda arm: arm.label != label)  # the baseline first
    is_beside = lambda other, some=ways[way]: not _is_other_task(some, other, words)
    same = {x: arms for x, arms in ways.items() if x == way or is_beside(arms)}
    several += len(same) > 1
    told = report_arms.described(way, same)
    out.append(Panel(objective, ordered, names, label, told, words))
  if several > 1:
    apart = f'evaluated otherwise stand in tables of their own, {several}'
    remarks.append(f'{objective}: arms {apart}, since their numbers cannot be compared')
  return out


def _is_other_task(arms, others, words):
  """Whether arms are likely of another task of labelled examples than others: in folders of other
  names, and evaluated on files of other names."""
  runs, beside = ([run for arm in some for run in arm.runs] for some in (arms, others))
  if any(run.config is None or TASKS[run.config.objective].reads_corpus for run in runs):
    return False
  folders = lambda some: {*report_arms.sweeps_of(some, words).split(', ')}
  path = lambda run: run.fields['data.eval'] or run.fields['data.train']
  data = lambda some: {str(path(run)).rpartition('/')[2] for run in some}
  return all(of(runs).isdisjoint(of(beside)) for of in (folders, data))


def metrics_of(runs: Sequence[Run]) -> list[str]:
  """The names of the scores in the runs' evaluations that count."""
  values = [point.values for run in runs if (point := run.counted())]
  names = dict.fromkeys(name for of in values for name, x in of.items() if x is not None)
  none = {*NO_SCORES, *(f'{name}_{x.kind}' for of in values for name, x in own_levels(of).items())}
  return [name for name in names if name not in none and '_below_' not in name]
