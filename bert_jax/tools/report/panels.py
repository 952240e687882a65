"""What a report says: the arms of each objective, and how they differ from a baseline.

An arm is the runs that differ in the seed alone. A panel holds arms of one objective that were
evaluated in one way, on the same rows and masks, with the same vocabulary: only these stand in one
column.
"""

import collections
import contextlib
import dataclasses
import json
import re
import statistics
from pathlib import Path
from typing import NamedTuple

from bert_jax.errors import InputError
from bert_jax.tools.report import lengths as report_lengths
from bert_jax.tools.report import runs as report_runs
from bert_jax.tools.report import statistics as report_statistics
from bert_jax.tools.sweep import arms as sweep_grid

SWEEP = 'sweep.json'  # what a sweep has planned, in the folder of its runs
LOGS = 'logs'  # beside it: NAME.txt is what run NAME has printed, NAME.json how it ended
# Fields that rows and vocabularies are made by begin with one of these.
MADE_BY = (*report_runs.OF_ROWS, 'corpus.', 'model.vocab_size')
OF_LOSSES = ('unigram', 'uniform')  # what losses are to beat; the others are of scores
NO_SCORES = ('step', 'split', 'constant', 'masked')  # in a line of an evaluation


class Row(NamedTuple):
  """What an arm's seeds say of a metric. mean: None without a value; difference: to the
  baseline."""

  label: str
  values: dict  # {seed: value}
  sound: dict  # the same of the runs that have not collapsed
  mean: float | None
  interval: tuple | None
  difference: report_statistics.Difference | None


@dataclasses.dataclass
class Arm:
  label: str
  text: str  # the fields in which it differs from the others, in full
  runs: list
  name: str = ''  # its label before --label gave it another


@dataclasses.dataclass
class Panel:
  objective: str
  arms: list
  metrics: list  # the one that it is judged by first
  baseline: str  # the label of an arm, or ''
  evaluated_on: str  # in what its evaluation differs from those of the panels beside it, or ''

  def rows(self, metric):
    """[Row, ...], one for each arm; p values are corrected for those of this metric."""
    values = {arm.label: values_of(arm.runs, metric) for arm in self.arms}
    examples = report_lengths.examples([run for arm in self.arms for run in arm.runs], metric)
    every = [value for by_seed in values.values() for value in by_seed.values()]
    step, compared, out = report_statistics.step_of(examples, every), {}, []
    if self.baseline:
      compared = report_statistics.differences(values, self.baseline, step)
    for arm in self.arms:
      by_seed, sound = values[arm.label], [x for x in arm.runs if not report_runs.collapsed(x)]
      each = list(by_seed.values())
      out.append(
        Row(
          arm.label,
          by_seed,
          values_of(sound, metric),
          statistics.fmean(each) if each else None,
          report_statistics.interval(each, step),
          compared.get(arm.label),
        )
      )
    return out

  def named(self, metric):
    """The metric with its unit: a loss that unigrams have too is in nats."""
    level = self.level(metric)
    return f'{metric}, nats' if level and level[1] == 'unigram' else metric

  def level(self, metric):
    """(value, name) of what a metric must beat, such as the unigram line, or None."""
    for arm in self.arms:
      for run in arm.runs:
        if level := run['data'].get('eval', {}).get('baselines', {}).get(metric):
          return level
    return None

  def is_unbeaten(self, rows):
    """Whether the first metric has a value to beat and the mean of no Row is better."""
    means, level = [row.mean for row in rows if row.mean is not None], self.level(self.metrics[0])
    if not level or not means:
      return False
    return min(means) >= level[0] if level[1] in OF_LOSSES else max(means) <= level[0]


@dataclasses.dataclass
class Report:
  panels: list
  runs: list  # all, also those that are not counted
  status: dict  # {path of a run: why it is not counted or to be looked at}
  differences: dict  # {objective: (names of fields in which runs differ, {label: [values]})}
  remarks: list
  unmatched: list  # those of them on arguments that name no arm


