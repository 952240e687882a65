"""Rows that a program holds in memory: DataFrames, and lists or generators of rows.

A DataFrame is any table that hands its columns over by Arrow's C interface, as pandas (2.2), polars
and pyarrow do, so none of these libraries is named or imported here. Its rows are read as the
rows of a Parquet file are (arrow.py).
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.errors import InputError, first_line, listed, quoted
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
  if is_frame(rows):
    if not hasattr(rows, '__arrow_c_stream__'):
      fault = f'{name} is a {type(rows).__name__} that gives no Arrow table'
      raise InputError(f'{fault}; update its library (pandas to 2.2), or give a list of dicts.')
    with _one_type(name):
      table = arrow.without_dictionaries(pa.table(rows))
  else:
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
      raise _unlike_rows(rows, name)
    dicts, arrays = [_dict_of(row, f'{name}: row {i}') for i, row in enumerate(rows)], {}
    for column in dict.fromkeys(column for row in dicts for column in row):
      if not isinstance(column, str):
        raise InputError(f'{name} has a column {column!r}; give columns names that are texts.')
      with _one_type(f'{name}: column {quoted(column)}'):
        arrays[column] = pa.array([row.get(column) for row in dicts], from_pandas=True)
    table = pa.table(arrays)
  about = (table.schema.metadata or {}).get(KEPT)
  return table.replace_schema_metadata({KEPT: about} if about else None)


def _dict_of(row, where):
  """A row as {column: value}."""
  row = {'text': row} if isinstance(row, str) else row
  if not isinstance(row, Mapping):
    raise _unlike_rows(row, where)
  return row


def _unlike_rows(value, where):
  advice = 'give a list of dicts {column: value} or of texts, or a DataFrame'
  return InputError(f'{where} is of type {type(value).__name__}; {advice}.')


@contextlib.contextmanager
def _one_type(what):
  """A context in which Arrow's errors are about values that make no column."""
  import pyarrow as pa

  try:
    yield
  except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
    said = (error,) if isinstance(error, UnicodeError) else error.args
    why = first_line('; '.join(map(str, said)))
    fault = f'{what} cannot be a table ({why})'
    raise InputError(f'{fault}; give each column one name and values of one type.') from None


def records(frame: Any, name: str) -> list[dict[str, Any]]:
  """The rows of a DataFrame as {column: value}, the values as JSON would hold them."""
  return _plain(table_of(frame, name), name)


def _plain(table, name):
  rows, kinds = arrow.records_of(table, name)
  counts = Counter()
  return [{x: record_sources.plain(row[x], kinds[x], counts) for x in kinds} for row in rows]


def like(
  frame: Any, rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]] = ()
) -> Any:
  """A DataFrame of the class of `frame`, with its index if it has one, of these rows. A dict in a
  row becomes columns NAME.KEY. others: rows that are not in it, whose columns it has, too."""
  rows, others = ([_flat(row) for row in part] for part in (rows, others))
  columns = dict.fromkeys(column for row in [*rows, *others] for column in row)
  values = {column: [row.get(column) for row in rows] for column in columns}
  make = getattr(type(frame), 'from_pydict', type(frame))  # as pyarrow has it
  return make(values, **({'index': frame.index} if hasattr(frame, 'index') else {}))


def _flat(row):
  """A row with each dict {key: value} in it as the values NAME.KEY."""
  out = {}
  for name, x in row.items():
    out |= {f'{name}.{key}': y for key, y in x.items()} if isinstance(x, dict) and x else {name: x}
  return out


def digest(table: Any) -> str:
  """A checksum of the rows of a pyarrow.Table, whatever library made it."""
  out = hashlib.sha256()
  for row in _plain(table, 'rows'):
    out.update(repr(row).encode())
  return out.hexdigest()[:16]


def parquet(table: Any, name: str) -> bytes:
  """The content of a Parquet file of a pyarrow.Table, with checksums."""
  import pyarrow as pa
  from pyarrow import parquet as pq

  sink = pa.BufferOutputStream()
  with _one_type(name):
    pq.write_table(table, sink, write_page_checksum=True)
  return sink.getvalue().to_pybytes()
