"""Pooling: vectors of whole examples, from the hidden states of their tokens.

B batch, T tokens, N examples in a row, K positions, D hidden size.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jax import Array

from bert_jax.models.layers import EXACT

# How the vector of a text is made, as sentence-transformers calls it.
POOLINGS = 'mean', 'cls', 'max', 'lasttoken', 'weightedmean', 'mean_sqrt_len_tokens'


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
  is_in: bool, or the weights of the tokens, whole numbers.
  exact: in float32, whatever the type of x and the precision of other products."""
  kind, precision = (jnp.float32, EXACT) if exact else (x_BTD.dtype, None)
  is_in_BNT = is_in_BNT.astype(x_BTD.dtype)
  sums_BND = jnp.einsum(
    'bnt,btd->bnd', is_in_BNT, x_BTD, preferred_element_type=kind, precision=precision
  )
  counts_BN1 = jnp.sum(is_in_BNT, axis=-1, keepdims=True, dtype=kind)
  return sums_BND / jnp.maximum(counts_BN1, 1)


def text_vectors(x_BTD: Array, rows: Mapping[str, Array], kind: str, skipped: int = 0) -> Array:
  """The vectors [B, N, D] float32 of the texts of each row; text n is segment n + 1.

  rows: the segment_ids and position_ids [B, T] of their tokens, and their cls_positions [B, N].
  kind: 'mean' of its hidden states; 'weightedmean', in which they count by their place, the first
  once; 'mean_sqrt_len_tokens', the sum by the root of their number; 'max' of each number; the state
  at its [CLS] ('cls') or at its last token. Without a token: zeros, but of cls and lasttoken.
  skipped: so many tokens at the beginning of each text are left out (a prompt)."""
  cls_positions_BN, position_ids_BT = rows['cls_positions'], rows['position_ids']
  if kind in ('cls', 'lasttoken'):
    at_BN = cls_positions_BN + skipped
    if kind == 'lasttoken':
      at_BN = last_positions(rows['segment_ids'], cls_positions_BN)
    return gather_positions(x_BTD, at_BN).astype(jnp.float32)
  is_in_BNT = tokens_of_slots(rows['segment_ids'], cls_positions_BN.shape[1])
  if skipped:
    is_in_BNT &= (position_ids_BT >= skipped)[:, None]
  if kind == 'max':
    return _largest(x_BTD.astype(jnp.float32), is_in_BNT)
  if kind == 'weightedmean':
    weights_BNT = is_in_BNT * (position_ids_BT + 1)[:, None]
    return means(x_BTD.astype(jnp.float32), weights_BNT, exact=True)
  vectors_BND = means(x_BTD, is_in_BNT, exact=True)
  if kind == 'mean_sqrt_len_tokens':
    vectors_BND *= jnp.sqrt(jnp.sum(is_in_BNT, axis=-1, keepdims=True))
  return vectors_BND


def _largest(x_BTD, is_in_BNT):
  """The largest [B, N, D] of each number of the vectors of an example; zeros without a token."""
  masked_BNTD = jnp.where(is_in_BNT[..., None], x_BTD[:, None], -jnp.inf)
  # Gathered: the gradient of a maximum compares with it what may have been computed again.
  largest_BND = jnp.take_along_axis(x_BTD, jnp.argmax(masked_BNTD, axis=2), axis=1)
  return jnp.where(jnp.any(is_in_BNT, axis=-1, keepdims=True), largest_BND, 0)
