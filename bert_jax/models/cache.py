"""The key-value cache: the keys and values of earlier tokens, kept while text is generated.

It is the collection `cache` of attention modules, used only where it is mutable. Its length is
fixed, so that all steps are one compiled program.

B sequences, T tokens, P tokens of the longest prompt, H heads, d size of a head, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import word_logits
from bert_jax.models.pooling import gather_positions
from bert_jax.models.tokens import Pattern, Tokens

Cache = Any
Prefill = Callable[[Array, Array, int], tuple[Array, Cache]]
OneStep = Callable[[Cache, Array, Array], tuple[Array, Cache]]


def caches(module: nn.Module) -> bool:
  """Does this call of a module fill the collection `cache`? (Never while it makes parameters.)"""
  return module.is_mutable_collection('cache') and not module.is_initializing()


def stored_context(module: nn.Module) -> tuple[Array, Array] | None:
  """The keys and values of the context, if the cache of an attention module has them, or None."""
  if not caches(module) or not module.has_variable('cache', 'context_key'):
    return None
  return module.get_variable('cache', 'context_key'), module.get_variable('cache', 'context_value')


def extended(
  module: nn.Module, k_BTHd: Array, v_BTHd: Array, pattern: Pattern, of_context: bool
) -> tuple[Array, Array, Pattern]:
  """Puts new keys and values into the cache of an attention module, and returns all with their
  Pattern. Without a cache, and for a context (which is kept), returns its arguments."""
  if not caches(module):
    return k_BTHd, v_BTHd, pattern
  if of_context:
    module.put_variable('cache', 'context_key', k_BTHd)
    module.put_variable('cache', 'context_value', v_BTHd)
    return k_BTHd, v_BTHd, pattern
  k_BTHd = _put(module, 'key', k_BTHd, pattern.queries.places)
  v_BTHd = _put(module, 'value', v_BTHd, pattern.queries.places)
  # Key j of a row stands at place j. Places without a token yet are later than any query.
  keys = Tokens(jnp.ones(k_BTHd.shape[:2], jnp.int32), places=jnp.arange(k_BTHd.shape[1]))
  return k_BTHd, v_BTHd, dataclasses.replace(pattern, keys=keys, causal=True)


def _put(module, name, new_BTHd, places_BT):
  """Puts new keys or values into the cache from places_BT[:, 0] on, and returns all of them. The
  first ones make the cache."""
  if module.has_variable('cache', name):
    put = jax.vmap(lambda old, new, at: jax.lax.dynamic_update_slice(old, new, (at, 0, 0)))
    new_BTHd = put(module.get_variable('cache', name), new_BTHd, places_BT[:, 0])
  module.put_variable('cache', name, new_BTHd)
  return new_BTHd


def grown(cache: Cache, length: int) -> Cache:
  """Pads a cache to `length` places for the keys and values of self-attention."""

  def grow(path, x):
    pads = [(0, 0)] * (x.ndim - 3) + [(0, length - x.shape[-3]), (0, 0), (0, 0)]
    return jnp.pad(x, pads) if path[-1].key in ('key', 'value') else x

  return jax.tree_util.tree_map_with_path(grow, cache)


def one_token_steps(
  config: ModelConfig, params: Any, read: Callable[..., tuple[Array, Cache]]
) -> tuple[Prefill, OneStep]:
  """(prefill, step): how an encoder or decoder with an MLM head reads on, token by token.

  prefill(ids_BP, lengths_B, length) -> (logits_BV, cache): reads the prompts, padded at the end,
  into a cache of `length` places; the logits are for the token after each prompt.
  step(cache, ids_B, places_B) -> (logits_BV, cache): reads one token of each sequence.
  read(config, ids_BT, places_BT, segment_ids_BT, variables) -> (hidden states, cache): applies the
  model; variables: {'cache': its cache}, or {} at first."""
  # A step of one token needs neither kernel nor remat.
  config = dataclasses.replace(config, attention_implementation='einsum', remat='none')
  if config.share_layers:  # scanned, they have a cache each
    config = dataclasses.replace(config, scan_layers=True)

  def prefill(ids_BP, lengths_B, length):
    places_BP = jnp.broadcast_to(jnp.arange(ids_BP.shape[1]), ids_BP.shape)
    real_BP = (places_BP < lengths_B[:, None]).astype(jnp.int32)
    hidden_BPD, cache = read(config, ids_BP, places_BP, real_BP, {})
    last_B1D = gather_positions(hidden_BPD, lengths_B[:, None] - 1)
    return word_logits(config, params, last_B1D)[:, 0], grown(cache, length)

  def step(cache, ids_B, places_B):
    ids_B1, places_B1 = ids_B[:, None], places_B[:, None]
    hidden_B1D, cache = read(config, ids_B1, places_B1, jnp.ones_like(ids_B1), {'cache': cache})
    return word_logits(config, params, hidden_B1D)[:, 0], cache

  return prefill, step
