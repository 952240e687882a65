"""Reads tables of Arrow as records, mappings of names to values: Parquet and Arrow files (IPC,
Feather) and data sets of Hugging Face's `datasets`.

A table is read in parts of at most ROWS rows, which go from process to process in Arrow's stream
format. Every batch is checked as a whole (offsets, lengths, indices) before a value of it is read,
since a flipped bit would end the process otherwise.

  hf:NAME[:CONFIG][:SPLIT][@REVISION]   a data set of the Hub or, if NAME begins with / . or ~, a
      folder: of `save_to_disk`, or of files that `datasets` reads. SPLIT may be a slice
"""

import functools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from bert_jax.copies import fetched
from bert_jax.errors import InputError, first_line, listed
from bert_jax.files import Path
from bert_jax.text import files

ROWS = 128  # of a part, at most
BUFFER = 1 << 20  # bytes that are read from the disk at once
END = b'\xff' * 4 + b'\0' * 4  # of a stream of Arrow: a message of no bytes
_WORD = r'(?:\[[^]]*\]|[^:@[])+'  # train[:10%] is one
_HF = re.compile(f'hf:({_WORD})(?::({_WORD}))?(?::({_WORD}))?(?:@(.+))?')


def parts(path: str, split: str, column: str = '') -> Iterator[tuple[str, int, bytes, int]]:
  """Yields the rows of a file or a data set, hf:NAME, in parts: (what they are called by, number of
  the first row, from 0, the rows as a stream of Arrow, bytes of the file on the disk, or rows of
  the set, read when it ends). column: read this one alone, if it is there; '': all. InputError: it
  is missing, damaged, empty, or has two columns of one name."""
  hf_set.cache_clear()  # a set may have been written anew
  name = hf_set(path, split)[1] if files.is_named(path) else files.called(Path(path).name)
  first = 0
  try:
    for table, position in _tables(path, split, column):
      table.validate(full=True)
      table = without_dictionaries(table)
      for start in range(0, len(table), ROWS):
        rows = table.slice(start, ROWS)
        yield name, first, _stream(rows), position
        first += len(rows)
  except (InputError, MemoryError):
    raise
  except Exception as error:
    if isinstance(error, OSError) and error.errno:
      raise InputError(f'{path} cannot be read: {error.strerror or error}') from error
    why = first_line(error)
    raise InputError(f'{path} is broken or truncated ({why}); fetch it again') from error
  if not first:
    raise InputError(f'{path} has no rows; remove it, or write it again')


def without_dictionaries(table: Any) -> Any:
  """A pyarrow.Table with values in place of dictionaries, such as pandas' categories."""
  import pyarrow as pa

  for i, field in enumerate(table.schema):
    if pa.types.is_dictionary(field.type):
      values = pa.array(table[i].to_pylist(), field.type.value_type)
      table = table.set_column(i, field.name, values)
  return table


def _stream(table):
  """A table as one stream of Arrow."""
  import pyarrow as pa

  sink = pa.BufferOutputStream()
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
    if files.suffix(Path(path)) == '.parquet':
      batches = _batches_of_parquet(path, disk, column)
    else:
      batches = _batches_of_ipc(path, disk, column)
    for batch in batches:
      yield pa.Table.from_batches([batch]), disk.tell()


def _batches_of_parquet(path, disk, column):
  from pyarrow import parquet

  file = parquet.ParquetFile(disk, buffer_size=BUFFER, page_checksum_verification=True)
  names = _chosen(path, file.schema_arrow.names, column)
  for group in range(file.num_row_groups):  # a call keeps what it has read in memory
    yield from file.iter_batches(ROWS, [group], names, use_threads=False)


def _batches_of_ipc(path, disk, column):
  import pyarrow as pa

  if disk.read(6) == b'ARROW1':
    file = pa.ipc.open_file(disk)
    batches = map(file.get_batch, range(file.num_record_batches))
  else:
    disk.seek(max(0, disk.seek(0, os.SEEK_END) - len(END)))
    if disk.read() != END:  # pyarrow takes the end of the file for the end of the rows
      raise EOFError('its end is missing')
    disk.seek(0)
    batches = file = pa.ipc.open_stream(disk)
  names = _chosen(path, file.schema.names, column)
  for batch in batches:
    yield batch.select(names)


