"""A linear SVM over TF-IDF beside the classifiers of a report."""

import pandas as pd

from bert_jax import tokenizers
from bert_jax.tasks import TASKS
from bert_jax.tools.report.table import Results
from bert_jax.workdir import records


def with_svms(results: Results) -> pd.DataFrame:
  """The long table with the scores of the plain baseline of each family that has one, an arm for
  each training data of a panel."""
  rows = []
  counted = results.runs[results.runs.counts]
  for _, same in counted.groupby(['task', 'under'], sort=False):
    known = []
    for row in same.to_dict('records'):
      run = records.read(row['run'])
      baseline = TASKS[row['task']].plain_baseline
      if baseline is None or run.config is None:
        continue
      fields = {name: run.fields.get(name) for name in baseline.fields}
      if fields in known:
        continue
      arm = f'{baseline.name}, data of {row["arm"]}' if known else baseline.name
      known.append(fields)
      scores = baseline.metrics(run.config, tokenizers.load_folder(run.path))
      for name, value in scores.items():
        rows.append(
          {
            'run': '',
            'sweep': row['sweep'],
            'arm': arm,
            'seed': 0,
            'task': row['task'],
            'under': row['under'],
            'status': 'finished',
            'kind': 'whole',
            'metric': name,
            'value': value,
            'final': True,
            'examples': 0,
            'answers': '',
          }
        )
  return pd.concat([results.values, pd.DataFrame(rows)], ignore_index=True)
