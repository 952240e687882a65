"""Multi-head attention, computed from its description (tokens.Pattern) in one of several ways.

B batch, Tq queries, Tk keys (T if they are the same), H heads, d size of a head, D hidden size.
"""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models import bands, layers
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import drop
from bert_jax.models.positions import POSITIONS
from bert_jax.models.tokens import Pattern, Tokens, sees


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def softmax_attention(q_BTHd, k_BTHd, v_BTHd, bias, pattern, key, rate, to_itself=False):
  """softmax(q k' / sqrt(d) + bias) v where `pattern` lets a query see a key (pattern.bias is not
  read), with dropout of the probabilities at `rate`. to_itself: are the queries the keys? Then
  only padding sees nothing, no loss depends on it, and the gradient of the scores needs no mask.

  The gradient is written out for three reasons. The softmax needs the sum of the probabilities
  times their gradients, which equals that of the output times its gradient (Dao et al. 2022,
  FlashAttention, appendix B.2): one pass over [B, H, Tq, Tk] less. Matrix products run in the type
  of q, not in the float32 of the scores. Probabilities are stored in that type too.
  """
  return _attention_forward(q_BTHd, k_BTHd, v_BTHd, bias, pattern, key, rate, to_itself)[0]


def probabilities(q_BTHd, k_BTHd, bias, pattern):
  """The attention probabilities of each query over the keys, [B, H, Tq, Tk] float32."""
  q_BTHd = q_BTHd / math.sqrt(q_BTHd.shape[-1])  # there are far more scores to divide
  scores = jnp.einsum('bqhd,bkhd->bhqk', q_BTHd, k_BTHd, preferred_element_type=jnp.float32)
  if bias is not None:
    scores += bias
  scores = jnp.where(sees(pattern)[:, None], scores, jnp.finfo(jnp.float32).min)
  return jax.nn.softmax(scores, axis=-1)


def _attention_forward(q_BTHd, k_BTHd, v_BTHd, bias, pattern, key, rate, to_itself):
  p_BHTT = probabilities(q_BTHd, k_BTHd, bias, pattern).astype(v_BTHd.dtype)
  out_BTHd = jnp.einsum('bhqk,bkhd->bqhd', drop(p_BHTT, key, rate), v_BTHd)
  again = None if to_itself else pattern
  return out_BTHd, (q_BTHd, k_BTHd, v_BTHd, bias, again, key, p_BHTT, out_BTHd)


def _attention_backward(rate, to_itself, saved, g_BTHd):
  q_BTHd, k_BTHd, v_BTHd, bias, pattern, key, p_BHTT, out_BTHd = saved
  dv_BTHd = jnp.einsum('bhqk,bqhd->bkhd', drop(p_BHTT, key, rate), g_BTHd)
  dp_BHTT = jnp.einsum('bqhd,bkhd->bhqk', g_BTHd, v_BTHd, preferred_element_type=jnp.float32)
  # The sum over d of each head, as a product with zeros and ones: nearly free on a TPU.
  H, d = q_BTHd.shape[2:]
  heads_HdH = jnp.eye(H, dtype=g_BTHd.dtype)[:, None].repeat(d, axis=1)
  product_BTHd = g_BTHd * out_BTHd
  sum_BHT = jnp.einsum('bthd,hdg->bgt', product_BTHd, heads_HdH, preferred_element_type=jnp.float32)
  ds_BHTT = p_BHTT * (drop(dp_BHTT, key, rate) - sum_BHT[..., None])
  if not to_itself:  # a query that sees nothing has probabilities, of keys that are masked
    ds_BHTT = jnp.where(sees(pattern)[:, None], ds_BHTT, 0)
  dbias = None if bias is None else _summed_to(ds_BHTT, bias)
  ds_BHTT = ds_BHTT.astype(q_BTHd.dtype)
  dq_BTHd = jnp.einsum('bhqk,bkhd->bqhd', ds_BHTT, k_BTHd) / math.sqrt(d)
  dk_BTHd = jnp.einsum('bhqk,bqhd->bkhd', ds_BHTT, q_BTHd / math.sqrt(d))
  return dq_BTHd, dk_BTHd, dv_BTHd, dbias, None, None


