"""The Transformer of Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762): an encoder, and a
decoder that reads its hidden states while it writes.

Both are towers of the same blocks, which in the decoder are causal and also attend to a context,
the encoder's hidden states. Both use the encoder's word embeddings. BART (Lewis et al. 2019,
https://arxiv.org/abs/1910.13461) is the same with other embeddings.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from bert_jax.models.attention import Context
from bert_jax.models.cache import one_token_steps
from bert_jax.models.config import ModelConfig
from bert_jax.models.decoding.sampling import Step
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.encoder import init_encoder, tokens_of
from bert_jax.models.stack import run_blocks, stack_layers
from bert_jax.models.tokens import Tokens


class Decoder(nn.Module):
  """The hidden states [B, T, D] of the target side, from three arrays of ids [B, T] and a context.
  A token sees itself and earlier tokens of its segment, and all of the context in its segment."""

  config: ModelConfig

  @nn.compact
  def __call__(
    self,
    input_ids_BT: Array,
    position_ids_BT: Array,
    segment_ids_BT: Array,
    context: Context,
    deterministic: bool = True,
  ) -> Array:
    config = self.config
    embed = Embeddings(dataclasses.replace(config, type_vocab_size=0), name='embeddings')
    x_BTD = embed(input_ids_BT, None, position_ids_BT, deterministic)
    x_BTD = nn.with_logical_constraint(x_BTD, ('batch', 'length', 'hidden'))
    tokens = dataclasses.replace(tokens_of(self, segment_ids_BT, position_ids_BT), causal=True)
    count = config.num_decoder_layers or config.num_hidden_layers
    return run_blocks(config, count, deterministic, x_BTD, tokens, context)


def init(config: ModelConfig, rng: Array) -> dict[str, Any]:
  """Initial {'encoder', 'decoder': parameters}; the decoder has no word embeddings of its own (see
  with_words). The same numbers whether layers are scanned or unrolled."""
  encoder_key, decoder_key = jax.random.split(rng)
  unrolled = Decoder(dataclasses.replace(config, scan_layers=False, remat='none'))
  ids = jnp.zeros((1, 1), jnp.int32)
  context = jnp.zeros((1, 1, config.hidden_size), config.dtype), Tokens(ids)
  decoder = dict(unrolled.init(decoder_key, ids, ids, ids, context)['params'])
  tables = {k: x for k, x in decoder.pop('embeddings').items() if k != 'word_embeddings'}
  decoder |= {'embeddings': tables} if tables else {}
  decoder = stack_layers(decoder) if config.stacks_layers else decoder
  return {'encoder': init_encoder(config, encoder_key), 'decoder': decoder}


def with_words(params: Mapping[str, Any]) -> dict[str, Any]:
  """The parameters of a Decoder: its own, and the encoder's word embeddings."""
  words = {'word_embeddings': params['encoder']['embeddings']['word_embeddings']}
  return params['decoder'] | {'embeddings': words | params['decoder'].get('embeddings', {})}


def prefilled(
  config: ModelConfig, params: Any, context: Context, ids_BP: Array, *, length: int, copies: int = 1
) -> tuple[Array, Any, Step]:
  """Reads prompts ids_BP, all of P tokens, with a Decoder; returns (logits_BV of the next token,
  cache, step), where step(cache, ids, places) reads one more (see cache.one_token_steps).
  params: {'encoder', 'decoder', 'mlm': parameters}. length: places in the cache. The step reads
  `copies` sequences, such as beams, for each prompt. Keys and values of the context are computed
  once, and not in the cache that a beam search reorders at each token."""
  weights = {'params': with_words(params)}

  def copied(x):
    return jnp.repeat(x, copies, axis=0)

  def read(config, ids_BT, places_BT, segment_ids_BT, variables):
    tokens = jax.tree.map(copied, context[1]) if variables else context[1]
    hidden_BTD, new = Decoder(config).apply(
      weights | variables,
      ids_BT,
      places_BT,
      segment_ids_BT,
      (context[0], tokens),
      mutable=['cache'],
    )
    return hidden_BTD, new['cache']

  def apart(cache):
    """Splits a cache: (keys and values of the sequences, keys and values of the context)."""
    flat = flatten_dict(cache)
    fixed = {name: x for name, x in flat.items() if name[-1].startswith('context_')}
    return unflatten_dict({name: x for name, x in flat.items() if name not in fixed}), fixed

  prefill, read_one = one_token_steps(config, params, read)
  logits_BV, cache = prefill(ids_BP, jnp.full(len(ids_BP), ids_BP.shape[1]), length)
  cache, fixed = apart(cache)
  fixed = jax.tree.map(copied, fixed)

  def step(cache, ids_X, places_X):
    logits_XV, cache = read_one(unflatten_dict(flatten_dict(cache) | fixed), ids_X, places_X)
    return logits_XV, apart(cache)[0]

  return logits_BV, cache, step
