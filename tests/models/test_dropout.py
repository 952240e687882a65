"""The masks of dropout are as good as independent draws: every number below is compared with what
independent draws would give, in standard deviations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_models import model as small_model

from bert_jax import models
from bert_jax.models import dropout
from bert_jax.models.block import Block

keep_mask = jax.jit(dropout.keep_mask, static_argnums=(1, 2))


def centred(key, rate, shape):
  """The mask minus its expectation, in standard deviations of one draw."""
  mask = np.asarray(keep_mask(key, rate, shape), np.float64)
  return (mask - (1 - rate)) / np.sqrt(rate * (1 - rate))


@pytest.mark.parametrize('rate', [0.1, 0.5])
def test_shares_are_those_of_the_rate_and_neighbours_are_independent(rate):
  x = centred(jax.random.key(3), rate, (32, 4, 64, 64))
  assert abs(x.mean()) * x.size**0.5 < 4.5
  for axes in ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2), (2, 3), (0, 1)):  # no row, no column
    count = np.prod([x.shape[a] for a in axes])
    z = x.mean(axes) * count**0.5
    assert abs(z).max() < 5
    assert abs((z**2).mean() - 1) < 5 * (2 / z.size) ** 0.5
  for axis in range(4):
    for lag in (1, 2, 3, 4, 8, 16, 32):
      if lag < x.shape[axis]:
        low = np.take(x, range(x.shape[axis] - lag), axis)
        high = np.take(x, range(lag, x.shape[axis]), axis)
        assert abs((low * high).mean()) * low.size**0.5 < 5, (axis, lag)


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


def test_a_mask_is_a_function_of_shape_and_all_of_the_key():
  """Both of its words: keys of one seed and another share the first."""
  words = np.array([[1, 2], [1, 3], [2, 2]], np.uint32)
  keys = [jax.random.wrap_key_data(w) for w in words]
  masks = [np.asarray(keep_mask(key, 0.5, (8, 512))) for key in keys]
  for one, other in ((0, 1), (0, 2), (1, 2)):
    assert 0.4 < (masks[one] == masks[other]).mean() < 0.6
  np.testing.assert_array_equal(masks[0], dropout.keep_mask(keys[0], 0.5, (8, 512)))
  few = keep_mask(keys[0], 0.5, (4, 512))  # fewer rows, same rows
  np.testing.assert_array_equal(masks[0][:4], few)


# ---- where a model drops -------------------------------------------------------------------------


def model(**changes):
  sizes = dict(hidden_size=64, num_attention_heads=4, max_position_embeddings=64)
  return small_model(norm_placement='pre', **sizes, **changes)


def test_a_block_drops_what_its_parts_give():
  """Attention gives 0.6 everywhere and the feed-forward layer 1.8; attention has a rate of its own.
  Of the probabilities, which are the same everywhere, no dropout is seen."""
  config = model(hidden_dropout_prob=0.1, attention_output_dropout_prob=0.4)
  x, tokens = np.zeros((8, 32, 64), np.float32), models.Tokens(np.ones((8, 32), np.int32))
  keys = {name: jax.random.key(1) for name in ('params', 'dropout')}
  arrays = x, tokens, models.Layer()
  params = Block(config, False).init(keys, *arrays)['params']
  params = jax.tree.map(jnp.zeros_like, params)
  params['attention']['output']['bias'] += 0.6
  params['output']['bias'] += 1.8
  out, _ = Block(config, False).apply({'params': params}, *arrays, rngs=keys)
  for a, share_a in ((0, 0.4), (0.6 / 0.6, 0.6)):
    for b, share_b in ((0, 0.1), (1.8 / 0.9, 0.9)):
      share = np.isclose(out, a + b, atol=1e-3).mean()
      assert share == pytest.approx(share_a * share_b, abs=0.015)
  still, _ = Block(config, True).apply({'params': params}, *arrays)
  np.testing.assert_allclose(still, 2.4, rtol=1e-5)
