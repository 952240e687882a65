"""Compiles a program for chips that are not there, shows progress, and caches the result.

The cache is $XDG_CACHE_HOME/bert_jax/preflight (or ~/.cache/...); the key is a hash of the lowered
program, the chips and the versions of jax and libtpu. The folder may be removed.
"""

import contextlib
import gzip
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import jax

from bert_jax.errors import InputError, first_line
from bert_jax.files import write_whole

log = logging.getLogger('bert_jax')

EVERY = 30  # seconds between two lines about the same compilation
SIZES = ('argument', 'output', 'alias', 'temp', 'generated_code')


class Compiled(NamedTuple):
  """The result of a compilation. text: HLO, '' if it does not fit in HBM; sizes: bytes of each of
  SIZES; used, limit: bytes of HBM of a program that does not fit; resharded: how many involuntary
  rematerialisations the compiler warned of; seconds: how long it took, when it was compiled."""

  text: str
  sizes: dict
  used: int
  limit: int
  resharded: int
  seconds: float
  cached: bool = False


def compiled(lowered, devices, what, options=None):
  """Compiles a jax.stages.Lowered for devices, with the compiler `options` it was lowered with.
  what: the program in words, such as 'a product for'."""
  name = f'{what} {chips_in_words(devices)}'
  path = folder() / key(lowered, devices, options)
  if kept := load(path):
    return kept
  started = time.perf_counter()
  with ticking(f'compiling {name}, usually {usual(name)}'), quiet() as stderr, ending_at_once():
    try:
      made = lowered.compile()
      text, sizes, used, limit = made.as_text(), sizes_of(made), 0, 0
    except Exception as error:
      text, sizes, (used, limit) = '', {}, too_large(error)
    resharded = len(re.findall(r'[Ii]nvoluntary full rematerialization', stderr()))
  out = Compiled(text, sizes, used, limit, resharded, time.perf_counter() - started)
  store(path, name, out)
  return out


def sizes_of(made):
  analysis = made.memory_analysis()
  return {name: getattr(analysis, f'{name}_size_in_bytes') for name in SIZES}


def chips_in_words(devices):
  """Names devices in words: '16 TPU v5 lite'."""
  return f'{len(devices)} {devices[0].device_kind}'


def folder():
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return Path(home, 'bert_jax', 'preflight')


def versions():
  try:
    libtpu = importlib.metadata.version('libtpu')
  except importlib.metadata.PackageNotFoundError:
    libtpu = 'none'
  return f'jax {jax.__version__}, libtpu {libtpu}'


def key(lowered, devices, options=None):
  """A hash of all that a compilation depends on. The text of a lowered program has neither the
  positions of the devices nor the compiler's options."""
  places = [(d.id, getattr(d, 'slice_index', 0), *getattr(d, 'coords', ())) for d in devices]
  flags = os.environ.get('XLA_FLAGS', ''), os.environ.get('LIBTPU_INIT_ARGS', '')
  facts = json.dumps([versions(), devices[0].device_kind, places, flags, options])
  return hashlib.sha256(f'{facts}\n{lowered.as_text()}'.encode()).hexdigest()[:24]


def load(path):
  """Loads what `store` kept; None if there is nothing or it is damaged."""
  try:
    facts = json.loads(path.with_suffix('.json').read_text())
    text = gzip.decompress(path.with_suffix('.hlo.gz').read_bytes()).decode()
    return Compiled(text, **{name: facts[name] for name in Compiled._fields[1:-1]}, cached=True)
  except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error):
    return None


def store(path, name, made):
  """Keeps a Compiled for later processes, if the folder can be written to."""
  facts = made._asdict() | {'name': name, 'versions': versions()}
  text = gzip.compress(facts.pop('text').encode(), compresslevel=1)
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path.with_suffix('.hlo.gz'), text)
    write_whole(path.with_suffix('.json'), json.dumps(facts))
  except OSError as error:
    log.info('what was compiled is not kept: %s', error)


def usual(name):
  """How long the program of this name took to compile on this machine before, in words."""
  seconds = []
  for path in folder().glob('*.json'):
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
      facts = json.loads(path.read_text())
      seconds += [float(facts['seconds'])] * (facts['name'] == name)
  if not seconds:
    return '1 to 5 minutes'
  return duration(statistics.median(seconds))


def duration(seconds):
  """Formats seconds as '40 seconds' or '3 minutes'."""
  minutes, seconds = round(seconds / 60), max(1, round(seconds))
  return f'{minutes} minutes' if minutes > 1 else f'{seconds} second{"s" * (seconds > 1)}'


@contextlib.contextmanager
def ticking(sentence, every=EVERY):
  """Writes a sentence to stderr at once, then the time since: on a terminal by renewing the line
  each second, elsewhere by a line every `every` seconds."""
  with os.fdopen(os.dup(2), 'w') as out:  # stderr itself may be kept quiet meanwhile
    live, ended, started = out.isatty(), threading.Event(), time.perf_counter()

    def tick():
      while not ended.wait(1 if live else every):
        print(
          f'\r{sentence}: {time.perf_counter() - started:.0f} s'
          if live
          else f'  still compiling after {time.perf_counter() - started:.0f} s',
          end='' if live else '\n',
          file=out,
          flush=True,
        )

    print(sentence, end='' if live else '\n', file=out, flush=True)
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
      yield
    finally:
      ended.set()
      thread.join()
      if live:
        print(file=out, flush=True)


@contextlib.contextmanager
def ending_at_once():
  """Lets Ctrl-C and SIGTERM end the process. A handler of Python would wait for the compiler."""
  numbers = signal.SIGINT, signal.SIGTERM
  if threading.current_thread() is not threading.main_thread():
    numbers = ()
  before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


@contextlib.contextmanager
def quiet():
  """Keeps stderr off the terminal; yields a function that returns what was written to it."""
  with tempfile.TemporaryFile('w+b') as file:
    sys.stderr.flush()
    stderr = os.dup(2)
    os.dup2(file.fileno(), 2)

    def written():
      file.seek(0)
      return file.read().decode(errors='replace')

    try:
      yield written
    finally:
      os.dup2(stderr, 2)
      os.close(stderr)


def too_large(error):
  """Parses the error if a program does not fit: (bytes used, bytes of HBM); else InputError."""
  size = r'([\d.]+[BKMGT])'
  patterns = rf'Used {size}\w* of {size}\w* hbm', rf'\({size}\w*\) exceeds available HBM \({size}'
  match = next((m for p in patterns if (m := re.search(p, str(error)))), None)
  if not match:
    reason = first_line(error)
    raise InputError(f'the compiler takes no such program ({reason}); change the config.')
  return tuple(int(float(text[:-1]) * 1024 ** 'BKMGT'.index(text[-1])) for text in match.groups())
