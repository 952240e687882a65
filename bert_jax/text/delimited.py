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
_EXCEL = re.compile('"?sep=(.)"?', re.IGNORECASE)  # a first line that names the delimiter
_HEAD = 1000  # lines behind the first quote of a TSV file that show whether its cells are quoted
_OPENING = re.compile(r'(?:^|\t)"', re.MULTILINE)
_QUOTED = re.compile(r'"((?:[^"]|"")*)"(?=\t|\n|\Z)')  # a cell

csv.field_size_limit(2**31 - 1)  # for long documents; the default is 131,072 characters


def cells(
  path: Path, usual: str, numbered: Lines, columns: tuple[str, ...], counts: Counter
) -> tuple[str, Cells]:
  """The delimiter of a TSV or CSV file, which its first line shows, and the cells of each line.
  usual: the delimiter by its name."""
  head = list(itertools.islice(numbered, _HEAD))
  match = _EXCEL.fullmatch(head[0][1])
  if match:
    delimiter, head = match[1], head[1:]
  else:
    line = next((line for _, line in head if line.strip()), '')
    delimiter = max(',;|\t', key=line.count)
    named = {cell.strip(' "') for cell in line.split(delimiter)}
    if delimiter not in line or (columns and not named & set(columns)):
      delimiter = usual
    elif usual in line:
      delimiter = max(usual, delimiter, key=lambda mark: _fitting([x for _, x in head], mark))
  if delimiter != usual:
    counts[f'tables with {delimiter!r} between their cells'] += 1
  lines = itertools.chain(head, numbered)
  if delimiter == '\t' == usual:
    return delimiter, _of_tabs(path, lines, counts)
  return delimiter, _csv(path, lines, delimiter, head[0][0] if head else 1)


def _fitting(lines: list[str], delimiter: str) -> float:
  """The share of the rows with as many cells as the first if a delimiter stands between them."""
  rows = csv.reader((x.replace('\r', ' ') + '\n' for x in lines), delimiter=delimiter)
  widths = [len(row) for row in rows if any(map(str.strip, row))]
  return widths.count(widths[0]) / len(widths)


def _of_tabs(path: Path, numbered: Lines, counts: Counter) -> Cells:
  """The cells of a TSV file; the lines from the first that quotes a cell on show if it is CSV's."""

  def plain(line):
    return line.split('\t') if line.strip(' ') else []

  first = ''
  for number, line in numbered:
    first = first or line
    if not _OPENING.search(line):
      yield number, plain(line)
      continue
    head = [(number, line), *itertools.islice(numbered, _HEAD)]
    lines = itertools.chain(head, numbered)
    texts = [line for _, line in head]
    if first != line:
      texts.insert(0, first)
    while len(head) > _HEAD and sum(text.count('"') for text in texts) % 2:
      texts.pop()  # a cell may go on behind them
    quoted = _is_quoted('\n'.join(texts))
    kind = 'with quoted cells, as in CSV' if quoted else 'without quoting (quotes are characters)'
    counts[f'tables {kind}'] += 1
    if quoted:
      yield from _csv(path, lines, '\t', number)
    else:
      yield from ((n, plain(x)) for n, x in lines)


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
    raise InputError(f'{path}:{start} is not CSV ({error}); close and double its quotes') from error