def report(runs, folders, metric='', baseline='', renamed=(), remarks=()):
  """The Report of runs. baseline: see named_by; '': that of the sweep. renamed: ['OLD=NEW', ...]
  of labels. remarks: sentences on what was left out until now."""
  remarks, status = list(remarks), {}
  counted, copies = report_runs.without_copies(runs)
  status |= {path: f'a copy of {first}: counted once' for path, first in copies.items()}
  planned = planned_in(folders)
  remarks += planned.remarks
  grouped = report_runs.groups(counted)
  for members in grouped.values():
    behind = [run for run in members if report_runs.unfinished(run, members)]
    for run in behind:
      last, of = report_runs.last_step(run), run['config'].get('steps') or 'its epochs'
      where = 'not evaluated at its end' if last == of else f'at step {last} of {of}'
      status[run['path']] = f'unfinished: {where}'
  finished = {o for (o, _), x in grouped.items() for run in x if run['path'] not in status}
  arms_of = collections.defaultdict(list)  # {objective: its arms}
  for (objective, text), members in grouped.items():
    arms_of[objective].append(Arm('', text, members))
  panels, fields = [], {}
  unused = dict(text.rpartition('=')[::2] for text in renamed)
  renamed = dict(unused)
  for objective, arms in arms_of.items():
    give_labels(arms)
    named = {old: named_by(old, arms) for old in renamed}
    for old in (old for old, matching in named.items() if len(matching) == 1):
      named[old][0].label = renamed[old]
      unused.pop(old, None)
    for arm in arms:
      if objective in finished:  # else what there is until now is shown
        arm.runs = [run for run in arm.runs if run['path'] not in status]
      if [other.label for other in arms].count(arm.label) > 1:
        raise InputError(f'two arms are called {arm.label}; give --label another name.')
    fields[objective] = differing(arms)
    panels += panels_of(objective, arms, metric, baseline or planned.baseline, remarks)
    for arm in arms:
      if len(commits := sorted({run['commit'][:12] or 'none' for run in arm.runs})) > 1:
        remarks.append(
          f'{objective}: the runs of {arm.label} are of several commits of the code, '
          f'{", ".join(commits)}, and of one seed their mean counts'
        )
  for run in counted:
    if report_runs.collapsed(run):
      status[run['path']] = 'collapsed: one answer for every example'
    name = report_runs.metric_of(run, metric)
    lines = [line for line in run['lines'] if line['split'] == 'eval' and name in line]
    if lines and report_runs.final(run, name) is None:
      status[run['path']] = f'its last {name} is no number: in no mean'
  if not any(metric in panel.metrics if metric else panel.metrics for panel in panels):
    names = sorted({name for run in runs for line in run['lines'] for name in line})
    if not names:
      raise InputError(f'none of the {len(runs)} runs has a metric yet; let them train on.')
    raise InputError(f'no run has an evaluated {metric or "metric"}; there are {", ".join(names)}.')
  labels = ', '.join(arm.label for arms in arms_of.values() for arm in arms)
  unmatched = [
    f'--label {old}={new}: no arm is called {old}; there are {labels}'
    for old, new in unused.items()
  ]
  if baseline and not any(panel.baseline for panel in panels if len(panel.arms) > 1):
    unmatched.append(f'--baseline {baseline} is no arm, so nothing is compared; there are {labels}')
  remarks += unmatched + [f'{path}: {why}' for path, why in status.items()]
  return Report(panels, runs, status, fields, remarks, unmatched)


def values_of(runs, metric):
  """{seed: final value of a metric}, the mean of runs of one seed."""
  by_seed = collections.defaultdict(list)
  for run in runs:
    if (value := report_runs.final(run, metric)) is not None:
      by_seed[run['config'].get('seed', 0)].append(value)
  return {seed: statistics.fmean(by_seed[seed]) for seed in sorted(by_seed)}


class Planned(NamedTuple):
  baseline: str  # the name of an arm, as its folders have it, or ''
  remarks: list


