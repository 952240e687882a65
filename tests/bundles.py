"""Writes TensorFlow's checkpoints, as tensor_bundle.proto and table_format.md say they are, and
torch's .bin."""

import struct
import zipfile

import numpy as np

from bert_jax.convert.tensorflow_bundle import stored_checksum


def varint(n):
  out = b''
  while n > 127:
    out, n = out + bytes([n & 127 | 128]), n >> 7
  return out + bytes([n])


def block(entries, kind):
  data = b''.join(varint(0) + varint(len(k)) + varint(len(v)) + k + v for k, v in entries)
  data += struct.pack('<II', 0, 1)
  data += bytes([kind])
  return data + struct.pack('<I', stored_checksum(data))


def write_bundle(folder, table, shards=2, kind=0):
  """A checkpoint of {name: array}; returns its index file. kind: 1 says that it is compressed."""
  data, entries = [b''] * shards, []
  for i, (name, x) in enumerate(sorted(table.items())):
    shard = i % shards
    shape = b''.join(b'\x12' + varint(len(d)) + d for d in (b'\x08' + varint(n) for n in x.shape))
    entry = b'\x08' + varint(1 if x.dtype == np.float32 else 9)
    entry += b'\x12' + varint(len(shape)) + shape + b'\x18' + varint(shard)
    entry += b'\x20' + varint(len(data[shard])) + b'\x28' + varint(x.nbytes)
    entry += b'\x35' + struct.pack('<I', stored_checksum(x.tobytes()))
    entries.append((name.encode(), entry))
    data[shard] += x.tobytes()
  for i, content in enumerate(data):
    (folder / f'model.ckpt.data-{i:05d}-of-{shards:05d}').write_bytes(content)
  first = block([(b'', b'\x08' + varint(shards)), *entries], kind)
  size = len(first) - 5
  second = block([(b'zzz', varint(0) + varint(size))], kind)
  handles = varint(0) + varint(0) + varint(len(first)) + varint(len(second) - 5)
  footer = handles.ljust(40, b'\0') + struct.pack('<Q', 0xDB4775248B80FB57)
  (folder / 'model.ckpt.index').write_bytes(first + second + footer)
  return folder / 'model.ckpt.index'


def text(value):
  return b'X' + struct.pack('<I', len(value)) + value.encode()


def numbers(*values):
  return b'(' + b''.join(b'J' + struct.pack('<i', v) for v in values) + b't'


def rebuilt(key, kind, count, offset, shape, strides):
  """The opcodes by which torch pickles a tensor."""
  storage = b'(' + text('storage') + f'ctorch\n{kind}\n'.encode() + text(key) + text('cpu')
  storage += b'J' + struct.pack('<i', count) + b'tQ'
  hooks = b'\x89ccollections\nOrderedDict\n)R'
  place = b'J' + struct.pack('<i', offset) + numbers(*shape) + numbers(*strides)
  return b'ctorch._utils\n_rebuild_tensor_v2\n(' + storage + place + hooks + b'tR'


def table(**entries):
  """A pickled dict; values are opcodes."""
  return b'\x80\x02}(' + b''.join(text(k) + v for k, v in entries.items()) + b'u.'


def zipped(path, pickled, compression=zipfile.ZIP_STORED, **data):
  with zipfile.ZipFile(path, 'w', compression) as archive:
    archive.writestr('archive/data.pkl', pickled)
    for key, content in data.items():
      archive.writestr(f'archive/data/{key.removeprefix("s")}', content)
  return path
