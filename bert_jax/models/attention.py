"""Multi-head attention: queries, keys and values, positions, memory, cache and kernel in order.

B batch, T tokens, Tk keys, H heads, h heads of keys (fewer in grouped-query attention), d size of a
head, D hidden size.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from bert_jax.models import attention_kernels, bands, cache, layers, memory, refusals
from bert_jax.models.config import ModelConfig
from bert_jax.models.positions import POSITIONS
from bert_jax.models.tokens import Layer, Pattern, Tokens

Context = tuple[Array, Tokens]  # vectors [B, Tk, D] to attend to, and their Tokens


class Attention(nn.Module):
  """Attention over the tokens of each row, x [B, T, D] -> [B, T, D]: the mixer 'attention'.
  With a context, keys and values come from it, and a token sees all of it in its segment: causal,
  window and positions do not apply. Windows that are much shorter than a row are computed block by
  block (bands.py). Kernels are 2-D, as in released checkpoints. Vectors before the row are seen too
  (memory.py, cache.py)."""

  config: ModelConfig
  deterministic: bool

  @nn.compact
  def __call__(
    self, x_BTD: Array, tokens: Tokens, layer: Layer, context: Context | None = None
  ) -> Array:
    config, H = self.config, self.config.num_attention_heads
    if context is None:
      positions = POSITIONS[config.position_embeddings]
      source_BTD, tokens, source = memory.before(self, x_BTD, tokens)
      pattern = Pattern(tokens, source, causal=tokens.causal, window=layer.window)
    else:
      positions, (source_BTD, source) = POSITIONS['none'], context
      pattern = Pattern(tokens, source)
    kernel = refusals.kernel_of(config, pattern)
    # splash has windows of its own, and relative positions are scored for whole rows.
    is_whole = kernel == 'splash' or positions.own_scores
    window = config.attention_window
    blocks = bands.Whole() if is_whole else bands.blocks_of(pattern, window, x_BTD.shape[1])

    widths = {'query': H, 'key': config.key_value_heads, 'value': config.key_value_heads}
    dense = {
      name: layers.dense(config, heads * config.head_size, name, config.attention_bias)
      for name, heads in widths.items()
    }

    def project(name, x):
      return self._split(dense[name](x))

    def project_for_all(name, x):
      return self._repeated(project(name, x))

    queries_BTD = blocks.queries(x_BTD)
    q_BTHd = project('query', queries_BTD)
    stored = cache.stored_context(self)
    if stored:
      k_BThd, v_BThd = stored
    else:
      keys_BTD = blocks.keys(source_BTD)
      k_BThd = project('key', keys_BTD)
      v_BThd = project('value', keys_BTD)
    if positions.turn:
      q_BTHd = positions.turn(q_BTHd, blocks.queries(_positions(x_BTD, tokens)), layer.rotary_theta)
      k_BThd = positions.turn(k_BThd, blocks.keys(_positions(x_BTD, source)), layer.rotary_theta)
    k_BThd, v_BThd, pattern = cache.extended(self, k_BThd, v_BThd, pattern, context is not None)
    k_BTHd = self._repeated(k_BThd)
    v_BTHd = self._repeated(v_BThd)
    bias = positions.bias or _no_bias
    if positions.own_scores:
      own_scores = positions.own_scores(config, self.deterministic, name='relative')
      q_BTHd, scores = own_scores(q_BTHd, k_BTHd, pattern, project_for_all)

      def bias(heads, pattern):
        return scores

    self._show(q_BTHd, k_BTHd, bias, pattern, blocks)
    out_BTHd = self._attended((q_BTHd, k_BTHd, v_BTHd), bias, pattern, blocks, kernel)
    output = layers.dense(config, config.hidden_size, 'output', config.attention_bias, last=True)
    out_BTQ = out_BTHd.reshape(*queries_BTD.shape[:-1], H * config.head_size)
    return blocks.rows(output(out_BTQ), x_BTD.shape[0])

  @nn.nowrap
  def _split(self, x_BTD):
    """Splits projected vectors [..., h * d] among their h heads, [..., h, d]."""
    return x_BTD.reshape(*x_BTD.shape[:-1], -1, self.config.head_size)

  @nn.nowrap
  def _repeated(self, x_BThd):
    """Keys or values [..., H, d] of all heads: one of h may serve several heads of queries."""
    copies = self.config.num_attention_heads // x_BThd.shape[-2]
    return x_BThd if copies == 1 else jnp.repeat(x_BThd, copies, axis=-2)

  @nn.nowrap
  def _show(self, q_BTHd, k_BTHd, bias, pattern, blocks):
    """Stores the probabilities of whole rows if a caller collects intermediates (predict)."""
    if self.is_mutable_collection('intermediates'):
      bias, B = bias(self.config.num_attention_heads, pattern), len(pattern.queries.segment_ids)
      q_BTHd, k_BTHd = blocks.rows(q_BTHd, B), blocks.rows_of_keys(k_BTHd, B)
      p_BHTT = attention_kernels.probabilities(q_BTHd, k_BTHd, bias, pattern)
      self.sow('intermediates', 'probabilities', p_BHTT)

  @nn.nowrap
  def _attended(self, qkv, bias, pattern, blocks, kernel):
    """The weighted values [B, T, H, d] from queries, keys and values of rows or of blocks."""
    config = self.config
    rate = 0.0 if self.deterministic else config.attention_probs_dropout_prob

    def attend(qkv, rest):
      pattern, key = rest
      pattern = dataclasses.replace(pattern, bias=bias(config.num_attention_heads, pattern))
      return attention_kernels.attend(qkv, pattern, kernel=kernel, key=key, rate=rate)

    rest = pattern, self.make_rng('dropout') if rate else None
    return blocks.attention(attend, pattern)(qkv, rest)


def _no_bias(heads, pattern):
  return None


def _positions(x_BTD, tokens):
  if tokens.position_ids is not None:
    return tokens.position_ids
  return jnp.broadcast_to(jnp.arange(x_BTD.shape[1]), x_BTD.shape[:2])
