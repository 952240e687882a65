"""Kernels of attention: functions of arrays and of a description (tokens.Pattern).

B batch, Tq queries, Tk keys (T if they are the same), H heads, d size of a head.
"""

import dataclasses
import functools
import math
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import layout

from bert_jax.models.dropout import keep, keep_mask
from bert_jax.models.tokens import Pattern, sees

QKV = tuple[Array, Array, Array]  # queries [B, Tq, H, d], keys and values [B, Tk, H, d]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def softmax_attention(
  qkv: QKV, bias: Array | None, pattern: Pattern, key: Array | None, rate: float, to_itself: bool
) -> Array:
  """softmax(q k' / sqrt(d) + bias) v where `pattern` lets a query see a key (pattern.bias is not
  read), with dropout of the probabilities at `rate`. to_itself: are the queries the keys? Then
  only padding sees nothing, no loss depends on it, and the gradient of the scores needs no mask.

  The gradient is written out for three reasons. The softmax needs the sum of probability times
  gradient, which equals the sum of output times gradient of the output (Dao et al. 2022,
  FlashAttention, appendix B.2): one pass over [B, H, Tq, Tk] less. Matrix products run in the type
  of q, not in the float32 of the scores. Probabilities are stored in that type too."""
  return _attention_forward(qkv, bias, pattern, key, rate, to_itself)[0]


def probabilities(q_BTHd: Array, k_BTHd: Array, bias: Array | None, pattern: Pattern) -> Array:
  """The attention probabilities of each query over the keys, [B, H, Tq, Tk] float32."""
  q_BTHd = q_BTHd / math.sqrt(q_BTHd.shape[-1])  # there are far more scores to divide
  scores = jnp.einsum('bqhd,bkhd->bhqk', q_BTHd, k_BTHd, preferred_element_type=jnp.float32)
  if bias is not None:
    scores += bias
  scores = jnp.where(sees(pattern)[:, None], scores, jnp.finfo(jnp.float32).min)
  return jax.nn.softmax(scores, axis=-1)


def _attention_forward(qkv, bias, pattern, key, rate, to_itself):
  q_BTHd, k_BTHd, v_BTHd = qkv
  p_BHTT = probabilities(q_BTHd, k_BTHd, bias, pattern).astype(v_BTHd.dtype)
  if rate:
    p_BHTT = jnp.where(keep_mask(key, rate, p_BHTT.shape), p_BHTT, -p_BHTT)
  out_BTHd = jnp.einsum('bhqk,bkhd->bqhd', _dropped(abs(p_BHTT), p_BHTT, rate), v_BTHd)
  return out_BTHd, (qkv, bias, None if to_itself else pattern, p_BHTT, out_BTHd)


def _dropped(x_BHTT, p_BHTT, rate):
  """x with dropout, whose mask is in the signs of the probabilities: hashed once, not thrice."""
  return keep(x_BHTT, ~jnp.signbit(p_BHTT), rate) if rate else x_BHTT


def _attention_backward(rate, to_itself, saved, g_BTHd):
  (q_BTHd, k_BTHd, v_BTHd), bias, pattern, p_BHTT, out_BTHd = saved
  dv_BTHd = jnp.einsum('bhqk,bqhd->bkhd', _dropped(abs(p_BHTT), p_BHTT, rate), g_BTHd)
  dp_BHTT = jnp.einsum('bqhd,bkhd->bhqk', g_BTHd, v_BTHd, preferred_element_type=jnp.float32)
  # The sum over d of each head, as a product with zeros and ones: nearly free on a TPU.
  H, d = q_BTHd.shape[2:]
  heads_HdH = jnp.eye(H, dtype=g_BTHd.dtype)[:, None].repeat(d, axis=1)
  product_BTHd = g_BTHd * out_BTHd
  sum_BHT = jnp.einsum('bthd,hdg->bgt', product_BTHd, heads_HdH, preferred_element_type=jnp.float32)
  ds_BHTT = abs(p_BHTT) * (_dropped(dp_BHTT, p_BHTT, rate) - sum_BHT[..., None])
  if not to_itself:  # a query that sees no key still has probabilities, of masked keys
    ds_BHTT = jnp.where(sees(pattern)[:, None], ds_BHTT, 0)
  dbias = None if bias is None else _summed_to(ds_BHTT, bias)
  ds_BHTT = ds_BHTT.astype(q_BTHd.dtype)
  dq_BTHd = jnp.einsum('bhqk,bkhd->bqhd', ds_BHTT, k_BTHd) / math.sqrt(d)
  dk_BTHd = jnp.einsum('bhqk,bqhd->bkhd', ds_BHTT, q_BTHd / math.sqrt(d))
  return (dq_BTHd, dk_BTHd, dv_BTHd), dbias, None, None


def _summed_to(ds_BHTT, bias):
  """Sums the gradient of the scores [B, H, Tq, Tk] to the shape of the bias added to them."""
  ds = ds_BHTT.sum(range(4 - bias.ndim))
  axes = [axis for axis, size in enumerate(bias.shape) if size == 1]
  return ds.sum(axes, keepdims=True).astype(bias.dtype)


softmax_attention.defvjp(_attention_forward, _attention_backward)


KERNELS = 'auto', 'einsum', 'xla', 'cudnn', 'splash'  # values of model.attention_implementation
LARGEST_BLOCK, OF_WINDOWS, LANES = 1024, 512, 128  # of splash, in tokens
TOKENS_INNERMOST = layout.Layout(major_to_minor=(0, 2, 3, 1))  # of [B, T, H, d]


