"""Relative positions with scores of their own: of Transformer-XL, of DeBERTa, of T5 and MPNet.

The score of query i and key j is, in Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860,
3.3) and before it is divided by sqrt(d), the sum of four terms,

  q_i . k_j  +  q_i . W r(i - j)  +  u . k_j  +  v . W r(i - j)

where r(s) is the sinusoidal encoding of the distance s, and the matrix W and the vectors u and v
are learned, here by each layer (`untie_r` of the released code). Keys that come later have negative
distances (XLNet, Yang et al. 2019).

In DeBERTa's disentangled attention (He et al. 2020, https://arxiv.org/abs/2006.03654, 3.1) it is,
before it is divided by the root of d times their number, the sum of up to three,

  q_i . k_j  +  q_i . K r(i - j)  +  k_j . Q r(i - j)

content to content, content to position (c2p) and position to content (p2c). There r(s) is a learned
vector, from one table of all layers, and K and Q are the layer's own projections of keys and
queries (`share_att_key` of the released code). Distant tokens share vectors by the logarithm of
their distance (He et al. 2021, https://arxiv.org/abs/2111.09543).

In T5 (Raffel et al. 2019, https://arxiv.org/abs/1910.10683, 2.1) it is q_i . k_j + b(i - j), not
divided, where b is a learned number for each head, from one table of all layers. Distant tokens
share it by the logarithm of their distance. MPNet (Song et al. 2020, https://arxiv.org/abs/2004.09297)
adds b to scores that are divided, and learned positions to its embeddings.

B batch, Tq queries, Tk keys, H heads, d size of a head, D hidden size, N distances, R rows.
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
  [B, Tk, H, d], their Pattern and the layer's projections; it returns (the queries whose products
  with the keys, divided by sqrt(d), are the scores; what is then added to these, which broadcasts
  to [B, H, Tq, Tk]). The queries are the last Tq of the keys, or, with places by row (decoding),
  anywhere in them."""

  config: ModelConfig
  deterministic: bool


class Relative(OwnScores):
  """Transformer-XL's scores: (q + u, the terms with r / sqrt(d))."""

  @nn.compact
  def __call__(
    self, q_BTHd: Array, k_BTHd: Array, pattern: Pattern, project: Project
  ) -> tuple[Array, Array]:
    config = self.config
    _, Tq, H, d = q_BTHd.shape
    u_Hd, v_Hd = (
      self.param(name, layers.initializer(config), (H * d,)).astype(q_BTHd.dtype).reshape(H, d)
      for name in ('content_bias', 'position_bias')
    )
    Tk = pattern.keys.segment_ids.shape[1]
    later = 0 if is_constant(pattern.causal, True) else Tq - 1
    N = Tk + later
    # In a program that is exported Tk is symbolic, not an int.
    distances_N = Tk - 1 - (np if isinstance(Tk, int) else jnp).arange(N)
    r_ND = sinusoids(distances_N, H * d)
    r_ND = Dropout(config.hidden_dropout_prob, self.deterministic, shared=True)(r_ND)
    r_NHd = layers.dense(config, H * d, 'distance', bias=False)(r_ND).reshape(-1, H, d)
    scores = _scores((q_BTHd + v_Hd) / math.sqrt(d), r_NHd, Tk, _places(pattern, Tk, N))
    return q_BTHd + u_Hd, scores


class Distances(nn.Module):
  """DeBERTa's vectors of relative distances, [R, D] in `config.dtype`: a table, and a norm."""

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
    config = self.config
    Tq, Tk = q_BTHd.shape[1], k_BTHd.shape[1]
    names = config.pos_att_type.split('|')
    terms = 1 + len(names)
    size = math.sqrt(terms * q_BTHd.shape[-1])
    drop = Dropout(config.hidden_dropout_prob, self.deterministic, shared=True)
    r_RD = drop(pattern.queries.distances)
    distances_N = (np if isinstance(Tk, int) else jnp).arange(1 - Tq, Tk)
    r_ND = r_RD[rows_of(config, distances_N)]
    at_BTT = _places(pattern, Tk, Tq + Tk - 1)
    scores = jnp.zeros(())
    if 'c2p' in names:
      scores += _scores(q_BTHd / size, project('key', r_ND[::-1]), Tk, at_BTT)
    if 'p2c' in names:  # a row for each key
      at_BTT = None if at_BTT is None else (Tq + Tk - 2 - at_BTT).swapaxes(1, 2)
      scores += _scores(k_BTHd / size, project('query', r_ND), Tq, at_BTT).swapaxes(2, 3)
    return q_BTHd / math.sqrt(terms), scores


