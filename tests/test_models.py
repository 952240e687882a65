"""BERT as released: its parameter counts, and every choice of the config doing what it says."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import config as c
from bert_jax import models
from bert_jax.config import SIZES
from bert_jax.models import attention, dropout, embeddings
from bert_jax.objectives import base
from bert_jax.objectives.classification import Classification
from bert_jax.objectives.mlm_nsp import MlmNsp

MASKING = dict(
  special_ids=(0, 1, 2, 3, 4),
  mask_id=4,
  stages=((0, 'token'),),
  masked_lm_prob=0.15,
  max_predictions=5,
  mask_share=0.8,
  random_share=0.1,
)


def model(**changes):
  small = dict(
    vocab_size=99,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.2,
  )
  return models.ModelConfig(**c.bert('tiny', **small | changes))


def batch(B=4, T=20, seed=0):
  rng = np.random.RandomState(seed)
  lengths = np.array([T, T - 7, 5, 1])[:B]
  real = np.arange(T) < lengths[:, None]
  arrays = {
    'input_ids': np.where(real, rng.randint(5, 99, (B, T)), 0),
    'token_type_ids': real * (np.arange(T) > 3),
    'position_ids': np.tile(np.arange(T), (B, 1)),
    'segment_ids': real,
  }
  return {name: jnp.asarray(x, jnp.int32) for name, x in arrays.items()}


def hidden(config, inputs, params=None, rng=None):
  params = params or models.init_encoder(config, jax.random.key(0))
  return np.asarray(base.encode(config, params, inputs, rng), np.float32)


@pytest.mark.parametrize(
  'size, vocab, encoder_and_pooler, with_heads',
  [
    ('base', 30522, 109_482_240, 110_106_428),
    ('large', 30522, 335_141_888, 336_226_108),
    ('base', 21128, 102_267_648, None),
    ('base', 28996, 108_310_272, None),
    ('base', 119547, 177_853_440, None),
  ],
)
def test_parameter_counts_are_the_published_ones(size, vocab, encoder_and_pooler, with_heads):
  config = models.ModelConfig(**c.bert(size, vocab_size=vocab, vocab_multiple=1))
  shapes = jax.eval_shape(MlmNsp(config, 128, 1.0, MASKING).init, jax.random.key(0))
  count = models.count_parameters
  assert count(shapes['encoder']) + count(shapes['pooler']) == encoder_and_pooler
  assert with_heads in (None, count(shapes))


def test_the_24_miniatures_and_large():
  own = {name for name in SIZES if '/' in name}
  assert len(own) == 25 and SIZES['base'] == (12, 768) and '12/768' in own
  # Published by Turc et al. 2019 (table 1), in millions.
  for size, millions in {'tiny': 4.4, 'mini': 11.3, 'small': 29.1, 'medium': 41.7}.items():
    config = models.ModelConfig(**c.bert(size, vocab_size=30522, vocab_multiple=1))
    shapes = jax.eval_shape(MlmNsp(config, 128, 1.0, MASKING).init, jax.random.key(0))
    encoder = models.count_parameters(shapes['encoder']) + models.count_parameters(shapes['pooler'])
    assert encoder / 1e6 == pytest.approx(millions, abs=0.35), size


@pytest.mark.parametrize(
  'changes',
  [
    dict(position_embeddings='sinusoidal'),
    dict(position_embeddings='none'),
    dict(hidden_act='gelu_tanh'),
    dict(hidden_act='relu'),
    dict(hidden_act='swish'),
    dict(norm_placement='pre'),
    dict(type_vocab_size=0),
    dict(dtype='bfloat16'),
  ],
  ids=str,
)
def test_each_choice_changes_the_output_and_stays_finite(changes):
  plain, other = hidden(model(), batch()), hidden(model(**changes), batch())
  assert np.isfinite(other).all()
  assert np.abs(plain - other).max() > 1e-4
  if changes == dict(dtype='bfloat16'):
    assert np.abs(plain - other).max() < 0.2


@pytest.mark.parametrize(
  'changes',
  [
    dict(scan_layers=True),
    dict(remat='full'),
    dict(remat='dots'),
    dict(scan_layers=True, remat='full'),
    dict(attention_implementation='xla'),
  ],
  ids=str,
)
def test_how_it_is_computed_does_not_change_values_or_gradients(changes):
  plain, other = model(), model(**changes)
  params = models.init_encoder(plain, jax.random.key(0))
  own = models.stack_layers(params) if other.scan_layers else params

  def loss(config):
    return lambda p: (base.encode(config, p, batch())[batch()['segment_ids'] > 0] ** 3).sum()

  value, gradient = jax.value_and_grad(loss(plain))(params)
  value2, gradient2 = jax.value_and_grad(loss(other))(own)
  assert value == pytest.approx(float(value2), rel=1e-5)
  gradient2 = models.unstack_layers(gradient2)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), gradient, gradient2
  )


def test_scanned_layers_start_from_the_same_numbers():
  unrolled = models.init_encoder(model(), jax.random.key(3))
  scanned = models.init_encoder(model(scan_layers=True), jax.random.key(3))
  jax.tree.map(np.testing.assert_array_equal, models.unstack_layers(scanned), unrolled)


def test_padding_does_not_change_what_is_real():
  config = model()
  short = batch(T=20)
  long = {
    k: np.pad(v, ((0, 0), (0, 9)), constant_values=7 if k == 'input_ids' else 0)
    for k, v in short.items()
  }
  a, b = hidden(config, short), hidden(config, long)
  real = short['segment_ids'] > 0
  np.testing.assert_allclose(a[real], b[:, :20][real], atol=1e-5)


@pytest.mark.parametrize('rate', [0.0, 0.3])
def test_the_gradient_of_attention_is_its_derivative(rate):
  """The one written by hand beside JAX's own of the formula in the paper, with the same dropout."""
  keys = jax.random.split(jax.random.key(0), 5)
  q, k, v, weights = (jax.random.normal(key, (3, 12, 2, 8)) for key in keys[:4])
  segments = np.array([[1] * 7 + [2] * 5, [1] * 3 + [2] * 4 + [0] * 5, [0] * 12], np.int32)

  def formula(q, k, v):
    scores = jnp.einsum('bqhd,bkhd->bhqk', q, k) / 8**0.5
    mask = (segments[:, :, None] == segments[:, None, :]) & (segments > 0)[:, None, :]
    p = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e30), axis=-1)
    if rate:
      p = jnp.where(dropout.keep_mask(keys[4], rate, p.shape), p / (1 - rate), 0)
    return jnp.einsum('bhqk,bkhd->bqhd', p, v)

  def ours(q, k, v):
    return attention.softmax_attention(q, k, v, segments, keys[4], rate)

  real = (segments > 0)[..., None, None]
  gradients = [
    jax.grad(lambda *x, f=f: (jnp.where(real, f(*x), 0) * weights).sum(), argnums=(0, 1, 2))(
      q, k, v
    )
    for f in (formula, ours)
  ]
  np.testing.assert_allclose(*(np.where(real, f(q, k, v), 0) for f in (formula, ours)), atol=1e-6)
  for a, b in zip(*gradients, strict=True):
    np.testing.assert_allclose(a, b, atol=2e-6)


