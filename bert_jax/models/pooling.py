"""Pooling: vectors of whole examples, from the hidden states of their tokens.

B batch, T tokens, N examples in a row, K positions, D hidden size.
"""

import jax.numpy as jnp
from jax import Array

from bert_jax.models.layers import EXACT

POOLINGS = 'mean', 'cls'  # how the vector of a text is made


def gather_positions(x_BTD: Array, positions_BK: Array) -> Array:
  """The vectors [B, K, D] at the given positions of each row."""
  return jnp.take_along_axis(x_BTD, positions_BK[:, :, None], axis=1)


def tokens_of_slots(segment_ids_BT: Array, slots: int) -> Array:
  """[B, N, T] bool: does the token belong to the example in slot n, whose segment id is n + 1?"""
  return segment_ids_BT[:, None] == jnp.arange(1, slots + 1)[:, None]


def tokens_of_examples(segment_ids_BT: Array, positions_BN: Array) -> Array:
  """[B, N, T] bool: does the token belong to the same example as the token at a position?"""
  segments_BN = jnp.take_along_axis(segment_ids_BT, positions_BN, axis=1)
  return segments_BN[:, :, None] == segment_ids_BT[:, None]


def last_positions(segment_ids_BT: Array, positions_BN: Array) -> Array:
  """[B, N]: the last position of each example, given the position of any of its tokens."""
  is_in_BNT = tokens_of_examples(segment_ids_BT, positions_BN)
  return jnp.max(jnp.where(is_in_BNT, jnp.arange(segment_ids_BT.shape[1]), 0), axis=-1)


def means(x_BTD: Array, is_in_BNT: Array, exact: bool = False) -> Array:
  """The mean [B, N, D] of each example's vectors; zeros if it has no token.
  exact: in float32, whatever the type of x and the precision of other products."""
  kind, precision = (jnp.float32, EXACT) if exact else (x_BTD.dtype, None)
  is_in_BNT = is_in_BNT.astype(x_BTD.dtype)
  sums_BND = jnp.einsum(
    'bnt,btd->bnd', is_in_BNT, x_BTD, preferred_element_type=kind, precision=precision
  )
  counts_BN1 = jnp.sum(is_in_BNT, axis=-1, keepdims=True, dtype=kind)
  return sums_BND / jnp.maximum(counts_BN1, 1)


def text_vectors(x_BTD: Array, segment_ids_BT: Array, cls_positions_BN: Array, kind: str) -> Array:
  """The vectors [B, N, D] float32 of the texts of each row; text n is segment n + 1.
  kind: 'mean' of its hidden states (zeros if it has no token), or 'cls', the one at its [CLS]."""
  if kind == 'cls':
    return gather_positions(x_BTD, cls_positions_BN).astype(jnp.float32)
  return means(x_BTD, tokens_of_slots(segment_ids_BT, cls_positions_BN.shape[1]), exact=True)
