"""The encoder: embeddings, then blocks of self-attention and feed-forward.

Blocks are post-LN as BERT was released, or pre-LN with one more LayerNorm at the end (Xiong et al.
2020, https://arxiv.org/abs/2002.04745). They are unrolled or scanned: the same parameters in
another layout (`stack_layers`, `unstack_layers` go between the two).
"""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import attention, common, embeddings
from bert_jax.models.dropout import Dropout

REMAT_POLICIES = {
  'full': jax.checkpoint_policies.nothing_saveable,
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Block(nn.Module):
  """One layer: x [B, T, D], segment_ids [B, T] -> (x [B, T, D], None), the shape nn.scan wants."""

  config: common.ModelConfig
  deterministic: bool

  @nn.compact
  def __call__(self, x_BTD, segment_ids_BT):
    config = self.config

    def sublayer(x, function, norm_name):
      norm = common.layer_norm(config, norm_name)
      drop = Dropout(config.hidden_dropout_prob, self.deterministic)
      if config.norm_placement == 'pre':
        return x + drop(function(norm(x)))
      return norm(x + drop(function(x)))

    def attend(x):
      layer = attention.SelfAttention(config, name='attention')
      return layer(x, segment_ids_BT, self.deterministic)

    def feed_forward(x):
      x = common.dense(config, config.intermediate_size, 'intermediate')(x)
      x = common.ACTIVATIONS[config.hidden_act](x)
      return common.dense(config, config.hidden_size, 'output')(x)

    x_BTD = sublayer(x_BTD, attend, 'attention_LayerNorm')
    x_BTD = sublayer(x_BTD, feed_forward, 'output_LayerNorm')
    return nn.with_logical_constraint(x_BTD, ('batch', 'length', 'hidden')), None


class Encoder(nn.Module):
  """input_ids, token_type_ids, position_ids, segment_ids [B, T] -> hidden states [B, T, D].

  segment_ids: 0 is padding, 1.. says which example of the row a token belongs to; attention never
  crosses from one to another, so several short examples can share a row.
  """

  config: common.ModelConfig

  @nn.compact
  def __call__(
    self, input_ids_BT, token_type_ids_BT, position_ids_BT, segment_ids_BT, deterministic=True
  ):
    config = self.config
    embed = embeddings.Embeddings(config, name='embeddings')
    x_BTD = embed(input_ids_BT, token_type_ids_BT, position_ids_BT, deterministic)
    x_BTD = nn.with_logical_constraint(x_BTD, ('batch', 'length', 'hidden'))

    block = Block
    if config.remat != 'none':
      block = nn.remat(
        Block, policy=REMAT_POLICIES[config.remat], prevent_cse=not config.scan_layers
      )
    if config.scan_layers:
      scan = nn.scan(
        block,
        variable_axes={'params': 0},
        in_axes=nn.broadcast,
        split_rngs={'params': True, 'dropout': True},
        length=config.num_hidden_layers,
      )
      x_BTD, _ = scan(config, deterministic, name='layers')(x_BTD, segment_ids_BT)
    else:
      for i in range(config.num_hidden_layers):
        x_BTD, _ = block(config, deterministic, name=f'layer_{i}')(x_BTD, segment_ids_BT)
    if config.norm_placement == 'pre':
      x_BTD = common.layer_norm(config)(x_BTD)
    return x_BTD


def init_encoder(config, rng):
  """Encoder parameters, the same numbers whether layers are scanned or unrolled."""
  unrolled = Encoder(dataclasses.replace(config, scan_layers=False, remat='none'))
  ids = jnp.zeros((1, 1), jnp.int32)
  params = unrolled.init(rng, ids, ids, ids, ids)['params']
  return stack_layers(params) if config.scan_layers else params


def stack_layers(params):
  """{'layer_0': p, 'layer_1': p, ...} -> {'layers': p with a leading layer axis}, wherever a tree
  of any nesting holds layers; the rest is unchanged."""
  if not isinstance(params, dict):
    return params
  names = sorted((k for k in params if re.fullmatch(r'layer_\d+', k)), key=lambda k: int(k[6:]))
  rest = {k: stack_layers(v) for k, v in params.items() if k not in names}
  if not names:
    return rest
  stack = jnp.stack if isinstance(jax.tree.leaves(params[names[0]])[0], jax.Array) else np.stack
  return rest | {'layers': jax.tree.map(lambda *x: stack(x), *(params[k] for k in names))}


def unstack_layers(params):
  """The inverse of stack_layers."""
  if not isinstance(params, dict):
    return params
  rest = {k: unstack_layers(v) for k, v in params.items() if k != 'layers'}
  if 'layers' not in params:
    return rest
  count = jax.tree.leaves(params['layers'])[0].shape[0]
  return rest | {
    f'layer_{i}': jax.tree.map(lambda x, i=i: x[i], params['layers']) for i in range(count)
  }


def encoder_flops(config, batch, length):
  """Floating-point operations of one forward pass over [batch, length], matrix products only."""
  D, F = config.hidden_size, config.intermediate_size
  per_token = 2 * (4 * D * D + 2 * D * F) + 2 * 2 * length * D
  return config.num_hidden_layers * batch * length * per_token
