"""Reports the results of all runs in a folder: a table, and their curves as a picture.

    python -m bert_jax.tools.report runs/quickstart [FOLDER ...] [--picture P.png] [--metric nsp]

Runs that differ in nothing but the seed are one line: mean ± standard deviation over the seeds, and
a 95 % interval of that mean (from 3 seeds on). Runs that differ in many fields go by the name of
their folder. FLOPs are those of the training, matrix products only. Copies of a run, of the same
config, seed and data, count once. A run that collapsed, one that predicts the same for every
example, is named, and a second line gives the mean without it. Runs that were evaluated on other
rows, or under other masks, are named too, since their losses cannot be compared. --svm adds, to
classification, the scores of TF-IDF and a linear support vector machine on the same examples.
Scores of a task are shown by the length of its texts too, in a second table and a second row of
panels.
"""

import json
import logging
import re
import statistics
from pathlib import Path

import numpy as np

from bert_jax import config as config_lib
from bert_jax import tokenizers, workdirs
from bert_jax.errors import InputError
from bert_jax.tasks import TASKS
from bert_jax.tasks.classification import linear
from bert_jax.tools import arguments, report_lengths

MANY = 4  # fields in which runs may differ and still be named by them
FEW = 10  # runs, of which a bootstrap would give too narrow an interval
SHOWN = 4  # kinds of evaluation that are named where runs differ in it
# Fields that cannot change a run's result.
WITHOUT_EFFECT = ('mesh.', 'log.', 'checkpoint.every', 'checkpoint.keep_')


def read(*folders):
  """The runs below some folders: [{'path', 'config': {name: value}, 'main_metric', 'lines': those
  of metrics.jsonl, 'data', 'costs': what run.json says of them, 'judged': what decides its
  evaluation}]."""
  runs = []
  paths = (path for folder in folders for path in sorted(Path(folder).rglob('config.json')))
  for path in {path.resolve(): path for path in paths}.values():
    metrics = path.with_name('metrics.jsonl')
    if not metrics.exists():
      continue
    try:
      config = config_lib.from_json(path.read_text())
      facts = json.loads(path.with_name('run.json').read_text())
      lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    except (OSError, ValueError) as error:
      logging.getLogger('bert_jax').warning('%s is left out: %s', path.parent, error)
      continue
    run = {'path': path.parent, 'config': config_lib.flatten(config), 'lines': lines}
    run['main_metric'] = TASKS[config.objective].main_metric(config)
    judged = TASKS[config.objective].judged_under(config)
    run['config'] |= {name: x for name, x in judged.items() if name in run['config']}
    if judged:
      judged['data.eval'] = facts['data'].get('eval', {}).get('fingerprint', 'nothing')
    runs.append(run | {'data': facts['data'], 'costs': facts.get('costs', {}), 'judged': judged})
  if not runs:
    raise InputError(f'no run with metrics lies below {" or ".join(map(str, folders))}.')
  return runs


def without_copies(runs):
  """(the runs, each once, {path of a copy: path of the run}): of runs with the same config, seed
  and data the one that got furthest counts."""
  kept, copies = {}, {}
  for run in sorted(runs, key=lambda run: -max((x['step'] for x in run['lines']), default=0)):
    fields = {k: v for k, v in run['config'].items() if not k.startswith(WITHOUT_EFFECT)}
    data = {split: facts.get('fingerprint') for split, facts in run['data'].items()}
    first = kept.setdefault(repr((sorted(fields.items()), sorted(data.items()))), run)
    if first is not run:
      copies[run['path']] = first['path']
  return [run for run in runs if run['path'] not in copies], copies


