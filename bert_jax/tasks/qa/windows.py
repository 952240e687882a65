"""The windows of a long context, the tokens of an answer, and the best spans over all windows.

This is the method of google-research/bert's run_squad.py: windows begin a stride apart, so a token
may be in several, and an answer that begins with it is judged in the window where the token has
most context. There are two differences: the best spans are the best of all, where the reference
searches the 20 best starts and ends of each window; and tokens are mapped to the text by offsets.
"""

from typing import NamedTuple

import numpy as np

_LENGTH_BONUS = 0.01  # for each token of a window, when windows compete for a token (run_squad.py)


class Spans(NamedTuple):
  """K spans of a context, the best first."""

  first: np.ndarray  # [K] the number of its first token
  last: np.ndarray  # [K] the number of its last token
  start_logits: np.ndarray  # [K]
  end_logits: np.ndarray  # [K]


def window_starts(size, room, stride):
  """[W] the first tokens of the windows of `room` tokens of a context of `size` tokens; W > 0."""
  step = min(stride, room)
  return np.arange(1 + max(0, -(-(size - room) // step))) * step


def judged(starts, size, room):
  """bounds [W + 1] that give each token of the context to one window: w answers with spans that
  begin at the tokens bounds[w] to bounds[w + 1] - 1. A token goes to the window with most context
  on its shorter side (maximum context in run_squad.py)."""
  ends = np.minimum(starts + room, size)
  at = np.arange(size)
  left, right = at - starts[:, None], ends[:, None] - 1 - at
  score = np.minimum(left, right) + _LENGTH_BONUS * (ends - starts)[:, None]
  owner = np.argmax(np.where((left >= 0) & (right >= 0), score, -1.0), axis=0)
  return np.searchsorted(owner, np.arange(len(starts) + 1))


def tokens_between(offsets, start, end):
  """(first, last) token of the characters start to end - 1; without a token, last = first - 1."""
  first = np.searchsorted(offsets[:, 1], start, side='right')
  return int(first), int(np.searchsorted(offsets[:, 0], end, side='left')) - 1


def best_spans(starts, bounds, start_logits, end_logits, *, longest, count):
  """The `count` best Spans of at most `longest` tokens, by the sum of their logits.
  starts [W] and bounds [W + 1]: see window_starts and judged. start_logits, end_logits: for each
  window an array over its tokens. A span lies within the window that judges its first token."""
  firsts, sums = [], []
  for begin, low, high, start, end in zip(
    starts, bounds[:-1], bounds[1:], start_logits, end_logits, strict=True
  ):
    judged_here = start[low - begin : high - begin]
    # ends[i, j]: the end logit of the span of j + 1 tokens that begins with the i-th of these.
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
