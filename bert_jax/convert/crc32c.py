"""CRC-32C (Castagnoli; RFC 3720, appendix B.4), as TensorFlow checks its files by, in numpy.

A checksum goes byte after byte, so Python would take minutes for a gigabyte. But it is linear: the
bytes are cut into many lanes of equal length, all lanes step together, and the checksums of
neighbours are joined by the matrix that stands for "as many zero bytes as the right one is long"
(Mark Adler's crc32_combine).
"""

import functools

import numpy as np

POLYNOMIAL = 0x82F63B78  # reversed
SHORT = 4096  # bytes; less is not worth lanes
ONES = 0xFFFFFFFF


@functools.cache
def _table():
  x = np.arange(256, dtype=np.uint32)
  for _ in range(8):
    x = (x >> 1) ^ np.where(x & 1, np.uint32(POLYNOMIAL), np.uint32(0))
  return x


@functools.cache
def _bytes_table():
  return _table().tolist()


def crc32c(data):
  """Of bytes or a uint8 array."""
  x = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data
  if x.size < SHORT:
    return _one_by_one(x.tobytes())
  lanes = 2 ** max(1, min(16, int(np.log2(x.size // 64))))
  length = x.size // lanes
  head, tail = x[: lanes * length].reshape(lanes, length), x[lanes * length :]
  crc, table = np.full(lanes, ONES, np.uint32), _table()
  for column in head.T:
    crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
  crc ^= np.uint32(ONES)
  zeros = _zeros(length)
  while len(crc) > 1:
    crc = _apply(zeros, crc[0::2]) ^ crc[1::2]
    zeros = _apply(zeros, zeros)
  whole = _apply(_zeros(tail.size), crc)[0] ^ np.uint32(crc32c(tail)) if tail.size else crc[0]
  return int(whole)


def masked(crc):
  """What is stored instead of a checksum, so that data with checksums in it can be summed too."""
  return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & ONES


def _one_by_one(data):
  crc, table = ONES, _bytes_table()
  for byte in data:
    crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
  return crc ^ ONES


def _apply(matrix, x):
  """matrix [32] of columns, times vectors of 32 bits x [N] over the field of two elements."""
  out = np.zeros_like(x)
  for bit in range(32):
    out ^= np.where((x >> np.uint32(bit)) & 1, matrix[bit], np.uint32(0))
  return out


def _zeros(length):
  """The matrix that appends `length` zero bytes."""
  out = one = np.uint32(1) << np.arange(32, dtype=np.uint32)
  step = _table()[one & 0xFF] ^ (one >> 8)  # one zero byte
  while length:
    if length & 1:
      out = _apply(step, out)
    step = _apply(step, step)
    length >>= 1
  return out
