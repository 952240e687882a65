"""Descriptions of tokens (Tokens), of a layer's numbers (Layer), and of which tokens see which
(Pattern); attention.py computes the attention that a Pattern describes.
"""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

T = TypeVar('T')
Causal = Array | bool  # True if no token may see a later one, or [B] bool by row


def pytree_with_constants(cls: type[T]) -> type[T]:
  """Makes a dataclass a pytree whose arrays are leaves, while plain Python numbers are constants of
  the compiled program. So a field may be a constant (`causal=True`) or an array (`causal` [B])."""
  names = list(cls.__annotations__)

  def flatten(value):
    leaves, constants = [], []
    for name in names:
      x = getattr(value, name)
      is_number = _is_number(x)
      leaves.append(None if is_number else x)
      constants.append(x if is_number else None)
    return leaves, tuple(constants)

  def unflatten(constants, leaves):
    values = list(leaves)
    for i, constant in enumerate(constants):
      if constant is not None:
        values[i] = constant
    return cls(*values)

  jax.tree_util.register_pytree_node(cls, flatten, unflatten)
  return cls


@pytree_with_constants
@dataclasses.dataclass(frozen=True)
class Tokens:
  """What a block knows about the tokens of a batch of rows besides their vectors.

  segment_ids: [B, T] int32; 0 for padding, 1.. for the example of the row a token belongs to.
  position_ids: [B, T] int32, a token's position in its example. None: its index in the row.
  causal: see Causal.
  places: [T] or [B, T] int32, by which causal attention and windows order tokens and measure their
  distance. None: the index in the row. Keys that continue earlier ones (a memory, a cache) need it.
  memory: the Memory before the rows (memory.py), or None.
  distances: [R, D], vectors of relative distances that all layers share (relative.py), or None.
  keys_from: [B, T, D], the vectors that keys and values are made of, while the tokens' own vectors
  give the queries only (objectives/mask_decoder.py), or None.
  """

  segment_ids: Any
  position_ids: Any = None
  causal: Any = False
  places: Any = None
  memory: Any = None
  distances: Any = None
  keys_from: Any = None


@pytree_with_constants
@dataclasses.dataclass(frozen=True)
class Layer:
  """The numbers that may differ from layer to layer: Python numbers (for one layer, or for all of a
  tower), or arrays, [L] for a tower and [] inside a scan; see Pattern and positions.rotary."""

  window: Any = 0
  rotary_theta: Any = 10_000.0

  def at(self, i: int) -> 'Layer':
    """Layer i of a tower, with Python numbers."""
    return jax.tree.map(lambda x_L: x_L[i].item(), self)

  def since(self, i: int) -> 'Layer':
    """The Layer of a tower without its first i layers."""
    return jax.tree.map(lambda x_L: x_L[i:], self)


@pytree_with_constants
@dataclasses.dataclass(frozen=True)
class Pattern:
  """Which keys a query sees, and what is added to its scores.

  queries, keys: with segment_ids [B, Tq] and [B, Tk]. A query sees the keys of its segment that are
  no padding, with two restrictions:
  causal: no later keys; True, or [B] bool by row.
  window: only near keys; an int, or an integer array [] that may be traced; 0: all. As in released
  models, these are, if causal, the last `window` keys up to the query's place (Mistral), otherwise
  the keys at most window // 2 places away on either side (ModernBERT, Longformer).
  bias: added to the scores before the softmax; broadcasts to [B, H, Tq, Tk]; or None.
  """

  queries: Tokens
  keys: Tokens
  causal: Any = False
  window: Any = 0
  bias: Any = None


def sees(pattern: Pattern) -> Array:
  """[B, Tq, Tk] bool: does a query see a key?"""
  queries_BT, keys_BT = pattern.queries.segment_ids, pattern.keys.segment_ids
  seen = queries_BT[:, :, None] == keys_BT[:, None, :]
  seen &= (keys_BT > 0)[:, None, :]
  if is_constant(pattern.causal, False) and is_constant(pattern.window, 0):
    return seen
  back = distance(pattern)
  causal = jnp.asarray(pattern.causal).reshape(-1, 1, 1)
  seen &= ~causal | (back >= 0)
  if is_constant(pattern.window, 0):
    return seen
  window = jnp.asarray(pattern.window)
  near = jnp.where(causal, back < window, jnp.abs(back) <= window // 2)
  return seen & ((window == 0) | near)


def distance(pattern: Pattern) -> Array:
  """[B or 1, Tq, Tk] int32: by how many places each key is before each query."""
  queries = jnp.atleast_2d(_places(pattern.queries))
  keys = jnp.atleast_2d(_places(pattern.keys))
  return queries[:, :, None] - keys[:, None, :]


def _places(tokens):
  return jnp.arange(tokens.segment_ids.shape[1]) if tokens.places is None else tokens.places


def is_constant(value: Any, constant: float) -> bool:
  """Is `value` the Python number `constant` (and not an array)?"""
  return _is_number(value) and value == constant


def _is_number(value):
  return isinstance(value, (bool, int, float))
