"""What is kept in the user's cache: compiled programs (`keep_compiled`), and copies of what is in
buckets, for programs that know only disks. What these read is downloaded (`fetched`); what they
write is written to a disk (`staged`) and then uploaded (`place`).
"""

import functools
import hashlib
import os
import tempfile
from collections.abc import Collection

import jax
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.buckets import Bucket, Path
from bert_jax.errors import log


def cache_folder() -> Path:
  """The folder for what this package keeps in the user's cache."""
  return Path(os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'bert_jax')


def keep_compiled() -> None:
  """Lets JAX keep compiled programs in the user's cache, so that a program which was compiled once
  is only loaded by later runs and by other processes. JAX finds one by the program itself, the
  versions, the devices and XLA's flags, and compiles one that it cannot read anew, with a warning.
  It keeps no checksum, so a flipped bit may load, or end the process. Nothing changes where
  JAX_COMPILATION_CACHE_DIR or jax.config name a folder."""
  if jax.config.jax_compilation_cache_dir:  # pyrefly: ignore[missing-attribute] (made by JAX)
    return
  jax.config.update('jax_compilation_cache_dir', str(cache_folder() / 'compiled'))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  compilation_cache.reset_cache()  # it may have begun without a folder


def fetched(path: Path) -> Path:
  """The path, or a copy in the user's cache of one in a bucket, anew when a file has changed."""
  if not isinstance(path, Bucket):
    return path
  versions = [(str(file), version) for file, version in path.versions().items()]
  key = hashlib.sha256(repr(versions).encode()).hexdigest()[:24]
  folder = cache_folder() / 'buckets' / key
  if not folder.is_dir():
    log.info('copying %s to %s', path, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
      path.store.get(str(path), f'{scratch}/whole/{path.name}', recursive=True)
      try:
        os.rename(f'{scratch}/whole', folder)
      except OSError:
        if not folder.is_dir():  # else another process was faster
          raise
  return folder / path.name


@functools.cache
def _scratch(process: int) -> tempfile.TemporaryDirectory:
  """A folder of this process, removed when it ends."""
  return tempfile.TemporaryDirectory(prefix='bert_jax-')


def staged(path: Path) -> Path:
  """Where a program that knows only disks writes: `path` or, for a bucket, a temporary folder."""
  if not isinstance(path, Bucket):
    return path
  out = Path(_scratch(os.getpid()).name, *path.parts[1:])
  out.parent.mkdir(parents=True, exist_ok=True)
  return out


def place(source: Path, path: Path, last: Collection[str] = ()) -> None:
  """Brings what was written where `staged` says to its path: moves it, or uploads it to a bucket.
  last: names of files that come last, by whose presence a reader knows that all are there."""
  if not isinstance(path, Bucket):
    if source != path:
      source.rename(path)
    return
  found = [source, *source.rglob('*')]
  paths = [file for file in found if file.is_file()]
  for file in sorted(paths, key=lambda file: (file.name in last, file)):
    target = path.joinpath(*file.relative_to(source).parts)
    target.store.put_file(str(file), str(target))
