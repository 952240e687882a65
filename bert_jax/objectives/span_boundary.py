"""The span boundary objective of SpanBERT (Joshi et al. 2020, https://arxiv.org/abs/1907.10529).

Each token of a masked span is predicted once more, from the two tokens beside the span and from its
place in it (section 3.2). As in the released code, spans that touch are one span, and only the
first 20 tokens of a span are predicted. Letters of shapes: models/config.py.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from bert_jax import models
from bert_jax.models import layers
from bert_jax.objectives.base import Batch, Params
from bert_jax.objectives.encode import apply
from bert_jax.objectives.masking import put_at

PLACES = 20  # tokens of a span that are predicted
WIDTH = 200  # width of the table of their places


def boundaries(
  positions_BK: jax.Array, weights_BK: jax.Array, length: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """(left, right, place, weights), [B, K] each, of masked tokens in rows of `length` tokens: the
  positions of the tokens beside its span, its place in the span from 0 on, and its weight, which
  becomes 0 past PLACES and if the span begins or ends the row."""
  nothing_BT = jnp.zeros((len(positions_BK), length), bool)
  masked_BT = put_at(nothing_BT, positions_BK, weights_BK > 0)
  at_T = jnp.arange(length)
  before_BT = lax.cummax(jnp.where(masked_BT, -1, at_T), axis=1)
  after_BT = lax.cummin(jnp.where(masked_BT, length, at_T), axis=1, reverse=True)
  left_BK = jnp.take_along_axis(before_BT, positions_BK, axis=1)
  right_BK = jnp.take_along_axis(after_BT, positions_BK, axis=1)
  place_BK = positions_BK - left_BK - 1
  counts_BK = (place_BK < PLACES) & (left_BK >= 0) & (right_BK < length)
  return (
    jnp.maximum(left_BK, 0),
    jnp.minimum(right_BK, length - 1),
    jnp.clip(place_BK, 0, PLACES - 1),
    weights_BK * counts_BK,
  )


class SpanBoundaryHead(nn.Module):
  """Logits [B, K, V] float32, from the hidden states [B, K, D] of the left and right boundary, the
  places [B, K] and the word embeddings [V, E]: dense, activation, norm, then a masked-LM head."""

  config: models.ModelConfig

  @nn.compact
  def __call__(
    self, left_BKD: jax.Array, right_BKD: jax.Array, place_BK: jax.Array, table_VE: jax.Array
  ) -> jax.Array:
    config = self.config
    init = layers.initializer(config)
    places = nn.Embed(PLACES, WIDTH, dtype=config.dtype, embedding_init=init, name='places')
    x = jnp.concatenate([left_BKD, right_BKD, places(place_BK)], axis=-1)
    x_BKD = layers.dense(config, config.hidden_size, 'dense')(x)
    x_BKD = layers.norm(config)(layers.ACTIVATIONS[config.hidden_act](x_BKD))
    return models.MaskedLMHead(config, name='mlm')(x_BKD, table_VE)


def init(config: models.ModelConfig, rng: jax.Array, encoder: Params) -> Any:
  """Initial parameters of a SpanBoundaryHead. encoder: the parameters of its encoder."""
  x_BKD, place_BK = jnp.zeros((1, 1, config.hidden_size)), jnp.zeros((1, 1), jnp.int32)
  table_VE = models.word_table(encoder)
  return SpanBoundaryHead(config).init(rng, x_BKD, x_BKD, place_BK, table_VE)['params']


def logits(
  config: models.ModelConfig, params: Params, hidden_BTD: jax.Array, batch: Batch
) -> tuple[jax.Array, jax.Array]:
  """(logits [B, K, V], weights [B, K]) of the masked tokens of a batch. The weight is 0 if a token
  beside the span belongs to another example (or to another part of it, if rows are cut)."""
  positions_BK = batch['masked_positions']
  left_BK, right_BK, place_BK, weights_BK = boundaries(
    positions_BK, batch['masked_weights'], hidden_BTD.shape[1]
  )

  def segment_at(at_BK):
    return jnp.take_along_axis(batch['segment_ids'], at_BK, axis=1)

  here_BK = segment_at(positions_BK)
  weights_BK *= (segment_at(left_BK) == here_BK) & (segment_at(right_BK) == here_BK)
  logits_BKV = apply(
    SpanBoundaryHead(config),
    params['sbo'],
    models.gather_positions(hidden_BTD, left_BK),
    models.gather_positions(hidden_BTD, right_BK),
    place_BK,
    models.word_table(params['encoder']),
  )
  return logits_BKV, weights_BK
