"""One layer of a Transformer, assembled from the pieces that a config names.

To add a piece, write it and enter it in its table (FEED_FORWARD here, MIXERS in mixers.py,
POSITIONS in positions.py, NORMS and ACTIVATIONS in layers.py), which is the list of the values of
its field.
"""

import flax.linen as nn

from bert_jax.models import layers
from bert_jax.models.attention import Attention
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.mixers import MIXERS


def mlp(config, x_BTD):
  """The feed-forward layer of BERT: output(act(intermediate(x)))."""
  inner, outer = config.feed_forward_bias == 'all', config.feed_forward_bias != 'none'
  x_BTF = layers.dense(config, config.intermediate_size, 'intermediate', inner)(x_BTD)
  x_BTF = layers.ACTIVATIONS[config.hidden_act](x_BTF)
  return layers.dense(config, config.hidden_size, 'output', outer, last=True)(x_BTF)


def glu(config, x_BTD):
  """A gated feed-forward layer: output(act(gate(x)) * intermediate(x)). With swish it is Llama's
  SwiGLU, with gelu ModernBERT's GeGLU (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""
  inner, outer = config.feed_forward_bias == 'all', config.feed_forward_bias != 'none'
  gate_BTF = layers.dense(config, config.intermediate_size, 'gate', inner)(x_BTD)
  x_BTF = layers.dense(config, config.intermediate_size, 'intermediate', inner)(x_BTD)
  x_BTF *= layers.ACTIVATIONS[config.hidden_act](gate_BTF)
  return layers.dense(config, config.hidden_size, 'output', outer, last=True)(x_BTF)


# Layers that read each token alone: functions of (config, x [B, T, D]) -> [B, T, D], which create
# their parameters in the block that calls them.
FEED_FORWARD = {'mlp': mlp, 'glu': glu}

# Where a sublayer has its norm: {name: (x, sublayer, norm, dropout) -> x}.
NORM_PLACEMENTS = {
  'post': lambda x, sublayer, norm, drop: norm(x + drop(sublayer(x))),
  'pre': lambda x, sublayer, norm, drop: x + drop(sublayer(norm(x))),
}


class Block(nn.Module):
  """One layer of a tower: x [B, T, D] -> (x [B, T, D], None), the form that nn.scan expects.
  context: (vectors [B, Tk, D], their Tokens) of another tower, to which x attends between its mixer
  and its feed-forward layer; or None. mixer_norm: is there a norm before the mixer?"""

  config: ModelConfig
  deterministic: bool
  mixer_norm: bool = True

  @nn.compact
  def __call__(self, x_BTD, tokens, layer, context=None):
    config = self.config

    def residual(x, sublayer, norm_name, rate=0.0):
      norm = layers.norm(config, norm_name) if norm_name else lambda x: x
      drop = Dropout(rate or config.hidden_dropout_prob, self.deterministic)
      return NORM_PLACEMENTS[config.norm_placement](x, sublayer, norm, drop)

    def mix(x):
      mixer = MIXERS[config.mixer](config, self.deterministic, name=config.mixer)
      return mixer(x, tokens, layer)

    def attend_to_context(x):
      attention = Attention(config, self.deterministic, name='cross_attention')
      return attention(x, tokens, layer, context)

    def feed_forward(x):
      return FEED_FORWARD[config.feed_forward](config, x)

    norm_name = f'{config.mixer}_LayerNorm' if self.mixer_norm else ''
    x_BTD = residual(x_BTD, mix, norm_name, config.attention_output_dropout_prob)
    if context is not None:
      x_BTD = residual(x_BTD, attend_to_context, 'cross_attention_LayerNorm')
    x_BTD = residual(x_BTD, feed_forward, 'output_LayerNorm')
    return nn.with_logical_constraint(x_BTD, ('batch', 'length', 'hidden')), None
