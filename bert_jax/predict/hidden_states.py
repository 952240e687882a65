"""Returns the hidden states and attention probabilities of every layer of a model.

Linen's `sow` and `capture_intermediates` collect them. Training does not.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import Encoder, ModelConfig
from bert_jax.models.block import Block
from bert_jax.models.embeddings import Embeddings
from bert_jax.predict.packed_rows import power_of_two
from bert_jax.rows.row_arrays import TOKENS, build_row
from bert_jax.rows.windows import truncate

if TYPE_CHECKING:
  from bert_jax.predict.loaded import Loaded


class States(NamedTuple):
  """The states of a model that reads one text of T tokens, [CLS] and [SEP] included."""

  tokens: list[str]  # [T] pieces
  hidden: np.ndarray  # [L + 1, T, D]: of the embeddings, then of each layer
  attention: np.ndarray  # [L, H, T, T]: of each query over the keys, where they add up to 1


def states(model: 'Loaded', texts: Sequence[str]) -> States:
  """The States of a text or of a pair; a long one is cut."""
  tokenizer = model.tokenizer
  parts = tuple(tokenizer.ids_batch(texts))
  model.note({}, parts)
  room = model.limit - 2 - (len(parts) - 1) * tokenizer.between
  if sum(map(len, parts)) > room:
    model.counts[f'texts cut (longer than {model.limit} tokens)'] += 1
    parts = truncate(parts, room)
  if len(parts) == 2:
    first, second = parts
    parts = tokenizer.pair(first, second)
  length = 1 + sum(len(ids) + 1 for ids in parts)
  row = build_row(tokenizer, [[(ids, 0) for ids in parts]], power_of_two(length))
  arrays = [row[name][None] for name in TOKENS]
  hidden, attention = jax.device_get(model.inside(model.weights['encoder'], arrays))
  tokens = [tokenizer.pieces[i] for i in row['input_ids'][:length]]
  return States(tokens, hidden[:, :length], attention[:, :, :length, :length])


def inside(config: ModelConfig, params: Any, row: Any) -> tuple[jax.Array, jax.Array]:
  """Runs one row, arrays [1, T]: (hidden [L + 1, T, D], attention [L, H, T, T])."""
  hidden, layers = captured(config, params, row)
  attention = [x for layer in layers for x in layer['attention']['probabilities']]
  return jnp.concatenate(hidden).astype(jnp.float32), jnp.concatenate(attention)


def captured(config: ModelConfig, params: Any, row: Any) -> tuple[list[Any], list[Any]]:
  """Runs rows, arrays [B, T]: ([L + 1] hidden states [B, T, D], what the layers sowed)."""

  def is_captured(module, name):
    return isinstance(module, (Block, Embeddings))

  sown: Any
  input_ids, token_type_ids, position_ids, segment_ids = row
  out, sown = Encoder(config).apply(
    {'params': params},
    input_ids,
    token_type_ids,
    position_ids,
    segment_ids,
    capture_intermediates=is_captured,
    mutable=['intermediates'],
  )
  kept = sown['intermediates']
  count = 1 if config.share_layers else config.num_hidden_layers
  layers = [kept[f'layer_{i}'] for i in range(count)]  # a shared layer was called several times
  hidden = [kept['embeddings']['__call__'][0]]
  hidden += [x for layer in layers for x, _ in layer['__call__']]
  hidden[-1] = out  # in a pre-LN model a LayerNorm follows the last block
  return hidden, layers
