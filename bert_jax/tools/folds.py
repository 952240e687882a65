"""Cross-validation: a run for each fold of some rows, and what the runs say together.

    folds = bert_jax.cross_validate(rows, 'W', 5, model='minilm', learning_rate=[1e-4, 2e-4])
    print(folds)  # the means over folds of the metric that judges, and their paired differences
    folds.metrics, folds.compare('macro_f1'), folds.answers()

W is the folder of a sweep in which a fold stands for a seed: `python -m bert_jax.tools.report W`
has all metrics, and counts folds where it says seeds. The models of two folds share most of their
training rows: intervals and p values are too good, and the fewer the folds, the more so (Nadeau and
Bengio 2003, https://doi.org/10.1023/A:1024068626366; bert_jax/tasks/README.md says by how much).
"""

import contextlib
import dataclasses
import itertools
import logging
import numbers
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from bert_jax import config as config_lib
from bert_jax import files, interactive
from bert_jax.errors import InputError, about, listed, log, quoted
from bert_jax.files import Path
from bert_jax.metrics import REGRESSION
from bert_jax.predict.model import Model
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.text import frames, tables
from bert_jax.tools import report
from bert_jax.tools.sweep import arms as sweep_arms
from bert_jax.workdir import records

ONE = 'all folds'  # the only arm
SHOWN = ['mean', 'sd', 'difference', 'difference_low', 'difference_high', 'p', 'collapsed']


@dataclasses.dataclass(frozen=True, repr=False)
class Folds:
  """The runs of a cross-validation, which have ended. arms: a name for each value of the argument
  that has several, the baseline first. fold_of [N]: the fold that holds out each of the rows."""

  workdir: Path
  rows: pd.DataFrame
  arms: list[str]
  fold_of: np.ndarray

  def __repr__(self) -> str:
    panel = report.read(self.workdir).panels[0]
    table = panel.compared(panel.metric)[SHOWN].dropna(axis='columns', how='all')
    out = f'{panel.metric} over folds:\n{table.round(4).to_string()}'
    if table.collapsed.any():
      out += '\ncollapsed: folds whose answers are all alike; an arm of such folds alone has no p'
    plain = self.metrics.get(panel.metric + REGRESSION)
    return out if plain is None else f'{out}\nlogistic regression: {plain.mean():.4f}'

  @property
  def metrics(self) -> pd.DataFrame:
    """The metrics of each run: index arm and fold."""
    df = report.long(self.workdir).query('final')
    found = df.pivot(index=['arm', 'seed'], columns='metric', values='value')
    return found.rename_axis(index=['arm', 'fold'])

  def compare(self, metric: str = '') -> pd.DataFrame:
    """The means of a metric over folds and their paired differences to the baseline, as
    report.compare has them over seeds; intervals and p values from three folds on, which add the
    rounding of a score of N rows, and so are a little wider than those of a t test. '': the
    metric by which the runs are judged."""
    panel = report.read(self.workdir).panels[0]
    return panel.compared(metric or panel.metric).rename(columns={'seeds': 'folds'})

  def answers(self, arm: str = '') -> pd.DataFrame:
    """What Model.predict says of each row, of the model that has not seen it, at the step whose
    metrics count, beside a column `fold`. arm: needed where there are several."""
    arm = arm or ONE
    if arm not in self.arms:
      raise InputError(f'give answers() one of the arms {listed(self.arms)}.')
    found, order = [], np.argsort(self.fold_of, kind='stable')
    for fold in range(self.fold_of.max() + 1):
      folder = self.workdir / folder_of(arm, fold)
      counted: Any = records.read(folder).counted()
      model = Model(folder, counted.step)
      answers = model.predict(self.rows[self.fold_of == fold])
      found.append(answers.assign(fold=fold))
    return pd.concat(found).iloc[np.argsort(order)]


