"""Compiles a program for chips that are not there, and keeps the result.

The cache is $XDG_CACHE_HOME/bert_jax/preflight (or ~/.cache/...); the key is a hash of the lowered
program, the chips and the versions of jax and libtpu. The folder may be removed.
"""

import contextlib
import gzip
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.stages import Lowered

from bert_jax.command_line import aside
from bert_jax.copies import cache_folder
from bert_jax.errors import InputError, first_line, log
from bert_jax.files import Path, write_whole
from bert_jax.tools.preflight import hlo, schedules

Devices = Sequence[jax.Device]
Options = Mapping[str, Any] | None  # of the compiler
SIZES = ('argument', 'output', 'alias', 'temp', 'generated_code')


class Kernel(NamedTuple):
  """Of Pallas, or an operation with one in it."""

  cycles: int  # of its schedule, 0 if they are not known
  bytes: int  # of its operands and results in HBM


class Compiled(NamedTuple):
  text: str  # HLO, '' if it does not fit in HBM
  sizes: Mapping[str, int]  # bytes of each of SIZES
  used: int  # bytes of HBM, of a program that does not fit
  limit: int  # bytes of HBM that there are, for such a program
  kernels: Mapping[str, Sequence[int]]  # {name: the fields of a Kernel}


def compiled(lowered: Lowered, devices: Devices, what: str, options: Options = None) -> Compiled:
  """Compiles a program with the `options` it was lowered with. what: in words, 'a product for'."""
  name = f'{what} {len(devices)} {devices[0].device_kind}'
  path = cache_folder() / 'preflight' / f'{key(lowered, devices, options)}.json.gz'
  kept = load(path)
  if kept:
    return kept
  print(f'compiling {name}', file=sys.stderr)
  schedules.read([])  # forgets those of a program that was refused
  with quiet():
    try:
      (made,) = aside(lambda x: x.compile(), [lowered])
      memory = made.memory_analysis()
      sizes = {name: getattr(memory, f'{name}_size_in_bytes') for name in SIZES}
      text = made.as_text() or ''
      sizes_of = hlo.Program(text).kernels()
      cycles = schedules.read(sizes_of)
      kernels = {name: (cycles.get(name, 0), size) for name, size in sizes_of.items()}
      out = Compiled(text, sizes, used=0, limit=0, kernels=kernels)
    except Exception as error:
      used, limit = too_large(error)
      out = Compiled('', {}, used, limit, kernels={})
  store(path, out)
  return out


def versions() -> str:
  libtpu = [x.version for x in importlib.metadata.distributions(name='libtpu')]
  return f'jax {jax.__version__}, libtpu {libtpu[0] if libtpu else "none"}'


def key(lowered: Lowered, devices: Devices, options: Options = None) -> str:
  """A hash of all that a compilation depends on, also of what is not in the text of a program."""
  places = [(d.id, getattr(d, 'slice_index', 0), *getattr(d, 'coords', ())) for d in devices]
  flags = os.environ.get('XLA_FLAGS', ''), schedules.flags()
  facts = json.dumps([versions(), devices[0].device_kind, places, flags, options])
  return hashlib.sha256(f'{facts}\n{lowered.as_text()}'.encode()).hexdigest()[:24]


def load(path: Path) -> Compiled | None:
  """Loads what `store` kept; None if there is nothing or it is damaged."""
  try:
    return Compiled(**json.loads(gzip.decompress(path.read_bytes())))
  except (OSError, EOFError, ValueError, TypeError, zlib.error):
    return None


def store(path: Path, made: Compiled) -> None:
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, gzip.compress(json.dumps(made._asdict()).encode(), compresslevel=1))
  except OSError as error:
    log.info('what was compiled is not kept: %s', error)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Keeps what the compiler writes to stderr off the terminal."""
  sys.stderr.flush()
  stderr = os.dup(2)
  with open(os.devnull, 'wb') as nowhere:
    os.dup2(nowhere.fileno(), 2)
  try:
    yield
  finally:
    os.dup2(stderr, 2)
    os.close(stderr)


def too_large(error: Exception) -> tuple[int, int]:
  """Parses the error if a program does not fit: (bytes used, bytes of HBM); else InputError."""
  size = r'([\d.]+[BKMGT])'
  patterns = rf'Used {size}\w* of {size}\w* hbm', rf'\({size}\w*\) exceeds available HBM \({size}'
  matches = [re.search(pattern, str(error)) for pattern in patterns]
  match = matches[0] or matches[1]
  if not match:
    raise InputError(
      f'the compiler takes no such program ({first_line(error)}); change the config, such as '
      'optimizer.accumulation for fewer rows at a time.'
    )
  used, limit = (int(float(x[:-1]) * 1024 ** 'BKMGT'.index(x[-1])) for x in match.groups())
  return used, limit
