"""Runs of a report with a remark, or in none of its tables: they failed, or have not ended."""

import collections
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from bert_jax import config as config_lib
from bert_jax import files
from bert_jax.errors import listed
from bert_jax.files import Path
from bert_jax.tools.report.arms import Arm
from bert_jax.workdir import contents, lock, records
from bert_jax.workdir.recorded import Run


def unfinished(runs: Sequence[Run]) -> dict[Path, str]:
  """{path: how far it has come} of the runs that ended before their last step. Runs of earlier
  versions have no summary: with `epochs`, the last step is the furthest of `runs`."""
  out, furthest = {}, max((run.measured_step() for run in runs), default=0)
  for run in runs:
    steps = run.fields.get('steps')
    goes_on = not run.summary.has_ended
    if not run.summary.state:
      goes_on = not run.fields.get('eval.patience') and run.measured_step() < (steps or furthest)
    if goes_on:
      last, end = run.last_step(), steps or 'its epochs'
      where = 'not evaluated at its end' if last == end else f'at step {last} of {end}'
      out[run.path] = f'unfinished: {where}'
  return out


def planned_in(folders: Iterable[Path | str]) -> tuple[dict[Path, str], list[str], dict[Path, str]]:
  """({folder: name of its baseline}, remarks on runs that failed or have nothing, {a run that
  failed: why}) of the sweeps in and below folders. What ended several runs of an arm is said
  once."""
  baselines, remarks, failed = {}, [], {}
  found: dict[Path, Path] = {}
  for root in map(Path, folders):
    for path in sorted(root.rglob(records.SWEEP)):
      found.setdefault(path.resolve(), path.parent)
  for folder in found.values():
    if (sweep := records.read_sweep(folder)) is None:
      continue
    baselines[folder] = sweep.baseline
    remarks += sweep.faults
    ended, alike = sweep.ended.items(), collections.defaultdict(list)
    errors = {name: x.error for name, x in ended if x.state == 'failed'}
    errors = {k: x for k, x in errors.items() if not lock.is_held(folder / k)}  # or tried again
    for name, error in errors.items():
      text = re.sub(r'\d+', '', error)  # steps, rows and seeds
      alike[sweep.runs[name].arm, text].append((folder / name, error))
    for (first, error), *others in alike.values():
      more = f' and {len(others)} more of its arm' if others else ''
      differ = ', the first with' * any(x != error for _, x in others)
      remarks.append(f'{first}{more} failed{differ}: {error}')
      failed |= {first: error, **dict(others)}
    begun = lambda path: any(files.exists(path / x) for x in (records.FACTS, records.METRICS))
    there = {name: begun(folder / name) for name, _ in ended if name not in errors}
    if empty := [name for name, is_there in there.items() if not is_there]:
      more = f' and {len(empty) - 1} more' if len(empty) > 1 else ''
      remarks.append(f'{folder}: planned and without results: {empty[0]}{more}')
  return baselines, remarks, failed


def of_several_commits(arms: Sequence[Arm]) -> Iterator[str]:
  """Remarks on arms whose runs are of several commits of the code."""
  for arm in arms:
    if len(commits := sorted({run.facts.commit[:12] or 'none' for run in arm.runs})) > 1:
      several = f'the runs of {arm.label} are of several commits of the code'
      yield f'{several}, {", ".join(commits)}'


def fruitless(runs: Sequence[Run], metric: str) -> dict[Path, str]:
  """{path: why} of runs that gave one answer for all, or no number."""
  out = {}
  for run in runs:
    if run.collapsed():
      out[run.path] = 'collapsed: one answer for every example'
    name = metric or run.judge
    if any(name in point.values for point in run.evaluations) and run.final(name) is None:
      out[run.path] = f'its last {name} is no number: in no mean'
  return out


def changed_length(runs: Sequence[Run]) -> dict[Path, str]:
  """{path: why it deserves a look} of runs that were begun with another number of steps, and so
  with other learning rates; {} if all runs were, in the same way."""
  came = {run.path: [] for run in runs}
  for run in runs:
    if config := run.config:
      rows, then = run.facts.split('train').rows, contents.configs(run.path, config)
      others = [x for x in then if config_lib.have_other_rates(x, config, rows)]
      came[run.path] = sorted({config_lib.step_count(x, rows) for x in others})
  if len({*map(str, came.values())}) == 1:
    return {}
  why = 'its first learning rates are those of such a run'
  return {path: f'it had {listed(x)} steps before: {why}' for path, x in came.items() if x}


def by_arm(
  runs: Sequence[Run], arms: Mapping[Path, Arm], shown: Collection[Path]
) -> dict[str, tuple[int, int]]:
  """{label: (runs that are not shown, runs)} of the arms that lack some, in the folders of the runs
  of a table: of runs with metrics, {path: its arm}, and of those that a sweep has planned."""
  folders = dict.fromkeys(run.path.parent for run in runs)
  labels = {path: arm.label for path, arm in arms.items() if path.parent in folders}
  for folder in folders:
    plan = records.read_sweep(folder)
    planned = {folder / name: run.arm for name, run in plan.runs.items()} if plan else {}
    called = {arm: labels[path] for path, arm in planned.items() if path in labels}
    labels = {path: called.get(arm, arm) for path, arm in planned.items()} | labels
  every = collections.Counter(labels.values())
  lacking = collections.Counter(label for path, label in labels.items() if path not in shown)
  return {label: (count, every[label]) for label, count in lacking.items()}


def remarks_on(
  runs: Sequence[Run],
  status: Mapping[Path, str],
  arms: Mapping[Path, Arm],
  words: Mapping[str, str],
) -> list[str]:
  """Sentences on the runs that have a status, {path: status}. What several runs of an arm have in
  common is said once, with their seeds. arms: {path: the arm of a run that counts}. words: {the
  path of a sweep's folder: what it is called}."""
  together = collections.defaultdict(list)
  for run in (run for run in runs if run.path in status):
    arm, called = arms.get(run.path), words[str(run.path.parent)]
    own = arm.label.removesuffix(f' ({called})') if arm else ''
    name = f'{run.fields["objective"]}: {own}' if arm else str(run.path)
    together[name, called, status[run.path]].append(run)
  out, several = [], len({words[str(run.path.parent)] for run in runs}) > 1
  for (name, called, why), some in together.items():
    name += f' in {called}' * (several and some[0].path in arms)
    seeds = ', '.join(str(run.fields.get('seed', 0)) for run in some)
    out.append(f'{name}, seeds {seeds}: {why}' if some[1:] else f'{some[0].path}: {why}')
  return out
