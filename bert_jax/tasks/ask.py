"""The base classes of questions to a trained model: records in, answers as dicts out."""

import abc
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.errors import InputError, listed, log, quoted, suggestion
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.record import Option
from bert_jax.text import record_sources, tables

if TYPE_CHECKING:
  from bert_jax.predict.loaded import Loaded

# Columns that name a row: as GLUE numbers its test sets, GAP in capitals, and pandas its index.
ID_COLUMNS = f'index|idx|id|ID|{record_sources.INDEX}'
NOTHING = 'nothing of it can be answered: it has no token'


class Empty(InputError):
  """A record has no text, which is no mistake of who asks for a list of them."""


class RecordProblems(Problems):
  """Collects the reasons why records cannot be answered, {where: reason}."""

  def __init__(self):
    super().__init__('asked', skip=True)
    self.reasons = {}

  def wrong(self, where: str, sentence: str, kind: str) -> None:
    self.reasons[where] = sentence


class Ask(abc.ABC):
  """One kind of question to one Model; subclasses define the records and how they are answered.
  fields: the fields of a record, in the order of the parts of a plain line. others: optional
  fields. columns: {field: the config's field that names its column in training data}.
  tabs: whether tabs separate the fields of a plain line; if not, they count as blanks.
  reads_empty: whether an empty text has an answer.
  advice: which task reads other fields, if one does, as the end of a sentence.
  shows: the keys of an answer that are shown beside its record; (): all.
  exports: {output of the exported program: shape}; {}: none. The arguments of __init__ but the
  model are the options of its Prediction."""

  fields: tuple[str, ...] = ('text',)
  others: tuple[str, ...] = ()
  columns: Mapping[str, str] = {}
  tabs: bool = False
  reads_empty: bool = False
  advice: str = ''
  shows: tuple[str, ...] = ()
  exports: Mapping[str, str] = {}
  _taken: Mapping[str, str] = {}  # {field: column} of the table that was asked last

  def __init__(self, model: 'Loaded'):
    self.model = model

  @classmethod
  def suits(cls, model: 'Loaded') -> bool:
    """Whether a model that has the parts can answer it."""
    return True

  @property
  def labels(self) -> tuple[str, ...]:
    """The names along the last axis of logits."""
    return ()

  def of_table(self, rows: Sequence[Mapping[str, Any]], task: str) -> list[Any]:
    """The records of the rows of a table, in place of some the InputError why they are none. Fields
    that are numbers are read as texts. InputError: the table lacks a column."""
    if not rows:
      return []
    self.check_names(rows[0])
    columns = self._columns(rows[0])
    is_whole = any(columns[name] for name in self.others)  # a record of another form
    for name in self.fields:
      if not columns[name] and not is_whole:
        asked = self.spelt(name)
        raise InputError(
          f'{task}: the table has no column {quoted(asked)}, only {listed(rows[0])}'
          f'{suggestion(asked, rows[0])}; rename one, or give its values as a list.'
        )
    if columns != self._taken:
      self._taken = columns
      log.info('%s reads the columns %s', task, listed(filter(None, columns.values())))
    return [self._of_row(row, columns, is_whole) for row in rows]

  def _of_row(self, row, columns, is_whole):
    """The record of a row of a table, or the InputError why it is none."""
    fields = {}
    for name, column in columns.items():
      if not column or row[column] is None:
        continue
      value = row[column]
      if name in self.fields and not isinstance(value, (list, dict)):
        value = tables.text_of(value)
      fields[name] = value
    if not is_whole:
      fields = dict.fromkeys(self.fields, '') | fields  # a null is an empty text
      if not any(str(fields[name]).strip() for name in self.fields):
        return InputError(nothing_in([columns[name] for name in self.fields]))
    try:
      return self.record(fields)
    except InputError as error:
      return error

  def spelt(self, field: str) -> str:
    """What a field of the task was called in the training data, or the field."""
    block, _, name = self.columns.get(field, '').partition('.')
    return self.model.config.get(block, {}).get(name) or field

  def check_names(self, record: Mapping[str, Any]) -> None:
    """InputError if a record, which stands beside its answer, has a name of that, or NAME.KEY."""
    taken = [name for name in record if name.partition('.')[0] in (*self.shows, 'error')]
    if taken:
      raise InputError(
        f'the input has columns called as the answer beside it; rename or drop them: '
        f'df.drop(columns={taken})'
      )

  def given(self, row: tables.Row) -> dict[str, Any]:
    """What stands beside the answer to a row of a file: its columns."""
    return dict(row.record or tables.with_nulls(row))

  def _columns(self, row):
    """{field: its column in a row, called as in training data or as the field is; '': none}."""
    columns = {}
    for name in (*self.fields, *self.others):
      spellings = f'{self.spelt(name)}|{name}|{name.capitalize()}'  # GAP has capitals
      columns[name] = tables.first_of(row, spellings)
    return columns

  def fields_of(self, value: Any) -> dict[str, Any]:
    """The fields of an element of the list given to a method of predict.Model: a text, a tuple of
    texts or a dict; InputError if it is none of these."""
    if isinstance(value, dict):
      return value
    if not isinstance(value, (str, tuple, list)):
      raise InputError(f'a {type(value).__name__} is no text, tuple of texts or dict')
    return self.from_parts((value,) if isinstance(value, str) else tuple(value))

  def element(self, fields: dict[str, Any]) -> Any:
    """Makes a record from fields that may be called as in training data; InputError as `record`."""
    self.check_names(fields)
    ours = {column: name for name, column in self._columns(fields).items() if name not in fields}
    return self.record({ours.get(name, name): x for name, x in fields.items()})

  def from_parts(self, parts: Sequence[str]) -> dict[str, Any]:
    if len(parts) != len(self.fields):
      raise InputError(
        f'{len(parts)} given where a record of this task has {len(self.fields)}: '
        f'{", ".join(self.fields)} (a line has tabs between them, Python a tuple or dict; several '
        f'records are a list){self.advice}'
      )
    return dict(zip(self.fields, parts))

  def record(self, fields: dict[str, Any]) -> Any:
    """Makes a record from a dict of fields; InputError if it cannot be one. Default: its text."""
    return texts_in(fields, self.fields, self.reads_empty)[0]

  @abc.abstractmethod
  def replies(self, records: Sequence) -> Iterable[tuple[dict | None, str]]:
    """Gives (answer, '') or (None, why there is none) for each record, in order."""

  def each(self, records: Sequence) -> Iterator[tuple[dict | None, str]]:
    """The replies to records, in place of some of which stands why it is none, an InputError."""
    replies = iter(self.replies([x for x in records if not isinstance(x, InputError)]))
    for record in records:
      yield (None, str(record)) if isinstance(record, InputError) else next(replies)

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    """The JSON-ready dict of an answer."""
    names = self.shows or [name for name in answer if name not in ('id', 'where', 'length')]
    return {name: answer[name] for name in names if name in answer}

  def returned(self, answers: list[dict | None]) -> list:
    """What the method of predict.Model called as the task returns for texts; None: no answer."""
    return [answer and self.shown(answer) for answer in answers]


