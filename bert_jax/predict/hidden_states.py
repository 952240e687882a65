"""Returns the hidden states and attention probabilities of every layer of a model.

Linen's `sow` and `capture_intermediates` collect them. Training does not.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import InputError
from bert_jax.models import Encoder, ModelConfig
from bert_jax.models.block import Block
from bert_jax.models.embeddings import Embeddings
from bert_jax.predict.packed_rows import power_of_two
from bert_jax.rows.row_arrays import TOKENS, build_row
from bert_jax.rows.windows import truncate
from bert_jax.tasks.ask import Ask, texts_in
from bert_jax.tasks.record import Prediction

if TYPE_CHECKING:
  from bert_jax.predict.model import Model


class States(NamedTuple):
  """The states of a model that reads one text of T tokens, [CLS] and [SEP] included."""

  tokens: list[str]  # [T] pieces
  hidden: np.ndarray  # [L + 1, T, D]: of the embeddings, then of each layer
  attention: np.ndarray  # [L, H, T, T]: of each query over the keys, where they add up to 1


def states(model: 'Model', inside: Callable, texts: Sequence[str]) -> States:
  """The States of a text or of a pair; a long one is cut. inside: the function below, compiled."""
  tokenizer = model.tokenizer
  parts = tuple(tokenizer.ids_batch(texts))
  model.note({}, parts)
  room = model.limit - 2 - (len(parts) - 1) * tokenizer.between
  if sum(map(len, parts)) > room:
    model.counts[f'texts cut (longer than {model.limit} tokens)'] += 1
    parts = truncate(parts, room)
  if len(parts) == 2:
    parts = tokenizer.pair(*parts)
  length = 1 + sum(len(ids) + 1 for ids in parts)
  row = build_row(tokenizer, [[(ids, 0) for ids in parts]], power_of_two(length))
  arrays = [row[name][None] for name in TOKENS]
  hidden, attention = jax.device_get(inside(model.weights['encoder'], arrays))
  tokens = [tokenizer.pieces[i] for i in row['input_ids'][:length]]
  return States(tokens, hidden[:, :length], attention[:, :, :length, :length])


def inside(config: ModelConfig, params: Any, row: Any) -> tuple[jax.Array, jax.Array]:
  """Runs one row, arrays [1, T]: (hidden [L + 1, T, D], attention [L, H, T, T])."""
  hidden, layers = captured(config, params, row)
  attention = [x for layer in layers for x in layer['attention']['probabilities']]
  return jnp.concatenate(hidden).astype(jnp.float32), jnp.concatenate(attention)


def captured(config: ModelConfig, params: Any, row: Any) -> tuple[list[Any], list[Any]]:
  """Runs rows, arrays [B, T]: ([L + 1] hidden states [B, T, D], what the layers sowed)."""
  sown: Any
  out, sown = Encoder(config).apply(
    {'params': params},
    *row,
    capture_intermediates=lambda module, _: isinstance(module, (Block, Embeddings)),
    mutable=['intermediates'],
  )
  kept = sown['intermediates']
  count = 1 if config.share_layers else config.num_hidden_layers
  layers = [kept[f'layer_{i}'] for i in range(count)]  # a shared layer was called several times
  hidden = [kept['embeddings']['__call__'][0]]
  hidden += [x for layer in layers for x, _ in layer['__call__']]
  hidden[-1] = out  # in a pre-LN model a LayerNorm follows the last block
  return hidden, layers


class Attention(Ask):
  """The attention of all layers and heads."""

  others = ('pair',)
  tabs = True  # a line may hold the two texts of a pair

  def __init__(self, model: 'Model'):
    super().__init__(model)
    settings = model.config.model
    if settings.mixer != 'attention':
      raise InputError(f'this model has no attention to show: its model.mixer is {settings.mixer}.')
    self._inside = model.compiled(functools.partial(inside, model.objective.model))

  def from_parts(self, parts: Sequence[Any]) -> dict[str, Any]:
    if len(parts) > 2:
      raise InputError(f'{len(parts)} fields where this task reads a text, or text and pair')
    return dict(zip(('text', 'pair'), parts))

  def record(self, fields: dict[str, Any]) -> list[str]:
    return texts_in(fields, ('text', 'pair') if 'pair' in fields else ('text',))

  def replies(self, records: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    # One at a time, since all of them together may not fit into memory.
    for texts in records:
      yield states(self.model, self._inside, texts), ''

  def shown(self, answer: Any) -> dict[str, Any]:
    return {'tokens': answer.tokens, 'attention': answer.attention.round(6).tolist()}

  def returned(self, answers: list[Any]) -> list[States | None]:
    return answers


ATTENTION = Prediction(Attention)
