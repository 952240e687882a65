"""Cuts texts that are longer than a row: to a part, or into overlapping windows, which lie a stride
apart or give as much context as there is around the tokens in question."""

from collections.abc import Sequence

import numpy as np

WINDOW_STRIDE = 0.5  # between the starts of windows, as a share of their length


def starts(size: int, room: int, stride: int) -> np.ndarray:
  """The first tokens [W] of windows of `room` tokens, at most a stride apart, that cover `size`."""
  step = min(stride, room)
  return np.arange(1 + max(0, -(-(size - room) // step))) * step


def stride_of(room: int) -> int:
  """The tokens from window to window of a text that is cut into windows of `room` tokens."""
  return max(1, round(room * WINDOW_STRIDE))


def around(first: int, last: int, length: int, room: int) -> list[tuple[int, int]]:
  """Windows (start, stop) of `room` tokens that cover the tokens first to last - 1 of `length`. A
  single one has as much context on either side; several overlap by half."""
  if last - first <= room:
    start = max(0, min(first - (room - (last - first)) // 2, length - room))
    return [(start, min(start + room, length))]
  begins = [*range(first, last - room, max(1, room // 2)), last - room]
  return [(start, start + room) for start in begins]


def owners(
  begins: Sequence[int], ends: Sequence[int], at: np.ndarray, bonus: float = 0.0
) -> np.ndarray:
  """The window, by number, that gives each position of `at` [n] most context on its shorter side
  (run_squad.py's "maximum context"). bonus: added per token of a window's length."""
  first, end = np.asarray(begins)[:, None], np.asarray(ends)[:, None]
  context = np.minimum(at - first, end - 1 - at)
  return np.argmax(np.where(context >= 0, context + bonus * (end - first), -1.0), axis=0)


def cut(parts: Sequence[np.ndarray], room: int, keep: str = 'head') -> list[tuple]:
  """Cuts a text (one array) or a pair (two) that is too long to `room` tokens, or to several
  windows if `keep` is windows or hierarchical: [the token arrays of each window]."""
  if len(parts) == 2:
    return [truncate(parts, room)]
  (ids,) = parts
  if keep in ('windows', 'hierarchical'):
    begins = starts(len(ids), room, stride_of(room))
    return [(ids[start : start + room],) for start in begins]
  head = {'head': room, 'tail': 0, 'head_tail': room // 4}[keep]
  return [(np.concatenate([ids[:head], ids[len(ids) - (room - head) :]]),)]


def truncate(parts: Sequence[np.ndarray], room: int) -> tuple[np.ndarray, ...]:
  """Cuts one or two token arrays at the end of the longer one until they have `room` tokens."""
  if sum(map(len, parts)) <= room:
    return tuple(parts)
  if len(parts) == 1:
    return (parts[0][:room],)
  a, b = map(len, parts)
  a = max(min(a, room - room // 2), room - b)  # equally long if both are cut, or the first by one
  return parts[0][:a], parts[1][: room - a]
