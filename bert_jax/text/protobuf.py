"""Decodes protocol buffer messages without their definitions
(protobuf.dev/programming-guides/encoding)."""

from collections.abc import Iterator


def varint(data: bytes, at: int) -> tuple[int, int]:
  """(number, where the next byte is) of the varint at a byte; ValueError or IndexError if cut."""
  value = shift = 0
  while True:
    byte = data[at]
    value |= (byte & 0x7F) << shift
    at, shift = at + 1, shift + 7
    if byte < 0x80:
      return value, at
    if shift > 63:
      raise ValueError('a number in it has no end')


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
  """Yields (field number, value) of a message; a value is an integer or bytes."""
  at = 0
  while at < len(data):
    tag, at = varint(data, at)
    number, kind = tag >> 3, tag & 7
    if kind == 0:
      value, at = varint(data, at)
    elif kind in (1, 5):
      width = 8 if kind == 1 else 4
      value, at = int.from_bytes(data[at : at + width], 'little'), at + width
    elif kind == 2:
      size, at = varint(data, at)
      value, at = data[at : at + size], at + size
    else:
      raise ValueError(f'a field of wire type {kind}')
    yield number, value
