"""GLUE as a whole: the scores of runs on dev, their average, and the files the leaderboard takes.

    python -m bert_jax.tools.glue --data $GLUE --out SUBMISSION \
        --run CoLA=W1 --run SST-2=W2 --run MNLI=W3 ...

$GLUE holds the folders of the published archive. A task's score is the mean of its metrics, MNLI's
that of its two sets; the average is over the tasks given, each counting once, as on the leaderboard
(Wang et al. 2018, https://gluebenchmark.com). Test predictions are written where a test file is
there: zip the .tsv files of SUBMISSION; the leaderboard wants all nine and AX, the diagnostics.
"""

import logging
import shutil
from pathlib import Path

from bert_jax import evaluate
from bert_jax.command_line import command_line
from bert_jax.errors import InputError
from bert_jax.tools import arguments
from bert_jax.workdir import contents

# {task: (its metrics, its sets)}; a set is {suffix of its name: suffix of its files}.
ACCURACY, ONE = ('classification_accuracy',), {'': ''}
NAMES = ('CoLA', 'SST-2', 'MRPC', 'STS-B', 'QQP', 'MNLI', 'QNLI', 'RTE', 'WNLI')
TASKS = dict.fromkeys(NAMES, (ACCURACY, ONE)) | {
  'CoLA': (('matthews',), ONE),
  'MRPC': (('f1', *ACCURACY), ONE),
  'STS-B': (('pearson', 'spearman'), ONE),
  'QQP': (('f1', *ACCURACY), ONE),
  'MNLI': (ACCURACY, {'-m': '_matched', '-mm': '_mismatched'}),
}


def score(name, results):
  """The score of a task: the mean over its sets of the mean of its metrics."""
  names = TASKS[name][0]
  return sum(sum(r[metric] for metric in names) / len(names) for r in results) / len(results)


def glue(runs, data, out, which='latest'):
  """{task: ({set: {metric: value}}, score)} of {task: workdir}; writes the test predictions."""
  data, out, scored = Path(data).expanduser(), Path(out).expanduser(), {}

  def sets(name, split):
    files = TASKS[name][1].items()
    return [(name + end, str(data / name / f'{split}{file}.tsv')) for end, file in files]

  for name, workdir in runs.items():
    config = contents.read_config(workdir)
    regression = config.table.regression if config.objective == 'classification' else None
    if regression != (name == 'STS-B'):
      raise InputError(f'{workdir} is no run of {name}; give --run {name}= the one that is.')
    if missing := [file for _, file in sets(name, 'dev') if not Path(file).is_file()]:
      raise InputError(f'{missing[0]} is missing; --data is the folder of GLUE.')
  for name, workdir in runs.items():
    dev = evaluate.evaluate_on(workdir, sets(name, 'dev'), (), which, out / 'dev')
    results = {x.name: x.metrics for x in dev}
    scored[name] = results, score(name, list(results.values()))
    test = sets(name, 'test')
    if name == 'MNLI':
      test.append(('AX', str(data / 'diagnostic' / 'diagnostic.tsv')))
    if present := [(key, spec) for key, spec in test if Path(spec).is_file()]:
      for x in evaluate.evaluate_on(workdir, present, (), which, out / 'test'):
        shutil.copy(out / 'test' / x.name / 'predictions.tsv', out / f'{x.name}.tsv')
    for key, spec in test:
      said = f'{key}.tsv' if (key, spec) in present else f'no test file {spec}'
      logging.getLogger('bert_jax').info('%s: %s', name, said)
  return scored


def table(scored):
  """The text of the result of `glue`: a line for each task, and the average."""
  lines = []
  for name, (results, value) in scored.items():
    sets = []
    for key, result in results.items():
      sets.append(' '.join([key, *(f'{m} {100 * result[m]:.2f}' for m in TASKS[name][0])]))
    lines.append(f'{name:8}{100 * value:6.2f}   {"  ".join(sets)}')
  average = sum(value for _, value in scored.values()) / len(scored)
  lines.append(f'average {100 * average:6.2f}   of {len(scored)} of {len(TASKS)} tasks')
  return '\n'.join(lines)


def main(argv=None):
  parser = arguments.parser('glue', __doc__)
  add = parser.add_argument
  add('--run', action='append', required=True, metavar='TASK=WORKDIR', help='one for each task')
  add('--data', required=True, help='folder of the GLUE archive')
  add('--out', required=True, help='folder for answers and leaderboard files')
  add('--checkpoint', default='latest', help='latest, best or a step')
  args = parser.parse_args(argv)
  with command_line():
    runs = dict(run.partition('=')[::2] for run in args.run)
    for name, workdir in runs.items():
      if name not in TASKS or not workdir:
        raise InputError(f'--run {name} is not TASK=WORKDIR with one of {", ".join(TASKS)}.')
    print(table(glue(runs, args.data, args.out, args.checkpoint)))


if __name__ == '__main__':
  main()
