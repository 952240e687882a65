"""Paths of files in buckets (gs:// and s3://, by fsspec) beside those on a disk.

A file appears in a bucket, whole, when its writer closes it. What needs a disk: see copies.py.
"""

import contextlib
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

from bert_jax.errors import InputError, first_line, log

URL = re.compile(r'([A-Za-z][A-Za-z0-9+.-]*):(/+)(.*)', re.DOTALL)  # pathlib makes gs:/b of gs://b
CHANGES = 'pipe_file', 'put_file', 'cp_file', 'rm_file'
# {protocol: how one logs in}, of stores that create a file for one process alone, as a lock must be
PROTOCOLS = {'gs': 'gcloud auth application-default login', 's3': 'AWS_PROFILE'}
GUARDS: dict[pathlib.Path, Callable[[], None]] = {}  # {folder: called before a file is changed}
ERRORS = {'Permission|Credential|Forbidden|, 40[13]$': errno.EACCES, 'FileNotFound': errno.ENOENT}
ON_DISK: Any = pathlib.PosixPath
MOUNTS = '/proc/mounts'
UPLOAD_SECONDS = 20  # between uploads of a file that is appended to, which is uploaded whole
PART = 1 << 22  # bytes of a file that are read at a time

if TYPE_CHECKING:
  from pathlib import Path
else:

  class Path(pathlib.Path):
    """pathlib's Path; of the URL of a file in a bucket a Bucket."""

    def __new__(cls, *parts):
      return (Bucket if parts and _is_url(str(parts[0])) else pathlib.Path)(*parts)


def _is_url(text: str) -> bool:
  """Whether a text is the URL of a bucket; InputError for other URLs. data:/x is on a disk."""
  if not (match := URL.match(text)) or (match[1] not in PROTOCOLS and match[2] == '/'):
    return False
  if match[1] not in PROTOCOLS or not match[3] or '//' in match[2][1:] + match[3]:
    raise InputError(f'{text}: nothing here reads that; give a path, gs://BUCKET/FOLDER or s3://.')
  return True


@functools.cache
def _store(protocol: str, process: int) -> Any:
  """fsspec's file system of a protocol. It lists anew each time, and so does the one of Orbax."""
  import fsspec

  fsspec.config.conf.setdefault(protocol, {})['use_listings_cache'] = False
  try:
    return fsspec.filesystem(protocol)
  except ImportError as error:
    raise InputError(f'{protocol}:// needs a package: {first_line(error)}.') from None


class Bucket(ON_DISK):
  """A file or folder in a bucket, as a Path; with InputErrors for what knows only disks."""

  def __str__(self) -> str:
    return URL.sub(r'\1://\3', super().__str__(), count=1)

  def __fspath__(self) -> str:
    raise InputError(f'{self} is in a bucket, where this is not supported; use a path on a disk.')

  protocol = property(lambda self: self.parts[0].rstrip(':'))

  def call(self, function: str, *args: Any, **options: Any) -> Any:
    """Calls a function of the store with this path, and makes its errors OSErrors."""
    for folder, check in [*GUARDS.items()] if function in CHANGES else ():
      if self.is_relative_to(folder):
        check()
    paths = (*args, str(self)) if function == 'put_file' else (str(self), *args)
    try:
      return getattr(_store(self.protocol, os.getpid()), function)(*paths, **options)
    except (FileExistsError, InputError):
      raise
    except Exception as error:
      kind, said = type(error).__name__, first_line(error)
      found = (code for text, code in ERRORS.items() if re.search(text, f'{kind} {said}'))
      code = getattr(error, 'errno', 0) or next(found, errno.EIO)
      if code == errno.ENOENT:  # no folder has to be there to write into it
        said = 'No such bucket' if function == 'pipe_file' else os.strerror(code)
      elif code == errno.EACCES:
        login = f'{PROTOCOLS[self.protocol]}, or the service account of the machine'
        said = f'{said.rstrip(".")} (is there a login that may do so: {login}?)'
      raise OSError(code, said, str(self)) from error

  def _info(self) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
      return self.call('info')
    return {}

  exists = lambda self, **_: bool(self._info())
  is_file = lambda self, **_: self._info().get('type') == 'file'
  is_dir = lambda self, **_: self._info().get('type') == 'directory'
  is_fifo = lambda self: False

  def stat(self, **_: Any) -> Any:
    """st_size, and st_mtime_ns: a number that changes with the content."""
    info = self.call('info')
    return SimpleNamespace(st_size=info['size'], st_mtime_ns=_version(info))

  def open(self, mode: str = 'r', buffering: int = -1, *text: Any, **named: Any) -> Any:
    """Opens the file. One that is written appears when it is closed, but not if an exception leaves
    its `with`; one that is appended to, also whenever it is flushed."""
    if 'r' in mode:
      reader: Any = _Read(self)
      file = io.BufferedReader(reader, max(buffering, PART))
      return file if 'b' in mode else io.TextIOWrapper(file, *text, **named)
    return Written(self, self.read_bytes() if 'a' in mode and self._info() else b'', 'a' in mode)

  def read_bytes(self) -> bytes:
    return self.call('cat_file')

  def write_bytes(self, data: Any, mode: str = 'overwrite') -> int:
    """Writes the whole file. mode: 'create': FileExistsError if it exists, as the store decides."""
    self.call('pipe_file', bytes(data), mode=mode)
    return len(data)

  def iterdir(self) -> Iterator['Bucket']:
    keys, own = self.call('ls', detail=False), self.call('_strip_protocol')
    return (self / x.rpartition('/')[2] for x in sorted({x.strip('/') for x in keys} - {own}))

  def versions(self) -> dict['Bucket', int]:
    """The files below the folder, or the file itself, with numbers that change with the content."""
    start = len(self.call('_strip_protocol'))  # a console makes a file D/ for a folder
    found = sorted(self.call('find', detail=True).items())
    parts = {key[start:].strip('/'): _version(info) for key, info in found if key[-1] != '/'}
    return {self / part if part else self: version for part, version in parts.items()}

  def rglob(self, pattern: str) -> Iterator['Bucket']:
    """The files below the folder, or the file itself, whose names match a pattern."""
    return (path for path in self.versions() if fnmatch.fnmatchcase(path.name, pattern))

  def matches(self) -> Iterator['Bucket']:
    """The files that this path, a pattern with * and **, matches."""
    found = self.call('glob', detail=True).items()
    files = (f'{self.protocol}://{key.lstrip("/")}' for key, x in found if x['type'] == 'file')
    return (Bucket(x) for x in files if x.count('/.') <= str(self).count('/.'))  # as glob does

  def unlink(self, missing_ok: bool = False) -> None:
    with contextlib.suppress(*[FileNotFoundError] * missing_ok):
      self.call('rm_file')

  def rename(self, target: Any) -> Any:
    """Copies the file, or the folder, and deletes it."""
    for path in [*self.rglob('*')]:
      path.call('cp_file', str(Path(target, *path.parts[len(self.parts) :])))
      path.unlink()
    return target

  def check_writable(self) -> None:
    """An OSError if no file can be written here."""
    (probe := self / '.probe').write_bytes(b'')
    probe.unlink()

  glob = lambda self, *_, **__: self.__fspath__()  # rglob and matches are there
  absolute = resolve = expanduser = lambda self, *_, **__: self
  mkdir = rmdir = absolute  # a folder is there as long as a file is in it


