"""Reports the results of all runs in a folder: a table, pages and pictures.

    python -m bert_jax.tools.report S [FOLDER ...] [--baseline norm=layer_norm] [--metric nsp]

prints a table and writes S/report: report.html (one file, with its pictures), report.md, table.tex,
results.csv (a line for each run) and each picture as PDF, SVG and PNG; all from the workdirs alone.

Runs that differ in nothing but the seed are one line: mean ± standard deviation over the seeds, and
a 95 % interval of that mean (Student's t, from 3 seeds on). The pages also give the difference of
each arm to the baseline over the seeds that both have, with its interval and p value (paired
t-test), corrected for all comparisons of a table (Holm). Runs that differ in many fields go by the
name of their folder. FLOPs are those of the training, matrix products only. Copies of a run, of the
same config, seed and data, count once. A run that collapsed, one that predicts the same for every
example, is named, and a second line gives the mean without it. Runs that were evaluated on other
rows, or under other masks, are named too, since their losses cannot be compared. --svm adds, to
classification, the scores of TF-IDF and a linear support vector machine on the same examples.
Scores of a task are shown by the length of its texts too, in a second table and a second row of
panels.
"""

import logging
import statistics
from pathlib import Path

from bert_jax import config as config_lib
from bert_jax import tokenizers, workdirs
from bert_jax.errors import InputError
from bert_jax.rows import prepared_examples
from bert_jax.tasks import TASKS
from bert_jax.tasks.classification import linear
from bert_jax.tools import arguments, report_lengths, report_pages, report_panels, report_runs
from bert_jax.tools.report_runs import (
  collapsed,
  costs,
  final,
  groups,
  judged_otherwise,
  metric_of,
  without_copies,
)
from bert_jax.tools.report_statistics import interval

log = logging.getLogger('bert_jax')


def read(*folders):
  """The runs below some folders, see report_runs.read; what is left out is logged."""
  runs, remarks = report_runs.read(*folders)
  for remark in remarks:
    log.warning('%s', remark)
  return runs


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
    if prepared_examples.is_prepared(config.data.train):
      fault = f'data.train={config.data.train} is prepared, and a TF-IDF needs the texts'
      raise InputError(f'{fault}; leave out --svm.')
    sources = TASKS['classification'].sources(config, tokenizer)
    line = {'step': 0, 'split': 'eval'} | linear.scores(config, sources['train'], sources['eval'])
    fields |= {'objective': 'TF-IDF + linear SVM', 'checkpoint.best_metric': '', 'eval.patience': 0}
    out[key] = run | {'config': fields, 'lines': [line], 'by_length': [], 'costs': {}}
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
      '{:.4f} to {:.4f}'.format(*within) if (within := interval(values)) else '-',
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
  has_lengths = any(run['by_length'] for run in runs)
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
  add = parser.add_argument
  add('folder', nargs='+', help='workdir, or a folder of workdirs')
  add('--metric', default='', help='default: what the objective is judged by')
  add('--baseline', default='', metavar='LABEL|NAME=VALUE', help='the arm that others are compared '
      "to, by its label or by fields with ; between them; default: the sweep's")  # fmt: skip
  add('--out', default='', metavar='DIR', help='default: the folder report in the first folder')
  add('--title', default='', help='of the pages; default: the name of the first folder')
  add('--label', action='append', default=[], metavar='OLD=NEW', help='renames an arm')
  add('--svm', action='store_true', help='TF-IDF + linear SVM beside classifiers')
  add('--picture', default='', metavar='PNG', help='draw the curves of all runs into this file too')
  args = parser.parse_args(argv)
  with config_lib.command_line():
    runs, remarks = report_runs.read(*args.folder)
    print(table(runs, args.metric, args.svm))
    report = report_panels.report(
      runs, args.folder, args.metric, args.baseline, args.label, remarks
    )
    for remark in report.remarks:
      log.warning('%s', remark)
    out = Path(args.out or Path(args.folder[0]) / 'report')
    arguments.check_writable(out)
    written = report_pages.write(report, out, args.title or Path(args.folder[0]).resolve().name)
    log.info('written to %s: %s', out, ', '.join(written))
    if args.picture:
      picture(without_copies(runs)[0], args.picture, args.metric)
      print(f'curves: {args.picture}')


if __name__ == '__main__':
  main()
