"""What every command line does: log lines on stderr, errors as one sentence and an exit code,
signals as KeyboardInterrupt, and no tracebacks of threads that only repeat an error.
"""

import _thread
import argparse
import asyncio
import contextlib
import functools
import io
import logging
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, NoReturn, TypeVar

import tqdm
from ml_collections import ConfigDict

from bert_jax.cells import Log, in_notebook
from bert_jax.errors import InputError, farewell, first_line, listed, log, printable

Value = TypeVar('Value')


def show_log() -> None:
  """Shows the log lines of this package on stderr, unless logging is set up otherwise."""
  # Orbax warns of settings that are intended, and its threads print the traceback of every error
  # that is raised again in the thread that waits for them.
  for name in ('absl', 'asyncio'):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  log = logging.getLogger('bert_jax')
  if log.level == logging.NOTSET:
    log.setLevel(logging.INFO)
  if in_notebook():  # the root's handler there is not the user's, and Jupyter shows it in red
    if all(isinstance(x, Log) for x in log.handlers):
      # What follows has an output of its own, below what the cell has printed.
      log.handlers = [Log()]
      log.propagate = False
  elif not log.hasHandlers():
    log.addHandler(logging.StreamHandler())


@contextlib.contextmanager
def command_line() -> Iterator[None]:
  """A context for a command: log lines on stderr, errors as one sentence and an exit code."""
  for name in ('stdout', 'stderr'):
    if getattr(sys, name) is None:  # it was closed
      setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), 'w'))
  if isinstance(sys.stdout, io.TextIOWrapper):  # whose encoding may not know all characters
    sys.stdout.reconfigure(errors='backslashreplace')
  handler = logging.StreamHandler(sys.stderr)
  plain = logging.Formatter('%(message)s')
  handler.format = lambda record: printable(plain.format(record))
  logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
  show_log()
  threading.excepthook, sys.unraisablehook = _thread_failed, _unraisable
  asyncio.set_event_loop_policy(_Loops())
  with contextlib.ExitStack() as stack:
    if threading.current_thread() is threading.main_thread():
      interrupt = functools.partial(_interrupt, os.getpid())
      for number in (signal.SIGINT, signal.SIGTERM):
        stack.callback(signal.signal, number, signal.signal(number, interrupt))
    stack.callback(_flush)
    stack.enter_context(_sentences())
    yield


def _flush() -> None:
  """Writes out what was printed, if it can be: else Python's end would print a traceback."""
  try:
    if sys.stdout is not None:  # it was closed
      sys.stdout.flush()
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Loop(asyncio.SelectorEventLoop):
  """An event loop that, once closed, ignores callbacks: Orbax's threads make some after errors."""

  def call_soon_threadsafe(self, *args: Any, **options: Any) -> Any:
    try:
      return super().call_soon_threadsafe(*args, **options)
    except RuntimeError:
      if not self.is_closed():
        raise


class _Loops(asyncio.DefaultEventLoopPolicy):
  def new_event_loop(self):
    return _Loop()


def _interrupt(process: int, number: int, frame: types.FrameType | None) -> None:
  """Handles a signal: KeyboardInterrupt, but a process forked from this one ends silently."""
  if os.getpid() != process:
    os._exit(128 + number)
  raise KeyboardInterrupt


