"""Attention within a window, computed block by block, so that its cost grows with the window.

The tokens of a row are cut into blocks, as long as the window. A block of queries and the keys near
it, twice as many, are a row of their own for the attention. So scores are [B T / b, H, b, 2 b] for
blocks of b tokens, never [B, H, T, T], and any implementation of attention computes them.
ModernBERT's layers with a window of 128 read 256 keys for a query.

The vectors are cut before they become queries, keys and values: a TPU stores these with the tokens
innermost, and moving them into blocks would cost more than the attention.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.models.attention_kernels import QKV
from bert_jax.models.tokens import Pattern, Tokens, is_constant

MULTIPLE = 128  # tokens of a block, so that the innermost axis fills the registers of a TPU
Attend = Callable[[QKV, tuple[Pattern, Array | None]], Array]  # of a Pattern and a key for dropout


def blocks_of(pattern: Pattern, widest: int, length: int) -> 'Bands | Whole':
  """How to cut rows of `length` tokens: Bands, or Whole where bands would save less than half of
  the attention, or if `length` is a symbol (predict/export.py). widest: the window of the bands if
  pattern.window is an array."""
  window = pattern.window if isinstance(pattern.window, int) else widest
  queries, keys = pattern.queries, pattern.keys
  if not window or queries is not keys or keys.places is not None or not isinstance(length, int):
    return Whole()
  back = window // 2 if is_constant(pattern.causal, False) else window - 1
  ahead = 0 if is_constant(pattern.causal, True) else window // 2
  block = -(-max(back + ahead, 1) // MULTIPLE) * MULTIPLE
  return Bands(window, length, block, block - ahead) if 4 * block <= length else Whole()


class Whole:
  """Rows that are not cut: has the methods of Bands, which return their arguments unchanged."""

  def queries(self, x_BT: Array) -> Array:
    return x_BT

  keys = queries

  def rows(self, x_BT: Array, rows: int) -> Array:
    return x_BT

  rows_of_keys = rows

  def attention(self, attend: Attend, pattern: Pattern) -> Attend:
    return attend


@dataclasses.dataclass(frozen=True)
class Bands:
  """Cuts rows of `length` tokens into n blocks of `block`, for a window of at most `window`. Blocks
  of keys begin `before` tokens earlier than blocks of queries, and there is one more of them: block
  i of the queries sees blocks i and i + 1 of the keys."""

  window: int
  length: int
  block: int
  before: int

  def queries(self, x_BT: Array) -> Array:
    """The blocks of queries: [B, T, ...] -> [B n, b, ...]"""
    return self._blocks(x_BT, 0, 0)

  def keys(self, x_BT: Array) -> Array:
    """The blocks of keys: [B, T, ...] -> [B (n + 1), b, ...]"""
    return self._blocks(x_BT, 1, self.before)

  def _blocks(self, x_BT, more, before):
    tokens = (-(-self.length // self.block) + more) * self.block
    around = [(0, 0), (before, tokens - before - self.length)] + [(0, 0)] * (x_BT.ndim - 2)
    return jnp.pad(x_BT, around).reshape(-1, self.block, *x_BT.shape[2:])

  def near(self, x_Mb: Array, rows: int) -> Array:
    """The keys that each block of queries sees: [B (n + 1), b, ...] -> [B n, 2 b, ...]"""
    x_Bmb = x_Mb.reshape(rows, -1, *x_Mb.shape[1:])
    x_Bnb = jnp.concatenate([x_Bmb[:, :-1], x_Bmb[:, 1:]], axis=2)
    return x_Bnb.reshape(-1, *x_Bnb.shape[2:])

  def rows(self, x_Nb: Array, rows: int, before: int = 0) -> Array:
    """The inverse of `queries`: -> [B, T, ...]"""
    x_BT = x_Nb.reshape(rows, -1, *x_Nb.shape[2:])
    return x_BT[:, before : before + self.length]

  def rows_of_keys(self, x_Mb: Array, rows: int) -> Array:
    """The inverse of `keys`: -> [B, T, ...]"""
    return self.rows(x_Mb, rows, self.before)

  def pattern(self, pattern: Pattern) -> Pattern:
    """The Pattern of blocks of queries and the keys near them."""
    ids_BT, causal = pattern.queries.segment_ids, pattern.causal
    B, b = ids_BT.shape[0], self.block
    queries_Nb, keys_Nb = self.queries(ids_BT), self.near(self.keys(ids_BT), B)
    if not isinstance(causal, bool):
      causal = jnp.repeat(causal, len(queries_Nb) // B)
    queries = Tokens(queries_Nb, places=jnp.arange(b))
    keys = Tokens(keys_Nb, places=jnp.arange(2 * b) - self.before)
    return dataclasses.replace(pattern, queries=queries, keys=keys, causal=causal)

  def attention(self, attend: Attend, pattern: Pattern) -> Attend:
    """Turns `attend`, attention of whole rows, into attention of blocks: of queries [B n, b, H, d],
    keys and values [B (n + 1), b, H, d], and the Pattern of the rows."""
    B = len(pattern.queries.segment_ids)

    def in_blocks(qkv, rest):
      q_NbHd, k_MbHd, v_MbHd = qkv
      pattern, key = rest
      near = q_NbHd, self.near(k_MbHd, B), self.near(v_MbHd, B)
      return attend(near, (self.pattern(pattern), key))

    def in_rows(qkv, rest):
      q_NbHd, k_MbHd, v_MbHd = qkv
      k_BTHd, v_BTHd = (self.rows_of_keys(x, B) for x in (k_MbHd, v_MbHd))
      return self.queries(attend((self.rows(q_NbHd, B), k_BTHd, v_BTHd), rest))

    if isinstance(pattern.window, int):
      return in_blocks
    which = (pattern.window > 0) & (pattern.window <= self.window)
    return functools.partial(either, in_blocks, in_rows, which)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def either(one: Attend, other: Attend, which: Array, qkv: QKV, rest: Any) -> Array:
  """one(qkv, rest) if the boolean array `which` is True, else other(qkv, rest): for scanned layers,
  some with a window. The gradient computes the function again: jax.lax.cond alone would keep what
  both functions save, so [B, H, T, T] for a layer that needs none."""
  return jax.lax.cond(which, one, other, qkv, rest)


def _either_forward(one, other, which, qkv, rest):
  return either(one, other, which, qkv, rest), (which, qkv, rest)


def _either_backward(one, other, saved, g_BTHd):
  which, qkv, rest = saved

  def gradient_of(attend):
    def gradient(g_BTHd, qkv):
      _, backward = jax.vjp(lambda qkv: attend(qkv, rest), qkv)
      return backward(g_BTHd)

    return gradient

  (g_qkv,) = jax.lax.cond(which, gradient_of(one), gradient_of(other), g_BTHd, qkv)
  return None, g_qkv, None


either.defvjp(_either_forward, _either_backward)