def _summed_to(ds_BHTT, bias):
  """The gradient of a bias that was broadcast to [B, H, Tq, Tk], from that of the scores."""
  ds = ds_BHTT.sum(range(4 - bias.ndim))
  axes = [axis for axis, size in enumerate(bias.shape) if size == 1]
  return ds.sum(axes, keepdims=True).astype(bias.dtype)


softmax_attention.defvjp(_attention_forward, _attention_backward)


KERNELS = 'einsum', 'xla', 'cudnn', 'splash'  # the implementations that `attend` knows


class Unsupported(ValueError):
  """Attention that an implementation cannot compute; the message says so with the fix."""


def unsupported(implementation, *, causal=False, window=0, bias=False, dropout=0.0, places=False):
  """Why an implementation cannot compute such attention, with the fix, in a sentence; or ''.
  causal, window: as in Pattern; before there are arrays, 'by row' and 'by layer' stand for them.
  bias, places: does the pattern have a bias, do its Tokens have places? dropout: the rate of the
  probabilities' dropout."""
  name = f'model.attention_implementation={implementation}'
  if dropout and implementation != 'einsum':
    return (
      f'{name} cannot drop attention probabilities; set model.attention_probs_dropout_prob=0 or '
      'use einsum.'
    )
  if bias and implementation in ('cudnn', 'splash'):
    return f'{name} cannot add a bias (ALiBi, relative) to the scores; use einsum or xla.'
  if implementation == 'splash':
    if not isinstance(window, int):
      return (
        f'{name} has one window for all scanned layers, and here they differ; set '
        'model.scan_layers=false or use einsum or xla.'
      )
    if not isinstance(causal, bool):
      return f'{name} cannot be causal in some rows only; use einsum or xla.'
    if places:
      return f'{name} knows the order of tokens in a row only; use einsum or xla.'
  return ''


def attend(q_BTHd, k_BTHd, v_BTHd, pattern, *, implementation, key=None, rate=0.0):
  """softmax(q k' / sqrt(d) + bias) v, where a query sees the keys that `pattern` says.

  q: [B, Tq, H, d]; k, v: [B, Tk, H, d]. Returns [B, Tq, H, d]; a query that sees nothing (padding)
  gets some finite value. key, rate: dropout of the probabilities [B, H, Tq, Tk].
  implementation: 'einsum' is softmax_attention above; 'xla' and 'cudnn' are those of
  jax.nn.dot_product_attention; 'splash' is Pallas's kernel for TPUs, which never holds all
  probabilities of a row, and 'xla' where there is no TPU or a length is no multiple of 128. The
  softmax is float32 in all of them. Unsupported for what the implementation cannot do.
  """
  if sentence := unsupported(
    implementation,
    causal=pattern.causal,
    window=pattern.window,
    bias=pattern.bias is not None,
    dropout=rate,
    places=any(x.places is not None for x in (pattern.queries, pattern.keys)),
  ):
    raise Unsupported(sentence)
  if implementation == 'splash' and (q_BTHd.shape[1] % 128 or k_BTHd.shape[1] % 128):
    implementation = 'xla'
  if implementation == 'splash':
    return jax.lax.platform_dependent(
      q_BTHd,
      k_BTHd,
      v_BTHd,
      pattern,
      tpu=splash,
      default=functools.partial(attend, implementation='xla'),
    )
  if implementation == 'einsum':
    bias, pattern = pattern.bias, dataclasses.replace(pattern, bias=None)
    to_itself = pattern.queries is pattern.keys
    return softmax_attention(q_BTHd, k_BTHd, v_BTHd, bias, pattern, key, rate, to_itself)
  bias = pattern.bias
  if bias is not None:
    bias = jnp.expand_dims(bias, range(4 - bias.ndim))
  mask_B1TT = sees(pattern)[:, None]
  return jax.nn.dot_product_attention(
    q_BTHd, k_BTHd, v_BTHd, bias, mask=mask_B1TT, implementation=implementation
  )


