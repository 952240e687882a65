"""Packs short examples into rows of fixed length by best fit."""

import numpy as np


def pack(lengths: np.ndarray, room: int, most: int) -> tuple[np.ndarray, np.ndarray]:
  """Chooses the examples that share a row: best fit, longest first, at most `most` in each.

  lengths: [E] tokens of each example, 1 to `room`, the tokens of a row.

  Returns (order [E], row_at [R + 1]): row r holds the examples order[row_at[r]:row_at[r + 1]].
  Rows, and the examples within a row, keep the order in which the examples came.

  Examples of one length are placed together: the row that fits best takes as many of them as it
  can, and then the next one."""
  row_of = np.zeros(len(lengths), np.int64)
  held = np.zeros(len(lengths), np.int32)  # how many examples each row holds
  # The rows with room, by the tokens that they have left. Each entry is an array of rows; the last
  # row of the last array is used first.
  open_rows = [[] for _ in range(room + 1)]
  rows = 0
  by_length = np.argsort(-lengths, kind='stable')
  ends_of_lengths = np.flatnonzero(np.diff(lengths[by_length])) + 1
  for same in np.split(by_length, ends_of_lengths):
    while len(same):
      length = int(lengths[same[0]])
      # The fullest rows with room for one more, or else as many new rows as all of them need.
      free = next((r for r in range(length, room) if open_rows[r]), room)
      fit = free // length
      if free < room:
        chosen = open_rows[free].pop()
      else:
        new = -(-len(same) // min(fit, most))
        chosen = np.arange(rows, rows + new)[::-1]
        rows += new
      # How many examples each of these rows takes, from the last row on.
      takes = np.minimum(fit, most - held[chosen[::-1]])
      ends = np.cumsum(takes)
      used = min(len(chosen), int(ends.searchsorted(len(same))) + 1)
      if used < len(chosen):
        open_rows[free].append(chosen[:-used])
      chosen = chosen[: -used - 1 : -1]
      takes = takes[:used]
      takes[-1] -= max(0, ends[used - 1] - len(same))
      placed = int(takes.sum())
      row_of[same[:placed]] = np.repeat(chosen, takes)
      same = same[placed:]
      held[chosen] += takes
      # Rows that are not full are open again, by the tokens that they have left.
      is_full = held[chosen] >= most
      left = np.where(is_full, -1, free - takes * length)
      for tokens in np.unique(left[left >= 0]):
        open_rows[tokens].append(chosen[left == tokens])
  # Rows are numbered anew, by the first example in them.
  firsts = np.full(rows, len(lengths))
  np.minimum.at(firsts, row_of, np.arange(len(lengths)))
  number = np.empty(rows, np.int64)
  number[np.argsort(firsts)] = np.arange(rows)
  row_of = number[row_of]
  order = np.argsort(row_of, kind='stable')
  sizes = np.bincount(row_of, minlength=rows)
  row_at = np.concatenate([[0], np.cumsum(sizes)])
  return order, row_at
