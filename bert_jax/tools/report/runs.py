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
from bert_jax.workdir import contents, lock, records
from bert_jax.workdir.recorded import Run, Sweep

# Fields that cannot change the result of a run.
WITHOUT_EFFECT = {name for name, field in config_lib.ALL.items() if field.affects == {'free'}}
# Fields that decide which rows and which vocabulary a run reads.
READING = config_lib.fields_affecting('rows', 'vocabulary')
# Fields in which the runs of an arm may differ; a prior is filled in from the training rows.
NOT_OF_ARMS = WITHOUT_EFFECT | {'seed'} | {task.prior for task in TASKS.values()}
COUNTED = 'finished', 'collapsed', 'no number'  # the status of runs that stand in means
SEED = re.compile(r',?seed=(\d+)$')  # how a sweep ends the name of a run's folder


def runs_of(found: Sequence[Run], remarks: list[str]) -> pd.DataFrame:
  """The table of runs, in the order of the folders and of a sweep's plan, also of runs that were
  only planned. What cannot be read is added to `remarks`."""
  rows, names = [], collections.Counter(path.name for path in {run.path.parent for run in found})
  for folder in dict.fromkeys(run.path.parent for run in found):
    here = {run.path.name: run for run in found if run.path.parent == folder}
    sweep = records.read_sweep(folder)
    remarks += sweep.faults if sweep else []
    called = folder.name if names[folder.name] == 1 else str(folder)
    for name in dict.fromkeys([*(sweep.runs if sweep else ()), *here]):
      rows.append(row_of(folder / name, here.get(name), sweep) | {'sweep': called})
  runs = pd.DataFrame(rows)
  runs['under'] = under_of(runs, found)
  # Runs without metrics stand beside the others of their arm.
  beside = runs.groupby(['sweep', 'arm'])[['task', 'under']].transform('first')
  runs[['task', 'under']] = runs[['task', 'under']].fillna(beside)
  return with_remarks(with_counted(runs))


def row_of(path: Path, run: Run | None, sweep: Sweep | None) -> dict[str, Any]:
  """What the table of runs says of a run; run: None if it has no metrics."""
  planned = sweep.runs.get(path.name) if sweep else None
  ended = sweep.ended.get(path.name) if sweep else None
  seed = SEED.search(path.name)
  row = {
    'run': str(path),
    'arm': (planned and planned.arm) or SEED.sub('', path.name) or 'all runs',
    'is_baseline': bool(sweep and planned and planned.arm == sweep.baseline),
    'seed': int(seed[1]) if seed else 0,
    'status': 'no metrics',
    'remark': '',
    'step': 0,
  }
  if run and run.config:
    data = {split: facts.fingerprint for split, facts in run.facts.data.items()}
    row['status'], row['remark'] = status_of(run)
    row |= {
      'seed': run.fields.get('seed', 0),
      'task': run.fields['objective'],
      'learned': TASKS[run.config.objective].card(run.config).trained_for.replace('`', ''),
      'judge': run.judge,
      'step': run.measured_step(),
      'parameters': run.facts.parameters,
      'flops': run.flops_before(run.measured_step()),
      'commit': run.facts.commit,
      'recipe': recipe(run),
      'data': json.dumps(data, sort_keys=True),
      'numbers': {(p.kind, p.step): p.values.get(run.judge) for p in run.evaluations},
    }
  if ended and ended.state == 'failed' and not lock.is_held(path):
    row |= {'status': 'failed', 'remark': ended.error}
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
  """The settings of a run that decide its result, but for the seed: equal in the runs of an arm."""
  fields = {name: x for name, x in run.fields.items() if name not in NOT_OF_ARMS}
  return without_seed(json.dumps(fields, sort_keys=True, default=str), run)


def without_seed(text: str, run: Run) -> str:
  """A text, such as the path of init_from, with {seed} in place of the seed of a run."""
  return re.sub(rf'\bseed={run.fields.get("seed")}\b', 'seed={seed}', text)


def with_counted(runs: pd.DataFrame) -> pd.DataFrame:
  """Marks copies, whose numbers are those of another run, and which runs stand in means: unfinished
  ones only if no run of a task ended."""
  key = ['task', 'arm', 'recipe', 'seed', 'data', 'commit']
  furthest = runs.sort_values('step', ascending=False, kind='stable')
  copies = []
  for _, alike in furthest.groupby(key):
    others = []
    for index, numbers in alike.numbers.items():
      if any(numbers.items() <= other.items() for other in others):
        copies.append(index)
      others.append(numbers)
  is_copy = runs.index.isin(copies)
  runs.loc[is_copy, 'status'] = 'copy'
  runs.loc[is_copy, 'remark'] = 'of another run of its arm: counted once'
  ended = runs.status.isin(COUNTED)
  none_ended = ~ended.groupby(runs.task).transform('any').fillna(True).astype(bool)
  runs['counts'] = ended | (none_ended & (runs.status == 'unfinished'))
  return runs


