"""Copies on a disk of what is in buckets, for programs that know only disks: what they read is
downloaded (`fetched`); what they write is written to a disk (`staged`) and then uploaded (`place`).
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator

from bert_jax.buckets import Bucket, Path
from bert_jax.errors import log

SCRATCH = threading.Lock()  # for _scratch: else each thread makes a folder, of which one stays


def cache_folder() -> Path:
  """The folder for what this package keeps in the user's cache."""
  return Path(os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'bert_jax')


def fetched(path: Path) -> Path:
  """The path, or a copy in the user's cache of one in a bucket, anew when a file has changed."""
  if not isinstance(path, Bucket):
    return path
  versions = [(str(x), version) for x, version in path.versions().items()]
  key = hashlib.sha256(repr(versions).encode()).hexdigest()[:24]
  folder = cache_folder() / 'buckets' / key
  if not folder.is_dir():
    with _alone(folder.with_suffix('.lock')):
      if not folder.is_dir():  # else another one has copied it meanwhile
        _copy(path, folder)
  return folder / path.name


def _copy(path, folder):
  log.info('copying %s to %s', path, folder)
  with SCRATCH:
    unfinished = Path(_scratch(os.getpid(), folder.parent).name)
  unfinished.mkdir(parents=True, exist_ok=True)  # if the cache was emptied
  with tempfile.TemporaryDirectory(dir=unfinished) as scratch:
    path.call('get', f'{scratch}/whole/{path.name}', recursive=True)
    try:
      os.rename(f'{scratch}/whole', folder)
    except OSError:
      if not folder.is_dir():  # else another one was faster, on a disk without locks
        raise


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
  """A context for one thread at a time, of all processes for which `path` is the same file."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open('w') as file:
    with contextlib.suppress(OSError):  # a disk without locks
      fcntl.flock(file, fcntl.LOCK_EX)
    try:
      yield
    finally:
      path.unlink(missing_ok=True)  # those who wait have it open, and find the copy


@functools.cache
def _scratch(process: int, parent: Path | None = None) -> tempfile.TemporaryDirectory:
  """A folder that is removed when the process ends, or by the next process if it was killed."""
  parent = parent or Path(tempfile.gettempdir())
  parent.mkdir(parents=True, exist_ok=True)
  for old in parent.glob('bert_jax-*/.lock'):
    with contextlib.suppress(OSError), old.open('rb+') as file:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      shutil.rmtree(old.parent)
  folder = tempfile.TemporaryDirectory(prefix='bert_jax-', dir=parent)
  lock = os.open(f'{folder.name}/.tmp', os.O_CREAT | os.O_RDWR)  # open while the process lives
  fcntl.flock(lock, fcntl.LOCK_EX)
  os.rename(f'{folder.name}/.tmp', f'{folder.name}/.lock')
  return folder


def staged(path: Path) -> Path:
  """Where a program that knows only disks writes: `path` or, for a bucket, a temporary folder."""
  if not isinstance(path, Bucket):
    return path
  with SCRATCH:
    out = Path(_scratch(os.getpid()).name, *path.parts)
  out.parent.mkdir(parents=True, exist_ok=True)
  return out


def place(source: Path, path: Path, last: Collection[str] = ()) -> None:
  """Brings what was written where `staged` says to its path: moves it, or uploads it to a bucket.
  last: names of files that come last, by whose presence a reader knows that all are there."""
  if not isinstance(path, Bucket):
    if source != path:
      source.rename(path)
    return
  paths = [source] if source.is_file() else [x for x in source.rglob('*') if x.is_file()]
  for file in sorted(paths, key=lambda file: (file.name in last, file)):
    path.joinpath(*file.relative_to(source).parts).call('put_file', str(file))
