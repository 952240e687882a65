"""The lock that allows one training at a time in a workdir, or one preparation in a folder.

The file run.lock names its holder and is locked by the operating system, which releases it however
the process ends. Hosts that share a disk may not see each other's locks, so the holder also
increases a counter in the file. If that stands still, the next run takes over.

A bucket has no locks, but creates a file for one process alone: it is held by who created the
newest of run.lock.1, run.lock.2 and so on. The next run takes over by creating the next one, so
who comes late finds it taken. A holder that finds a newer one, or another in its own, ends at once.
"""

import contextlib
import fcntl
import itertools
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from bert_jax.buckets import GUARDS, Bucket, mounted, remove_tree
from bert_jax.cells import in_notebook
from bert_jax.copies import place, staged
from bert_jax.errors import InputError, log, writing
from bert_jax.files import Path, names, read_bytes, read_text, remove_scratch
from bert_jax.text.values import json_value

NAME = 'run.lock'
LOCK = re.compile(rf'{NAME}(?:\.(\d+))?')  # in a bucket with a number
BEAT_SECONDS = 2
# How long the counter may stand still. The system may take some time to end a killed process; on a
# network file system what another host writes may be seen a minute late.
SECONDS_HERE, SECONDS_ELSEWHERE = 10, 90
BUCKET_BEAT_SECONDS, BUCKET_SECONDS = 5, 60  # in a bucket, where each beat is paid for


class Busy(InputError):
  """Another run holds the workdir; the same command works once that has ended."""

  code = 3


@contextlib.contextmanager
def held(workdir: str | Path) -> Iterator[None]:
  """A context that holds the lock of a folder, which is made; Busy if another process does."""
  folder, ended, counts, holder = Path(workdir), threading.Event(), itertools.count(), _holder()
  is_in_bucket = isinstance(folder, Bucket)
  if url := mounted(folder):
    log.warning('%s: gcsfuse shows no lock and no line of a run that lives; write %s', folder, url)
  with writing(workdir):
    write, release = (_taken_in_bucket if is_in_bucket else _taken_on_disk)(folder, holder)

  def beats():
    while not ended.wait(BUCKET_BEAT_SECONDS if is_in_bucket else BEAT_SECONDS):
      write(holder | {'count': next(counts)})

  write(holder | {'count': next(counts)})
  remove_scratch(folder)
  beat = threading.Thread(target=beats, daemon=True)
  beat.start()
  try:
    yield
  finally:
    ended.set()
    beat.join()
    release()


def _taken_on_disk(folder, holder):
  """Takes the lock of a folder on a disk: (what writes into it, what releases it)."""
  path = folder / NAME
  folder.mkdir(parents=True, exist_ok=True)
  lock = _take(path)
  if not _lock(lock):
    log.warning('%s: the file system has no locks; start one run at a time in this workdir', path)

  def write(content):
    with contextlib.suppress(OSError):  # a full disk is said where it matters
      os.pwrite(lock, json.dumps(content).encode(), 0)

  def release():
    with contextlib.suppress(OSError):
      if _is_at(lock, path):
        path.unlink()
    os.close(lock)
    with contextlib.suppress(OSError):
      folder.rmdir()  # which works only if nothing else was written into it

  return write, release


def _taken_in_bucket(folder, holder):
  """Takes the lock of a folder in a bucket: (what writes into it, what releases it)."""
  started, before, path = time.monotonic(), None, None
  while path is None:
    last = folder / f'{NAME}.{(number := _newest(folder))}'
    content = read_bytes(last) or b''
    if _parsed(content).get('id') == holder['id']:  # it was made, but the answer was lost
      path, number = last, number - 1
      break
    if before not in (None, (last, content)) and not _is_over(content):
      raise _busy(last, content)  # it counts, or another run was faster
    if not number or _is_over(content) or time.monotonic() - started > BUCKET_SECONDS:
      with contextlib.suppress(FileExistsError):
        new = folder / f'{NAME}.{number + 1}'
        new.write_bytes(json.dumps(holder).encode(), mode='create')
        last.unlink(missing_ok=True)
        path = new
    elif before is None:
      log.info('%s: waiting for a sign of the run that holds it: %s', last, _who(content))
    before = last, content
    time.sleep(0 if path else 1)
  seen = [time.time()]  # of the last beat; unlike monotonic it goes on while a machine sleeps

  def look(after=BUCKET_SECONDS / 2):
    """Ends this process if its beat has stood still, for so many seconds, and another took over."""
    if not 0 <= time.time() - seen[0] < after:
      owner = _parsed(read_bytes(path) or b'').get('id', holder['id'])
      if _newest(folder) > number + 1 or owner != holder['id']:
        fault = f'{folder} was taken over while this process stood still.'
        if in_notebook():
          raise Busy(fault)
        os.write(2, f'error: {fault}\n'.encode())
        os._exit(Busy.code)

  def write(content):
    with contextlib.suppress(OSError):
      look(0)
      path.write_bytes(json.dumps(content).encode())
      seen[0] = time.time()

  def release():
    del GUARDS[folder]
    write({'ended': True})

  GUARDS[folder] = look
  return write, release


def _newest(folder):
  """The number of the newest lock in a folder of a bucket; 0: there is none."""
  return max((int(m[1] or 0) for m in map(LOCK.fullmatch, names(folder)) if m), default=0)


def _holder():
  """What a lock says about this process. place: the machine and container in which pid counts."""
  place = read_text('/proc/sys/kernel/random/boot_id').strip()
  with contextlib.suppress(OSError):
    place += place and os.readlink('/proc/self/ns/pid')
  here = {'host': socket.gethostname(), 'pid': os.getpid(), 'since': time.strftime('%F %T')}
  return here | {'place': place, 'id': os.urandom(8).hex()}


def _is_over(content):
  """Whether it is certain that the run of a lock in a bucket has ended."""
  holder = _parsed(content)
  is_here = holder.get('place') and holder['place'] == _holder()['place']
  return holder.get('ended') or (is_here and not _lives(holder))


def beside(partial: Path) -> Path:
  """The folder of the lock of a whole_folder."""
  return partial.with_name(f'.{partial.name}.lock')


@contextlib.contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
  """The folder OUT.partial, which becomes the folder `out` at the end. A lock lies beside it: Busy
  if another process writes there; what a killed one has left is removed, all else refused."""
  partial = staged(beyond := out.with_name(f'{out.name}.partial'))
  if partial.exists() and not beside(partial).exists():
    raise InputError(f'{partial} is there already, and of nothing that was killed; remove it.')
  with held(beside(beyond)):
    try:
      remove_tree(partial)
      yield partial
      if names(out):
        raise InputError(f'{out} is not empty any more; give a new folder.')
      place(partial, out, last=('config.json', 'export.json'))
    finally:
      remove_tree(partial)


def is_held(workdir: Path) -> bool:
  """Whether another process holds the lock, or may: of another host, or on a disk without locks."""
  if isinstance(workdir, Bucket):
    content = read_bytes(workdir / f'{NAME}.{_newest(workdir)}')
    return content is not None and not _is_over(content)
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
