"""A context in windows, the tokens of an answer, and the best spans over all windows of a question.

As google-research/bert's run_squad.py has it: windows begin a stride apart; a token stands in
several of them, and an answer that begins there is judged where the token has the most context. Two
differences: the best spans are the best of all, where the reference searches the 20 best starts and
the 20 best ends of each window; and tokens are mapped to the text by their offsets.
"""

from typing import NamedTuple

import numpy as np

_LENGTH_BONUS = 0.01  # of a token of a window, when windows compete for a token (run_squad.py)


class Spans(NamedTuple):
  """K spans of a context, the best first."""

  first: np.ndarray  # [K] token it begins with
  last: np.ndarray  # [K] token it ends with
  start_logits: np.ndarray  # [K]
  end_logits: np.ndarray  # [K]


def window_starts(size, room, stride):
  """[W] where the windows of `room` tokens of a context begin: one at least, no token left out."""
  step = min(stride, room)
  return np.arange(1 + max(0, -(-(size - room) // step))) * step


def judged(starts, size, room):
  """[W + 1]: window w judges the spans that begin at tokens bounds[w] to bounds[w + 1], exclusive.

  Each token goes to the window in which the shorter of its two sides is longest.
  """
  if len(starts) == 1:
    return np.array([0, size])
  ends = np.minimum(starts + room, size)
  at = np.arange(size)
  left, right = at - starts[:, None], ends[:, None] - 1 - at
  score = np.minimum(left, right) + _LENGTH_BONUS * (ends - starts)[:, None]
  owner = np.argmax(np.where((left >= 0) & (right >= 0), score, -1.0), axis=0)
  return np.searchsorted(owner, np.arange(len(starts) + 1))


def tokens_between(offsets, start, end):
  """(first, last) token of the characters start to end; the first is behind the last if none."""
  first = np.searchsorted(offsets[:, 1], start, side='right')
  return int(first), int(np.searchsorted(offsets[:, 0], end, side='left')) - 1


def best_spans(starts, bounds, start_logits, end_logits, *, longest, count):
  """The `count` best Spans of at most `longest` tokens, by the sum of their logits.

  starts [W], bounds [W + 1] of the windows; start_logits and end_logits [W] arrays over the tokens
  of each window. A span begins and ends in the window that judges its first token.
  """
  firsts, sums = [], []
  for begin, low, high, start, end in zip(
    starts, bounds[:-1], bounds[1:], start_logits, end_logits, strict=True
  ):
    own = start[low - begin : high - begin]
    # ends[i, j]: of the span of j + 1 tokens that begins with the i-th token judged here.
    ends = np.append(end[low - begin :], np.full(longest, -np.inf, end.dtype))
    ends = np.lib.stride_tricks.sliding_window_view(ends, longest)[: len(own)]
    firsts.append(own)
    sums.append(own[:, None] + ends)
  firsts, sums = np.concatenate(firsts), np.concatenate(sums).reshape(-1)
  top = np.argpartition(-sums, count)[:count] if count < len(sums) else np.arange(len(sums))
  top = top[np.argsort(-sums[top], kind='stable')]
  top = top[np.isfinite(sums[top])]
  first = top // longest
  return Spans(first, first + top % longest, firsts[first], sums[top] - firsts[first])
