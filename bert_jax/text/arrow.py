"""Reads tables of Arrow as records, mappings of names to values: Parquet and Arrow files (IPC,
Feather) and data sets of Hugging Face's `datasets`.

A table is read in parts of ROWS rows, whatever its row groups and batches are and whichever version
of Arrow reads it, and parts go from process to process in Arrow's stream format. What the schema
says of values, such as the names of classes (`huggingface`), is for record_sources.py.

  hf:NAME[:CONFIG][:SPLIT][@REVISION]   a data set of the Hub or, if NAME begins with / . or ~, a
      folder: of `save_to_disk`, or of files that `datasets` reads. SPLIT may be a slice
"""

import functools
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.copies import fetched
from bert_jax.errors import InputError, first_line, listed
from bert_jax.files import Path
from bert_jax.text import files, values

ROWS = 128  # of a part; a corpus that is being prepared goes on at a multiple
BUFFER = 1 << 20  # bytes that are read from the disk at once
END = b'\xff' * 4 + b'\0' * 4  # of a stream of Arrow: a message of no bytes
# A file of rows that were in memory, SPLIT-CHECKSUM. (Its whole name is in the names of documents,
# which decide what is held out.)
IN_MEMORY = re.compile(r'(?:^|/)rows/(\w+)-[0-9a-f]{16}\.parquet$')
_WORD = r'(?:\[[^]]*\]|[^:@[])+'  # train[:10%] is one
_HF = re.compile(f'hf:({_WORD})(?::({_WORD}))?(?::({_WORD}))?(?:@(.+))?')


def parts(path: str, split: str, column: str = '') -> Iterator[tuple[str, int, bytes, int]]:
  """Yields the rows of a file or a data set, hf:NAME, in parts: (what they are called by, number of
  the first row, from 0, the rows as a stream of Arrow, bytes of the file on the disk, or rows of
  the set, read when it ends). column: read this one alone, if it is there; '': all. InputError: it
  is missing, damaged, empty, or has two columns of one name."""
  hf_set.cache_clear()  # a set may have been written anew
  name = hf_set(path, split)[1] if files.is_named(path) else Path(path).name
  first, held, number = 0, [], 0
  try:
    for table, position in _tables(path, split, column):
      while len(table):
        piece, table = table.slice(0, ROWS - number), table.slice(ROWS - number)
        held.append(without_dictionaries(piece))  # a slice has the whole of one
        if (number := number + len(piece)) == ROWS:
          yield name, first, _stream(held), position
          first, held, number = first + ROWS, [], 0
    if held:
      yield name, first, _stream(held), position
  except (InputError, MemoryError):
    raise
  except Exception as error:
    if isinstance(error, OSError) and error.errno:
      raise InputError(f'{path} cannot be read: {error.strerror or error}') from error
    broken = f'{path} is broken or truncated ({first_line(error)})'
    raise InputError(f'{broken}; fetch it again') from error
  if not first + number:
    raise InputError(f'{path} has no rows; remove it, or write it again')


def without_dictionaries(table: Any) -> Any:
  """A pyarrow.Table with values in place of dictionaries, such as pandas' categories."""
  import pyarrow as pa

  schema = pa.schema([x.with_type(_type(x.type)) for x in table.schema], table.schema.metadata)
  try:
    return table.cast(schema)
  except pa.ArrowNotImplementedError:  # of polars' categories, whose names are a string_view
    return pa.Table.from_pylist(table.to_pylist(), schema)


def _type(kind: Any, leaf: Callable[[Any], Any] = lambda kind: kind) -> Any:
  """A type without dictionaries (such as pandas' categories) wherever they are in it, and with
  leaf(type) in place of each type that holds no other one."""
  import pyarrow as pa

  is_, inner = pa.types, lambda field: field.with_type(_type(field.type, leaf))
  if is_.is_dictionary(kind):
    return _type(kind.value_type, leaf)
  if is_.is_struct(kind):
    return pa.struct(map(inner, kind))
  if is_.is_map(kind):
    return pa.map_(inner(kind.key_field), inner(kind.item_field), kind.keys_sorted)
  if is_.is_fixed_size_list(kind):
    return pa.list_(inner(kind.value_field), kind.list_size)
  if is_.is_list(kind) or is_.is_large_list(kind):
    return (pa.list_ if is_.is_list(kind) else pa.large_list)(inner(kind.value_field))
  return leaf(kind)


def _stream(held):
  """Some tables as one stream of Arrow."""
  import pyarrow as pa

  sink, table = pa.BufferOutputStream(), pa.concat_tables(held).combine_chunks()
  with pa.ipc.new_stream(sink, table.schema) as stream:
    stream.write(table)
  return sink.getvalue().to_pybytes()


def _tables(path, split, column):
  """Yields (some rows as a pyarrow.Table, the position where they end) of a file or data set."""
  import pyarrow as pa

  if files.is_named(path):
    dataset, done = hf_set(path, split)[0], 0
    about = json.dumps({'info': {'features': dataset.features.to_dict()}})
    dataset = dataset.select_columns(_chosen(path, dataset.column_names, column))
    for table in dataset.with_format('arrow').iter(ROWS):
      done += len(table)
      yield table.replace_schema_metadata({'huggingface': about}), done
    return
  with Path(path).open('rb') as disk:
    batches = file = _reader(path, disk)
    names = _chosen(path, getattr(file, 'schema_arrow', file.schema).names, column)
    if hasattr(file, 'iter_batches'):  # Parquet, which keeps what it has read of such a call
      groups = (file.iter_batches(ROWS, [k], names, False) for k in range(file.num_row_groups))
      batches = itertools.chain.from_iterable(groups)
    elif hasattr(file, 'get_batch'):
      batches = map(file.get_batch, range(file.num_record_batches))
    for batch in batches:
      yield pa.Table.from_batches([batch.select(names)]), disk.tell()