def planned_in(folders):
  """What the sweeps in some folders say: their baseline, and their runs that failed or that have
  not begun."""
  baseline, remarks = '', []
  for folder in map(Path, folders):
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
      content = json.loads((folder / SWEEP).read_text())
      baseline = baseline or content.get('baseline', '')
      waiting = []
      for name in content['runs']:
        ended = {}
        with contextlib.suppress(OSError, ValueError):
          ended = json.loads((folder / LOGS / f'{name}.json').read_text())
        if ended.get('state') == 'failed':
          remarks.append(f'{folder / name} failed: {ended.get("error")}')
        elif not ended and not (folder / name / 'metrics.jsonl').exists():
          waiting.append(name)
      if waiting:
        more = f' and {len(waiting) - 1} more' if len(waiting) > 1 else ''
        remarks.append(f'{folder}: planned and not run yet: {waiting[0]}{more}')
  return Planned(baseline, remarks)


def give_labels(arms):
  """Sets the labels of the arms of an objective: the names of their folders, if a sweep has named
  these (with that of the sweep's folder, if several sweeps have an arm of the name), else their
  fields; the names of fields without their blocks, where these are clear."""
  folders = [
    {
      report_runs.SEED_FOLDER.sub('', run['path'].name)
      for run in arm.runs
      if report_runs.SEED_FOLDER.search(run['path'].name)
    }
    or {''}
    for arm in arms
  ]
  named = [next(iter(names)) if len(names) == 1 else '' for names in folders]
  if all(named) and len(set(named)) < len(arms):  # sweeps of the same arms, on other data perhaps
    sweeps = [{run['path'].parent.name for run in arm.runs} for arm in arms]
    named = [f'{name} ({", ".join(sorted(of))})' for name, of in zip(named, sweeps)]
  texts = named if len(set(named)) == len(arms) and all(named) else [arm.text for arm in arms]
  for arm, text in zip(arms, shortened([text or 'all runs' for text in texts])):
    arm.label = arm.name = text


def shortened(texts):
  """['optimizer.beta1=0.8,seed=1', ...] -> ['beta1=0.8, seed=1', ...]: fields by their last names,
  if these differ."""
  field = re.compile(r'(^|, ?)((?:\w+\.)*)(\w+)(?==)')
  full = {match[2] + match[3] for text in texts for match in field.finditer(text)}
  leaves = collections.Counter(name.rpartition('.')[2] for name in full)

  def short(match):
    name = match[3] if leaves[match[3]] == 1 else match[2] + match[3]
    return (match[1] and ', ') + name

  return [field.sub(short, text) for text in texts]


def named_by(text, arms):
  """([the arm] that a text names, or several that it names alike): its label, the name of its
  folders, or its fields or their values, as sweep_grid.is_named reads them."""
  folders = lambda arm: {report_runs.SEED_FOLDER.sub('', run['path'].name) for run in arm.runs}
  differing_in = differing(arms)[0]
  varied = lambda run: {name: run['config'].get(name) for name in differing_in}
  every = lambda arm, fields_of: (
    arm.runs and all(sweep_grid.is_named(text, fields_of(run)) for run in arm.runs)
  )
  ways = (
    lambda arm: text in (arm.label, arm.name, arm.text) or folders(arm) == {text},
    lambda arm: '=' in text and every(arm, lambda run: run['config']),
    lambda arm: every(arm, varied),
  )
  for way in ways:
    matching = [arm for arm in arms if way(arm)]
    if len(matching) == 1:
      break
  return matching


def baseline_of(text, arms, objective, remarks):
  """The arm among several that a text names; None, with a remark, if that is not one."""
  if not text or len(arms) == 1:
    return None
  matching = named_by(text, arms)
  if len(matching) != 1:
    many = f'{len(matching)} arms match' if matching else 'no arm matches'
    there = ', '.join(arm.label for arm in arms)
    remarks.append(f'{objective}: {many} the baseline {text}; there are {there}')
    return None
  return matching[0]


