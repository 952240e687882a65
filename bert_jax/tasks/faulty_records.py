"""Counts faults in the data of a task by kind and names the first places of each.

A record that cannot be read (a line has too few columns, a label is unknown) stops the run with an
error that names its place; with data.skip_damaged=true it is left out and counted. A fault that
harms nothing (an empty text, a wrong offset) is kept or mended, and counted. A column that a whole
file lacks, or data of which nothing can be read, stop the run in any case.
"""

import contextlib
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.errors import InputError, about, counted, log
from bert_jax.files import Path
from bert_jax.rows.examples import Examples
from bert_jax.text import files, tables, values

SPACES = 'labels with spaces around them (read without)'  # a kind of fault
NAMED = 3  # places that are named of each kind
NO_LABEL = '', '-', '-1', '-1.0'  # cells without a label, unless these are labels
NULLS = 'nan', 'null', 'n/a', '<na>', '#n/a'  # how programs write that there is no value


def is_empty(cell: str) -> bool:
  """Whether a cell has no number, as programs write it."""
  return cell.strip().lower() in ('', '-', *NULLS)


def says_no_label(cell: str) -> bool:
  """Whether a cell says that its record has no label; for tasks of which these are no labels."""
  return cell in NO_LABEL or is_empty(cell)


class Unusable(Exception):
  """A record cannot be used: (what is wrong, the kind of fault, its place if not the record's)."""


def reads(kind: str, name: str = '') -> Callable[[Callable], Callable]:
  """Decorates a generator read(config, split, problems) of examples, which it counts as `kind`.
  Raises if the split has no record. name: what data.SPLIT should name if it is empty; '': it may be
  empty."""

  def decorated(read: Callable) -> Callable:
    @functools.wraps(read)
    def wrapped(config: ConfigDict, split: str, problems: 'Problems') -> Iterator:
      if name and not config.data[split]:
        raise InputError(f'data.{split} is empty; name {name}.')
      with about(f'data.{split}'):
        for example in read(config, split, problems):
          problems.counts[kind] += 1
          yield example
        if not problems.counts[kind]:
          problems.nothing(config.data[split], kind)

    return wrapped

  return decorated


