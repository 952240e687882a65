"""Multi-head self-attention inside segments, and the one place that picks its implementation."""

import functools
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
  jax.nn.dot_product_attention's; 'splash' is Pallas's kernel for TPUs, which never holds the
  probabilities of a row at once, and 'xla' where there is no TPU. Returns [B, T, H, d]. Softmax is
  float32 in all of them.
  """
  if implementation == 'splash':
    return jax.lax.platform_dependent(
      q_BTHd, k_BTHd, v_BTHd, segment_ids_BT, tpu=splash,
      default=functools.partial(attend, implementation='xla', dropout=dropout),
    )  # fmt: skip
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


def splash(q_BTHd, k_BTHd, v_BTHd, segment_ids_BT, interpret=False):
  """Attention inside segments by Pallas's splash attention kernel; T is a multiple of 128.

  A kernel is no operation that XLA could split, so the rows and heads of each device are named here
  by the model's own (logical) axes. interpret: slowly, and anywhere.
  """
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

  length = q_BTHd.shape[1]
  block = next(n for n in (512, 384, 256, 128) if length % n == 0)
  sizes = kernels.BlockSizes(
    block_q=block, block_kv=block, block_kv_compute=block,
    block_q_dkv=block, block_kv_dkv=block, block_kv_dkv_compute=block,
    block_q_dq=block, block_kv_dq=block,
  )  # fmt: skip

  def on_a_device(q_BTHd, k_BTHd, v_BTHd, segment_ids_BT):
    every = masks.MultiHeadMask([masks.FullMask((length, length))] * q_BTHd.shape[2])
    kernel = kernels.make_splash_mha_single_device(every, block_sizes=sizes, interpret=interpret)
    q, k, v = (x.swapaxes(1, 2) for x in (q_BTHd / math.sqrt(q_BTHd.shape[-1]), k_BTHd, v_BTHd))
    ids = kernels.SegmentIds(segment_ids_BT, segment_ids_BT)
    return jax.vmap(kernel)(q, k, v, ids).swapaxes(1, 2)

  if jax.sharding.get_abstract_mesh().empty:
    return on_a_device(q_BTHd, k_BTHd, v_BTHd, segment_ids_BT)
  heads = nn.logical_to_mesh_axes(('batch', None, 'heads', None))
  rows = nn.logical_to_mesh_axes(('batch', None))
  return jax.shard_map(
    on_a_device, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False
  )(q_BTHd, k_BTHd, v_BTHd, segment_ids_BT)


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
