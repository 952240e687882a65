"""The metadata of a checkpoint, with a table of its arrays: their shapes, types and checksums.

A checksum is a sum over the elements of an array, so it is the same on any mesh and any number of
hosts. The metadata also holds its seal, a hash of itself.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import files
from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.sharding import path_name
from bert_jax.text.files import json_of

PARTS = ('params', 'opt_state', 'carry')
AT_ONCE = 16  # checksums that are computed at a time; XLA's limit on a CPU is 32 programs a device


class Damaged(InputError):
  """A checkpoint that cannot be trusted; the message says which and why."""

  def __init__(self, folder: Path, number: int, why: object):
    super().__init__(f'checkpoint {number} in {folder} is damaged: {why}')
    self.number = number


def path_of(folder: Path, number: int) -> Path:
  return folder / str(number) / 'meta' / 'metadata'


def read(folder: Path, number: int) -> dict[str, Any]:
  """The metadata of a checkpoint: identity, metrics, checksums; or Damaged."""
  try:
    meta = json_of(path_of(folder, number))
  except InputError as error:
    raise Damaged(folder, number, str(error).removesuffix('; is it whole?')) from None
  if not meta:
    raise Damaged(folder, number, 'its metadata is missing')
  if meta.get('seal') != files.seal(meta) or meta['step'] != number:
    raise Damaged(folder, number, 'its metadata is not as it was written')
  return meta


def flat(tree: Any) -> dict[str, Any]:
  """Flattens a tree to {dotted path: array}, the form on disk, which needs no Python types."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {path_name(path).replace('/', '.'): x for path, x in leaves}


def unflat(arrays: Mapping[str, Any], like: Any) -> Any:
  """Undoes `flat`: puts the arrays into the structure of the tree `like`."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: arrays[path_name(path).replace('/', '.')], like
  )


def fingerprint(params: Any) -> str:
  """A hash of every number of a tree on the host, by which another model is noticed."""
  total = hashlib.sha256()
  for name, x in sorted(flat(params).items()):
    total.update(f'{name} {x.shape} {x.dtype}'.encode())
    total.update(np.asarray(x).tobytes())
  return total.hexdigest()[:16]


def array_table(trees: Mapping[str, Any]) -> dict[str, list[Any]]:
  """The table {part/path: [shape, dtype, checksum]} of {part: tree of arrays}."""
  arrays = {}
  for part, tree in trees.items():
    for name, x in flat(tree).items():
      arrays[f'{part}/{name}'] = x
  values, sums = list(arrays.values()), []
  for k in range(0, len(values), AT_ONCE):  # beyond XLA's limit they may block one another
    sums += jax.device_get([checksum(x) for x in values[k : k + AT_ONCE]])
  table = {}
  for (name, x), number in zip(arrays.items(), sums, strict=True):
    table[name] = [list(x.shape), str(x.dtype), int(number)]
  return table


@jax.jit
def checksum(x: jax.Array) -> jax.Array:
  """uint32: the sum modulo 2**32 of an array's words, each times an odd number made from its place.
  As the factors are odd, any flipped bit changes the sum; as they differ, so does a swap."""
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
  word = jax.lax.bitcast_convert_type(x, unsigned)
  place = jnp.uint32(0)
  for axis, prime in zip(range(x.ndim), (2654435761, 2246822519, 3266489917, 668265263)):
    place += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis) * jnp.uint32(prime)
  place ^= place >> 15
  return jnp.sum(word.astype(jnp.uint32) * (place | 1), dtype=jnp.uint32)


def compare(meta: Mapping[str, Any], part: str, arrays: Mapping[str, Any]) -> None:
  """InputError unless a part's arrays have the shapes and types of a checkpoint's."""
  here = {f'{part}/{name}': f'{list(x.shape)} {np.dtype(x.dtype)}' for name, x in arrays.items()}
  saved = {name: f'{row[0]} {row[1]}' for name, row in rows_of(meta, part).items()}
  for name in sorted(here.keys() | saved.keys()):
    if here.get(name) != saved.get(name):
      raise InputError(
        f'checkpoint {meta["step"]} has {saved.get(name, "nothing")} for {name}, and this run '
        f'{here.get(name, "nothing")}: not the same model or optimizer; go on with the code and '
        'config that wrote it, or begin another run from init_from.'
      )


def rows_of(meta: Mapping[str, Any], part: str) -> dict[str, list[Any]]:
  return {name: row for name, row in meta['arrays'].items() if name.startswith(f'{part}/')}


def parts(meta: Mapping[str, Any]) -> set[str]:
  """The parts of a model that are in a checkpoint: encoder, pooler..."""
  return {name.split('/')[1].partition('.')[0] for name in rows_of(meta, 'params')}


@jax.jit
def finite(tree: Any) -> jax.Array:
  return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))
