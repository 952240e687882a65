"""Decodes the lines of text files.

A byte order mark tells UTF-8, UTF-16 or UTF-32. Else a file is in the encoding that the user names
(data.text_encoding), else UTF-8. Bytes that are no characters become U+FFFD and are counted, but
the line is drawn here: once a file that is taken for UTF-8 has two or more of them, and more than
one in a thousand of its bytes so far, it is no UTF-8, and is refused. `data.text_encoding=utf-8`
reads it nevertheless. NUL bytes are refused.
"""

import codecs
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax.errors import InputError, quoted
from bert_jax.files import Path

MARKS = {codecs.BOM_UTF32_LE: 'utf-32', codecs.BOM_UTF32_BE: 'utf-32'}
MARKS |= {codecs.BOM_UTF16_LE: 'utf-16', codecs.BOM_UTF16_BE: 'utf-16'}  # UTF-32's begins so, too
# How what `unpack` is for begins: zip, bzip2, xz, 7z, rar, gzip, zstd and, later, tar.
PACKED = re.compile(
  rb'PK\x03\x04|BZh\d1AY&SY|\xfd7zXZ\0|7z\xbc\xaf|Rar!\x1a|\x1f\x8b\x08|\x28\xb5\x2f\xfd|.{257}ustar',
  re.DOTALL,
)
SAMPLE = 1 << 13  # bytes of a file that are looked at before it is read
MOST_BAD = 0.001  # share of the bytes of a file of UTF-8 that are no characters
# What may be proposed for a file that is not UTF-8.
PROPOSED = ['cp1252', 'cp1250', 'cp1251', 'cp1253', 'cp1254', 'cp1255', 'cp1256']
PROPOSED += ['gb18030', 'big5', 'cp932', 'cp949', 'koi8_r']
FIELD = 'data.text_encoding (--text-encoding)'

Lines = Iterator[tuple[int, str]]  # line numbers from 1, lines without their ends


def opened(path: object, stream: Any, named: str) -> tuple[Any, bool]:
  """(a stream of bytes in UTF-8 without its mark, whether it is to be Checked) of one that can be
  looked ahead into (peek). named: an encoding or ''. InputError: the file is an archive, or packed
  in another way than its name says."""
  try:
    bytes(1).decode(named or 'utf-8', 'replace')
  except (LookupError, ValueError):
    raise InputError(f'{FIELD} {quoted(named)} is no encoding; use one such as cp1251') from None
  head = stream.peek(SAMPLE) if hasattr(stream, 'peek') else b''
  if PACKED.match(head):
    raise InputError(
      f'{path} is packed, as .zip, .bz2, .xz, .tar and .xlsx are; unpack it (texts may stay packed '
      'as .gz or .zst alone), or save a sheet as CSV'
    )
  if head.startswith(codecs.BOM_UTF8):
    stream.read(len(codecs.BOM_UTF8))
    return stream, False
  for mark, encoding in MARKS.items():
    if head.startswith(mark):
      return _recoded(stream, encoding), False
  if not named or codecs.lookup(named).name == 'utf-8':
    return stream, not named
  return _recoded(stream, named), False


class _Recoded:
  """The lines of a stream in another encoding as UTF-8."""

  def __init__(self, stream: io.TextIOWrapper):
    self.stream = stream

  def readline(self, most: int = -1) -> bytes:
    # What is no character becomes a bad byte, to be counted when it is decoded.
    return self.stream.readline(most).encode().replace(b'\xef\xbf\xbd', b'\xff')


def _recoded(stream: Any, encoding: str) -> _Recoded:
  return _Recoded(io.TextIOWrapper(stream, encoding, errors='replace', newline='\n'))


class Checked:
  """Counts the bytes of a file's lines that are no UTF-8; InputError if they are too many."""

  def __init__(self, path: object):
    self.path, self.size, self.bad, self.sample = path, 0, 0, b''

  def __call__(self, number: int, line: bytes) -> None:
    self.size += len(line)
    if line.isascii():
      return
    try:
      line.decode()
    except UnicodeDecodeError:
      self.bad += line.decode(errors='replace').count('\ufffd')
      self.sample += line[:SAMPLE]
    if self.bad > 1 and self.bad > MOST_BAD * self.size:
      proposal = _proposal(self.sample)
      raise InputError(
        f'{self.path} is not UTF-8 (line {number}); name its encoding in {FIELD}, {proposal}, or '
        'utf-8 to have the bytes that are no characters replaced.'
      )


def _proposal(sample: bytes) -> str:
  """The likeliest encoding of a text in words; of equally likely ones, as cp1250 and cp1252 are for
  much of French, the first of PROPOSED."""
  import charset_normalizer  # slow to import

  ranks = []
  for match in charset_normalizer.from_bytes(sample, cp_isolation=PROPOSED):
    same_text = min(PROPOSED.index(name) for name in match.could_be_from_charset)
    ranks.append((match.chaos, -match.coherence, same_text))
  return f'perhaps {PROPOSED[min(ranks)[-1]]}' if ranks else 'such as cp1252'


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
      raise InputError(
        f'{path} is not text: line {number} has a NUL byte, {raw.index(0)} bytes in; '
        f'leave the file out, or name what it is (utf-16-le) in {FIELD}'
      )
    counts['bytes'] += len(raw)
    yield number, decode(raw, counts).rstrip('\r\n')
