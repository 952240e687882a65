"""Multi-head self-attention inside segments, and the one place that picks its implementation."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models import common
from bert_jax.models.dropout import Dropout


@jax.custom_vjp
def dot_scores(q_BTHd, k_BTHd):
  """q k' for each head, [B, H, T, T] in float32. Its gradient is rounded to the type of q and k
  before it is multiplied with them, as any other gradient is: left alone, JAX would keep it in
  float32 and multiply in float32."""
  return jnp.einsum('bqhd,bkhd->bhqk', q_BTHd, k_BTHd, preferred_element_type=jnp.float32)


def _dot_scores_forward(q_BTHd, k_BTHd):
  return dot_scores(q_BTHd, k_BTHd), (q_BTHd, k_BTHd)


def _dot_scores_backward(operands, gradient_BHTT):
  q_BTHd, k_BTHd = operands
  gradient_BHTT = gradient_BHTT.astype(q_BTHd.dtype)
  return (
    jnp.einsum('bhqk,bkhd->bqhd', gradient_BHTT, k_BTHd),
    jnp.einsum('bhqk,bqhd->bkhd', gradient_BHTT, q_BTHd),
  )


dot_scores.defvjp(_dot_scores_forward, _dot_scores_backward)


def attend(q_BTHd, k_BTHd, v_BTHd, segment_ids_BT, *, implementation, dropout):
  """softmax(q k' / sqrt(d)) v where a token sees the tokens of its own segment and no padding.

  q, k, v: [B, T, H, d]. segment_ids: [B, T], 0 is padding; a padded query gets some finite value
  that nobody reads. dropout: a function on the attention probabilities [B, H, T, T]; only 'einsum'
  can apply it. implementation: 'einsum' is written out below; 'xla' and 'cudnn' are
  jax.nn.dot_product_attention's. Returns [B, T, H, d]. Softmax is float32 in all of them.
  """
  mask_BTT = segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :]
  mask_BTT &= (segment_ids_BT > 0)[:, None, :]
  if implementation != 'einsum':
    return jax.nn.dot_product_attention(
      q_BTHd, k_BTHd, v_BTHd, mask=mask_BTT[:, None], implementation=implementation
    )
  scores = dot_scores(q_BTHd, k_BTHd) / math.sqrt(q_BTHd.shape[-1])
  scores = jnp.where(mask_BTT[:, None], scores, jnp.finfo(jnp.float32).min)
  probabilities = dropout(jax.nn.softmax(scores, axis=-1).astype(v_BTHd.dtype))
  return jnp.einsum('bhqk,bkhd->bqhd', probabilities, v_BTHd)


class SelfAttention(nn.Module):
  """x [B, T, D], segment_ids [B, T] -> [B, T, D]. Kernels are 2-D, as in released checkpoints."""

  config: common.ModelConfig

  @nn.compact
  def __call__(self, x_BTD, segment_ids_BT, deterministic):
    config = self.config

    def heads(name):
      y_BTD = common.dense(config, config.hidden_size, name)(x_BTD)
      return y_BTD.reshape(*y_BTD.shape[:2], config.num_attention_heads, config.head_size)

    out_BTHd = attend(
      heads('query'),
      heads('key'),
      heads('value'),
      segment_ids_BT,
      implementation=config.attention_implementation,
      dropout=Dropout(config.attention_probs_dropout_prob, deterministic),
    )
    return common.dense(config, config.hidden_size, 'output')(out_BTHd.reshape(x_BTD.shape))
