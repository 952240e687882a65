"""Examples of a fine-tuning task as rows: one in each row, or several packed.

An example is [CLS] A [SEP] or [CLS] A [SEP] B [SEP], with values for the example (a label), token
positions (where an answer begins) or a value for each token (tags). Each has a segment id and
positions that begin at 0, and attention crosses no segment.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.corpus.tokenized import digest_of
from bert_jax.errors import InputError
from bert_jax.rows.packing import pack
from bert_jax.rows.row_arrays import build_row
from bert_jax.rows.source import Arrays, Source
from bert_jax.tokenizers import Tokenizer


class Examples(Source):
  """Random access to the rows of E examples, {name: array} of T tokens and at most N examples.

  texts: one or two id arrays of each, without special tokens, short enough for a row.
  seq_length: T. slots: N; 1 does not pack.
  items: None, or [E] numbers 0, 0, 1, 1, ..; examples of one item share a row, side by side.
  per_example: {name: array [E, ...]}; in a row [N, ...].
  positions: {name: [E, ...] token positions in the example, whose [CLS] is 0}; in a row [N, ...],
    counted from the beginning of the row.
  per_token: {name: ([E] arrays with a value for each token of the example, special tokens
    included; their type)}; in a row [T].
  reserved_tokens: [E] tokens of a row that are kept for each example, if more than its texts have.
  lengths: [E] tokens of each example, special ones included, to avoid reading the texts for that.
  ends: whether [CLS] and [SEP]s stand around texts, together or each.

  Besides these and what build_row makes, a row has
  weights [N]: 1 for a real example.
  example_ids [N]: the example's number + 1; 0: none.
  groups [N], with items: the items of the row, counted from 1; 0: no example.

  size: how many items there are, the records of the data; a subclass may have cut them into
    windows.
  prior: where a new head begins, see its objective.
  """

  def __init__(
    self,
    tokenizer: Tokenizer,
    texts: Sequence[Sequence[np.ndarray]],
    *,
    seq_length: int,
    slots: int = 1,
    items: Sequence[int] | np.ndarray | None = None,
    per_example: Mapping[str, np.ndarray] | None = None,
    positions: Mapping[str, np.ndarray] | None = None,
    per_token: Mapping[str, tuple[Sequence[np.ndarray], Any]] | None = None,
    reserved_tokens: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    ends: bool | tuple[bool, bool] = True,
  ):
    super().__init__()
    self.tokenizer = tokenizer
    self.texts = texts
    self.seq_length = seq_length
    self.slots = slots
    self.items = items
    self.per_example = per_example or {}
    self.positions = positions or {}
    self.per_token = per_token or {}
    self.ends = ends
    self.prior: tuple[float, ...] = ()
    if lengths is None:
      lengths = _lengths(texts, ends)
    if not lengths.all():
      raise InputError('a text has no token, and neither [CLS] nor [SEP] stands for it.')
    self.lengths = lengths
    # Items are packed: each is an example, or several that stay together.
    item_of = np.arange(len(texts)) if items is None else np.asarray(items)
    self.item_begins = np.flatnonzero(np.diff(item_of, prepend=-1))
    self.item_sizes = np.diff(np.append(self.item_begins, len(texts)))
    self.size = len(self.item_begins)
    if reserved_tokens is None:
      reserved_tokens = lengths
    tokens_of_example = np.maximum(reserved_tokens, lengths)
    tokens_of_item = self._sums_of_items(tokens_of_example, self.item_begins)
    longest = tokens_of_item.max(initial=0)
    largest = int(self.item_sizes.max(initial=1))
    if longest > seq_length:
      raise InputError(
        f'an item of the data takes {longest} tokens and a row has {seq_length}; '
        'raise data.seq_length or lower task.max_length.'
      )
    if largest > slots:
      raise InputError(
        f'an item of the data has {largest} examples and a row takes {slots}; '
        f'set data.examples_per_row={largest} at least.'
      )
    self.order, self.row_at = pack(tokens_of_item, seq_length, slots // largest)
    self.fingerprint = self._digest(item_of)

  def items_of_row(self, i: int) -> list[range]:
    """The items in row i, each as a range of its examples."""
    items = self.order[self.row_at[i] : self.row_at[i + 1]]
    ranges = []
    for begin, size in zip(self.item_begins[items].tolist(), self.item_sizes[items].tolist()):
      ranges.append(range(begin, begin + size))
    return ranges

  def _sums_of_items(self, tokens_of_example, first):
    """[I] the tokens that each item takes. first: [I] the place of its first example."""
    return np.add.reduceat(tokens_of_example, first) if len(first) else tokens_of_example

  def tokens_of_items(self, items: Sequence[range]) -> np.ndarray:
    """[I] the tokens of a row that each of these items, ranges of examples, takes."""
    lengths = np.concatenate([self.lengths[item.start : item.stop] for item in items])
    ends = np.cumsum([len(item) for item in items])
    return self._sums_of_items(lengths, np.append(0, ends[:-1]))

  def _digest(self, item_of):
    """The fingerprint of the rows, from all that they are made of."""
    arrays = [item_of, self.lengths, *self.per_example.values(), *self.positions.values()]
    for values, _ in self.per_token.values():
      arrays += values
    texts = itertools.chain.from_iterable(self.texts)
    content = (np.ascontiguousarray(x).tobytes() + b'|' for x in itertools.chain(arrays, texts))
    shape = repr((self.seq_length, self.slots))
    return digest_of(itertools.chain([shape], content))

  @functools.cached_property
  def read(self) -> list[np.ndarray]:
    """The id arrays of all texts; a subclass whose examples share a text lists it once."""
    return list(itertools.chain.from_iterable(self.texts))

  @property
  def fill(self) -> float:
    """Share of all positions that hold a token."""
    return float(self.lengths.sum() / max(1, len(self) * self.seq_length))

  def __len__(self) -> int:
    return len(self.row_at) - 1

  def __getitem__(self, i: int) -> Arrays:
    return self.row(self.items_of_row(i), self.seq_length, self.slots)

  def row(self, items: Sequence[range], length: int, slots: int) -> Arrays:
    """Builds a row of `length` tokens from these items, with room for `slots` examples."""
    chosen = list(itertools.chain.from_iterable(items))  # the numbers of its examples
    row = build_row(
      self.tokenizer,
      [[(ids, 0) for ids in self.texts[e]] for e in chosen],
      length,
      slots=len(chosen),
      ends=self.ends,
    )
    begins = row['cls_positions']

    def in_slots(values, kind):
      """Values of the examples, [slots, ...], with zeros for slots that are empty."""
      array = np.zeros((slots, *np.shape(values)[1:]), kind)
      array[: len(chosen)] = values
      return array

    row['cls_positions'] = in_slots(begins, begins.dtype)
    row['weights'] = in_slots(np.ones(len(chosen)), np.float32)
    row['example_ids'] = in_slots(np.array(chosen, int) + 1, np.int32)
    if self.items is not None:
      sizes = [len(item) for item in items]
      groups = np.repeat(np.arange(1, len(items) + 1), sizes)
      row['groups'] = in_slots(groups, np.int32)
    for name, values in self.per_example.items():
      row[name] = in_slots(values[chosen], values.dtype)
    for name, values in self.positions.items():
      before = begins.reshape(-1, *[1] * (values.ndim - 1))
      row[name] = in_slots(values[chosen] + before, np.int32)
    for name, (values, kind) in self.per_token.items():
      of_tokens = np.zeros(length, kind)
      for e, begin in zip(chosen, begins, strict=True):
        of_tokens[begin : begin + len(values[e])] = values[e]
      row[name] = of_tokens
    return row


def _lengths(texts, ends):
  """[E] the tokens of each example, [CLS] and [SEP]s included. ends: see Examples."""
  has_cls, has_sep = np.broadcast_to(ends, 2).astype(int)
  lengths = np.zeros(len(texts), np.int64)
  for e, text in enumerate(texts):
    lengths[e] = has_cls + sum(map(len, text)) + has_sep * len(text)
  return lengths


def by_example(outputs: Mapping[str, np.ndarray], *names: str) -> tuple[np.ndarray, list]:
  """Orders outputs by example.

  outputs: {name: [R, N, ...]} of R rows, in any order. Returns (the numbers of the K predicted
  examples [K], [their outputs [K, ...] of each name])."""
  ids = outputs['example_ids']
  is_real = ids > 0
  numbers = ids[is_real] - 1
  order = np.argsort(numbers, kind='stable')
  return numbers[order], [outputs[name][is_real][order] for name in names]


def tokens_of(
  outputs: Mapping[str, np.ndarray], name: str, lengths: np.ndarray
) -> dict[int, np.ndarray]:
  """Splits the outputs of tokens by example.

  outputs: {name: [R, T, ...]} of R rows. lengths: [E] tokens of each example, special ones
  included. Returns {number: [n, ...] for its n tokens}."""
  ids = outputs['example_ids']
  begins = outputs['cls_positions']
  values = outputs[name]
  out = {}
  for r, k in np.argwhere(ids).tolist():
    number = int(ids[r, k]) - 1
    begin = begins[r, k]
    out[number] = values[r, begin : begin + lengths[number]]
  return out
