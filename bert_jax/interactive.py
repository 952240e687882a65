"""Runs in a few lines of Python, as in a notebook, from rows in memory or from files.

    run = bert_jax.finetune(rows, 'W', model='minilm', epochs=5, text_column='body')
    print(run.metrics, run.evaluate(other_rows))
    run.model.predict(new_rows)
    run.curve()
    run.history  # a DataFrame
    run.worst()  # a DataFrame

A run is described as on the command line: by a config file, its argument, and the config's fields.
A field is given by its name, **{'checkpoint.every': 9}, or by the last word of it if no other field
ends so, text_column='body'. Rows in memory (a DataFrame, a list of dicts or texts; see
text/frames.py) are written to W/rows as Parquet, so the run is a function of its config and goes on
where it was stopped when the same call is made again. Mistakes are InputErrors of one sentence.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import evaluate, files, notebooks
from bert_jax import train as train_lib
from bert_jax.errors import InputError, writing
from bert_jax.files import Path
from bert_jax.predict.model import Model
from bert_jax.run import initialization, metrics_log
from bert_jax.tasks.record import Family
from bert_jax.text import frames
from bert_jax.workdir import contents, records


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
  """A run that has ended. metrics: as of train.train; {}: there was no evaluation; `constant` is
  among them if every example got the same answer. print(run) shows baselines beside them."""

  workdir: Path
  metrics: Mapping[str, float]

  def __repr__(self) -> str:  # one line: a notebook shows the value of a cell
    levels = records.read_facts(self.workdir).split('eval').baselines
    return f'Run in {self.workdir}: {metrics_log.health(self.metrics, levels) or "not evaluated"}'

  @functools.cached_property
  def model(self) -> Model:
    """Its trained model, as bert_jax.load gives it."""
    return Model(self.workdir)

  @property
  def history(self) -> Any:
    """A DataFrame of what was logged: step, kind (train; eval, the same rows each time; whole, all
    rows) and a column for each metric."""
    import pandas as pd  # slow to import

    points = records.read(self.workdir).points
    return pd.DataFrame([{'step': x.step, 'kind': x.kind, **x.values} for x in points])

  def curve(self) -> None:
    """Shows the curve of the run below the cell of a notebook, or writes it to W/curve.png."""
    notebooks.show_curve(self.workdir)

  def worst(self, rows: Any = None) -> Any:
    """A DataFrame of the 100 answers whose label `model` thinks least likely, as in worst.jsonl
    (see tasks/README.md), the worst first; of few rows some are right. rows: in memory or a path;
    None: data.eval of the run. Their index is the column of ids (table.id_column), else the index
    of the DataFrame, or the number of the row. For data.eval they are computed only if they are
    not there."""
    import pandas as pd  # slow to import

    overrides, tables = _given(self.workdir, {}, eval=rows)
    data = config_lib.override(self.model.config, overrides).data
    folder = contents.answers_folder(self.workdir, data.train, data.eval, self.model.step)
    if overrides or not files.exists(folder):
      _write(tables)
      evaluate.evaluate(self.workdir, overrides)
    lines = (files.read_bytes(folder / 'worst.jsonl') or b'').splitlines()
    if not lines:
      raise InputError(f'{self.workdir} has no answers with a loss; examples need labels.')
    found = pd.json_normalize([json.loads(line) for line in lines])
    ids = found.pop('id')
    numbers = pd.to_numeric(ids, errors='coerce')
    return found.set_index(numbers if all(numbers.astype(str) == ids) else ids)

  def evaluate(
    self, rows: Any = None, checkpoint: str | int = '', **fields: Any
  ) -> dict[str, float]:
    """The metrics on rows in memory or a path; None: data.eval of the run. Answers are written as
    by bert_jax.evaluate. checkpoint: as of bert_jax.load. fields: of the config."""
    fields = full_names(contents.read_config(self.workdir), fields)
    overrides, tables = _given(self.workdir, fields, eval=rows)
    _write(tables)
    return evaluate.evaluate(self.workdir, overrides, checkpoint)[0]


def finetune(
  train: Any,
  workdir: str | Path,
  *,
  eval: Any = None,
  task: str | Family = 'table',
  model: str | Path | Run = '',
  **fields: Any,
) -> Run:
  """Fine-tunes a model, as configs/finetune.py does.

  train, eval: rows in memory, or a path as of data.train ('', and None with task='docs' alone: the
  embedded task). workdir: the folder of the run. task: one of that file's, with its other arguments
  ('sst2,unpacked'); or the record of a new family (see bert_jax/tasks/record.py). model: what to
  start from: 'minilm', a Run or its workdir, the folder of a released model, hf:NAME; or a size
  such as 'tiny', of random weights. fields: of the config, by name: text_column='body', epochs=5
  (as given; without it small tables train min_steps=100 steps)."""
  spec, fields = recipe(task, model, **fields)
  is_docs = isinstance(task, str) and 'docs' in task.split(',')
  if train is None and 'data.train' not in fields and not is_docs:
    raise InputError("train is None; give rows or a path, or task='docs', the embedded task.")
  return start(spec, train, workdir, eval, **fields)


def recipe(
  task: str | Family = 'table', model: str | Path | Run = '', **fields: Any
) -> tuple[str, dict[str, Any]]:
  """(FILE:ARGUMENTS of the config, fields by their full names) of finetune."""
  if isinstance(task, Family):
    task = f'table,objective={config_lib.add(task)}'
  spec = f'{config_lib.CONFIGS}/finetune.py:task={task}'
  begin = _source(model, fields)
  if begin in config_lib.SIZES:
    spec += f',size={begin}'
  elif begin:
    fields['init_from'] = begin
  elif 'init_from' not in fields:
    raise InputError(
      "model is missing; give 'minilm', hf:NAME or a path to start from, or a size such as 'tiny' "
      'to start from random weights.'
    )
  return spec, full_names(config_lib.of_file(spec), fields)


def _source(model, fields):
  """The argument `model`; of a Run, its folder."""
  model = getattr(model, 'workdir', model)
  if not isinstance(model, (str, os.PathLike)):
    raise InputError(f'model is a {type(model).__name__}; give a Run, or a path or name.')
  if model and fields.get('init_from'):
    raise InputError(f'model={model} and init_from are both given; leave one of them out.')
  return model


def pretrain(
  train: Any,
  workdir: str | Path,
  recipe: str = '',
  *,
  eval: Any = None,
  model: str | Path | Run = '',
  **fields: Any,
) -> Run:
  """Pre-trains a model, as configs/pretrain.py does by its argument, such as 'size=tiny,runlocal'.
  train, eval: texts, or rows with a column corpus.text_field, or a path; None: the embedded
  documentation. model: a Run, folder or hf:NAME with a head for masked words, whose weights it goes
  on with, by the argument 'continued' if none is given; or a size, of random weights. workdir,
  fields: as of finetune. A step of BERT's recipe is 256 rows: on a machine of little memory give
  batch_size=32, or optimizer.accumulation."""
  begin = _source(model, fields)
  if begin and 'size=' in recipe:
    raise InputError(f'model={begin} has a size of its own; leave size= out of {recipe!r}.')
  if begin in config_lib.SIZES and begin != 'minilm':
    recipe += f',size={begin}'
  elif begin:
    fields['init_from'] = begin
    recipe = recipe or 'continued'
  return start(f'{config_lib.CONFIGS}/pretrain.py:{recipe}', train, workdir, eval, **fields)


def start(spec: str, train: Any, workdir: str | Path, eval: Any = None, **fields: Any) -> Run:
  """Runs a config, FILE:ARGUMENTS, on rows in memory or paths; the others as of finetune."""
  if not isinstance(spec, str):
    raise InputError(
      f'spec is a {type(spec).__name__}; give a text, such as configs/pretrain.py:size=tiny, then '
      'the rows.'
    )
  folder = run_folder(workdir)
  fields = full_names(config_lib.of_file(spec), fields)
  overrides, tables = _given(folder, fields, train=train, eval=eval)
  config = config_lib.load(spec, overrides)
  if files.exists(folder / contents.CONFIG):
    # Refused before rows are written that the run will not have.
    initialization.config_of(initialization.Start(), config, folder)
  _write(tables)
  _, metrics = train_lib.train(config, folder, config_lib.names_of(overrides))
  return Run(folder, metrics)


def run_folder(workdir: str | Path) -> Path:
  """The folder that an argument names; InputError if it is no path, such as the labels."""
  if isinstance(workdir, str) and not workdir:
    raise InputError('workdir is empty; give the path of a folder for the run.')
  if not isinstance(workdir, (str, os.PathLike)):
    raise InputError(
      f'workdir is a {type(workdir).__name__}; give the path of a folder for the run. Labels are a '
      'column of the rows.'
    )
  folder = Path(workdir).expanduser().absolute()
  contents.check_folder(folder)
  return folder


def _given(folder, fields, **rows):
  """(arguments as of a command line, whose sentences answer mistakes; {path: pyarrow.Table} of rows
  in memory, a path in the workdir that is named by their checksum)."""
  values, tables = {}, {}
  for split, held in rows.items():
    if isinstance(held, (str, os.PathLike)):
      values[f'data.{split}'] = held
    elif isinstance(held, float):
      raise InputError(
        f'{split} is {held}; a share is table.eval_share or corpus.eval_share={held}.'
      )
    elif held is not None:
      table = frames.table_of(held, split)
      if not len(table):
        raise InputError(f'{split} has no rows; give one at least.')
      path = str(folder / config_lib.ROWS / f'{split}-{frames.digest(table)}.parquet')
      values[f'data.{split}'] = path
      tables[path] = frames.with_index(table, held)
  for name in values.keys() & fields.keys():
    raise InputError(f'{name} is given twice, as rows and as a field; leave one out.')
  return overrides_of(values | fields), tables


def full_names(config: ConfigDict, fields: Mapping[str, Any]) -> dict[str, Any]:
  """Fields by their full names: one may be called by the last word of its name, if no other field
  of the config ends so, and no block has that name. InputError if one is given twice."""
  out = {}
  for name, value in fields.items():
    alike = [full for full in config_lib.flatten(config) if full.endswith(f'.{name}')]
    if name not in config and len(alike) == 1:
      (name,) = alike
    if name in out:
      raise InputError(f'{name} is given twice; leave one out.')
    out[name] = value
  return out


def overrides_of(fields: Mapping[str, Any]) -> list[str]:
  """The fields of a config as on a command line; a Run is its folder."""
  return [f'--config.{name}={getattr(x, "workdir", x)}' for name, x in fields.items()]


def _write(tables):
  for path, table in tables.items():
    if files.exists(Path(path)):
      continue
    with writing(path):
      files.make_folder(Path(path).parent)
      files.write_whole(path, frames.parquet(table))
