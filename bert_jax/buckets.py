"""Paths of files in buckets (gs:// and s3://, by etils.epath and fsspec) beside those on a disk.

A file appears in a bucket, whole, when its writer closes it. What needs a disk: see copies.py.
"""

import errno
import fnmatch
import functools
import io
import os
import pathlib
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from etils.epath import backend, gpath

from bert_jax.errors import InputError, first_line, log

URL = re.compile(r'([A-Za-z][A-Za-z0-9+.-]*)://(.*)', re.DOTALL)
# {protocol: how one logs in}, of stores that create a file for one process alone, as a lock must be
PROTOCOLS = {'gs': 'gcloud auth application-default login', 's3': 'AWS_PROFILE'}
GUARDS: list[Callable[[], None]] = []  # called before something in a bucket is changed
CHANGES = 'pipe_file', 'put_file', 'cp_file', 'rm'
_GPath: Any = gpath.PosixGPath
UPLOAD_SECONDS = 20  # between uploads of a file that is appended to, which is uploaded whole

if TYPE_CHECKING:
  from pathlib import Path
else:

  class Path(pathlib.Path):
    """pathlib's Path; of the URL of a file in a bucket a Bucket."""

    def __new__(cls, *parts):
      match = URL.match(os.fspath(parts[0])) if parts else None
      if not match:
        return pathlib.Path(*parts)
      if match[1] not in PROTOCOLS or not match[2].strip('/'):
        raise InputError(
          f'{parts[0]}: nothing here reads that; use a path, gs://BUCKET/.. or s3://.'
        )
      return Bucket(*parts)


class Store:
  """A file system of fsspec whose errors are OSErrors."""

  def __init__(self, file_system: Any, login: str):
    self._file_system, self._login = file_system, login

  def __getattr__(self, name: str) -> Any:
    function = getattr(self._file_system, name)

    def call(*args: Any, **options: Any) -> Any:
      if name in CHANGES:
        for guard in GUARDS:
          guard()
      try:
        return function(*args, **options)
      except (FileNotFoundError, FileExistsError, NotImplementedError):
        raise
      except Exception as error:
        reason, code = first_line(error), getattr(error, 'errno', 0) or errno.EIO
        if re.search(
          'Permission|Credential|Forbidden|, 40[13]$', f'{type(error).__name__} {reason}'
        ):
          code = errno.EACCES
          reason = f'{reason} (is there a login that may do so: {self._login}?)'
        raise OSError(code, reason, str(args[0])) from error

    return call


@functools.cache
def _store(protocol: str, process: int) -> Store:
  """The Store of a protocol. process: the id of the process that asks. One that was forked has all
  that its parent had cached, and by its own id it gets a Store of its own, since it cannot use the
  connections of its parent. No list of a folder's files is kept, here or in Orbax."""
  import fsspec

  fsspec.config.conf.setdefault(protocol, {})['use_listings_cache'] = False
  try:
    return Store(fsspec.filesystem(protocol), PROTOCOLS[protocol])
  except ImportError as error:
    raise InputError(f'{protocol}:// needs a package: {first_line(error)}.') from None


class _Backend(type(backend.fsspec_backend)):
  """epath's functions on our Stores."""

  def fs(self, path: Any) -> Any:
    return _store(os.fspath(path).partition('://')[0], os.getpid())


