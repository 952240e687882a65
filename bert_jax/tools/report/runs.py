"""The table of runs of a report: their arms, how they ended, and what their values depend on."""

import collections
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.tasks import TASKS
from bert_jax.workdir import contents, records
from bert_jax.workdir.recorded import Run, Sweep

# Fields that cannot change the result of a run.
WITHOUT_EFFECT = {name for name, field in config_lib.ALL.items() if field.affects == {'free'}}
# Fields in which the runs of an arm may differ; a prior is filled in from the training rows.
NOT_OF_ARMS = WITHOUT_EFFECT | {'seed'} | {task.prior for task in TASKS.values()}
COUNTED = 'finished', 'collapsed', 'no number'  # the status of runs that stand in means
SEED = re.compile(r',?seed=(\d+)$')  # how a sweep ends the name of a run's folder


def runs_of(found: Sequence[Run], remarks: list[str]) -> pd.DataFrame:
  """The table of runs, in the order of the folders and of a sweep's plan, also of runs that were
  only planned. What cannot be read is added to `remarks`."""
  folders = list(dict.fromkeys(run.path.parent for run in found))
  names = collections.Counter(folder.name for folder in folders)
  rows = []
  for folder in folders:
    here = {run.path.name: run for run in found if run.path.parent == folder}
    sweep = records.read_sweep(folder)
    planned = []
    if sweep:
      remarks += sweep.faults
      planned = list(sweep.runs)
    called = folder.name if names[folder.name] == 1 else str(folder)
    for name in dict.fromkeys([*planned, *here]):
      row = row_of(folder / name, here.get(name), sweep)
      row['sweep'] = called
      rows.append(row)
  runs = pd.DataFrame(rows)
  runs['under'] = under_of(runs, found)
  # Runs without metrics stand beside the others of their arm.
  beside = runs.groupby(['sweep', 'arm'])[['task', 'under']].transform('first')
  runs[['task', 'under']] = runs[['task', 'under']].fillna(beside)
  runs['counts'] = counted(runs)
  return with_remarks(runs)


def row_of(path: Path, run: Run | None, sweep: Sweep | None) -> dict[str, Any]:
  """What the table of runs says of a run; run: None if it has no metrics."""
  seed = SEED.search(path.name)
  row = {
    'run': str(path),
    'arm': SEED.sub('', path.name) or 'all runs',
    'is_baseline': False,
    'seed': int(seed[1]) if seed else 0,
    'status': 'no metrics',
    'remark': '',
    'step': 0,
  }
  planned = sweep.runs.get(path.name) if sweep else None
  if sweep and planned:
    row['arm'] = planned.arm or row['arm']
    row['is_baseline'] = planned.arm == sweep.baseline
  if run and run.config:
    step = run.measured_step()
    row['status'], row['remark'] = status_of(run)
    row |= {
      'seed': run.fields.get('seed', 0),
      'task': run.fields['objective'],
      'learned': TASKS[run.config.objective].card(run.config).trained_for.replace('`', ''),
      'judge': run.judge,
      'step': step,
      'parameters': run.facts.parameters,
      'flops': run.flops_before(step),
      'commit': run.facts.commit,
      'recipe': recipe(run),
    }
  ended = sweep.ended.get(path.name) if sweep else None
  if ended and ended.state == 'failed':
    row['status'] = 'failed'
    row['remark'] = ended.error
  return row


def status_of(run: Run) -> tuple[str, str]:
  """(how a run ended, more about it)."""
  steps = run.fields.get('steps') or 0
  has_ended = run.summary.has_ended if run.summary.state else run.measured_step() >= steps
  if not has_ended:
    return 'unfinished', f'at step {run.last_step()} of {steps or "its epochs"}'
  if run.collapsed():
    return 'collapsed', 'one answer for every example'
  if run.final(run.judge) is None and any(run.judge in p.values for p in run.evaluations):
    return 'no number', f'its last {run.judge} is not finite'
  return 'finished', ''


def recipe(run: Run) -> str:
  """The settings of a run that decide its result, but for the seed: equal in the runs of an arm, of
  which each fold has rows of its own."""
  fields = {name: x for name, x in run.fields.items() if name not in NOT_OF_ARMS}
  for name in ('data.train', 'data.eval'):
    if config_lib.without_workdir(fields[name]) != fields[name]:
      del fields[name]
  return without_seed(json.dumps(fields, sort_keys=True, default=str), run)


def without_seed(text: str, run: Run) -> str:
  """A text, such as the path of init_from, with {seed} in place of the seed of a run."""
  return re.sub(rf'\bseed={run.fields.get("seed")}\b', 'seed={seed}', text)


