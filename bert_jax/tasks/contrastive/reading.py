"""Reads the data of sentence vectors: pairs, triples, scored pairs, questions.

A spec such as data.train is, by task.format (of data.eval: contrastive.eval_format),

  table   .tsv, .csv, .jsonl, .parquet, tfds: or hf:NAME (text/tables.py) with the columns that
          contrastive.anchor_column, positive_column (without one each text is its own positive:
          SimCSE), negative_columns (cells may be empty) and, of scored pairs, score_column name
  squad   SQuAD's JSON, as tasks/qa/reading.py reads it: each question and its paragraph. Questions
          without an answer there are left out and counted
  lines   text files: each line that is not blank is its own positive (SimCSE)

or several of these: NAME=SPEC,NAME=SPEC. A record with an empty anchor or positive, a negative that
is its positive, or a score that is no number cannot be used (tasks/faulty_records.py). In training,
a positive that occurs twice is a false negative of its other anchor: counted, masked in a batch.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax.errors import InputError, quoted
from bert_jax.tasks.faulty_records import Problems, Unusable, is_empty, reads
from bert_jax.tasks.qa.reading import is_impossible, records
from bert_jax.text import files, tables
from bert_jax.text.values import finite_number

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
  readers = {'table': _table, 'squad': _squad, 'lines': _lines}
  may_be_false = split == 'train' and not is_scored(config, split)
  positives = set()
  for item in readers[format_of(config, split)](config, split, problems):
    with problems.of_record(item.where):
      anchor, positive, *negatives = item.texts
      if not anchor.strip():
        raise Unusable('the anchor is empty; write one', 'records without anchor')
      if not positive.strip():
        raise Unusable('the positive is empty; write one', 'records without positive')
      if positive in negatives:
        raise Unusable(
          f'a negative is the positive, {quoted(positive)}; remove one of them',
          'records with a negative that is the positive',
        )
      if may_be_false and positive in positives:
        problems.note(AGAIN, item.where)
      positives.add(positive)
      yield item


def _table(config, split, problems):
  fields, scored = config.contrastive, is_scored(config, split)
  rows = problems.rows(config.data[split], columns=tuple(fields.columns))
  for number, (where, row) in enumerate(rows):
    with problems.of_record(where):
      positive_column = fields.positive_column or fields.anchor_column
      columns = [fields.anchor_column, positive_column]
      texts = problems.columns(row, columns, where, HINT)
      for name in fields.negative_columns:
        text = ''
        if split == 'train' or tables.first_of(row, name):
          (text,) = problems.columns(row, [name], where, HINT)
          if not text.strip():
            problems.note('empty negatives (left out)', where)
        texts.append(text)
      score = None
      if scored:
        score = _score(row, fields.score_column, where, problems)
        if score is None and problems.lacks('a score', where, split):
          continue
      yield Item(where, str(number), tuple(texts), score)


def _score(row, name, where, problems):
  """The score of a pair; None: the cell is empty."""
  (cell,) = problems.columns(row, [name], where, HINT)
  if is_empty(cell):
    return None
  score = finite_number(cell)
  if score is None:
    raise Unusable(
      f'{quoted(cell)} in column {name!r} is no number; write one as 3.5', 'unreadable scores'
    )
  return score


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
  none = [''] * len(config.contrastive.negative_columns)
  number = 0
  for _, spec in files.parts(config.data[split]):
    for path in files.split_files(spec, split):
      if files.suffix(path) in tables.SUFFIXES:
        raise InputError(
          f'{path} is a table; set task.format=table, and contrastive.positive_column empty.'
        )
      for at, line in problems.lines(path):
        if line.strip():
          yield Item(f'{path.name}:{at}', str(number), (line, line, *none))
          number += 1
        else:
          problems.counts['blank_lines'] += 1
