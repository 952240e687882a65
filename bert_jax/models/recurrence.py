"""Segment recurrence: an encoder whose layers also see their vectors of earlier tokens, in a memory
(Transformer-XL, Dai et al. 2019, https://arxiv.org/abs/1901.02860, 3.2). It gets no gradient.

A memory is {'segment_ids': [B, M], 'states': the input of each layer's attention, [B, M, D] each},
or [B, L, M, D] for scanned layers. segment_ids are 0 where it is empty. The newest vector is last.

B batch, M vectors of memory, T tokens, D hidden size.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.models.config import ModelConfig
from bert_jax.models.encoder import Encoder
from bert_jax.models.memory import Memory
from bert_jax.models.stack import layers_apart
from bert_jax.models.tokens import Causal


def empty(config: ModelConfig, batch_size: int, length: int) -> dict[str, Any]:
  """The shapes of a memory of M = `length` vectors, as ShapeDtypeStructs."""
  count = config.num_hidden_layers
  apart = layers_apart(config, count)

  def states(*layers):
    shape = batch_size, *layers, length, config.hidden_size
    return {'attention': {'states': jax.ShapeDtypeStruct(shape, jnp.dtype(config.dtype))}}

  of_layers = {f'layer_{i}': states() for i in range(apart)}
  of_layers |= {'layers': states(count - apart)} if apart < count else {}
  ids_BM = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
  return {'segment_ids': ids_BM, 'states': of_layers}


def encode(
  config: ModelConfig,
  params: Any,
  batch: Mapping[str, Array],
  memory: dict[str, Any],
  taken_B: Array,
  rng: Array | None = None,
  causal: Causal = False,
) -> tuple[Any, dict[str, Any]]:
  """Encodes rows with a memory: (hidden states [B, T, D], the memory after them). batch: has the
  four arrays of an Encoder. taken_B: how many tokens of each row enter the memory. rng: for
  dropout."""
  before = Memory(memory['segment_ids'], taken_B)
  hidden_BTD, after = Encoder(config).apply(
    {'params': params, 'memory': memory['states']},
    batch['input_ids'],
    batch['token_type_ids'],
    batch['position_ids'],
    batch['segment_ids'],
    causal=causal,
    memory=before,
    deterministic=rng is None,
    rngs={} if rng is None else {'dropout': rng},
    mutable=['memory'],
  )
  _, ids_BM = before.with_row(before.segment_ids, batch['segment_ids'])
  return hidden_BTD, {'segment_ids': ids_BM, 'states': after['memory']}
