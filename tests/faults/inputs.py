"""Reads damaged files of every format: each must be read or refused in one sentence, and what is
read must be what another program reads there (oracles.py), unless it is said what was mended.

Small whole files are damaged (DAMAGE, or another format under the name) and read as a run reads
them. Input i of a seed is always the same. The verdicts:

  read, named     it was read, or refused by one InputError of less than LONGEST characters
  same            it was read, and another program reads the same
  alone           it was read, and the other program refuses it
  said            another program reads something else; a word is said that is not said of the whole
  silent          another program reads something else, and not a word is said
  traceback       another exception, or no one short sentence
  slow, memory    it took more than SECONDS, or MEGABYTES more than the inputs before it
"""

import random
import re
import resource
import shutil
import signal
import time
import traceback
from collections import Counter
from pathlib import Path

from faults.formats import formats

from bert_jax.errors import InputError

SECONDS, MEGABYTES, LONGEST = 10, 300, 1500
FINE = 'read', 'same', 'alone', 'said', 'named'
# Huge and odd numbers, other types, deep nesting, broken and rare characters, long stretches.
INSERTED = (
  *b'-1 1e999 NaN null true {} [] "" "x" "\\ud800" [MASK]'.split(),
  *(x.encode() for x in '\0\n\r\t"\',|;\\\u3000\xa0\ufeff\u2028😀'),
  *(b'= ', b'# ', b'-DOCSTART-\n', b'\xff\xfe', b'\xed\xa0\x80'),
  *(b'1' * 5_000, b'9' * 18, b'a' * 100_000, b' ' * 20_000, b'#' * 9_000, b'1\t2\t3\t4\n' * 3),
  *(b'[' * 100_000, b'{"a":' * 20_000, b'[' * 150 + b']' * 150),
)


def flipped(rng, data):
  data = bytearray(data)
  for _ in range(rng.choice((1, 1, 1, 4, 16)) if data else 0):
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
  return bytes(data)


def _stretch(make):
  """The damage make(rng, data, start, end) of a stretch of 40 bytes at most."""

  def damage(rng, data):
    start = rng.randrange(len(data) + 1)
    return make(rng, data, start, min(len(data), start + rng.randint(1, 40)))

  return damage


def number(rng, data):
  """A number, a name or a quoted text is replaced."""
  words = [m.span() for m in re.finditer(rb'"[^"]{0,60}"|\d+|[A-Za-z]+', data)]
  start, end = rng.choice(words or [(0, 0)])
  return data[:start] + rng.choice(INSERTED) + data[end:]


def of_lines(change):
  """The damage change(rng, lines) of a list of lines, in place."""

  def damage(rng, data):
    change(rng, lines := data.splitlines(keepends=True))
    return b''.join(lines)

  return damage


def columns(rng, data):
  """Two columns of all lines change places."""
  mark = rng.choice((b'\t', b',', b' '))
  rows = [line.split(mark) for line in data.split(b'\n')]
  return b'\n'.join(mark.join(row[1:2] + row[:1] + row[2:]) for row in rows)


EMPTY = b'', b'\n', b' \t\n', b'\xef\xbb\xbf', b'\xff\xfea\0', b'{}', b'[]', b'null'
DAMAGE = {  # {name: a function of (random.Random, bytes)}
  'flipped': flipped,
  'cut': lambda rng, data: data[: rng.randrange(len(data) + 1)],
  'dropped': _stretch(lambda rng, data, start, end: data[:start] + data[end:]),
  'repeated': _stretch(
    lambda rng, data, i, k: data[:k] + data[i:k] * rng.choice((1, 2, 500)) + data[k:]
  ),
  'inserted': _stretch(lambda rng, data, i, k: data[:i] + rng.choice(INSERTED) + data[i:]),
  'number': number,
  'lines': of_lines(lambda rng, lines: rng.shuffle(lines)),
  'columns': columns,
  'emptied': lambda rng, data: rng.choice(EMPTY),
}


class TooSlow(BaseException):
  """Raised in an input that takes too long."""


class Campaign:
  """The inputs of a seed, and a folder for them."""

  def __init__(self, seed, folder):
    self.seed, self.folder, self.formats = seed, Path(folder), formats()
    self.usual = {}  # {format: what is said of its whole files}

  def describe(self, i):
    """(the format of input i, {file: content}, in words what was done to it)."""
    rng = random.Random(f'{self.seed} {i}')
    format = self.formats[i % len(self.formats)]
    files = format.files if isinstance(format.files, dict) else format.files(rng)
    name = rng.choice(sorted(files))
    if rng.random() < 0.05:
      other = rng.choice([x for x in self.formats if isinstance(x.files, dict)])
      return format, files | {name: rng.choice(sorted(other.files.items()))[1]}, f'{other.name} as'
    done, data = [], files[name]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3) if callable(format.files) else (1, 1, 1, 2, 3))):
      done.append(rng.choice(list(DAMAGE)))
      data = DAMAGE[done[-1]](rng, data)
    return format, files | {name: data}, f'{" ".join(done)} {name}'

  def read(self, format, files):
    """What is read of files of a format, in the folder `input`, see Format; and of what is said,
    what is not said of the whole files."""
    if format.other and format.name not in self.usual:
      self.usual[format.name] = Counter()
      self.usual[format.name] = self.read(format, format.files)[1]
    folder = self.folder / 'input'
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      (folder / name).write_bytes(data)
    found = format.read(folder)
    return found and (found[0], Counter(found[1]) - self.usual.get(format.name, Counter()))

  def judge(self, i):
    """(format, what was done, verdict, the exception or '') of reading input i here."""
    format, files, done = self.describe(i)
    folder = self.folder / 'input'
    largest = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    before, started, verdict, text = largest(), time.process_time(), 'read', ''
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TooSlow))
    signal.alarm(6 * SECONDS)  # of the clock, as others may use the machine too
    try:
      found = self.read(format, files)
      if found and format.other:
        verdict, text = compared(*found, format.other, folder)
    except InputError as error:
      text = str(error)
      is_short = len(text.replace(str(folder), '')) <= LONGEST and '\n' not in text
      verdict = 'memory' if 'MemoryError' in text else 'named' if is_short else 'traceback'
    except TooSlow:
      verdict, text = 'slow', f'over {6 * SECONDS} s'
    except MemoryError as error:
      verdict, text = 'memory', repr(error)
    except (KeyboardInterrupt, SystemExit):
      raise
    except BaseException as error:
      at = traceback.extract_tb(error.__traceback__)[-1]
      verdict, text = 'traceback', f'{error!r:.300} ({at.filename}:{at.lineno})'
    finally:
      signal.alarm(0)
    if (grown := largest() - before) > MEGABYTES:
      verdict, text = 'memory', f'{grown} MB; {text}'
    elif (seconds := time.process_time() - started) > SECONDS:
      verdict, text = 'slow', f'{seconds:.0f} s; {text}'
    return format.name, done, verdict, text


def compared(found, said, other, folder):
  """(verdict, the first difference) of what was read, beside another program."""
  try:
    known = other(folder)
  except BaseException as error:  # it refuses the file, or panics
    if isinstance(error, Exception) or type(error).__name__ == 'PanicException':
      return 'alone', ''
    raise
  if found == known:
    return 'same', ''
  pairs = zip(found, known) if type(found) is type(known) is list else [(found, known)]
  here, there = next(((x, y) for x, y in pairs if x != y), (len(found), len(known)))
  return 'said' if said else 'silent', f'{here!r:.300} here, elsewhere {there!r:.300}'
