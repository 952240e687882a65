"""Compares the arms of each objective in panels, with their differences to a baseline.

A panel holds arms of one objective that were evaluated in one way, on the same rows and masks, with
the same vocabulary, so that their numbers can be compared.
"""

import collections
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import InputError
from bert_jax.metrics import Level
from bert_jax.tools.report import arms as report_arms
from bert_jax.tools.report import statistics as report_statistics
from bert_jax.tools.report.arms import LOSSES, Arm
from bert_jax.workdir import records
from bert_jax.workdir.records import Run

Under = Mapping[Path, Mapping[str, Any]]  # what each run was evaluated under, see arms.judged
NO_SCORES = ('constant', 'masked')  # values of an evaluation that are not scores


class Row(NamedTuple):
  """The values of a metric over an arm's seeds, and their statistics."""

  label: str
  values: dict[int, float]  # {seed: value}
  values_without_collapsed: dict[int, float]
  mean: float | None  # None without a value
  interval: tuple[float, float] | None
  difference: report_statistics.Difference | None  # to the baseline


@dataclass
class Panel:
  """Arms whose numbers can be compared."""

  objective: str
  arms: list[Arm]
  metrics: list[str]  # the first one judges
  baseline: str  # the label of an arm, or ''
  evaluated_on: str  # how its evaluation differs from the other panels', or ''

  @property
  def runs(self) -> list[Run]:
    return [run for arm in self.arms for run in arm.runs]

  def rows(self, metric: str) -> list[Row]:
    """A Row for each arm; p values are corrected for all comparisons of this metric."""
    values = {arm.label: report_arms.values_of(arm.runs, metric) for arm in self.arms}
    every = [value for by_seed in values.values() for value in by_seed.values()]
    step = report_statistics.step_of(report_arms.examples(self.runs, metric), every)
    compared = {}
    if self.baseline:
      compared = report_statistics.differences(values, self.baseline, step)
    out = []
    for arm in self.arms:
      kept = report_arms.values_of([run for run in arm.runs if not run.collapsed()], metric)
      each = list(values[arm.label].values())
      mean, within = (
        statistics.fmean(each) if each else None,
        report_statistics.interval(each, step),
      )
      out.append(Row(arm.label, values[arm.label], kept, mean, within, compared.get(arm.label)))
    return out

  def named(self, metric: str) -> str:
    """The metric with its unit: a loss that has a unigram baseline is in nats."""
    level = self.level(metric)
    return f'{metric}, nats' if level and level.kind == 'unigram' else metric

  def level(self, metric: str) -> Level | None:
    """The baseline that a metric must beat, such as the unigram loss."""
    data = (run.facts.data.get('eval', records.Split()) for run in self.runs)
    return next((split.baselines[metric] for split in data if metric in split.baselines), None)

  def is_unbeaten(self, rows: Sequence[Row]) -> bool:
    """Whether the first metric has a baseline and no Row's mean is better."""
    means, level = [row.mean for row in rows if row.mean is not None], self.level(self.metrics[0])
    if not level or not means:
      return False
    return min(means) >= level.value if level.kind in LOSSES else max(means) <= level.value


@dataclass
class Report:
  """The panels of some runs, and remarks on runs that are not in them."""

  panels: list[Panel]
  runs: list[Run]  # all, including runs that are not counted
  status: dict[Path, str]  # {path: why its run is not counted, or deserves a look}
  # {objective: (names of fields in which runs differ, {label: [values]})}
  differences: dict[str, tuple[list[str], dict[str, list[str]]]]
  remarks: list[str]
  unmatched: list[str]  # the remarks on arguments that name no arm


