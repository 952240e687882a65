"""Multi-head self-attention inside segments, and the one place that picks its implementation."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models import common
from bert_jax.models.dropout import drop


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def softmax_attention(q_BTHd, k_BTHd, v_BTHd, segment_ids_BT, key, rate):
  """softmax(q k' / sqrt(d)) v inside segments, with dropout of the probabilities at `rate`.

  Its gradient is written out for three reasons. The sum of the probabilities times their gradients,
  which a softmax needs, is that of the output times its gradient (Dao et al. 2022, FlashAttention,
  appendix B.2), so one pass over [B, H, T, T] is saved. Products are in the type of q, not in the
  float32 of the scores. Probabilities are kept in that type too.
  """
  return _attention_forward(q_BTHd, k_BTHd, v_BTHd, segment_ids_BT, key, rate)[0]


def probabilities(q_BTHd, k_BTHd, segment_ids_BT):
  """How much each token looks at each, [B, H, T, T] float32."""
  q_BTHd /= math.sqrt(q_BTHd.shape[-1])  # far fewer numbers than there are scores
  scores = jnp.einsum('bqhd,bkhd->bhqk', q_BTHd, k_BTHd, preferred_element_type=jnp.float32)
  scores = jnp.where(seen(segment_ids_BT)[:, None], scores, jnp.finfo(jnp.float32).min)
  return jax.nn.softmax(scores, axis=-1)


def _attention_forward(q_BTHd, k_BTHd, v_BTHd, segment_ids_BT, key, rate):
  p_BHTT = probabilities(q_BTHd, k_BTHd, segment_ids_BT).astype(v_BTHd.dtype)
  out_BTHd = jnp.einsum('bhqk,bkhd->bqhd', drop(p_BHTT, key, rate), v_BTHd)
  return out_BTHd, (q_BTHd, k_BTHd, v_BTHd, key, p_BHTT, out_BTHd)


def _attention_backward(rate, saved, g_BTHd):
  q_BTHd, k_BTHd, v_BTHd, key, p_BHTT, out_BTHd = saved
  dv_BTHd = jnp.einsum('bhqk,bqhd->bkhd', drop(p_BHTT, key, rate), g_BTHd)
  dp_BHTT = jnp.einsum('bqhd,bkhd->bhqk', g_BTHd, v_BTHd, preferred_element_type=jnp.float32)
  # The sum over d of each head, as a product with zeros and ones: nearly free on a TPU.
  H, d = q_BTHd.shape[2:]
  heads_HdH = jnp.eye(H, dtype=g_BTHd.dtype)[:, None].repeat(d, axis=1)
  products_BTHd = g_BTHd * out_BTHd
  sum_BHT = jnp.einsum(
    'bthd,hdg->bgt', products_BTHd, heads_HdH, preferred_element_type=jnp.float32
  )
  ds_BHTT = (p_BHTT * (drop(dp_BHTT, key, rate) - sum_BHT[..., None])).astype(q_BTHd.dtype)
  dq_BTHd = jnp.einsum('bhqk,bkhd->bqhd', ds_BHTT, k_BTHd) / math.sqrt(d)
  dk_BTHd = jnp.einsum('bhqk,bqhd->bkhd', ds_BHTT, q_BTHd / math.sqrt(d))
  return dq_BTHd, dk_BTHd, dv_BTHd, None, None


softmax_attention.defvjp(_attention_forward, _attention_backward)


def seen(segment_ids_BT):
  """[B, T, T]: which tokens a token sees, those of its own segment that are no padding."""
  same = segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :]
  return same & (segment_ids_BT > 0)[:, None, :]


def attend(q_BTHd, k_BTHd, v_BTHd, segment_ids_BT, *, implementation, key=None, rate=0.0):
  """softmax(q k' / sqrt(d)) v where a token sees the tokens of its own segment and no padding.

  q, k, v: [B, T, H, d]. segment_ids: [B, T], 0 is padding; a padded query gets some finite value
  that nobody reads. key, rate: dropout of the probabilities [B, H, T, T]; only 'einsum' can do it.
  implementation: 'einsum' is softmax_attention above; 'xla' and 'cudnn' are
  jax.nn.dot_product_attention's; 'splash' is Pallas's kernel for TPUs, which never holds the
  probabilities of a row at once, and 'xla' where there is no TPU or T is no multiple of 128.
  Returns [B, T, H, d]. Softmax is float32 in all of them.
  """
  if implementation == 'splash' and q_BTHd.shape[1] % 128:
    implementation = 'xla'
  if implementation == 'splash':
    return jax.lax.platform_dependent(
      q_BTHd, k_BTHd, v_BTHd, segment_ids_BT, tpu=splash,
      default=functools.partial(attend, implementation='xla'),
    )  # fmt: skip
  if implementation == 'einsum':
    return softmax_attention(q_BTHd, k_BTHd, v_BTHd, segment_ids_BT, key, rate)
  mask_B1TT = seen(segment_ids_BT)[:, None]
  return jax.nn.dot_product_attention(
    q_BTHd, k_BTHd, v_BTHd, mask=mask_B1TT, implementation=implementation
  )


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
    rate = 0.0 if deterministic else config.attention_probs_dropout_prob

    def heads(name):
      y_BTD = common.dense(config, config.hidden_size, name)(x_BTD)
      return y_BTD.reshape(*y_BTD.shape[:2], config.num_attention_heads, config.head_size)

    q_BTHd, k_BTHd, v_BTHd = heads('query'), heads('key'), heads('value')
    if self.is_mutable_collection(
      'intermediates'
    ):  # someone wants to see it: predict/hidden_states.py
      self.sow('intermediates', 'probabilities', probabilities(q_BTHd, k_BTHd, segment_ids_BT))
    out_BTHd = attend(
      q_BTHd,
      k_BTHd,
      v_BTHd,
      segment_ids_BT,
      implementation=config.attention_implementation,
      key=self.make_rng('dropout') if rate else None,
      rate=rate,
    )
    return common.dense(config, config.hidden_size, 'output')(out_BTHd.reshape(x_BTD.shape))
