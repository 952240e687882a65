"""The enhanced mask decoder (DeBERTa, He et al. 2020, https://arxiv.org/abs/2006.03654, 3.2), which
lets a model whose layers know relative positions alone predict words by their absolute ones, too.

The encoder's last layer is applied config.mask_decoder times. It always reads the vectors below it.
What asks is, at first, these vectors plus a learned vector of each token's position, and then what
the layer gave before. Only the prediction of masked words reads the result.

B batch, T tokens, D hidden size, P positions.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
from jax import Array

from bert_jax.models import layers
from bert_jax.models.config import ModelConfig
from bert_jax.models.encoder import Encoder, tokens_of
from bert_jax.models.stack import run_blocks

TABLE = 'position_embeddings'  # its parameters among those of the masked-LM head


class MaskDecoder(nn.Module):
  """The vectors [B, T, D] from which words are predicted, of those below the last layer, x."""

  config: ModelConfig

  @nn.compact
  def __call__(
    self, x_BTD: Array, position_ids_BT: Array, segment_ids_BT: Array, deterministic: bool = True
  ) -> Array:
    config = self.config
    tokens = tokens_of(self, segment_ids_BT, position_ids_BT)
    table = nn.Embed(config.max_position_embeddings, config.hidden_size, name=TABLE)
    places_BTD = table(position_ids_BT).astype(x_BTD.dtype)
    # One layer with one set of weights, applied several times, is what shared layers are.
    same = dataclasses.replace(config, share_layers=True, scan_layers=False)
    tokens = dataclasses.replace(tokens, seen=x_BTD)
    return run_blocks(same, config.mask_decoder, deterministic, x_BTD + places_BTD, tokens)


def init(config: ModelConfig, rng: Array) -> dict[str, Any]:
  """Initial parameters beside those of the encoder: its table of positions [P, D]."""
  shape = config.max_position_embeddings, config.hidden_size
  return {TABLE: {'embedding': layers.initializer(config)(rng, shape)}}


def encode(
  config: ModelConfig, params: Mapping[str, Any], arrays: Sequence[Array], rng: Array | None
) -> Array:
  """Rows -> the vectors [B, T, D] from which words are predicted. params: {'encoder', 'mlm':
  parameters}. arrays: the four of an Encoder. rng: for dropout, or None."""
  encoder, count = params['encoder'], config.num_hidden_layers
  if config.scan_layers:
    last = jax.tree.map(lambda x_L: x_L[-1], encoder['layers'])
    below = encoder | {'layers': jax.tree.map(lambda x_L: x_L[:-1], encoder['layers'])}
  else:
    last = encoder[f'layer_{count - 1}']
    below = encoder

  def apply(module, params, part, *arrays):
    rngs = {} if rng is None else {'dropout': jax.random.fold_in(rng, part)}
    return module.apply({'params': params}, *arrays, rng is None, rngs=rngs)

  x_BTD = apply(
    Encoder(dataclasses.replace(config, num_hidden_layers=count - 1)), below, 0, *arrays
  )
  shared = {name: encoder[name] for name in ('distances',) if name in encoder}
  own = {TABLE: params['mlm'][TABLE], 'layer_0': last} | shared
  return apply(MaskDecoder(config), own, 1, x_BTD, *arrays[2:])
