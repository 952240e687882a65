"""The masks of dropout are as good as independent draws: every number below is compared with what
independent draws would give, in standard deviations."""

import collections

import jax
import numpy as np
import pytest
from test_models import model as small_model

from bert_jax import models
from bert_jax.models import attention, dropout, embeddings
from bert_jax.models.block import Block

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


KEYS = {name: jax.random.key(1) for name in ('params', 'dropout')}


def zeros(layer, *arguments):
  """Parameters of a layer, all of them 0, to be changed."""
  shapes = jax.eval_shape(lambda: layer.init(KEYS, *arguments))['params']
  return jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)


def test_attention_drops_probabilities_at_its_rate():
  """Queries of 0 look at all tokens alike and values are unit vectors, so what comes out are the
  probabilities as they were dropped."""
  config = model(attention_probs_dropout_prob=0.4)
  x, tokens = np.tile(np.eye(64, dtype='f4'), (8, 1, 1)), models.Tokens(np.ones((8, 64), np.int32))
  layer = attention.Attention(config, deterministic=False)
  params = zeros(layer, x, tokens, models.Layer())
  params['value']['kernel'] = params['output']['kernel'] = np.eye(64, dtype='f4')
  out = np.asarray(layer.apply({'params': params}, x, tokens, models.Layer(), rngs=KEYS))
  np.testing.assert_allclose(out[out > 0], 1 / 64 / 0.6, rtol=1e-5)
  heads = (out.reshape(8, 64, 4, 16) == 0).mean((0, 1, 3))
  assert abs(heads - 0.4).max() < 0.03 and heads.mean() == pytest.approx(0.4, abs=0.015)
  still = attention.Attention(config, True).apply({'params': params}, x, tokens, models.Layer())
  np.testing.assert_allclose(still, 1 / 64, rtol=1e-5)


@pytest.mark.parametrize('first, second, own_rate', [(0.6, 0.0, 0.0), (0.6, 1.8, 0.4)])
def test_a_block_drops_what_its_parts_give(first, second, own_rate):
  """Attention gives one number everywhere and the feed-forward layer another; dropped at the hidden
  rate, or at a rate that attention has of its own."""
  rates = dict(hidden_dropout_prob=0.1, attention_output_dropout_prob=own_rate)
  config = model(attention_probs_dropout_prob=0.1, **rates)
  x, tokens = np.zeros((8, 32, 64), np.float32), models.Tokens(np.ones((8, 32), np.int32))
  params = zeros(Block(config, False), x, tokens, models.Layer())
  params['attention']['output']['bias'] += first
  params['output']['bias'] += second
  arrays = {'params': params}, x, tokens, models.Layer()
  run = lambda layer: jax.jit(lambda: layer.apply(*arrays, rngs=KEYS)[0])()
  out, rate = np.asarray(run(Block(config, False))), own_rate or 0.1
  expected = collections.Counter()  # {number: its share}
  for a, share_a in ((0, rate), (first / (1 - rate), 1 - rate)):
    for b, share_b in ((0, 0.1), (second / 0.9, 0.9)):
      expected[round(a + b, 4)] += share_a * share_b
  for number, share in expected.items():
    assert np.isclose(out, number, atol=1e-3).mean() == pytest.approx(share, abs=0.015)
  np.testing.assert_allclose(run(Block(config, True)), first + second, rtol=1e-5)


@pytest.mark.parametrize('name', ['embeddings', 'classifier'])
def test_a_layer_drops_at_the_hidden_rate(name):
  config = model(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.1)
  ids, x = np.ones((8, 64), np.int32), np.ones((8, 64, 64), np.float32)
  if name == 'embeddings':
    layer, arrays = embeddings.Embeddings(config), (ids, ids, ids)
    params = zeros(layer, *arrays, False)
    params['LayerNorm']['bias'] += 1
  else:  # its input
    layer, arrays = models.Classifier(config, 64), (x,)
    params = zeros(layer, *arrays, False)
    params['dense']['kernel'] = np.eye(64, dtype='f4')
  out = layer.apply({'params': params}, *arrays, False, rngs=KEYS)
  assert (np.asarray(out) == 0).mean() == pytest.approx(0.3, abs=0.015)
  np.testing.assert_allclose(layer.apply({'params': params}, *arrays, True), x, rtol=1e-6)
