"""Token ids to vectors: word + position + token type, LayerNorm, dropout (BERT, figure 2)."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from bert_jax.models import common
from bert_jax.models.dropout import Dropout


def sinusoidal(length, width):
  """The original Transformer's position table (Vaswani et al. 2017, section 3.5): [length, width].

  Even columns hold sin(position / 10000^(column / width)), odd columns the cosine of the same.
  """
  angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
  table = np.zeros((length, width), np.float32)
  table[:, 0::2] = np.sin(angle)
  table[:, 1::2] = np.cos(angle)[:, : width // 2]
  return table


class Embeddings(nn.Module):
  """input_ids, token_type_ids, position_ids [B, T] -> x [B, T, D] in `config.dtype`.

  Vectors are looked up and added in float32: the gradient of a row adds up all its tokens, and in
  bfloat16 the two rows of token types would stop at 256. Ids must lie inside their tables (nn.Embed
  turns an id past the end into NaN without a word); `rows.batches` checks every batch on the host.
  """

  config: common.ModelConfig

  @nn.compact
  def __call__(self, input_ids_BT, token_type_ids_BT, position_ids_BT, deterministic):
    config = self.config

    def embed(count, ids, name):
      return nn.Embed(
        count,
        config.hidden_size,
        dtype=jnp.float32,
        embedding_init=common.initializer(config),
        name=name,
      )(ids)

    x_BTD = embed(config.padded_vocab_size, input_ids_BT, 'word_embeddings')
    if config.type_vocab_size:
      x_BTD += embed(config.type_vocab_size, token_type_ids_BT, 'token_type_embeddings')
    if config.position_embeddings == 'learned':
      x_BTD += embed(config.max_position_embeddings, position_ids_BT, 'position_embeddings')
    elif config.position_embeddings == 'sinusoidal':
      table = sinusoidal(config.max_position_embeddings, config.hidden_size)
      x_BTD += jnp.asarray(table)[position_ids_BT]
    x_BTD = common.layer_norm(config)(x_BTD)
    return Dropout(config.hidden_dropout_prob, deterministic)(x_BTD)
