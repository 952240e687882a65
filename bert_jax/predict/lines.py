"""Reads the input of predict: lines of text or JSON from a file or stdin, or cells of a table, in
lists of at most CHUNK, which are answered together."""

import itertools
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from bert_jax.errors import InputError, log, quoted
from bert_jax.files import Path
from bert_jax.tasks.ask import Ask, nothing_in
from bert_jax.text import encodings, files, tables

CHUNK = 256  # lines that are answered together
TAGGED = '.conll', '.conllu', '.iob'  # names of files that evaluations read
AT_ONCE = 1 << 16  # bytes that are read from a stream at a time, at most


def chunks_of(
  path: str | Path, columns: Sequence[str], counts: Counter, encoding: str = ''
) -> Iterator[list[Any]]:
  """Iterates over lists of inputs: lines, as bytes, of a file, or of stdin if path is ''. With
  names of columns: for each row of a table (text/tables.py; CSV if it is stdin or a pipe) the tuple
  (its line, the row, its cells, or the InputError of a damaged one). counts: as tables.records
  counts. encoding: as data.text_encoding. What cannot be read is an InputError at once."""
  if not path and sys.stdin is None:
    raise InputError('there is no stdin; name a file with --input.')
  if not columns and not path:
    return _in_utf8(*encodings.opened('stdin', sys.stdin.buffer, encoding, lambda line: [line]))
  if Path(path).suffix in TAGGED:
    scores = f'bert_jax.evaluate --config.data.eval={path} tags and scores it'
    raise InputError(f'--input {path} is tagged text, a token a line, by its name; {scores}.')
  if columns:
    chunks = _listed(_rows(path, columns, counts, encoding), 'rows')
  else:
    chunks = _listed((raw for _, raw, _ in files.raw_lines(Path(path), 0, encoding)), 'lines')
  return itertools.chain([next(chunks)], chunks)


def _listed(values, unit):
  bar = iter(tqdm(values, unit=f' {unit}', disable=not sys.stderr.isatty()))
  return iter(lambda: list(itertools.islice(bar, CHUNK)), [])


def _rows(path, columns, counts, encoding):
  """Yields the cells of these columns of each row, or why a row has none."""
  damaged = []
  # Of its line or TFDS row: 7 for 'dev.tsv:7'.
  number = lambda where: int(re.findall(r'\d+$', where)[0])

  def wrong(where, sentence, kind):
    damaged.append((number(where), {}, InputError(f'{where}: {sentence}')))

  options = {'counts': counts, 'wrong': wrong, 'encoding': encoding}
  is_pipe = not path or files.is_pipe(path)
  stream = tables.of_pipe(Path(path or files.STDIN), **options) if is_pipe else None
  for where, row in stream or tables.records(path, **options):
    yield from damaged
    damaged.clear()
    try:
      cells = tuple(tables.column(row, name, row.header or where) for name in columns)
      if not any(map(str.strip, cells)):
        cells = InputError(nothing_in(columns))
      yield number(where), row, cells
    except InputError as error:
      if row.header:  # the same for all rows
        raise
      yield number(where), row, error
  yield from damaged


def _in_utf8(stream, encoding):
  """The chunks of stdin in UTF-8; the first that has more than ASCII shows the encoding."""
  chunk = []
  recoded = encodings.Recoder('stdin', lambda line: chunk, encoding)
  for chunk in as_they_come(stream):
    yield list(map(recoded, chunk))


def check_lines(path: str, ask: Ask) -> None:
  """InputError if a file whose lines would be read as texts is a table, by its name."""
  if (kind := files.suffix(Path(path))) == '.csv' or (kind == '.tsv' and not ask.tabs):
    columns = shlex.quote(','.join(ask.cells or map(ask.spelt, ask.fields)))
    fix = f'name the columns that hold its texts, --columns {columns}'
    raise InputError(f'--input {path} is a table; {fix}, or give its lines to stdin.')


def watched(chunks: Iterator[list[bytes]], ask: Ask) -> Iterator[list[bytes]]:
  """The same lists of lines, with a warning if the first line seems to name columns of a table."""
  for number, chunk in enumerate(chunks):
    head = encodings.decode(chunk[0], Counter()) if chunk and not number else ''
    cells = [cell.strip(' "\r\n') for cell in re.split('[,;|\t]', head)]
    names = ask.cells or ask.fields
    columns = [tables.first_of(cells, f'{ask.spelt(name)}|{name}') for name in names]
    if len(cells) > 1 and columns and all(columns):
      fix = f'if it is the header of a CSV, add --columns {shlex.quote(",".join(columns))}'
      log.warning('the first line is answered as a text, %s; %s', quoted(head.strip()), fix)
    yield chunk


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
