"""Labelled records: one (where, row) per line of a TSV, CSV or JSONL file, or of a TFDS dataset.

A row is a dict of strings whatever it came from; `where` is 'dev.tsv:17'.

  .tsv            a header line, tabs; cells are quoted if those behind the first quote are, as
                  pandas and Excel write them; in GLUE's files a quote is a plain character
  .csv            RFC 4180: a header line, commas, quoted fields may hold commas and line breaks
                  A .tsv or .csv whose header has more of ; | , or tabs than of its delimiter is
                  split at that one, quoted as in a .csv
  .jsonl, .json   (also .ndjson, .jsonlines) one object a line; a value that is not a string is
                  kept as its JSON text, and a null is left out
  .parquet, .arrow, .feather, hf:NAME (arrow.py), tfds:NAME (tfds.py)    a row is what a
                  line of .jsonl with its values is; classes have names, and rows count from 0

A column of objects, such as answers, also gives a column for each of their fields, answers.text.
A file of lines may be compressed (.gz, .zst); a glob or a folder reads its files in turn.
"""

import datetime
import json
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

from bert_jax.errors import InputError, listed, suggestion
from bert_jax.files import Path
from bert_jax.text import delimited, files, record_sources
from bert_jax.text.encodings import Lines
from bert_jax.text.files import lines, parse_json, split_files, suffix


class Row(dict[str, str]):
  """One record as {column: value}. header: what names the columns of all rows, such as the
  line 'dev.tsv:1', or ''.
  no_text: {column of JSON without a text: what is there}. record: what it was made of, whose values
  have types; {}: cells of text."""

  header = ''
  no_text: Mapping[str, str] = {}
  record: Mapping[str, Any] = {}


NULL = 'null'  # what is there of a column without a value
Wrong = Callable[[str, str, str], Any]  # (where, sentence, kind)


def stop(where: str, sentence: str, kind: str) -> None:
  """InputError for a faulty record; tasks/faulty_records.py can count them instead."""
  raise InputError(f'{where}: {sentence}.')


def records(
  spec: str,
  *,
  split: str = 'train',
  columns: tuple[str, ...] = (),
  counts: Counter,
  wrong: Wrong = stop,
  encoding: str = '',
) -> Iterator[tuple[str, Row]]:
  """Yields (where, row) in file order.
  spec: file, glob, folder, or the name of a set, `tfds:` or `hf:`; or several of these,
  `a=SPEC,b=SPEC`. split: of a set whose name has none. columns: the columns of TSV and CSV files
  that have no header line, such as CoLA's; a first line that holds one of these names is a header,
  and the last column may be missing. counts: increased are files, bytes, records, blank_lines,
  invalid_utf8_lines. wrong: called for a line that has not the header's columns or is no JSON
  object; if it returns, the line is left out. encoding: as data.text_encoding."""

  reader = _Reader(columns, counts, wrong, encoding)
  before = counts['records']
  for where_and_row in reader.of_spec(spec, split):
    counts['records'] += 1
    yield where_and_row
  if counts['records'] == before:
    raise InputError(f'{spec} holds no records, at most a header; give a file with at least one')


class _Reader(NamedTuple):
  """How tables are read: the arguments of `records`."""

  columns: tuple[str, ...]
  counts: Counter
  wrong: Wrong
  encoding: str

  def of_spec(self, spec: str, split: str) -> Iterator[tuple[str, Row]]:
    for _, part in files.parts(spec):
      if files.is_named(part):
        yield from self.of_records(part, split)
        continue
      for path in split_files(part, split, one=split != 'train'):
        if suffix(path) in files.RECORDS:
          self.counts['files'] += 1
          yield from self.of_records(str(path), split)
        else:
          yield from self.of_lines(path)

  def of_records(self, path: str, split: str) -> Iterator[tuple[str, Row]]:
    for portion in record_sources.portions(path, split):
      for where, record in record_sources.rows(portion, self.counts):
        row = row_of(record)
        row.header, _, _ = where.rpartition(':')
        yield where, row

  def of_lines(self, path: Path) -> Iterator[tuple[str, Row]]:
    """The rows of a file of lines."""
    kind = suffix(path)
    numbered = lines(path, self.counts, self.encoding)
    if kind in _DELIMITERS:
      rows = self.of_cells(path, _DELIMITERS[kind], numbered)
    elif kind in SUFFIXES:
      rows = self.of_json(path, numbered)
    else:
      raise InputError(
        f'{path} is no table by its name; save a sheet as CSV, unpack what is packed (but .gz and '
        '.zst), or call a table .csv, .tsv, .jsonl or .parquet'
      )
    for number, row in rows:
      yield f'{path.name}:{number}', row

  def of_json(self, path: Path, numbered: Lines) -> Iterator[tuple[int, Row]]:
    for number, line in numbered:
      if not line.strip():
        self.counts['blank_lines'] += 1
        continue
      where = f'{path}:{number}'
      try:
        row = parse_json(line, where, self.counts)
      except InputError as error:
        self.wrong(where, str(error).removeprefix(f'{where} is '), 'lines without JSON')
      else:
        yield number, row_of(row)

  def of_cells(self, path: Path, usual: str, numbered: Lines) -> Iterator[tuple[int, Row]]:
    """The rows of a TSV or CSV file; usual: the delimiter by its name. Rows without a value and
    columns without a name, as Excel adds them, are left out and counted."""
    delimiter, rows = delimited.cells(path, usual, numbered, self.columns, self.counts)
    names: dict[int, str] = {}  # {column: its name}
    header = ''  # the place of the header line
    for number, cells in rows:
      where = f'{path}:{number}'
      if not any(map(str.strip, cells)):
        self.counts['blank_lines'] += 1
        continue
      if not names and (not self.columns or set(self.columns) & set(cells)):
        names, header = _header(cells, where), f'{path.name}:{number}'
        unnamed = len(cells) - len(names)
        if unnamed:
          self.counts['columns without a name (left out)'] += unnamed
        continue
      if not names:  # there is no header line; a test set may lack the last column, the label
        is_test = len(cells) == len(self.columns) - 1
        names = dict(enumerate(self.columns[:-1] if is_test else self.columns))
      width = max(names) + 1
      if len(cells) < width or any(map(str.strip, cells[width:])):
        found = f'{len(cells)} columns where {width} are expected ({listed(names.values())})'
        advice = 'repair or remove the line, or add a header if the file has none'
        self.wrong(where, f'{found}; {advice}', 'lines with another number of columns')
        continue
      row = Row((name, cells[i]) for i, name in names.items())
      row.header = header
      yield number, row


