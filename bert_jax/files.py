"""Reads and writes files whole or not at all, and seals JSON files by a hash of their content."""

import contextlib
import hashlib
import json
import os
import pathlib
import tokenize
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO, TextIO

import numpy as np

from bert_jax.buckets import Bucket, Path

# What numpy raises for a damaged .npy or .npz; RuntimeError: it seems encrypted, or compressed
# unusually; TokenError, SyntaxError: a header is cut off.
UNREADABLE = (
  OSError,
  ValueError,
  KeyError,
  EOFError,
  RuntimeError,
  zipfile.BadZipFile,
  zlib.error,
  tokenize.TokenError,
  SyntaxError,
)


PACKAGE = pathlib.Path(__file__).parent


def brought(path: Path | str) -> Path:
  """A path; where no file is there, that of the file which this package brings, such as those of
  configs/."""
  own = PACKAGE / path
  return own if own.is_file() and not Path(path).is_file() else Path(path)


def difference(folder: Path) -> str:
  """The first file of the package `bert_jax` of a folder, beside its configs, that is another in
  this package or lacking there, such as 'step.py'; '' if none is, or there is no such package. What
  this one has beside them, pip may have installed from an earlier state of that clone."""
  other = folder.resolve() / 'bert_jax'
  if (other / '__init__.py').is_file() and other != PACKAGE.resolve():
    for path in sorted(other.rglob('*.py')):
      name = path.relative_to(other)
      if name.parts[0] != 'configs' and path.read_bytes() != read_bytes(PACKAGE / name):
        return str(name)
  return ''


def write_whole(path: Path | str, data: str | bytes) -> None:
  """Writes a text or bytes so that a kill leaves the old file or the whole new one, and several may
  write at the same time. Returns when it is on the disk."""
  path = Path(path)
  content = data.encode() if isinstance(data, str) else data
  if isinstance(path, Bucket):
    path.write_bytes(content)
    return
  scratch = path.with_name(f'.{path.name}.{uuid.uuid4().hex}.tmp')
  try:
    with open(scratch, 'wb') as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    scratch.replace(path)
  except BaseException as error:
    scratch.unlink(missing_ok=True)
    if isinstance(error, OSError):
      error.filename = str(path)
    raise
  with contextlib.suppress(OSError):  # some network file systems sync no folder
    folder = os.open(path.parent, os.O_RDONLY)
    try:
      os.fsync(folder)
    finally:
      os.close(folder)


def write_npy(path: Path, array: np.ndarray) -> None:
  """Writes an array as .npy, into a file that can be read: else numpy's C hides a full disk."""
  with path.open('w+b') as file:
    np.save(file, array)


def write_json(path: Path | str, content: Any, indent: int = 2) -> None:
  write_whole(path, json.dumps(content, indent=indent) + '\n')


def read_bytes(path: Path | str) -> bytes | None:
  """The content of a file, or None if it does not exist."""
  try:
    return Path(path).read_bytes()
  except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
    return None


def read_text(path: Path | str) -> str:
  """The content of a file, '' if there is none. Bytes that are no text become U+FFFD."""
  return (read_bytes(path) or b'').decode(errors='replace')


def append(path: Path | str) -> TextIO:
  make_folder(Path(path).parent)
  return Path(path).open('a', encoding='utf-8')


def exists(path: Path | str) -> bool:
  return Path(path).exists()


def names(folder: Path | str) -> list[str]:
  """The sorted names of files and folders in a folder; [] if it does not exist."""
  try:
    return sorted(path.name for path in Path(folder).iterdir())
  except (FileNotFoundError, NotADirectoryError):
    return []


def make_folder(path: Path | str) -> None:
  Path(path).mkdir(parents=True, exist_ok=True)


def seal(content: Mapping[str, Any]) -> str:
  """A hash of everything in a dict but its own `seal`."""
  rest = {k: v for k, v in content.items() if k != 'seal'}
  return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def write_sealed(path: Path | str, content: Mapping[str, Any], indent: int = 2) -> None:
  content = json.loads(json.dumps(content))  # as it will be read
  write_json(path, {**content, 'seal': seal(content)}, indent)


def read_npz(source: Path | BinaryIO) -> dict[str, np.ndarray]:
  """The arrays of an .npz file, or an error of UNREADABLE."""
  opened = source.open('rb') if isinstance(source, pathlib.PurePath) else source
  with opened as file, np.load(file) as arrays:
    return {name: arrays[name] for name in arrays.files}
