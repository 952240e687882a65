"""Rows that a program holds in memory: DataFrames, and lists or generators of rows.

A DataFrame is any table that hands its columns over by Arrow's C interface, as pandas (2.2), polars
and pyarrow do, so none of these libraries is named or imported here. Its rows are read as the
rows of a Parquet file are (arrow.py).
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.errors import InputError, first_line, listed, quoted
from bert_jax.text import arrow, record_sources

KEPT = b'huggingface'  # of a schema: it names classes. pandas' entry tells its version


def is_frame(rows: Any) -> bool:
  """Whether rows are a DataFrame, and no list of rows."""
  return hasattr(rows, 'columns')


def table_of(rows: Any, name: str, misfits: dict[tuple[int, str], InputError] | None = None) -> Any:
  """The pyarrow.Table of a DataFrame, a data set of `datasets`, a dict {column: values}, or rows:
  texts, or dicts {column: value}; what a dict lacks is null. name: of the rows, for the InputError
  if they are no table. misfits: gets {(row, column): why} of values of another type than most of
  their column, such as a number among texts, in whose place is null; None: such a value is an
  InputError, too."""
  import pyarrow as pa

  if isinstance(rows, Mapping) and rows and all(hasattr(x, 'with_format') for x in rows.values()):
    raise InputError(f'{name} has several splits, {listed(rows)}; choose one, as rows["train"].')
  if hasattr(rows, 'with_format') and hasattr(rows, '__len__'):
    rows = rows.with_format('arrow')[:]
  try:
    table = _of_frame(rows, misfits) if is_frame(rows) else _of_rows(rows, misfits)
  except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
    raise InputError(
      f'{name} cannot be a table ({first_line(error)}); give a DataFrame, a dict {{column: values}}'
      ' or a list of texts or of dicts {column: value}, none of them None, each column with one '
      'name and values of one type (leave out columns that are not read).'
    ) from None
  about = (table.schema.metadata or {}).get(KEPT)
  return table.replace_schema_metadata({KEPT: about} if about else None)


def _of_frame(frame, misfits):
  import pyarrow as pa

  try:
    table = pa.table(frame)
    index = [name for name in table.column_names if name.startswith('__index_level_')]
    return arrow.without_dictionaries(table.drop_columns(index))
  except pa.ArrowException:
    return _of_columns({str(column): list(frame[column]) for column in frame.columns}, misfits)


def _of_rows(rows, misfits):
  if isinstance(rows, Mapping):
    return _of_columns({name: list(values) for name, values in rows.items()}, misfits)
  dicts = []
  for row in rows:
    if not isinstance(row, str) and not hasattr(row, 'keys'):
      raise TypeError(f'row {len(dicts)} is {quoted(row)}')
    dicts.append({'text': row} if isinstance(row, str) else dict(row))
  return _of_columns(_columns(dicts), misfits)


def _columns(rows):
  """{column: its values} of dicts; what one lacks is None."""
  names = dict.fromkeys(column for row in rows for column in row)
  return {name: [row.get(name) for row in rows] for name in names}


def _of_columns(columns, misfits):
  """The pyarrow.Table of {column: values}. misfits: as of table_of."""
  import pyarrow as pa

  for column, values in columns.items():
    try:
      columns[column] = pa.array(values, from_pandas=True)
      continue
    except pa.ArrowException:
      kinds = [pa.infer_type([value], from_pandas=True) for value in values]
    if pa.float64() in kinds:  # whole numbers are such, too
      kinds = [pa.float64() if pa.types.is_integer(kind) else kind for kind in kinds]
    ((usual, _),) = Counter(kind for kind in kinds if kind != pa.null()).most_common(1)
    for i, kind in enumerate(kinds):
      if kind not in (usual, pa.null()):
        why = f'{column!r} of row {i} is {quoted(values[i])}, and of most rows of type {usual}'
        if misfits is None:
          raise TypeError(why)
        misfits[i, column], values[i] = InputError(why), None
    columns[column] = pa.array(values, from_pandas=True)
  return pa.table(columns)


def records(frame: Any, name: str) -> list[dict[str, Any]]:
  """The rows of a DataFrame as {column: value}, the values as JSON would hold them; in place of one
  of another type than most of its column an InputError."""
  misfits = {}
  rows, kinds = arrow.records_of(table_of(frame, name, misfits), name)
  counts = Counter()
  out = [{x: record_sources.plain(row[x], kinds[x], counts) for x in kinds} for row in rows]
  for (i, column), error in misfits.items():
    out[i][column] = error
  return out


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
