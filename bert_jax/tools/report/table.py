"""The long table of a report: a pandas DataFrame with a row for each value that runs recorded.

| column | |
|---|---|
| run, sweep, arm, seed, task | workdir; folder above; name in the sweep's plan; ..; objective |
| under | what the value depends on besides the weights: rows, masks, vocabulary |
| step, tokens, flops | how far the training was |
| kind | train; eval: the same rows at each step; whole: all rows; probe: tools.probe; length |
| metric, value | NaN: it was not finite |
| status | finished, collapsed or no number; in no mean: unfinished, copy, failed |
| final | whether the value stands in the mean of its arm |
| level, level_kind | what a guess scores on the rows of this very value; unigram, majority, .. |
| examples, length | how many examples a score counts; kind length: the tokens of their texts |
| answers | of final values: the folder with the answers to the examples |
"""

import collections
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bert_jax import config as config_lib
from bert_jax import files, tokenizers
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.metrics import Level, own_levels
from bert_jax.tasks import TASKS
from bert_jax.workdir import contents, lock, records
from bert_jax.workdir.recorded import Point, Run, Sweep

COLUMNS = ['run', 'sweep', 'arm', 'seed', 'task', 'under', 'status', 'step', 'tokens', 'flops']
COLUMNS += [
  'kind',
  'metric',
  'value',
  'final',
  'level',
  'level_kind',
  'examples',
  'length',
  'answers',
]
# Fields that cannot change the result of a run.
WITHOUT_EFFECT = {name for name, field in config_lib.ALL.items() if field.affects == {'free'}}
# Fields that decide which rows and which vocabulary a run reads.
READING = config_lib.fields_affecting('rows', 'vocabulary')
# Fields in which the runs of an arm may differ; a prior is filled in from the training rows.
NOT_OF_ARMS = WITHOUT_EFFECT | {'seed'} | {task.prior for task in TASKS.values()}
COUNTED = 'finished', 'collapsed', 'no number'  # the status of runs that stand in means
SEED = re.compile(r',?seed=(\d+)$')  # how a sweep ends the name of a run's folder
NO_SCORES = 'constant', 'masked'  # values of an evaluation that are not scores


class Results(NamedTuple):
  """What runs recorded."""

  values: pd.DataFrame  # the long table
  runs: pd.DataFrame  # a row for each run, also for those that were only planned, see _row
  factors: pd.DataFrame  # index run: the fields in which runs differ, see factors
  remarks: list[str]  # what could not be read


def long(*folders: Path | str) -> pd.DataFrame:
  """The long table of all runs below some folders."""
  return results(*folders).values


def results(*folders: Path | str, renamed: Mapping[str, str] | None = None) -> Results:
  """The Results of all runs below some folders. renamed: {an arm or a sweep: its new name}."""
  found, remarks = records.below(*folders)
  rows, names = [], collections.Counter(path.name for path in {run.path.parent for run in found})
  for folder in dict.fromkeys(run.path.parent for run in found):
    here = {run.path.name: run for run in found if run.path.parent == folder}
    sweep = records.read_sweep(folder)
    remarks += sweep.faults if sweep else []
    called = folder.name if names[folder.name] == 1 else str(folder)
    for name in dict.fromkeys([*(sweep.runs if sweep else ()), *here]):
      rows.append(_row(folder / name, here.get(name), sweep) | {'sweep': called})
  runs = _renamed(pd.DataFrame(rows), renamed or {})
  runs['under'] = _under(runs, found)
  # Runs without metrics stand beside the others of their arm.
  beside = runs.groupby(['sweep', 'arm'])[['task', 'under']].transform('first')
  runs[['task', 'under']] = runs[['task', 'under']].fillna(beside)
  runs = _remarked(_counted(runs))
  return Results(_values(found, runs, remarks), runs, factors(found), remarks)


# ---- Runs ---------------------------------------------------------------------------------------


def _row(path: Path, run: Run | None, sweep: Sweep | None) -> dict[str, Any]:
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
    row['status'], row['remark'] = _status(run)
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
    }
  if ended and ended.state == 'failed' and not lock.is_held(path):
    row |= {'status': 'failed', 'remark': ended.error}
  return row


def _status(run: Run) -> tuple[str, str]:
  """(how a run ended, more about it)."""
  steps = run.fields.get('steps') or 0
  has_ended = run.summary.has_ended if run.summary.state else run.measured_step() >= steps
  if not has_ended:
    return 'unfinished', f'at step {run.last_step()} of {steps or "its epochs"}'
  if run.collapsed():
    return 'collapsed', 'one answer for every example'
  if run.final(run.judge) is None and any(run.judge in p.values for p in run.evaluations):
    return 'no number', f'its last {run.judge} is not finite'
  before = [str(part['steps']) for part in run.facts.earlier if 'steps' in part]
  if before:
    return 'finished', f'had {", ".join(before)} steps at first, and learning rates for these'
  return 'finished', ''


