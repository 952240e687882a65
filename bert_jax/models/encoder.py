"""The encoder: embeddings, then a tower of blocks.

Blocks are post-LN, as in BERT, or pre-LN with one more norm at the end (Xiong et al. 2020,
https://arxiv.org/abs/2002.04745). They are unrolled or scanned, with the same parameters in two
layouts (see stack.py).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from bert_jax.models import cache, embeddings
from bert_jax.models.config import ModelConfig
from bert_jax.models.positions import POSITIONS
from bert_jax.models.stack import run_blocks, stack_layers
from bert_jax.models.tokens import Tokens


class Encoder(nn.Module):
  """The hidden states [B, T, D] of rows of tokens, from four arrays of ids [B, T].
  segment_ids: 0 for padding, 1.. for the example of the row that a token belongs to. Tokens see
  their own example only, so several short examples can share a row. causal: True, or [B] bool by
  row, if no token may see a later one; config.causal sets it for all rows. memory: the Memory
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
    places_BT = position_ids_BT if cache.caches(self) else None
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


def one_token_steps(config: ModelConfig, params: Any) -> tuple[Callable, Callable]:
  """(prefill, step) of a causal encoder with its MLM head, see cache.one_token_steps. params:
  {'encoder', 'mlm': parameters}."""

  def read(config, ids_BT, places_BT, segment_ids_BT, variables):
    variables = {'params': params['encoder']} | variables
    arrays = ids_BT, jnp.zeros_like(ids_BT), places_BT, segment_ids_BT
    hidden_BTD, new = Encoder(config).apply(variables, *arrays, causal=True, mutable=['cache'])
    return hidden_BTD, new['cache']

  return cache.one_token_steps(config, params, read)
