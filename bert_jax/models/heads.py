"""What sits on top of an encoder: pooler, classifier, masked-LM head.

Each reads the hidden states of chosen tokens, as `gather_positions` picks them: those of [CLS], or
of the masked tokens.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models import common
from bert_jax.models.dropout import Dropout


def gather_positions(x_BTD, positions_BK):
  """x [B, T, D], positions [B, K] -> the vectors at those positions, [B, K, D]."""
  return jnp.take_along_axis(x_BTD, positions_BK[:, :, None], axis=1)


class Pooler(nn.Module):
  """The hidden states of each example's [CLS], [B, N, D] -> tanh of a dense layer, [B, N, D]."""

  config: common.ModelConfig

  @nn.compact
  def __call__(self, x_BND):
    return jnp.tanh(common.dense(self.config, self.config.hidden_size, 'dense')(x_BND))


class Classifier(nn.Module):
  """Pooled vectors [B, N, D] -> logits [B, N, num_labels], after dropout while training.

  In float32 whatever config.dtype is: the product is tiny, and bfloat16 logits tie.
  """

  config: common.ModelConfig
  num_labels: int

  @nn.compact
  def __call__(self, x_BND, deterministic=True):
    x_BND = Dropout(self.config.hidden_dropout_prob, deterministic)(x_BND)
    init = common.initializer(self.config)
    return nn.Dense(self.num_labels, dtype=jnp.float32, kernel_init=init, name='dense')(x_BND)


class MaskedLMHead(nn.Module):
  """Hidden states of masked tokens [B, K, D] -> float32 logits [B, K, V].

  Dense layer, activation, norm, then the product with the word embeddings (`embedding` [V, D]; or,
  with tie_word_embeddings=False, with a table of this head), plus a bias for each word. V is the
  padded vocabulary: its rows without a word get the lowest finite logit, so take no probability.
  """

  config: common.ModelConfig

  @nn.compact
  def __call__(self, x_BKD, embedding_VD):
    config = self.config
    V = config.padded_vocab_size
    x_BKD = common.dense(config, config.hidden_size, 'transform')(x_BKD)
    x_BKD = common.norm(config)(common.ACTIVATIONS[config.hidden_act](x_BKD))
    bias_V = self.param('bias', nn.initializers.zeros, (V,))
    if not config.tie_word_embeddings:
      embedding_VD = self.param('decoder', common.initializer(config), (V, config.hidden_size))
    logits_BKV = (
      jnp.einsum(
        'bkd,vd->bkv', x_BKD, embedding_VD.astype(x_BKD.dtype), preferred_element_type=jnp.float32
      )
      + bias_V
    )
    return jnp.where(jnp.arange(V) < config.vocab_size, logits_BKV, jnp.finfo(jnp.float32).min)


def head_flops(config, vectors, *, vocabulary=False):
  """Floating-point operations of a forward pass of a D x D layer over so many vectors; vocabulary:
  and of the product with the word embeddings behind it."""
  D = config.hidden_size
  return 2 * vectors * D * (D + (config.vocab_size if vocabulary else 0))


def count_parameters(params):
  """How many numbers a tree of parameters (or of their shapes) holds."""
  return sum(x.size for x in jax.tree.leaves(params))
