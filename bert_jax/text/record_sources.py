"""Sources of records, mappings of names to values, that are no lines of text: data sets by name
(tfds:, hf:), Parquet and Arrow files. One process cuts a source into portions, and any reads them.
"""

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import InputError, first_line
from bert_jax.files import Path
from bert_jax.text import arrow, files, tfds
from bert_jax.text.encodings import decode

INDEX = '__index_level_0__'  # how Parquet files of pandas call the column of an index
TFDS_ROWS = 256  # of a portion
Rows = Iterator[tuple[str, dict[str, Any]]]  # place, record

_tfds_source = functools.lru_cache(maxsize=4)(tfds.source)


class Portion(NamedTuple):
  """Some whole documents of a file that are not yet parsed, or records of a source."""

  path: str
  format: str  # of a file; the split of a TFDS set; what other records are called by in messages
  first: int  # number of its first line, or record (from 0)
  data: bytes  # its lines, or records; of a TFDS set, how many
  position: int  # bytes of the file on disk, or records, read when it ends: for a progress bar
  is_cut: bool = False  # it begins amid a document that became too long for one portion


def has_records(path: str) -> bool:
  """Whether a path, or the name of a set, is a source of records."""
  return files.is_named(path) or files.suffix(Path(path)) in files.RECORDS


def tables_of(spec: str, paths: list[str]) -> list[str]:
  """The files of records among the paths in a folder `spec`, which are read alone; [] if it is no
  folder. InputError if there are files of text beside them."""
  if not Path(spec).expanduser().is_dir():
    return []
  tables = [path for path in paths if has_records(path)]
  if tables and any(path.endswith('.txt') for path in paths):
    raise InputError(f'{spec} holds texts beside {tables[0]}; name one kind, such as {spec}/*.txt')
  return tables


def portions(path: str, split: str, column: str = '') -> Iterator[Portion]:
  """Cuts a source into portions; the same data gives the same ones. split: of a set whose name has
  none. column: the one that is read, where one alone can be; '': all."""
  if not path.startswith('tfds:'):
    for name, first, data, position in arrow.parts(path, split, column):
      yield Portion(path, name, first, data, position)
    return
  _tfds_source.cache_clear()  # the set may have been prepared anew
  total = len(_tfds_source(path, split)[1])
  for first in range(0, total, TFDS_ROWS):
    end = min(first + TFDS_ROWS, total)
    yield Portion(path, split, first, str(end - first).encode(), end)


def rows(portion: Portion, counts: Counter, column: str = '') -> Rows:
  """Yields (place, record) of a portion; a place has a number from 0 or, of rows that were in
  memory, the index of their frame. counts: adds up bytes (for a TFDS set, the bytes of this column)
  and invalid_utf8_lines, texts that are not UTF-8 and are repaired."""
  if portion.path.startswith('tfds:'):
    features, source, name = _tfds_source(portion.path, portion.format)
    numbers = range(portion.first, portion.first + int(portion.data))
    records = (_of_tfds(source, name, i, counts, column) for i in numbers)
    kinds = _kind_of_tfds(features)
  else:
    name = portion.format
    records, kinds = arrow.records(portion.data, name, counts)
  for i, record in enumerate(records, portion.first):
    if files.IN_MEMORY.fullmatch(portion.path):
      i = record.get(INDEX, i)
    yield f'{name}:{i}', {key: plain(x, kinds[key], counts) for key, x in record.items()}


def _of_tfds(source: Any, name: str, i: int, counts: Counter, column: str) -> dict[str, Any]:
  """Record i of a TFDS set that is called `name`."""
  try:
    record = source[i]
    if all(x is None for x in record.values()):  # a file cut at the 64 KB blocks of ArrayRecord
      raise EOFError('the file is truncated')
  except Exception as error:
    raise InputError(f'{name}:{i} is damaged ({first_line(error)}); prepare it again') from error
  counts['bytes'] += len(record.get(column) or '')
  return record


def _kind_of_tfds(feature):
  """The kind of the values of a feature; a list has the kind of its elements."""
  if hasattr(feature, 'feature'):
    return _kind_of_tfds(feature.feature)
  if hasattr(feature, 'items'):
    return {key: _kind_of_tfds(x) for key, x in feature.items()}
  if hasattr(feature, 'int2str'):
    return [feature.int2str(i) for i in range(feature.num_classes or 0)]
  return getattr(feature, 'np_dtype', None)


def plain(value: Any, kind: Any, counts: Counter) -> Any:
  """A value of a record as JSON would hold it: text decoded, lists for arrays, classes by their
  names, None for the class -1, as in test sets; dates and other such values as they are. kind:
  {key: kind} of the values of a mapping, the names of classes, NumPy's type of numbers, or None; a
  list has the kind of its elements."""
  if isinstance(value, bytes):
    return decode(value, counts)
  if isinstance(value, dict):
    kinds = kind if isinstance(kind, dict) else {}
    return {key: plain(x, kinds.get(key), counts) for key, x in value.items()}
  if isinstance(value, (list, tuple, np.ndarray)):
    return [plain(x, kind, counts) for x in value]
  if isinstance(kind, list) and isinstance(value, (int, np.integer)):
    if value == -1:
      return None
    return kind[value] if 0 <= value < len(kind) else str(value)
  if isinstance(value, (float, np.floating)):
    return float(str(np.dtype(kind).type(value)))  # float32 3.8 comes as 3.799999952316284
  return value.item() if isinstance(value, np.generic) else value
