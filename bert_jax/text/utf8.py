"""Decodes text: invalid UTF-8 is repaired and counted, NUL bytes are refused."""

import contextlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator

from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text import encodings

Lines = Iterator[tuple[int, str]]  # line numbers from 1, lines without their ends


def decode(raw: bytes, counts: Counter) -> str:
  """Decodes UTF-8; invalid bytes become U+FFFD and are counted."""
  try:
    return raw.decode()
  except UnicodeDecodeError:
    counts['invalid_utf8_lines'] += 1
    return raw.decode(errors='replace')


def decoded(path: Path, numbered: Iterable[tuple[int, bytes]], counts: Counter) -> Lines:
  """Decodes numbered raw lines and strips line ends; refuses NUL bytes."""
  for number, raw in numbered:
    if b'\0' in raw:
      where = f'line {number} has a NUL byte, {raw.index(0)} bytes in'
      advice = f'leave the file out, or name what it is (utf-16-le) in {encodings.FIELD}'
      raise InputError(f'{path} is not text: {where}; {advice}')
    counts['bytes'] += len(raw)
    invalid = counts['invalid_utf8_lines']
    line = decode(raw, counts)
    if counts['invalid_utf8_lines'] > invalid == 0:
      fix = f'they become U+FFFD, counted; for letters, name another encoding in {encodings.FIELD}'
      encodings.say_once(f'{path}:{number}', 'has bytes that are no characters', fix)
    if line.endswith('\r\n'):
      counts['lines that end in CRLF (as in LF)'] += 1
    yield number, line.rstrip('\r\n')


def decoded_lines(path: Path, data: bytes, first: int, counts: Counter) -> Lines:
  """Decodes the lines of `data`, numbered from `first`, like `decoded`, but at once if it can."""
  with contextlib.suppress(UnicodeDecodeError):
    text = data.decode()
    plain = text.replace('\r\n', '\n')
    if '\0' not in plain and '\r' not in plain:
      counts['bytes'] += len(data)
      if ends := len(text) - len(plain):
        counts['lines that end in CRLF (as in LF)'] += ends
      return enumerate(plain.removesuffix('\n').split('\n') if plain else (), first)
  return decoded(path, enumerate(io.BytesIO(data), first), counts)
