"""BERT as released: its parameter counts, and every choice of the config doing what it says."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from references import drawn, float64
from test_objectives import DRY, MASKING

from bert_jax import config as c
from bert_jax import models
from bert_jax.models import attention_kernels, embeddings, layers
from bert_jax.models.config import share_of_heads
from bert_jax.models.stack import run_blocks
from bert_jax.models.tokens import Pattern, Tokens
from bert_jax.objectives.encode import encode
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.rows.row_arrays import TOKENS

SMALL = dict(vocab_size=99, hidden_size=24, num_attention_heads=3, intermediate_size=40)
SMALL |= dict(num_hidden_layers=2, max_position_embeddings=32, initializer_range=0.2)


def model(**changes):
  return models.ModelConfig(**c.bert('tiny', **SMALL | DRY | changes))


class Stack(nn.Module):
  """A tower of `count` blocks and nothing else."""

  config: models.ModelConfig
  count: int

  @nn.compact
  def __call__(self, x_BTD, tokens, context=None, deterministic=True):
    return run_blocks(self.config, self.count, deterministic, x_BTD, tokens, context)


def batch(B=4, T=20, seed=0):
  rng = np.random.RandomState(seed)
  lengths = np.array([T, T - 7, 5, 1])[:B]
  real, at = np.arange(T) < lengths[:, None], np.tile(np.arange(T), (B, 1))
  arrays = np.where(real, rng.randint(5, 99, (B, T)), 0), real * (at > 3), at, real
  return {name: jnp.asarray(x, jnp.int32) for name, x in zip(TOKENS, arrays)}


def weights(config):
  return drawn(functools.partial(models.init_encoder, config))


@functools.cache
def compiled(config):
  return jax.jit(functools.partial(encode, config))


def hidden(config, inputs, params=None, rng=None):
  return np.asarray(compiled(config)(params or weights(config), inputs, rng), np.float32)


def test_parameter_counts_are_the_published_ones():
  config = models.ModelConfig(**c.bert('base', vocab_size=30522, vocab_multiple=1))
  shapes = jax.eval_shape(MlmNsp(config, 128, 1.0, MASKING).init, jax.random.key(0))
  count = models.count_parameters
  assert count(shapes['encoder']) + count(shapes['pooler']) == 109_482_240
  assert count(shapes) == 110_106_428


ONE = dict(num_hidden_layers=1)
PRE = dict(norm_placement='pre')
ROTARY = dict(position_embeddings='rotary')
BIASES = dict(position_embeddings='relative_bias', position_buckets=6, max_relative_positions=9)
WINDOWS = dict(attention_window=5, global_attention_every=2, num_hidden_layers=3)


@pytest.mark.parametrize(
  'changes',
  [
    dict(),
    ONE | dict(position_embeddings='sinusoidal', embedding_scale=True, hidden_act='relu'),
    ONE | dict(position_embeddings='scaled_sinusoidal', embedding_norm=False, embedding_size=7),
    ONE | dict(position_embeddings='none', type_vocab_size=0, norm='rms_norm', layer_norm_eps=0.1),
    ONE
    | dict(position_embeddings='alibi', hidden_act='gelu_tanh', attention_implementation='xla')
    | dict(num_attention_heads=6),  # slopes of four, and two of those of eight
    dict(position_embeddings='alibi', attention_window=6, causal=True, scan_layers=True),
    ONE
    | ROTARY
    | PRE
    | dict(rotary_theta=3.0, hidden_act='swish', feed_forward='glu', causal=True),
    ROTARY | PRE | WINDOWS | dict(local_rotary_theta=2.0, rotary_theta=50.0, norm='rms_norm'),
    ROTARY | WINDOWS | dict(local_rotary_theta=2.0, scan_layers=True, causal=True),
    ONE
    | ROTARY
    | dict(attention_window=4, local_rotary_theta=2.0, attention_implementation='xla')
    | dict(attention_head_size=10),
    PRE | dict(first_norm=False, scan_layers=True, layer_norm_eps=0.1, num_hidden_layers=3),
    PRE | dict(norm_bias=False, attention_bias=False, feed_forward_bias='output', remat='dots'),
    ONE | dict(attention_window=3, feed_forward_bias='none', feed_forward='glu'),
    PRE
    | BIASES
    | dict(norm='rms_norm', attention_bias=False, scan_layers=True, attention_head_size=3),
    ONE | BIASES | dict(causal=True, position_buckets=0, attention_implementation='xla'),
    BIASES | dict(position_embeddings='learned_and_bias', scan_layers=True),
    dict(share_layers=True, num_hidden_layers=3, embedding_size=8, causal=True),
    dict(share_layers=True, num_hidden_layers=3, scan_layers=True, layer_norm_eps=0.1),
  ],
  ids=str,
)
def test_the_encoder_is_its_formula(changes):
  """In packed rows, with padding and an empty row, and parameters that are not 0 or 1."""
  config = model(**changes)
  inputs = batch() | {'position_ids': jnp.asarray(np.arange(80).reshape(4, 20) % 31)}
  inputs['segment_ids'] = inputs['segment_ids'].at[0, 12:].set(2).at[3].set(0)
  params = weights(config)
  arrays = {name: np.asarray(x) for name, x in inputs.items()}
  unstacked = params if config.share_layers else models.unstack_layers(params)
  expected = references.encoder(config, float64(unstacked), arrays)
  got, real = hidden(config, inputs, params), arrays['segment_ids'] > 0
  np.testing.assert_allclose(got[real], expected[real], atol=5e-5)
  assert np.isfinite(got).all()


def test_attention_scores_are_float32_under_bfloat16():
  """Scores of some units: bfloat16 has steps of a hundredth there, and shares as far off."""
  keys = jax.random.split(jax.random.key(0))
  q, k = ((2 * jax.random.normal(key, (1, 12, 2, 16))).astype(jnp.bfloat16) for key in keys)
  tokens = Tokens(np.ones((1, 12), np.int32))
  shares = attention_kernels.probabilities(q, k, None, Pattern(tokens, tokens))
  scores = np.einsum('bqhd,bkhd->bhqk', np.asarray(q, np.float64), np.asarray(k, np.float64)) / 4
  assert shares.dtype == jnp.float32
  np.testing.assert_allclose(shares, np.exp(references.log_softmax(scores)), atol=1e-4)


def test_statistics_of_layer_norm_are_float32_under_bfloat16():
  """Of numbers around 1000 with a deviation of 8: in bfloat16 their mean is off by up to 4."""
  config = model(dtype='bfloat16')
  x = jnp.asarray(1000 + 8 * np.random.default_rng(0).standard_normal((4, 256)), jnp.bfloat16)
  layer = layers.norm(config)
  params = drawn(layer.init, x)
  expected = references.norm(config, np.asarray(x, np.float64), float64(params)['params'])
  out = np.asarray(layer.apply(params, x), np.float64)
  np.testing.assert_allclose(out, expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
  'changes',
  [
    dict(),
    dict(mlm_head='dense', tie_word_embeddings=False, hidden_act='swish'),
    dict(mlm_head='none', decoder_bias=False, vocab_multiple=1),
    dict(embedding_size=10, head_bias=False, norm='rms_norm', hidden_act='relu'),
  ],
  ids=str,
)
def test_the_masked_lm_head_is_its_formula(changes):
  config = model(layer_norm_eps=0.1, **changes)
  V, E = config.padded_vocab_size, config.embedding_width
  rng = np.random.default_rng(0)
  x, table = (rng.standard_normal(s).astype('f4') for s in ((2, 3, 24), (V, E)))
  head = models.MaskedLMHead(config)
  params = drawn(head.init, x, table).get('params', {})
  p = float64(params)
  expected = references.transformed(config, x, p, config.mlm_head)
  expected = expected @ p.get('decoder', table).T + p.get('bias', 0)
  logits = jax.jit(lambda p: head.apply({'params': p}, x, table))(params)
  np.testing.assert_allclose(logits[..., :99], expected[..., :99], atol=3e-5)
  assert V == 99 or (logits[..., 99:] < -1e30).all()
  assert ('decoder' in p) != config.tie_word_embeddings
  assert config.head_bias or 'bias' not in p['transform']


@pytest.mark.parametrize('kind', ['tanh', 'transform', 'none'])
def test_poolers_are_their_formulas(kind):
  config = model(pooler=kind, hidden_act='swish', layer_norm_eps=0.01)
  x = np.random.default_rng(0).standard_normal((2, 3, 24)).astype('f4')
  params = drawn(models.Pooler(config).init, x).get('params', {})
  out = jax.jit(lambda p: models.Pooler(config).apply({'params': p}, x))(params)
  np.testing.assert_allclose(out, references.transformed(config, x, params, kind), atol=1e-4)


@pytest.mark.parametrize('name', ['masked LM', 'classifier'])
def test_logits_are_float32_under_bfloat16(name):
  """In steps of 1/8, as bfloat16 has them at 16 to 32, more than every second logit would tie."""
  config, rng = model(dtype='bfloat16'), np.random.default_rng(0)
  x = jnp.asarray(rng.standard_normal((2, 5, 24)), jnp.bfloat16)
  table = jnp.asarray(5 * rng.standard_normal((128, 24)), jnp.float32)
  head = models.Classifier(config, 60) if name == 'classifier' else models.MaskedLMHead(config)
  arrays = (x,) if name == 'classifier' else (x, table)
  params = jax.tree.map(lambda p: 5 * p, drawn(head.init, *arrays)['params'])
  logits = jax.jit(lambda p: head.apply({'params': p}, *arrays))(params)
  assert logits.dtype == jnp.float32
  values = np.asarray(logits)[..., :60].ravel()
  assert len(np.unique(values)) > 0.99 * len(values)


def test_scanned_layers_start_from_the_same_numbers():
  def kernels(key, scan):
    params = models.unstack_layers(models.init_encoder(model(scan_layers=scan), key))
    return [params[f'layer_{i}']['output']['kernel'] for i in range(2)]

  scanned, unrolled = (kernels(jax.random.key(3), x) for x in (True, False))
  np.testing.assert_array_equal(scanned, unrolled)
  assert (unrolled[0] != unrolled[1]).mean() > 0.9


def test_gradients_of_looked_up_rows_do_not_stop_adding_in_bfloat16():
  ids = [jnp.full((40, 20), value) for value in (7, 0, 3)]

  def gradients(dtype):
    layer = embeddings.Embeddings(model(dtype=dtype))
    out = lambda params: layer.apply(params, *ids, True)
    loss = lambda params: jnp.sum(out(params)[..., 0].astype(jnp.float32))
    return jax.jit(jax.grad(loss))(drawn(layer.init, *ids, True))['params']

  exact, rounded = gradients('float32'), gradients('bfloat16')
  for table, row in ('word', 7), ('token_type', 0), ('position', 3):
    name = f'{table}_embeddings'
    expected, given = exact[name]['embedding'][row], rounded[name]['embedding'][row]
    np.testing.assert_allclose(given, expected, rtol=0.02, atol=0.02 * abs(expected).max())


def test_initial_weights_are_berts():
  config = model(hidden_size=240, intermediate_size=960, initializer_range=0.02)
  init = lambda key: models.init_encoder(config, key)['layer_0']['intermediate']
  params = jax.device_get(jax.jit(init)(jax.random.key(0)))
  kernel = params['kernel']
  # A normal of 0.02 cut at two standard deviations has 0.88 of its width.
  assert np.abs(kernel).max() <= 0.04 and kernel.std() == pytest.approx(0.02 * 0.8796, rel=0.01)
  assert not params['bias'].any()


# ---- positions -----------------------------------------------------------------------------------


def test_rows_longer_than_a_table_of_positions_are_refused():
  """A lookup past the end of a table gives its last row, and no error."""
  fields = ['--config.data.seq_length=1000', '--config.model.position_embeddings=']
  c.load('configs/pretrain.py:arch=cramming', [fields[0], f'{fields[1]}rotary'])
  with pytest.raises(c.InputError, match='is longer than model.max_position_embeddings 512'):
    c.load('configs/pretrain.py:arch=cramming', [fields[0], f'{fields[1]}learned'])


def test_scaled_sinusoids_begin_at_the_width_of_the_embeddings():
  narrow = model(position_embeddings='scaled_sinusoidal', hidden_size=64, embedding_size=16)
  params = models.init_encoder(narrow, jax.random.key(0))['embeddings']
  (scale,) = (x for x in jax.tree.leaves(params) if x.shape == (1,))
  np.testing.assert_allclose(scale, [16**-0.5])


def test_a_share_of_heads_is_rounded():
  assert [share_of_heads(12, size) for size in (0.333, 0.3, 0.29, 0.01)] == [4, 4, 3, 1]


def test_sums_by_row_are_the_gradient_of_a_lookup():
  rng = np.random.RandomState(3)
  table, ids, g = rng.randn(5, 3), rng.randint(-1, 5, (2, 7)), rng.randn(2, 7, 3)
  gradient = jax.grad(lambda table: jnp.sum(layers.look_up(table, ids) * g))(jnp.array(table))
  expected = np.zeros((5, 3))
  np.add.at(expected, ids, g)
  np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(layers.sums_by_row(ids, g, 5), expected, rtol=1e-5, atol=1e-6)
