"""Rows that a program holds in memory: DataFrames, and lists or generators of rows.

A DataFrame is any table that hands its columns over by Arrow's C interface, as pandas (2.2), polars
and pyarrow do, so none of these libraries is named or imported here. Its rows are read as the
rows of a Parquet file are (arrow.py).
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.errors import InputError, first_line, listed
from bert_jax.text import arrow, record_sources

KEPT = b'huggingface'  # of a schema: it names classes. pandas' entry tells its version


def is_frame(rows: Any) -> bool:
  """Whether rows are a DataFrame, and no list of rows."""
  return hasattr(rows, 'columns')


def table_of(rows: Any, name: str) -> Any:
  """The pyarrow.Table of a DataFrame, a data set of `datasets`, or rows: texts, or dicts {column:
  value}; what a dict lacks is null. name: of the rows, for the InputError if they are no table."""
  import pyarrow as pa

  if isinstance(rows, Mapping) and rows and all(hasattr(x, 'with_format') for x in rows.values()):
    raise InputError(f'{name} has several splits, {listed(rows)}; choose one, as rows["train"].')
  if hasattr(rows, 'with_format') and hasattr(rows, '__len__'):
    rows = rows.with_format('arrow')[:]
  try:
    table = arrow.without_dictionaries(pa.table(rows)) if is_frame(rows) else _of_rows(rows)
  except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
    raise InputError(
      f'{name} cannot be a table ({first_line(error)}); give a DataFrame, or a list of texts or of '
      'dicts {column: value}, each column with one name and values of one type.'
    ) from None
  about = (table.schema.metadata or {}).get(KEPT)
  return table.replace_schema_metadata({KEPT: about} if about else None)


def _of_rows(rows):
  import pyarrow as pa

  if isinstance(rows, Mapping):
    raise TypeError('it is one dict')
  dicts = [{'text': row} if isinstance(row, str) else dict(row) for row in rows]
  columns = dict.fromkeys(column for row in dicts for column in row)
  arrays = [pa.array([row.get(column) for row in dicts], from_pandas=True) for column in columns]
  return pa.table(arrays, list(columns))


def records(frame: Any, name: str) -> list[dict[str, Any]]:
  """The rows of a DataFrame as {column: value}, the values as JSON would hold them."""
  rows, kinds = arrow.records_of(table_of(frame, name), name)
  counts = Counter()
  return [{x: record_sources.plain(row[x], kinds[x], counts) for x in kinds} for row in rows]


def like(frame: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
  """A DataFrame of the class of `frame`, with its index if it has one, of these rows. A dict in a
  row becomes columns NAME.KEY."""
  rows = [_flat(row) for row in rows]
  columns = {}
  for row in rows:
    columns |= dict.fromkeys(row)
  for column in columns:
    columns[column] = [row.get(column) for row in rows]
  if hasattr(frame, 'index'):
    return type(frame)(columns, index=frame.index)
  make = getattr(type(frame), 'from_pydict', type(frame))  # as pyarrow has it
  return make(columns)


def _flat(row):
  """A row with each dict {key: value} in it as the values NAME.KEY."""
  out = {}
  for name, x in row.items():
    if isinstance(x, dict) and x:
      out |= {f'{name}.{key}': y for key, y in x.items()}
    else:
      out[name] = x
  return out


def digest(table: Any) -> str:
  """A checksum of the rows of a pyarrow.Table, whatever library made it."""
  out = hashlib.sha256()
  for row in records(table, 'rows'):
    out.update(repr(row).encode())
  return out.hexdigest()[:16]


def parquet(table: Any) -> bytes:
  """The content of a Parquet file of a pyarrow.Table, with checksums."""
  import pyarrow as pa
  from pyarrow import parquet as pq

  sink = pa.BufferOutputStream()
  pq.write_table(table, sink, write_page_checksum=True)
  return sink.getvalue().to_pybytes()
