"""The embeddings of tokens: word + token type + position, norm, dropout (BERT, figure 2).

The tables may be narrower than the model, with a dense layer after them (ALBERT, Lan et al. 2019).
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
from jax import Array

from bert_jax.models import layers
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.positions import POSITIONS


class Embeddings(nn.Module):
  """The vectors of tokens, x [B, T, D] in `config.dtype`, from three arrays of ids [B, T].
  Words are rounded to that type, as in the head. Vectors and gradients are added in the table's,
  in training float32: a sum in bfloat16 would stop growing at 256. rows/batches.py checks ids."""

  config: ModelConfig

  @nn.compact
  def __call__(
    self, ids_BT: Array, types_BT: Array | None, positions_BT: Array, deterministic: bool
  ) -> Array:
    config = self.config
    x_BTE = layers.embed(config, config.padded_vocab_size, 'word_embeddings', config.dtype)(ids_BT)
    if config.embedding_scale:
      x_BTE *= config.embedding_width**0.5
    if config.type_vocab_size:
      x_BTE += layers.embed(config, config.type_vocab_size, 'token_type_embeddings')(types_BT)
    positions = POSITIONS[config.position_embeddings]
    if positions.embed:
      x_BTE += positions.embed(config, positions_BT)
    x_BTE = layers.norm(config)(x_BTE) if config.embedding_norm else x_BTE.astype(config.dtype)
    x_BTE = Dropout(config.hidden_dropout_prob, deterministic)(x_BTE)
    if not config.embedding_size:
      return x_BTE
    return layers.dense(config, config.hidden_size, 'projection')(x_BTE)


def word_table(encoder: Mapping[str, Any]) -> Array:
  """The word embeddings [V, E] in the parameters of an encoder."""
  return encoder['embeddings']['word_embeddings']['embedding']
