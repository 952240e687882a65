"""The encoder: embeddings, then a tower of blocks.

Blocks are post-LN, as in BERT, or pre-LN with one more norm at the end (Xiong et al. 2020,
https://arxiv.org/abs/2002.04745).
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from bert_jax.models import cache, embeddings
from bert_jax.models.config import ModelConfig
from bert_jax.models.memory import Memory
from bert_jax.models.positions import POSITIONS
from bert_jax.models.stack import run_blocks, stack_layers
from bert_jax.models.tokens import Causal, Tokens


class Encoder(nn.Module):
  """The hidden states [B, T, D] of rows of tokens, from four arrays of ids [B, T].
  segment_ids: 0 for padding, 1.. for the example of the row that a token belongs to, and all that
  it sees. causal: config.causal sets it for all rows. memory: the Memory before the rows."""

  config: ModelConfig

  @nn.compact
  def __call__(
    self,
    input_ids_BT: Array,
    token_type_ids_BT: Array,
    position_ids_BT: Array,
    segment_ids_BT: Array,
    deterministic: bool = True,
    causal: Causal = False,
    memory: Memory | None = None,
  ) -> Array:
    config = self.config
    if config.mixer == 'fourier':  # it reads padding too, whose positions count on
      at_T = jnp.arange(input_ids_BT.shape[1])
      position_ids_BT = jnp.where(segment_ids_BT > 0, position_ids_BT, at_T)
    embed = embeddings.Embeddings(config, name='embeddings')
    x_BTD = embed(input_ids_BT, token_type_ids_BT, position_ids_BT, deterministic)
    x_BTD = nn.with_logical_constraint(x_BTD, ('batch', 'length', 'hidden'))
    tokens = tokens_of(self, segment_ids_BT, position_ids_BT)
    tokens = dataclasses.replace(tokens, causal=config.causal or causal, memory=memory)
    return run_blocks(config, config.num_hidden_layers, deterministic, x_BTD, tokens)


def tokens_of(module: Any, segment_ids_BT: Array, position_ids_BT: Array) -> Tokens:
  """The Tokens for the layers of an encoder or decoder, made in its compact method: with positions
  only if these turn queries and keys, with places only if they fill a cache."""
  positions = POSITIONS[module.config.position_embeddings]
  places_BT = position_ids_BT if cache.caches(module) else None
  r_RD = positions.distances(module.config, name='distances')() if positions.distances else None
  ids_BT = position_ids_BT if positions.turn else None
  return Tokens(segment_ids_BT, ids_BT, places=places_BT, distances=r_RD)


def init_encoder(config: ModelConfig, rng: Array) -> Any:
  """Parameters of an Encoder: the same numbers whether layers are scanned or unrolled."""
  unrolled = Encoder(dataclasses.replace(config, scan_layers=False, remat='none'))
  ids = jnp.zeros((1, 1), jnp.int32)
  params = unrolled.init(rng, ids, ids, ids, ids)['params']
  return stack_layers(params) if config.stacks_layers else params


def one_token_steps(config: ModelConfig, params: Any) -> tuple[cache.Prefill, cache.OneStep]:
  """(prefill, step) of a causal encoder with its MLM head, see cache.one_token_steps."""

  def read(config, ids_BT, places_BT, segment_ids_BT, variables):
    variables = {'params': params['encoder']} | variables
    hidden_BTD, new = Encoder(config).apply(
      variables,
      ids_BT,
      jnp.zeros_like(ids_BT),
      places_BT,
      segment_ids_BT,
      causal=True,
      mutable=['cache'],
    )
    return hidden_BTD, new['cache']

  return cache.one_token_steps(config, params, read)
