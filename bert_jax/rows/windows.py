"""Cuts texts that are longer than a row: to a part, or into overlapping windows, which lie a stride
apart or give as much context as there is around the tokens in question.

The windows of a text give one answer in three ways:

  the text as a whole (its class, its vector): the mean over all windows of their logits or vectors;
    of vectors, weighted by the tokens of a window
  each token (its tag, the word behind a mask): the answer of one window, the one that shows most
    context of this token (`owners`)
  a span of tokens (the answer to a question): the best span of all windows; a span is scored by the
    window that shows most context of its first token (tasks/qa/spans.py)
"""

from collections.abc import Sequence

import numpy as np

WINDOW_STRIDE = 0.5  # between the starts of windows, as a share of their length


def starts(size: int, room: int, stride: int) -> np.ndarray:
  """The first tokens [W] of windows of `room` tokens, at most a stride apart, that cover `size`."""
  step = min(stride, room)
  after_the_first = max(0, -(-(size - room) // step))
  return np.arange(1 + after_the_first) * step


def stride_of(room: int) -> int:
  """How many tokens lie between the first tokens of neighbouring windows, if a text is cut into
  windows of `room` tokens."""
  return max(1, round(room * WINDOW_STRIDE))


def around(first: int, last: int, length: int, room: int) -> list[tuple[int, int]]:
  """Windows (start, stop) of `room` tokens that cover the tokens first to last - 1 of `length`.

  A single window has as much context on either side of these tokens as the text allows. Several
  windows overlap by half."""
  size = last - first
  if size <= room:
    in_the_middle = first - (room - size) // 2
    start = max(0, min(in_the_middle, length - room))
    return [(start, min(start + room, length))]
  begins = [*range(first, last - room, max(1, room // 2)), last - room]
  return [(start, start + room) for start in begins]


def owners(
  windows: np.ndarray | Sequence[tuple[int, int]], at: np.ndarray, bonus: float = 0.0
) -> np.ndarray:
  """The window (start, stop), by number, that gives each position of `at` [n] most context on its
  shorter side (run_squad.py's "maximum context"). bonus: added per token of a window's length."""
  first, end = np.hsplit(np.asarray(windows), 2)  # [W, 1]
  context = np.minimum(at - first, end - 1 - at)  # [W, n], below 0 outside of a window
  worth = context + bonus * (end - first)
  return np.argmax(np.where(context >= 0, worth, -1.0), axis=0)


def cut(parts: Sequence[np.ndarray], room: int, keep: str = 'head') -> list[tuple]:
  """Cuts a text (one array) or a pair (two arrays) that is too long to `room` tokens.

  keep: 'head', 'tail' or 'head_tail' (a quarter of the room is for the head), or 'windows', which
  cuts no token but makes several windows. Returns the token arrays of each window."""
  if len(parts) == 2:
    step = -1 if keep == 'tail' else 1
    cut_parts = truncate([part[::step] for part in parts], room)
    return [tuple(part[::step] for part in cut_parts)]
  (ids,) = parts
  if keep == 'windows':
    begins = starts(len(ids), room, stride_of(room))
    return [(ids[start : start + room],) for start in begins]
  tokens_of_head = {'head': room, 'tail': 0, 'head_tail': room // 4}
  head = tokens_of_head[keep]
  tail = room - head
  kept = np.concatenate([ids[:head], ids[len(ids) - tail :]])
  return [(kept,)]


def truncate(parts: Sequence[np.ndarray], room: int) -> tuple[np.ndarray, ...]:
  """Cuts one or two token arrays at the end of the longer one until they have `room` tokens."""
  if sum(map(len, parts)) <= room:
    return tuple(parts)
  if len(parts) == 1:
    return (parts[0][:room],)
  first, second = parts
  half = room - room // 2  # the first is longer by one if both are cut
  kept = max(min(len(first), half), room - len(second))
  return first[:kept], second[: room - kept]
