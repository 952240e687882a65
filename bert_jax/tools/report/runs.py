"""The runs below some folders, as reports read them: from their workdirs alone."""

import contextlib
import hashlib
import json
import re
from pathlib import Path

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.errors import InputError, first_line
from bert_jax.run import evaluation, summary
from bert_jax.tasks import TASKS

MANY = 4  # fields in which runs may differ and still be named by them
# Fields that cannot change a run's result.
WITHOUT_EFFECT = (
  'mesh.',
  'log.',
  'profile',
  'max_hours',
  'checkpoint.every',
  'checkpoint.minutes',
  'checkpoint.keep_',
)
# What decides which rows a vocabulary makes of labelled examples begins with one of these.
OF_ROWS = (
  'objective',
  'data.',
  'task.',
  'table.',
  'tagging.',
  'qa.',
  'contrastive.',
  'translation.',
  'tokenizer.',
  'model.recurrent_length',
)
# Names of what an evaluation is of that are known by a checksum.
ROWS, VOCABULARY = CHECKSUMS = 'rows of data.eval', 'vocabulary'
SEED_FOLDER = re.compile(r'(?:^|,)seed=\d+$')  # how a sweep names the runs of an arm


def read(*folders):
  """(runs, remarks) of some folders. A run is {'path', 'config': {name: value}, 'main_metric',
  'lines': those of metrics.jsonl, 'by_length': that of scores.json, [{'tokens', 'examples', metric:
  score}], or [], 'data', 'costs' and 'commit': what run.json says of them,
  'evaluated_on': what decides its evaluation, with its data and, where a loss depends on it, its
  vocabulary}. remarks: sentences on what is left out and why. InputError if no
  run is there."""
  runs, remarks, configs = [], [], {}
  for folder in map(Path, folders):
    if not folder.is_dir():
      remarks.append(f'{folder} is no folder: left out')
    for path in sorted(folder.rglob('config.json')):
      configs.setdefault(path.resolve(), path)
    for path in sorted(folder.rglob('metrics.jsonl')):
      if not path.with_name('config.json').exists():
        remarks.append(f'{path.parent} has metrics.jsonl and no config.json: left out')
  for path in configs.values():
    if not path.with_name('metrics.jsonl').exists():
      if path.with_name('run.json').exists():
        remarks.append(f'{path.parent} has written no metrics yet: left out')
      continue
    try:
      run, damaged = _run(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
      remarks.append(f'{path.parent} is left out: {first_line(error)}')
      continue
    runs.append(run)
    if damaged:
      where = f'the first is line {damaged[0]}'
      name = f'{path.parent}/metrics.jsonl'
      remarks.append(f'{name}: lines that are damaged are left out, {len(damaged)}; {where}')
  if not runs:
    about = ''.join(f'\n  {x}' for x in remarks)
    raise InputError(f'no run with metrics lies below {" or ".join(map(str, folders))}.{about}')
  tell_changed_data_apart(runs)
  return runs, remarks


def _run(path):
  """(the run of a config.json, numbers of the lines of its metrics.jsonl that are damaged)"""
  config = config_lib.from_json(path.read_text())
  facts = json.loads(path.with_name('run.json').read_text())
  lines, damaged = [], []
  for number, text in enumerate(path.with_name('metrics.jsonl').read_text().splitlines(), 1):
    try:
      line = json.loads(text)
      line['step'] + 0, line['split']  # else it is none
      lines.append(line)
    except (ValueError, TypeError, KeyError):
      damaged.append(number)
  task, data = TASKS[config.objective], facts['data']
  run = {'path': path.parent, 'config': config_lib.flatten(config), 'lines': lines, 'data': data}
  run['main_metric'], run['by_length'] = task.main_metric(config), _by_length(path.parent, run)
  judged = task.judged_under(config)
  run['config'] |= {name: x for name, x in judged.items() if name in run['config']}
  if judged:
    judged[ROWS] = data.get('eval', {}).get('fingerprint', 'nothing')
  # A loss depends on the rows and the vocabulary, a score of labelled examples on these alone.
  examples = {'data.eval': config.data.eval or config.data.train}
  levels = data.get('eval', {}).get('baselines', {})
  # Other scores of the commonest answer follow from its accuracy; earlier versions lack them.
  examples |= {
    f'{name} of a {kind}': level
    for name, (level, kind) in levels.items()
    if kind in ('unigram', 'uniform') or name.endswith('accuracy')
  }
  run['evaluated_on'] = judged | {VOCABULARY: _vocabulary(path.parent)} if judged else examples
  return run | {'costs': facts.get('costs', {}), 'commit': facts.get('commit', '')}, damaged


def tell_changed_data_apart(runs):
  """Adds to what runs of labelled examples were evaluated on the fingerprint of its rows, where it
  is another one than that of a run which should have the same rows: the file was changed between
  them. (Another vocabulary, or another length, makes other rows of the same examples.)"""
  alike = {}  # {what decides the rows: runs}
  for run in (run for run in runs if VOCABULARY not in run['evaluated_on']):
    fields = [(name, x) for name, x in run['config'].items() if name.startswith(OF_ROWS)]
    alike.setdefault(repr((fields, _vocabulary(run['path']))), []).append(run)
  for some in alike.values():
    rows = [run['data'].get('eval', {}).get('fingerprint', 'none') for run in some]
    if len(set(rows)) > 1:
      for run, fingerprint in zip(some, rows):
        run['evaluated_on'][ROWS] = fingerprint


def _by_length(folder, run):
  """The scores by length of a run's last evaluation; [] of pre-training and of earlier versions."""
  steps = [line['step'] for line in run['lines'] if line['split'] == 'eval'] or [0]
  where = evaluation.folder_of(folder, run['config'].get('data.eval', ''), steps[-1])
  with contextlib.suppress(OSError, ValueError):
    return json.loads((where / 'scores.json').read_text()).get('by_length', [])
  return []


def _vocabulary(folder):
  """A hash of the vocabulary of a run, or 'none'."""
  path = tokenizers.in_folder(folder)
  return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path else 'none'


def without_copies(runs):
  """(the runs, each once, {path of a copy: path of the run}): of runs with the same config, seed,
  data and commit of the code the one that got furthest counts."""
  kept, copies = {}, {}
  for run in sorted(runs, key=lambda run: -max((x['step'] for x in run['lines']), default=0)):
    fields = {k: v for k, v in run['config'].items() if not k.startswith(WITHOUT_EFFECT)}
    data = {split: facts.get('fingerprint') for split, facts in run['data'].items()}
    key = repr((sorted(fields.items()), sorted(data.items()), run['commit']))
    first = kept.setdefault(key, run)
    if first is not run:
      copies[run['path']] = first['path']
  return [run for run in runs if run['path'] not in copies], copies


def metric_of(run, metric=''):
  """The metric a run is judged by: the one given, its best_metric, or its task's main metric."""
  return metric or run['config']['checkpoint.best_metric'] or run['main_metric']


def counted(run):
  """The line of the evaluation whose values count, the last one, or of a run that may stop early
  the best by its checkpoint.best_metric; {} if there is none."""
  evals, config = [line for line in run['lines'] if line['split'] == 'eval'], run['config']
  judge = config['checkpoint.best_metric']
  numbers = [line for line in evals if line.get(judge) is not None]  # null is NaN
  if config['eval.patience'] and numbers:
    best = {'max': max, 'min': min}[config['checkpoint.best_mode']]
    return best(numbers, key=lambda line: line[judge])
  return evals[-1] if evals else {}


def final(run, metric):
  """The value of a metric in the evaluation that counts; None if there is none, or no number."""
  return counted(run).get(metric)


def last_step(run):
  """The last step that a run's metrics or checkpoints are of."""
  saved = [int(path.name) for path in run['path'].glob('checkpoints/*') if path.name.isdecimal()]
  return max([*saved, *(line['step'] for line in run['lines'])], default=0)


def costs(run):
  """(parameters, operations of the training), as texts; runs of earlier versions do not say."""
  if not run['costs']:
    return '-', '-'
  steps = max((line['step'] for line in run['lines']), default=0)
  return f'{run["costs"]["parameters"]:,}', f'{run["costs"]["flops_per_step"] * steps:.3g}'


def collapsed(run):
  """Whether the answers of the evaluation that counts are the same for every example."""
  return 'constant' in counted(run)


def value_of(run, name):
  """The value of a field; of a path that names the run's own seed, as that of the run it starts
  from may, with {seed} in its place, so that it is the same for all seeds."""
  value, seed = run['config'].get(name), run['config'].get('seed')
  return re.sub(rf'\bseed={seed}\b', 'seed={seed}', value) if isinstance(value, str) else value


def groups(runs):
  """{(objective, the fields that vary between its runs): [runs that differ only in the seed]}"""
  out = {}
  for objective in sorted({run['config']['objective'] for run in runs}):
    of_objective = [run for run in runs if run['config']['objective'] == objective]
    varied = [
      name
      for name in of_objective[0]['config']
      if name not in ('seed', 'eval.seed')
      and not name.startswith(WITHOUT_EFFECT)
      and len({str(value_of(run, name)) for run in of_objective}) > 1
    ]
    by_text = {}
    for run in of_objective:
      values = ((name, value_of(run, name)) for name in varied)
      text = ', '.join(f'{name}={"none" if value == "" else value}' for name, value in values)
      by_text.setdefault(text, []).append(run)
    if len(varied) > MANY:
      by_text = by_folder(by_text)
    out |= {(objective, text): members for text, members in by_text.items()}
  return out


def by_folder(by_text):
  """The same groups {text: runs}, called by their runs' folders if those differ in seeds alone."""
  names = {
    text: {re.sub(r',?seed=\d+$', '', run['path'].name) for run in members}
    for text, members in by_text.items()
  }
  if len(set.union(*names.values())) == sum(map(len, names.values())) == len(names):
    return {name: by_text[text] for text, (name,) in names.items()}
  return by_text


def unfinished(run, runs):
  """Did a run end before its last step? Its summary.json says it. Runs of earlier versions have
  none: where `epochs` decides, the furthest of `runs`, which differ from it in the seed, says which
  step is the last, and a run may also stop early."""
  state = summary.state_of(run['path'])
  if state:
    return state not in summary.ENDED
  last = lambda run: max((line['step'] for line in run['lines']), default=0)
  if run['config'].get('eval.patience'):
    return False
  return last(run) < (run['config'].get('steps') or max(map(last, runs)))
