"""Reads and writes the tensors in a folder of released weights, under the file's names.
They may be in `model.safetensors` or `pytorch_model.bin`, whole or in shards with an index, or in a
TensorFlow checkpoint. They are read with numpy: neither torch nor TensorFlow is needed.
"""

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from bert_jax.convert import tensorflow_bundle, torch_pickle
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text.values import json_value

SAFETENSORS, PICKLE = 'model.safetensors', 'pytorch_model.bin'
TYPES: dict[str, Any] = dict(F64='f8', F32='f4', F16='f2', BF16=ml_dtypes.bfloat16)
TYPES |= dict(I64='i8', I32='i4', I16='i2', I8='i1', U8='u1', BOOL='?')
Tensors = dict[str, np.ndarray]


def read(folder: Path) -> tuple[Tensors, Path]:
  """Reads a folder: ({name: array}, the file read); InputError if that is missing or damaged."""
  path, reader = located(folder)
  return reader(path), path


def located(folder: Path) -> tuple[Path, Callable[[Path], Tensors]]:
  """The file of a folder's tensors and what reads it; InputError if there is none, or several."""
  for name, reader in ((SAFETENSORS, read_safetensors), (PICKLE, torch_pickle.read)):
    if (folder / name).is_file():
      return folder / name, reader
    index = folder / f'{name}.index.json'
    if index.is_file():
      return index, functools.partial(_read_shards, reader=reader)
  indexes = [path for path in folder.glob('*.index') if 'ckpt' in path.stem]
  if len(indexes) != 1:
    has = f'{folder} has no {SAFETENSORS}, no {PICKLE} (nor their .index.json) and {len(indexes)}'
    raise InputError(f'{has} *.ckpt*.index; leave the weights of one model there.')
  return indexes[0], tensorflow_bundle.read


def read_safetensors(path: Path) -> Tensors:
  """Reads one safetensors file: {name: array}."""
  try:
    data = path.read_bytes()
    if data.startswith(b'version https://git-lfs'):
      raise InputError(f'{path} only points to the file; fetch it with: git lfs pull')
    tensors = safetensors.deserialize(data)
    return {k: np.frombuffer(x['data'], TYPES[x['dtype']]).reshape(x['shape']) for k, x in tensors}
  except KeyError as error:
    raise InputError(f'{path} has type {error}; use one of {", ".join(TYPES)}.') from None
  except (safetensors.SafetensorError, OSError, ValueError) as error:
    raise InputError(f'{path} cannot be read ({error}); is it whole?') from None


def write_safetensors(path: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
  """Writes {name: float32 array}."""
  whole = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
  path.write_bytes(safetensors.numpy.save(whole, metadata))


def _read_shards(index, reader):
  """Reads {name: array} from all files that an index names; each tensor must be where it says."""
  try:
    places = json_value(index.read_bytes())['weight_map']
    names = sorted(set(map(str, places.values())))
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise InputError(f'{index} is no index of shards ({error!r:.100}); is it whole?') from None
  out = {}
  for name in names:
    out |= reader(index.parent / name)
  return out
