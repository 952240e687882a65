"""Heads over an encoder: pooler, classifier, masked-LM head.

Each reads the hidden states of some tokens, such as [CLS] or the masked ones (`gather_positions`).
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
  """Vectors [B, N, D] -> dropout -> logits [B, N, num_labels].
  Always in float32: the product is tiny, and bfloat16 would make many logits equal."""

  config: common.ModelConfig
  num_labels: int

  @nn.compact
  def __call__(self, x_BND, deterministic=True):
    x_BND = Dropout(self.config.hidden_dropout_prob, deterministic)(x_BND)
    init = common.initializer(self.config)
    return nn.Dense(self.num_labels, dtype=jnp.float32, kernel_init=init, name='dense')(x_BND)


class MaskedLMHead(nn.Module):
  """Hidden states of masked tokens [B, K, D] -> float32 logits [B, K, V].
  Dense layer, activation, norm, then the product with the word embeddings (embedding_VD, or a
  table of this head if not tie_word_embeddings), plus a bias for each word. V is the padded
  vocabulary; rows without a word get the lowest finite logit, so no probability."""

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
    table_VD = embedding_VD.astype(x_BKD.dtype)
    logits_BKV = jnp.einsum('bkd,vd->bkv', x_BKD, table_VD, preferred_element_type=jnp.float32)
    logits_BKV += bias_V
    return jnp.where(jnp.arange(V) < config.vocab_size, logits_BKV, jnp.finfo(jnp.float32).min)


def head_flops(config, vectors, *, vocabulary=False):
  """Floating-point operations of a D x D layer on so many vectors, forward pass only; vocabulary:
  and of the product with the word embeddings after it."""
  D = config.hidden_size
  return 2 * vectors * D * (D + (config.vocab_size if vocabulary else 0))


def count_parameters(params):
  """How many numbers a tree of parameters (or of their shapes) holds."""
  return sum(x.size for x in jax.tree.leaves(params))