class Bucket(_GPath):
  """A file or folder in a bucket. A folder is there as long as a file is in it."""

  _backend = _Backend()

  @property
  def protocol(self) -> str:
    return str(self).partition('://')[0]

  @property
  def store(self) -> Store:
    return self._backend.fs(self)

  def _info(self) -> dict[str, Any]:
    try:
      return self.store.info(str(self))
    except FileNotFoundError:
      return {}

  def exists(self) -> bool:  # epath's says no where the store does not answer
    return bool(self._info())

  def is_file(self) -> bool:
    return self._info().get('type') == 'file'

  def is_dir(self) -> bool:
    return self._info().get('type') == 'directory'

  def stat(self) -> Any:
    """st_size, and st_mtime_ns: a number that changes with the content."""
    info = self.store.info(str(self))
    return SimpleNamespace(st_size=info['size'], st_mtime_ns=_version(info))

  def open(
    self,
    mode: str = 'r',
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
  ) -> Any:
    """Opens the file. One that is written appears when it is closed, but not if an exception leaves
    its `with`; one that is appended to, also whenever it is flushed."""
    if 'r' not in mode:
      content = self.read_bytes() if 'a' in mode and self.exists() else b''
      return Written(self, content, 'a' in mode)
    file = self.store.open(str(self), 'rb')
    return file if 'b' in mode else io.TextIOWrapper(file, encoding, errors, newline)

  def read_bytes(self) -> bytes:
    return self.store.cat_file(str(self))

  def write_bytes(self, data: Any, mode: str = 'overwrite') -> int:
    """Writes the whole file. mode: 'create': FileExistsError if it exists, as the store decides."""
    self.store.pipe_file(str(self), bytes(data), mode=mode)
    return len(data)

  def versions(self) -> dict['Bucket', int]:
    """The files below the folder, or the file itself, with numbers that change with the content."""
    found = self.store.find(str(self), detail=True)
    return {
      Bucket(f'{self.protocol}://{key}'): _version(info) for key, info in sorted(found.items())
    }

  def rglob(self, pattern: str) -> Iterator['Bucket']:
    """The files below the folder, or the file itself, whose names match a pattern."""
    return (path for path in self.versions() if fnmatch.fnmatchcase(path.name, pattern))

  def matches(self) -> Iterator['Bucket']:
    """The files that this path, a pattern with * and **, matches."""
    for key, info in self.store.glob(str(self), detail=True).items():
      path = Bucket(f'{self.protocol}://{key}')
      is_hidden = str(path).count('/.') > str(self).count('/.')
      if info['type'] == 'file' and not is_hidden:
        yield path

  def rename(self, target: Any) -> Any:
    """Copies the file, or the folder as of a damaged checkpoint, and deletes it."""
    for path in list(self.versions()):
      moved = Bucket(target, *path.parts[len(self.parts) :])
      self.store.cp_file(str(path), str(moved))
      path.unlink()
    return target

  def check_writable(self) -> None:
    """An OSError if no file can be written here."""
    probe = self / '.probe'
    probe.write_bytes(b'')
    probe.unlink()

  def mkdir(self, mode: Any = None, parents: bool = False, exist_ok: bool = False) -> None:
    pass

  def rmdir(self) -> None:
    pass

  def resolve(self, strict: bool = False) -> 'Bucket':  # epath makes a path of a disk of it
    return self


def _version(info: dict[str, Any]) -> int:
  return zlib.crc32(repr(sorted(info.items())).encode())


class Written(io.BytesIO):
  """A file of a bucket that is written, with its content until now; text is written as UTF-8.
  appends: flush uploads it, too, but once in UPLOAD_SECONDS, and the next one mends what fails."""

  def __init__(self, path: Bucket, content: bytes, appends: bool):
    super().__init__()
    self.path, self.name, self.appends = path, str(path), appends
    self.write(content)
    self.uploaded, self.due = len(content) if content else -1, 0.0  # bytes; when flush uploads

  def write(self, data: Any) -> int:
    return super().write(data.encode() if isinstance(data, str) else data)

  def flush(self) -> None:
    if self.appends and not self.closed and time.monotonic() >= self.due:
      try:
        self.upload()
      except OSError as error:
        log.warning('%s cannot be uploaded now, and will be: %s', self.path, error.strerror)
      self.due = time.monotonic() + UPLOAD_SECONDS

  def upload(self) -> None:
    if self.uploaded != len(self.getvalue()):
      self.uploaded = self.path.write_bytes(self.getvalue())

  def close(self) -> None:
    if not self.closed:
      self.upload()
    super().close()

  def __del__(self) -> None:  # what is forgotten is not written
    super().close()

  # pyrefly: ignore[bad-override]
  def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
    if kind:
      super().close()
    else:
      self.close()


def remove_tree(folder: 'Path') -> None:
  if isinstance(folder, Bucket):
    folder.rmtree(missing_ok=True)
  else:
    shutil.rmtree(folder, ignore_errors=True)