def cross_validate(
  rows: Any, workdir: str | Path, folds: int = 5, *, groups: str = '', seed: int = 0, **given: Any
) -> Folds:
  """Fine-tunes a model for each fold, on the rows of the other folds, and evaluates it on the rows
  of its own. The same call goes on where it was stopped. What the first run compiles is kept.

  rows: in memory, or the path of a table with a header. workdir: gets a folder for each run. folds:
  how many; each has the same shares of the labels, if a text has one. groups: a column; rows that
  have the same value there stay together, whatever their labels. seed: of the folds; that of a run
  is the number of its fold. given: arguments and fields of finetune; a list or array for one
  compares its values on the same folds. A warning is said once."""
  folder = interactive.run_folder(workdir)
  several = [name for name, x in given.items() if isinstance(x, (list, np.ndarray))]
  if len(several) > 1:
    raise InputError(f'{listed(several)} are lists; give one of them, and tuples for the others.')
  if not isinstance(groups, str):
    raise InputError('groups is no text; put them into a column of rows, and give its name.')
  for name, x in {'folds': folds, 'seed': seed}.items():
    if not isinstance(x, numbers.Integral) or x < 0:
      raise InputError(f'{name} is {x!r}; give one whole number from 0 on.')
  arms = {ONE: given}
  for name in several:
    arms = {sweep_arms.name_of({name: str(x)}): given | {name: x} for x in given[name]}
    if not arms or len(arms) < len(given[name]):
      raise InputError(f'{name} is {given[name]}; give different values.')
  others = {'train', 'eval', 'data.train', 'data.eval'} & given.keys()
  if others:
    raise InputError(f'each fold has its own rows; leave out {listed(others)}, which names others.')
  recipes = {arm: interactive.recipe(**chosen) for arm, chosen in arms.items()}
  configs = []  # of all, so that mistakes are found before the first run
  for spec, fields in recipes.values():
    configs.append(config_lib.load(spec, interactive.overrides_of(fields)))
  if isinstance(rows, (str, os.PathLike)):
    rows = [row.record or row for _, row in tables.records(str(rows), counts=Counter())]
  if not isinstance(rows, pd.DataFrame):
    rows = frames.table_of(rows, 'rows').to_pandas(types_mapper=pd.ArrowDtype)
  if 'fold' in rows:
    raise InputError('rows have a column fold, as their answers will have; rename it.')
  labels = tables.first_of(rows.columns, TASKS[configs[0].objective].label_column(configs[0]))
  fold_of = split(rows, folds, labels, groups, seed)
  found, planned = Folds(folder, rows, list(arms), fold_of), {}
  for fold, arm in itertools.product(range(folds), arms):
    planned[folder_of(arm, fold)] = {'arm': arm}
  before = records.read_sweep(found.workdir)
  for config in configs:
    initialization.check_sources(config, not before)
  if before and list(before.runs) != list(planned):
    raise InputError(
      f'{workdir} holds other folds or values, {listed(before.runs)}; name another folder.'
    )
  files.make_folder(found.workdir)
  files.write_sealed(found.workdir / records.SWEEP, {'baseline': found.arms[0], 'runs': planned})
  said: set[str] = set()
  for fold, arm in itertools.product(range(folds), arms):
    name, out = folder_of(arm, fold), fold_of == fold
    log.info(f'fold {fold + 1} of {folds}: {name}')
    spec, fields = recipes[arm]
    with about(f'folds={folds}, seed={seed}'), warning_once(name, said):
      interactive.start(spec, rows[~out], found.workdir / name, rows[out], seed=fold, **fields)
  return found


@contextlib.contextmanager
def warning_once(name: str, said: set[str]) -> Iterator[None]:
  """A context for a run, whose name is put before its warnings. Those in `said` are not logged
  again; the others are added there."""

  def is_new(record):
    if record.levelno < logging.WARNING:
      return True
    text = record.getMessage()
    out = text not in said
    said.add(text)
    record.msg = f'{name}: {text}'
    record.args = None
    return out

  log.addFilter(is_new)
  try:
    yield
  finally:
    log.removeFilter(is_new)


def folder_of(arm: str, fold: int) -> str:
  return sweep_arms.joined('' if arm == ONE else arm, f'fold_{fold}')


def split(rows: pd.DataFrame, folds: int, labels: str, groups: str, seed: int) -> np.ndarray:
  """The fold [N] that holds out each row, by the columns of labels and groups ('': none);
  InputError if a model would lack a label."""
  from sklearn import model_selection  # slow to import

  if groups:
    if groups not in rows:
      raise InputError(f'there is no column {groups!r}, only {listed(rows.columns)}.')
    lacking = rows[groups].isna() | rows[groups].eq('')  # a cell of a CSV is never null
    if lacking.any():
      raise InputError(f'{lacking.sum()} rows have no {groups}; give each its own.')
  kind: Any = model_selection.StratifiedKFold
  of_rows, fold_of = None, np.zeros(len(rows), int)
  classes = list(map(str, rows[labels])) if labels else [''] * len(rows)
  if groups:
    kind, of_rows = model_selection.StratifiedGroupKFold, list(map(str, rows[groups]))
  try:
    splitter = kind(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings(action='ignore', category=UserWarning):  # see below
      for fold, (_, held_out) in enumerate(splitter.split(rows, classes, of_rows)):
        fold_of[held_out] = fold
  except ValueError:
    most = max(Counter(classes).values(), default=0)
    if groups:
      most = min(most, rows[groups].nunique())
    raise InputError(
      f'folds={folds} is not possible with these rows; give 2 or more, and at most {most}: so many '
      'are the rows (those of the most frequent label, if there are labels) or the groups.'
    ) from None
  if labels:
    found = pd.Series(fold_of).groupby(rows[labels].to_numpy()).nunique()
    if found.min() < 2:
      raise InputError(
        f'the label {quoted(found.idxmin())} is in one fold only, whose model would not know it; '
        'leave its rows out, or join it with another.'
      )
    if found.min() < folds:
      log.warning(f'the label {quoted(found.idxmin())} has fewer rows than there are folds')
  return fold_of
