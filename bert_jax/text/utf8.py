"""Decodes text: invalid UTF-8 is repaired and counted, NUL bytes are refused."""

import contextlib
import functools
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from bert_jax.errors import InputError, log

Lines = Iterator[tuple[int, str]]  # line numbers from 1, lines without their ends


def decode(raw: bytes, counts: Counter) -> str:
  """Decodes UTF-8; invalid bytes become U+FFFD and are counted."""
  try:
    return raw.decode()
  except UnicodeDecodeError:
    counts['invalid_utf8_lines'] += 1
    return raw.decode(errors='replace')


def decoded(path: Path, numbered: Iterable[tuple[int, bytes]], counts: Counter) -> Lines:
  """Decodes numbered raw lines and strips byte order mark and line ends; refuses NUL bytes."""
  for number, raw in numbered:
    if b'\0' in raw:
      where = f'line {number} has a NUL byte, {raw.index(0)} bytes in'
      raise InputError(f'{path} is not text: {where}; leave the file out, or write it as UTF-8')
    counts['bytes'] += len(raw)
    invalid = counts['invalid_utf8_lines']
    line = decode(raw, counts)
    if counts['invalid_utf8_lines'] > invalid == 0:
      _not_utf8(path, number)
    if number == 1 and line[:1] == '\ufeff':
      counts['byte order marks (left out)'] += 1
      line = line[1:]
    if line.endswith('\r\n'):
      counts['lines that end in CRLF (as in LF)'] += 1
    yield number, line.rstrip('\r\n')


def decoded_lines(path: Path, data: bytes, first: int, counts: Counter) -> Lines:
  """Decodes the lines of `data`, numbered from `first`, like `decoded`, but at once if it can."""
  with contextlib.suppress(UnicodeDecodeError):
    text = data.decode()
    plain = text.replace('\r\n', '\n')
    if '\0' not in plain and '\r' not in plain and not (first == 1 and plain[:1] == '\ufeff'):
      counts['bytes'] += len(data)
      if ends := len(text) - len(plain):
        counts['lines that end in CRLF (as in LF)'] += ends
      return enumerate(plain.removesuffix('\n').split('\n') if plain else (), first)
  return decoded(path, enumerate(io.BytesIO(data), first), counts)


@functools.cache
def _not_utf8(path: Path, number: int) -> None:
  """Logs a line that is not UTF-8, once, however often its file is read."""
  effect = (
    'bad bytes become U+FFFD, here and in other lines, which are counted (invalid_utf8_lines)'
  )
  advice = 'if they are letters, save it as UTF-8, or: iconv -f cp1252 -t utf-8'
  log.warning('%s:%d is not valid UTF-8; %s; %s', path, number, effect, advice)
