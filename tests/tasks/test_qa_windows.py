"""Windows of a context and the best spans in them, by brute force."""

import numpy as np
import pytest

from bert_jax.tasks.qa import windows


@pytest.mark.parametrize(
  ('size', 'room', 'stride'),
  [
    (0, 5, 2),
    (4, 5, 2),
    (5, 5, 2),
    (6, 5, 2),
    (23, 10, 4),
    (24, 10, 4),
    (25, 10, 9),
    (40, 7, 30),
    (450, 320, 128),  # here the length of a window decides
  ],
)
def test_windows_and_their_context_are_those_of_run_squad(size, room, stride):
  spans, start = [], 0
  while start < size:
    spans.append((start, min(room, size - start)))
    if start + spans[-1][1] == size:
      break
    start += min(spans[-1][1], stride)
  starts = windows.window_starts(size, room, stride)
  assert list(starts) == [start for start, _ in spans] or (size == 0 and list(starts) == [0])
  bounds = windows.judged(starts, size, room)
  for token in range(size):
    scores = [
      (min(token - a, a + n - 1 - token) + 0.01 * n, -w)
      for w, (a, n) in enumerate(spans)
      if a <= token < a + n
    ]
    window = -max(scores)[1]
    assert bounds[window] <= token < bounds[window + 1]
  assert bounds[0] == 0 and bounds[-1] == size


@pytest.mark.parametrize(('size', 'longest', 'count'), [(23, 4, 12), (5, 9, 100), (1, 1, 3)])
def test_best_spans_are_the_best_of_all(size, longest, count):
  rng = np.random.default_rng(0)
  starts = windows.window_starts(size, 10, 4)
  bounds = windows.judged(starts, size, 10)
  begin, end = ([rng.normal(size=min(10, size - a)) for a in starts] for _ in range(2))
  every = [
    (begin[w][i - a] + end[w][j - a], i, j)
    for w, a in enumerate(starts)
    for i in range(bounds[w], bounds[w + 1])
    for j in range(i, min(i + longest, a + 10, size))
  ]
  every = sorted(every, reverse=True)[:count]
  spans = windows.best_spans(starts, bounds, begin, end, longest=longest, count=count)
  assert list(zip(spans.first, spans.last)) == [(i, j) for _, i, j in every]
  assert spans.start_logits + spans.end_logits == pytest.approx([total for total, _, _ in every])


def test_a_context_without_tokens_has_no_span():
  empty = [np.zeros(0, np.float32)]
  spans = windows.best_spans([0], [0, 0], empty, empty, longest=5, count=3)
  assert len(spans.first) == 0
