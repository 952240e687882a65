"""Reads the data of sentence vectors: pairs, triples, scored pairs, questions.

A spec such as data.train is, by task.format (of data.eval: contrastive.eval_format),

  table   .tsv, .csv, .jsonl, .parquet, tfds: or hf:NAME (text/tables.py) with the columns that
          contrastive.anchor_column, positive_column (without one each text is its own positive:
          SimCSE), negative_columns (cells may be empty) and, of scored pairs, score_column name. In
          JSON, and in cells as pandas writes them, these may be lists: each positive makes a pair,
          and a column of negatives that is named several times gives as many of them
  squad   SQuAD's JSON, as tasks/qa/reading.py reads it: each question and its paragraph. Questions
          without an answer there are left out and counted
  lines   text files: each line that is not blank is its own positive (SimCSE); of a table, each
          text of the column anchor_column, text or sentence

or several of these: NAME=SPEC,NAME=SPEC. A record with an empty anchor or positive, a negative that
is its positive, or a score that is no number cannot be used (tasks/faulty_records.py). In training,
a positive that occurs twice is a false negative of its other anchor: counted, masked in a batch.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import quoted
from bert_jax.tasks.faulty_records import Problems, Unusable, decimal_commas, is_empty, reads
from bert_jax.tasks.qa.reading import is_impossible, records
from bert_jax.text import files, tables
from bert_jax.text.values import NotJson, decimal_number, printed_value

FORMATS = 'table', 'squad', 'lines'
FIELDS = 'contrastive.anchor_column, positive_column, or columns if there is no header'
HINT = f'name one of these with {FIELDS}'
AGAIN = 'positives that came before (false negatives, masked where they meet in a batch)'


class Item(NamedTuple):
  where: str
  id: str
  texts: tuple[str, ...]  # anchor, positive, negatives; '': a missing negative
  score: float | None = None


def format_of(config: ConfigDict, split: str) -> str:
  return (split != 'train' and config.contrastive.eval_format) or config.task.format


def is_scored(config: ConfigDict, split: str) -> bool:
  """Whether the pairs of a split have scores; if not, retrieval is judged."""
  if split == 'train':
    return config.contrastive.loss == 'cosent'
  return bool(config.contrastive.score_column) and format_of(config, split) == 'table'


@reads('pairs', name="a table of pairs, or a file in SQuAD's JSON")
def read(config: ConfigDict, split: str, problems: Problems) -> Iterator[Item]:
  """Yields the Items of a split; unusable ones go to `problems`."""
  seen, format = set(), format_of(config, split)
  counted = split == 'train' and not is_scored(config, split)
  for item in {'table': _table, 'squad': _squad, 'lines': _lines}[format](config, split, problems):
    with problems.of_record(item.where):
      _, positive, *negatives = item.texts
      for kind, text in zip(('anchor', 'positive'), item.texts):
        if not text.strip():
          fault = f'the {kind} is empty; write one, or remove the record'
          raise Unusable(fault, f'records without {kind}')
      if positive in negatives:
        fault = f'a negative is the positive, {quoted(positive)}; remove one of them'
        raise Unusable(fault, 'records with a negative that is the positive')
      if counted and positive in seen:
        problems.note(AGAIN, item.where)
      seen.add(positive)
      yield item


def _table(config, split, problems):
  fields, scored = config.contrastive, is_scored(config, split)
  rows = problems.rows(config.data[split], columns=tuple(fields.columns))
  commas = scored and decimal_commas(config, fields.columns, fields.score_column)
  for number, (where, row) in enumerate(rows):
    names = fields.negative_columns
    if split != 'train':  # evaluation data may lack columns of the training data
      names = [name for name in names if tables.first_of(row, name)]
    with problems.of_record(where):
      anchor, *more = _texts(row, fields.anchor_column, where, problems, False) or ['']
      if more:
        raise Unusable('the anchor is a list of texts; write one', 'records with several anchors')
      positive = fields.positive_column
      positives = _texts(row, positive, where, problems) if positive else [anchor]
      negatives = {name: _texts(row, name, where, problems) for name in names}
      for texts in negatives.values():
        if not ''.join(texts).strip():
          problems.note('empty negatives (left out)', where)
      taken = [x.pop(0) if (x := negatives[name]) else '' for name in names]
      taken += [''] * (len(fields.negative_columns) - len(taken))
      if left := sum(map(len, negatives.values())):
        problems.counts['negatives of longer lists than columns (left out)'] += left
      score = None
      if scored:
        name = fields.score_column
        (cell,) = problems.columns(row, [name], where, HINT)
        if is_empty(cell) and problems.lacks('a score', where, split):
          continue
        score, how = decimal_number(cell, row.delimiter, commas)
        if score is None and not is_empty(cell):
          fault = f'the score (column {name!r}) is no number; write one'
          raise Unusable(fault, 'unreadable scores')
        if how:
          problems.note(how, where)
      for i, positive in enumerate(positives or ['']):
        name = f'{number}-{i}' if i else str(number)
        yield Item(where, name, (anchor, positive, *taken), score)


def _texts(row, name, where, problems, in_cells=True):
  """The texts in a column of a row: one, or a list in JSON, which with `in_cells` a cell may
  hold too, as pandas or JSON write it."""
  there, texts = tables.first_of(row, name), None
  in_cell = in_cells and bool(row.delimiter) and row.get(there, '')[:1] == '['
  if in_cell or row.no_text.get(there) == 'a list':
    with contextlib.suppress(NotJson):
      texts = printed_value(row[there])
  if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
    if in_cell:
      problems.counts['cells with a list of texts'] += 1
    return texts
  return problems.columns(row, [name], where, HINT)


def _squad(config, split, problems):
  none = [''] * len(config.contrastive.negative_columns)
  for _, spec in files.parts(config.data[split]):
    for where, context, record in records(spec, split, problems):
      fields = record if isinstance(record, dict) else {}
      question = fields.get('question')
      with problems.of_record(where):
        if not isinstance(context, str) or not isinstance(question, str):
          missing = 'context' if isinstance(question, str) else 'question'
          raise Unusable(f'there is no {missing!r}', f'questions without {missing}')
        if is_impossible(fields):
          problems.counts['questions without an answer in their paragraph (left out)'] += 1
        else:
          yield Item(where, str(fields.get('id', where)), (question, context, *none))


def _lines(config, split, problems):
  fields = config.contrastive
  none = [''] * len(fields.negative_columns)
  specs = (spec for _, spec in files.parts(config.data[split]))
  paths = (x for s in specs for x in ([s] if files.is_named(s) else files.split_files(s, split)))
  each = (item for path in paths for item in _lines_of(path, fields, problems))
  for number, (where, text) in enumerate(each):
    yield Item(where, str(number), (text, text, *none))


def _lines_of(path, fields, problems):
  """Yields (where, text) of the column of texts in a table, or of the lines that are not blank."""
  if files.is_named(str(path)) or files.suffix(path) in tables.SUFFIXES:
    for where, row in problems.rows(str(path), columns=tuple(fields.columns)):
      with problems.of_record(where):
        (text,) = problems.columns(row, [f'{fields.anchor_column}|text|sentence'], where, HINT)
        yield where, text
    return
  for at, line in problems.lines(path):
    if line.strip():
      yield f'{path.name}:{at}', line
    else:
      problems.counts['blank_lines'] += 1
