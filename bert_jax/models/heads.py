"""Heads over an encoder: pooler, classifier, projection of vectors of texts, masked-LM head.

Each reads the hidden states of some tokens, such as [CLS] or the masked ones (see pooling.py).
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.models import layers
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.embeddings import word_table


class Pooler(nn.Module):
  """Turns the hidden state of each example's [CLS] into what a classifier reads, by config.pooler:
  dense and tanh (BERT) or this activation; dense, hidden_act and norm (ModernBERT); or nothing."""

  config: ModelConfig

  @nn.compact
  def __call__(self, x_BND: Array) -> Array:
    config = self.config
    if config.pooler == 'none':
      return x_BND
    x_BND = layers.dense(config, config.hidden_size, 'dense', config.head_bias)(x_BND)
    kinds = layers.ACTIVATIONS | {'tanh': jnp.tanh}
    x_BND = kinds.get(config.pooler, layers.ACTIVATIONS[config.hidden_act])(x_BND)
    return layers.norm(config)(x_BND) if config.pooler == 'transform' else x_BND


class Classifier(nn.Module):
  """Logits [B, N, num_labels] float32 of vectors [B, N, D]: dropout and a dense layer."""

  config: ModelConfig
  num_labels: int

  @nn.compact
  def __call__(self, x_BND: Array, deterministic: bool = True) -> Array:
    config = self.config
    x_BND = Dropout(config.hidden_dropout_prob, deterministic)(x_BND)
    return layers.exact_dense(config, self.num_labels, 'dense', config.classifier_bias)(x_BND)


class Projection(nn.Module):
  """Vectors of texts [B, N, projection_size] float32 from pooled hidden states [B, N, D]: a dense
  layer and an activation, as in LaBSE (Feng et al. 2020, https://arxiv.org/abs/2007.01852)."""

  config: ModelConfig

  @nn.compact
  def __call__(self, x_BND: Array) -> Array:
    config = self.config
    activations = layers.ACTIVATIONS | {'tanh': jnp.tanh, 'none': layers.identity}
    dense = layers.exact_dense(config, config.projection_size, 'dense', config.projection_bias)
    return activations[config.projection_act](dense(x_BND))


class MaskedLMHead(nn.Module):
  """The float32 logits [B, K, V] of all words, from hidden states of masked tokens [B, K, D]: dense
  layer, activation, norm (or fewer, config.mlm_head), product with the word embeddings (or a table
  of its own), bias. Rows that pad the table to V have no word, and the lowest finite logit."""

  config: ModelConfig

  @nn.compact
  def __call__(self, x_BKD: Array, embedding_VE: Array) -> Array:
    config = self.config
    V, E, x_BKE = config.padded_vocab_size, config.embedding_width, x_BKD
    if config.mlm_head != 'none':
      x_BKE = layers.dense(config, E, 'transform', config.head_bias)(x_BKE)
      x_BKE = layers.ACTIVATIONS[config.hidden_act](x_BKE)
    if config.mlm_head == 'transform':
      x_BKE = layers.norm(config)(x_BKE)
    bias_V = self.param('bias', nn.initializers.zeros, (V,)) if config.decoder_bias else None
    if not config.tie_word_embeddings:
      embedding_VE = self.param('decoder', layers.initializer(config), (V, E))
    table_VE = embedding_VE.astype(x_BKE.dtype)
    if jax.__version_info__ < (0, 8):
      # On the CPU these versions multiply bfloat16 into float32 for two matrices only. A TPU's
      # compiler makes slower steps of this: 69.9 % of the peak for BERT-base and not 73.9.
      x_RE = x_BKE.reshape(-1, E)
      logits_RV = jnp.einsum('rd,vd->rv', x_RE, table_VE, preferred_element_type=jnp.float32)
      logits_BKV = logits_RV.reshape(*x_BKE.shape[:-1], -1)
    else:
      logits_BKV = jnp.einsum('...d,vd->...v', x_BKE, table_VE, preferred_element_type=jnp.float32)
    if bias_V is not None:
      logits_BKV += bias_V
    if config.vocab_size == V:  # a choice is an eighth of a small model's step on a CPU
      return logits_BKV
    return jnp.where(jnp.arange(V) < config.vocab_size, logits_BKV, jnp.finfo(jnp.float32).min)


def word_logits(config: ModelConfig, params: Mapping[str, Any], x_BKD: Array) -> Any:
  """Logits [B, K, V] of the MLM head. params: {'encoder': parameters with the word embeddings,
  'mlm': parameters of the head, absent if it has none}."""
  variables = {'params': params.get('mlm', {})}
  return MaskedLMHead(config).apply(variables, x_BKD, word_table(params['encoder']))


def count_parameters(params: Any) -> int:
  """The number of parameters in a tree of arrays or shapes."""
  return sum(x.size for x in jax.tree.leaves(params))