def _chosen(path, names, column):
  """The names of the columns to read."""
  twice = [name for name, number in Counter(names).items() if number > 1]
  if twice:
    raise InputError(f'{path} has several columns {listed(twice)}; rename all but one')
  return [column] if column in names else names


@functools.lru_cache(maxsize=8)
def hf_set(spec: str, split: str) -> tuple[Any, str, str]:
  """Opens hf:NAME[:CONFIG][:SPLIT][@REVISION]: (it, what its rows are called by, its fingerprint).
  split: 'train' or another, if the spec names none."""
  try:
    import datasets
  except ImportError:
    raise InputError(f'{spec} needs a library; run: pip install datasets') from None
  match = _HF.fullmatch(spec)
  if not match:
    raise InputError(f'{spec!r} names no data set; write hf:NAME[:CONFIG][:SPLIT][@REVISION]')
  name, config, named, revision = match.groups('')
  path = str(fetched(Path(name).expanduser())) if name[0] in '/.~' else name
  is_saved, version = files.saved_by_datasets(Path(path)), revision or None
  try:
    if is_saved:
      dataset, config, named = datasets.load_from_disk(path), '', named or config
    else:
      if config and not named:  # which may be a split
        configs = datasets.get_dataset_config_names(path, revision=version)
        config, named = (config, '') if config in configs else ('', config)
      dataset = datasets.load_dataset(path, config or None, split=named or None, revision=version)
  except Exception as error:  # from files, the network or the Hub, of many types
    raise InputError(f'{spec} cannot be opened ({first_line(error)}); check its name') from error
  if isinstance(dataset, dict):
    wanted = (named,) if named else files.names_of_split(split)
    there = [x for x in wanted if x in dataset]
    if not there:
      raise InputError(f'{spec} has no split {wanted[0]}, only {listed(dataset)}; add :SPLIT to it')
    named = there[0]
    dataset = dataset[named]
  elif is_saved and named not in ('', str(dataset.split)):
    raise InputError(f'{spec} has no split {named}, only {dataset.split}; leave it out')
  called = ':'.join(filter(None, (Path(name).name, config, named)))
  return dataset, called, dataset._fingerprint


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
  import pyarrow as pa

  try:
    rows = table.to_pylist()
  except (ValueError, OverflowError, pa.ArrowException) as error:
    raise InputError(
      f'{where} holds a value that Python has no form for ({first_line(error)}); '
      'write it as text, or leave its column out'
    ) from error
  features = _features(table.schema)
  return rows, {field.name: _kind(field.type, features.get(field.name)) for field in table.schema}


def _features(schema: Any) -> dict[str, Any]:
  """{column: what `datasets` says of it} of the columns that hold classes."""
  about = (schema.metadata or {}).get(b'huggingface')
  if not about:
    return {}
  try:
    features = json.loads(about)['info']['features'].items()
  except (ValueError, LookupError, TypeError, AttributeError) as error:
    raise InputError(
      f'the huggingface entry of a table is damaged ({first_line(error)}); write the table again.'
    ) from error
  return {name: x for name, x in features if '"ClassLabel"' in json.dumps(x)}


def _kind(kind: Any, feature: Any) -> Any:
  """The kind of the values of a type, of which `datasets` says this (None: nothing)."""
  import pyarrow as pa

  if isinstance(feature, dict):
    feature = feature.get('feature', feature)
  if isinstance(feature, list):
    feature = feature[0]
  if not isinstance(feature, dict):
    feature = {}
  if pa.types.is_struct(kind):
    return {field.name: _kind(field.type, feature.get(field.name)) for field in kind}
  if hasattr(kind, 'value_type'):  # of lists
    return _kind(kind.value_type, feature)
  if isinstance(feature.get('names'), list):
    return feature['names']
  return kind.to_pandas_dtype() if pa.types.is_floating(kind) else None
