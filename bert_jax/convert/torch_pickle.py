"""Reads torch's `.bin` files with numpy, and safely.

A pickle is a program that may call whatever it can name. Here it can only name the parts of a table
of tensors, so a file that asks for more is refused before anything of it runs. Both forms of
torch/serialization.py are read: the zip of torch 1.6 and later, and the stream before it. Sizes
that a file states are compared with its bytes before anything of that size is made.
"""

import math
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from bert_jax.errors import InputError
from bert_jax.files import Path

MAGIC = 0x1950A86A20F9469CFC6C
_KINDS: dict[str, Any] = dict(Float='f4', Double='f8', Half='f2', BFloat16=ml_dtypes.bfloat16)
_KINDS |= dict(Long='i8', Int='i4', Short='i2', Char='i1', Byte='u1', Bool='?')
TYPES = {f'{name}Storage': np.dtype(kind) for name, kind in _KINDS.items()}
PACKED = 20  # weights hardly compress: a zip that unpacks to so many times its size is refused


class Refused(Exception):
  """The file asks for something other than the data of tensors."""


class _Storage(NamedTuple):
  """A flat array, which tensors share."""

  key: str
  dtype: np.dtype
  count: int  # of numbers

  def check(self, size: int) -> None:
    """ValueError unless so many bytes are all its numbers."""
    if size != self.count * self.dtype.itemsize:
      number = size // self.dtype.itemsize
      raise ValueError(f'storage {self.key} has {number} numbers, not {self.count}')


class _Tensor(NamedTuple):
  """A tensor's place in a storage; counts are of numbers."""

  storage: _Storage
  offset: int
  shape: tuple
  strides: tuple


def _rebuild(storage, offset, shape, strides, *rest):
  return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor, *rest):
  return tensor


ALLOWED = {
  ('collections', 'OrderedDict'): OrderedDict,
  ('torch._utils', '_rebuild_tensor'): _rebuild,
  ('torch._utils', '_rebuild_tensor_v2'): _rebuild,
  ('torch._utils', '_rebuild_parameter'): _rebuild_parameter,
} | {('torch', name): kind for name, kind in TYPES.items()}


class _Unpickler(pickle.Unpickler):
  def find_class(self, module, name):
    if (module, name) not in ALLOWED:
      raise Refused(f'{module}.{name}')
    return ALLOWED[module, name]

  def persistent_load(self, pid):
    if len(pid) < 5 or pid[0] != 'storage' or not isinstance(pid[1], np.dtype):
      raise Refused(f'a storage {pid!r:.80}')
    if len(pid) > 5 and pid[5] is not None:
      raise Refused('a storage inside another (view_metadata)')
    return _Storage(str(pid[2]), pid[1], int(pid[4]))


def read(path: Path) -> dict[str, np.ndarray]:
  """Reads a state_dict that torch.save wrote: {name: array}; InputError if the file is none."""
  try:
    table, storages = _read_zip(path) if zipfile.is_zipfile(path) else _read_stream(path)
    for key in ('state_dict', 'model'):  # as training scripts save it
      if isinstance(table, dict) and isinstance(table.get(key), dict):
        table = table[key]
    return {str(name): _array(name, tensor, storages) for name, tensor in table.items()}
  except Refused as error:
    no_need = 'which weights do not need; it is refused, and nothing of it was run'
    raise InputError(f'{path} asks for {error}, {no_need}. Get safetensors.') from None
  except InputError:
    raise
  except Exception as error:  # a damaged pickle can fail in any way
    why = f'{type(error).__name__}: {error!s:.100}'
    raise InputError(f'{path} cannot be read as weights of torch ({why}); is it whole?') from None


def _load(file):
  """Loads the next pickle of a file, whose numbers are checked, since they are made room for."""
  start = file.tell()
  size = file.seek(0, 2)
  file.seek(start)
  for opcode, number, _ in pickletools.genops(file):
    if opcode.name in ('PUT', 'LONG_BINPUT', 'FRAME') and number > size:
      raise ValueError(f'{opcode.name} of {number} in {size} bytes')
  file.seek(start)
  return _Unpickler(file).load()


def _read_zip(path):
  with zipfile.ZipFile(path) as archive:
    whole, on_disk = sum(info.file_size for info in archive.infolist()), path.stat().st_size
    if whole > PACKED * on_disk:
      raise ValueError(f'its {on_disk:,} bytes would unpack to {whole:,}')
    (main,) = (name for name in archive.namelist() if name.endswith('/data.pkl'))
    root = main.removesuffix('data.pkl')
    if f'{root}byteorder' in archive.namelist() and archive.read(f'{root}byteorder') != b'little':
      raise InputError(f'{path} was written on a big-endian machine; save it as safetensors.')
    with archive.open(main) as file:
      table = _load(file)
    storages = {}
    for storage in {tensor.storage for tensor in _tensors(table)}:
      place = f'{root}data/{storage.key}'
      storage.check(archive.getinfo(place).file_size)
      storages[storage] = np.frombuffer(archive.read(place), storage.dtype)
    return table, storages


def _read_stream(path):
  """Reads the form before torch 1.6: pickles of a magic number, a version, machine properties, the
  table and the keys of its storages; then the count and the numbers of each storage."""
  with open(path, 'rb') as file:
    magic, version, machine, table, keys = (_load(file) for _ in range(5))
    if (magic, version, machine['little_endian']) != (MAGIC, 1001, True):
      raise ValueError('not the header of torch.save')
    by_key = {tensor.storage.key: tensor.storage for tensor in _tensors(table)}
    storages = {}
    for key in map(str, keys):
      if key not in by_key:
        raise ValueError(f'storage {key} is of no tensor')
      (count,) = struct.unpack('<q', file.read(8))
      storage, left = by_key[key], path.stat().st_size - file.tell()
      size = count * storage.dtype.itemsize
      storage.check(min(size, left))
      storages[storage] = np.frombuffer(file.read(size), storage.dtype)
  return table, storages


def _tensors(table):
  """Yields the tensors of a table, which may be nested."""
  if isinstance(table, _Tensor):
    yield table
  elif isinstance(table, dict):
    for value in table.values():
      yield from _tensors(value)


def _array(name, tensor, storages):
  if not isinstance(tensor, _Tensor):
    fault = f'{name} is of type {type(tensor).__name__} and no tensor'
    raise InputError(f"{fault}; save the model's state_dict alone as .bin.")
  storage, offset, shape, strides = tensor
  x = storages[storage]
  numbers = (offset, *shape, *strides)
  if len(shape) != len(strides) or not all(isinstance(n, int) and n >= 0 for n in numbers):
    raise ValueError(f'{name} has the shape {shape} and strides {strides}')
  last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides))
  if math.prod(shape) and (last >= x.size or math.prod(shape) > x.size):
    raise ValueError(f'{name} reaches beyond its storage of {x.size} numbers')
  steps = [stride * x.itemsize for stride in strides]
  view = np.lib.stride_tricks.as_strided(x[offset:], shape, steps, writeable=False)
  return np.ascontiguousarray(view).reshape(shape)
