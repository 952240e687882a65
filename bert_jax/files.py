"""Files that are there whole or not at all, and JSON that carries a hash of itself, its seal."""

import contextlib
import hashlib
import itertools
import json
import os
import uuid
import zipfile
import zlib
from pathlib import Path

# What numpy raises of a damaged .npz; RuntimeError: it seems encrypted, or compressed unusually.
UNREADABLE = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def write_whole(path, data):
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


def seal(content):
  """A hash of everything in a dict but its own `seal`."""
  rest = {k: v for k, v in content.items() if k != 'seal'}
  return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def set_aside(path):
  """Renames a damaged file to the first free NAME.damaged-N beside it; returns that name."""
  names = (f'{path.name}.damaged-{n}' for n in itertools.count(1))
  name = next(name for name in names if not path.with_name(name).exists())
  path.rename(path.with_name(name))
  return name
