"""Decodes protocol buffers without definitions (protobuf.dev/programming-guides/encoding)."""

from collections.abc import Iterator


def varint(data: bytes, at: int) -> tuple[int, int]:
  """(number, where the next byte is) of the varint at a byte; ValueError or IndexError if cut."""
  value = shift = 0
  while shift < 70:
    value |= (data[at] & 0x7F) << shift
    at, shift = at + 1, shift + 7
    if data[at - 1] < 0x80:
      return value, at
  raise ValueError('a number in it has no end')


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
  """Yields (field number, value) of a message; a value is an integer or bytes."""
  at = 0
  while at < len(data):
    tag, at = varint(data, at)
    number, kind = tag >> 3, tag & 7
    if kind not in (0, 1, 2, 5):
      raise ValueError(f'a field of wire type {kind}')
    size, at = varint(data, at) if kind in (0, 2) else ({1: 8, 5: 4}[kind], at)
    if kind == 0:
      yield number, size
      continue
    value, at = data[at : at + size], at + size
    yield number, value if kind == 2 else int.from_bytes(value, 'little')


def messages(data: bytes) -> dict[int, bytes]:
  """{field number: value} of the fields of a message that hold bytes; of repeated ones the last."""
  return {number: value for number, value in fields(data) if isinstance(value, bytes)}
