"""What every command line does: log lines on stderr, errors as one sentence and an exit code, and
signals as KeyboardInterrupt.
"""

import argparse
import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, TextIO, TypeVar

import tqdm

from bert_jax.cells import in_notebook
from bert_jax.errors import InputError, farewell, log

Value = TypeVar('Value')
WARNING_PREFIX = 'warning: '  # how a line begins, as errors begin with `error: `
CHECKPOINT = 'latest, best or a step of a run; default: the best by checkpoint.best_metric, if set'


def show_log() -> None:
  """Shows the log lines of this package on stderr, unless logging is set up otherwise."""
  # Orbax warns of settings that are intended, and its threads print the traceback of every error
  # that is raised again in the thread that waits for them.
  for name in ('absl', 'asyncio'):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  if log.level == logging.NOTSET:
    log.setLevel(logging.INFO)
  if in_notebook() and not log.handlers:  # Jupyter shows stderr in red, and so the root's lines
    log.addHandler(handler(sys.stdout))
    log.propagate = False
  elif not log.hasHandlers():
    log.addHandler(handler())


class _Prefixed(logging.Formatter):
  """Log lines as they are, with WARNING_PREFIX before those of warnings."""

  def format(self, record):
    line = super().format(record)
    return WARNING_PREFIX + line if record.levelno == logging.WARNING else line


def handler(stream: TextIO | None = None) -> logging.Handler:
  """A logging handler that writes lines to a stream (None: stderr), as _Prefixed has them."""
  out = logging.StreamHandler(stream)
  out.setFormatter(_Prefixed())
  return out


@contextlib.contextmanager
def command_line() -> Iterator[None]:
  """A context for a command: log lines on stderr, errors as one sentence and an exit code."""
  logging.basicConfig(level=logging.WARNING, handlers=[handler()], force=True)
  show_log()
  process = os.getpid()

  def interrupt(number: int, frame: types.FrameType | None) -> None:
    if os.getpid() != process:  # one that was forked from this one ends silently
      os._exit(128 + number)
    raise KeyboardInterrupt

  def unraisable(lost: Any) -> None:
    if lost.exc_type is not KeyboardInterrupt:
      return hook(lost)
    again = threading.Timer(0.1, os.kill, (process, signal.SIGINT))
    again.daemon = True
    again.start()

  # Python drops an error that is raised while it collects garbage, as where a vocabulary is
  # trained; an interrupt that is lost so is sent again.
  before, hook = {}, sys.unraisablehook
  sys.unraisablehook = unraisable
  if threading.current_thread() is threading.main_thread():
    for number in (signal.SIGINT, signal.SIGTERM):
      before[number] = signal.signal(number, interrupt)
  try:
    yield
    sys.stdout.flush()
  except BrokenPipeError:  # the program that reads our output has ended
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except (InputError, OSError, KeyboardInterrupt) as error:
    sentence, code = farewell(error)
    print(sentence, file=sys.stderr)
    if any(thread.name.startswith(ASIDE) for thread in threading.enumerate()):
      sys.stdout.flush()
      os._exit(code)  # the shutdown of Python would wait for these threads, or crash
    sys.exit(code)
  finally:
    sys.unraisablehook = hook
    for number, handler_before in before.items():
      signal.signal(number, handler_before)


ASIDE = 'aside'  # how the names of the threads of `aside` begin
EVERY = 30  # seconds between two signs of life


def aside(function: Callable[[Any], Any], values: Iterable[Any]) -> Iterator[Any]:
  """The function's results for values, each computed in a thread of its own, which begins now; who
  iterates waits. A compiler hears no signals, but the main thread does; command_line then ends the
  process at once, whatever these threads do."""
  threads = futures.ThreadPoolExecutor(thread_name_prefix=ASIDE)
  results = threads.map(function, values)
  threads.shutdown(wait=False)  # what has begun goes on
  return results


def progress(values: Sequence[Value], name: str, unit: str) -> Iterator[Value]:
  """Yields values and shows how far their work is: a bar on a terminal, which goes when it is done;
  elsewhere a line after each EVERY seconds."""
  shown = time.monotonic()
  bar = tqdm.tqdm(values, desc=name, unit=f' {unit}', disable=None, leave=False)
  for number, value in enumerate(bar):
    if bar.disable and time.monotonic() - shown >= EVERY:
      log.info('%s: %d of %d %s', name, number, len(values), unit)
      shown = time.monotonic()
    yield value


def command_parser(command: str, about: str, **settings: Any) -> argparse.ArgumentParser:
  """The parser of `python -m bert_jax.COMMAND`, or of `bert-jax COMMAND` where that is installed,
  described by a docstring's first paragraph."""
  settings.setdefault('description', about.partition('\n\n')[0])
  program = f'python -m bert_jax.{command}'
  if shutil.which('bert-jax'):
    program = f'bert-jax {command.split(".")[-1]}'
  return argparse.ArgumentParser(program, allow_abbrev=False, **settings)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
  """The lines of a table with aligned columns; the header is one of the rows."""
  widths, lines = [], []
  for column in range(len(rows[0])):
    widths.append(max(len(row[column]) for row in rows))
  for row in rows:
    cells = [cell.ljust(width) for cell, width in zip(row, widths)]
    lines.append('  '.join(cells).rstrip())
  return lines
