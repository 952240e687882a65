"""Recognises the encoding of a text file, and decodes its lines as UTF-8 with LF at their ends.

A byte order mark tells UTF-16 and UTF-32. Else the user may name the encoding (data.text_encoding),
which holds for all files that are not plainly UTF-8. Else, of a file that is hardly ever UTF-8
beyond ASCII, the letters tell it: those of a language (LETTERS), the frequent ones of a script
(FREQUENT), or the frequent characters of Chinese, Japanese or Korean. What fits is said once. A
file of UTF-8 with some bad bytes, and one that nothing fits, stays as it is: its bad bytes become
U+FFFD and are counted. NUL bytes are refused.
"""

import codecs
import contextlib
import functools
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bert_jax.errors import InputError, log, quoted
from bert_jax.files import Path

MARKS = {codecs.BOM_UTF32_LE: 'utf-32', codecs.BOM_UTF32_BE: 'utf-32'}
MARKS |= {codecs.BOM_UTF16_LE: 'utf-16', codecs.BOM_UTF16_BE: 'utf-16'}  # UTF-32's begins so, too
ZIP = b'PK\3\4'  # how a zip archive begins
SAMPLE = 1 << 13  # bytes, of lines beyond ASCII, that an encoding is recognised from
SAID = set()  # (folder, fact) of files, which are said once

_WEST = 'äöüß àâæçèéêëîïôùûüœ áéíñóúüªº àèéìíîòóùú àáâãçéêíóôõúü åäöéü æøåéü áéëïöüèó áéíóúýþæöð'
# {encoding: the letters beyond ASCII of each language that is written in it}: German, French,
# Spanish, Italian, Portuguese, Swedish and Finnish, Danish and Norwegian, Dutch, Icelandic; Polish,
# Czech, Hungarian, Romanian, Croatian, Slovak; Turkish; Lithuanian, Latvian, Estonian.
LETTERS = {
  'cp1252': _WEST,
  'cp1250': 'ąćęłńóśźż áčďéěíňóřšťúůýž áéíóöőúüű ăâîşţ čćđšž áäčďéíĺľňóôŕšťúýž',
  'cp1254': 'çğıi̇öşüâî',
  'cp1257': 'ąčęėįšųūž āčēģīķļņšūž äöõüšž',
  'iso8859_15': _WEST,
  'iso8859_2': 'ąćęłńóśźż áčďéěíňóřšťúůýž áéíóöőúüű',
  'cp850': _WEST,
  'mac_roman': _WEST,
}
_SIGNS = set('¡¿£¢¥©®°±²³µ·×÷¼½¾§–—…•€™\xa0\xad’')  # in texts of any language
_QUOTES = set('«»‹›„“”‘‚')
_INSIDE = re.compile(r'[^\W\d_][«»‹›„“”‘‚][^\W\d_]')  # a word, where a quote is none
# {encoding: the letters, in lower case, that make up half of any text in its script}
FREQUENT = dict.fromkeys(('cp1251', 'koi8_r', 'cp866', 'iso8859_5'), 'оеаинтсрвліу') | {
  'cp1253': 'αοιετσνηυρ',
  'cp1255': 'יוהלארמתבש',
  'cp1256': 'اليمونترةب',
  'tis_620': 'านรอกเงมยล่',
}
# {encoding: the first bytes of its frequent characters}, and punctuation that takes two bytes.
_FULL_WIDTH = '，。、：；！？“”‘’（）《》「」『』【】…—～·　'
FIRST_BYTES = {'cp949': range(0xB0, 0xC9), 'gb18030': range(0xB0, 0xD8), 'big5': range(0xA4, 0xC7)}
HANGUL = '이다는을의가에고하지도로기리한은'  # the most frequent
KANA = re.compile('[ぁ-ゟ゠-ヿ]')
LIKELY = 0.85  # of the characters beyond ASCII fit
FIELD = 'data.text_encoding (--text-encoding)'

_QUOTED = re.compile(r'"[^"]*(?:"|\Z)')

Lines = Iterator[tuple[int, str]]  # line numbers from 1, lines without their ends


