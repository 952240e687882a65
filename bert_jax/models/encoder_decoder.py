"""The Transformer of Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762): an encoder, and a
decoder that reads its hidden states while it writes.

Both are towers of the same blocks; those of the decoder are causal and attend to a context, the
encoder's hidden states, too. Both look words up in one table, that of the encoder. BART (Lewis et
al. 2019, https://arxiv.org/abs/1910.13461) is the same with learned positions and a norm after the
embeddings.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.models import layers
from bert_jax.models.config import ModelConfig
from bert_jax.models.decoding import grown
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.encoder import encoder_flops, init_encoder, tower_flops
from bert_jax.models.heads import MaskedLMHead
from bert_jax.models.positions import POSITIONS
from bert_jax.models.stack import run_blocks, stack_layers
from bert_jax.models.tokens import Tokens


def decoder_layers(config):
  return config.num_decoder_layers or config.num_hidden_layers


class Decoder(nn.Module):
  """input_ids, position_ids, segment_ids [B, T] and a context (vectors [B, S, D], their Tokens) ->
  hidden states [B, T, D]. A token sees those before it in its segment and itself, and all of the
  context in its segment. It has no token types."""

  config: ModelConfig

  @nn.compact
  def __call__(self, input_ids_BT, position_ids_BT, segment_ids_BT, context, deterministic=True):
    config = self.config
    embed = Embeddings(dataclasses.replace(config, type_vocab_size=0), name='embeddings')
    x_BTD = embed(input_ids_BT, None, position_ids_BT, deterministic)
    x_BTD = nn.with_logical_constraint(x_BTD, ('batch', 'length', 'hidden'))
    positions_BT = position_ids_BT if POSITIONS[config.position_embeddings].turn else None
    places_BT = position_ids_BT if layers.caches(self) else None
    tokens = Tokens(segment_ids_BT, positions_BT, causal=True, places=places_BT)
    return run_blocks(config, decoder_layers(config), deterministic, x_BTD, tokens, context)


def init(config, rng):
  """{'encoder', 'decoder': parameters}; the decoder has no table of words but that of the encoder
  (see with_words). The same numbers whether layers are scanned or unrolled."""
  encoder_key, decoder_key = jax.random.split(rng)
  unrolled = Decoder(dataclasses.replace(config, scan_layers=False, remat='none'))
  ids = jnp.zeros((1, 1), jnp.int32)
  context = jnp.zeros((1, 1, config.hidden_size), config.dtype), Tokens(ids)
  decoder = unrolled.init(decoder_key, ids, ids, ids, context)['params']
  del decoder['embeddings']['word_embeddings']
  if not decoder['embeddings']:
    del decoder['embeddings']
  decoder = stack_layers(decoder) if config.stacks_layers else decoder
  return {'encoder': init_encoder(config, encoder_key), 'decoder': decoder}


def words_of(params):
  """The table of words [V, E] of an encoder and its decoder."""
  return params['encoder']['embeddings']['word_embeddings']['embedding']


def with_words(params):
  """The parameters of a Decoder: its own, and the encoder's table of words."""
  words = {'word_embeddings': params['encoder']['embeddings']['word_embeddings']}
  return params['decoder'] | {'embeddings': words | params['decoder'].get('embeddings', {})}


def of_decoder(config, params, context, ids_BP, *, length, copies=1):
  """(logits_BV, cache, step) for decoding.py of a Decoder that has read the prompts ids_BP, all of
  P tokens; logits are those of the token after. params: those of 'encoder', 'decoder' and 'mlm'.
  length: of the cache. The step reads `copies` sequences, such as beams, for each prompt. The keys
  and values of the context are computed once. They are not in the cache that a beam search reorders
  at each token: all beams of a prompt have the same context."""
  # Steps of one token; and layers that share their weights have each a cache.
  scan = config.scan_layers or config.share_layers
  config = dataclasses.replace(
    config, attention_implementation='einsum', remat='none', scan_layers=scan
  )
  weights = {'params': with_words(params)}

  def run(ids_BT, places_BT, tokens, **cache):
    arrays = ids_BT, places_BT, jnp.ones_like(ids_BT), (context[0], tokens)
    hidden_BTD, new = Decoder(config).apply(weights | cache, *arrays, mutable=['cache'])
    variables = {'params': params.get('mlm', {})}
    logits_B1V = MaskedLMHead(config).apply(variables, hidden_BTD[:, -1:], words_of(params))
    flat = flatten_dict(new['cache'])
    is_fixed = {name: name[-1].startswith('context_') for name in flat}
    parts = ({name: x for name, x in flat.items() if is_fixed[name] == k} for k in (False, True))
    return logits_B1V[:, 0], *parts

  places_BP = jnp.broadcast_to(jnp.arange(ids_BP.shape[1]), ids_BP.shape)
  logits_BV, cache, fixed = run(ids_BP, places_BP, context[1])
  fixed, tokens = jax.tree.map(lambda x: jnp.repeat(x, copies, axis=0), (fixed, context[1]))

  def step(cache, ids_X, places_X):
    whole = unflatten_dict(flatten_dict(cache) | fixed)
    logits_XV, cache, _ = run(ids_X[:, None], places_X[:, None], tokens, cache=whole)
    return logits_XV, unflatten_dict(cache)

  return logits_BV, grown(unflatten_dict(cache), length), step


def encoder_decoder_flops(config, batch, source_length, target_length):
  """Floating-point operations of one forward pass, matrix products only, without the product with
  the vocabulary."""
  encoder = encoder_flops(config, batch, source_length)
  projection = 2 * batch * target_length * config.embedding_size * config.hidden_size
  layers = decoder_layers(config)
  return (
    encoder
    + projection
    + tower_flops(config, layers, batch, target_length, context_length=source_length, causal=True)
  )
