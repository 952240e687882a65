"""SpanBERT's span boundary objective, against a plain reading of section 3.2 of its paper."""

import jax
import jax.numpy as jnp
import numpy as np
from references import drawn, float64, transformed
from test_objectives import MASKING, MODEL, batch_of

from bert_jax.objectives import span_boundary
from bert_jax.objectives.mlm_nsp import MlmNsp

OBJECTIVE = MlmNsp(MODEL, 8, 0.0, MASKING | {'policies': ('span',)}, sbo_weight=1.0)


def by_hand(masked, length):
  """{position: (left, right, place)} of the masked tokens of a row that count."""
  out = {}
  for at in masked:
    left = right = at
    while left in masked:
      left -= 1
    while right in masked:
      right += 1
    if left >= 0 and right < length and at - left <= 20:
      out[at] = left, right, at - left - 1
  return out


def test_boundaries_are_the_tokens_beside_each_span():
  """Spans of 1 to 30 tokens; two that touch are one; past the 20th token nothing is predicted."""
  rng = np.random.RandomState(0)
  length, slots, rows = 64, 40, 50
  positions, weights = np.zeros((rows, slots), np.int32), np.zeros((rows, slots), np.float32)
  masked = []
  for row in range(rows):
    start, size = rng.randint(0, 20), rng.randint(1, 31)
    spans = set(range(start, start + size)) | set(rng.choice(length, 6, replace=False).tolist())
    masked.append(sorted(spans)[:slots])
    rest = sorted(set(range(length)) - set(masked[-1]))
    order = rng.permutation(slots)  # those that are masked stand in any slots
    positions[row, order] = (masked[-1] + rest)[:slots]
    weights[row, order] = np.arange(slots) < len(masked[-1])
  out = [np.asarray(x) for x in span_boundary.boundaries(positions, weights, length)]
  for row in range(rows):
    expected = by_hand(masked[row], length)
    places = zip(positions[row].tolist(), *(x[row].tolist() for x in out))
    assert {at: tuple(where) for at, *where, counts in places if counts} == expected
  lost = sum(len(m) for m in masked) - out[3].sum()
  assert 50 < lost < 600  # longer than 20, or at an end of the row


def test_the_head_is_its_formula():
  """h = LN(gelu(W1 [x_left; x_right; p] + b)), y = LN(gelu(W2 h + b)), logits y E' + b."""
  params = drawn(OBJECTIVE.init)
  head = float64(params['sbo'])
  rng = np.random.default_rng(0)
  left, right = rng.normal(size=(2, 1, 3, 16)).astype('f4')
  table = np.asarray(params['encoder']['embeddings']['word_embeddings']['embedding'], np.float64)

  place = np.array([[0, 4, 19]])
  x = np.concatenate([left, right, head['places']['embedding'][place]], -1)
  for part in (head, head['mlm']):
    x = transformed(MODEL, x, part, 'transform')
  expected = x @ table.T + head['mlm']['bias']
  arrays = left, right, place, jnp.float32(table)
  found = jax.jit(span_boundary.SpanBoundaryHead(MODEL).apply)({'params': params['sbo']}, *arrays)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_no_boundary_is_in_another_example():
  """Examples of 3, 3 and 2 tokens: a span amid one, one at an end, and one across two of them."""
  params, batch = drawn(OBJECTIVE.init), batch_of(OBJECTIVE)
  batch |= {
    'segment_ids': jnp.tile(jnp.array([1, 1, 1, 2, 2, 2, 3, 3]), (4, 1)),
    'masked_positions': jnp.tile(jnp.array([[1, 5, 0], [2, 3, 0]]), (2, 1)),
    'masked_weights': jnp.tile(jnp.array([1.0, 1.0, 0.0]), (4, 1)),
  }
  hidden = jnp.ones((4, 8, 16))
  _, weights = jax.jit(lambda: span_boundary.logits(MODEL, params, hidden, batch))()
  assert weights.tolist() == [[1, 0, 0], [0, 0, 0]] * 2