def recognised(lines: Iterable[bytes]) -> str:
  """The encoding of some lines beyond ASCII; 'utf-8' also for damaged UTF-8, or if none fits."""
  lines = [line for line in lines if not line.isascii()]
  text = b'\n'.join(lines).decode(errors='replace')
  beyond = sum(not x.isascii() for x in text)
  if 10 * sum(map(_is_utf8, lines)) >= len(lines) or 3 * text.count('\ufffd') <= beyond:
    return 'utf-8'
  data = b'\n'.join(lines)
  fits = {x: _fit(data.decode(x, 'replace'), x) for x in ENCODINGS}
  for x in LETTERS:  # pairs of bytes that are Latin letters in UTF-8 are seldom two such letters
    fits[x] -= 2 * len(re.findall(b'[\xc2\xc3][\x80-\xbf]', data)) / beyond
  best = max(fits, key=lambda encoding: fits[encoding])
  return best if fits[best] >= LIKELY else 'utf-8'


def _is_utf8(line: bytes) -> bool:
  try:
    line.decode()
  except UnicodeDecodeError:
    return False
  return True


def _fit(text: str, encoding: str) -> float:
  """The share of the characters beyond ASCII of a text that its encoding makes likely."""
  beyond = [x for x in text if not x.isascii()]
  if encoding in FREQUENT:
    frequent = sum(x in FREQUENT[encoding] for x in beyond)
    letters = sum(x.isalpha() or x in _SIGNS or x in _QUOTES for x in beyond)
    is_script = len(beyond) > 9 and frequent > 0.45 * len(beyond)
    return (0.8 * letters + 0.2 * frequent) / len(beyond) if is_script else 0.0
  if encoding in LETTERS:
    signs = sum(x in _SIGNS or x in _QUOTES for x in beyond) - len(_INSIDE.findall(text))
    known = [sum(x.lower() in own for x in beyond) for own in LETTERS[encoding].split()]
    # Several languages in one text are less likely, and seldom have two such letters in a row.
    several = sum(x.lower() in LETTERS[encoding] for x in beyond)
    several *= 0.92 if 2 * len(re.findall('[^\x00-\x7f]+', text)) > len(beyond) else 0.6
    rare = 0.97 if encoding != 'cp1252' else 1.0
    return rare * (max(*known, several) + signs) / len(beyond)
  if len(beyond) < 4:  # of so few everything fits
    return 0.0
  if encoding == 'cp949' and sum(x in HANGUL for x in beyond) < 0.15 * len(beyond):
    return 0.0
  if encoding in ('cp932', 'euc_jp'):
    kana = len(KANA.findall(text))
    return _frequent(beyond, 'euc_jp', range(0xB0, 0xD0)) if kana > 0.2 * len(beyond) else 0.0
  return _frequent(beyond, encoding, FIRST_BYTES[encoding])


def _frequent(beyond: list[str], encoding: str, first: range) -> float:
  """The share of characters that are frequent, as their first byte in an encoding tells."""
  code = lambda x: (x.encode(encoding, 'replace') or b'?')[0]
  fits = [code(x) in first or x in _FULL_WIDTH or bool(KANA.match(x)) for x in beyond]
  return sum(fits) / len(beyond)


# In this order, the first of equals is taken.
ENCODINGS = *LETTERS, *FREQUENT, 'cp932', 'euc_jp', *FIRST_BYTES


class Recoder:
  """Recodes the lines of the text `name` to UTF-8, in their order. sample: returns lines of it
  beyond ASCII, given the first of them. encoding: of the lines; '': to be recognised."""

  def __init__(self, name: object, sample: Callable[[bytes], Iterable[bytes]], encoding: str = ''):
    self.name, self.sample, self.encoding = name, sample, encoding

  def is_utf8(self, line: bytes) -> bool:
    """Whether a line stays as it is."""
    if self.encoding == 'utf-8' or line.isascii():
      return True
    if not self.encoding:
      self.encoding = recognised(self.sample(line))
      if self.encoding != 'utf-8':
        advice = f'if letters are wrong, name the encoding in {FIELD}'
        say_once(self.name, f'is not UTF-8 and is read as {self.encoding}', advice)
    # Letters of one byte never look like UTF-8; two words of GBK may.
    is_single = self.encoding in LETTERS or self.encoding in FREQUENT
    return self.encoding == 'utf-8' or (is_single and _is_utf8(line))

  def __call__(self, line: bytes) -> bytes:
    if self.is_utf8(line):
      return line
    # What is no character of the encoding stays a bad byte, to be counted when it is decoded.
    return line.decode(self.encoding, 'surrogateescape').encode('utf-8', 'surrogateescape')


