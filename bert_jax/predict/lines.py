"""Reads the input of predict in lists of at most CHUNK, which are answered together: lines of stdin
as they come, lines of a file, or rows of a table.

What is read is (number, value): a line as a str, a row as a dict, or the InputError of a damaged
row. A row's number is that of its line.
"""

import codecs
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text import files, tables

CHUNK = 256  # lines that are answered together
AT_ONCE = 1 << 16  # bytes that are read from a stream at a time, at most
TABLES = {*tables.SUFFIXES} - {'.jsonl', '.json'}

Chunks = Iterator[list[tuple[int, Any]]]


def is_table(path: str) -> bool:
  return files.suffix(Path(path)) in TABLES


def of_stdin(counts: Counter) -> Chunks:
  """The lines of stdin: all that are there, at once."""
  if sys.stdin is None:
    raise InputError('there is no stdin; name a file with --input.')
  decoder = codecs.getincrementaldecoder('utf-8-sig')(errors='replace')
  numbers = itertools.count(1)
  rest = ''
  stream: Any = sys.stdin.buffer
  while data := stream.read1(AT_ONCE):  # waits until there is something
    *lines, rest = (rest + decoder.decode(data)).split('\n')
    counts['invalid_utf8_lines'] += sum('\ufffd' in line for line in lines)
    for start in range(0, len(lines), CHUNK):
      yield [(next(numbers), line) for line in lines[start : start + CHUNK]]
  rest += decoder.decode(b'', final=True)
  if rest:
    yield [(next(numbers), rest)]


def of_file(path: str, encoding: str, counts: Counter) -> Chunks:
  """The lines of a file. counts: see files.lines."""
  yield from _in_chunks(files.lines(Path(path), counts, encoding), 'lines')


def of_table(path: str, encoding: str, counts: Counter) -> Chunks:
  """The rows of a table, see text/tables.py."""
  yield from _in_chunks(_rows(path, encoding, counts), 'rows')


def _rows(path, encoding, counts):
  damaged = []

  def wrong(where, sentence, kind):
    damaged.append((_number(where), InputError(f'{where}: {sentence}')))

  for where, row in tables.records(path, counts=counts, wrong=wrong, encoding=encoding):
    yield from damaged
    damaged.clear()
    yield _number(where), row
  yield from damaged


def _number(where):
  """The number of a line or row: 7 of 'dev.tsv:7'."""
  (number,) = re.findall(r'\d+$', where)
  return int(number)


def _in_chunks(values, unit):
  bar = iter(tqdm(values, unit=f' {unit}', disable=not sys.stderr.isatty()))
  while chunk := list(itertools.islice(bar, CHUNK)):
    yield chunk