def differing(arms):
  """(names, {label: [value of each]}): the fields in which the arms of an objective differ."""
  runs = [run for arm in arms for run in arm.runs]
  names = [
    name
    for name in (runs[0]['config'] if runs else ())
    if name not in ('seed', 'eval.seed')
    and not name.startswith(report_runs.WITHOUT_EFFECT)
    and len({str(report_runs.value_of(run, name)) for run in runs}) > 1
  ]
  of_arm = lambda arm: [str(report_runs.value_of(arm.runs[0], name)) for name in names]
  return names, {arm.label: of_arm(arm) for arm in arms if arm.runs}


def panels_of(objective, arms, metric, baseline, remarks):
  """The Panels of an objective, each with the arm that the text `baseline` names among its own;
  those that have one come first."""
  ways = collections.defaultdict(list)  # {ways in which runs were evaluated: arms}
  for arm in arms:
    if not arm.runs:
      remarks.append(f'{objective}: no run of {arm.label} is finished, so no table has it')
      continue
    ways[frozenset(tuple(run['evaluated_on'].items()) for run in arm.runs)].append(arm)
  chosen = {way: baseline_of(baseline, some, objective, []) for way, some in ways.items()}
  if not any(chosen.values()):  # it may be alone in its panel
    every = [arm for some in ways.values() for arm in some]
    alone = baseline_of(baseline, every, objective, remarks)
    chosen = {way: alone if alone in some else None for way, some in ways.items()}
  out = []
  for way in sorted(ways, key=lambda way: not chosen[way]):
    runs = [run for arm in ways[way] for run in arm.runs]
    names = metrics_of(runs)
    if not names:
      continue
    judge = collections.Counter(report_runs.metric_of(run) for run in runs).most_common(1)[0][0]
    if metric and metric not in names:
      remarks.append(f'{objective}: no evaluation has {metric}; there are {", ".join(names)}')
    first = next((name for name in (metric, judge) if name in names), names[0])
    names = [first, *(name for name in names if name != first)]
    label = chosen[way].label if chosen[way] else ''
    arms = sorted(ways[way], key=lambda arm: arm.label != label)  # the baseline first
    out.append(Panel(objective, arms, names, label, described(way, ways)))
  if len(out) > 1:
    remarks.append(
      f'{objective}: arms that were evaluated otherwise stand in tables of their own, '
      f'{len(out)}, since their numbers cannot be compared; the headings say in what they differ'
    )
  return out


def metrics_of(runs):
  """The names of the scores in the evaluations of runs that count."""
  names = {}
  for run in runs:
    for name, value in report_runs.counted(run).items():
      if isinstance(value, (int, float)) and name not in NO_SCORES and '_below_' not in name:
        names[name] = None
  return list(names)


def described(way, ways):
  """In what one way of {way: arms} of being evaluated differs from the others, and in what the runs
  of an arm differ in it: 'eval.seed=0 or 3; data.eval=a.txt'. Of a checksum it says the fields that
  rows and vocabulary are made by, and the checksum only where these are the same."""
  values = lambda way, name: sorted({str(dict(x).get(name)) for x in way})
  fields = lambda way, name: sorted(
    {str(run['config'].get(name)) for arm in ways[way] for run in arm.runs}
  )
  names = dict.fromkeys(name for other in ways for x in other for name, _ in x)
  apart = {
    name: each
    for name in names
    if len(each := values(way, name)) > 1 or any(values(other, name) != each for other in ways)
  }
  sums = {name: [x[:8] for x in apart.pop(name)] for name in report_runs.CHECKSUMS if name in apart}
  if sums:
    config = ways[way][0].runs[0]['config']
    made_by = {name: fields(way, name) for name in config if name.startswith(MADE_BY)}
    others = [
      {name for name, each in made_by.items() if fields(other, name) != each}
      for other in ways
      if other != way
    ]
    apart |= {name: made_by[name] for name in config if any(name in some for some in others)}
    apart |= {} if others and all(others) else sums
  return '; '.join(f'{name}={" or ".join(each)[-60:] or "none"}' for name, each in apart.items())