def with_remarks(runs: pd.DataFrame) -> pd.DataFrame:
  """Sets arms of several sweeps apart that are called alike and are not, and says in which fields
  and commits the runs of one arm differ."""
  for _, same in runs.groupby(['task', 'under', 'arm']):
    if same.sweep.nunique() > 1 and same.recipe.nunique() > 1:
      runs.loc[same.index, 'arm'] = same.arm + ' (' + same.sweep + ')'
  remarks = {}
  for _, same in runs[runs.counts].groupby(['task', 'under', 'arm']):
    usual = json.loads(same.recipe.mode()[0])
    for index, row in same.iterrows():
      odd = [row.remark] if row.remark else []
      here = json.loads(row.recipe)
      names = [name for name in here | usual if here.get(name) != usual.get(name)]
      if names:
        odd.append(f'differs from other runs of its arm in {", ".join(names)}')
      if same['commit'].nunique() > 1:
        odd.append(f'of commit {row["commit"][:12] or "unknown"}, others of its arm of another')
      remarks[index] = '; '.join(odd)
  runs['remark'] = pd.Series(remarks, dtype=object).reindex(runs.index).fillna(runs.remark)
  return runs


def under_of(runs: pd.DataFrame, found: Sequence[Run]) -> pd.Series:
  """What the values of each run depend on besides its weights, as a text; of an arm all that its
  runs depend on, such as the masks of their seeds. NaN without metrics."""
  each = {str(run.path): judged_under(run) for run in found}
  by_reading = collections.defaultdict(dict)
  for run in found:
    reading = repr([x for name, x in run.fields.items() if name in READING])
    by_reading[reading][str(run.path)] = run.facts.split('eval').fingerprint[:8]
  for fingerprints in by_reading.values():
    if len(set(fingerprints.values())) > 1:  # a file was changed between them
      for path, fingerprint in fingerprints.items():
        each[path]['rows'] = fingerprint
  texts = pd.Series(index=runs.index, dtype=object)
  for _, same in runs.groupby(['task', 'sweep', 'arm']):
    unders, parts = [each[path] for path in same.run], []
    for name in dict.fromkeys(name for under in unders for name in under):
      values = sorted({str(under.get(name, 'none')) for under in unders})
      parts.append(f'{name}={" or ".join(values)}')
    texts[same.index] = '; '.join(parts)
  return texts


def judged_under(run: Run) -> dict[str, Any]:
  """What the values of a run depend on besides its weights: a loss on rows and vocabulary, a score
  of labelled examples on the examples, which are known by what a guess scores on them."""
  data, under = run.facts.split('eval'), {}
  if run.config:
    under |= TASKS[run.config.objective].judged_under(run.config)
  if under:
    path = tokenizers.in_folder(run.path)
    vocabulary = hashlib.sha256(path.read_bytes()).hexdigest()[:8] if path else 'none'
    return under | {'rows': data.fingerprint[:8] or 'none', 'vocabulary': vocabulary}
  under['data.eval'] = run.fields['data.eval'] or run.fields['data.train']
  accuracy = {name: x for name, x in data.baselines.items() if name.endswith('accuracy')}
  for name, level in (accuracy or data.baselines).items():
    under[f'{name} of a {level.kind}'] = f'{level.value:.6g}'
  return under


# ---- Factors ------------------------------------------------------------------------------------


def factors(found: Sequence[Run]) -> pd.DataFrame:
  """The fields in which the runs of a task differ, except the seed, and those of the runs that they
  started from: index run, columns NAME and 'init_from: NAME', values as texts."""
  every = pd.DataFrame.from_dict({str(run.path): fields_of(run) for run in found}, orient='index')
  tasks = [run.fields['objective'] for run in found]
  return every.loc[:, every.groupby(tasks).nunique(dropna=False).max() > 1]


def fields_of(run: Run) -> dict[str, str]:
  """The fields of a run that may have an effect, and those of the run in init_from, as texts."""
  fields = {name: x for name, x in run.fields.items() if name not in NOT_OF_ARMS | {'eval.seed'}}
  if source := run.fields.get('init_from'):
    try:
      before = config_lib.flatten(contents.read_config(source))
      del fields['init_from']
      fields |= {f'init_from: {name}': x for name, x in before.items() if name not in NOT_OF_ARMS}
    except InputError:  # a released model
      pass
  return {name: without_seed(str(x), run) for name, x in fields.items()}