def counted(runs: pd.DataFrame) -> pd.Series:
  """Which runs stand in means: unfinished ones only if no run of a task ended."""
  ended = runs.status.isin(COUNTED)
  any_ended = ended.groupby(runs.task).transform('any').fillna(False).astype(bool)
  return ended | (~any_ended & (runs.status == 'unfinished'))


def with_remarks(runs: pd.DataFrame) -> pd.DataFrame:
  """Sets arms of several sweeps apart that are called alike and are not, and says in which fields
  and commits the runs of one arm differ."""
  for _, same in runs.groupby(['task', 'under', 'arm']):
    if same.sweep.nunique() > 1 and same.recipe.nunique() > 1:
      runs.loc[same.index, 'arm'] = same.arm + ' (' + same.sweep + ')'
  remarks = {}
  for _, same in runs[runs.counts].groupby(['task', 'under', 'arm']):
    usual = json.loads(same.recipe.mode()[0])
    several_commits = same['commit'].nunique() > 1
    for index, row in same.iterrows():
      odd = [row.remark] if row.remark else []
      here = json.loads(row.recipe)
      names = [name for name in here | usual if here.get(name) != usual.get(name)]
      if names:
        odd.append(f'differs from other runs of its arm in {", ".join(names)}')
      if several_commits:
        odd.append(f'of commit {row["commit"][:12] or "unknown"}, others of its arm of another')
      remarks[index] = '; '.join(odd)
  of_counted = pd.Series(remarks, dtype=object).reindex(runs.index)
  runs['remark'] = of_counted.fillna(runs.remark)
  return runs


def under_of(runs: pd.DataFrame, found: Sequence[Run]) -> pd.Series:
  """What the values of each run depend on besides its weights, as a text; of an arm all that its
  runs depend on, such as the masks of their seeds. NaN without metrics."""
  of_runs = {str(run.path): judged_under(run) for run in found}
  texts = pd.Series(index=runs.index, dtype=object)
  for _, same in runs.groupby(['task', 'sweep', 'arm']):
    values = collections.defaultdict(set)
    for path in same.run:
      for name, value in of_runs[path].items():
        values[name].add(str(value))
    parts = [f'{name}={" or ".join(sorted(several))}' for name, several in values.items()]
    texts[same.index] = '; '.join(parts)
  return texts


def judged_under(run: Run) -> dict[str, Any]:
  """What the values of a run depend on besides its weights: a loss on rows and vocabulary, a score
  of labelled examples on the examples, which are known by what a guess scores on them."""
  data = run.facts.split('eval')
  under = {}
  if run.config:
    under |= TASKS[run.config.objective].judged_under(run.config)
  if under:
    path = tokenizers.in_folder(run.path)
    under['rows'] = data.fingerprint[:8] or 'none'
    under['vocabulary'] = 'none'
    if path:
      under['vocabulary'] = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return under
  spec = run.fields['data.eval'] or run.fields['data.train']
  under['data.eval'] = config_lib.without_workdir(spec)
  accuracy = {name: x for name, x in data.baselines.items() if name.endswith('accuracy')}
  for name, level in (accuracy or data.baselines).items():
    under[f'{name} of a {level.kind}'] = f'{level.value:.6g}'
  return under


# ---- Factors ------------------------------------------------------------------------------------


def factors(found: Sequence[Run]) -> pd.DataFrame:
  """The fields in which the runs of a task differ, except the seed, and those of the runs that they
  started from: index run, columns NAME and 'init_from: NAME', values as texts."""
  of_runs = {str(run.path): fields_of(run) for run in found}
  every = pd.DataFrame.from_dict(of_runs, orient='index')
  tasks = [run.fields['objective'] for run in found]
  values = every.groupby(tasks).nunique(dropna=False).max()
  return every.loc[:, values > 1]


def fields_of(run: Run) -> dict[str, str]:
  """The fields of a run that may have an effect, and those of the run in init_from, as texts."""
  without = NOT_OF_ARMS | {'eval.seed'}
  fields = {name: x for name, x in run.fields.items() if name not in without}
  if source := run.fields.get('init_from'):
    try:
      before = config_lib.flatten(contents.read_config(source))
      del fields['init_from']
      fields |= {f'init_from: {name}': x for name, x in before.items() if name not in NOT_OF_ARMS}
    except InputError:  # a released model
      pass
  texts = {name: config_lib.without_workdir(str(x)) for name, x in fields.items()}
  return {name: without_seed(x, run) for name, x in texts.items()}
