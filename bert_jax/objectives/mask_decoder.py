"""The enhanced mask decoder (DeBERTa, He et al. 2020, https://arxiv.org/abs/2006.03654, 3.2), by
which a model whose layers know relative positions alone predicts words by their absolute ones, too.

The encoder's last layer is applied model.mask_decoder times. It always reads the vectors below it.
What asks is at first the sum of these and of a learned vector of each position, and then what the
layer gave before. Only the prediction of masked words reads the result.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax

from bert_jax import models
from bert_jax.models.encoder import tokens_of
from bert_jax.models.stack import run_blocks
from bert_jax.objectives.base import Key, Params

TABLE = 'position_embeddings'  # its parameters, among those of the masked-LM head


class MaskDecoder(nn.Module):
  """The vectors [B, T, D] that words are predicted from, of those below the last layer, x."""

  config: models.ModelConfig

  @nn.compact
  def __call__(
    self, x_BTD: jax.Array, position_ids_BT: jax.Array, segment_ids_BT: jax.Array, still: bool
  ) -> jax.Array:
    config, tokens = self.config, tokens_of(self, segment_ids_BT, position_ids_BT)
    table = nn.Embed(config.max_position_embeddings, config.hidden_size, name=TABLE)
    asking_BTD = x_BTD + table(position_ids_BT).astype(x_BTD.dtype)
    # One layer that is applied several times is what shared layers are.
    same = dataclasses.replace(config, share_layers=True, scan_layers=False)
    tokens = dataclasses.replace(tokens, keys_from=x_BTD)
    return run_blocks(same, config.mask_decoder, still, asking_BTD, tokens)


def encode(
  config: models.ModelConfig, params: Params, arrays: Sequence[jax.Array], rng: Key
) -> jax.Array:
  """The vectors [B, T, D] that words are predicted from. params: {'encoder', 'mlm': parameters}.
  arrays: the four of an Encoder. rng: for dropout, or None."""
  encoder, count = params['encoder'], config.num_hidden_layers
  if config.scan_layers:
    last = jax.tree.map(lambda x_L: x_L[-1], encoder['layers'])
    encoder = encoder | {'layers': jax.tree.map(lambda x_L: x_L[:-1], encoder['layers'])}
  else:
    last = encoder[f'layer_{count - 1}']
  shared = {name: x for name, x in encoder.items() if name == 'distances'}
  own = shared | {TABLE: params['mlm'][TABLE], 'layer_0': last}
  below = decoder = {}
  if rng is not None:
    below_key, decoder_key = jax.random.split(rng)
    below, decoder = {'dropout': below_key}, {'dropout': decoder_key}
  module = models.Encoder(dataclasses.replace(config, num_hidden_layers=count - 1))
  x_BTD = module.apply({'params': encoder}, *arrays, rng is None, rngs=below)
  decode: Any = MaskDecoder(config).apply
  return decode({'params': own}, x_BTD, *arrays[2:], rng is None, rngs=decoder)
