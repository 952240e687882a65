"""BERT as released: its parameter counts, and every choice of the config doing what it says."""

import dataclasses
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import config as c
from bert_jax import models
from bert_jax.config import SIZES
from bert_jax.models import attention_kernels, embeddings, layers, positions
from bert_jax.models.tokens import Pattern
from bert_jax.objectives.classification import Classification
from bert_jax.objectives.encode import encode
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.timeline import EVALUATION

MASKING = dict(
  special_ids=(0, 1, 2, 3, 4),
  mask_id=4,
  policies=('token',),
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
  return np.asarray(encode(config, params, inputs, rng), np.float32)


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


def norm(x, parameters, eps):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
  return x * parameters['scale'] + parameters['bias']


ACTIVATIONS = {
  'gelu': lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5)),
  'gelu_tanh': lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
  'relu': lambda x: np.maximum(x, 0),
  'swish': lambda x: x / (1 + np.exp(-x)),
}


def by_hand(config, params, inputs):
  """The encoder of Devlin et al. 2018 (post-LN) or Xiong et al. 2020 (pre-LN) in float64."""
  D, H, eps = config.hidden_size, config.num_attention_heads, config.layer_norm_eps
  tables, dense = params['embeddings'], lambda x, p: x @ p['kernel'] + p['bias']
  segments, positions = inputs['segment_ids'], inputs['position_ids']
  x = tables['word_embeddings']['embedding'][inputs['input_ids']]
  if config.type_vocab_size:
    x = x + tables['token_type_embeddings']['embedding'][inputs['token_type_ids']]
  if config.position_embeddings == 'learned':
    x = x + tables['position_embeddings']['embedding'][positions]
  if config.position_embeddings == 'sinusoidal':
    angles = positions[..., None] / 10000.0 ** (np.arange(D) // 2 * 2 / D)
    x = x + np.where(np.arange(D) % 2, np.cos(angles), np.sin(angles))
  x = norm(x, tables['LayerNorm'], eps)

  def attend(x, p):
    split = lambda x: x.reshape(*x.shape[:2], H, D // H).swapaxes(1, 2)
    q, k, v = (split(dense(x, p[name])) for name in ('query', 'key', 'value'))
    scores = q @ k.swapaxes(2, 3) / (D // H) ** 0.5
    seen = (segments[:, :, None] == segments[:, None, :]) & (segments[:, None, :] > 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True)) * seen[:, None]
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    return dense((weights @ v).swapaxes(1, 2).reshape(x.shape), p['output'])

  def feed_forward(x, p):
    return dense(ACTIVATIONS[config.hidden_act](dense(x, p['intermediate'])), p['output'])

  for i in range(config.num_hidden_layers):
    p = params[f'layer_{i}']
    first, second = p['attention_LayerNorm'], p['output_LayerNorm']
    if config.norm_placement == 'pre':
      x = x + attend(norm(x, first, eps), p['attention'])
      x = x + feed_forward(norm(x, second, eps), p)
    else:
      x = norm(x + attend(x, p['attention']), first, eps)
      x = norm(x + feed_forward(x, p), second, eps)
  return norm(x, params['LayerNorm'], eps) if config.norm_placement == 'pre' else x


def moved(params, seed=1):
  """Parameters none of which is 0 or 1, as biases and scales of norms are at first."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: np.asarray(x) + rng.normal(0, 0.2, x.shape).astype('f4'), params)


def to_float64(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


@pytest.mark.parametrize(
  'changes',
  [
    dict(),
    dict(position_embeddings='sinusoidal'),
    dict(position_embeddings='none', type_vocab_size=0),
    dict(hidden_act='gelu_tanh'),
    dict(hidden_act='relu', attention_implementation='xla'),
    dict(hidden_act='swish'),
    dict(norm_placement='pre'),
    dict(norm_placement='pre', scan_layers=True, layer_norm_eps=0.1),
    dict(layer_norm_eps=0.1),
  ],
  ids=str,
)
def test_the_encoder_is_its_formula(changes):
  config = model(**changes)
  inputs = batch(B=3) | {'position_ids': jnp.asarray(np.arange(60).reshape(3, 20) % 32)}
  inputs['segment_ids'] = inputs['segment_ids'].at[0, 12:].set(2)  # a packed row
  params = moved(models.init_encoder(config, jax.random.key(0)))
  arrays = {name: np.asarray(x) for name, x in inputs.items()}
  expected = by_hand(config, to_float64(models.unstack_layers(params)), arrays)
  real = arrays['segment_ids'] > 0
  np.testing.assert_allclose(hidden(config, inputs, params)[real], expected[real], atol=3e-5)


def test_bfloat16_rounds_and_nothing_more():
  params = moved(models.init_encoder(model(), jax.random.key(0)))
  exact = hidden(model(), batch(), params)
  out = encode(model(dtype='bfloat16'), params, batch())
  real = batch()['segment_ids'] > 0
  assert out.dtype == jnp.bfloat16
  wrong = np.abs(np.asarray(out, np.float32) - exact)[real]
  assert 1e-4 < wrong.mean() < 0.01 and wrong.max() < 0.15


def test_attention_scores_are_float32_under_bfloat16():
  """Scores of some units: bfloat16 has steps of a hundredth there, and shares as far off."""
  keys = jax.random.split(jax.random.key(0))
  q, k = (2 * jax.random.normal(key, (1, 12, 2, 16), jnp.float32) for key in keys)
  q, k = q.astype(jnp.bfloat16), k.astype(jnp.bfloat16)
  tokens = models.Tokens(jnp.ones((1, 12), jnp.int32))
  shares = attention_kernels.probabilities(q, k, None, Pattern(tokens, tokens))
  scores = np.einsum('bqhd,bkhd->bhqk', np.asarray(q, np.float64), np.asarray(k, np.float64)) / 4
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  assert shares.dtype == jnp.float32
  np.testing.assert_allclose(shares, weights / weights.sum(-1, keepdims=True), atol=1e-4)


def test_statistics_of_layer_norm_are_float32_under_bfloat16():
  """Of numbers around 1000 with a deviation of 8: in bfloat16 their mean is off by up to 4."""
  x = 1000 + 8 * np.random.default_rng(0).standard_normal((4, 256))
  x = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)
  layer = layers.norm(model(dtype='bfloat16'))
  params = layer.init(jax.random.key(0), jnp.asarray(x, jnp.bfloat16))
  out = np.asarray(layer.apply(params, jnp.asarray(x, jnp.bfloat16)), np.float64)
  expected = norm(x, {'scale': 1, 'bias': 0}, 1e-12)
  np.testing.assert_allclose(out, expected, rtol=0.01, atol=0.01)
  assert all(p.dtype == jnp.float32 for p in jax.tree.leaves(params))


@pytest.mark.parametrize('tied', [True, False])
@pytest.mark.parametrize('act', ['gelu', 'swish'])
def test_the_masked_lm_head_is_its_formula(act, tied):
  config = model(hidden_act=act, layer_norm_eps=0.1, tie_word_embeddings=tied)
  rng = np.random.default_rng(0)
  x, table = rng.standard_normal((2, 3, 24)), rng.standard_normal((128, 24))
  head = models.MaskedLMHead(config)
  params = moved(head.init(jax.random.key(0), jnp.asarray(x), jnp.asarray(table))['params'])
  p = to_float64(params)
  inner = ACTIVATIONS[act](x @ p['transform']['kernel'] + p['transform']['bias'])
  decoder = table if tied else p['decoder']
  expected = norm(inner, p['LayerNorm'], 0.1) @ decoder.T + p['bias']
  logits = head.apply({'params': params}, jnp.asarray(x, 'f4'), jnp.asarray(table, 'f4'))
  np.testing.assert_allclose(logits[..., :99], expected[..., :99], atol=3e-5)
  assert (logits[..., 99:] < -1e30).all()


@pytest.mark.parametrize('name', ['masked LM', 'classifier'])
def test_logits_are_float32_under_bfloat16(name):
  """In steps of 1/8, as bfloat16 has them at 16 to 32, more than every second logit would tie."""
  config, rng = model(dtype='bfloat16'), np.random.default_rng(0)
  x = jnp.asarray(rng.standard_normal((2, 5, 24)), jnp.bfloat16)
  table = jnp.asarray(5 * rng.standard_normal((128, 24)), jnp.float32)
  head = models.Classifier(config, 60) if name == 'classifier' else models.MaskedLMHead(config)
  arrays = (x,) if name == 'classifier' else (x, table)
  params = jax.tree.map(lambda p: 5 * p, head.init(jax.random.key(0), *arrays)['params'])
  logits = head.apply({'params': params}, *arrays)
  assert logits.dtype == jnp.float32
  values = np.asarray(logits)[..., :60].ravel()
  assert len(np.unique(values)) > 0.99 * len(values)


def test_the_pooler_is_a_dense_layer_and_tanh():
  config, x = model(), np.random.default_rng(0).standard_normal((2, 3, 24)).astype('f4')
  params = moved(models.Pooler(config).init(jax.random.key(0), x)['params'])
  out = models.Pooler(config).apply({'params': params}, x)
  dense = to_float64(params)['dense']
  np.testing.assert_allclose(out, np.tanh(x @ dense['kernel'] + dense['bias']), atol=1e-5)


def test_vectors_are_gathered_from_their_own_rows():
  x = np.arange(2 * 5 * 3, dtype='f4').reshape(2, 5, 3)
  out = models.gather_positions(jnp.asarray(x), jnp.array([[4, 0], [1, 1]]))
  np.testing.assert_array_equal(out, [[x[0, 4], x[0, 0]], [x[1, 1], x[1, 1]]])


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
    return lambda p: (encode(config, p, batch())[batch()['segment_ids'] > 0] ** 3).sum()

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


def test_twelve_layers_are_stacked_in_their_order():
  layers = {f'layer_{i}': {'x': np.full(2, i)} for i in range(12)}
  stacked = models.stack_layers(layers)
  np.testing.assert_array_equal(stacked['layers']['x'][:, 0], np.arange(12))
  jax.tree.map(np.testing.assert_array_equal, models.unstack_layers(stacked), layers)


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
  gradient = jax.grad(lambda p: encode(config, p, inputs).sum())(params)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


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
  table = positions.sinusoidal_table(50, 16)
  assert table[7, 0] == pytest.approx(np.sin(7)) and table[7, 1] == pytest.approx(np.cos(7))
  assert table[7, 6] == pytest.approx(np.sin(7 / 10000 ** (6 / 16)), abs=1e-6)
  assert positions.sinusoidal_table(5, 7).shape == (5, 7)


def test_padding_of_the_vocabulary_takes_no_probability():
  objective = MlmNsp(model(vocab_multiple=128), 20, 0.0, MASKING)
  params = objective.init(jax.random.key(0))
  assert params['encoder']['embeddings']['word_embeddings']['embedding'].shape == (128, 24)
  prepared = objective.prepare(batch(), jax.random.key(1), EVALUATION)
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
  inputs = objective.prepare(batch(), jax.random.key(1), EVALUATION) | {
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
  terms, _ = objective.terms(params, inputs, None, False)
  assert float(terms['classification'].weight) == 2.0


def test_hidden_states_are_split_over_both_batch_axes():
  """The constraints in the model see to it even where the batch comes whole to every device."""
  code = """
import jax, jax.numpy as jnp
from bert_jax import config, models, sharding
from bert_jax.objectives.encode import encode
block = config.bert('tiny', vocab_size=50, hidden_size=16, num_attention_heads=2,
                    intermediate_size=16, num_hidden_layers=1)
model = models.ModelConfig(**block)
row = jax.ShapeDtypeStruct((8, 6), jnp.int32)
rows = dict.fromkeys(('input_ids', 'token_type_ids', 'position_ids', 'segment_ids'), row)
params = jax.eval_shape(lambda: models.init_encoder(model, jax.random.key(0)))
with jax.set_mesh(sharding.make_mesh(2, 2, 1)), sharding.activation_rules():
  compiled = jax.jit(lambda p, rows: encode(model, p, rows)).lower(params, rows).compile()
print(compiled.output_shardings.shard_shape((8, 6, 16)))
"""
  flags = os.environ['XLA_FLAGS'] + ' --xla_force_host_platform_device_count=4'
  env = dict(os.environ, XLA_FLAGS=flags, PYTHONPATH='.')
  out = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True)
  assert out.stdout == '(2, 6, 16)\n', out.stderr[-2000:]