def attend(
  qkv: QKV, pattern: Pattern, *, kernel: str, key: Array | None = None, rate: float = 0.0
) -> Array:
  """Attention by one of the KERNELS: softmax(q k' / sqrt(d) + bias) v, by a Pattern: [B, Tq, H, d].

  A query that sees nothing (padding) gets some finite value, on which no loss may depend. key,
  rate: dropout of the probabilities. kernel: 'einsum' is softmax_attention above; 'xla' and 'cudnn'
  are implementations of jax.nn.dot_product_attention; 'splash' is Pallas's kernel for TPUs, which
  never holds all probabilities of a row; without a TPU 'xla' runs instead. The softmax is float32
  in all of them. What each kernel cannot do, and which one 'auto' is: see refusals.py."""
  if kernel == 'splash':
    if on_tpu():
      return splash(qkv, pattern)
    kernel = 'xla'
  q_BTHd, k_BTHd, v_BTHd = qkv
  bias = pattern.bias
  if kernel == 'einsum':
    to_itself = pattern.queries is pattern.keys
    without_bias = dataclasses.replace(pattern, bias=None)
    return softmax_attention(qkv, bias, without_bias, key, rate, to_itself)
  if bias is not None:
    bias = jnp.expand_dims(bias, range(4 - bias.ndim))
  return jax.nn.dot_product_attention(
    q_BTHd, k_BTHd, v_BTHd, bias, mask=sees(pattern)[:, None], implementation=cast(Any, kernel)
  )


def on_tpu() -> bool:
  """Is what is traced for a TPU: the mesh's devices or, without one, those that JAX finds?"""
  device = jax.sharding.get_abstract_mesh().abstract_device
  if device is None:
    return jax.default_backend() == 'tpu'
  return device.device_kind.startswith('TPU')


def splash(qkv: QKV, pattern: Pattern, interpret: bool = False) -> Array:
  """Attention by Pallas's splash attention kernel. Rows are padded to whole blocks. XLA splits no
  kernel over devices, so shard_map does it, by the logical axes of rows and heads. A TPU stores
  numbers of the innermost axis by the 128, so that is the axis of tokens and not a head's 64.
  interpret: run it slowly on any device."""
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

  q_BTHd, k_BTHd, v_BTHd = qkv
  queries_BT, keys_BT = pattern.queries.segment_ids, pattern.keys.segment_ids
  window = pattern.window
  block_q, Tq = _blocks(q_BTHd.shape[1], window)
  block_kv, Tk = _blocks(k_BTHd.shape[1], window)
  sizes = kernels.BlockSizes(
    block_q=block_q,
    block_q_dkv=block_q,
    block_q_dq=block_q,
    block_kv=block_kv,
    block_kv_compute=block_kv,
    block_kv_dkv=block_kv,
    block_kv_dkv_compute=block_kv,
    block_kv_dq=block_kv,
    q_layout=kernels.QKVLayout.SEQ_MINOR,
    k_layout=kernels.QKVLayout.SEQ_MINOR,
    v_layout=kernels.QKVLayout.SEQ_MINOR,
  )
  shape = Tq, Tk
  if window:
    sides = (window - 1, 0) if pattern.causal else (window // 2, window // 2)
    mask = masks.LocalMask(shape, sides, offset=0)
  else:
    mask = masks.CausalMask(shape) if pattern.causal else masks.FullMask(shape)

  def on_a_device(q_BTHd, k_BTHd, v_BTHd, queries_BT, keys_BT):
    T, H, d = q_BTHd.shape[1:]
    segments = kernels.SegmentIds(_padded(queries_BT, Tq), _padded(keys_BT, Tk))
    q_BTHd = _padded(q_BTHd / math.sqrt(d), Tq)
    qkv = q_BTHd, _padded(k_BTHd, Tk), _padded(v_BTHd, Tk)
    q, k, v = (x.swapaxes(1, 2) for x in layout.with_layout_constraint(qkv, TOKENS_INNERMOST))
    by_head = masks.MultiHeadMask([mask] * H)
    kernel = kernels.make_splash_mha_single_device(by_head, block_sizes=sizes, interpret=interpret)
    out: Any = jax.vmap(kernel)(q, k, v, segments)
    return out.swapaxes(1, 2)[:, :T]

  mesh = jax.sharding.get_abstract_mesh()
  left = {*mesh.axis_names} - {*mesh.manual_axes}
  run: Any = on_a_device
  if left:
    heads = nn.logical_to_mesh_axes(('batch', None, 'heads', None))
    rows = nn.logical_to_mesh_axes(('batch', None))
    run = jax.shard_map(
      on_a_device,
      in_specs=(heads, heads, heads, rows, rows),
      out_specs=heads,
      axis_names=left,
      check_vma=False,
    )
  return run(q_BTHd, k_BTHd, v_BTHd, queries_BT, keys_BT)


def _blocks(length, window):
  """(size of a block of splash, tokens of a row that is padded to whole blocks). Few large blocks,
  since each costs something at its beginning, but in a row of several those outside of a window are
  left out."""
  largest = OF_WINDOWS if window and length > LARGEST_BLOCK else LARGEST_BLOCK
  number = -(-length // largest)
  size = -(-length // (number * LANES)) * LANES
  return size, number * size


def _padded(x_BT, length):
  """Rows [B, T, ...] with zeros up to `length`."""
  return jnp.pad(x_BT, [(0, 0), (0, length - x_BT.shape[1])] + [(0, 0)] * (x_BT.ndim - 2))
