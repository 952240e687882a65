"""Reads data sets of TensorFlow Datasets (TFDS) by their names or folders, without TensorFlow."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

from bert_jax.copies import fetched
from bert_jax.errors import InputError, first_line, quoted
from bert_jax.files import Path

_NAMED = re.compile(r'tfds:(?P<name>(\w+://)?[^:]+(:[\d*]+\.[\d*]+\.[\d*]+)?)(:(?P<split>.+))?')


def source(spec: str, split: str = 'train') -> tuple[dict[str, Any], Any, str]:
  """Opens `tfds:NAME[:SPLIT]`: (its features, its rows by number, what they are called by).
  NAME is what `tfds.builder` takes (`glue/sst2`, `my_corpus:1.0.0`; looked up in TFDS_DATA_DIR) or,
  beginning with / . or ~, the folder of a prepared dataset. SPLIT may be a slice, `train[:10%]`,
  and wins over `split`. Only ArrayRecord data is read: it needs no TensorFlow and loses no row."""
  match = _NAMED.fullmatch(spec)
  if not match:
    raise InputError(f'{spec!r} names no dataset; write tfds:NAME or tfds:NAME:SPLIT')
  name, split = match['name'], match['split'] or split
  try:
    with features_of(spec):
      builder = _builder(name)
  except InputError:
    raise
  except Exception as error:  # TFDS raises a dozen unrelated types
    raise InputError(
      f'{spec} cannot be opened ({first_line(error)}); prepare it by '
      "'tfds build NAME --file_format=array_record', and set TFDS_DATA_DIR or give its folder"
    ) from error
  if split == 'validation' and split not in builder.info.splits and 'dev' in builder.info.splits:
    split = 'dev'  # as CoNLL-2003 and RACE call it
  try:
    rows = builder.as_data_source(split=split)
  except Exception as error:
    why, splits = first_line(error), ', '.join(builder.info.splits)
    raise InputError(f'{spec} cannot be read ({why}); its splits are {splits}') from error
  return dict(builder.info.features), rows, f'{builder.info.full_name}:{split}'


@contextlib.contextmanager
def features_of(where: str | Path) -> Iterator[Any]:
  """A context with TFDS's reader of features, FeatureConnector, in which it makes its own classes
  only: it would import the module of another, which may lie beside the data, and so run code."""
  from tensorflow_datasets.core.features.feature import FeatureConnector

  usual = FeatureConnector.cls_from_name

  def checked(name: str) -> type:
    if not name.startswith('tensorflow_datasets.'):
      raise InputError(
        f'{where} names the class {quoted(name)}, and reading it would run that code; '
        'prepare the data anew, with the features of TFDS'
      )
    return usual(name)

  with mock.patch.object(FeatureConnector, 'cls_from_name', checked):
    yield FeatureConnector


def _builder(name: str) -> Any:
  import tensorflow_datasets as tfds
  import tensorflow_datasets.text  # imported late by TFDS: without it glue is "not found"
  import tensorflow_datasets.translate  # noqa: F401

  if name[0] not in '/.~' and '://' not in name:
    builder = tfds.builder(name, try_gcs=False, file_format='array_record')
    builder.download_and_prepare()
    return builder
  infos = sorted(fetched(Path(name).expanduser()).glob('**/dataset_info.json'))
  if len(infos) != 1:
    raise InputError(f'{name} holds {len(infos)} prepared TFDS datasets; name the folder of one')
  builder = tfds.builder_from_directory(str(infos[0].parent))
  form = builder.info.file_format.value
  if form != 'array_record':
    raise InputError(
      f'{name} is prepared as {form}, which needs TensorFlow; '
      'prepare it with --file_format=array_record'
    )
  return builder
