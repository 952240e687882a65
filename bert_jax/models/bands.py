"""Attention within a window, at the price of a window.

The queries of a row are cut into blocks, and each block becomes a row beside the keys that it may
see: those of its block and of its neighbours. So scores are [B T / b, H, b, 3 b] for blocks of b
tokens, never [B, H, T, T], and any implementation of attention computes them. ModernBERT's layers
with a window of 128 read 192 keys for a query (b = 64).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from bert_jax.models.tokens import Tokens, is_constant

LEAST = 64  # tokens of a block; narrower windows gain nothing from smaller ones


def banded(attend, pattern, widest, length):
  """attend, a function of (q, k, v, (pattern, key)), or one that computes the same block by block
  where it costs half at most. length: of the rows, whose queries are their keys. widest: the widest
  window that is computed so, where pattern.window is an array."""
  window = pattern.window if isinstance(pattern.window, int) else widest
  if not window or pattern.queries is not pattern.keys or pattern.keys.places is not None:
    return attend
  block, back, ahead = _blocks(pattern, window)
  if 2 * (back + 1 + ahead) * block > length:
    return attend

  def in_blocks(q_BTHd, k_BTHd, v_BTHd, rest):
    pattern, key = rest
    *arrays, pattern = cut(q_BTHd, k_BTHd, v_BTHd, pattern, window)
    return joined(attend(*arrays, (pattern, key)), *q_BTHd.shape[:2])

  if isinstance(pattern.window, int):
    return in_blocks
  which = (pattern.window > 0) & (pattern.window <= window)
  return functools.partial(either, in_blocks, attend, which)


def _blocks(pattern, window):
  """(tokens of a block, blocks before it that its queries see, blocks after it)."""
  back = window // 2 if is_constant(pattern.causal, False) else window - 1
  ahead = 0 if is_constant(pattern.causal, True) else window // 2
  block = max(LEAST, -(-max(back, ahead) // 8) * 8)
  return block, int(back > 0), int(ahead > 0)


def cut(q_BTHd, k_BTHd, v_BTHd, pattern, window):
  """The four with blocks as rows: queries [B n, b, H, d], keys and values [B n, m b, H, d], for n
  blocks and the m that one sees. window: that of `pattern`, or a wider one."""
  block, back, ahead = _blocks(pattern, window)
  B, T = q_BTHd.shape[:2]
  n, seen = -(-T // block), back + 1 + ahead

  def blocks(x_BT):
    x_BT = jnp.pad(x_BT, [(0, 0), (0, n * block - T)] + [(0, 0)] * (x_BT.ndim - 2))
    return x_BT.reshape(B, n, block, *x_BT.shape[2:])

  def near(x_BT):
    x_Bnb = blocks(x_BT)
    x_Bnb = jnp.pad(x_Bnb, [(0, 0), (back, ahead)] + [(0, 0)] * (x_Bnb.ndim - 2))
    x_Bnb = jnp.concatenate([x_Bnb[:, i : i + n] for i in range(seen)], axis=2)
    return x_Bnb.reshape(B * n, seen * block, *x_Bnb.shape[3:])

  ids_BT, causal = pattern.queries.segment_ids, pattern.causal
  ids_Nb = blocks(ids_BT).reshape(B * n, block)
  if not isinstance(causal, bool):
    causal = jnp.repeat(causal, n)
  pattern = dataclasses.replace(
    pattern,
    queries=Tokens(ids_Nb, places=jnp.arange(block)),
    keys=Tokens(near(ids_BT), places=jnp.arange(seen * block) - back * block),
    causal=causal,
  )
  q_NbHd = blocks(q_BTHd).reshape(B * n, block, *q_BTHd.shape[2:])
  return q_NbHd, near(k_BTHd), near(v_BTHd), pattern


def joined(x_NbHd, B, T):
  """The inverse for what queries get: [B n, b, H, d] -> [B, T, H, d]."""
  return x_NbHd.reshape(B, -1, *x_NbHd.shape[2:])[:, :T]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def either(one, other, which, q_BTHd, k_BTHd, v_BTHd, rest):
  """one(q, k, v, rest) if `which`, an array, else other(...). For scanned layers, of which some
  have a window. The gradient computes the function again: jax.lax.cond by itself would keep what
  both functions save, so [B, H, T, T] for a layer that needs none."""
  return jax.lax.cond(which, one, other, q_BTHd, k_BTHd, v_BTHd, rest)


def _either_forward(one, other, which, *arrays):
  return either(one, other, which, *arrays), (which, *arrays)


def _either_backward(one, other, saved, g_BTHd):
  which, *qkv, rest = saved

  def gradient_of(function):
    return lambda g, *qkv: jax.vjp(lambda *qkv: function(*qkv, rest), *qkv)[1](g)

  dq, dk, dv = jax.lax.cond(which, gradient_of(one), gradient_of(other), g_BTHd, *qkv)
  return None, dq, dk, dv, None


either.defvjp(_either_forward, _either_backward)