def test_splash_attention_is_attention():
  """The TPU's kernel, interpreted, beside the formula: values and gradients of packed segments,
  padding and a row that is empty."""
  keys = jax.random.split(jax.random.key(0), 3)
  q, k, v = (jax.random.normal(key, (3, 256, 2, 64)) for key in keys)
  segments = np.repeat(np.array([[1, 1, 2, 3], [1, 2, 0, 0], [0, 0, 0, 0]], np.int32), 64, axis=1)
  real = (segments > 0)[..., None, None]

  def total(attend):
    def f(*qkv):
      out = attend(*qkv, segments)
      return (jnp.where(real, out, 0) ** 2).sum(), out

    return jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)(q, k, v)

  formula = functools.partial(attention.attend, implementation='einsum')
  (_, a), gradients_a = total(formula)
  (_, b), gradients_b = total(functools.partial(attention.splash, interpret=True))
  assert np.isfinite(b).all()
  np.testing.assert_allclose(np.where(real, a, 0), np.where(real, b, 0), atol=2e-6)
  for x, y in zip(gradients_a, gradients_b, strict=True):
    np.testing.assert_allclose(x, y, atol=5e-6)


@pytest.mark.parametrize('length', [20, 128])
def test_splash_is_compiled_where_it_cannot_run(length):
  """In a jitted step both branches are traced; off a TPU, or at such a length, it is 'xla'."""
  keys = jax.random.split(jax.random.key(0), 3)
  q, k, v = (jax.random.normal(key, (2, length, 2, 64)) for key in keys)
  segments = jnp.ones((2, length), jnp.int32)
  out = {
    name: jax.jit(functools.partial(attention.attend, implementation=name))(q, k, v, segments)
    for name in ('xla', 'splash')
  }
  np.testing.assert_allclose(out['xla'], out['splash'], atol=1e-6)