@functools.lru_cache(1 << 16)
def sampled(path: Path, opener: Callable[[Any], Any], identity: tuple[int, ...]) -> list[bytes]:
  """Lines beyond ASCII of a file from the first one on. identity: of its content, for the cache."""
  lines, size = [], 0
  with path.open('rb') as disk:
    stream = opener(disk)
    while size < SAMPLE and (line := stream.readline(SAMPLE)):
      if not line.isascii():
        lines.append(line)
        size += len(line)
  return lines


def opened(
  path: object, stream: Any, named: str, sample: Callable[[bytes], Iterable[bytes]]
) -> tuple[Any, str]:
  """(stream for `readline` or `read1`, 'utf-8' or '', its encoding) of a stream of bytes that can
  be looked ahead into (peek), without its byte order mark. UTF-16, UTF-32 and the `named` encoding
  come as UTF-8; if its first lines end in CR alone, but for those in quotes, all lines end in LF.
  path: its name, for the log. sample: returns lines of it beyond ASCII, given its beginning."""
  try:
    is_single = len(bytes(range(256)).decode(named or 'utf-8', 'replace')) == 256  # each a byte
  except (LookupError, ValueError):
    raise InputError(f'{FIELD} {quoted(named)} is no encoding; use one such as cp1251') from None
  head = stream.peek(SAMPLE) if hasattr(stream, 'peek') else b''
  if head.startswith(codecs.BOM_UTF8):
    stream.read(len(codecs.BOM_UTF8))
    named = 'utf-8'
  if encoding := next((x for mark, x in MARKS.items() if head.startswith(mark)), ''):
    say_once(path, f'is not UTF-8 and is read as {encoding}', 'its byte order mark says so')
  elif named and codecs.lookup(named).name != 'utf-8':
    text = b''.join(sample(head)).decode(errors='replace')
    beyond, damaged = sum(not x.isascii() for x in text), text.count('\ufffd')
    encoding = '' if (2 if is_single else 8) <= beyond >= 100 * damaged else named  # no chance
    if beyond and not (encoding and damaged):
      say_once(path, f'is UTF-8 by its bytes, read as {encoding or "utf-8"}', f'{FIELD} is {named}')
  text, end = head.decode(encoding or 'latin-1', 'replace'), '\n'
  # Excel for Macs ends rows in CR, and lines inside cells in LF.
  outside = _QUOTED.sub('', text) if '\n' in text else text
  if '\r' in outside[:-1] and '\n' not in outside:
    say_once(path, 'has lines that end in CR alone, as old Macs wrote', 'they are read as lines')
    end = None
  if encoding or not end:
    text = io.TextIOWrapper(stream, encoding or 'latin-1', errors='replace', newline=end)
    stream = _Recoded(text, 'utf-8' if encoding else 'latin-1')
  return stream, 'utf-8' if encoding or named else ''


class _Recoded:
  """The lines of a text stream as bytes in an encoding."""

  def __init__(self, stream: io.TextIOWrapper, encoding: str):
    self.stream, self.encoding = stream, encoding

  def readline(self, most: int = -1) -> bytes:
    line = self.stream.readline(most).encode(self.encoding)
    # What is no character stays a bad byte, to be counted when it is decoded.
    return line.replace(b'\xef\xbf\xbd', b'\xff') if self.encoding == 'utf-8' else line

  read1 = readline  # as much as is there, for a stream that goes on


def say_once(name: object, fact: str, advice: str) -> None:
  """Logs a fact of a file once, though it is read again, and not again of others in its folder."""
  if (key := (Path(str(name)).parent, fact)) not in SAID:
    SAID.add(key)
    log.warning('%s %s, as others beside it may be; %s', name, fact, advice)


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
      advice = f'leave the file out, or name what it is (utf-16-le) in {FIELD}'
      if raw.startswith(ZIP) and number == 1:
        where, advice = 'it is a zip archive, as .xlsx of Excel are', 'save the sheet as CSV'
      raise InputError(f'{path} is not text: {where}; {advice}')
    counts['bytes'] += len(raw)
    invalid = counts['invalid_utf8_lines']
    line = decode(raw, counts)
    if counts['invalid_utf8_lines'] > invalid == 0:
      fix = f'they become U+FFFD, counted; for letters, name another encoding in {FIELD}'
      say_once(f'{path}:{number}', 'has bytes that are no characters', fix)
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