def report(
  runs: Sequence[Run],
  folders: Iterable[Path | str],
  metric: str = '',
  baseline: str = '',
  renamed: Sequence[str] = (),
  remarks: Sequence[str] = (),
) -> Report:
  """Makes the Report of runs. baseline: the name of an arm; '': the sweep's baseline. renamed:
  ['OLD=NEW', ...] of labels. remarks: earlier sentences on what was left out."""
  runs, evaluated_on = report_arms.judged(runs)
  counted, copies = report_arms.without_copies(runs)
  status = {path: f'a copy of {first}: counted once' for path, first in copies.items()}
  planned_baseline, planned = report_arms.planned_in(folders)
  remarks, panels, fields, labels, unused = [*remarks, *planned], [], {}, [], dict.fromkeys(renamed)
  for objective in sorted({run.fields['objective'] for run in counted}):
    arms = report_arms.arms_of([run for run in counted if run.fields['objective'] == objective])
    status |= _unfinished(arms)
    for text in _rename(arms, renamed):
      unused.pop(text, None)
    if any(run.path not in status for arm in arms for run in arm.runs):
      for arm in arms:  # else the results so far are shown
        arm.runs = [run for run in arm.runs if run.path not in status]
    labels += [arm.label for arm in arms]
    fields[objective] = report_arms.differing(arms)
    name = baseline or planned_baseline
    panels += panels_of(objective, arms, evaluated_on, metric, name, remarks)
    remarks += _several_commits(objective, arms)
  for run in counted:
    if run.collapsed():
      status[run.path] = 'collapsed: one answer for every example'
    name = metric or run.judge
    if any(name in point.values for point in run.evaluations) and run.final(name) is None:
      status[run.path] = f'its last {name} is no number: in no mean'
  if not any(metric in panel.metrics if metric else panel.metrics for panel in panels):
    names = sorted({name for run in runs for point in run.points for name in point.values})
    if not names:
      raise InputError(f'none of the {len(runs)} runs has a metric yet; let them train on.')
    raise InputError(f'no run has an evaluated {metric or "metric"}; there are {", ".join(names)}.')
  there = f'there are {", ".join(labels)}'
  unmatched = [f'--label {x}: no arm is called {x.rpartition("=")[0]}; {there}' for x in unused]
  if baseline and not any(panel.baseline for panel in panels if len(panel.arms) > 1):
    unmatched.append(f'--baseline {baseline} is no arm, so nothing is compared; {there}')
  remarks += unmatched + [f'{path}: {why}' for path, why in status.items()]
  return Report(panels, runs, status, fields, remarks, unmatched)


def _unfinished(arms: Sequence[Arm]) -> dict[Path, str]:
  """{path: how far it has come} of the runs that have not ended."""
  out = {}
  for arm in arms:
    for run in arm.runs:
      if report_arms.unfinished(run, arm.runs):
        last, end = run.last_step(), run.fields.get('steps') or 'its epochs'
        where = 'not evaluated at its end' if last == end else f'at step {last} of {end}'
        out[run.path] = f'unfinished: {where}'
  return out


def _rename(arms: Sequence[Arm], renamed: Sequence[str]) -> set[str]:
  """Gives arms new labels, ['OLD=NEW', ...]; returns those that name exactly one arm."""
  used = set()
  for text in renamed:
    old, _, new = text.rpartition('=')
    if len(matching := [arm for arm in arms if old in arm.names]) == 1:
      matching[0].label = new
      used.add(text)
  labels = [arm.label for arm in arms]
  if twice := [label for label in labels if labels.count(label) > 1]:
    raise InputError(f'two arms are called {twice[0]}; give --label another name.')
  return used


def _several_commits(objective: str, arms: Sequence[Arm]) -> list[str]:
  """Sentences on arms whose runs were made by several commits of the code."""
  out = []
  for arm in arms:
    if len(commits := sorted({run.facts.commit[:12] or 'none' for run in arm.runs})) > 1:
      several = f'the runs of {arm.label} are of several commits of the code, {", ".join(commits)}'
      out.append(f'{objective}: {several}, and of one seed their mean counts')
  return out


