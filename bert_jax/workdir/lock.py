"""The lock that allows one training at a time in a workdir, or one preparation in a folder.

The file run.lock names its holder and is locked by the operating system, which releases it however
the process ends. Hosts that share a disk may not see each other's locks, so the holder also
increases a counter in the file. If that stands still, the next run takes over.
"""

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.errors import InputError, log, writing
from bert_jax.files import read_bytes, remove_scratch
from bert_jax.text.values import json_value

NAME = 'run.lock'
BEAT_SECONDS = 2
# How long the counter may stand still. The system may take some time to end a killed process; on a
# network file system what another host writes may be seen a minute late.
SECONDS_HERE, SECONDS_ELSEWHERE = 10, 90


class Busy(InputError):
  """Another run holds the workdir; the same command works once that has ended."""

  code = 3


@contextlib.contextmanager
def held(workdir: str | Path) -> Iterator[None]:
  """A context that holds the lock of a folder, which is made; Busy if another process does."""
  path = Path(workdir) / NAME
  with writing(workdir):
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _take(path)
  if not _lock(lock):
    log.warning('%s: the file system has no locks; start one run at a time in this workdir', path)
  ended, counts = threading.Event(), itertools.count()
  holder = {'host': socket.gethostname(), 'pid': os.getpid(), 'since': time.strftime('%F %T')}

  def beats():
    while not ended.wait(BEAT_SECONDS):
      _write(lock, holder, next(counts))

  _write(lock, holder, next(counts))
  remove_scratch(path.parent)
  beat = threading.Thread(target=beats, daemon=True)
  beat.start()
  try:
    yield
  finally:
    ended.set()
    beat.join()
    with contextlib.suppress(OSError):
      if _is_at(lock, path):
        path.unlink()
    os.close(lock)
    with contextlib.suppress(OSError):
      path.parent.rmdir()  # which works only if nothing else was written into it


def beside(partial: Path) -> Path:
  """The folder of the lock of a whole_folder."""
  return partial.with_name(f'.{partial.name}.lock')


@contextlib.contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
  """A context with the folder OUT.partial, which becomes the folder `out` at its end. A lock lies
  beside it: Busy if another process writes there. What a killed process has left is removed, and
  InputError raised if OUT.partial is anything else."""
  partial = out.with_name(f'{out.name}.partial')
  if partial.exists() and not beside(partial).exists():
    raise InputError(f'{partial} is there already, and of nothing that was killed; remove it.')
  with held(beside(partial)):
    try:
      shutil.rmtree(partial, ignore_errors=True)
      yield partial
      if out.exists():
        out.rmdir()
      partial.rename(out)
    finally:
      shutil.rmtree(partial, ignore_errors=True)


def is_held(workdir: Path) -> bool:
  """Whether another process holds the lock, or may: of another host, or on a disk without locks."""
  holder, here, free = _parsed(read_bytes(workdir / NAME) or b''), socket.gethostname(), None
  with contextlib.suppress(OSError), open(workdir / NAME, 'rb+') as lock:  # NFS wants a writer
    free = _lock(lock)
  return holder.get('host', here) != here or (_lives(holder) if free is None else not free)


def _take(path):
  """Takes the lock and returns its file descriptor."""
  started, before, said = time.monotonic(), None, False
  while True:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
      if (content := os.pread(lock, 1000, 0)) and before not in (None, content):
        raise _busy(path, content)  # it counts, or another run was faster
      before = content
      here = _parsed(content).get('host') == socket.gethostname()
      free = _lock(lock)
      may_take = not content or (here and free)
      if may_take and free is not False and _is_at(lock, path):
        os.ftruncate(lock, 0)
        return lock
      waited, limit = time.monotonic() - started, SECONDS_HERE if here else SECONDS_ELSEWHERE
      if not said:
        who, said = _who(content), True
        log.info('%s: waiting up to %d s for a sign of the run that holds it: %s', path, limit, who)
      if waited > limit:
        if here and _lives(_parsed(content)):
          raise _busy(path, content)
        if _is_at(lock, path):  # else another process has just taken it over
          log.warning('%s is taken over; its run is gone: %s', path, _who(content))
          path.unlink(missing_ok=True)
        started, before = time.monotonic(), None
    except BaseException:
      os.close(lock)
      raise
    os.close(lock)
    time.sleep(0.2)


def _lock(lock):
  """Whether the system gave the lock to this process; None: the file system has no locks."""
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  except OSError:
    return None
  return True


def _is_at(lock, path):
  """Whether an open file is still the one at a path."""
  try:
    return os.path.samestat(os.fstat(lock), os.stat(path))
  except FileNotFoundError:
    return False


def _write(lock, holder, count):
  with contextlib.suppress(OSError):  # a full disk is said where it matters
    os.pwrite(lock, json.dumps(holder | {'count': count}).encode(), 0)


def _parsed(content: bytes) -> dict[str, Any]:
  with contextlib.suppress(ValueError):
    holder = json_value(content)
    if isinstance(holder, dict):
      return holder
  return {}


def _lives(holder):
  """Whether the process that a lock names lives on this host."""
  try:
    os.kill(int(holder['pid']), 0)
  except PermissionError:
    return True
  except (OSError, KeyError, ValueError, TypeError, OverflowError):
    return False
  return True


def _who(content):
  holder, words = _parsed(content), {'pid': 'process', 'host': 'of host', 'since': 'since'}
  return ' '.join(f'{words[key]} {holder[key]}' for key in words if key in holder) or 'nobody'


def _busy(path, content):
  fault = f'{path.parent} is in use: {_who(content)} writes into it; wait, or give another folder'
  return Busy(f'{fault}. (If there is no such process any more, remove {path}.)')
