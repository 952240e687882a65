"""Returns or draws the hidden states and attention probabilities of every layer of a model.

Linen's `sow` and `capture_intermediates` collect them. Training does not.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import InputError, writing
from bert_jax.files import Path
from bert_jax.models import Encoder, ModelConfig
from bert_jax.models.block import Block
from bert_jax.models.embeddings import Embeddings
from bert_jax.predict.packed_rows import power_of_two
from bert_jax.rows.row_arrays import TOKENS, build_row
from bert_jax.rows.windows import truncate
from bert_jax.tasks.ask import Ask, texts_in
from bert_jax.tasks.record import Option, Prediction

if TYPE_CHECKING:
  from bert_jax.predict.model import Model

PIXELS = 8000  # the most on the longer side of a picture, which all its heads share


class States(NamedTuple):
  """The states of a model that reads one text of T tokens, [CLS] and [SEP] included."""

  tokens: list[str]  # [T] pieces
  hidden: np.ndarray  # [L + 1, T, D]: of the embeddings, then of each layer
  attention: np.ndarray  # [L, H, T, T]: of each query over the keys, where they add up to 1


def states(model: 'Model', inside: Callable, text: str, pair: str | None = None) -> States:
  """The States of a text or a pair; a long one is cut. inside: the function `inside`, compiled."""
  tokenizer, texts = model.tokenizer, [text] if pair is None else [text, pair]
  parts = tuple(tokenizer.ids_batch(texts))
  model.note({}, parts)
  room = model.limit - 2 - (len(parts) - 1) * tokenizer.between
  if sum(map(len, parts)) > room:
    model.counts[f'texts cut (longer than {model.limit} tokens)'] += 1
    parts = truncate(parts, room)
  parts = tokenizer.pair(*parts) if pair is not None else parts
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
  is_kept = lambda module, _: isinstance(module, (Block, Embeddings))
  options: Any = dict(capture_intermediates=is_kept, mutable=['intermediates'])
  out, sown = Encoder(config).apply({'params': params}, *row, **options)
  kept: Any = sown['intermediates']
  count = 1 if config.share_layers else config.num_hidden_layers
  layers = [kept[f'layer_{i}'] for i in range(count)]  # a shared layer was called several times
  hidden = [kept['embeddings']['__call__'][0]]
  hidden += [x for layer in layers for x, _ in layer['__call__']]
  hidden[-1] = out  # in a pre-LN model a LayerNorm follows the last block
  return hidden, layers


class Attention(Ask):
  """The attention of all layers and heads as JSON, or as a picture of one layer."""

  others = ('pair',)
  tabs = True  # a line may hold the two texts of a pair

  def __init__(self, model: 'Model', picture: str = '', layer: int = -1, head: int = -1):
    super().__init__(model)
    settings = model.config.model
    if settings.mixer != 'attention':
      raise InputError(f'this model has no attention to show: its model.mixer is {settings.mixer}.')
    if stretch := settings.recurrent_length:
      memory = 'whose attention goes into a memory; that is not shown'
      raise InputError(f'this model reads stretches of {stretch} tokens, {memory}.')
    L, H = settings.num_hidden_layers, settings.num_attention_heads
    for name, value, number in (('layer', layer, L), ('head', head, H)):
      if not -1 <= value < number:
        raise InputError(f'--{name} is {value}; there are {number}, from 0 to {number - 1}.')
    if picture and Path(picture).suffix != '.png':
      raise InputError(f'--picture {picture} is no .png; name one.')
    self._inside = model.compiled(functools.partial(inside, model.objective.model))
    self.picture, self.drawn = Path(picture) if picture else None, 0
    self.layer, self.heads = layer % L, range(H) if head < 0 else [head]

  def from_parts(self, parts: Sequence[Any]) -> dict[str, Any]:
    if len(parts) > 2:
      raise InputError(f'{len(parts)} fields where this task reads a text, or text and pair')
    return dict(zip(('text', 'pair'), parts))

  def record(self, fields: dict[str, Any]) -> tuple[str, ...]:
    return tuple(texts_in(fields, ('text', 'pair') if 'pair' in fields else ('text',)))

  def replies(self, records: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    # One at a time, since all of them together may not fit into memory.
    return ((states(self.model, self._inside, *record), '') for record in records)

  def shown(self, answer: Any) -> dict[str, Any]:
    if self.picture is None:
      return {'tokens': answer.tokens, 'attention': answer.attention.round(6).tolist()}
    self.drawn += 1
    number = f'-{self.drawn}' if self.drawn > 1 else ''
    path = self.picture.with_stem(self.picture.stem + number)
    draw(answer, path, self.layer, self.heads)
    return {'tokens': answer.tokens, 'picture': str(path)}

  def returned(self, answers: list[Any]) -> list[States | None]:
    return answers


OPTIONS = {
  'picture': Option(str, 'PNG to draw; -2, -3.. for further lines'),
  'layer': Option(int, 'layer to draw, from 0; default: the last', needs='picture'),
  'head': Option(int, 'head to draw, from 0; default: all', needs='picture'),
}
ATTENTION = Prediction(Attention, method='states', options=OPTIONS)


def most_read(attention_TT: np.ndarray, tokens: Sequence[str]) -> str:
  """The place that a head reads most, a neighbour or one token, and the share of its attention
  there: '61% itself'. Of a token that stands several times: "18% 'the' (2 of 3)"."""
  length = len(attention_TT)
  offsets = ('itself', 0), ('the token before', -1), ('the next token', 1)
  shares = [(np.trace(attention_TT, offset) / length, name) for name, offset in offsets]
  for i, (share, token) in enumerate(zip(attention_TT.mean(0), tokens)):
    count, number = tokens.count(token), tokens[: i + 1].count(token)
    shares.append((share, f"'{token}'" + f' ({number} of {count})' * (count > 1)))
  share, place = max(shares)
  return f'{share:.0%} {place}'


def draw(states: States, path: Path, layer: int, heads: Sequence[int]) -> None:
  """Writes a PNG with a heat map for each head of a layer: queries in rows, keys in columns; its
  title says what the head reads most."""
  from matplotlib.figure import Figure

  tokens = [token.replace('$', r'\$') for token in states.tokens]
  columns, side = min(4, len(heads)), 1.5 + 0.17 * len(tokens)
  lines = -(-len(heads) // columns)
  dpi = min(120, PIXELS / (side * max(columns, lines)))
  figure = Figure(figsize=(side * columns, side * lines), layout='constrained')
  axes = figure.subplots(lines, columns, squeeze=False)
  for axis in axes.flat[len(heads) :]:
    axis.axis('off')
  for axis, head in zip(axes.flat, heads):
    attention = states.attention[layer, head]
    axis.imshow(attention, vmin=0, vmax=1, cmap='Blues')
    axis.set_title(f'layer {layer}, head {head}: {most_read(attention, tokens)}', fontsize=9)
    axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8)
    axis.set_yticks(range(len(tokens)), tokens, fontsize=8)
  with writing(f'--picture {path}', 'name another file'), path.open('wb') as file:
    figure.savefig(file, dpi=dpi, bbox_inches='tight')
