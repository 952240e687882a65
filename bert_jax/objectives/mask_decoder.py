"""The enhanced mask decoder (DeBERTa, He et al. 2020, https://arxiv.org/abs/2006.03654, 3.2), by
which a model whose layers know relative positions alone predicts words by their absolute ones, too.

The encoder's last layer is applied model.mask_decoder times. It always reads the vectors below it.
What asks is at first the sum of these and of a learned vector of each position, and then what the
layer gave before. Only the prediction of masked words reads the result.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax

from bert_jax import models
from bert_jax.models.encoder import tokens_of
from bert_jax.models.stack import run_blocks
from bert_jax.objectives.base import Batch, Key, Params

TABLE = 'position_embeddings'  # its parameters, among those of the masked-LM head


class MaskDecoder(nn.Module):
  """The vectors [B, T, D] that words are predicted from, of those below the last layer, x."""

  config: models.ModelConfig

  @nn.compact
  def __call__(
    self,
    x_BTD: jax.Array,
    position_ids_BT: jax.Array,
    segment_ids_BT: jax.Array,
    deterministic: bool,
  ) -> jax.Array:
    config = self.config
    table = nn.Embed(config.max_position_embeddings, config.hidden_size, name=TABLE)
    asking_BTD = x_BTD + table(position_ids_BT).astype(x_BTD.dtype)
    tokens = tokens_of(self, segment_ids_BT, position_ids_BT)
    tokens = dataclasses.replace(tokens, keys_from=x_BTD)
    # One layer that is applied several times is what shared layers are.
    same = dataclasses.replace(config, share_layers=True, scan_layers=False)
    return run_blocks(same, config.mask_decoder, deterministic, asking_BTD, tokens)


def encode(config: models.ModelConfig, params: Params, batch: Batch, rng: Key) -> jax.Array:
  """The vectors [B, T, D] that words are predicted from. params: {'encoder', 'mlm': parameters}.
  rng: for dropout, or None."""
  encoder = params['encoder']
  count = config.num_hidden_layers
  if config.scan_layers:
    last = jax.tree.map(lambda x_L: x_L[-1], encoder['layers'])
    encoder = encoder | {'layers': jax.tree.map(lambda x_L: x_L[:-1], encoder['layers'])}
  else:
    last = encoder[f'layer_{count - 1}']
  shared = {name: x for name, x in encoder.items() if name == 'distances'}
  own = shared | {TABLE: params['mlm'][TABLE], 'layer_0': last}
  below_rngs = decoder_rngs = {}
  if rng is not None:
    below_key, decoder_key = jax.random.split(rng)
    below_rngs = {'dropout': below_key}
    decoder_rngs = {'dropout': decoder_key}
  deterministic = rng is None
  x_BTD = models.Encoder(dataclasses.replace(config, num_hidden_layers=count - 1)).apply(
    {'params': encoder},
    batch['input_ids'],
    batch['token_type_ids'],
    batch['position_ids'],
    batch['segment_ids'],
    deterministic,
    rngs=below_rngs,
  )
  decode: Any = MaskDecoder(config).apply
  return decode(
    {'params': own},
    x_BTD,
    batch['position_ids'],
    batch['segment_ids'],
    deterministic,
    rngs=decoder_rngs,
  )
