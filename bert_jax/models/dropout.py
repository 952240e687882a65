"""Dropout (Srivastava et al. 2014) whose mask is a hash: a few integer operations, no memory.

Whether an element is kept is a function of the key and its place in the array, so the mask is the
same in any layout over devices, and a compiler can compute it inside the operation that uses it.
JAX's generators (threefry: 20 rounds) do far more work than a mask needs.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax


class Dropout(nn.Module):
  """Applies `drop` with the rng 'dropout'; deterministic: returns its input."""

  rate: float
  deterministic: bool
  shared: bool = False

  @nn.compact
  def __call__(self, x: Array) -> Array:
    if self.deterministic or self.rate == 0:
      return x
    return drop(x, self.make_rng('dropout'), self.rate, self.shared)


@jax.named_scope('Dropout')
def drop(x: Array, key: Array | None, rate: float, shared: bool = False) -> Array:
  """Sets each number of x to 0 with probability `rate`, else divides it by 1 - rate.
  shared: the first axis of x is not rows of the batch, but the same on all devices."""
  if key is None or rate == 0:
    return x
  return keep(x, keep_mask(key, rate, x.shape, shared), rate)


def keep(x: Array, mask: Array, rate: float) -> Array:
  """x / (1 - rate) where the mask is True, elsewhere 0."""
  # In float32, since a bfloat16 factor would be off.
  scaled = (x.astype(jnp.float32) * (1 / (1 - rate))).astype(x.dtype)
  return jnp.where(mask, scaled, jnp.zeros((), x.dtype))


def keep_mask(key: Array, rate: float, shape: tuple[int, ...], shared: bool = False) -> Array:
  """Which elements to keep: booleans of `shape`, True with probability 1 - rate (to 2^-32).

  The index of a row (first axis, counted over all devices) and the two words of the key are hashed
  into two seeds of the row, and these with an element's place in its row; the highest bits of the
  result decide. Rounds and constants are Wellons' "lowbias32"
  (https://nullprogram.com/blog/2018/07/31/). Its last shift changes lower bits only and is left out
  for elements: with it the TPU compiler no longer fuses the mask with the matrix products around.
  shared: see `drop`."""
  key0, key1 = jax.random.key_data(key).ravel()[:2]
  rows = jnp.arange(shape[0], dtype=jnp.uint32)
  part, parts = shard_of_rows()
  if parts > 1 and not shared:
    rows += (part * shape[0]).astype(jnp.uint32)
  rows = rows.reshape(-1, *[1] * (len(shape) - 1))
  place = seed0 = _mix(rows ^ key0)
  seed1, stride = _mix(seed0 ^ key1), 1
  for axis in reversed(range(1, len(shape))):
    place = place + lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
    stride *= shape[axis]
  bits = jnp.broadcast_to(_high_mix(place, seed1), shape)
  # As signed numbers, which TPUs compare in one operation.
  return lax.bitcast_convert_type(bits, jnp.int32) >= round(rate * 2**32) - 2**31


def shard_of_rows() -> tuple[Any, int]:
  """(which part of a batch's rows is here, of how many). Inside jax.shard_map a device has only its
  own rows; elsewhere arrays have all of them, whatever devices hold them."""
  axes = jax.sharding.get_abstract_mesh().manual_axes
  return (lax.axis_index(axes), lax.axis_size(axes)) if axes else (0, 1)


def _high_mix(x, seed):
  """A bijection of uint32: each bit of x flips half of the high bits; the seed enters midway."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
  return (x ^ (x >> 15) ^ seed) * jnp.uint32(0x846CA68B)


def _mix(x):
  """A bijection of uint32: each bit of x flips half of all bits of the result."""
  x = _high_mix(x, jnp.uint32(0))
  return x ^ (x >> 16)