def baseline_of(name: str, arms: Sequence[Arm], objective: str, remarks: list[str]) -> Arm | None:
  """Finds an arm by name; None, with a remark, unless exactly one matches."""
  if not name or len(arms) == 1:
    return None
  matching = [arm for arm in arms if name in arm.names | {arm.label}]
  if len(matching) == 1:
    return matching[0]
  many = f'{len(matching)} arms match' if matching else 'no arm matches'
  there = ', '.join(arm.label for arm in arms)
  remarks.append(f'{objective}: {many} the baseline {name}; there are {there}')
  return None


def panels_of(
  objective: str, arms: Sequence[Arm], under: Under, metric: str, baseline: str, remarks: list[str]
) -> list[Panel]:
  """The Panels of an objective, each with its own arm called `baseline`; panels that have one come
  first."""
  ways = collections.defaultdict(list)  # {ways in which runs were evaluated: arms}
  for arm in arms:
    if not arm.runs:
      remarks.append(f'{objective}: no run of {arm.label} is finished, so no table has it')
      continue
    ways[frozenset(tuple(under[run.path].items()) for run in arm.runs)].append(arm)
  chosen = {way: baseline_of(baseline, some, objective, []) for way, some in ways.items()}
  if not any(chosen.values()):  # the baseline may be alone in its panel
    every = [arm for some in ways.values() for arm in some]
    alone = baseline_of(baseline, every, objective, remarks)
    chosen = {way: alone if alone in some else None for way, some in ways.items()}
  out = []
  for way in sorted(ways, key=lambda way: not chosen[way]):
    runs = [run for arm in ways[way] for run in arm.runs]
    names = metrics_of(runs)
    if not names:
      continue
    judge = collections.Counter(run.judge for run in runs).most_common(1)[0][0]
    if metric and metric not in names:
      remarks.append(f'{objective}: no evaluation has {metric}; there are {", ".join(names)}')
    first = next((name for name in (metric, judge) if name in names), names[0])
    names.sort(key=lambda name: name != first)
    label = arm.label if (arm := chosen[way]) else ''
    ordered = sorted(ways[way], key=lambda arm: arm.label != label)  # the baseline first
    out.append(Panel(objective, ordered, names, label, described(way, ways)))
  if len(out) > 1:
    remarks.append(
      f'{objective}: arms that were evaluated otherwise stand in tables of their own, '
      f'{len(out)}, since their numbers cannot be compared; the headings say in what they differ'
    )
  return out


def metrics_of(runs: Iterable[Run]) -> list[str]:
  """The names of the scores in the runs' evaluations that count."""
  values = [point.values for run in runs if (point := run.counted())]
  names = dict.fromkeys(name for of in values for name, x in of.items() if x is not None)
  return [name for name in names if name not in NO_SCORES and '_below_' not in name]


def described(way: frozenset, ways: Mapping[frozenset, Sequence[Arm]]) -> str:
  """Describes how one way of evaluating, of {way: arms}, differs from the others, or among the runs
  of an arm: 'eval.seed=0 or 3; data.eval=a.txt'. For a checksum it names the fields that determine
  rows and vocabulary, and the checksum itself only if these are the same."""
  values = lambda way, name: sorted({str(dict(x).get(name)) for x in way})
  fields = lambda way, name: sorted(
    {str(r.fields.get(name)) for arm in ways[way] for r in arm.runs}
  )
  others = [other for other in ways if other != way]
  apart = {}
  for name in dict.fromkeys(name for some in ways for x in some for name, _ in x):
    each = values(way, name)
    if len(each) > 1 or any(values(other, name) != each for other in others):
      apart[name] = each
  sums = {name: [x[:8] for x in apart.pop(name)] for name in report_arms.CHECKSUMS if name in apart}
  if sums:
    known = [name for name in ways[way][0].runs[0].fields if name in report_arms.READING]
    differ = lambda other, name: fields(other, name) != fields(way, name)
    apart |= {x: fields(way, x) for x in known if any(differ(other, x) for other in others)}
    if not others or not all(any(differ(other, x) for x in known) for other in others):
      apart |= sums
  return '; '.join(f'{name}={" or ".join(each)[-60:] or "none"}' for name, each in apart.items())