@contextlib.contextmanager
def _sentences():
  try:
    yield
    sys.stdout.flush()
  except BrokenPipeError:
    pass  # the program that reads our output has ended
  except (InputError, OSError, KeyboardInterrupt) as error:
    sentence, code = farewell(error)
    print(printable(sentence), file=sys.stderr)
    if any(thread.name.startswith(ASIDE) for thread in threading.enumerate()):
      sys.stdout.flush()
      os._exit(code)  # the shutdown of Python would wait for these threads, or crash
    sys.exit(code)
  except AttributeError as error:  # its traceback names the line, but not what is missing
    if isinstance(error.obj, ConfigDict):
      fault = f'no config field is called {error.name!r}; beside it stand {listed(error.obj)}'
      error.add_note(f'{fault}. Add a Field for it to these (bert_jax/field.py), or mend its name.')
    raise
  except (RuntimeError, AssertionError) as error:
    if str(error).startswith('Could not determine home'):  # of Path.expanduser, which names none
      *_, (frame, _) = traceback.walk_tb(error.__traceback__)
      whose = f'{frame.f_locals.get("self", "~")} begins with a home folder that is not known'
      said = f'{whose}; write it whole'
    elif traceback.extract_tb(error.__traceback__)[-1].filename.endswith('xla_bridge.py'):
      asked = f'JAX_PLATFORMS={os.environ.get("JAX_PLATFORMS", "")} asks for ({first_line(error)})'
      advice = 'start it where they are and are free, or unset JAX_PLATFORMS'
      said = f'jax finds none of the devices that {asked}; {advice}'
    else:
      raise
    print(f'error: {said}.', file=sys.stderr)
    sys.exit(2)


ASIDE = 'aside'  # how the names of the threads of `aside` begin
EVERY = 30  # seconds between two signs of life


def aside(
  function: Callable[[Any], Any], values: Iterable[Any], goes_on: Callable[[], object] = bool
) -> list[Any]:
  """The function's results for values, each computed in a thread of its own. A compiler hears no
  signals, but the main thread, which waits here, does; command_line then ends the process at once,
  whatever these threads do. goes_on: called after each EVERY seconds of waiting."""
  threads, out = futures.ThreadPoolExecutor(thread_name_prefix=ASIDE), []
  try:
    for job in [threads.submit(function, value) for value in values]:
      while not futures.wait([job], EVERY).done:
        goes_on()
      out.append(job.result())
    return out
  finally:
    threads.shutdown(wait=False, cancel_futures=True)


def progress(values: Sequence[Value], name: str, unit: str) -> Iterator[Value]:
  """Yields values and shows how far their work is: a bar on a terminal, which goes when it is done;
  elsewhere, after each EVERY seconds, a line with the time that is left (hours:minutes:seconds)."""
  began = said = time.monotonic()
  bar = tqdm.tqdm(values, desc=name, unit=f' {unit}', disable=None, leave=False)
  for number, value in enumerate(bar):
    now = time.monotonic()
    if bar.disable and number and now - said >= EVERY:
      left = bar.format_interval((now - began) / number * (len(values) - number))
      log.info('%s: %d of %d %s, about %s left', name, number, len(values), unit, left)
      said = now
    yield value


def _thread_failed(args: threading.ExceptHookArgs) -> None:
  """Logs in one line that a thread, such as one of Orbax, has ended by an OSError."""
  if not isinstance(args.exc_value, OSError):
    threading.__excepthook__(args)
    return
  name = args.thread.name if args.thread else 'a thread'
  logging.getLogger('bert_jax').warning('%s has ended: %s', name, first_line(args.exc_value))


AGAIN_SECONDS = 0.02  # until a signal is repeated


def _unraisable(args):
  """Repeats a signal that came where nothing can raise; unfinished coroutines are no error."""
  if issubclass(args.exc_type, KeyboardInterrupt):
    threading.Timer(AGAIN_SECONDS, _thread.interrupt_main).start()
  elif not isinstance(args.object, types.CoroutineType):
    sys.__unraisablehook__(args)


class _Parser(argparse.ArgumentParser):
  """A parser that ends as command_line does where nobody reads its help."""

  def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
    _flush()
    super().exit(status, message)


def command_parser(command: str, about: str, **settings: Any) -> argparse.ArgumentParser:
  """The parser of `python -m bert_jax.COMMAND`, described by a docstring's first paragraph."""
  settings.setdefault('description', about.partition('\n\n')[0])
  return _Parser(f'python -m bert_jax.{command}', allow_abbrev=False, **settings)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
  """The lines of a table with aligned columns; the header is one of the rows."""
  rows = [[printable(cell) for cell in row] for row in rows]
  widths = [max(map(len, column)) for column in zip(*rows)]
  return ['  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
