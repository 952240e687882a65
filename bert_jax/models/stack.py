"""A tower of layers: unrolled or scanned, and what its backward pass computes again.

Its parameters have two layouts: `layer_0`, `layer_1`.. (unrolled), or `layers` with a leading axis
of layers (scanned).
"""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import common
from bert_jax.models.block import Block
from bert_jax.models.tokens import Layer

REMAT_POLICIES = {
  'full': jax.checkpoint_policies.nothing_saveable,
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def run_blocks(config, count, deterministic, x_BTD, tokens, context=None, layer=None):
  """x [B, T, D] after `count` blocks and, if they are pre-LN, one more norm.
  To be called in the compact method of a module, which gets their parameters. context: see Block.
  layer: a Layer with the numbers of all blocks, arrays [count] where they differ; None: those that
  the config says."""
  layer = layer_numbers(config, count) if layer is None else layer
  block = Block
  if config.remat != 'none':
    block = nn.remat(Block, policy=REMAT_POLICIES[config.remat], prevent_cse=not config.scan_layers)
  if config.scan_layers:
    scan = nn.scan(
      block,
      variable_axes={'params': 0},
      in_axes=(nn.broadcast, 0, nn.broadcast),
      split_rngs={'params': True, 'dropout': True},
      length=count,
    )
    x_BTD, _ = scan(config, deterministic, name='layers')(x_BTD, tokens, layer, context)
  else:
    for i in range(count):
      one = block(config, deterministic, name=f'layer_{i}')
      x_BTD, _ = one(x_BTD, tokens, layer.at(i), context)
  return common.norm(config)(x_BTD) if config.norm_placement == 'pre' else x_BTD


class Stack(nn.Module):
  """A tower of `count` blocks and nothing else; the arguments are those of run_blocks."""

  config: common.ModelConfig
  count: int

  @nn.compact
  def __call__(self, x_BTD, tokens, context=None, layer=None, deterministic=True):
    return run_blocks(self.config, self.count, deterministic, x_BTD, tokens, context, layer)


def layer_numbers(config, count):
  """The Layer of a tower of `count` blocks. With global_attention_every = n, layers 0, n, 2n.. have
  no window (ModernBERT: n = 3)."""
  window, every = config.attention_window, config.global_attention_every
  if window and every:
    window = np.where(np.arange(count) % every, window, 0).astype(np.int32)
  return Layer(window=window, rotary_theta=config.rotary_theta)


def stack_layers(params):
  """Parameters with the layers of every tower stacked: 'layer_0', 'layer_1'.. at any depth of the
  tree become 'layers' with a leading axis of layers. Everything else stays."""
  if not isinstance(params, dict):
    return params
  names = sorted((k for k in params if re.fullmatch(r'layer_\d+', k)), key=lambda k: int(k[6:]))
  rest = {k: stack_layers(v) for k, v in params.items() if k not in names}
  if not names:
    return rest
  stack = jnp.stack if isinstance(jax.tree.leaves(params)[0], jax.Array) else np.stack
  return rest | {'layers': jax.tree.map(lambda *x: stack(x), *(params[k] for k in names))}


def unstack_layers(params):
  """The inverse of stack_layers."""
  if not isinstance(params, dict):
    return params
  rest = {k: unstack_layers(v) for k, v in params.items() if k != 'layers'}
  if 'layers' not in params:
    return rest
  layers = params['layers']
  numbers = range(jax.tree.leaves(layers)[0].shape[0])
  return rest | {f'layer_{i}': jax.tree.map(lambda x, i=i: x[i], layers) for i in numbers}
