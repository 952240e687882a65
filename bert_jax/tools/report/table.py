"""The long table of a report: a pandas DataFrame with a row for each value that runs recorded.

| column | |
|---|---|
| run, sweep, arm, seed, task | workdir; folder above; name in the sweep's plan; ..; objective |
| under | what the value depends on besides the weights: rows, masks, vocabulary |
| step, tokens, flops | how far the training was |
| kind | train; eval: the same rows at each step; whole: all rows |
| metric, value | NaN: it was not finite |
| status | finished, collapsed or no number; in no mean: unfinished, failed |
| final | whether the value stands in the mean of its arm |
| level, level_kind | what a guess scores on the rows of this very value; unigram, majority, .. |
| examples | how many examples a score counts |
| eval_rows | what tells the rows of one evaluation from those of another |
| answers | of final values: the folder with the answers to the examples; '': none, or damaged |
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bert_jax import files
from bert_jax.files import Path
from bert_jax.metrics import Level, own_levels
from bert_jax.tools.report import runs as report_runs
from bert_jax.workdir import contents, records
from bert_jax.workdir.recorded import Point, Run

OF_RUN = ['run', 'sweep', 'arm', 'seed', 'task', 'under', 'status']
COLUMNS = [*OF_RUN, 'step', 'tokens', 'flops', 'kind', 'metric', 'value', 'final']
COLUMNS += ['level', 'level_kind', 'examples', 'eval_rows', 'answers']
NO_SCORES = 'constant', 'masked'  # values of an evaluation that are not scores


class Results(NamedTuple):
  """What runs recorded."""

  values: pd.DataFrame  # the long table
  runs: pd.DataFrame  # a row for each run, also for those that were only planned, see runs.py
  factors: pd.DataFrame  # index run: the fields in which runs differ, see factors
  remarks: list[str]  # what could not be read


def long(*folders: Path | str) -> pd.DataFrame:
  """The long table of all runs below some folders."""
  return results(folders).values


def results(folders: Sequence[Path | str]) -> Results:
  """The Results of all runs below some folders."""
  found, remarks = records.below(*folders)
  runs = report_runs.runs_of(found, remarks)
  by_path = {str(run.path): run for run in found}
  rows = []
  for known in runs[runs.run.isin(by_path)].to_dict('records'):
    of_run = {name: known[name] for name in OF_RUN}
    for row in _of_points(by_path[known['run']], remarks):
      row |= of_run
      row['final'] = row['final'] and known['counts']
      rows.append(row)
  values = pd.DataFrame(rows, columns=COLUMNS)
  return Results(values, runs, report_runs.factors(found), remarks)


def _of_points(run: Run, remarks: list[str]) -> Iterator[dict[str, Any]]:
  """The rows of the evaluations and of the lines of training of a run."""
  steps, tokens = [0], [0.0]
  for point in run.training:
    steps.append(point.step)
    tokens.append(point.values.get('seen_tokens') or np.nan)
  counted = run.counted()
  for point in run.points:
    of_point: dict[str, Any] = {
      'step': point.step,
      'tokens': np.interp(point.step, steps, tokens, right=np.nan),
      'flops': run.flops_before(point.step),
      'kind': point.kind,
      'final': point is counted,
    }
    if point is counted:
      of_point['answers'] = _answers(run, point.step, remarks)
    levels = _levels(run, point)
    own = [f'{name}_{level.kind}' for name, level in own_levels(point.values).items()]
    for name, value in point.values.items():
      if name in NO_SCORES or name in own or '_below_' in name:
        continue
      level = levels.get(name, Level(np.nan, ''))
      yield of_point | {
        'metric': name,
        'value': np.nan if value is None else value,
        'level': level.value,
        'level_kind': level.kind,
        'examples': run.examples.get(name, 0),
        'eval_rows': run.facts.split('eval').fingerprint,
      }


def _answers(run: Run, step: int, remarks: list[str]) -> str:
  """The folder of a run's answers at a step; '' if there are none, or with a remark if
  scores.json was made of other answers."""
  train, evaluation = run.fields['data.train'], run.fields['data.eval']
  folder = contents.answers_folder(run.path, train, evaluation, step)
  path = folder / 'predictions.jsonl'
  lines = files.read_bytes(path)
  if lines is None:
    return ''
  try:
    checksum = contents.read_sealed(folder / 'scores.json')['predictions_crc32']
  except records.UNREADABLE:
    checksum = None
  if zlib.crc32(lines) != checksum:
    remarks.append(f'{path} is damaged, or of an earlier version: left out')
    return ''
  return str(folder)


def _levels(run: Run, point: Point) -> dict[str, Level]:
  """What a guess scores on the rows of an evaluation: of a part of them it is another number."""
  split = run.facts.split('eval')
  read = run.fields.get('eval.batches', 0) * run.fields.get('batch_size', 0)
  is_part = point.kind == 'eval' and 0 < read < split.rows
  levels = split.part if is_part else split.baselines
  return {**levels, **own_levels(point.values)}
