"""Finds the tokens of an answer, and the best spans over all windows of a context.

As in google-research/bert's run_squad.py a token may be in several windows, which begin a stride
apart, and an answer that begins with it is scored where it has most context. But the best spans are
the best of all, not of the 20 best starts and ends of each window.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.rows import windows

LENGTH_BONUS = 0.01  # for each token of a window, when windows compete for a token (run_squad.py)


class Spans(NamedTuple):
  """K spans of a context, the best first."""

  first: np.ndarray  # [K] the number of its first token
  last: np.ndarray  # [K] the number of its last token
  start_logits: np.ndarray  # [K]
  end_logits: np.ndarray  # [K]


def bounds_of(starts: np.ndarray, size: int, room: int) -> np.ndarray:
  """Assigns each of the `size` tokens of a context to one window of `room`, as bounds [W + 1]:
  window w answers with spans that begin at the tokens bounds[w] to bounds[w + 1] - 1."""
  bounds = np.stack([starts, np.minimum(starts + room, size)], axis=1)
  owner = windows.owners(bounds, np.arange(size), LENGTH_BONUS)
  return np.searchsorted(owner, np.arange(len(starts) + 1))


def tokens_between(offsets: np.ndarray, start: int, end: int) -> tuple[int, int]:
  """The (first, last) token of characters start to end - 1; without a token, last = first - 1."""
  first = np.searchsorted(offsets[:, 1], start, side='right')
  return int(first), int(np.searchsorted(offsets[:, 0], end, side='left')) - 1


def best_spans(
  starts: Sequence[int],
  bounds: Sequence[int],
  start_logits: Sequence[np.ndarray],
  end_logits: Sequence[np.ndarray],
  *,
  longest: int,
  count: int,
) -> Spans:
  """The `count` best Spans of at most `longest` tokens, by the sum of their logits.
  starts [W]: of the windows. bounds [W + 1]: see bounds_of. start_logits, end_logits: for each
  window an array over its tokens. A span lies within the window assigned to its first token."""
  firsts, sums = [], []
  for begin, low, high, start, end in zip(
    starts, bounds[:-1], bounds[1:], start_logits, end_logits, strict=True
  ):
    judged_here = start[low - begin : high - begin]
    # ends[i, j]: the end logit of the span of j + 1 tokens that begins at token low + i.
    ends = np.append(end[low - begin :], np.full(longest, -np.inf, end.dtype))
    ends = np.lib.stride_tricks.sliding_window_view(ends, longest)[: len(judged_here)]
    firsts.append(judged_here)
    sums.append(judged_here[:, None] + ends)
  firsts, sums = np.concatenate(firsts), np.concatenate(sums).reshape(-1)
  top = np.argpartition(-sums, count)[:count] if count < len(sums) else np.arange(len(sums))
  top = top[np.argsort(-sums[top], kind='stable')]
  top = top[np.isfinite(sums[top])]
  first = top // longest
  return Spans(first, first + top % longest, firsts[first], sums[top] - firsts[first])
