"""Errors of the user: one sentence that says what to do, and an exit code of the command line."""

import _thread
import asyncio
import contextlib
import errno
import logging
import os
import signal
import sys
import threading
import traceback
import types


class InputError(ValueError):
  """A mistake in the user's input, as one sentence that says what to do about it.
  Command lines print it without a traceback and end with `code`: 2 means that the same command will
  fail again (launch/ relies on it). Notebooks see a ValueError."""

  code = 2


class Paused(KeyboardInterrupt):
  """A run has saved itself and ends before its end, to be started again: launch/ does so."""

  code = 3


def show_log():
  """Shows the log lines of this package on stderr, unless logging is set up otherwise."""
  from bert_jax import notebooks  # which imports this file

  # Orbax warns of settings that are intended, and its threads print the trace of every error that
  # they raise again where it is waited for.
  for name in ('absl', 'asyncio'):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  log = logging.getLogger('bert_jax')
  if log.level == logging.NOTSET:
    log.setLevel(logging.INFO)
  if notebooks.running():  # the root's handler there is not the user's, and Jupyter shows it in red
    if not log.handlers:
      log.addHandler(logging.StreamHandler(sys.stdout))
      log.propagate = False
  elif not log.hasHandlers():
    log.addHandler(logging.StreamHandler())


@contextlib.contextmanager
def command_line():
  """For command lines: shows log lines on stderr, and errors as one sentence and an exit code."""
  logging.basicConfig(level=logging.WARNING, format='%(message)s', stream=sys.stderr, force=True)
  show_log()
  threading.excepthook, sys.unraisablehook = _thread_failed, _unraisable
  asyncio.set_event_loop_policy(_Loops())
  with contextlib.ExitStack() as stack:
    if threading.current_thread() is threading.main_thread():
      for number in (signal.SIGINT, signal.SIGTERM):
        stack.callback(signal.signal, number, signal.signal(number, _interrupter()))
    stack.enter_context(_sentences())
    yield


class _Loop(asyncio.SelectorEventLoop):
  """An event loop that takes no answers once it is closed. After a write or a read has failed, the
  threads of Orbax's disk library still answer, each with a printed traceback if that raises."""

  def call_soon_threadsafe(self, callback, *args, context=None):
    try:
      return super().call_soon_threadsafe(callback, *args, context=context)
    except RuntimeError:
      if not self.is_closed():
        raise


class _Loops(asyncio.DefaultEventLoopPolicy):
  def new_event_loop(self):
    return _Loop()


def _interrupter():
  """A handler of signals that raises KeyboardInterrupt; a forked process ends silently."""
  process = os.getpid()

  def interrupt(number, frame):
    if os.getpid() != process:
      os._exit(128 + number)
    raise KeyboardInterrupt

  return interrupt


@contextlib.contextmanager
def _sentences():
  try:
    yield
  except BrokenPipeError:  # the program that reads our output has ended
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except (InputError, OSError, KeyboardInterrupt) as error:
    sentence, code = farewell(error)
    print(sentence, file=sys.stderr)
    sys.exit(code)
  except (RuntimeError, AssertionError) as error:
    if not traceback.extract_tb(error.__traceback__)[-1].filename.endswith('xla_bridge.py'):
      raise
    asked = os.environ.get('JAX_PLATFORMS', '')
    print(
      f'error: jax finds none of the devices that JAX_PLATFORMS={asked} asks for '
      f'({first_line(error)}); start it where they are and are free, or unset JAX_PLATFORMS.',
      file=sys.stderr,
    )
    sys.exit(2)


class Unwritten(InputError):
  """Something could not be written for a reason that may pass: a full disk, a network."""

  code = 3


def unwritten(path, error, advice='check the disk, or use another folder'):
  """The InputError that says that an OSError kept a path from being written."""
  kind = InputError if stays(error) else Unwritten
  return kind(f'{path} cannot be written ({error.strerror or first_line(error)}); {advice}.')


def _thread_failed(args):
  """Says in a line that a thread, such as one of Orbax, has lost its disk."""
  if not isinstance(args.exc_value, OSError):
    threading.__excepthook__(args)
    return
  name = args.thread.name if args.thread else 'a thread'
  logging.getLogger('bert_jax').warning('%s has ended: %s', name, first_line(args.exc_value))


AGAIN_SECONDS = 0.02  # until a signal comes again


def _unraisable(args):
  """For errors where nothing can be raised. A signal that came there, such as in a callback of the
  garbage collector, would be lost, and comes again a moment later. Keeps quiet about what a
  coroutine raises when it is thrown away unfinished, as Orbax's are after the first of many reads
  has failed, whose error is raised."""
  if issubclass(args.exc_type, KeyboardInterrupt):
    threading.Timer(AGAIN_SECONDS, _thread.interrupt_main).start()
  elif not isinstance(args.object, types.CoroutineType):
    sys.__unraisablehook__(args)


WRONG_PATH = (
  FileNotFoundError,
  FileExistsError,
  NotADirectoryError,
  IsADirectoryError,
  PermissionError,
)


def stays(error):
  """Whether an OSError will come again at the next start. A wrong path stays wrong, and a disk that
  may only be read stays so; a full disk or a network may work again."""
  return isinstance(error, WRONG_PATH) or error.errno == errno.EROFS


def farewell(error):
  """(sentence, exit code) of an exception that ends a program."""
  if isinstance(error, KeyboardInterrupt):
    return str(error) or 'stopped', getattr(error, 'code', 130)
  code = getattr(error, 'code', 2)
  if isinstance(error, OSError):
    code = 2 if stays(error) else 3
    where = f'{error.filename}: ' if error.filename else ''
    error = f'{where}{error.strerror or error}; check the path, its permissions and the disk'
  return f'error: {error}', code


@contextlib.contextmanager
def about(name):
  """For reading what a field names: an InputError that does not say which field begins with it."""
  try:
    yield
  except InputError as error:
    if name not in str(error):
      error.args = (f'{name}: {error}',)
    raise


QUOTED = 80  # the most characters that a sentence quotes of what it refuses


def quoted(value):
  """repr of a value for a sentence: if it is long, its beginning and its length."""
  is_text = isinstance(value, str)
  try:
    text = value if is_text else repr(value)
  except ValueError:  # an integer of more than 4,300 digits
    return 'a number of thousands of digits'
  shown = repr(text[:QUOTED]) if is_text else text[:QUOTED]
  return shown if len(text) <= QUOTED else f'{shown}.. ({len(text):,} characters)'


def listed(values, most=8):
  """'a', 'b' and 12 more: values for a sentence."""
  values = list(values)
  shown = ', '.join(map(quoted, values[:most]))
  return shown + (f' and {len(values) - most:,} more' if len(values) > most else '')


def first_line(error):
  """The first line of an exception's message, short enough for a sentence."""
  text = error.args[0] if isinstance(error, KeyError) and error.args else error
  return (str(text).strip().splitlines() or [type(error).__name__])[0].rstrip('.')[:200]