@pytest.mark.parametrize('implementation', ['einsum', 'xla', 'splash'])
def test_packed_examples_do_not_see_each_other(implementation):
  config = model(attention_implementation=implementation)
  one = batch()
  a, b = (slice(1, 2), slice(0, 13)), (slice(2, 3), slice(0, 5))
  packed = {k: np.concatenate([v[a], v[b]], axis=1) for k, v in one.items()}
  packed['segment_ids'] = np.array([[1] * 13 + [2] * 5], np.int32)
  apart = hidden(config, one)
  together = hidden(config, packed)[0]
  np.testing.assert_allclose(together[:13], apart[1, :13], atol=1e-5)
  np.testing.assert_allclose(together[13:], apart[2, :5], atol=1e-5)


@pytest.mark.parametrize('implementation', ['einsum', 'xla', 'splash'])
def test_an_empty_row_stays_finite_forward_and_backward(implementation):
  config = model(attention_implementation=implementation)
  inputs = batch()
  inputs['segment_ids'] = jnp.zeros_like(inputs['segment_ids'])
  params = models.init_encoder(config, jax.random.key(0))
  gradient = jax.grad(lambda p: base.encode(config, p, inputs).sum())(params)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_cudnn_attention_raises_where_there_is_none():
  if jax.default_backend() == 'gpu':
    pytest.skip('this machine has cudnn')
  q = jnp.ones((1, 4, 2, 8), jnp.bfloat16)
  with pytest.raises(Exception, match='(?i)cudnn|cuda|gpu'):
    jax.jit(
      lambda: attention.attend(q, q, q, jnp.ones((1, 4), jnp.int32), implementation='cudnn')
    )().block_until_ready()


