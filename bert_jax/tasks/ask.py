"""The base classes of questions to a trained model: records in, answers as dicts out."""

import abc
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.errors import InputError, listed, log, quoted
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.record import Option
from bert_jax.text import tables

if TYPE_CHECKING:
  from bert_jax.predict.model import Model

# Columns that name a row: as GLUE numbers its test sets, and GAP in capitals.
ID_COLUMNS = 'index|idx|id|ID'
UNREAD = 'records with fields that are not read and not in the answers'
EMPTY = 'records of which one text is empty (answered)'
NOTHING = 'nothing of it can be answered: it has no token'


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
  shows: the keys of an answer that are shown; (): all. exports: {output of the exported program:
  shape}; {}: none. The arguments of __init__ but the model are the options of its Prediction."""

  fields: tuple[str, ...] = ('text',)
  others: tuple[str, ...] = ()
  columns: Mapping[str, str] = {}
  tabs: bool = False
  shows: tuple[str, ...] = ()
  exports: Mapping[str, str] = {}

  def __init__(self, model: 'Model'):
    self.model = model

  @property
  def labels(self) -> tuple[str, ...]:
    """The names along the last axis of logits."""
    return ()

  def of_table(self, rows: Sequence[Mapping[str, Any]], task: str) -> list[Any]:
    """The records of the rows of a table, in place of some the InputError why they are none. Fields
    that are numbers are read as texts. InputError: the table lacks a column."""
    if not rows:
      return []
    there, is_whole = self._columns(rows[0]), any(x in rows[0] for x in self.others)
    if lost := [x for x in self.fields if not (there[x] or is_whole)]:
      fault = f'{task}: the table has no column {quoted(self.spelt(lost[0]))}'
      fault += f', only {listed(rows[0])}{tables.resembling(self.spelt(lost[0]), rows[0])}'
      raise InputError(f'{fault}; rename one, or give its values as a list.')

    def record(row):
      held = {x: row[column] for x, column in there.items() if column and row[column] is not None}
      is_text = lambda x: x in self.fields and not isinstance(held[x], (list, dict))
      held |= {x: tables.text_of(y) for x, y in held.items() if is_text(x)}
      if not is_whole:
        held = dict.fromkeys(self.fields, '') | held  # a null is an empty text
        if not any(str(held[x]).strip() for x in self.fields):
          return InputError(nothing_in([there[x] for x in self.fields]))
      try:
        return self.parsed(held)
      except InputError as error:
        return error

    return [record(row) for row in rows]

  def spelt(self, field: str) -> str:
    """What a field of the task was called in the training data, or the field."""
    block, _, name = self.columns.get(field, '').partition('.')
    return self.model.config.get(block, {}).get(name) or field

  def identity(self, row: Mapping[str, Any]) -> dict[str, Any]:
    """{'id': what names a row}, or {}."""
    name = self._id_column(row)
    return {'id': row[name]} if name else {}

  def _id_column(self, row):
    """The column that names a row, called as in the training data or one of ID_COLUMNS; ''."""
    return tables.first_of(row, f'{self.spelt("id")}|{ID_COLUMNS}')

  def _columns(self, row):
    """{field: its column in a row, called as in training data or as the field is; '': none}."""
    names = lambda x: f'{self.spelt(x)}|{x}|{x.capitalize()}'
    return {x: tables.first_of(row, names(x)) for x in (*self.fields, *self.others)}

  def parsed(self, value: Any) -> Any:
    """Makes a record from a text, or a tuple or dict of fields; InputError if it cannot be one."""
    if not isinstance(value, (str, tuple, list, dict)):
      raise InputError(f'a {type(value).__name__} is no text, tuple of texts or dict')
    if not isinstance(value, dict):
      value = self.from_parts((value,) if isinstance(value, str) else tuple(value))
    record = self.record(value)
    known = {*self.fields, *self.others, *ID_COLUMNS.split('|'), self.spelt('id')}
    if unread := [name for name in value if name not in known]:
      if not self.model.counts[UNREAD]:
        log.warning('this task does not read the field %r of a record', min(map(str, unread)))
      self.model.counts[UNREAD] += 1
    if any(isinstance(x := value.get(name), str) and not x.strip() for name in self.fields):
      self.model.counts[EMPTY] += 1
    return record

  def element(self, value: Any) -> Any:
    """Makes a record from an element of the list given to a method of predict.Model: as `parsed`;
    the fields of a dict may be called as in training data."""
    if isinstance(value, dict):
      fields = {column: x for x, column in self._columns(value).items() if x not in value}
      value = {fields.get(name, name): x for name, x in value.items()}
    return self.parsed(value)

  def from_parts(self, parts: Sequence[str]) -> dict[str, Any]:
    if len(parts) != len(self.fields):
      fault = f'a line has {len(parts)} of the fields that this task reads between tabs'
      raise InputError(f'{fault}: {", ".join(self.fields)}')
    return dict(zip(self.fields, parts))

  def record(self, fields: dict[str, Any]) -> Any:
    """Makes a record from a dict of fields; InputError if it cannot be one. Default: its text."""
    return texts_in(fields, self.fields)[0]

  @abc.abstractmethod
  def replies(self, records: Sequence) -> Iterable[tuple[dict | None, str]]:
    """Gives (answer, '') or (None, why there is none) for each record, in order."""

  def each(self, records: Sequence) -> Iterator[tuple[dict | None, str]]:
    """The replies to records, in place of some of which stands why it is none, an InputError."""
    replies = iter(self.replies([x for x in records if not isinstance(x, InputError)]))
    return ((None, str(x)) if isinstance(x, InputError) else next(replies) for x in records)

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    """The JSON-ready dict of an answer."""
    names = self.shows or [name for name in answer if name not in ('id', 'where', 'length')]
    return {name: answer[name] for name in names}

  def returned(self, answers: list[dict | None]) -> list:
    """Converts answers, some of them None, to the return value of a method of predict.Model."""
    return [answer and self.shown(answer) for answer in answers]


class Packed(Ask):
  """An Ask whose records become Examples, which are packed into rows and batches."""

  def __init__(self, model: 'Model'):
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
    outputs = self.outputs(params, batch)
    chosen = lambda shape: slice(None) if '[B, T' in shape else 0  # each token, or the only example
    return {name: outputs[name][:, chosen(shape)] for name, shape in self.exports.items()}

  def replies(self, records: Sequence) -> Iterable[tuple[dict | None, str]]:
    if not records:
      return []
    problems, answers = RecordProblems(), {}
    examples = self.examples(records, problems)
    if examples.texts:
      outputs = self.model.outputs(self._compiled, examples)
      answers = {answer['id']: answer for answer in examples.answers(outputs)}
    self.model.note(problems.counts, examples.read)
    reasons = (problems.reasons.get(f'record {i}', NOTHING) for i in range(len(records)))
    return [(answers[i], '') if i in answers else (None, why) for i, why in enumerate(reasons)]


class OfHead(Packed):
  """A Packed Ask that is answered by the head on which the model was trained."""

  examples_of: type[Any]  # the class of the family's rows, a labelled.Scored

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


LENGTH_PENALTY = Option(float, 'higher ones favour long texts', -100, 100)
TOP_K = Option(int, 'how many to give; default: 5', 1)


def texts_in(fields: Mapping[str, Any], names: Sequence[str]) -> list[str]:
  """The texts of the named fields; InputError if one is missing or no text, or all are empty."""
  for name in names:
    if name not in fields:
      reads = f'this task reads {", ".join(names)}, and it has {listed(fields) or "nothing"}'
      raise InputError(f'the record has no {name!r}; {reads}')
    if not isinstance(fields[name], str):
      raise InputError(f'{name!r} is no text; write it in quotes')
  if not any(fields[name].strip() for name in names):
    raise InputError('empty line')
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
