"""GLUE as a whole: the scores of runs on dev, their average, and the files the leaderboard takes.

    python -m bert_jax.tools.glue --data $GLUE --out SUBMISSION \
        --run CoLA=W1 --run SST-2=W2 --run MNLI=W3 ...

$GLUE holds the folders of the published archive (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE,
WNLI). A task's score is the mean of its metrics, MNLI's that of its two sets; the average is over
the tasks given, each counting once, as on the leaderboard (Wang et al. 2018,
https://gluebenchmark.com). Test predictions are written where a test file is there: zip the .tsv
files of SUBMISSION to submit them; the leaderboard wants all nine tasks and AX, the diagnostics.
"""

import argparse
import logging
import shutil
from pathlib import Path

from bert_jax import config as config_lib
from bert_jax import evaluate, workdirs
from bert_jax.errors import InputError

log = logging.getLogger('bert_jax')

# name: (metrics, its labelled files, its test files and what the leaderboard calls them)
DEV, TEST = (('', 'dev.tsv'),), (('', 'test.tsv'),)
MATCHED = (('-m', 'dev_matched.tsv'), ('-mm', 'dev_mismatched.tsv'))
MATCHED_TEST = (('-m', 'test_matched.tsv'), ('-mm', 'test_mismatched.tsv'))
TASKS = {
  'CoLA': (('matthews',), DEV, TEST),
  'SST-2': (('classification_accuracy',), DEV, TEST),
  'MRPC': (('f1', 'classification_accuracy'), DEV, TEST),
  'STS-B': (('pearson', 'spearman'), DEV, TEST),
  'QQP': (('f1', 'classification_accuracy'), DEV, TEST),
  'MNLI': (('classification_accuracy',), MATCHED, MATCHED_TEST),
  'QNLI': (('classification_accuracy',), DEV, TEST),
  'RTE': (('classification_accuracy',), DEV, TEST),
  'WNLI': (('classification_accuracy',), DEV, TEST),
}


def score(name, results):
  """The score of a task: the mean over its sets of the mean of its metrics."""
  names = TASKS[name][0]
  return sum(sum(r[metric] for metric in names) / len(names) for r in results) / len(results)


def glue(runs, data, out, which='latest'):
  """{task: ({set: {metric: value}}, score)} of {task: workdir}; writes the test predictions."""
  data, out, found = Path(data).expanduser(), Path(out).expanduser(), {}
  for name, workdir in runs.items():
    config = workdirs.read_config(workdir)
    regression = config.table.regression if config.objective == 'classification' else None
    if regression != (name == 'STS-B'):
      raise InputError(f'{workdir} is no run of {name}; give --run {name}= the one that is.')
    if missing := [file for _, file in TASKS[name][1] if not (data / name / file).is_file()]:
      raise InputError(f'{data / name / missing[0]} is missing; --data is the folder of GLUE.')
  for name, workdir in runs.items():
    _, dev, test = TASKS[name]
    sets = [(f'{name}{suffix}', str(data / name / file)) for suffix, file in dev]
    results = {
      key: result for key, result, _ in evaluate.evaluate_on(workdir, sets, (), which, out / 'dev')
    }
    found[name] = results, score(name, list(results.values()))
    sets = [(f'{name}{suffix}', str(data / name / file)) for suffix, file in test]
    if name == 'MNLI':
      sets.append(('AX', str(data / 'diagnostic' / 'diagnostic.tsv')))
    if there := [(key, spec) for key, spec in sets if Path(spec).is_file()]:
      for key, _, _ in evaluate.evaluate_on(workdir, there, (), which, out / 'test'):
        shutil.copy(out / 'test' / key / 'predictions.tsv', out / f'{key}.tsv')
    for key, spec in sets:
      log.info('%s: %s', name, f'{key}.tsv' if (key, spec) in there else f'no test file {spec}')
  return found


def table(found):
  lines = []
  for name, (results, value) in found.items():
    told = '  '.join(
      f'{key} ' + ' '.join(f'{metric} {100 * result[metric]:.2f}' for metric in TASKS[name][0])
      for key, result in results.items()
    )
    lines.append(f'{name:8}{100 * value:6.2f}   {told}')
  average = sum(value for _, value in found.values()) / len(found)
  return '\n'.join(
    [*lines, f'average {100 * average:6.2f}   of {len(found)} of {len(TASKS)} tasks']
  )


def main(argv=None):
  parser = argparse.ArgumentParser(
    prog='python -m bert_jax.tools.glue', description=__doc__.partition('\n\n')[0]
  )
  parser.add_argument(
    '--run', action='append', required=True, metavar='TASK=WORKDIR', help='repeated, one per task'
  )
  parser.add_argument('--data', required=True, help='folder of the GLUE archive')
  parser.add_argument('--out', required=True, help='folder for answers and leaderboard files')
  parser.add_argument('--checkpoint', default='latest', help='latest, best or a step')
  args = parser.parse_args(argv)
  with config_lib.command_line():
    runs = dict(run.partition('=')[::2] for run in args.run)
    for name, workdir in runs.items():
      if name not in TASKS or not workdir:
        raise InputError(f'--run {name} is not TASK=WORKDIR with one of {", ".join(TASKS)}.')
    print(table(glue(runs, args.data, args.out, args.checkpoint)))


if __name__ == '__main__':
  main()
