"""Examples of a fine-tuning task as rows: one in each, or several packed, each with its own values.

An example is [CLS] A [SEP] or [CLS] A [SEP] B [SEP], with values of its own (a label), token
positions (where an answer begins) or values of its tokens (tags). Whatever shares its row, its
numbers are the same: it has a segment and positions of its own, and attention crosses no segment.
"""

import abc
import functools
import hashlib

import numpy as np

from bert_jax.errors import InputError
from bert_jax.rows.pretraining import build_row, pack


class Examples:
  """A Source of examples.

  texts: [E] tuples of one or two int32 id arrays, without special tokens, short enough for a row.
  slots: N, the most examples in a row; 1 does not pack. items: None, or [E] numbers 0, 0, 1, 1, ..:
  examples of one item share a row, side by side, and `groups` [N] tells them apart (0: empty).

  per_example: {name: array [E, ...]} -> [N, ...]. positions: {name: [E, ...] token positions in the
  example, 0 is its [CLS]} -> positions in the row. per_token: {name: ([E] arrays, a value for each
  token of the example, specials included; their type)} -> [T].

  Rows also have weights [N] (1: a real example) and example_ids [N] (its number + 1; 0: empty).
  """

  def __init__(
    self,
    tokenizer,
    texts,
    *,
    seq_length,
    slots=1,
    items=None,
    per_example=None,
    positions=None,
    per_token=None,
  ):
    self.tokenizer, self.texts, self.seq_length, self.slots = tokenizer, texts, seq_length, slots
    self.per_example, self.positions = per_example or {}, positions or {}
    self.per_token, self.items = per_token or {}, items
    self.baselines = {}
    self.lengths = np.array(
      [1 + sum(map(len, parts)) + len(parts) for parts in texts], np.int64
    ).reshape(-1)
    # Items are what is packed: an example, or several that stay together.
    item_of = np.arange(len(texts)) if items is None else np.asarray(items)
    first = np.flatnonzero(np.diff(item_of, prepend=-1))
    sizes = np.diff(np.append(first, len(texts)))
    room = np.add.reduceat(self.lengths, first) if len(first) else self.lengths
    if len(room) and room.max() > seq_length:
      raise InputError(
        f'an item of the data takes {room.max()} tokens and a row has {seq_length}; raise '
        'data.seq_length or lower task.max_length.'
      )
    if len(sizes) and sizes.max() > slots:
      raise InputError(
        f'an item of the data has {sizes.max()} examples and a row takes {slots}; set '
        f'data.examples_per_row={sizes.max()} at least.'
      )
    most = slots // sizes.max() if len(sizes) else 1
    order, self.row_at = pack(room, seq_length, most)
    self.items_of_row = [
      [range(first[i], first[i] + sizes[i]) for i in order[a:b]]
      for a, b in zip(self.row_at, self.row_at[1:])
    ]
    self.fingerprint = self._digest(item_of)

  def _digest(self, item_of):
    digest = hashlib.sha256(repr((self.seq_length, self.slots)).encode())
    arrays = [item_of, self.lengths, *(np.asarray(x) for x in self.per_example.values())]
    arrays += [np.asarray(x) for x in self.positions.values()]
    arrays += [x for values, _ in self.per_token.values() for x in values]
    for array in arrays + [ids for parts in self.texts for ids in parts]:
      digest.update(np.ascontiguousarray(array).tobytes() + b'|')
    return digest.hexdigest()[:16]

  @functools.cached_property
  def read(self):
    """[ids] of what was read, where examples that share some of it count it once."""
    return [ids for parts in self.texts for ids in parts]

  @property
  def fill(self):
    """Share of all positions that hold a token."""
    return float(self.lengths.sum() / max(1, len(self) * self.seq_length))

  def __len__(self):
    return len(self.items_of_row)

  def __getitem__(self, i):
    return self.row(self.items_of_row[i], self.seq_length, self.slots)

  def row(self, items, length, slots):
    """The arrays of a row of `length` tokens that holds these items, `slots` examples at most."""
    chosen = [e for item in items for e in item]
    n = len(chosen)
    row = build_row(
      self.tokenizer, [[(ids, 0) for ids in self.texts[e]] for e in chosen], length, slots=slots
    )
    begins = row['cls_positions'][:n]
    row['weights'], row['example_ids'] = np.zeros(slots, np.float32), np.zeros(slots, np.int32)
    row['weights'][:n], row['example_ids'][:n] = 1, np.array(chosen) + 1
    if self.items is not None:
      row['groups'] = np.zeros(slots, np.int32)
      row['groups'][:n] = np.repeat(np.arange(1, len(items) + 1), [len(item) for item in items])
    for name, values in self.per_example.items():
      row[name] = np.zeros((slots, *values.shape[1:]), values.dtype)
      row[name][:n] = values[chosen]
    for name, values in self.positions.items():
      row[name] = np.zeros((slots, *values.shape[1:]), np.int32)
      row[name][:n] = values[chosen] + begins.reshape(-1, *[1] * (values.ndim - 1))
    for name, (values, kind) in self.per_token.items():
      row[name] = np.zeros(length, kind)
      for e, begin in zip(chosen, begins):
        row[name][begin : begin + len(values[e])] = values[e]
    return row


class Scored(Examples, abc.ABC):
  """Examples of a task: they say what the outputs of a model mean, and how good that is."""

  @abc.abstractmethod
  def answers(self, outputs):
    """What the model says, a JSON-ready dict for each example whose parts were all predicted.

    outputs: {name: [R, ...]}, the objective's `predict` over rows. Keys: id, where, what was asked,
    gold (if known), prediction, probability, loss (-log of the probability of the gold one).
    """

  def score(self, answers):
    """{metric: number} as the task's official scorer computes it; {} without gold."""
    known = [answer for answer in answers if 'gold' in answer]
    return self.scores(known) if known else {}

  @abc.abstractmethod
  def scores(self, answers):
    """The same of answers that all have gold."""

  def files(self, answers):
    """{file name: text} in the formats that official scorers and leaderboards read."""
    del answers
    return {}

  def constant(self, answers):
    """What is predicted for every example though gold differs, or '': a run that has collapsed."""
    predicted = {str(answer['prediction']) for answer in answers}
    gold = {str(answer.get('gold')) for answer in answers}
    return predicted.pop() if len(predicted) == 1 and len(gold) > 1 else ''


def by_example(outputs, *names):
  """(numbers [K], [K, ...] of each name): what was predicted for each example, by its number."""
  ids = outputs['example_ids']
  real = ids > 0
  order = np.argsort(ids[real], kind='stable')
  return ids[real][order] - 1, [outputs[name][real][order] for name in names]


def tokens_of(outputs, name, lengths):
  """{number of the example: [n, ...]}: what was predicted for each of its tokens."""
  ids, begins, values = outputs['example_ids'], outputs['cls_positions'], outputs[name]
  return {
    int(ids[r, k]) - 1: values[r, begins[r, k] : begins[r, k] + lengths[ids[r, k] - 1]]
    for r, k in zip(*np.nonzero(ids))
  }
