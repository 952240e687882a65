"""One layer of a Transformer, assembled from pieces that the fields of a config name.

To add a piece, write it and give it a name in its table: MIXERS and FEED_FORWARD here, POSITIONS in
positions.py, NORMS and ACTIVATIONS in common.py.
"""

import flax.linen as nn

from bert_jax.models import common
from bert_jax.models.attention import Attention
from bert_jax.models.dropout import Dropout

# What lets a token hear of others. A module of (config, deterministic), called with (x [B, T, D],
# tokens: Tokens, layer: Layer, context: (vectors [B, Tk, D], Tokens) or None) -> [B, T, D].
MIXERS = {'attention': Attention}


def mlp(config, x_BTD):
  """BERT's: output(act(intermediate(x)))."""
  x_BTF = common.dense(config, config.intermediate_size, 'intermediate')(x_BTD)
  x_BTF = common.ACTIVATIONS[config.hidden_act](x_BTF)
  return common.dense(config, config.hidden_size, 'output')(x_BTF)


def glu(config, x_BTD):
  """A gated one (Shazeer 2020, https://arxiv.org/abs/2002.05202): output(act(gate(x)) *
  intermediate(x)). With swish it is Llama's SwiGLU, with gelu ModernBERT's GeGLU."""
  gate_BTF = common.dense(config, config.intermediate_size, 'gate')(x_BTD)
  x_BTF = common.dense(config, config.intermediate_size, 'intermediate')(x_BTD)
  x_BTF *= common.ACTIVATIONS[config.hidden_act](gate_BTF)
  return common.dense(config, config.hidden_size, 'output')(x_BTF)


# What each token does by itself: a function of (config, x [B, T, D]) -> [B, T, D], which creates
# its layers in the block that calls it.
FEED_FORWARD = {'mlp': mlp, 'glu': glu}

# Where the norm of a sublayer stands: (x, sublayer, norm, dropout) -> x.
NORM_PLACEMENTS = {
  'post': lambda x, sublayer, norm, drop: norm(x + drop(sublayer(x))),
  'pre': lambda x, sublayer, norm, drop: x + drop(sublayer(norm(x))),
}


class Block(nn.Module):
  """One layer: x [B, T, D] -> (x [B, T, D], None), the shape that nn.scan wants.

  tokens: the Tokens of x. layer: the Layer, its own numbers. context: (vectors [B, Tk, D], their
  Tokens) of another tower, which x then attends to between its mixer and its feed-forward.
  """

  config: common.ModelConfig
  deterministic: bool

  @nn.compact
  def __call__(self, x_BTD, tokens, layer, context=None):
    config = self.config

    def residual(x, sublayer, norm_name):
      norm = common.norm(config, norm_name)
      drop = Dropout(config.hidden_dropout_prob, self.deterministic)
      return NORM_PLACEMENTS[config.norm_placement](x, sublayer, norm, drop)

    def mix(x):
      mixer = MIXERS[config.mixer](config, self.deterministic, name=config.mixer)
      return mixer(x, tokens, layer)

    def attend_to_context(x):
      attention = Attention(config, self.deterministic, name='cross_attention')
      return attention(x, tokens, layer, context)

    def feed_forward(x):
      return FEED_FORWARD[config.feed_forward](config, x)

    x_BTD = residual(x_BTD, mix, f'{config.mixer}_LayerNorm')
    if context is not None:
      x_BTD = residual(x_BTD, attend_to_context, 'cross_attention_LayerNorm')
    x_BTD = residual(x_BTD, feed_forward, 'output_LayerNorm')
    return nn.with_logical_constraint(x_BTD, ('batch', 'length', 'hidden')), None
