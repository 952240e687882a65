"""Sources of records, mappings of names to values, that are no lines of text: data sets by name
(tfds:, hf:), Parquet and Arrow files. One process cuts a source into blocks, and any reads them.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import InputError, first_line
from bert_jax.files import Path
from bert_jax.text import arrow, files
from bert_jax.text.encodings import decode

TFDS_ROWS = 256  # of a block
Rows = Iterator[tuple[str, Callable[[], dict[str, Any]]]]  # place, what reads the record

_tfds_source = functools.lru_cache(maxsize=4)(files.tfds_source)


class Block(NamedTuple):
  """Some whole documents of a file that are not yet parsed, or records of a source."""

  path: str
  format: str  # of a file; the split of a TFDS set; what other records are called by in messages
  first: int  # number of its first line, or record (from 0)
  data: bytes  # its lines, or records; of a TFDS set, how many
  position: int  # bytes of the file on disk, or records, read when it ends: for a progress bar
  is_cut: bool = False  # it begins amid a document that became too long for one block


def has_records(path: str) -> bool:
  """Whether a path, or the name of a set, is a source of records."""
  return files.is_named(path) or files.suffix(Path(path)) in files.RECORDS


def blocks(path: str, split: str, column: str = '') -> Iterator[Block]:
  """Cuts a source into blocks; the same data gives the same ones. split: of a set whose name has
  none. column: the one that is read, where one alone can be; '': all."""
  if not path.startswith('tfds:'):
    yield from (Block(path, *part) for part in arrow.parts(path, split, column))
    return
  _tfds_source.cache_clear()  # the set may have been prepared anew
  total = len(_tfds_source(path, split)[1])
  for first in range(0, total, TFDS_ROWS):
    end = min(first + TFDS_ROWS, total)
    yield Block(path, split, first, str(end - first).encode(), end)


def rows(block: Block, counts: Counter, column: str = '') -> Rows:
  """Yields (place, what reads the record) of a block. counts: see arrow.records; of a TFDS set, the
  bytes of this column."""
  if not block.path.startswith('tfds:'):
    for i, record in enumerate(arrow.records(block.data, block.format, counts), block.first):
      yield f'{block.format}:{i}', lambda record=record: record
    return
  features, source, name = _tfds_source(block.path, block.format)

  def read(i: int) -> dict[str, Any]:
    try:
      record = source[i]
      if all(x is None for x in record.values()):  # a file cut at the 64 KB blocks of ArrayRecord
        raise EOFError('the file is truncated')
    except Exception as error:
      fault = f'{name}:{i} is damaged ({first_line(error)})'
      raise InputError(f'{fault}; prepare it again') from error
    counts['bytes'] += len(record.get(column) or '')
    return {key: _of_tfds(x, features[key], counts) for key, x in record.items()}

  for i in range(block.first, block.position):
    yield f'{name}:{i}', functools.partial(read, i)


def _of_tfds(value: Any, feature: Any, counts: Counter) -> Any:
  """A value as JSON would hold it: text decoded, classes by their names, lists for arrays."""
  if isinstance(value, bytes):
    return decode(value, counts)
  of_each = getattr(feature, 'feature', feature)  # of a list
  if isinstance(value, dict):
    return {key: _of_tfds(x, of_each[key], counts) for key, x in value.items()}
  if isinstance(value, (np.ndarray, list)):
    return [_of_tfds(x, of_each, counts) for x in value]
  if hasattr(feature, 'int2str') and isinstance(value, (int, np.integer)):
    return feature.int2str(int(value)) if value >= 0 else str(value)  # -1: of a test set
  if isinstance(value, (float, np.floating)):
    kind = getattr(feature, 'np_dtype', float)
    return float(str(np.dtype(kind).type(value)))  # float32 3.8 comes as 3.799999952316284
  return value.item() if isinstance(value, np.generic) else value
