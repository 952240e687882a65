"""The memory of an attention layer: vectors of earlier tokens, placed before the row's own.

They were the layer's input when it read those tokens (Transformer-XL, Dai et al. 2019), and lie in
the collection `memory`. They get no gradient. recurrence.py makes an encoder of such layers.

B batch, M vectors of memory, T tokens, D hidden size.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.models.tokens import Tokens, pytree_with_constants


@pytree_with_constants
@dataclasses.dataclass(frozen=True)
class Memory:
  """Describes the M vectors before the tokens of each row. segment_ids: [B, M], as in Tokens; 0: no
  vector. taken: [B], how many tokens of each row enter the memory, from the first on."""

  segment_ids: Any
  taken: Any

  def with_row(self, memory_BM: Array, row_BT: Array) -> tuple[Array, Array]:
    """([B, M + T, ...], [B, M, ...]): the memory followed by the row, and the next memory, which is
    the last M vectors after `taken` tokens of the row have entered."""
    both = jnp.concatenate([jax.lax.stop_gradient(memory_BM), row_BT], axis=1)
    last = jax.vmap(lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, memory_BM.shape[1]))
    return both, jax.lax.stop_gradient(last(both, self.taken))


def before(module: nn.Module, x_BTD: Array, tokens: Tokens) -> tuple[Array, Tokens, Tokens]:
  """Puts the memory of an attention module before x, and x into the memory. Returns (the vectors of
  keys [B, M + T, D], the Tokens of queries, the Tokens of keys). Without a memory both Tokens are
  x's."""
  if tokens.memory is None:
    keys_BTD = x_BTD if tokens.keys_from is None else tokens.keys_from
    return keys_BTD, tokens, tokens
  memory = tokens.memory
  B, T, D = x_BTD.shape
  M = memory.segment_ids.shape[1]
  none_BMD = jnp.zeros((B, M, D), x_BTD.dtype)
  states_BMD = module.get_variable('memory', 'states', none_BMD)
  both_BTD, next_BMD = memory.with_row(states_BMD, x_BTD)
  module.put_variable('memory', 'states', next_BMD)
  ids_BT = jnp.concatenate([memory.segment_ids, tokens.segment_ids], axis=1)
  places = jnp.arange(M + T)
  at_BT = jnp.broadcast_to(places, ids_BT.shape)
  queries = dataclasses.replace(tokens, places=places[M:], position_ids=at_BT[:, M:])
  return both_BTD, queries, Tokens(ids_BT, at_BT, places=places)
