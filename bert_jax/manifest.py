"""What a checkpoint says of itself, whether it is still that, and whether a run can go on from it.

A checksum is a sum over the elements of an array, so it is the same on any mesh and any number of
hosts; the metadata that holds the checksums is sealed by a hash of its own.
"""

import hashlib
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import workdirs
from bert_jax.errors import InputError
from bert_jax.sharding import path_name

log = logging.getLogger('bert_jax')

PARTS = ('params', 'opt_state', 'carry')


def flat(tree):
  """{dotted path: array}: what is written; a checkpoint needs no Python types to be read."""
  return {
    path_name(path).replace('/', '.'): x
    for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]
  }


def unflat(arrays, like):
  """The inverse of flat: arrays in the structure of the tree `like`."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: arrays[path_name(path).replace('/', '.')], like
  )


def array_table(trees):
  """{part/path: [shape, dtype, checksum]} of {part: tree of arrays}."""
  arrays = {f'{part}/{name}': x for part, tree in trees.items() for name, x in flat(tree).items()}
  sums = jax.device_get(checksums(arrays))
  return {name: [list(x.shape), str(x.dtype), int(sums[name])] for name, x in arrays.items()}


@jax.jit
def checksums(arrays):
  """A uint32 per array: its words times odd numbers made from their positions, summed modulo 2**32.

  An odd factor makes any single flipped bit change the sum; the positions make a swap change it.
  """

  def checksum(x):
    if x.dtype == jnp.bool_:
      x = x.astype(jnp.uint8)
    word = jax.lax.bitcast_convert_type(
      x, {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    )
    place = jnp.uint32(0)
    for axis, prime in zip(range(x.ndim), (2654435761, 2246822519, 3266489917, 668265263)):
      place += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis) * jnp.uint32(prime)
    place ^= place >> 15
    return jnp.sum(word.astype(jnp.uint32) * (place | 1), dtype=jnp.uint32)

  return {name: checksum(x) for name, x in arrays.items()}


def seal(meta):
  """A hash of everything in meta but the seal itself."""
  rest = {k: v for k, v in meta.items() if k != 'seal'}
  return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def compare(meta, part, arrays):
  """InputError unless names, shapes and types of a part are those of the checkpoint."""
  here = {f'{part}/{name}': [list(x.shape), str(np.dtype(x.dtype))] for name, x in arrays.items()}
  saved = meta['arrays'].items()
  there = {name: row[:2] for name, row in saved if name.startswith(f'{part}/')}
  for name in sorted(here.keys() | there.keys()):
    if here.get(name) != there.get(name):
      raise InputError(
        f'checkpoint {meta["step"]} has {name} as {there.get(name, "nothing")} and this run as '
        f'{here.get(name, "nothing")}; they are not the same model or optimizer.'
      )


def check_continues(meta, shapes, facts, steps, own):
  """InputError unless a run with these shapes and facts can go on from a checkpoint's meta.

  own: it is the workdir's own checkpoint, not that of config.resume_from.
  """
  number = meta['step']
  if not own and meta['data'] != facts['data']:
    log.info('resume_from: the training data is another one than up to step %d', number)
  if own and meta['data'] != facts['data']:
    raise InputError(
      f'the training data is not what it was at checkpoint {number}; bring it back, or use another '
      '--workdir with config.init_from to start from its weights.'
    )
  if own and meta['config'] != facts['config']:
    raise InputError(
      f'{workdirs.CONFIG} was changed since checkpoint {number} was saved; bring it back.'
    )
  if not own and number >= steps:
    raise InputError(f'config.resume_from is at step {number} already; set steps above {steps}.')
  for part in PARTS:
    compare(meta, part, flat(getattr(shapes, part)))


def parts(meta):
  """The parts of a model that a checkpoint has: encoder, pooler..."""
  return {name.split('/')[1].partition('.')[0] for name in meta['arrays'] if name[:7] == 'params/'}


@jax.jit
def finite(tree):
  """Is every number of the tree finite?"""
  return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))
