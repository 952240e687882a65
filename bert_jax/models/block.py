"""One layer of a Transformer, assembled from the pieces that a config names.

To add a piece, write it and enter it in its table (FEED_FORWARD here, MIXERS in mixers.py,
POSITIONS in positions.py, NORMS and ACTIVATIONS in layers.py), which lists the values of its field.
"""

import functools

import flax.linen as nn
from jax import Array

from bert_jax.models import layers
from bert_jax.models.attention import Attention, Context
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.mixers import MIXERS
from bert_jax.models.tokens import Layer, Tokens


def mlp(config: ModelConfig, x_BTD: Array) -> Array:
  """The feed-forward layer of BERT: output(act(intermediate(x)))."""
  x_BTF = _inner(config, 'intermediate', x_BTD)
  return _output(config, layers.ACTIVATIONS[config.hidden_act](x_BTF))


def glu(config: ModelConfig, x_BTD: Array) -> Array:
  """A gated feed-forward layer: output(act(gate(x)) * intermediate(x)). With swish it is Llama's
  SwiGLU, with gelu ModernBERT's GeGLU (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""
  gate_BTF, x_BTF = (_inner(config, name, x_BTD) for name in ('gate', 'intermediate'))
  return _output(config, x_BTF * layers.ACTIVATIONS[config.hidden_act](gate_BTF))


def _inner(config, name, x_BTD):
  has_bias = config.feed_forward_bias == 'all'
  return layers.dense(config, config.intermediate_size, name, has_bias)(x_BTD)


def _output(config, x_BTF):
  has_bias = config.feed_forward_bias != 'none'
  return layers.dense(config, config.hidden_size, 'output', has_bias, last=True)(x_BTF)


# Layers that read each token alone: functions of (config, x [B, T, D]) -> [B, T, D], which create
# their parameters in the block that calls them.
FEED_FORWARD = {'mlp': mlp, 'glu': glu}


def _norm_after(x, sublayer, norm, dropout):
  return norm(x + dropout(sublayer(x)))


def _norm_before(x, sublayer, norm, dropout):
  return x + dropout(sublayer(norm(x)))


# Where a sublayer has its norm: {name: (x, sublayer, norm, dropout) -> x}.
NORM_PLACEMENTS = {'post': _norm_after, 'pre': _norm_before}


class Block(nn.Module):
  """One layer of a tower: x [B, T, D] -> (x [B, T, D], None), the form that nn.scan expects.
  context: what x attends to between its mixer and its feed-forward layer, if anything, such as
  another tower. mixer_norm: is there a norm before the mixer?"""

  config: ModelConfig
  deterministic: bool
  mixer_norm: bool = True

  @nn.compact
  def __call__(
    self, x_BTD: Array, tokens: Tokens, layer: Layer, context: Context | None = None
  ) -> tuple[Array, None]:
    config, deterministic = self.config, self.deterministic

    def residual(x, sublayer, norm_name, rate=0.0):
      norm = layers.norm(config, norm_name) if norm_name else layers.identity
      drop = Dropout(rate or config.hidden_dropout_prob, deterministic)
      return NORM_PLACEMENTS[config.norm_placement](x, sublayer, norm, drop)

    def mix(x):
      return MIXERS[config.mixer](config, deterministic, name=config.mixer)(x, tokens, layer)

    def attend_to_context(x):
      return Attention(config, deterministic, name='cross_attention')(x, tokens, layer, context)

    norm_name = f'{config.mixer}_LayerNorm' if self.mixer_norm else ''
    x_BTD = residual(x_BTD, mix, norm_name, config.attention_output_dropout_prob)
    if context is not None:
      x_BTD = residual(x_BTD, attend_to_context, 'cross_attention_LayerNorm')
    feed_forward = functools.partial(FEED_FORWARD[config.feed_forward], config)
    x_BTD = residual(x_BTD, feed_forward, 'output_LayerNorm')
    return nn.with_logical_constraint(x_BTD, ('batch', 'length', 'hidden')), None
