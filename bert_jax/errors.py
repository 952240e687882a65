"""Errors of the user, each one sentence that says what to do, with the exit code of a command line;
and the logger of all modules."""

import contextlib
import difflib
import errno
import logging
import re
from collections.abc import Iterable, Iterator

log = logging.getLogger('bert_jax')


class Said:
  """What makes a notebook show an exception as one sentence, without a traceback; %debug has it."""

  def _render_traceback_(self) -> list[str]:
    return [f'{type(self).__name__}: {self}']


class InputError(Said, ValueError):
  """A mistake in the user's input, as one sentence that says what to do about it. Commands print it
  and end with `code`: 2 means that the same command will fail again (launch/ relies on it)."""

  code = 2


class Stopped(Said, KeyboardInterrupt):
  """A run was asked to end, and has ended; the sentence says where it goes on."""


class Paused(Stopped):
  """A run has saved itself and ends before its end, to be started again: launch/ does so."""

  code = 3


class Unwritten(InputError):
  """Something could not be written for a reason that may pass: a full disk, a network."""

  code = 3


@contextlib.contextmanager
def writing(
  path: object, advice: str = 'check the disk or bucket, or use another folder'
) -> Iterator[None]:
  """A context in which an OSError means that the path cannot be written."""
  try:
    yield
  except OSError as error:
    kind = InputError if stays(error) else Unwritten
    reason = error.strerror or first_line(error)
    raise kind(f'{path} cannot be written ({reason}); {advice}.') from None


def stays(error: OSError) -> bool:
  """Will an OSError come again? A wrong path or read-only disk stays; a full disk may not."""
  wrong = FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError
  return isinstance(error, wrong) or error.errno in (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


def farewell(error: InputError | OSError | KeyboardInterrupt) -> tuple[str, int]:
  """(sentence, exit code) for an exception that ends a program."""
  if isinstance(error, KeyboardInterrupt):
    return str(error) or 'stopped', getattr(error, 'code', 130)
  if isinstance(error, InputError):
    return f'error: {error}', error.code
  where = f'{error.filename}: ' if error.filename else ''
  sentence = f'{where}{error.strerror or error}; check the path, its permissions, disk and network'
  return f'error: {sentence}', 2 if stays(error) else 3


@contextlib.contextmanager
def about(name: str) -> Iterator[None]:
  """Prefixes an InputError raised inside with the field's name, unless it names it already."""
  try:
    yield
  except InputError as error:
    if name not in str(error):
      error.args = (f'{name}: {error}',)
    raise


QUOTED = 80  # the most characters of a value that a sentence quotes


def quoted(value: object) -> str:
  """repr of a value for a sentence; if it is long, its beginning and its length."""
  text = repr(value)
  return text if len(text) <= QUOTED else f'{text[:QUOTED]}.. ({len(text):,} characters)'


def listed(values: Iterable[object], most: int = 8) -> str:
  """Values as a list for a sentence: 'a', 'b' and 12 more."""
  values = list(values)
  shown = ', '.join(quoted(value) for value in values[:most])
  if len(values) > most:
    shown += f' and {len(values) - most:,} more'
  return shown


def counted(number: int, things: str) -> str:
  """A number with the plural that it counts, whose noun is the first of up to three words that ends
  in s: '1,234 empty texts (kept)', '1 file'."""
  one = re.sub(r'^((?:\w+ ){0,2}?)(\w*[^\Ws])s\b', r'\1\2', things)
  return f'{number:,} {one if number == 1 else things}'


def suggestion(name: str, known: Iterable[str]) -> str:
  """' (did you mean X?)' of the known name that resembles this one most; '' if none does."""
  near = difflib.get_close_matches(name, list(known), 1)
  return f' (did you mean {near[0]!r}?)' if near else ''


def first_line(error: object) -> str:
  """The first line of an exception's message, short enough for a sentence."""
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return lines[0].rstrip('.')[:200]
