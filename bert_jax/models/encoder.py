"""The encoder: embeddings, then a tower of blocks.

Blocks are post-LN, as in BERT, or pre-LN with one more norm at the end (Xiong et al. 2020,
https://arxiv.org/abs/2002.04745). They are unrolled or scanned, with the same parameters in two
layouts (see stack.py).
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from bert_jax.models import attention, embeddings, layers
from bert_jax.models.config import ModelConfig
from bert_jax.models.positions import POSITIONS
from bert_jax.models.stack import layer_numbers, run_blocks, stack_layers
from bert_jax.models.tokens import Tokens


class Encoder(nn.Module):
  """input_ids, token_type_ids, position_ids, segment_ids [B, T] -> hidden states [B, T, D].
  segment_ids: 0 for padding, 1.. for the example of the row that a token belongs to. Tokens see
  their own example only, so several short examples can share a row. causal: True, or [B] bool by
  row, if no token may see a later one; so it is for all with config.causal. memory: the Memory
  before the rows, or None."""

  config: ModelConfig

  @nn.compact
  def __call__(
    self,
    input_ids_BT,
    token_type_ids_BT,
    position_ids_BT,
    segment_ids_BT,
    deterministic=True,
    causal=False,
    memory=None,
  ):
    config = self.config
    embed = embeddings.Embeddings(config, name='embeddings')
    x_BTD = embed(input_ids_BT, token_type_ids_BT, position_ids_BT, deterministic)
    x_BTD = nn.with_logical_constraint(x_BTD, ('batch', 'length', 'hidden'))
    # Layers need the positions only where they turn queries and keys.
    positions_BT = position_ids_BT if POSITIONS[config.position_embeddings].turn else None
    places_BT = position_ids_BT if layers.caches(self) else None
    everywhere_BT = position_ids_BT < config.global_tokens if config.global_tokens else None
    tokens = Tokens(
      segment_ids_BT, positions_BT, config.causal or causal, places_BT, memory, everywhere_BT
    )
    return run_blocks(config, config.num_hidden_layers, deterministic, x_BTD, tokens)


def init_encoder(config, rng):
  """Parameters of an Encoder: the same numbers whether layers are scanned or unrolled."""
  unrolled = Encoder(dataclasses.replace(config, scan_layers=False, remat='none'))
  ids = jnp.zeros((1, 1), jnp.int32)
  params = unrolled.init(rng, ids, ids, ids, ids)['params']
  return stack_layers(params) if config.stacks_layers else params


def unsupported(config, causal=False):
  """Why this model cannot be computed, with the fix, in a sentence; or ''.
  causal: False, True, or 'by row'; of config.causal, True."""
  causal = config.causal or causal
  if config.memory_length and (config.mixer != 'attention' or config.share_layers):
    without = 'has no attention' if config.mixer != 'attention' else 'has one copy of its layers'
    return (
      f'model.memory_length={config.memory_length} is for the attention of each layer, and this '
      f'model {without}; set it to 0, or model.mixer=attention and model.share_layers=false.'
    )
  positions = POSITIONS[config.position_embeddings]
  if positions.turn and config.hidden_size // config.num_attention_heads % 2:
    return (
      f'model.position_embeddings={config.position_embeddings} turns pairs of numbers, and heads '
      f'of {config.hidden_size} / {config.num_attention_heads} have an odd one; use another '
      'model.num_attention_heads.'
    )
  if config.mixer != 'attention':
    if causal:
      return f'model.mixer={config.mixer} reads later tokens too, which may not be; use attention.'
    if positions.turn or positions.bias or positions.scores:
      return (
        f'model.position_embeddings={config.position_embeddings} is a part of attention, which '
        f'model.mixer={config.mixer} has not; use learned or none.'
      )
    of_attention = {'attention_window': 0, 'attention_implementation': 'einsum'}
    for name, without in of_attention.items():
      if getattr(config, name) != without:
        return f'model.mixer={config.mixer} has no attention; set model.{name}={without}.'
  if config.mixer == 'lstm' and config.hidden_size % 2:
    return f'model.mixer=lstm halves model.hidden_size {config.hidden_size}; use an even one.'
  if config.mixer == 'conv' and config.conv_width % 2 == 0:
    return f'model.conv_width {config.conv_width} has no middle; use an odd number.'
  if not config.first_norm and (config.norm_placement != 'pre' or config.share_layers):
    other = 'model.norm_placement=pre' if config.norm_placement != 'pre' else 'share_layers=false'
    return f'model.first_norm=false leaves out the norm before the first layer alone; set {other}.'
  if config.mlm_head == 'none' and config.embedding_size:
    return (
      f'model.mlm_head=none leaves vectors of model.hidden_size {config.hidden_size}, and words '
      f'have model.embedding_size {config.embedding_size}; use mlm_head=dense, or embedding_size=0.'
    )
  if config.local_rotary_theta and not (positions.turn and config.attention_window):
    return (
      'model.local_rotary_theta is for rotary positions of layers with a window, which this model '
      'has not; set it to 0.'
    )
  if config.global_attention_every and not config.attention_window:
    return (
      f'model.global_attention_every is {config.global_attention_every} and there is no window; '
      'set model.attention_window, or this to 0.'
    )
  window = config.attention_window
  given = f'model.global_tokens={config.global_tokens}'
  if config.global_tokens and (not window or config.memory_length or causal):
    other = 'model.causal=false and model.memory_length=0' if window else 'model.attention_window'
    return f'{given} are for windows that look both ways in whole rows; set {other}, or it to 0.'
  if config.global_tokens and config.attention_implementation == 'splash':
    return f'{given} cannot be computed by splash, which has windows alone; use einsum or xla.'
  if config.scan_layers and config.global_attention_every:
    window = 'by layer'
  name, rate = config.attention_implementation, config.attention_probs_dropout_prob
  bias, places = bool(positions.bias or positions.scores), config.memory_length > 0
  return attention.unsupported(
    name, causal=causal, window=window, bias=bias, dropout=rate, places=places
  )


def encoder_flops(config, batch, length):
  """Floating-point operations of one forward pass over [batch, length], matrix products only."""
  projection = 2 * batch * length * config.embedding_size * config.hidden_size
  layers, stretches = config.num_hidden_layers, 1
  if config.recurrent_length:
    stretches = -(-length // config.recurrent_length)
    length = min(length, config.recurrent_length)
  tower = tower_flops(
    config, layers, batch, length, causal=config.causal, memory=config.memory_length
  )
  return projection + stretches * tower


def tower_flops(config, count, batch, length, context_length=0, causal=False, memory=0):
  """As encoder_flops, of a tower of `count` blocks. context_length: of the context that each block
  attends to as well, or 0. memory: vectors that stand before a row. With a window,
  attention counts what a token sees; causal attention without a window counts in full, as is the
  custom. A Fourier transform is no matrix product and counts 0."""
  D, F = config.hidden_size, config.intermediate_size
  window = np.broadcast_to(layer_numbers(config, count).window, count)
  keys = length + memory
  reach = np.where(window, window if causal else window // 2 * 2 + 1, keys)
  reach = keys if config.global_tokens else reach  # all is computed, and masked
  seen = int(np.broadcast_to(np.minimum(reach, keys), count).sum())
  relative = POSITIONS[config.position_embeddings].scores is not None
  mixing = {
    'attention': count * 2 * 4 * D * D + 2 * (3 if relative else 2) * seen * D,
    'fourier': 0,
    'lstm': count * 2 * 2 * (D + D // 2) * 4 * (D // 2),
    'conv': count * 2 * (3 * D * D + config.conv_width * D),
    'bag': count * 2 * D * D,
  }[config.mixer]
  products = {'mlp': 2, 'glu': 3}[config.feed_forward]
  total = batch * length * (mixing + count * 2 * products * D * F)
  total += count * batch * 2 * 2 * memory * D * D
  if relative:  # the product of each distance, which all rows share
    total += count * 2 * (keys if causal else keys + length) * D * D
  if context_length:
    projections = 2 * 2 * D * D * (length + context_length)
    total += count * batch * (projections + 2 * 2 * length * context_length * D)
  return total
