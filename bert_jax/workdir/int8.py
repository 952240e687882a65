"""Weights in int8, a quarter of float32: symmetric, with one scale for each output channel.

Each number is divided by its channel's scale and rounded to a whole number from -127 to 127 (Wu et
al. 2020, https://arxiv.org/abs/2004.09602). A channel is a column of a kernel, or a row of an
embedding table. Arrays of one dimension (biases, norms) and activations stay float32.

The scale is the largest absolute value in the channel over 127, rounded up to 16 bits, so that a
number times its scale is exact in float32, and quantizing a second time changes no bit.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text import files
from bert_jax.workdir import manifest

SCALE = '.int8_scale'
TABLES = 'embedding', 'decoder'  # arrays whose rows, not columns, are channels
BITS, MOST = 16, 127


def scales(name: str, x: np.ndarray) -> np.ndarray:
  """The float32 scale of each channel of an array, in a shape that broadcasts against it."""
  is_table = name.rpartition('.')[2] in TABLES
  axes = (x.ndim - 1,) if is_table else tuple(range(x.ndim - 1))
  largest = np.max(np.abs(x.astype(np.float64)), axis=axes, keepdims=True)
  if not np.isfinite(largest).all():
    raise InputError(f'{name} has numbers that are not finite, so it has no scale; train it anew.')
  share, exponent = np.frexp(np.where(largest, largest, MOST) / MOST)
  return np.ldexp(np.ceil(np.ldexp(share, BITS)), exponent - BITS).astype(np.float32)


def quantized(params: Any) -> dict[str, np.ndarray]:
  """{name: int8 array, name.int8_scale: scales} of a tree; arrays of one dimension stay float32."""
  out: dict[str, np.ndarray] = {}
  for name, x in manifest.flat(models.unstack_layers(jax.device_get(params))).items():
    x = np.asarray(x, np.float32)
    if x.ndim > 1:
      out[name + SCALE] = scale = scales(name, x)
      x = np.rint(x / scale).astype(np.int8)
    out[name] = x
  if not any(name.endswith(SCALE) for name in out):
    raise InputError('int8 is for weights of two dimensions; leave this model in float32.')
  return out


def floats(arrays: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes `quantized`: {name: float32 array}. The arrays may be JAX arrays."""
  return {
    name: x.astype(np.float32) * arrays[name + SCALE] if name + SCALE in arrays else x
    for name, x in arrays.items()
    if not name.endswith(SCALE)
  }


def rounded(params: Any) -> Any:
  """A tree of parameters on the host, quantized to int8 and back."""
  tree = traverse_util.unflatten_dict(floats(quantized(params)), sep='.')
  is_stacked = any('layers' in name.split('.') for name in manifest.flat(params))
  return models.stack_layers(tree) if is_stacked else tree


def refuse_folder(folder: str | Path) -> None:
  """InputError if a folder holds int8 weights written by an earlier version."""
  if files.exists(Path(folder).expanduser() / 'int8.json'):
    fault = f'{folder} holds weights in int8, which this version does not read'
    raise InputError(f'{fault}; name the run that they were made of, with --int8.')
