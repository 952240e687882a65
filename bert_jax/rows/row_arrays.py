"""Builds the arrays of rows from the token ids of the examples in them."""

from collections.abc import Sequence

import numpy as np

from bert_jax.corpus.tokenized import spread
from bert_jax.tokenizers import Tokenizer

# The arrays with a value for each token that an encoder takes, in the order of its arguments (see
# build_rows).
TOKENS = 'input_ids', 'token_type_ids', 'position_ids', 'segment_ids'


def build_row(
  tokenizer: Tokenizer,
  examples: Sequence[Sequence[tuple[np.ndarray, np.ndarray | int]]],
  seq_length: int,
  *,
  slots: int = 1,
  ends: bool | tuple[bool, bool] = True,
) -> dict[str, np.ndarray]:
  """One row, see build_rows. examples: each one or two texts (ids, unit_starts). ends: whether they
  have [CLS] and [SEP], together or each."""
  sizes = np.zeros((len(examples), 2), np.int64)
  tokens = [np.zeros(0, np.int32)]
  units = [np.zeros(0, np.int32)]
  for e, texts in enumerate(examples):
    for k, (ids, unit_starts) in enumerate(texts):
      sizes[e, k] = len(ids)
      tokens.append(ids)
      units.append(np.broadcast_to(unit_starts, len(ids)))
  arrays = build_rows(
    tokenizer,
    np.zeros(len(examples), np.int64),
    sizes,
    np.concatenate(tokens),
    np.concatenate(units),
    seq_length=seq_length,
    rows=1,
    slots=slots,
    second=np.array([len(texts) > 1 for texts in examples], bool),
    has_cls_sep=np.full((len(examples), 2), ends),
  )
  return {name: array[0] for name, array in arrays.items()}


def build_rows(
  tokenizer: Tokenizer,
  row_of: np.ndarray,
  sizes: np.ndarray,
  tokens: np.ndarray,
  units: np.ndarray,
  *,
  seq_length: int,
  rows: int,
  slots: int = 1,
  second: np.ndarray | None = None,
  labels: np.ndarray | None = None,
  has_cls_sep: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
  """{name: array} of R rows of `seq_length` = T tokens with E examples, up to `slots` = N in each.
  An example becomes [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

  row_of: [E] its row, ascending. sizes: [E, 2] token counts of A and B. tokens, units: ids and
  unit_starts of A and B, all examples one after the other. second: [E] whether there is a B; None:
  where it has tokens. labels: [E] numbers; below 0 is none. has_cls_sep: [E, 2] does an
  example have [CLS], and has it [SEP]s; None: all have both.

  [R, T] int32, padded at the end: input_ids, token_type_ids (1 from B on), position_ids (from 0 in
  each example), segment_ids (1, 2, .. for each example, 0: padding), unit_starts (0 at special
  tokens). [R, N]: cls_positions and, with labels, labels and weights (1: there is a label)."""
  out = {name: np.zeros((rows, seq_length), np.int32) for name in (*TOKENS, 'unit_starts')}
  out['input_ids'][:] = tokenizer.pad_id
  # Below, a place is an index in all rows laid end to end: views [R * T] of the arrays.
  ids, types, positions, segments, starts = (array.reshape(-1) for array in out.values())
  size_a, size_b = sizes.T
  second = size_b > 0 if second is None else second
  has_cls, has_sep = (np.ones((len(sizes), 2), bool) if has_cls_sep is None else has_cls_sep).T
  lengths = has_cls + size_a + size_b + has_sep * (1 + second)
  slot, in_row = _places_in_rows(row_of, lengths)
  begin = row_of * seq_length + in_row
  every = spread(begin, lengths)  # the places of all their tokens
  positions[every] = every - np.repeat(begin, lengths)
  segments[every] = np.repeat(slot + 1, lengths)
  begin_a = begin + has_cls
  begin_b = begin_a + size_a + has_sep
  ordinary = spread(np.stack([begin_a, begin_b], axis=1).reshape(-1), sizes.reshape(-1))
  ids[ordinary] = tokens
  starts[ordinary] = units
  types[spread(begin_b, second * (size_b + has_sep))] = 1
  if has_cls.any():
    ids[begin[has_cls]] = tokenizer.cls_id
  if has_sep.any():
    ids[(begin_a + size_a)[has_sep]] = tokenizer.sep_id
    ids[(begin_b + size_b)[has_sep & second]] = tokenizer.sep_id

  def in_slots(values, kind):
    array = np.zeros((rows, slots), kind)
    array[row_of, slot] = values
    return array

  out['cls_positions'] = in_slots(in_row, np.int32)
  if labels is not None:
    out['labels'] = in_slots(np.maximum(labels, 0), np.int32)
    out['weights'] = in_slots(labels >= 0, np.float32)
  return out


def _places_in_rows(row_of, lengths):
  """Of each example [E] its number in its row, and the token of the row at which it begins."""
  first = np.searchsorted(row_of, row_of)  # the first example of the row
  slot = np.arange(len(row_of)) - first
  before = np.cumsum(lengths) - lengths
  return slot, before - before[first]