def _reader(path, disk):
  """pyarrow's ParquetFile, RecordBatchFileReader or RecordBatchStreamReader of a file."""
  import pyarrow as pa
  from pyarrow import parquet

  if files.suffix(Path(path)) == '.parquet':
    return parquet.ParquetFile(disk, buffer_size=BUFFER, page_checksum_verification=True)
  if disk.read(6) == b'ARROW1':
    return pa.ipc.open_file(disk)
  disk.seek(max(0, disk.seek(0, os.SEEK_END) - len(END)))
  if disk.read() != END:  # pyarrow takes the end of the file for the end of the rows
    raise EOFError('its end is missing')
  disk.seek(0)
  return pa.ipc.open_stream(disk)


def _chosen(path, names, column):
  """The names of the columns to read."""
  if twice := [name for name, number in Counter(names).items() if number > 1]:
    raise InputError(f'{path} has several columns {listed(twice)}; rename all but one')
  wanted = column if column in names else column.partition('.')[0]
  return [wanted] if wanted in names else names


@functools.lru_cache(maxsize=8)
def hf_set(spec: str, split: str) -> tuple[Any, str, str]:
  """Opens hf:NAME[:CONFIG][:SPLIT][@REVISION]: (it, what its rows are called by, its fingerprint).
  split: 'train' or another, if the spec names none."""
  try:
    import datasets
  except ImportError:
    raise InputError(f'{spec} needs a library; run: pip install datasets') from None
  if not (match := _HF.fullmatch(spec)):
    raise InputError(f'{spec!r} names no data set; write hf:NAME[:CONFIG][:SPLIT][@REVISION]')
  name, config, named, revision = match.groups('')
  path = str(fetched(Path(name).expanduser())) if name[0] in '/.~' else name
  saved, version = files.saved_by_datasets(Path(path)), revision or None
  try:
    if saved:
      held, config, named = datasets.load_from_disk(path), '', named or config
    else:
      if config and not named:  # which may be a split
        configs = datasets.get_dataset_config_names(path, revision=version)
        config, named = (config, '') if config in configs else ('', config)
      held = datasets.load_dataset(path, config or None, split=named or None, revision=version)
  except Exception as error:  # from files, the network or the Hub, of many types
    raise InputError(f'{spec} cannot be opened ({first_line(error)}); check its name') from error
  if isinstance(held, dict):
    wanted = (named,) if named else files.names_of_split(split)
    if not (named := next((x for x in wanted if x in held), '')):
      raise InputError(f'{spec} has no split {wanted[0]}, only {listed(held)}; add :SPLIT to it')
    held = held[named]
  elif saved and named not in ('', str(held.split)):
    raise InputError(f'{spec} has no split {named}, only {held.split}; leave it out')
  return held, ':'.join(filter(None, (Path(name).name, config, named))), held._fingerprint


def records(
  data: bytes, where: str, counts: Counter
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
  """Reads a part: (its rows, {column: kind of its values, see record_sources.plain}). where: what
  they are called by. counts: increased is bytes. InputError: values without a form in Python."""
  import pyarrow as pa

  counts['bytes'] += len(data)
  return records_of(pa.ipc.open_stream(data).read_all(), where)


def records_of(table: Any, where: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
  """(The rows of a pyarrow.Table, {column: kind of its values}), as records has them."""
  features = _features(table.schema, where)
  columns = [_values(f'{where}: column {x!r}', table[x]) for x in table.column_names]
  kinds = {field.name: _kind(field.type, features.get(field.name)) for field in table.schema}
  return [dict(zip(kinds, row)) for row in zip(*columns, strict=True)], kinds


def _features(schema: Any, where: str) -> dict[str, Any]:
  """{column: what `datasets` says of it} of the columns that hold classes."""
  said = (schema.metadata or {}).get(b'huggingface')
  try:
    of_all = values.json_value(said)['info']['features'] if said else {}
    return {name: x for name, x in of_all.items() if '"ClassLabel"' in json.dumps(x)}
  except (values.NotJson, KeyError, TypeError, AttributeError):
    fault = f'{where}: `huggingface` in the schema is unreadable'
    raise InputError(f'{fault}; write the table again') from None


def _kind(kind: Any, feature: Any) -> Any:
  """The kind of the values of a type, of which `datasets` says this (None: nothing)."""
  import pyarrow as pa

  of_each = feature.get('feature', feature) if isinstance(feature, dict) else feature
  of_each = of_each[0] if isinstance(of_each, list) else of_each
  of_each = of_each if isinstance(of_each, dict) else {}
  if pa.types.is_struct(kind):
    return {field.name: _kind(field.type, of_each.get(field.name)) for field in kind}
  if hasattr(kind, 'value_type'):  # of lists
    return _kind(kind.value_type, of_each)
  if isinstance(names := of_each.get('names'), list):
    return names
  return kind.to_pandas_dtype() if pa.types.is_floating(kind) else None


def _values(where: str, column: Any) -> list[Any]:
  """The values of a column; if some texts are not UTF-8, as bytes."""
  import pyarrow as pa

  is_text = lambda x: pa.types.is_string(x) or pa.types.is_large_string(x)
  in_bytes = lambda kind: pa.large_binary() if is_text(kind) else kind
  try:
    try:
      return column.to_pylist()
    except UnicodeDecodeError:
      return column.cast(_type(column.type, in_bytes)).to_pylist()
  except (ValueError, OverflowError, pa.ArrowException) as error:
    fault = f'{where} holds {column.type} that Python has no value for ({first_line(error)})'
    raise InputError(f'{fault}; write it as text, or leave it out') from error
