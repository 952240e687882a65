"""The masks of dropout are as good as independent draws: every number below is compared with what
independent draws would give, in standard deviations."""

import jax
import numpy as np
import pytest

from bert_jax import models
from bert_jax.config import bert
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


def test_masks_depend_on_all_of_the_key():
  """Both of its words: keys of one seed and another share the first."""
  words = np.array([[1, 2], [1, 3], [2, 2]], np.uint32)
  masks = [keep_mask(jax.random.wrap_key_data(w), 0.5, (8, 512)) for w in words]
  for one, other in ((0, 1), (0, 2), (1, 2)):
    assert 0.4 < (np.asarray(masks[one]) == np.asarray(masks[other])).mean() < 0.6


def test_numbers_are_dropped_or_scaled():
  layer = dropout.Dropout(0.25, deterministic=False)
  x = np.arange(1, 10_001, dtype=np.float32).reshape(10, 1000)
  y = layer.apply({}, x, rngs={'dropout': jax.random.key(0)})
  np.testing.assert_allclose(y, np.where(np.asarray(y) != 0, x / 0.75, 0), rtol=1e-6)
  assert 0.23 < (np.asarray(y) == 0).mean() < 0.27
  np.testing.assert_array_equal(dropout.Dropout(0.25, deterministic=True).apply({}, x), x)


# ---- where a model drops -------------------------------------------------------------------------


def model(**changes):
  small = dict(
    vocab_size=9,
    hidden_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=8,
    max_position_embeddings=64,
    norm_placement='pre',
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
  )
  return models.ModelConfig(**bert('tiny', **small | changes))


def zeros(layer, *arguments):
  """Parameters of a layer, all of them 0, to be changed."""
  keys = {'params': jax.random.key(0), 'dropout': jax.random.key(0)}
  shapes = jax.eval_shape(lambda: layer.init(keys, *arguments))['params']
  return jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)


def test_attention_drops_probabilities_at_its_rate():
  """Queries of 0 look at all tokens alike and values are unit vectors, so what comes out are the
  probabilities as they were dropped."""
  config = model(attention_probs_dropout_prob=0.4)
  layer = attention.Attention(config, deterministic=False)
  x = np.tile(np.eye(64, dtype='f4'), (8, 1, 1))
  tokens = models.Tokens(np.ones((8, 64), np.int32))
  params = zeros(layer, x, tokens, models.Layer())
  params['value']['kernel'] = params['output']['kernel'] = np.eye(64, dtype='f4')
  out = layer.apply(
    {'params': params}, x, tokens, models.Layer(), rngs={'dropout': jax.random.key(1)}
  )
  out = np.asarray(out)
  np.testing.assert_allclose(out[out > 0], 1 / 64 / 0.6, rtol=1e-5)
  assert (out == 0).mean() == pytest.approx(0.4, abs=0.015)
  heads = (out.reshape(8, 64, 4, 16) == 0).mean((0, 1, 3))
  assert abs(heads - 0.4).max() < 0.03
  layer = attention.Attention(config, deterministic=True)
  still = layer.apply({'params': params}, x, tokens, models.Layer())
  np.testing.assert_allclose(still, 1 / 64, rtol=1e-5)


@pytest.mark.parametrize('part', ['attention', 'feed-forward', 'both'])
def test_a_block_drops_what_its_parts_give_at_the_hidden_rate(part):
  """Both parts give ones wherever their last bias is 1."""
  layer = Block(model(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.1), False)
  x, tokens = np.zeros((8, 32, 64), np.float32), models.Tokens(np.ones((8, 32), np.int32))
  params = zeros(layer, x, tokens, models.Layer())
  params['attention']['output']['bias'] += part != 'feed-forward'
  params['output']['bias'] += part != 'attention'
  out, _ = layer.apply(
    {'params': params}, x, tokens, models.Layer(), rngs={'dropout': jax.random.key(1)}
  )
  kept = np.rint(np.asarray(out) * 0.7)
  np.testing.assert_allclose(out, kept / 0.7, rtol=1e-5)
  shares = np.bincount(kept.astype(int).ravel(), minlength=3) / kept.size
  expected = [0.09, 0.42, 0.49] if part == 'both' else [0.3, 0.7, 0]
  np.testing.assert_allclose(shares, expected, atol=0.015)


def test_attention_may_have_an_output_rate_of_its_own():
  """Attention gives ones and the feed-forward layer twos."""
  config = model(hidden_dropout_prob=0.1, attention_output_dropout_prob=0.4)
  x, tokens = np.zeros((8, 32, 64), np.float32), models.Tokens(np.ones((8, 32), np.int32))
  params = zeros(Block(config, False), x, tokens, models.Layer())
  params['attention']['output']['bias'] += 0.6
  params['output']['bias'] += 2 * 0.9

  def shares(deterministic):
    out, _ = Block(config, deterministic).apply(
      {'params': params}, x, tokens, models.Layer(), rngs={'dropout': jax.random.key(1)}
    )
    return np.bincount(np.rint(np.asarray(out)).astype(int).ravel(), minlength=4) / out.size

  np.testing.assert_allclose(shares(False), [0.04, 0.06, 0.36, 0.54], atol=0.015)
  assert shares(True)[2] == 1  # 0.6 + 1.8, nothing dropped or scaled


@pytest.mark.parametrize('scan', [False, True])
def test_every_layer_drops_elsewhere(scan):
  """Each of 4 layers adds a mask to nothing; one and the same mask would leave two levels only."""
  config = model(hidden_dropout_prob=0.5, num_hidden_layers=4, scan_layers=scan)
  encoder = models.Encoder(config)
  ids = np.ones((2, 16), np.int32)
  params = zeros(encoder, ids, ids, ids, ids)
  params['LayerNorm']['scale'] += 1
  for layer in [params['layers']] if scan else [params[f'layer_{i}'] for i in range(4)]:
    layer['attention']['output']['bias'] += 1
  out = jax.jit(
    lambda key: encoder.apply(
      {'params': params}, ids, ids, ids, ids, deterministic=False, rngs={'dropout': key}
    )
  )(jax.random.key(1))
  levels = [len(np.unique(token.round(3))) for token in np.asarray(out).reshape(-1, 64)]
  assert min(levels) >= 4


def test_embeddings_are_dropped_at_the_hidden_rate():
  config = model(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.1)
  layer = embeddings.Embeddings(config)
  ids = np.ones((8, 64), np.int32)
  params = zeros(layer, ids, ids, ids, False)
  params['LayerNorm']['bias'] += 1
  out = layer.apply({'params': params}, ids, ids, ids, False, rngs={'dropout': jax.random.key(1)})
  assert (np.asarray(out) == 0).mean() == pytest.approx(0.3, abs=0.015)


def test_a_classifier_drops_its_input_at_the_hidden_rate():
  config = model(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.1)
  layer = models.Classifier(config, 64)
  x = np.ones((8, 64, 64), np.float32)
  params = zeros(layer, x, False)
  params['dense']['kernel'] = np.eye(64, dtype='f4')
  out = layer.apply({'params': params}, x, False, rngs={'dropout': jax.random.key(1)})
  assert (np.asarray(out) == 0).mean() == pytest.approx(0.3, abs=0.015)
  np.testing.assert_array_equal(layer.apply({'params': params}, x), x)
