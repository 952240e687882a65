"""How tokens read each other: attention, and mixers that can replace it.

All but the Fourier transform keep to the segments of a row. They are baselines that show what
attention is worth: a transform without weights (FNet), recurrence, convolution, and a mere mean.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.models import layers
from bert_jax.models.attention import Attention
from bert_jax.models.config import ModelConfig
from bert_jax.models.tokens import Layer, Tokens


class Mixer(nn.Module):
  """The fields of a mixer, a module of (x [B, T, D], Tokens, Layer) -> [B, T, D]."""

  config: ModelConfig
  deterministic: bool


class Fourier(Mixer):
  """The real part of the Fourier transform over tokens and hidden units, without parameters
  (Lee-Thorp et al. 2021, https://arxiv.org/abs/2105.03824). As there, it runs over the whole row,
  padding included, so a row may hold one example only, and its length counts."""

  @nn.compact
  def __call__(self, x_BTD: Array, tokens: Tokens, layer: Layer) -> Array:
    return jnp.fft.fft2(x_BTD.astype(jnp.float32)).real.astype(x_BTD.dtype)


class LSTM(Mixer):
  """A bidirectional LSTM (Hochreiter & Schmidhuber 1997; Graves & Schmidhuber 2005) of D / 2 units
  each way, which begins anew in every segment. States are float32."""

  @nn.compact
  def __call__(self, x_BTD: Array, tokens: Tokens, layer: Layer) -> Array:
    config, (B, T, D) = self.config, x_BTD.shape
    h = D // 2
    # For each direction (axis 2): the input, forget and output gates and the candidate.
    gates_BT2g = layers.dense(config, 8 * h, 'input')(x_BTD).reshape(B, T, 2, 4 * h)
    recurrent_2hg = self.param('recurrent', nn.initializers.orthogonal(), (2, h, 4 * h))
    same_BT2 = jnp.stack([_same_segment(tokens.segment_ids, side) for side in (-1, 1)], axis=-1)

    def turned(x):
      """Turns the backward direction, so that it begins at its first token, and back again."""
      return jnp.stack([x[:, :, 0], x[:, ::-1, 1]], axis=2)

    def step(state, inputs):
      (hidden_B2h, cell_B2h), (gates_B2g, same_B2) = state, inputs
      hidden_B2h, cell_B2h = (jnp.where(same_B2[..., None], x, 0) for x in (hidden_B2h, cell_B2h))
      gates_B2g += jnp.einsum('bxh,xhg->bxg', hidden_B2h, recurrent_2hg.astype(hidden_B2h.dtype))
      i, f, o, candidate = jnp.split(gates_B2g.astype(jnp.float32), 4, axis=-1)
      cell_B2h = jax.nn.sigmoid(f + 1) * cell_B2h + jax.nn.sigmoid(i) * jnp.tanh(candidate)
      hidden_B2h = (jax.nn.sigmoid(o) * jnp.tanh(cell_B2h)).astype(x_BTD.dtype)
      return (hidden_B2h, cell_B2h), hidden_B2h

    start = jnp.zeros((B, 2, h), x_BTD.dtype), jnp.zeros((B, 2, h), jnp.float32)
    inputs = (turned(gates_BT2g).swapaxes(0, 1), turned(same_BT2).swapaxes(0, 1))
    _, hidden_TB2h = jax.lax.scan(step, start, inputs)
    return turned(hidden_TB2h.swapaxes(0, 1)).reshape(B, T, D)


class Convolution(Mixer):
  """A gated depthwise convolution over `conv_width` tokens of a segment, between two dense layers
  (Wu et al. 2019, https://arxiv.org/abs/1901.10430, without sharing taps among channels):
  output(sum of taps * (value * sigmoid(gate)))."""

  @nn.compact
  def __call__(self, x_BTD: Array, tokens: Tokens, layer: Layer) -> Array:
    config, D = self.config, x_BTD.shape[-1]
    x_BTD, gate_BTD = jnp.split(layers.dense(config, 2 * D, 'input')(x_BTD), 2, axis=-1)
    x_BTD *= jax.nn.sigmoid(gate_BTD)
    reach = config.conv_width // 2
    init = nn.initializers.normal((2 * reach + 1) ** -0.5)
    taps_WD = self.param('taps', init, (2 * reach + 1, D)).astype(x_BTD.dtype)
    out_BTD = sum(
      jnp.where(_same_segment(tokens.segment_ids, n)[..., None], shifted(x_BTD, n), 0) * tap_D
      for n, tap_D in zip(range(-reach, reach + 1), taps_WD)
    )
    return layers.dense(config, D, 'output', last=True)(out_BTD)


class Bag(Mixer):
  """A bag of words: a dense layer over the mean of all tokens of the segment, without order."""

  @nn.compact
  def __call__(self, x_BTD: Array, tokens: Tokens, layer: Layer) -> Array:
    def mean(x_TD, ids_T):
      total_SD = jax.ops.segment_sum(x_TD.astype(jnp.float32), ids_T, len(ids_T) + 1)
      count_S = jax.ops.segment_sum(jnp.ones(len(ids_T)), ids_T, len(ids_T) + 1)
      return (total_SD / jnp.maximum(count_S, 1)[:, None])[ids_T].astype(x_TD.dtype)

    mean_BTD = jax.vmap(mean)(x_BTD, tokens.segment_ids)
    return layers.dense(self.config, x_BTD.shape[-1], 'output', last=True)(mean_BTD)


def shifted(x: Array, n: int) -> Array:
  """x [B, T, ...] moved n places to the left, so that place t has element t + n; zeros outside."""
  pads = [(0, 0), (max(0, -n), max(0, n))] + [(0, 0)] * (x.ndim - 2)
  return jnp.pad(x, pads)[:, max(0, n) : max(0, n) + x.shape[1]]


def _same_segment(segment_ids_BT, n):
  """[B, T] bool: is the token n places later in the same segment? Padding is a segment, too."""
  return shifted(segment_ids_BT + 1, n) == segment_ids_BT + 1


MIXERS = {'attention': Attention, 'fourier': Fourier, 'lstm': LSTM, 'conv': Convolution, 'bag': Bag}