def first_of(names: Container[str], spellings: str) -> str:
  """The first of the spellings, a|b, that is among some names, such as the columns of a row; ''."""
  return next((name for name in spellings.split('|') if name in names), '')


class NoColumn(InputError):
  """No row of a file or frame has a column."""


def column(row: Row, name: str, where: str, advice: str = 'name one of these') -> str:
  """The row's value in a column, see first_of, or an InputError with advice if there is none, and
  NoColumn if no row has it. A null is an empty text, as an empty cell of a CSV file is: pandas
  makes one of the other."""
  there = first_of(row, name) or first_of(row.no_text, name)  # a null is in no_text alone
  kind = row.no_text.get(there, NULL)
  if kind != NULL:
    raise InputError(f'{where} has {kind} in column {there!r}; write a text there')
  if there:
    return row.get(there, '')
  there = f'{listed(columns_of(row))}{suggestion(name, columns_of(row))}'
  lacks = f'has no column {name!r}, only {there}; {advice}'
  if row.header and NULL not in row.no_text.values():
    raise NoColumn(f'{row.header} {lacks}')
  raise InputError(f'{where} {lacks}')  # a null may be a record whose fields are columns


def columns_of(row: Row) -> list[str]:
  """The names of all columns of a row, but for the index of pandas."""
  names = dict.fromkeys((*row, *row.no_text))
  return [name for name in names if not name.startswith('__index_level_')]


def with_nulls(row: Row) -> dict[str, str]:
  """The values of a row, also of its nulls, which are empty texts as in `column`."""
  return dict.fromkeys((x for x, kind in row.no_text.items() if kind == NULL), '') | row


_DELIMITERS = {'.tsv': '\t', '.csv': ','}
SUFFIXES = *_DELIMITERS, '.jsonl', '.json', *files.RECORDS
_NO_TEXT = {type(None): NULL, list: 'a list', dict: 'an object'}


def row_of(record: Mapping[str, Any]) -> Row:
  """The row of a record, such as an object of JSON; of an object in it, also its fields."""
  row = Row({key: text_of(x) for key, x in record.items() if x is not None})
  row.record = record
  row.no_text = {key: _NO_TEXT[type(x)] for key, x in record.items() if type(x) in _NO_TEXT}
  for key, fields in record.items():
    if type(fields) is dict:
      inner = row_of({f'{key}.{name}': x for name, x in fields.items()})
      row.no_text = {k: x for k, x in inner.no_text.items() if k not in record} | row.no_text
      row.update((name, x) for name, x in inner.items() if name not in record)
  return row


def fields(row: Row, name: str) -> Row:
  """The fields of the object in a column, which are columns themselves, NAME.FIELD."""
  return Row((k[len(name) + 1 :], x) for k, x in row.items() if k.startswith(f'{name}.'))


def text_of(value: Any) -> str:
  """A value as text: itself, or JSON, a whole number without decimals, since pandas makes floats
  of integers beside a null; a date or the like as Python prints it, without a midnight, which
  pandas leaves out of the CSV of a column that has no other time."""
  if isinstance(value, datetime.datetime):
    return str(value).removesuffix(' 00:00:00')
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  is_json = isinstance(value, (int, float, list, dict))
  return json.dumps(value, ensure_ascii=False, default=text_of) if is_json else str(value)


def _header(cells: list[str], where: str) -> dict[int, str]:
  """{column: its name} of a header line."""
  names = {i: cell.strip() for i, cell in enumerate(cells) if cell.strip()}
  several = Counter(names.values())
  twice = [name for name, count in several.items() if count > 1]
  if twice:
    raise InputError(
      f'{where} is no header, since {listed(twice)} stands there twice: {listed(names.values())}; '
      'rename one or, if the file has no header, name its columns with table.columns'
    )
  return names