class Biases(Distances):
  """T5's biases of relative distances, [R, H] float32: a row for each of R buckets."""

  @nn.compact
  def __call__(self) -> Array:
    config = self.config
    table = nn.Embed(
      config.distance_rows,
      config.num_attention_heads,
      embedding_init=layers.initializer(config),
      name='biases',
    )
    return table.embedding


class RelativeBias(OwnScores):
  """T5's and MPNet's scores, from the biases in pattern.queries.distances."""

  @nn.compact
  def __call__(
    self, q_BTHd: Array, k_BTHd: Array, pattern: Pattern, project: Project
  ) -> tuple[Array, Array]:
    (_, Tq, H, d), Tk = q_BTHd.shape, k_BTHd.shape[1]
    distances_N = Tk - 1 - (np if isinstance(Tk, int) else jnp).arange(Tq + Tk - 1)
    b_NH = jnp.take(pattern.queries.distances, buckets_of(self.config, distances_N), axis=0)
    b_BHTN = jnp.broadcast_to(b_NH.T[None, :, None], (1, H, Tq, len(b_NH)))
    scores = _picked(b_BHTN, Tk, _places(pattern, Tk, Tq + Tk - 1))
    if self.config.position_embeddings == 'relative_bias':  # T5's are not divided
      q_BTHd *= math.sqrt(d)
    return q_BTHd, scores


def buckets_of(config: ModelConfig, distances: np.ndarray | Array) -> Array:
  """The rows of T5's table for distances, whole numbers of any shape: those from 0 on of earlier
  keys and of the token itself, then those of later keys."""
  farthest, side = config.max_relative_positions, config.distance_rows // 2
  s = np.arange(farthest + 1)
  if config.position_buckets:
    near = side // 2
    ratios = np.maximum(s, near).astype(np.float32) / np.float32(near)
    steps = np.log(ratios) / np.float32(math.log(farthest / near)) * np.float32(side - near)
    s = np.where(s < near, s, near + steps.astype(int))
  rows = jnp.asarray(s.clip(0, side - 1), jnp.int32)[abs(distances).clip(0, farthest)]
  return rows + side * (distances < 0)


def rows_of(config: ModelConfig, distances: np.ndarray | Array) -> Array:
  """The rows of DeBERTa's table for distances, whole numbers of any shape; 0 is in the middle."""
  farthest, side = config.max_relative_positions, config.distance_rows // 2
  s = np.arange(-farthest, farthest + 1)
  if config.position_buckets:
    near = config.position_buckets // 2
    ratios = np.maximum(np.abs(s), near).astype(np.float32) / np.float32(near)
    steps = np.log(ratios) / np.log(np.float32((farthest - 1) / near)) * np.float32(near - 1)
    s = np.where(np.abs(s) <= near, s, np.sign(s) * (np.ceil(steps).astype(int) + near))
  rows = jnp.asarray((s + side).clip(0, 2 * side - 1), jnp.int32)
  return rows[distances.clip(-farthest, farthest) + farthest]


def _places(pattern, Tk, N):
  """[B, Tq, Tk], which of N distances, falling from Tk - 1 on, each query has from each key, if
  places differ by row, or None."""
  places = pattern.queries.places
  is_by_row = places is not None and places.ndim == 2
  return jnp.clip(Tk - 1 - distance(pattern), 0, N - 1) if is_by_row else None


def _scores(x_BTHd, r_NHd, columns, at_BTT):
  """The products [B, H, T, columns] float32 of queries or keys x with the vectors r of N distances:
  those at at_BTT, or, without, as `shifted` picks them."""
  (B, T, H, d), N = x_BTHd.shape, r_NHd.shape[0]
  # Rows and queries are one dimension: see MaskedLMHead.
  x_XHd = x_BTHd.reshape(-1, H, d)
  x_HXN = jnp.einsum('xhd,nhd->hxn', x_XHd, r_NHd, preferred_element_type=jnp.float32)
  return _picked(x_HXN.reshape(H, B, T, N).swapaxes(0, 1), columns, at_BTT)


def _picked(x_BHTN, columns, at_BTT):
  """Of numbers for N distances those at at_BTT [B, T, columns], or, without, see `shifted`."""
  if at_BTT is not None:
    return jnp.take_along_axis(x_BHTN, at_BTT[:, None], axis=-1)
  return shifted(x_BHTN, columns)


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