def _version(info):
  return zlib.crc32(repr(sorted(info.items())).encode())


class _Read(io.RawIOBase):
  """A file of a bucket that is read, part by part."""

  def __init__(self, path: Bucket):
    self.path, self.name, self.at, self.size = path, str(path), 0, path.stat().st_size

  def readable(self) -> bool:
    return True

  seekable = readable

  def readinto(self, buffer: Any) -> int:
    end = min(self.at + len(buffer), self.size)
    data = self.path.call('cat_file', start=self.at, end=end) if self.at < end else b''
    buffer[: len(data)] = data
    self.at += len(data)
    return len(data)

  def seek(self, offset: int, whence: int = 0) -> int:
    self.at = offset + (0, self.at, self.size)[whence]
    return self.at


class Written(io.BytesIO):
  """A file of a bucket that is written, with its content until now; text is written as UTF-8.
  appends: see Bucket.open; flush then uploads once in UPLOAD_SECONDS, and the next one mends what
  fails. It is not written if it is forgotten, nor again what is written."""

  def __init__(self, path: Bucket, content: bytes, appends: bool):
    super().__init__()
    self.path, self.name, self.appends = path, str(path), appends
    self.uploaded, self.due = self.write(content) or -1, 0.0

  def write(self, data: Any) -> int:
    return super().write(data.encode() if isinstance(data, str) else data)

  def flush(self, ends: bool = False) -> None:
    is_due = ends or (self.appends and time.monotonic() >= self.due)
    if not is_due or self.closed or self.uploaded == len(self.getvalue()):
      return
    try:
      self.uploaded = self.path.write_bytes(self.getvalue())
    except OSError as error:
      if ends:
        raise
      log.warning('%s cannot be uploaded now, and will be: %s', self.path, error.strerror)
    self.due = time.monotonic() + UPLOAD_SECONDS

  def close(self) -> None:
    self.flush(True)
    super().close()

  __del__ = io.BytesIO.close

  # pyrefly: ignore[bad-override]
  def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
    super().close() if kind else self.close()


def remove_tree(folder: 'Path') -> None:
  if isinstance(folder, Bucket):
    for path in folder.rglob('*'):
      path.unlink(missing_ok=True)
  else:
    shutil.rmtree(folder, ignore_errors=True)


def mounted(path: pathlib.Path) -> str:
  """The URL of a path in a bucket that gcsfuse has mounted; '' for all others, and for a Bucket."""
  if isinstance(path, Bucket):
    return ''
  real, best = os.path.realpath(path), ['', '', '']
  with contextlib.suppress(OSError), open(MOUNTS) as file:
    for line in map(str.split, file):
      if f'{real}/'.startswith(f'{line[1].rstrip("/")}/') and len(line[1]) >= len(best[1]):
        best = line
  return f'gs://{best[0]}/{real[len(best[1]) :].strip("/")}' if best[2] == 'fuse.gcsfuse' else ''
