"""Windows of a context and the best spans in them, by brute force."""

import itertools

import numpy as np
import pytest

from bert_jax.rows import windows
from bert_jax.tasks.qa import spans as qa

SIZES = [(0, 5, 2), (4, 5, 2), (5, 5, 2), (6, 5, 2), (23, 10, 4), (24, 10, 4), (25, 10, 9)]
SIZES += [(40, 7, 30), (450, 320, 128)]  # in the last one the length of a window decides


@pytest.mark.parametrize('size, room, stride', SIZES)
def test_windows_and_their_context_are_those_of_run_squad(size, room, stride):
  spans, start = [], 0
  while start < size:
    spans.append((start, min(room, size - start)))
    if start + spans[-1][1] == size:
      break
    start += min(spans[-1][1], stride)
  starts = windows.starts(size, room, stride)
  assert list(starts) == [start for start, _ in spans] or (size == 0 and list(starts) == [0])
  bounds = qa.bounds_of(starts, size, room)
  for token in range(size):
    scores = [
      (min(token - a, a + n - 1 - token) + 0.01 * n, -w)
      for w, (a, n) in enumerate(spans)
      if a <= token < a + n
    ]
    window = -max(scores)[1]
    assert bounds[window] <= token < bounds[window + 1]
  assert bounds[0] == 0 and bounds[-1] == size


@pytest.mark.parametrize('size, longest, count', [(23, 4, 12), (5, 9, 100), (1, 1, 3), (0, 5, 3)])
def test_best_spans_are_the_best_of_all(size, longest, count):
  rng = np.random.default_rng(0)
  starts = windows.starts(size, 10, 4)
  bounds = qa.bounds_of(starts, size, 10)
  begin, end = ([rng.normal(size=min(10, size - a)) for a in starts] for _ in range(2))
  every = [
    (begin[w][i - a] + end[w][j - a], i, j)
    for w, a in enumerate(starts)
    for i in range(bounds[w], bounds[w + 1])
    for j in range(i, min(i + longest, a + 10, size))
  ]
  every = sorted(every, reverse=True)[:count]
  spans = qa.best_spans(starts, bounds, begin, end, longest=longest, count=count)
  assert list(zip(spans.first, spans.last)) == [(i, j) for _, i, j in every]
  assert spans.start_logits + spans.end_logits == pytest.approx([total for total, _, _ in every])


def test_windows_cover_all_and_overlap():
  rng = np.random.default_rng(0)
  for _ in range(250):
    room, length = rng.integers(1, 20), rng.integers(1, 80)
    first = rng.integers(0, length)
    last = rng.integers(first + 1, length + 1)
    found = windows.around(first, last, length, room)
    assert all(0 <= a < b <= length and b - a <= room for a, b in found)
    seen = set(itertools.chain(*(range(a, b) for a, b in found)))
    assert seen >= set(range(first, last))
    if last - first <= room:
      ((a, b),) = found
      assert b - a == min(room, length), 'the room is used'
      left, right = first - a, b - last
      assert abs(left - right) <= 1 or a == 0 or b == length, 'as much on either side'
    for (_, b), (a, _) in itertools.pairwise(found):
      assert b - a >= room // 2


def test_a_window_without_a_position_never_owns_it():
  """However long it is: the bonus of its length counts among windows that hold the position."""
  begins, ends = [0, 3], [4, 300]
  both = list(zip(begins, ends))
  assert windows.owners(both, np.arange(6), bonus=2.0).tolist() == [0, 0, 0, 1, 1, 1]
  assert windows.owners(both, np.arange(6)).tolist() == [0, 0, 0, 0, 1, 1]
