"""The arrays of one row, from the token ids of the examples in it."""

import numpy as np


def build_row(tokenizer, examples, seq_length, *, labels=None, slots=1, marks=None, align=1):
  """{name: array} of a row of `seq_length` = T tokens that holds up to `slots` = N examples.
  examples: for each, a list of one or two texts (ids, unit_starts), arrays of one length; an
  example becomes [CLS] A [SEP] or [CLS] A [SEP] B [SEP]. labels: one number for each example; below
  0 is none. marks: for each example, whether it has [CLS], and [SEP]; None: all have both. align:
  examples begin at multiples of this.
  [T] int32, padded at the end: input_ids, token_type_ids (1 from B on), position_ids (from 0 in
  each example), segment_ids (1, 2, .. for each example, 0: padding), unit_starts (0 at special
  tokens). [N]: cls_positions and, with labels, labels and weights (1: there is a label)."""
  arrays = np.zeros((5, seq_length), np.int32)
  ids, types, positions, segments, starts = arrays
  ids[:] = tokenizer.pad_id
  cls_positions = np.zeros(slots, np.int32)
  at = 0
  for k, texts in enumerate(examples):
    begin = cls_positions[k] = at = -(-at // align) * align
    has_cls, has_sep = (True, True) if marks is None else marks[k]
    if has_cls:
      ids[at] = tokenizer.cls_id
      at += 1
    for kind, (tokens, units) in enumerate(texts):
      end = at + len(tokens)
      ids[at:end] = tokens
      starts[at:end] = units
      if has_sep:
        ids[end] = tokenizer.sep_id
        end += 1
      if kind:
        types[at:end] = kind
      at = end
    positions[begin:at] = np.arange(at - begin)
    segments[begin:at] = k + 1
  names = ('input_ids', 'token_type_ids', 'position_ids', 'segment_ids', 'unit_starts')
  row = dict(zip(names, arrays, strict=True), cls_positions=cls_positions)
  if labels is not None:
    row['labels'], row['weights'] = np.zeros(slots, np.int32), np.zeros(slots, np.float32)
    row['labels'][: len(labels)] = np.maximum(labels, 0)
    row['weights'][: len(labels)] = np.array(labels) >= 0
  return row
