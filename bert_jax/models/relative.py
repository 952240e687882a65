"""Relative positions of Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860, 3.3),
and how any scores by distance become scores of queries and keys.

The score of query i and key j is, before it is divided by sqrt(d), the sum of four terms,

  q_i . k_j  +  q_i . W r(i - j)  +  u . k_j  +  v . W r(i - j)

where r(s) is the sinusoidal encoding of the distance s, and the matrix W and the vectors u and v
are learned, here by each layer (`untie_r` of the released code). Keys that come later have negative
distances (XLNet, Yang et al. 2019).

B batch, Tq queries, Tk keys, H heads, d size of a head, D hidden size, N distances.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.models import layers
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.tokens import Pattern, distance, is_constant

Project = Callable[[str, Array], Array]  # a layer's 'query', 'key' or 'value' of vectors


class OwnScores(nn.Module):
  """The fields of a module that scores relative positions, called with queries [B, Tq, H, d], keys
  [B, Tk, H, d], their Pattern and the layer's projections; it returns (the queries as they meet the
  keys, what is added to the scores [B, H, Tq, Tk], which are divided by sqrt(d)). The queries are
  the last Tq of the keys, or, with places by row (decoding), anywhere in them."""

  config: ModelConfig
  deterministic: bool


class Relative(OwnScores):
  """Transformer-XL's scores: (q + u, the terms with r / sqrt(d))."""

  @nn.compact
  def __call__(
    self, q_BTHd: Array, k_BTHd: Array, pattern: Pattern, project: Project
  ) -> tuple[Array, Array]:
    config, (_, Tq, H, d) = self.config, q_BTHd.shape
    u_Hd, v_Hd = (
      self.param(name, layers.initializer(config), (H * d,)).astype(q_BTHd.dtype).reshape(H, d)
      for name in ('content_bias', 'position_bias')
    )
    Tk = pattern.keys.segment_ids.shape[1]
    later = 0 if is_constant(pattern.causal, True) else Tq - 1
    N = Tk + later
    # In a program that is exported Tk is symbolic, not an int.
    distances_N = Tk - 1 - (np if isinstance(Tk, int) else jnp).arange(N)
    if config.relative_clamp:
      distances_N = distances_N.clip(-config.relative_clamp, config.relative_clamp)
    r_ND = sinusoids(distances_N, H * d)
    r_ND = Dropout(config.hidden_dropout_prob, self.deterministic, shared=True)(r_ND)
    r_NHd = layers.dense(config, H * d, 'distance', bias=False)(r_ND).reshape(-1, H, d)
    x_BHTN = products((q_BTHd + v_Hd) / math.sqrt(d), r_NHd)
    if has_places_by_row(pattern):
      at_BTT = jnp.clip(Tk - 1 - distance(pattern), 0, N - 1)
      return q_BTHd + u_Hd, jnp.take_along_axis(x_BHTN, at_BTT[:, None], axis=-1)
    return q_BTHd + u_Hd, shifted(x_BHTN, Tk)


def products(x_BTHd: Array, r_NHd: Array) -> Array:
  """The products [B, H, T, N] float32 of the queries or keys x with vectors r of N distances."""
  (B, T, H, d), N = x_BTHd.shape, r_NHd.shape[0]
  # Rows and queries are one dimension: see MaskedLMHead.
  x_XHd = x_BTHd.reshape(-1, H, d)
  x_HXN = jnp.einsum('xhd,nhd->hxn', x_XHd, r_NHd, preferred_element_type=jnp.float32)
  return x_HXN.reshape(H, B, T, N).swapaxes(0, 1)


def has_places_by_row(pattern: Pattern) -> bool:
  """Do queries have places of their own in each row, so that distances are not those of rows?"""
  places = pattern.queries.places
  return places is not None and places.ndim == 2


def sinusoids(distances_N: Any, width: int) -> Array:
  """[N, width] float32: the sines of distance / 10000^(2i / width), then the cosines."""
  turns = 10_000.0 ** (-np.arange(0, width, 2) / width)
  angles = jnp.asarray(distances_N, jnp.float32)[:, None] * jnp.asarray(turns, jnp.float32)
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)[:, :width]


def shifted(x_BHTN: Array, Tk: int) -> Array:
  """Picks the distance of each query and key: x[.., i, Tq - 1 - i + j] for query i and key j,
  [B, H, Tq, Tk]; the N distances fall from Tk - 1 on, and keys after them get some number.
  With one more column, rows read as one array shift by one against each other (the appendix of the
  paper); nothing is gathered."""
  B, H, Tq, N = x_BHTN.shape
  flat = jnp.pad(x_BHTN, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(B, H, -1)
  flat = jax.lax.slice_in_dim(flat, Tq - 1, Tq - 1 + Tq * N, axis=2)
  return flat.reshape(B, H, Tq, N)[..., :Tk]
