"""Reads the input of predict: lines of text or JSON from a file or stdin, or cells of a table, in
lists of at most CHUNK, which are answered together."""

import codecs
import itertools
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bert_jax.errors import InputError
from bert_jax.tasks.ask import Ask, is_id
from bert_jax.text import files, tables

log = logging.getLogger('bert_jax')

CHUNK = 256  # lines that are answered together
TAGGED = '.conll', '.conllu', '.iob'  # names of files that evaluations read
AT_ONCE = 1 << 16  # bytes that are read from a stream at a time, at most


def chunks_of(path: str | Path, columns: Sequence[str], counts: Counter) -> Iterator[list[Any]]:
  """Iterates over lists of inputs: lines, as bytes, of a file, or of stdin if path is ''. With
  names of columns: for each row of a table (text/tables.py) the tuple (its line, {'id': its id} or
  {}, its cells, or an InputError if it is damaged). counts: as tables.records counts. InputError at
  once if the input cannot be read."""
  if not columns and not path:
    if sys.stdin is None:
      raise InputError('there is no stdin; name a file with --input.')
    return _without_mark(as_they_come(sys.stdin.buffer))
  if Path(path).suffix in TAGGED:
    scores = f'bert_jax.evaluate --config.data.eval={path} tags and scores it'
    raise InputError(f'--input {path} is tagged text, a token a line, by its name; {scores}.')
  if columns:
    chunks = _listed(_rows(path, columns, counts), 'rows')
  else:
    chunks = _without_mark(_listed((raw for _, raw, _ in files.raw_lines(Path(path))), 'lines'))
  return itertools.chain([next(chunks)], chunks)


def _listed(values, unit):
  """Iterates over the values in lists, with a progress bar."""
  bar = iter(tqdm(values, unit=f' {unit}', disable=not sys.stderr.isatty()))
  return iter(lambda: list(itertools.islice(bar, CHUNK)), [])


def _rows(path, columns, counts):
  """Yields the cells of these columns of each row, or why a row has none."""
  damaged = []
  # Of its line or TFDS row: 7 for 'dev.tsv:7'.
  number = lambda where: int(re.findall(r'\d+$', where)[0])

  def wrong(where, sentence, kind):
    damaged.append((number(where), {}, InputError(f'{where}: {sentence}')))

  for where, row in tables.records(path, counts=counts, wrong=wrong):
    yield from damaged
    damaged.clear()
    ids = [row[name] for name in row if is_id(name)]
    identity = {'id': ids[0]} if ids else {}
    try:
      cells = tuple(tables.column(row, name, row.header or where) for name in columns)
      if not any(map(str.strip, cells)):
        cells = InputError(f'the {" and ".join(columns)} of this row is empty')
      yield number(where), identity, cells
    except InputError as error:
      if row.header:  # the same for all rows
        raise
      yield number(where), identity, error
  yield from damaged


def _without_mark(chunks):
  """Removes a byte order mark from the first line; InputError for the mark of UTF-16."""
  for i, chunk in enumerate(chunks):
    if i == 0:
      if chunk[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError('the input is UTF-16; convert it first: iconv -f utf-16 -t utf-8.')
      chunk[0] = chunk[0].removeprefix(codecs.BOM_UTF8)
    yield chunk


def named_if_table(chunks: Iterable[list[bytes]], path: str, ask: Ask) -> Iterator[list[bytes]]:
  """Yields the chunks; warns if the file looks like a table, which is then read as plain lines.
  path: '' for stdin."""
  for i, chunk in enumerate(chunks):
    if i == 0 and _is_table(path, chunk[0].decode(errors='replace').strip(), ask):
      whole = '%s looks like a table and each line is read whole, as a text: name the columns'
      named = path or 'the input', path or 'FILE', ','.join(ask.fields)
      log.warning(f'{whole} that hold its texts, --input %s --columns %s', *named)
    yield chunk


def _is_table(path, line, ask):
  """Whether the first line is a table's, by the file's name or the column that a run has read."""
  if line.startswith('{'):
    return False
  kind, columns = files.suffix(Path(path)), ask.model.family.text_columns(ask.model.config)
  cells = [cell.strip(' "') for cell in re.split(r'[,;|\t]', line)]
  named = len(cells) > 1 and not set(columns).isdisjoint(cells)
  return named or kind == '.csv' or (kind == '.tsv' and not ask.tabs)


def as_they_come(stream: Any) -> Iterator[list[bytes]]:
  """Yields lists of the lines of a stream of bytes: all that are there, at most CHUNK."""
  parts = []
  while part := stream.read1(AT_ONCE):  # waits until there is something
    parts.append(part)
    if b'\n' in part:
      *lines, last = b''.join(parts).split(b'\n')
      parts = [last]
      for at in range(0, len(lines), CHUNK):
        yield [line + b'\n' for line in lines[at : at + CHUNK]]
  if any(parts):
    yield [b''.join(parts)]