def judged_otherwise(runs):
  """Lines that name the runs whose evaluations cannot be compared, and in what they differ."""
  lines = []
  for objective in sorted({run['config']['objective'] for run in runs}):
    judged = {}  # {what decides the evaluation: [paths]}
    for run in runs:
      if run['config']['objective'] == objective:
        judged.setdefault(tuple(run['judged'].items()), []).append(str(run['path']))
    if len(judged) > 1:
      names = [name for name, _ in next(iter(judged))]
      differ = [name for name in names if len({dict(x)[name] for x in judged}) > 1]
      lines.append(
        f'{objective}: evaluated on other rows or under other masks, so not comparable: '
        + '; '.join(
          f'{", ".join(f"{name}={dict(x)[name]}" for name in differ)} in {paths[0]}'
          + f' and {len(paths) - 1} more' * (len(paths) > 1)
          for x, paths in list(judged.items())[:SHOWN]
        )
        + f'; and {len(judged) - SHOWN} more' * (len(judged) > SHOWN)
        + ' (bert_jax.evaluate with the same --config.eval.seed, --config.eval_masking.* and '
        'data.eval makes them so)'
      )
  return lines


def metric_of(run, metric=''):
  """The metric a run is judged by: the one given, its best_metric, or its task's main metric."""
  return metric or run['config']['checkpoint.best_metric'] or run['main_metric']


def final(run, metric):
  """The last evaluated value of a metric, or None; of a run that may stop early the best one."""
  evals = [line for line in run['lines'] if line['split'] == 'eval']
  values = [line[metric] for line in evals if line.get(metric) is not None]  # null is NaN
  config = run['config']
  if values and config['eval.patience'] and metric == config['checkpoint.best_metric']:
    return {'max': max, 'min': min}[config['checkpoint.best_mode']](values)
  return values[-1] if values else None


def costs(run):
  """(parameters, operations of the training), as texts; runs of earlier versions do not say."""
  if not run['costs']:
    return '-', '-'
  steps = max((line['step'] for line in run['lines']), default=0)
  return f'{run["costs"]["parameters"]:,}', f'{run["costs"]["flops_per_step"] * steps:.3g}'


def collapsed(run):
  """Whether the answers of the run's last evaluation are the same for every example."""
  evals = [line for line in run['lines'] if line['split'] == 'eval']
  return bool(evals) and 'constant' in evals[-1]


def interval(values):
  """The 95 % interval of the mean: percentiles of 10,000 bootstrap resamples with a fixed seed; of
  few values, among which resamples stay, Student's t instead, as if they were normal."""
  if len(values) < FEW:
    from scipy.stats import t  # slow to import

    n, mean = len(values), statistics.mean(values)
    half = t.ppf(0.975, n - 1) * statistics.stdev(values) / n**0.5
    return mean - half, mean + half
  drawn = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(axis=1)
  return np.percentile(drawn, [2.5, 97.5])


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
      and len({str(run['config'].get(name)) for run in of_objective}) > 1
    ]
    by_text = {}
    for run in of_objective:
      values = ((name, run['config'].get(name)) for name in varied)
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


def svms(runs):
  """A run of TF-IDF and a linear SVM for each data that classifiers among the runs learn from."""
  out = {}
  for run in runs:
    names = ('data.train', 'data.eval', 'task.train_examples')
    fields = {k: v for k, v in run['config'].items() if k in names or k.startswith('table.')}
    key, objective = repr(fields), run['config']['objective']
    if objective != 'classification' or key in out or 'eval' not in run['data']:
      continue
    config, tokenizer = workdirs.read_config(run['path']), tokenizers.load_folder(run['path'])
    sources = TASKS['classification'].sources(config, tokenizer)
    line = {'step': 0, 'split': 'eval'} | linear.scores(config, sources['train'], sources['eval'])
    fields |= {'objective': 'TF-IDF + linear SVM', 'checkpoint.best_metric': '', 'eval.patience': 0}
    out[key] = run | {'config': fields, 'lines': [line], 'costs': {}}
  return list(out.values())


