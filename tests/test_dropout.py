"""The masks of dropout are as good as independent draws: every number below is compared with what
independent draws would give, in standard deviations."""

import jax
import numpy as np
import pytest

from bert_jax.models import dropout

keep_mask = jax.jit(dropout.keep_mask, static_argnums=(1, 2))


def centred(key, rate, shape):
  """The mask minus its expectation, in standard deviations of one draw."""
  mask = np.asarray(keep_mask(key, rate, shape), np.float64)
  return (mask - (1 - rate)) / np.sqrt(rate * (1 - rate))


@pytest.mark.parametrize('prng_impl', ['threefry2x32', 'rbg'])
@pytest.mark.parametrize('rate', [0.1, 0.5])
def test_shares_are_those_of_the_rate(rate, prng_impl):
  x = centred(jax.random.key(3, impl=prng_impl), rate, (32, 4, 64, 64))
  assert abs(x.mean()) * x.size**0.5 < 4.5
  for axes in ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2), (2, 3), (0, 1)):  # no row, no column
    count = np.prod([x.shape[a] for a in axes])
    z = x.mean(axes) * count**0.5
    assert abs(z).max() < 5
    assert abs((z**2).mean() - 1) < 5 * (2 / z.size) ** 0.5


@pytest.mark.parametrize('rate', [0.1, 0.5])
def test_neighbours_are_independent(rate):
  x = centred(jax.random.key(4), rate, (32, 4, 64, 64))
  for axis in range(4):
    for lag in (1, 2, 3, 4, 8, 16, 32):
      if lag < x.shape[axis]:
        low = np.take(x, range(x.shape[axis] - lag), axis)
        high = np.take(x, range(lag, x.shape[axis]), axis)
        assert abs((low * high).mean()) * low.size**0.5 < 5, (axis, lag)
  # Patterns of eight in a row, against their expected counts (chi square).
  patterns = (x.reshape(-1, 8) > 0) @ (1 << np.arange(8))
  kept = np.array([n.bit_count() for n in range(256)])
  expected = (1 - rate) ** kept * rate ** (8 - kept) * len(patterns)
  often = expected > 5
  chi = ((np.bincount(patterns, minlength=256) - expected) ** 2 / expected)[often].sum()
  assert abs(chi - often.sum()) < 5 * (2 * often.sum()) ** 0.5


def test_rows_steps_and_layers_are_independent():
  rows = centred(jax.random.key(5), 0.1, (256, 4096))
  pairs = (rows @ rows.T)[np.triu_indices(256, 1)] / 4096**0.5
  assert abs(pairs).max() < 6
  assert abs(pairs.std() - 1) < 0.03
  key = jax.random.key(6)
  draws = [centred(jax.random.fold_in(key, n), 0.1, (64, 4096)) for n in range(4)]
  for n, one in enumerate(draws):
    for other in draws[:n]:
      assert abs((one * other).mean()) * one.size**0.5 < 5


def test_every_bit_of_the_place_matters():
  """Flipping a bit of the input flips each bit of the output half of the time."""
  x = np.random.default_rng(0).integers(0, 2**32, 50_000, dtype=np.uint32)
  plain = np.asarray(dropout._mix(x))
  for bit in range(32):
    flipped = plain ^ np.asarray(dropout._mix(x ^ np.uint32(1 << bit)))
    shares = [((flipped >> i) & 1).mean() for i in range(32)]
    assert max(abs(share - 0.5) for share in map(float, shares)) < 0.02


def test_a_mask_is_a_function_of_key_and_shape_alone():
  key = jax.random.key(7)
  whole = keep_mask(key, 0.3, (8, 16))
  np.testing.assert_array_equal(whole, dropout.keep_mask(key, 0.3, (8, 16)))
  np.testing.assert_array_equal(whole[:4], keep_mask(key, 0.3, (4, 16)))  # fewer rows, same rows
  assert (keep_mask(jax.random.key(8), 0.3, (8, 16)) != whole).any()


def test_numbers_are_dropped_or_scaled():
  layer = dropout.Dropout(0.25, deterministic=False)
  x = np.arange(1, 10_001, dtype=np.float32).reshape(10, 1000)
  y = layer.apply({}, x, rngs={'dropout': jax.random.key(0)})
  np.testing.assert_allclose(y, np.where(np.asarray(y) != 0, x / 0.75, 0), rtol=1e-6)
  assert 0.23 < (np.asarray(y) == 0).mean() < 0.27
  np.testing.assert_array_equal(dropout.Dropout(0.25, deterministic=True).apply({}, x), x)