def test_dropout_is_on_only_with_a_key_and_has_its_rate():
  config = model(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
  a, b = (hidden(config, batch(), rng=jax.random.key(s)) for s in (0, 1))
  assert np.abs(a - b).max() > 1e-3
  assert (hidden(config, batch()) == hidden(config, batch())).all()
  layer = embeddings.Embeddings(
    dataclasses.replace(config, hidden_size=512, hidden_dropout_prob=0.3)
  )
  inputs = [batch()[k] for k in ('input_ids', 'token_type_ids', 'position_ids')]
  params = layer.init(jax.random.key(0), *inputs, True)
  out = layer.apply(params, *inputs, False, rngs={'dropout': jax.random.key(1)})
  assert float((out == 0).mean()) == pytest.approx(0.3, abs=0.01)


def test_gradients_of_looked_up_rows_do_not_stop_adding_in_bfloat16():
  rows = {'input_ids': 7, 'token_type_ids': 0, 'position_ids': 3}
  rows = {name: jnp.full((40, 20), value) for name, value in rows.items()}

  def gradients(dtype):
    layer = embeddings.Embeddings(model(dtype=dtype))
    params = layer.init(jax.random.key(0), **_named(rows), deterministic=True)
    out = lambda params: layer.apply(params, **_named(rows), deterministic=True)
    loss = lambda params: jnp.sum(out(params)[..., 0].astype(jnp.float32))
    return jax.grad(loss)(params)['params']

  exact, rounded = gradients('float32'), gradients('bfloat16')
  for table, row in ('word', 7), ('token_type', 0), ('position', 3):
    name = f'{table}_embeddings'
    expected, given = exact[name]['embedding'][row], rounded[name]['embedding'][row]
    np.testing.assert_allclose(given, expected, rtol=0.02, atol=0.02 * abs(expected).max())


def _named(rows):
  return {f'{name}_BT': value for name, value in rows.items()}


def test_sinusoidal_positions_are_the_papers():
  table = embeddings.sinusoidal(50, 16)
  assert table[7, 0] == pytest.approx(np.sin(7)) and table[7, 1] == pytest.approx(np.cos(7))
  assert table[7, 6] == pytest.approx(np.sin(7 / 10000 ** (6 / 16)), abs=1e-6)
  assert embeddings.sinusoidal(5, 7).shape == (5, 7)


def test_padding_of_the_vocabulary_takes_no_probability():
  objective = MlmNsp(model(vocab_multiple=128), 20, 0.0, MASKING)
  params = objective.init(jax.random.key(0))
  assert params['encoder']['embeddings']['word_embeddings']['embedding'].shape == (128, 24)
  prepared = objective.prepare(batch(), jax.random.key(1))
  logits, nsp = objective.logits(params, prepared)
  assert nsp is None and 'pooler' not in params
  probabilities = jax.nn.softmax(logits)
  assert logits.shape[-1] == 128 and float(probabilities[..., 99:].max()) == 0.0


def test_untied_decoder_is_a_parameter_of_its_own():
  tied, untied = (MlmNsp(model(tie_word_embeddings=t), 20, 1.0, MASKING) for t in (True, False))
  a, b = (models.count_parameters(o.init(jax.random.key(0))) for o in (tied, untied))
  assert b - a == 128 * 24


def test_initial_weights_are_berts():
  config = model(hidden_size=240, intermediate_size=960, initializer_range=0.02)
  params = models.init_encoder(config, jax.random.key(0))
  kernel = np.asarray(params['layer_0']['intermediate']['kernel'])
  # A normal of 0.02 cut at two standard deviations has 0.88 of its width.
  assert np.abs(kernel).max() <= 0.04 and kernel.std() == pytest.approx(0.02 * 0.8796, rel=0.01)
  assert not np.asarray(params['layer_0']['intermediate']['bias']).any()


@pytest.mark.parametrize('nsp_weight', [0.0, 1.0])
def test_flops_match_the_compilers_count(nsp_weight):
  """Of an unrolled model, wide enough that everything but matrix products hardly counts."""
  config = model(
    hidden_size=192,
    num_attention_heads=3,
    intermediate_size=768,
    vocab_size=2048,
    hidden_act='relu',
  )
  objective = MlmNsp(config, 20, nsp_weight, MASKING)
  params = objective.init(jax.random.key(0))
  inputs = objective.prepare(batch(), jax.random.key(1)) | {
    'cls_positions': np.zeros((4, 1), np.int32)
  }
  cost = jax.jit(objective.logits).lower(params, inputs).compile().cost_analysis()
  assert objective.flops(4) == pytest.approx(cost['flops'], rel=0.03)


def test_classifier_reads_every_packed_example():
  objective = Classification(model(), 20, ('a', 'b', 'c'), examples_per_row=2)
  params = objective.init(jax.random.key(0))
  inputs = batch(B=1) | {
    'cls_positions': np.array([[0, 13]], np.int32),
    'labels': np.array([[2, 0]], np.int32),
    'weights': np.ones((1, 2), np.float32),
    'example_ids': np.array([[1, 2]], np.int32),
  }
  inputs['segment_ids'] = jnp.array([[1] * 13 + [2] * 7])
  out = objective.predict(params, inputs)
  assert out['logits'].shape == (1, 2, 3)
  assert np.abs(out['logits'][0, 0] - out['logits'][0, 1]).max() > 1e-5
  terms = objective.terms(params, inputs, None, False)
  assert float(terms['classification'].weight) == 2.0


def test_the_models_constraint_takes_effect_on_a_mesh():
  """Linen's constraints vanish in silence without mesh or rules, so look at the sharding itself."""
  from bert_jax import sharding

  mesh = sharding.make_mesh(-1, 1, 1)
  with jax.set_mesh(mesh), sharding.activation_rules():
    out = jax.make_jaxpr(lambda x: nn.with_logical_constraint(x, ('batch', 'length', 'hidden')))(
      jnp.zeros((8, 2, 2))
    )
  assert 'sharding_constraint' in str(out)
