"""What a mistake is: one sentence that says what to do, and an exit code of the command line."""

import contextlib
import logging
import os
import sys


class InputError(ValueError):
  """A mistake in what the user gave us, as one sentence that says what to do about it.

  Command lines print it without a traceback and end with `code`: 2, for which nothing is worth
  trying again as it is (launch/ relies on it). Notebooks see a ValueError.
  """

  code = 2


def show_log():
  """Lets our log lines out on stderr, in a notebook too, unless logging is set up otherwise."""
  logging.getLogger('absl').setLevel(logging.ERROR)  # Orbax warns of what we chose on purpose
  log = logging.getLogger('bert_jax')
  if log.level == logging.NOTSET:
    log.setLevel(logging.INFO)
  if not log.hasHandlers():
    log.addHandler(logging.StreamHandler())


@contextlib.contextmanager
def command_line():
  """What command lines share: log lines on stderr, an InputError as one sentence and exit 2."""
  logging.basicConfig(level=logging.WARNING, format='%(message)s', stream=sys.stderr, force=True)
  show_log()
  try:
    yield
  except BrokenPipeError:  # the reader of our output has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except (InputError, OSError, KeyboardInterrupt) as error:
    sentence, code = farewell(error)
    print(sentence, file=sys.stderr)
    sys.exit(code)


WRONG_PATH = (
  FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError
)  # fmt: skip


def farewell(error):
  """(sentence, exit code) of what ends a program."""
  if isinstance(error, KeyboardInterrupt):
    return str(error) or 'stopped', 130
  code = getattr(error, 'code', 2)
  if isinstance(error, OSError):
    # A path that is wrong stays wrong; a disk or a network may be well again at the next start.
    code = 2 if isinstance(error, WRONG_PATH) else 3
    where = f'{error.filename}: ' if error.filename else ''
    error = f'{where}{error.strerror or error}; check the path, its permissions and the disk'
  return f'error: {error}', code


def first_line(error):
  """The first line of what an exception says, short enough for a sentence."""
  text = error.args[0] if isinstance(error, KeyError) and error.args else error
  return (str(text).strip().splitlines() or [type(error).__name__])[0].rstrip('.')[:200]
