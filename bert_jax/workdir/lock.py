"""The lock that allows one training at a time in a workdir, or one preparation in a folder.

On a disk the file run.lock is locked by the operating system, which releases it however the process
ends. A bucket has no locks, but creates a file for one process alone: who has created run.lock
writes it anew every few seconds. One that has not changed for a minute is taken over, and a process
that finds another's name in it ends at once. Of one that stood still in the middle of a write, that
one file may still arrive when it wakes up.
"""

import contextlib
import fcntl
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from bert_jax.buckets import GUARDS, Bucket, remove_tree
from bert_jax.copies import place, staged
from bert_jax.errors import InputError, log, writing
from bert_jax.files import Path, names, read_bytes
from bert_jax.text.values import json_value

NAME = 'run.lock'
SECONDS = 10  # how long a lock on a disk is waited for: a killed process may take some time to end
BEAT_SECONDS, STALE_SECONDS = 10, 60  # of a lock in a bucket


class Busy(InputError):
  """Another run holds the workdir; the same command works once that has ended."""

  code = 3


@contextlib.contextmanager
def held(workdir: str | Path) -> Iterator[None]:
  """A context that holds the lock of a folder, which is made; Busy if another process does."""
  folder = Path(workdir)
  with _held_in_bucket(folder) if isinstance(folder, Bucket) else _held_on_disk(folder):
    yield


@contextlib.contextmanager
def _held_on_disk(folder: Path) -> Iterator[None]:
  path, end = folder / NAME, time.monotonic() + SECONDS
  while True:
    with writing(folder):
      folder.mkdir(parents=True, exist_ok=True)
      lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    is_free = _flock(lock)
    if is_free is not False and _is_at(lock, path):
      break
    holder = os.pread(lock, 1000, 0)
    os.close(lock)
    if time.monotonic() > end:
      raise _busy(path, holder)
    time.sleep(0.2)
  if is_free is None:
    log.warning('%s: the file system has no locks; start one run at a time in this workdir', path)
  try:
    with contextlib.suppress(OSError):  # a full disk is said where it matters
      os.ftruncate(lock, 0)
      os.pwrite(lock, json.dumps(_holder()).encode(), 0)
    yield
  finally:
    with contextlib.suppress(OSError):
      path.unlink()
    os.close(lock)
    with contextlib.suppress(OSError):
      folder.rmdir()  # which works only if nothing else was written into it


@contextlib.contextmanager
def _held_in_bucket(folder: Path) -> Iterator[None]:
  path, holder, ended = folder / NAME, _holder(), threading.Event()
  with writing(folder):
    _take(path, holder)

  beaten = time.time()  # unlike monotonic it goes on while a machine sleeps

  def look() -> None:
    if _parsed(read_bytes(path) or b'').get('id') != holder['id']:
      os.write(2, f'error: {folder} was taken over while this process stood still.\n'.encode())
      os._exit(Busy.code)

  def guard() -> None:
    if not 0 <= time.time() - beaten < STALE_SECONDS / 4:  # less than _take waits
      look()

  def beats() -> None:
    nonlocal beaten
    for number in itertools.count(1):
      if ended.wait(BEAT_SECONDS):
        return
      with contextlib.suppress(OSError):  # the next one may come through
        look()
        path.write_bytes(json.dumps(holder | {'beat': number}).encode())
        beaten = time.time()

  GUARDS.append(guard)
  thread = threading.Thread(target=beats, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
    GUARDS.remove(guard)
    with contextlib.suppress(OSError):
      if _parsed(read_bytes(path) or b'').get('id') == holder['id']:
        path.unlink()


def _take(path: Any, holder: dict[str, Any]) -> None:
  """Creates the lock of a folder in a bucket, or takes it over once it has stood still."""
  seen, since, takes_over = None, time.monotonic(), False
  while True:
    content = read_bytes(path)
    if content is None:
      with contextlib.suppress(FileExistsError):
        path.write_bytes(json.dumps(holder).encode(), mode='create')
    elif _parsed(content).get('id') == holder['id']:
      if not takes_over:
        return
      takes_over = False
      time.sleep(2 * BEAT_SECONDS)  # others may have removed the stale one, too: the last has it
    elif seen not in (None, content):
      raise _busy(path, content)  # its holder lives, or another process was faster
    elif seen is None:
      log.info('%s: waiting up to %d s for a sign of %s', path, STALE_SECONDS, _who(content))
      seen, since = content, time.monotonic()
    elif time.monotonic() - since > STALE_SECONDS:
      log.warning('%s is taken over; its run is gone: %s', path, _who(content))
      path.unlink(missing_ok=True)
      takes_over = True
    else:
      time.sleep(BEAT_SECONDS / 10)


@contextlib.contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
  """A new folder beside `out`, which becomes `out` at the end; nothing of it stays if that fails"""
  partial = staged(out.with_name(f'.{out.name}.{os.urandom(4).hex()}.partial'))
  try:
    yield partial
    if names(out):
      raise InputError(f'{out} is not empty any more; give a new folder.')
    place(partial, out, last=('config.json', 'export.json'))
  finally:
    remove_tree(partial)


def _holder() -> dict[str, Any]:
  """What a lock says about this process."""
  return {
    'host': socket.gethostname(),
    'pid': os.getpid(),
    'since': time.strftime('%F %T'),
    'id': os.urandom(8).hex(),
  }


def _flock(lock: int) -> bool | None:
  """Whether the system gave the lock to this process; None: the file system has no locks."""
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  except OSError:
    return None
  return True


def _is_at(lock: int, path: Path) -> bool:
  """Whether an open file is still the one at a path."""
  try:
    return os.path.samestat(os.fstat(lock), os.stat(path))
  except FileNotFoundError:
    return False


def _parsed(content: bytes) -> dict[str, Any]:
  with contextlib.suppress(ValueError):
    holder = json_value(content)
    if isinstance(holder, dict):
      return holder
  return {}


def _who(content: bytes) -> str:
  holder = _parsed(content)
  return f'process {holder.get("pid")} of host {holder.get("host")} since {holder.get("since")}'


def _busy(path: Path, content: bytes) -> Busy:
  return Busy(
    f'{path.parent} is in use: {_who(content)} writes into it; wait, or give another folder.'
  )
