"""Relative positions of Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860, 3.3).

The score of query i and key j is, before it is divided by sqrt(d), the sum of four terms,

  q_i . k_j  +  q_i . W r(i - j)  +  u . k_j  +  v . W r(i - j)

where r(s) is the sinusoidal encoding of the distance s, and the matrix W and the vectors u and v
are learned, here by each layer (`untie_r` of the released code). Keys that come later have negative
distances (XLNet, Yang et al. 2019).

B batch, Tq queries, Tk keys, H heads, d size of a head, D hidden size, N distances.
"""

import math
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


class Relative(nn.Module):
  """The scores of relative positions: (q + u, the terms with r [B, H, Tq, Tk] / sqrt(d)).
  The queries are the last Tq of the keys, or, with places by row (decoding), anywhere in them."""

  config: ModelConfig
  deterministic: bool

  @nn.compact
  def __call__(self, q_BTHd: Array, pattern: Pattern) -> tuple[Array, Array]:
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
    # Rows and queries are one dimension: see MaskedLMHead.
    q_v_XHd = ((q_BTHd + v_Hd) / math.sqrt(d)).reshape(-1, H, d)
    x_HXN = jnp.einsum('xhd,nhd->hxn', q_v_XHd, r_NHd, preferred_element_type=jnp.float32)
    x_BHTN = x_HXN.reshape(H, q_BTHd.shape[0], Tq, N).swapaxes(0, 1)
    places = pattern.queries.places
    if places is not None and places.ndim == 2:
      at_BTT = jnp.clip(Tk - 1 - distance(pattern), 0, N - 1)
      return q_BTHd + u_Hd, jnp.take_along_axis(x_BHTN, at_BTT[:, None], axis=-1)
    return q_BTHd + u_Hd, shifted(x_BHTN, Tk)


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
