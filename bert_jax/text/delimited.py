"""Splits the lines of TSV and CSV files into cells: finds the delimiter, and whether cells are
quoted. The rules are at the top of tables.py."""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterator

from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text.encodings import Lines

Cells = Iterator[tuple[int, list[str]]]  # line numbers, cells
_HEAD = 1000  # lines behind the first quote of a TSV file that show whether its cells are quoted
_OPENING = re.compile(r'(?:^|\t)"', re.MULTILINE)
_QUOTED = re.compile(r'"((?:[^"]|"")*)"(?=\t|\n|\Z)')  # a cell

csv.field_size_limit(2**31 - 1)  # for long documents; the default is 131,072 characters


def cells(
  path: Path, usual: str, numbered: Lines, columns: tuple[str, ...], counts: Counter
) -> tuple[str, Cells]:
  """The delimiter of a TSV or CSV file, which its first line shows, and the cells of each line.
  usual: the delimiter by its name."""
  blank, header = [], ''
  for number, line in numbered:
    blank.append((number, line))
    if line.strip():
      header = line
      break
  lines = itertools.chain(blank, numbered)
  unquoted = re.sub('"[^"]*"', '', header)
  delimiter = max(f'{usual},;|\t', key=unquoted.count)
  names = {cell.strip(' "') for cell in header.split(delimiter)}
  if columns and not names & set(columns):  # it is no header, but a row
    delimiter = usual
  if delimiter != usual:
    counts[f'tables with {delimiter!r} between their cells'] += 1
  if delimiter == '\t' == usual:
    return delimiter, _of_tabs(path, lines, counts)
  return delimiter, _csv(path, lines, delimiter, first=1)


def _of_tabs(path: Path, numbered: Lines, counts: Counter) -> Cells:
  """The cells of a TSV file; the lines from the first that quotes a cell on show if it is CSV's."""
  header, head = '', []
  for number, line in numbered:
    header = header or line
    if _OPENING.search(line):
      head = [(number, line), *itertools.islice(numbered, _HEAD)]
      break
    yield number, _split(line)
  if not head:
    return
  texts = [line for _, line in head]
  while len(head) > _HEAD and sum(text.count('"') for text in texts) % 2:
    texts.pop()  # a cell may go on behind them
  if head[0][1] != header:
    texts.insert(0, header)
  lines = itertools.chain(head, numbered)
  if _is_quoted('\n'.join(texts)):
    counts['tables with quoted cells, as in CSV'] += 1
    yield from _csv(path, lines, '\t', first=head[0][0])
    return
  counts['tables without quoting (quotes are characters)'] += 1
  for number, line in lines:
    yield number, _split(line)


def _split(line: str) -> list[str]:
  return line.split('\t')


def _is_quoted(text: str) -> bool:
  """Whether the first lines of a TSV file quote cells as pandas and Excel do, which double a quote
  in a quoted cell. In GLUE's files a quote is a character like any other, also before a cell."""
  lines, at, cells = text.split('\n'), 0, []
  while opening := _OPENING.search(text, at):
    if not (cell := _QUOTED.match(text, opening.end() - 1)):
      return False
    cells.append(cell[1])
    at = cell.end()
  if any(cell[:1] in ('\t', '\n') for cell in cells):  # a quote that is a cell, up to the next one
    return False
  if len({line.count('\t') for line in lines if line}) > 1:
    return any(re.search(r'[\t\n]', cell) for cell in cells)
  all_are = re.fullmatch('"[^\t]+"(\t"[^\t]+")*', lines[0])
  commas = [cell.count(',') for cell in cells]  # Excel quotes all cells that hold one
  of_excel = cells and all(commas) and sum(commas) == text.count(',')
  return bool(all_are or of_excel or any('""' in cell for cell in cells))


def _csv(path: Path, numbered: Lines, delimiter: str, first: int) -> Cells:
  """The cells of a table with quotes whose first line has the number `first`."""
  reader = csv.reader((line + '\n' for _, line in numbered), strict=True, delimiter=delimiter)
  start = first
  try:
    for row in reader:
      yield start, row
      start = first + reader.line_num
  except csv.Error as error:
    raise InputError(
      f'{path}:{start} is not CSV ({error}); close and double its quotes, without which no line '
      'tells where it ends'
    ) from error
