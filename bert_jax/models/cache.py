"""The key-value cache: the keys and values of earlier tokens, kept while text is generated.

It is the collection `cache` of the attention modules, used only where it is mutable. It has a fixed
length, so that all steps are one compiled program.

B sequences, T tokens, P tokens of the longest prompt, H heads, d size of a head, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import word_logits
from bert_jax.models.tokens import Pattern, Tokens

Cache = Any


def caches(module: nn.Module) -> bool:
  """Does this call of a module fill the collection `cache`? (Never while it makes parameters.)"""
  return module.is_mutable_collection('cache') and not module.is_initializing()


def stored_context(module: nn.Module) -> tuple[jax.Array, jax.Array] | None:
  """The keys and values of the context, if the cache of an attention module has them, or None."""
  if not caches(module) or not module.has_variable('cache', 'context_key'):
    return None
  return tuple(module.get_variable('cache', f'context_{x}') for x in ('key', 'value'))


def extended(
  module: nn.Module, k_BTHd: jax.Array, v_BTHd: jax.Array, pattern: Pattern, of_context: bool
) -> tuple[jax.Array, jax.Array, Pattern]:
  """Puts new keys and values into the cache of an attention module, and returns all of them with
  their Pattern. Without a cache, and for a context (which is kept), returns its arguments."""
  if not caches(module):
    return k_BTHd, v_BTHd, pattern
  if of_context:
    module.put_variable('cache', 'context_key', k_BTHd)
    module.put_variable('cache', 'context_value', v_BTHd)
    return k_BTHd, v_BTHd, pattern
  k_BTHd = _put(module, 'key', k_BTHd, pattern.queries.places)
  v_BTHd = _put(module, 'value', v_BTHd, pattern.queries.places)
  # Key j of a row stands at place j. Places without a token yet are later than any query, so that
  # no query sees them.
  B, length = k_BTHd.shape[:2]
  keys = Tokens(jnp.ones((B, length), jnp.int32), places=jnp.arange(length))
  return k_BTHd, v_BTHd, dataclasses.replace(pattern, keys=keys, causal=True)


def _put(module, name, new_BTHd, places_BT):
  """Puts new keys or values into the cache, at consecutive places from places_BT[:, 0] on; returns
  all, [B, length of the cache, H, d]. A cache is at first as long as what is first put in."""
  if module.has_variable('cache', name):
    put = jax.vmap(lambda old, new, at: jax.lax.dynamic_update_slice(old, new, (at, 0, 0)))
    new_BTHd = put(module.get_variable('cache', name), new_BTHd, places_BT[:, 0])
  module.put_variable('cache', name, new_BTHd)
  return new_BTHd


def grown(cache: Cache, length: int) -> Cache:
  """Pads a cache to `length` places for the keys and values of self-attention."""

  def grow(path, x):
    if path[-1].key not in ('key', 'value'):
      return x
    pads = [(0, 0)] * x.ndim
    pads[-3] = 0, length - x.shape[-3]
    return jnp.pad(x, pads)

  return jax.tree_util.tree_map_with_path(grow, cache)


def one_token_steps(
  config: ModelConfig, params: Any, read: Callable[..., tuple[jax.Array, Cache]]
) -> tuple[Callable, Callable]:
  """(prefill, step): how an encoder or decoder with an MLM head reads on, token by token.

  prefill(ids_BP, lengths_B, length) -> (logits_BV, cache): reads the prompts, padded at the end,
  into a cache of `length` places; the logits are for the token after each prompt.
  step(cache, ids_B, places_B) -> (logits_BV, cache): reads one token of each sequence.
  read(config, ids_BT, places_BT, segment_ids_BT, variables) -> (hidden states, cache): applies the
  model; variables: its cache as a collection, or {} at first."""
  # A step of one token needs neither kernel nor remat. Scanned, layers with shared weights have a
  # cache each.
  scan = config.scan_layers or config.share_layers
  config = dataclasses.replace(
    config, attention_implementation='einsum', remat='none', scan_layers=scan
  )

  def prefill(ids_BP, lengths_B, length):
    places_BP = jnp.broadcast_to(jnp.arange(ids_BP.shape[1]), ids_BP.shape)
    real_BP = (places_BP < lengths_B[:, None]).astype(jnp.int32)
    hidden_BPD, cache = read(config, ids_BP, places_BP, real_BP, {})
    last_B11 = (lengths_B - 1)[:, None, None]
    last_B1D = jnp.take_along_axis(hidden_BPD, last_B11, axis=1)
    return word_logits(config, params, last_B1D)[:, 0], grown(cache, length)

  def step(cache, ids_B, places_B):
    ids_B1 = ids_B[:, None]
    variables = {'cache': cache}
    hidden_B1D, cache = read(config, ids_B1, places_B[:, None], jnp.ones_like(ids_B1), variables)
    return word_logits(config, params, hidden_B1D)[:, 0], cache

  return prefill, step
