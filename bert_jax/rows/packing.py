"""Best-fit packing: which short examples share a row of fixed length."""

import itertools

import numpy as np

PORTION = 100_000  # examples, which are made numbers of Python at a time, since these take memory


def pack(lengths, room, most):
  """Which examples share a row: best fit, longest first, at most `most` in each.
  lengths: [E] tokens of each example; room: tokens of a row. Returns (order [E], row_at [R + 1]):
  row r holds the examples order[row_at[r]:row_at[r + 1]]. Rows, and the examples within a row, keep
  the order in which the examples came."""
  row_of = np.zeros(len(lengths), np.int64)
  rows_by_room = [[] for _ in range(room + 1)]  # rows that take another example, by tokens left
  examples_in = []  # how many examples each row holds
  by_length = np.argsort(-lengths, kind='stable')
  portions = (by_length[i : i + PORTION] for i in range(0, len(by_length), PORTION))
  pairs = (zip(part.tolist(), lengths[part].tolist()) for part in portions)
  for example, length in itertools.chain.from_iterable(pairs):
    free = next((r for r in range(length, room) if rows_by_room[r]), room)
    if free < room:
      row = rows_by_room[free].pop()
    else:
      row = len(examples_in)
      examples_in.append(0)
    row_of[example] = row
    examples_in[row] += 1
    if examples_in[row] < most:
      rows_by_room[free - length].append(row)
  # Rows are numbered by the first example in them.
  firsts = np.full(len(examples_in), len(lengths))
  np.minimum.at(firsts, row_of, np.arange(len(lengths)))
  number = np.empty(len(examples_in), np.int64)
  number[np.argsort(firsts)] = np.arange(len(examples_in))
  row_of = number[row_of]
  sizes = np.bincount(row_of, minlength=len(examples_in))
  return np.argsort(row_of, kind='stable'), np.concatenate([[0], np.cumsum(sizes)])
