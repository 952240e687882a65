"""Recognises the encoding of a text file and the ends of its lines, and reads it as UTF-8 with LF.

A byte order mark tells UTF-16 and UTF-32. A file that is not UTF-8 from its first byte beyond ASCII
on is read in the encoding that most languages of LATIN fit, or that charset-normalizer recognises,
which is said once. A file of UTF-8 with some bad bytes stays UTF-8; text/utf8.py repairs it.
"""

import codecs
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import charset_normalizer

from bert_jax.errors import log

MARKS = {codecs.BOM_UTF32_LE: 'utf-32', codecs.BOM_UTF32_BE: 'utf-32'}
MARKS |= {codecs.BOM_UTF16_LE: 'utf-16', codecs.BOM_UTF16_BE: 'utf-16'}  # UTF-32's begins so, too
SAID = set()  # (folder, fact) of files, which are said once
SAMPLE = 1 << 16  # bytes that an encoding is recognised from

# {encoding: the letters beyond ASCII of each language that is written in it}. German, French,
# Spanish, Italian, Portuguese, Swedish and Finnish, Danish and Norwegian, Dutch; Polish, Czech,
# Hungarian, Romanian, Croatian, Slovak; Turkish.
_WEST = 'äöüß àâæçèéêëîïôùûüœÿ áéíñóúü¿¡ªº àèéìíîòóùú àáâãçéêíóôõúü åäöéü æøåéü áéëïöüè'
LATIN = {
  'cp1252': _WEST,
  'cp1250': 'ąćęłńóśźż áčďéěíňóřšťúůýž áéíóöőúüű ăâîşţ čćđšž áäčďéíĺľňóôŕšťúýž',
  'cp1254': 'çğıi̇öşüâî',
  'iso8859_2': 'ąćęłńóśźż áčďéěíňóřšťúůýž áéíóöőúüű',
  'mac_roman': _WEST,
}
_MARKS_OF_ALL = '„“”‘’‚«»–—…•·´§°©®™€£\xa0'
OTHERS = """cp1251 koi8_r koi8_u cp866 cp1253 cp1255 cp1256 cp1257 cp1258 gb18030 big5 cp932 euc_jp
cp949 tis_620""".split()  # noqa: SIM905
LIKELY = 0.9  # of the characters beyond ASCII that one language of LATIN explains


def recognised(data: bytes) -> str:
  """The name of the encoding of bytes that are not ASCII; 'utf-8' also for damaged UTF-8."""
  text = data.decode(errors='replace')
  beyond = sum(character > '\x7f' for character in text)
  if 2 * text.count('\ufffd') <= beyond:
    return 'utf-8'
  shares = {encoding: _share(data, encoding) for encoding in LATIN}
  likely = max(shares, key=lambda encoding: shares[encoding])
  if shares[likely] >= (LIKELY if beyond > 8 else 0.6):  # of so few not much can be told
    return likely
  best = charset_normalizer.from_bytes(data, cp_isolation=[*LATIN, *OTHERS]).best()
  if best and best.encoding in LATIN and shares[likely] > 0.5:  # several languages in one text
    return likely
  return best.encoding if best else 'utf-8'


def _share(data: bytes, encoding: str) -> float:
  """The share of the characters beyond ASCII that the likeliest language has."""
  try:
    beyond = [character for character in data.decode(encoding) if character > '\x7f']
  except UnicodeDecodeError:
    return 0.0
  known = lambda letters: sum(x.lower() in letters or x in _MARKS_OF_ALL for x in beyond)
  return max(map(known, LATIN[encoding].split())) / len(beyond)


def recoder(name: object) -> Callable[[bytes, Callable[[], bytes]], bytes]:
  """Makes a function of the lines of a text, in order, that returns them in UTF-8. Its second
  argument returns some bytes that follow, to recognise the encoding from. name: of the text, for
  the log."""
  encoding = ''  # not known before a byte beyond ASCII

  def recoded(line: bytes, following: Callable[[], bytes]) -> bytes:
    nonlocal encoding
    if encoding == 'utf-8' or (not encoding and line.isascii()):
      return line
    if not encoding:
      encoding = recognised((line + following())[:SAMPLE])
      if encoding != 'utf-8':
        _said(name, encoding)
    return line if encoding == 'utf-8' else line.decode(encoding, 'replace').encode()

  return recoded


def opened(path: object, stream: Any) -> Any:
  """A stream of bytes, which can be looked ahead into (peek), for `readline` or
  `read1`: UTF-16 and UTF-32 come as UTF-8; if the first lines end in CR alone, so do others. path:
  its name, for the log."""
  head = stream.peek(SAMPLE) if hasattr(stream, 'peek') else b''
  for mark, encoding in MARKS.items():
    if head.startswith(mark):
      _said(path, encoding)
      return _Recoded(
        io.TextIOWrapper(stream, encoding, errors='replace', newline=None), 'utf-8', b''
      )
  if re.search(rb'\r(?!\n|\Z)', head):
    _say_once(
      path, 'has lines that end in CR alone, as old Macs wrote them', 'they are read as lines'
    )
    return _Recoded(io.TextIOWrapper(stream, 'latin-1', newline=None), 'latin-1', head)
  return stream


class _Recoded:
  """The lines of a text stream as bytes in an encoding. head: the bytes that it begins with."""

  def __init__(self, stream: io.TextIOWrapper, encoding: str, head: bytes):
    self.stream, self.encoding, self.head = stream, encoding, head

  def readline(self, most: int = -1) -> bytes:
    return self.stream.readline(most).encode(self.encoding)

  read1 = readline  # as much as is there, for a stream that goes on

  def peek(self, size: int) -> bytes:
    return self.head


def _said(name, encoding):
  advice = f'if letters are wrong, convert it: iconv -f NAME -t utf-8 {name}'
  _say_once(name, f'is not UTF-8 and is read as {encoding}', advice)


def _say_once(name, fact, advice):
  """Logs a fact of a file once, though it is read again, and not again of others in its folder."""
  if (key := (Path(str(name)).parent, fact)) not in SAID:
    SAID.add(key)
    log.warning('%s %s, as others beside it may be; %s', name, fact, advice)
