"""What is kept of a text, or of a pair of texts, that is too long; see task.py."""

import numpy as np

WINDOW_STRIDE = 0.5  # from the start of a window to that of the next, as a share of its length


def cut(parts, room, keep='head'):
  """[token arrays of each window] of the token arrays of a text (one) or a pair (two). A window has
  `room` tokens in all; if not of 'windows' or 'hierarchical', there is one."""
  if len(parts) == 2:
    return [truncate(parts, room)]
  (ids,) = parts
  if keep in ('windows', 'hierarchical'):
    stride = max(1, round(room * WINDOW_STRIDE))
    starts = range(0, len(ids) - room + stride, stride)
    return [(ids[start : start + room],) for start in starts]
  head = {'head': room, 'tail': 0, 'head_tail': room // 4}[keep]
  return [(np.concatenate([ids[:head], ids[len(ids) - (room - head) :]]),)]


def truncate(parts, room):
  """One or two token arrays, cut at the end of the longer one until they have `room` tokens."""
  if sum(map(len, parts)) <= room:
    return parts
  if len(parts) == 1:
    return (parts[0][:room],)
  a, b = map(len, parts)
  a = max(min(a, room - room // 2), room - b)  # equally long if both are cut, or the first by one
  return parts[0][:a], parts[1][: room - a]