class Packed(Ask):
  """An Ask whose records become Examples, which are packed into rows and batches."""

  def __init__(self, model: 'Loaded'):
    super().__init__(model)
    self._compiled = model.compiled(self.outputs)

  @abc.abstractmethod
  def examples(self, records: Sequence, problems: RecordProblems) -> Any:
    """Makes Examples of records; their answers have the number of the record as `id`."""

  @abc.abstractmethod
  def outputs(self, params: dict, batch: dict) -> dict[str, Any]:
    """The outputs for a batch that the Examples' `answers` needs, {name: array}."""

  def exported(self, params: dict, batch: dict) -> dict[str, Any]:
    """The outputs named in `exports`, {name: array}, for a batch with one example in each row."""
    outputs, exported = self.outputs(params, batch), {}
    for name, shape in self.exports.items():
      # Of each token, or of the only example.
      exported[name] = outputs[name] if '[B, T' in shape else outputs[name][:, 0]
    return exported

  def replies(self, records: Sequence) -> Iterable[tuple[dict | None, str]]:
    if not records:
      return []
    problems, answers = RecordProblems(), {}
    examples = self.examples(records, problems)
    if examples.texts:
      outputs = self.model.outputs(self._compiled, examples)
      answers = {answer['id']: answer for answer in examples.answers(outputs)}
    self.model.note(problems.counts, examples.read)
    replies = []
    for i in range(len(records)):
      why = '' if i in answers else problems.reasons.get(f'record {i}', NOTHING)
      replies.append((answers.get(i), why))
    return replies


class OfHead(Packed):
  """A Packed Ask that is answered by the head on which the model was trained."""

  examples_of: type[Any]  # the class of the family's rows, a scored.Scored

  @property
  def labels(self) -> tuple[str, ...]:
    return self.model.objective.labels

  def outputs(self, params: dict, batch: dict) -> dict[str, Any]:
    return self.model.objective.predict(params, batch)

  def config(self, row: int = 0) -> ConfigDict:
    """The model's config with rows of `row` tokens; 0: as long as its longest example."""
    config = self.model.config.copy_and_resolve_references()
    config.data.seq_length = row or self.model.limit
    config.data.examples_per_row = max(64, config.data.examples_per_row)
    config.task.max_length = self.model.limit
    return config

  def examples(self, records: Sequence, problems: RecordProblems) -> Any:
    return self.examples_of(self.config(), self.model.tokenizer, numbered(records), problems)


TOP_K = Option(int, 'how many to give; default: 5', 1)


def texts_in(
  fields: Mapping[str, Any], names: Sequence[str], may_be_empty: bool = False
) -> list[str]:
  """The texts of the named fields; InputError if one is missing or no text, or all are empty."""
  for name in names:
    if name not in fields:
      raise InputError(
        f'the record has no {name!r}; this task reads {", ".join(names)}, and it has '
        f'{listed(fields) or "nothing"}'
      )
    if not isinstance(fields[name], str):
      raise InputError(
        f'{name!r} is no text: {quoted(fields[name])}; write one in quotes, and several as a list '
        'of texts, or of records'
      )
  if not may_be_empty and not any(fields[name].strip() for name in names):
    raise Empty('empty text')
  return [fields[name] for name in names]


def nothing_in(columns: Sequence[str]) -> str:
  """The sentence about a row whose columns are all empty."""
  return f'the {" and ".join(columns)} of this row {"are" if len(columns) > 1 else "is"} empty'


def numbered(records: Sequence) -> list:
  """The records with their numbers as ids, and their places as named in faults."""
  return [record._replace(id=i, where=f'record {i}') for i, record in enumerate(records)]


def grouped(numbers: np.ndarray, *arrays: np.ndarray) -> Iterator[tuple[int, list]]:
  """Yields (number, [elements of each array]) for each run of equal adjacent numbers."""
  ends = np.flatnonzero(np.diff(numbers, append=-1)) + 1
  for start, end in itertools.pairwise([0, *ends.tolist()]):
    yield int(numbers[start]), [array[start:end] for array in arrays]
