"""A bucket that behaves as gs:// does, in a folder of the disk: a file appears whole when its
writer closes it; nothing is renamed or appended to; there are no folders.

`python tests/fake_bucket.py MODULE ARGUMENTS` runs a command of ours that knows it as az://,
$FAKE_BUCKET being the folder; `MACHINE:SIGNAL:N:KEY MODULE ARGUMENTS` as if on another machine.
"""

import io
import itertools
import os
import runpy
import signal
import sys
import uuid
from pathlib import Path
from urllib.parse import quote, unquote

import fsspec

from bert_jax import buckets


class Refused(Exception):
  """An error as stores have them: no OSError."""


class FakeBucket(fsspec.AbstractFileSystem):
  """before: called with (operation, key) before each writing; it may raise."""

  protocol = 'az'
  cachable = False
  before = staticmethod(lambda operation, key: None)

  def _file(self, path):
    return Path(os.environ['FAKE_BUCKET'], quote(self._strip_protocol(path), safe=''))

  def _keys(self):
    names = os.listdir(os.environ['FAKE_BUCKET'])
    return sorted(unquote(name) for name in names if not name.startswith('.'))

  def _entry(self, key):
    try:
      at = self._file(key).stat()
    except FileNotFoundError:  # a process has removed it meanwhile
      return {'name': key, 'size': 0, 'type': 'file'}
    version = f'{at.st_ino}-{at.st_mtime_ns}'
    return {'name': key, 'size': at.st_size, 'type': 'file', 'generation': version}

  def ls(self, path, detail=True, **_):
    path, found = self._strip_protocol(path).rstrip('/'), {}
    for key in self._keys():
      if key == path:
        found[key] = self._entry(key)
      elif key.startswith(f'{path}/'):
        first, is_deeper, _ = key[len(path) + 1 :].partition('/')
        name = f'{path}/{first}'
        folder = {'name': name, 'size': 0, 'type': 'directory'}
        found[name] = folder if is_deeper else self._entry(name)
    if not found:
      raise FileNotFoundError(path)
    return [*found.values()] if detail else [*found]

  def info(self, path, **_):
    path = self._strip_protocol(path).rstrip('/')
    if self._file(path).exists():
      return self._entry(path)
    self.ls(path)
    return {'name': path, 'size': 0, 'type': 'directory'}

  def _open(self, path, mode='rb', **_):
    if mode == 'rb':
      if path.endswith('refused'):
        raise Refused('you may not read this, 403')
      return io.BytesIO(self._file(path).read_bytes())
    raise NotImplementedError(f'a file is written by pipe_file, and not in mode {mode}')

  def pipe_file(self, path, value, mode='overwrite', **_):
    key = self._strip_protocol(path)
    self.before('write', key)
    scratch = Path(os.environ['FAKE_BUCKET'], f'.{uuid.uuid4().hex}')
    scratch.write_bytes(value)
    if mode == 'create':
      try:
        os.link(scratch, self._file(key))
      finally:
        scratch.unlink()
    else:
      scratch.replace(self._file(key))

  def put_file(self, lpath, rpath, **_):
    self.pipe_file(rpath, Path(lpath).read_bytes())

  def cp_file(self, path1, path2, **_):
    self.pipe_file(path2, self._file(path1).read_bytes())

  def rm(self, path, recursive=False, maxdepth=None):
    for key in self.find(path) if recursive else [self._strip_protocol(path)]:
      self.before('remove', key)
      self._file(key).unlink()


fsspec.register_implementation('az', FakeBucket, clobber=True)
buckets.PROTOCOLS['az'] = 'FAKE_LOGIN'


def in_folder(folder, monkeypatch):
  """An empty bucket on the disk, for a test and what it starts: the folder of its files."""
  (store := folder / 'store').mkdir()
  monkeypatch.setenv('FAKE_BUCKET', str(store))
  monkeypatch.setenv('XDG_CACHE_HOME', str(folder / 'cache'))
  return store


def on_machine(spec, beat=0.2, stale=3.0):
  """Makes this process one of another machine, whose locks beat and go stale after so many seconds.

  spec, 'a:SIGKILL:3:steps/': machine a sends itself SIGKILL after its third writing of a key that
  holds steps/; with -3 just before it. What it has written is noted in $FAKE_BUCKET/.written."""
  from bert_jax.workdir import lock

  name, number, count, part = spec.split(':')
  holder, write, seen = lock._holder, FakeBucket.pipe_file, itertools.count(1)
  lock._holder = lambda: holder() | {'host': name}
  lock.BEAT_SECONDS, lock.STALE_SECONDS = beat, stale

  def pipe_file(self, path, value, **options):
    nth = next(seen) if part in path else 0
    if nth and nth == -int(count):
      os.kill(os.getpid(), signal.Signals[number])
    write(self, path, value, **options)
    with open(Path(os.environ['FAKE_BUCKET'], '.written'), 'a') as file:
      file.write(f'{name} {self._strip_protocol(path)}\n')
    if nth and nth == int(count):
      os.kill(os.getpid(), signal.Signals[number])

  FakeBucket.pipe_file = pipe_file


if __name__ == '__main__':
  sys.argv = sys.argv[1:]
  if ':' in sys.argv[0]:
    on_machine(sys.argv.pop(0))
  runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