def recipe(run: Run) -> str:
  """The settings of a run that decide its result, but for the seed: equal in the runs of an arm."""
  fields = {name: x for name, x in run.fields.items() if name not in NOT_OF_ARMS}
  return _without_seed(json.dumps(fields, sort_keys=True, default=str), run)


def _without_seed(text: str, run: Run) -> str:
  """A text, such as the path of init_from, with {seed} in place of the seed of a run."""
  return re.sub(rf'\bseed={run.fields.get("seed")}\b', 'seed={seed}', text)


def _renamed(runs: pd.DataFrame, renamed: Mapping[str, str]) -> pd.DataFrame:
  """Renames arms and sweeps. `was`: the names of arms before; seeds of one may come together."""
  runs['was'] = runs.arm
  runs[['arm', 'sweep']] = runs[['arm', 'sweep']].replace(dict(renamed))
  for _, same in runs.groupby(['sweep', 'arm']):
    if same.was.nunique() > 1 and same.recipe.nunique() > 1:
      was = ' and '.join(same.was.unique())
      raise InputError(f'two arms are called {same.arm.iloc[0]}, {was}; give --label another name.')
  return runs


def _counted(runs: pd.DataFrame) -> pd.DataFrame:
  """Marks copies, and which runs stand in means: unfinished ones only if no run of a task ended."""
  key = ['task', 'arm', 'recipe', 'seed', 'data', 'commit']
  furthest = runs.sort_values('step', ascending=False, kind='stable')
  copies = furthest[furthest.duplicated(key) & furthest.recipe.notna()].index
  runs.loc[copies, 'status'] = 'copy'
  runs.loc[copies, 'remark'] = 'of another run of its arm: counted once'
  ended = runs.status.isin(COUNTED)
  none_ended = ~ended.groupby(runs.task).transform('any').fillna(True).astype(bool)
  runs['counts'] = ended | (none_ended & (runs.status == 'unfinished'))
  return runs


def _remarked(runs: pd.DataFrame) -> pd.DataFrame:
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


# ---- What a value depends on --------------------------------------------------------------------


def _under(runs: pd.DataFrame, found: Sequence[Run]) -> pd.Series:
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
    under |= TASKS[run.config.objective].judge(run.config).under
  if under:
    path = tokenizers.in_folder(run.path)
    vocabulary = hashlib.sha256(path.read_bytes()).hexdigest()[:8] if path else 'none'
    return under | {'rows': data.fingerprint[:8] or 'none', 'vocabulary': vocabulary}
  under['data.eval'] = run.fields['data.eval'] or run.fields['data.train']
  accuracy = {name: x for name, x in data.baselines.items() if name.endswith('accuracy')}
  for name, level in (accuracy or data.baselines).items():
    under[f'{name} of a {level.kind}'] = f'{level.value:.6g}'
  return under


# ---- Values -------------------------------------------------------------------------------------


def _values(found: Sequence[Run], runs: pd.DataFrame, remarks: list[str]) -> pd.DataFrame:
  """The rows of the long table."""
  by_path, rows = {str(run.path): run for run in found}, []
  probes = _probes(found, remarks)
  for known in runs[runs.run.isin(by_path)].to_dict('records'):
    run = by_path[known['run']]
    about = {name: known[name] for name in COLUMNS[:7]}
    for row in (*_of_points(run, probes.get(run.path, {})), *_by_length(run)):
      rows.append(about | row | {'final': row['final'] and known['counts']})
  return pd.DataFrame(rows, columns=COLUMNS)