class Problems:
  """The faults in the data of one split, and its counts of records, tokens and so on.
  counts: {what is counted: number}; readers increase it, too.
  places: {kind of fault: the first places where it was met}. skip: leave out records that cannot
  be used, instead of an error. encoding: of the files, as data.text_encoding."""

  def __init__(self, split: str, skip: bool = False, encoding: str = ''):
    self.split, self.skip, self.encoding = split, skip, encoding
    self.counts, self.places = Counter(), defaultdict(list)
    self.cause, self.left_out = '', 0  # why the first record was left out; how many were
    self.unscored = ''  # why the first one that is not scored is not

  @classmethod
  def of(cls, config: ConfigDict, split: str) -> 'Problems':
    """The Problems of a split of a config's data."""
    return cls(split, config.data.skip_damaged, config.data.text_encoding)

  def lines(self, path: Path) -> Iterator[tuple[int, str]]:
    """Yields (number, line) of a file, see files.lines and files.not_json."""
    return files.not_json(path, files.lines(path, self.counts, self.encoding))

  def note(self, kind: str, where: str) -> None:
    """Counts a fault that harms nothing."""
    self.counts[kind] += 1
    if len(self.places[kind]) <= NAMED and where not in self.places[kind]:
      self.places[kind].append(where)

  def chosen(self, examples: Iterable, number: int) -> Any:
    """All examples or, in training, `number` of them (0: all), the same ones for every seed."""
    if self.split != 'train' or not number:
      return examples
    examples = list(examples)
    if number >= len(examples):
      return examples
    keep = np.random.default_rng(0).permutation(len(examples))[:number]
    self.counts['not used (task.train_examples)'] = len(examples) - number
    return [examples[i] for i in sorted(keep)]

  def wrong(self, where: str, sentence: str, kind: str) -> None:
    """Raises InputError for an unusable record, or counts it if unusable records are left out."""
    if not self.skip:
      advice = '(data.skip_damaged=true leaves such records out)'
      raise InputError(f'{where}: {sentence} {advice}.') from None
    self.leave_out(where, sentence, f'{kind} (skipped)')

  def leave_out(self, where: str, sentence: str, kind: str) -> None:
    """Counts a record that cannot be used, and remembers why the first one could not."""
    self.cause = self.cause or f'{where}: {sentence}'
    self.left_out += 1
    self.note(kind, where)

  def lacks(self, what: str, where: str, split: str, more: str = '') -> bool:
    """Counts a record without `what`, such as a label; whether to leave it out, as in training.
    more: ends the sentence about the first one."""
    sentence = f'it is without {what}{more}'
    if split != 'train':
      self.unscored = self.unscored or f'{where}: {sentence}'
      self.counts[f'without {what} (predicted, not scored)'] += 1
      return False
    self.leave_out(where, sentence, f'without {what} (left out of training)')
    return True

  @contextlib.contextmanager
  def of_record(self, where: str, layout: str = '', kind: str = '') -> Iterator[None]:
    """The block that reads a record: if it raises Unusable, the record is `wrong`. layout: the
    sentence about a record that lacks what the block looks up, and `kind` its kind of fault."""
    try:
      yield
    except Unusable as error:
      sentence, kind, place = (*error.args, where)[:3]
      self.wrong(place, sentence, kind)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
      if not layout or isinstance(error, InputError):
        raise
      self.wrong(where, f'{layout} ({error!r:.100})', kind)

  def nothing(self, spec: str, kind: str) -> None:
    """Raises InputError for data that holds no records of a kind, such as 'questions'."""
    spec = files.called(spec)
    if self.cause:
      raise InputError(
        f'data.{self.split}={spec} holds no {kind}; all {self.left_out:,} records were left out, '
        f'the first of them since {self.cause}.'
      )
    raise InputError(f'data.{self.split}={spec} holds no {kind}; is it the right file?')

  def rows(
    self, spec: str, of: str = '', columns: tuple[str, ...] = ()
  ) -> Iterator[tuple[str, tables.Row]]:
    """(where, row) of each row of a split, see tables.records. of: the split, if not self.split."""
    return tables.records(
      spec,
      split='train' if (of or self.split) == 'train' else 'validation',
      columns=columns,
      counts=self.counts,
      wrong=self.wrong,
      encoding=self.encoding,
    )

  def columns(
    self, row: tables.Row, names: Iterable[str], where: str, advice: str = 'rename one'
  ) -> list[str]:
    """The values of some columns of a row; Unusable if one is missing, InputError if no row has
    it."""
    try:
      return [tables.column(row, name, where, advice) for name in names]
    except tables.NoColumn as error:
      raise InputError(f'{error}.') from None
    except InputError as error:
      fault = str(error).removeprefix(f'{where} ')
      raise Unusable(fault, 'rows without a text in a column') from None

  def json(self, path: Path, where: str) -> Any:
    """The value in a JSON file; None, and it is `wrong`, if it is no JSON."""
    lines = files.lines(path, self.counts, self.encoding)
    try:
      value, halves = values.json_text('\n'.join(line for _, line in lines))
    except values.NotJson as error:
      place = f'{where}:{error.line}' if error.line else where
      return self.wrong(place, f'this is {error}; fetch the file again', 'damaged files')
    if halves:
      self.counts['half_characters'] += halves
    return value

  def log(self, source: Examples | None = None) -> None:
    """Logs how many rows the examples of `source` take, and all counts, with places of faults."""
    if source is not None:
      number, rows = len(source.texts), len(source)
      sequences = f' ({number:,} sequences)' if number > source.size else ''
      log.info(
        f'{self.split}: {counted(source.size, "examples")}{sequences} in {counted(rows, "rows")} '
        f'of {source.seq_length} tokens ({number / max(1, rows):.1f} in each, '
        f'{100 * source.fill:.0f} % filled)'
      )
    parts = []
    for kind, number in self.counts.items():
      # Others hold the name of a field, such as task.train_examples.
      words = kind if ' ' in kind else kind.replace('_', ' ')
      shown = self.places.get(kind, [])
      if len(shown) > NAMED:
        shown = [*shown[:NAMED], '...']
      places = f' ({", ".join(shown)})' if shown else ''
      parts.append(counted(number, words) + places)
    if parts:
      is_less = self.left_out or self.unscored
      is_changed = self.counts['invalid_utf8_lines'] or self.counts[SPACES]
      say = log.warning if is_less or is_changed else log.info
      say('%s: %s', self.split, ', '.join(parts))
