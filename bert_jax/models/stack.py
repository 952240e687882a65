"""A tower of layers: unrolled or scanned, with or without rematerialization.

Its parameters have two layouts: `layer_0`, `layer_1`.. (unrolled), or `layers` with a leading axis
of layers (scanned), after a `layer_0` that has fewer parameters, if any. Layers that share their
weights are one `layer_0` in both.

Every layer has a key of its own for dropout. Nothing here passes one on: Flax's make_rng, which
Dropout calls, makes a key of the one that the whole model got, of the path of the module, such as
`encoder/layer_0`, and of how often this module has asked. So unrolled layers differ by their names,
and shared ones by the count. Scanned layers have one path: there split_rngs makes a key for each.
"""

import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.models import layers
from bert_jax.models.attention import Context
from bert_jax.models.block import Block
from bert_jax.models.config import ModelConfig
from bert_jax.models.tokens import Layer, Tokens

REMAT_POLICIES = {  # each takes more time and less memory than the one before
  'none': None,
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'full': jax.checkpoint_policies.nothing_saveable,
}


def run_blocks(
  config: ModelConfig,
  count: int,
  deterministic: bool,
  x_BTD: Array,
  tokens: Tokens,
  context: Context | None = None,
) -> Array:
  """Runs x [B, T, D] through `count` blocks and, if they are pre-LN, one more norm. To be called in
  the compact method of a module, which gets their parameters. context: see Block."""
  layer, block = layer_numbers(config, count), Block
  if config.remat != 'none':
    block = nn.remat(Block, policy=REMAT_POLICIES[config.remat], prevent_cse=not config.scan_layers)

  def block_at(i):
    return block(config, deterministic, config.first_norm or i > 0, name=f'layer_{i}')

  apart, shares = layers_apart(config, count), config.share_layers
  shared = block_at(0) if shares and not config.scan_layers else None
  for i in range(apart):
    x_BTD, _ = (shared or block_at(i))(x_BTD, tokens, layer.at(i), context)
  if apart < count:
    axes: Any = {'cache': 1, 'memory': 1} | ({} if shares else {'params': 0})  # rows first
    scan = nn.scan(
      block,
      variable_axes=axes,
      variable_broadcast='params' if shares else False,
      in_axes=(nn.broadcast, 0, nn.broadcast),
      split_rngs={'params': not shares, 'dropout': True},
      length=count - apart,
    )
    name = 'layer_0' if shares else 'layers'
    scanned = scan(config, deterministic, config.first_norm or apart > 0, name=name)
    x_BTD, _ = scanned(x_BTD, tokens, layer.since(apart), context)
  return layers.norm(config)(x_BTD) if config.norm_placement == 'pre' else x_BTD


def layers_apart(config: ModelConfig, count: int) -> int:
  """How many of the first layers of a tower of `count` are not scanned."""
  if not config.scan_layers:
    return count
  return 0 if config.first_norm or count == 1 else 1


def layer_numbers(config: ModelConfig, count: int) -> Layer:
  """The Layer of a tower of `count` blocks. With global_attention_every = n, layers 0, n, 2n.. have
  no window (ModernBERT: n = 3), and with local_rotary_theta another theta."""
  window, every, theta = config.attention_window, config.global_attention_every, config.rotary_theta
  local_theta = config.local_rotary_theta or theta
  if not (window and every):
    return Layer(window=window, rotary_theta=local_theta if window else theta)
  is_local = np.arange(count) % every > 0
  if theta != local_theta:
    theta = np.where(is_local, local_theta, theta).astype(np.float32)
  return Layer(window=np.where(is_local, window, 0).astype(np.int32), rotary_theta=theta)


def stack_layers(params: Any) -> Any:
  """Stacks the layers of every tower in a tree of parameters: 'layer_0', 'layer_1'.. at any depth
  become 'layers', but for first layers with other parameters than the last."""
  if not isinstance(params, dict):
    return params
  names = sorted((k for k in params if re.fullmatch(r'layer_\d+', k)), key=lambda k: int(k[6:]))
  parts = [jax.tree.structure(params[k]) for k in names]
  names = [k for k, x in zip(names, parts) if x == parts[-1]] if 'layers' not in params else []
  rest = {k: stack_layers(v) for k, v in params.items() if k not in names}
  if not names:
    return rest
  stack = jnp.stack if isinstance(jax.tree.leaves(params)[0], Array) else np.stack
  return rest | {'layers': jax.tree.map(lambda *x: stack(x), *(params[k] for k in names))}


def unstack_layers(params: Any) -> Any:
  """The inverse of stack_layers."""
  if not isinstance(params, dict):
    return params
  rest = {k: unstack_layers(v) for k, v in params.items() if k != 'layers'}
  if 'layers' not in params:
    return rest
  layers = params['layers']
  before = sum(re.fullmatch(r'layer_\d+', k) is not None for k in rest)
  numbers = range(len(jax.tree.leaves(layers)[0]))
  return rest | {f'layer_{before + i}': jax.tree.map(lambda x, i=i: x[i], layers) for i in numbers}
