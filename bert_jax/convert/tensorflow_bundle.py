"""Reads TensorFlow's checkpoints (tensor bundles) without TensorFlow.

`NAME.index` is a sorted table in LevelDB's format (github.com/google/leveldb, doc/table_format.md)
from a tensor's name to a BundleEntryProto (tensorflow/core/protobuf/tensor_bundle.proto): type,
shape, and where in which `NAME.data-*` its bytes lie. Every block of the table and every tensor has
a CRC-32C, and all are checked.
"""

import math
import struct
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from crc32c import crc32c

from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text.protobuf import fields, varint

MAGIC = 0xDB4775248B80FB57
# {number in tensorflow/core/framework/types.proto: type}.
TYPES: dict[Any, Any] = {1: 'f4', 2: 'f8', 3: 'i4', 4: 'u1', 5: 'i2', 6: 'i1', 9: 'i8', 10: '?'}
TYPES |= {14: ml_dtypes.bfloat16, 17: 'u2', 19: 'f2', 22: 'u4', 23: 'u8'}
STRING = 7


def read(index: Path) -> dict[str, np.ndarray]:
  """Reads the checkpoint of an index file: {name: array}, without tensors of strings."""
  try:
    entries = dict(_table(index.read_bytes()))
    header: dict[int, Any] = dict(fields(entries.pop(b'')))
    if header.get(2, 0):
      raise ValueError('it is big-endian, which no machine of today writes')
    shards, out = {}, {}
    for key, value in entries.items():
      name, entry = key.decode(), dict(fields(value))
      if entry.get(1) == STRING:
        continue
      if 7 in entry or entry.get(1) not in TYPES:
        raise ValueError(f'{name} is of type {entry.get(1)} or in slices, which are not read')
      number = entry.get(3, 0)
      if number not in shards:
        path = index.with_name(f'{index.stem}.data-{number:05d}-of-{header.get(1, 1):05d}')
        if not path.is_file():
          raise ValueError(f'{path.name} is not beside it')
        shards[number] = np.memmap(path, np.uint8, 'r') if path.stat().st_size else b''
      out[name] = _tensor(name, entry, shards[number])
    return out
  except Exception as error:  # damaged bytes can fail in any way
    raise InputError(f'{index} cannot be read ({error}); is it whole?') from None


def _tensor(name: str, entry: dict[int, Any], shard: np.ndarray | bytes) -> np.ndarray:
  dims: Any = [value for number, value in fields(entry.get(2, b'')) if number == 2]
  shape: Any = [dict(fields(dim)).get(1, 0) for dim in dims]
  offset, size = entry.get(4, 0), entry.get(5, 0)
  data = shard[offset : offset + size]
  if len(data) != size:
    raise ValueError(f'{name} lies beyond the end of its data file')
  if stored_checksum(data) != entry.get(6, 0):
    raise ValueError(f'the bytes of {name} are not what was saved: their checksum differs')
  dtype = np.dtype(TYPES[entry[1]])
  if size != math.prod(shape) * dtype.itemsize:
    raise ValueError(f'{name} has {size} bytes for the shape {shape}')
  return np.frombuffer(bytes(data), dtype).reshape(shape)


def stored_checksum(data: Any) -> int:
  """The CRC-32C of some bytes as LevelDB and TensorFlow store it: rotated by 15 bits, plus a
  constant, so that data that holds checksums can be checksummed too."""
  crc = crc32c(data)
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
  """Yields (key, value) for every entry of the table, in order."""
  if len(data) < 48 or struct.unpack('<Q', data[-8:])[0] != MAGIC:
    raise ValueError('it does not end as a table does')
  # Offset and size of the meta-index, which means nothing here, then of the index.
  (_, _, offset, size), _ = _numbers(data[-48:], 0, 4)
  for _, handle in _entries(_block(data, offset, size)):
    yield from _entries(_block(data, *_numbers(handle, 0, 2)[0]))


def _numbers(data: bytes, at: int, count: int) -> tuple[list[int], int]:
  """(the numbers from a byte on, where the next byte is)"""
  out = []
  for _ in range(count):
    number, at = varint(data, at)
    out.append(number)
  return out, at


def _block(data, offset, size):
  """The content of a block, whose type and checksum follow it."""
  block, trailer = data[offset : offset + size], data[offset + size : offset + size + 5]
  if len(trailer) < 5:
    raise ValueError('it is cut off')
  if stored_checksum(block + trailer[:1]) != struct.unpack('<I', trailer[1:])[0]:
    raise ValueError(f'the checksum of the block at byte {offset} differs')
  if trailer[0]:
    raise ValueError('it is compressed: save it again by TensorFlow 1.2 or later')
  return block


def _entries(block):
  """Yields (key, value) of a block; a key omits the prefix it shares with the previous key."""
  (restarts,) = struct.unpack('<I', block[-4:])
  end, at, key = len(block) - 4 - 4 * restarts, 0, b''
  while at < end:
    (shared, added, size), at = _numbers(block, at, 3)
    key = key[:shared] + block[at : at + added]
    yield key, block[at + added : at + added + size]
    at += added + size
