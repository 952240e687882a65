"""Cuts a tensor of a released file into our parameters, and joins parameters into such a tensor.

One tensor of theirs may be several of ours: ModernBERT's Wqkv and GPT's c_attn hold query, key and
value. A Place (convert/families/record.py) says which part of which tensor a parameter is, and in
which order.
"""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from bert_jax.convert.families.record import Place
from bert_jax.errors import InputError


def cut(x: np.ndarray, name: str, place: Place) -> np.ndarray:
  """The part of a tensor that a parameter is, as float32 in our layout, or an InputError."""
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise InputError(f'{name} is {x.dtype}: quantized; give the weights it was made from.')
  x = np.asarray(x).astype(np.float32)
  if not np.isfinite(x).all():
    raise InputError(f'{name} holds numbers that are not finite; these weights are broken.')
  i, n = place.part
  if n > 1:
    size = x.shape[place.axis] // n
    x = np.take(x, range(i * size, (i + 1) * size), place.axis)
  if place.side_by_side:
    x = _with_pairs(x, place, (-1, 2))
  if place.is_row:
    x = x.reshape(-1)
  return np.ascontiguousarray(x.T) if place.turned else x


def _with_pairs(x, place, shape):
  """x with the two numbers of each pair in another order. shape: of a head in the old order."""
  outputs = np.moveaxis(x, place.axis, 0)
  heads = outputs.reshape(place.side_by_side, *shape, *outputs.shape[1:])
  outputs = heads.swapaxes(1, 2).reshape(outputs.shape)
  return np.moveaxis(outputs, 0, place.axis)


def joined(flat: Mapping[str, np.ndarray], places: Mapping[str, Place]) -> dict[str, np.ndarray]:
  """{name in a file: tensor} of parameters {our path: array}, in the layout of their places."""
  parts: dict[str, dict[int, np.ndarray]] = {}  # {name in a file: {number of a part: its numbers}}
  axes = {}
  for path, x in flat.items():
    place = places[path]
    part = x
    if place.turned:
      part = x.T
    elif place.is_row:
      part = x[None]
    if place.side_by_side:
      part = _with_pairs(part, place, (2, -1))
    number, _ = place.part
    parts.setdefault(place.name, {})[number] = part
    axes[place.name] = place.axis
  out = {}
  for name, by_number in parts.items():
    in_order = [by_number[number] for number in sorted(by_number)]
    out[name] = in_order[0]
    if len(in_order) > 1:
      out[name] = np.concatenate(in_order, axes[name])
  return out
