"""Rows that a program holds in memory: DataFrames, and lists or generators of rows.

A DataFrame is any table that hands its columns over by Arrow's C interface, as pandas (2.2), polars
and pyarrow do, so none of these libraries is named or imported here. Its rows are read as the
rows of a Parquet file are (arrow.py).
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.errors import InputError, first_line, listed, log, quoted
from bert_jax.text import arrow, record_sources, tables

KEPT = b'huggingface'  # of a schema: it names classes. pandas' entry tells its version


def is_frame(rows: Any) -> bool:
  """Whether rows are a DataFrame, and no list of rows."""
  return hasattr(rows, 'columns')


def table_of(rows: Any, name: str) -> Any:
  """The pyarrow.Table of a DataFrame, a data set of `datasets`, a dict {column: values}, or rows:
  texts, or dicts {column: value}; what a dict lacks is null. A column of values of several types,
  such as numbers among texts, is one of texts. name: of the rows, for the InputError if they are no
  table."""
  import pyarrow as pa

  if isinstance(rows, Mapping) and rows and all(hasattr(x, 'with_format') for x in rows.values()):
    raise InputError(f'{name} has several splits, {listed(rows)}; choose one, as rows["train"].')
  if hasattr(rows, 'with_format') and hasattr(rows, '__len__'):
    rows = rows.with_format('arrow')[:]
  try:
    table = _of_frame(rows) if is_frame(rows) else _of_rows(rows)
  except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
    raise InputError(
      f'{name} cannot be a table ({first_line(error)}); give a DataFrame, a dict {{column: values}}'
      ' or a list of texts or of dicts {column: value}, each column with one name '
      'and no lists among its texts (leave out columns that are not read).'
    ) from None
  about = (table.schema.metadata or {}).get(KEPT)
  return table.replace_schema_metadata({KEPT: about} if about else None)


def _of_frame(frame):
  import pyarrow as pa

  try:
    table = pa.table(frame)
    index = [name for name in table.column_names if name.startswith('__index_level_')]
    return arrow.without_dictionaries(table.drop_columns(index))
  except pa.ArrowException:
    return _of_columns({str(column): list(frame[column]) for column in frame.columns})


def _of_rows(rows):
  if isinstance(rows, Mapping):
    return _of_columns({name: list(values) for name, values in rows.items()})
  dicts = []
  for row in rows:
    is_text = row is None or isinstance(row, str)
    if not is_text and not hasattr(row, 'keys'):
      raise TypeError(f'row {len(dicts)} is {quoted(row)}')
    dicts.append({'text': row} if is_text else dict(row))
  return _of_columns(_columns(dicts))


def _columns(rows):
  """{column: its values} of dicts; what one lacks is None."""
  names = dict.fromkeys(column for row in rows for column in row)
  return {name: [row.get(name) for row in rows] for name in names}


def _of_columns(columns):
  """The pyarrow.Table of {column: values}."""
  import pyarrow as pa

  for column, values in columns.items():
    try:
      columns[column] = pa.array(values, from_pandas=True)
    except pa.ArrowException as error:
      plain = [pa.scalar(value, from_pandas=True).as_py() for value in values]
      if any(isinstance(value, (list, dict, bytes)) for value in plain):
        raise TypeError(f'column {column!r}: {first_line(error)}') from None
      texts = [value if value is None else tables.text_of(value) for value in plain]
      log.warning(
        'column %r has values of several types, which are read as texts; numbers and truth values '
        "are written so: 2.0 as '2', True as 'true'",
        column,
      )
      columns[column] = pa.array(texts)
  return pa.table(columns)


def with_index(table: Any, frame: Any) -> Any:
  """A pyarrow.Table with the index of the DataFrame of pandas that it is of, if that tells its rows
  apart; its column is called as in Parquet files of pandas."""
  index: Any = getattr(frame, 'index', None)
  if getattr(index, 'is_unique', False):
    table = table.append_column(record_sources.INDEX, [list(map(str, index))])
  return table


def records(frame: Any, name: str) -> list[dict[str, Any]]:
  """The rows of a DataFrame as {column: value}, the values as JSON would hold them."""
  rows, kinds = arrow.records_of(table_of(frame, name), name)
  counts = Counter()
  return [{x: record_sources.plain(row[x], kinds[x], counts) for x in kinds} for row in rows]


def beside(frame: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
  """A DataFrame of the class, columns and index of `frame`, and of these rows beside, which have
  other columns. A dict in a row becomes columns NAME.KEY."""
  names = getattr(frame, 'column_names', frame.columns)  # pyarrow's columns are no names
  columns = {name: frame[name] for name in names} | _columns([_flat(row) for row in rows])
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
