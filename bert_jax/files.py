"""Reads and writes the files of a workdir: whole or not at all, and the seal of a JSON file, which
is a hash of its content."""

import contextlib
import hashlib
import itertools
import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

# What numpy raises for a damaged .npz; RuntimeError: it seems encrypted, or compressed unusually.
UNREADABLE = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def write_whole(path: Path | str, data: str | bytes) -> None:
  """Writes a text or bytes so that a kill leaves the old file or the whole new one, and so that
  several may write at the same time. Returns when it is on the disk."""
  path = Path(path)
  scratch = path.with_name(f'.{path.name}.{uuid.uuid4().hex}.tmp')
  try:
    with open(scratch, 'wb') as file:
      file.write(data.encode() if isinstance(data, str) else data)
      file.flush()
      os.fsync(file.fileno())
    scratch.replace(path)
  except BaseException:
    scratch.unlink(missing_ok=True)
    raise
  with contextlib.suppress(OSError):  # some network file systems sync no folder
    folder = os.open(path.parent, os.O_RDONLY)
    try:
      os.fsync(folder)
    finally:
      os.close(folder)


def write_json(path: Path | str, content: Any, indent: int = 2) -> None:
  """Writes a value as JSON, as write_whole does."""
  write_whole(path, json.dumps(content, indent=indent) + '\n')


def read_bytes(path: Path | str) -> bytes | None:
  """The content of a file, or None if it does not exist."""
  try:
    return Path(path).read_bytes()
  except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
    return None


def read_text(path: Path | str) -> str:
  """The content of a file as text, '' if there is no such file. Bytes that are no text become
  U+FFFD."""
  return (read_bytes(path) or b'').decode(errors='replace')


def append(path: Path | str) -> TextIO:
  """Opens a file to append to it; makes it, and its folder, if it does not exist."""
  make_folder(Path(path).parent)
  return Path(path).open('a')


def exists(path: Path | str) -> bool:
  """Does a file or folder exist?"""
  return Path(path).exists()


def names(folder: Path | str) -> list[str]:
  """The sorted names of files and folders in a folder; [] if it does not exist."""
  try:
    return sorted(os.listdir(folder))
  except (FileNotFoundError, NotADirectoryError):
    return []


def find(folder: Path | str, name: str) -> list[Path]:
  """The files called `name` in a folder and the folders below it, sorted."""
  return sorted(Path(folder).rglob(name))


def make_folder(path: Path | str) -> None:
  Path(path).mkdir(parents=True, exist_ok=True)


def remove(path: Path | str) -> None:
  """Removes a file if it exists."""
  Path(path).unlink(missing_ok=True)


def seal(content: Mapping[str, Any]) -> str:
  """A hash of everything in a dict but its own `seal`."""
  rest = {k: v for k, v in content.items() if k != 'seal'}
  return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def set_aside(path: Path) -> str:
  """Renames a damaged file to the first free NAME.damaged-N beside it; returns that name."""
  names = (f'{path.name}.damaged-{n}' for n in itertools.count(1))
  name = next(name for name in names if not path.with_name(name).exists())
  path.rename(path.with_name(name))
  return name