def table(runs, metric='', svm=False):
  """The text of the table: a line for each group of runs, then the collapsed runs. svm: with lines
  for TF-IDF and a linear SVM."""
  runs, copies = without_copies(runs)
  rows = [(
    'objective', 'runs that differ in', 'seeds', 'metric', 'mean ± sd', '95 %', 'baseline',
    'against it', 'parameters', 'FLOPs',
  )]  # fmt: skip
  shown = list(groups(runs + (svms(runs) if svm else [])).items())
  shown += [
    ((objective, f'{text or "-"}, without collapsed runs'), sound)
    for (objective, text), members in shown
    if 0 < len(sound := [run for run in members if not collapsed(run)]) < len(members)
  ]
  for (objective, text), members in shown:
    name = metric_of(members[0], metric)
    values = [v for run in members if (v := final(run, name)) is not None]
    if not values:
      continue
    spread = f' ± {statistics.stdev(values):.4f}' if len(values) > 1 else ''
    level = members[0]['data'].get('eval', {}).get('baselines', {}).get(name)
    rows.append((
      objective, text or '-', str(len(values)), name, f'{statistics.mean(values):.4f}{spread}',
      '{:.4f} to {:.4f}'.format(*interval(values)) if len(values) > 2 else '-',
      f'{level[0]:.4f} ({level[1]})' if level else '-',
      f'{statistics.mean(values) - level[0]:+.4f}' if level else '-', *costs(members[0]),
    ))  # fmt: skip
  if len(rows) == 1:
    names = sorted({name for run in runs for line in run['lines'] for name in line})
    raise InputError(f'no run has an evaluated {metric or "metric"}; there are {", ".join(names)}.')
  lines = [f'collapsed, one answer for every example: {x["path"]}' for x in runs if collapsed(x)]
  lines += [
    f'{copy} is a copy of {run} (same config, seed and data): counted once'
    for copy, run in copies.items()
  ]
  lines += judged_otherwise(runs)
  lines += report_lengths.lines(
    [(objective, text, metric_of(x[0], metric), x) for (objective, text), x in shown]
  )
  return '\n'.join(arguments.aligned(rows) + lines)


def picture(runs, path, metric=''):
  """Draws the curves of all runs: a panel for each objective, a colour for each group of seeds."""
  from matplotlib.figure import Figure

  by_group = groups(runs)
  objectives = list(dict.fromkeys(objective for objective, _ in by_group))
  has_lengths = any(map(report_lengths.table_of, runs))
  figure = Figure(figsize=(6 * len(objectives), 4.2 * (1 + has_lengths)))
  axes = figure.subplots(1 + has_lengths, len(objectives), squeeze=False)
  for column, objective in enumerate(objectives):
    axis = axes[0, column]
    panel = {text: members for (o, text), members in by_group.items() if o == objective}
    for i, (text, members) in enumerate(panel.items()):
      name = metric_of(members[0], metric)
      for j, run in enumerate(members):
        for split, style in (('train', '-'), ('eval', 'o--')):
          points = [(x['step'], x[name]) for x in run['lines'] if x['split'] == split and name in x]
          label = f'{split} {text}'.strip() if j == 0 else None
          look = dict(color=f'C{i}', markersize=4, alpha=0.5 if split == 'train' else 1.0)
          axis.plot(*zip(*points or [(0, float('nan'))]), style, label=label, **look)
      splits = members[0]['data']
      level = splits.get('eval', splits['train'])['baselines'].get(name)
      if level and i == 0:
        axis.axhline(level[0], color='gray', linestyle=':', label=level[1])
    axis.set(title=objective, xlabel='step', ylabel=name)
    axis.legend(fontsize=7)
    if has_lengths:
      of_lengths = [(text or '-', metric_of(x[0], metric), x) for text, x in panel.items()]
      report_lengths.draw(axes[1, column], of_lengths)
  figure.tight_layout()
  try:
    figure.savefig(path, dpi=120)
  except (OSError, ValueError) as error:
    raise InputError(f'--picture {path} cannot be written: {error}.') from None


def main(argv=None):
  parser = arguments.parser('report', __doc__)
  parser.add_argument('folder', nargs='+', help='workdir, or a folder of workdirs')
  parser.add_argument('--metric', default='', help='default: what the objective is judged by')
  parser.add_argument('--svm', action='store_true', help='TF-IDF + linear SVM beside classifiers')
  parser.add_argument('--picture', default='', metavar='PNG', help='draw the curves into this file')
  args = parser.parse_args(argv)
  with config_lib.command_line():
    runs = read(*args.folder)
    print(table(runs, args.metric, args.svm))
    if args.picture:
      picture(without_copies(runs)[0], args.picture, args.metric)
      print(f'curves: {args.picture}')


if __name__ == '__main__':
  main()