def _of_points(run: Run, probes: Mapping[int, Mapping[str, float]]) -> Iterator[dict[str, Any]]:
  """The rows of the evaluations and of the lines of training of a run."""
  seen = {0: 0.0}
  for point in run.training:
    seen[point.step] = point.values.get('seen_tokens') or np.nan
  counted, sizes = run.counted(), examples(run)
  evaluated = contents.evaluated_on(run.fields.get('data.train', ''), run.fields['data.eval'])
  for point in run.points:
    at: dict[str, Any] = {'step': point.step, 'final': point is counted}
    at['flops'] = run.flops_before(point.step)
    at['tokens'] = np.interp(point.step, list(seen), list(seen.values()), right=np.nan)
    if point is counted:
      at['answers'] = str(contents.answers_folder(run.path, evaluated, point.step))
    levels, own = _levels(run, point), own_levels(point.values)
    no_scores = {*NO_SCORES, *(f'{name}_{level.kind}' for name, level in own.items())}
    for name, value in point.values.items():
      if name not in no_scores and '_below_' not in name:
        level = levels.get(name, Level(np.nan, ''))
        row = {'kind': point.kind, 'metric': name, 'value': np.nan if value is None else value}
        row |= {'level': level.value, 'level_kind': level.kind, 'examples': sizes[name]}
        yield at | row
    if point.kind != 'train':
      for name, value in probes.get(point.step, {}).items():
        yield at | {'kind': 'probe', 'metric': name, 'value': value, 'examples': 0}


def _levels(run: Run, point: Point) -> dict[str, Level]:
  """What a guess scores on the rows of an evaluation: of a part of them it is another number."""
  split = run.facts.split('eval')
  read = run.fields.get('eval.batches', 0) * run.fields.get('batch_size', 0)
  is_part = point.kind == 'eval' and 0 < read < split.rows
  return {**(split.part if is_part else split.baselines), **own_levels(point.values)}


def examples(run: Run) -> collections.Counter[str]:
  """{score: how many examples it counts}, as far as recorded; a loss counts none."""
  sizes = collections.Counter()
  for count, scores in run.lengths.values():
    sizes.update(dict.fromkeys(scores, count))
  return sizes


def _by_length(run: Run) -> Iterator[dict[str, Any]]:
  """The rows of the last evaluation's scores by the length of the texts."""
  for tokens, (count, scores) in run.lengths.items():
    for name, score in scores.items():
      if score is not None:
        row = {'kind': 'length', 'length': tokens, 'metric': name, 'value': score}
        yield row | {'step': run.evaluations[-1].step, 'examples': count, 'final': False}


def _probes(found: Sequence[Run], remarks: list[str]) -> dict[Path, dict[int, dict[str, float]]]:
  """{workdir: {step: what tools.probe found}}. Runs that were probed on other data than most runs
  beside them are left out, which is added to `remarks`."""
  probes, data = {}, {}
  for run in found:
    for step in {point.step for point in run.evaluations}:
      path = run.path / 'probe' / f'{step}.json'
      if files.exists(path):
        try:
          content = contents.read_sealed(path)
        except InputError as error:
          remarks.append(f'{error}: left out')
          continue
        data[run.path] = content.get('settings', {}).get('data', 0)
        probes.setdefault(run.path, {})[step] = _of_probe(content)
  for path in list(probes):
    beside = collections.Counter(data[other] for other in data if other.parent == path.parent)
    if data[path] != beside.most_common(1)[0][0]:
      del probes[path]
      remarks.append(f'{path} was probed on other data than most runs beside it: left out')
  return probes


def _of_probe(content: Mapping[str, Any]) -> dict[str, float]:
  """The scores in a file of tools.probe, as far as it has them."""
  pairs = content.get('pairs', {})
  out = {
    'probe_loss': content.get('losses', {}).get('all', {}).get('loss'),
    'probe_pairs_accuracy': pairs.get('accuracy'),
    'probe_tags_accuracy': max(content.get('layers', {}).get('accuracy', []), default=None),
  }
  if 'ties' in pairs:  # they count as wrong
    out['probe_pairs_ties'] = pairs['ties'] / max(1, pairs['pairs'])
  return {name: value for name, value in out.items() if value is not None}


# ---- Factors ------------------------------------------------------------------------------------


def factors(found: Sequence[Run]) -> pd.DataFrame:
  """The fields in which the runs of a task differ, except the seed, and those of the runs that they
  started from: index run, columns NAME and 'init_from: NAME', values as texts."""
  every = pd.DataFrame.from_dict({str(run.path): _fields(run) for run in found}, orient='index')
  tasks = [run.fields['objective'] for run in found]
  return every.loc[:, every.groupby(tasks).nunique(dropna=False).max() > 1]


def _fields(run: Run) -> dict[str, str]:
  """The fields of a run that may have an effect, and those of the run in init_from, as texts."""
  fields = {name: x for name, x in run.fields.items() if name not in NOT_OF_ARMS | {'eval.seed'}}
  if source := run.fields.get('init_from'):
    try:
      before = config_lib.flatten(contents.read_config(source))
      del fields['init_from']
      fields |= {f'init_from: {name}': x for name, x in before.items() if name not in NOT_OF_ARMS}
    except InputError:  # a released model
      pass
  return {name: _without_seed(str(x), run) for name, x in fields.items()}
