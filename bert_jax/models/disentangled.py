"""Disentangled attention (DeBERTa, He et al. 2020, https://arxiv.org/abs/2006.03654, 3.1).

A token is two vectors, its content and its position relative to others. The score of query i and
key j is, before it is divided by the root of d times the number of terms, the sum of up to three,

  q_i . k_j  +  q_i . K r(i - j)  +  k_j . Q r(i - j)

content to content, content to position (c2p) and position to content (p2c). r(s) is a learned
vector of the distance s, from one table of all layers. Q and K are the layer's own projections of
queries and keys (`share_att_key` of the released code). Distant tokens share vectors by the
logarithm of their distance, as in the second and third version (https://arxiv.org/abs/2111.09543).

B batch, Tq queries, Tk keys, H heads, d size of a head, D hidden size, R rows of the table,
N distances.
"""

import math

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.models import layers
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.relative import OwnScores, Project, has_places_by_row, products, shifted
from bert_jax.models.tokens import Pattern, distance


class Distances(nn.Module):
  """The vectors of relative distances, [R, D] in `config.dtype`: a table, and a norm."""

  config: ModelConfig

  @nn.compact
  def __call__(self) -> Array:
    config = self.config
    shape = config.distance_rows, config.hidden_size
    return layers.norm(config)(self.param('embedding', layers.initializer(config), shape))


class Disentangled(OwnScores):
  """DeBERTa's scores, from the vectors in pattern.queries.distances."""

  @nn.compact
  def __call__(
    self, q_BTHd: Array, k_BTHd: Array, pattern: Pattern, project: Project
  ) -> tuple[Array, Array]:
    config, (Tq, Tk) = self.config, (q_BTHd.shape[1], k_BTHd.shape[1])
    names = config.pos_att_type.split('|')
    r_RD = pattern.queries.distances
    r_RD = Dropout(config.hidden_dropout_prob, self.deterministic, shared=True)(r_RD)
    terms = 1 + len(names)
    q_BTHd = q_BTHd / math.sqrt(terms)
    k_BTHd = k_BTHd / math.sqrt(terms)  # as it meets the vectors of distances alone
    by_row = has_places_by_row(pattern)
    # In a program that is exported T is symbolic, not an int.
    at = distance(pattern) if by_row else (np if isinstance(Tk, int) else jnp).arange(1 - Tq, Tk)
    at = rows_of(config, at)
    scores = jnp.zeros((), jnp.float32)
    if 'c2p' in names:
      k_RHd = project('key', r_RD)
      if by_row:
        scores += jnp.take_along_axis(products(q_BTHd, k_RHd), at[:, None], axis=-1)
      else:
        scores += shifted(products(q_BTHd, k_RHd[at[::-1]]), Tk)
    if 'p2c' in names:
      q_RHd = project('query', r_RD)
      if by_row:
        x_BHTT = jnp.take_along_axis(products(k_BTHd, q_RHd), at.swapaxes(1, 2)[:, None], axis=-1)
      else:  # for key j and query i: distance i - j + Tk - Tq
        x_BHTT = shifted(products(k_BTHd, q_RHd[at]), Tq)
      scores += x_BHTT.swapaxes(2, 3)
    return q_BTHd, scores / math.sqrt(q_BTHd.shape[-1])


def rows_of(config: ModelConfig, distances: np.ndarray | Array) -> Array:
  """The rows of the table for distances, whole numbers of any shape; in the middle lies row 0."""
  farthest, side = config.max_relative_positions, config.distance_rows // 2
  s = np.arange(-farthest, farthest + 1)
  if config.position_buckets:
    near = config.position_buckets // 2
    ratios = np.maximum(np.abs(s), near).astype(np.float32) / np.float32(near)
    steps = np.log(ratios) / np.log(np.float32((farthest - 1) / near)) * np.float32(near - 1)
    s = np.where(np.abs(s) <= near, s, np.sign(s) * (np.ceil(steps).astype(int) + near))
  rows = jnp.asarray((s + side).clip(0, 2 * side - 1), jnp.int32)
  return rows[distances.clip(-farthest, farthest) + farthest]