def splash(q_BTHd, k_BTHd, v_BTHd, pattern, interpret=False):
  """Attention by Pallas's splash attention kernel; Tq and Tk are multiples of 128.
  XLA cannot split a kernel over devices, so shard_map does it, by the logical axes of rows and
  heads. interpret: run it slowly on any device."""
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

  shape = q_BTHd.shape[1], k_BTHd.shape[1]
  block_q, block_kv = (next(n for n in (512, 384, 256, 128) if t % n == 0) for t in shape)
  sizes = kernels.BlockSizes(
    block_q=block_q,
    block_kv=block_kv,
    block_kv_compute=block_kv,
    block_q_dkv=block_q,
    block_kv_dkv=block_kv,
    block_kv_dkv_compute=block_kv,
    block_q_dq=block_q,
    block_kv_dq=block_kv,
  )
  window = pattern.window
  if window:
    sides = (window - 1, 0) if pattern.causal else (window // 2, window // 2)
    mask = masks.LocalMask(shape, sides, offset=0)
  else:
    mask = masks.CausalMask(shape) if pattern.causal else masks.FullMask(shape)

  def on_a_device(q_BTHd, k_BTHd, v_BTHd, queries_BT, keys_BT):
    by_head = masks.MultiHeadMask([mask] * q_BTHd.shape[2])
    kernel = kernels.make_splash_mha_single_device(by_head, block_sizes=sizes, interpret=interpret)
    q, k, v = (x.swapaxes(1, 2) for x in (q_BTHd / math.sqrt(q_BTHd.shape[-1]), k_BTHd, v_BTHd))
    return jax.vmap(kernel)(q, k, v, kernels.SegmentIds(queries_BT, keys_BT)).swapaxes(1, 2)

  arrays = q_BTHd, k_BTHd, v_BTHd, pattern.queries.segment_ids, pattern.keys.segment_ids
  if jax.sharding.get_abstract_mesh().empty:
    return on_a_device(*arrays)
  heads = nn.logical_to_mesh_axes(('batch', None, 'heads', None))
  rows = nn.logical_to_mesh_axes(('batch', None))
  return jax.shard_map(
    on_a_device, in_specs=(heads, heads, heads, rows, rows), out_specs=heads, check_vma=False
  )(*arrays)


class Attention(nn.Module):
  """The mixer 'attention': x [B, T, D], its Tokens, the numbers of its Layer -> [B, T, D].
  With a context (vectors [B, Tk, D], their Tokens) keys and values come from the context, and a
  token sees all of the context in its segment: causal, window and positions do not apply. Windows
  that are much shorter than a row are computed block by block (bands.py). Kernels are 2-D, as in
  released checkpoints.

  With tokens.memory, keys and values are those of the vectors in the collection `memory` too, which
  stand before x; no gradient goes into them. What x adds to them is put there (recurrence.py).

  Where the collection `cache` is mutable, x holds the next tokens of sequences, and sees the keys
  and values of the tokens before, which stand there (see decoding.py)."""

  config: ModelConfig
  deterministic: bool

  @nn.compact
  def __call__(self, x_BTD, tokens, layer, context=None):
    config = self.config
    rate = 0.0 if self.deterministic else config.attention_probs_dropout_prob
    keys_BTD, key_tokens = context or (x_BTD, tokens)

    pattern, positions, cut = Pattern(tokens, key_tokens), POSITIONS['none'], None
    if context is None:
      positions = POSITIONS[config.position_embeddings]
      if tokens.memory is not None:
        keys_BTD, tokens, key_tokens = self._with_memory(x_BTD, tokens)
      pattern = Pattern(tokens, key_tokens, causal=tokens.causal, window=layer.window)
      # splash has windows of its own, and relative positions are scored for whole rows.
      if config.attention_implementation != 'splash' and not positions.scores:
        cut = bands.bands_of(pattern, config.attention_window, x_BTD.shape[1])
    of_queries, of_keys = (cut.queries, cut.keys) if cut else (lambda x: x,) * 2

    def heads(name, y_BTD):
      y_BTD = layers.dense(config, config.hidden_size, name, config.attention_bias)(y_BTD)
      return y_BTD.reshape(*y_BTD.shape[:2], config.num_attention_heads, config.head_size)

    caches = layers.caches(self)
    queries_BTD = of_queries(x_BTD)
    q_BTHd = heads('query', queries_BTD)
    if caches and self.has_variable('cache', 'context_key'):  # a context stays as it is
      k_BTHd, v_BTHd = (self.get_variable('cache', f'context_{x}') for x in ('key', 'value'))
    else:
      keys_BTD = of_keys(keys_BTD)
      k_BTHd, v_BTHd = heads('key', keys_BTD), heads('value', keys_BTD)
    if positions.turn:

      def positions_of(tokens):
        if tokens.position_ids is not None:
          return tokens.position_ids
        return jnp.arange(x_BTD.shape[1])[None].repeat(len(x_BTD) if cut else 1, axis=0)

      q_BTHd = positions.turn(q_BTHd, of_queries(positions_of(tokens)), layer.rotary_theta)
      k_BTHd = positions.turn(k_BTHd, of_keys(positions_of(key_tokens)), layer.rotary_theta)
    if caches and context is None:
      k_BTHd = self._cached('key', k_BTHd, tokens.places)
      v_BTHd = self._cached('value', v_BTHd, tokens.places)
      pattern = dataclasses.replace(pattern, keys=all_places(*k_BTHd.shape[:2]), causal=True)
    elif caches:
      self.put_variable('cache', 'context_key', k_BTHd)
      self.put_variable('cache', 'context_value', v_BTHd)

    scores = None
    if positions.scores:
      position_scores = positions.scores(config, self.deterministic, name='relative')
      q_BTHd, scores = position_scores(q_BTHd, pattern)
    bias_of = positions.bias or (lambda heads, pattern: scores)

    def whole(q_BTHd, k_BTHd, v_BTHd, rest):
      pattern, key = rest
      pattern = dataclasses.replace(pattern, bias=bias_of(config.num_attention_heads, pattern))
      implementation = config.attention_implementation
      return attend(
        q_BTHd, k_BTHd, v_BTHd, pattern, implementation=implementation, key=key, rate=rate
      )

    if self.is_mutable_collection('intermediates'):  # for predict/hidden_states.py
      bias, rows = bias_of(config.num_attention_heads, pattern), len(x_BTD)
      q, k = q_BTHd, k_BTHd
      if cut:
        q, k = cut.rows(q, rows), cut.rows(k, rows, cut.before)
      p_BHTT = probabilities(q, k, bias, pattern)
      self.sow('intermediates', 'probabilities', p_BHTT)
    rest = pattern, self.make_rng('dropout') if rate else None
    attention = cut.attention(whole, pattern) if cut else whole
    out_BTHd = attention(q_BTHd, k_BTHd, v_BTHd, rest)
    output = layers.dense(config, config.hidden_size, 'output', config.attention_bias, last=True)
    out_BTD = output(out_BTHd.reshape(queries_BTD.shape))
    return cut.rows(out_BTD, len(x_BTD)) if cut else out_BTD

  def _with_memory(self, x_BTD, tokens):
    """(memory and x [B, M + T, D], the Tokens of x, those of both); x is put into the memory."""
    memory, (B, T, D) = tokens.memory, x_BTD.shape
    M = memory.segment_ids.shape[1]
    states_BMD = jnp.zeros((B, M, D), x_BTD.dtype)
    if self.has_variable('memory', 'states'):
      states_BMD = self.get_variable('memory', 'states')
    both_BTD, states_BMD = memory.with_row(states_BMD, x_BTD)
    self.put_variable('memory', 'states', states_BMD)
    ids_BT = jnp.concatenate([memory.segment_ids, tokens.segment_ids], axis=1)
    places = jnp.arange(M + T)
    at_BT = jnp.broadcast_to(places, ids_BT.shape)
    queries = dataclasses.replace(tokens, places=places[M:], position_ids=at_BT[:, M:])
    return both_BTD, queries, Tokens(ids_BT, at_BT, places=places)

  def _cached(self, name, new_BTHd, places_BT):
    """The keys or values in the cache, [B, length of the cache, H, d], after new ones are put at
    consecutive places from places_BT[:, 0] on. It begins as long as what is first put in."""
    if self.has_variable('cache', name):
      put = jax.vmap(lambda old, new, at: jax.lax.dynamic_update_slice(old, new, (at, 0, 0)))
      new_BTHd = put(self.get_variable('cache', name), new_BTHd, places_BT[:, 0])
    self.put_variable('cache', name, new_BTHd)
    return new_BTHd


def all_places(B, length):
  """The Tokens of a cache: key j of a row stands at place j. What no token was put in yet is later
  than any query, so that none sees it."""
  return Tokens(jnp.ones((B, length), jnp.int32), places=jnp.arange(length))
