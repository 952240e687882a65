"""Rotary positions and ALiBi, beside complex numbers, the papers and transformers."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_models import batch, hidden, model

from bert_jax import config as c
from bert_jax import models
from bert_jax.models import attention_kernels, positions
from bert_jax.models.tokens import Layer, Pattern, Tokens


def vectors(seed=0, d=8):
  return np.random.default_rng(seed).normal(size=(2, 10, 3, d)).astype(np.float32)


PLACES = np.random.default_rng(9).integers(0, 500, (2, 10))


def test_rotary_is_a_product_of_complex_numbers():
  x = vectors()
  turned = positions.rotary(x, PLACES, 10_000.0)
  points = x[..., :4] + 1j * x[..., 4:]
  turns = np.exp(1j * PLACES[..., None] * 10_000.0 ** (-np.arange(4) / 4))
  expected = points * turns[:, :, None]
  np.testing.assert_allclose(turned[..., :4] + 1j * turned[..., 4:], expected, atol=2e-4)


@pytest.mark.parametrize('theta', [10_000.0, 160_000.0])
def test_rotary_is_that_of_transformers(theta):
  torch = pytest.importorskip('torch')
  llama = pytest.importorskip('transformers.models.llama.modeling_llama')
  q, k = vectors(0), vectors(1)
  angle = PLACES[..., None] * theta ** (-np.arange(0, 8, 2) / 8)
  angle = torch.tensor(np.concatenate([angle, angle], -1), dtype=torch.float32)
  theirs = llama.apply_rotary_pos_emb(
    *(torch.tensor(x.swapaxes(1, 2)) for x in (q, k)), angle.cos(), angle.sin()
  )
  for x, expected in zip((q, k), theirs, strict=True):
    ours = positions.rotary(x, PLACES, theta).swapaxes(1, 2)
    np.testing.assert_allclose(ours, expected.numpy(), atol=2e-4)


def test_rotary_scores_depend_on_differences_alone():
  q, k = vectors(0), vectors(1)

  def scores(shift, theta=100.0):
    at = np.arange(10)[None] + shift
    turned = (positions.rotary(x, at, theta) for x in (q, k))
    return np.einsum('bqhd,bkhd->bhqk', *turned)

  np.testing.assert_allclose(scores(0), scores(37), atol=2e-4)
  assert np.abs(scores(0) - np.einsum('bqhd,bkhd->bhqk', q, k)).max() > 0.5
  assert np.abs(scores(0) - scores(0, 10.0)).max() > 0.5
  assert positions.rotary(q.astype(jnp.bfloat16), PLACES, 100.0).dtype == jnp.bfloat16


def of_kind(name, **fields):
  return dataclasses.replace(model(position_embeddings=name, **fields))


@pytest.mark.parametrize('kind', ['rotary', 'alibi'])
@pytest.mark.parametrize('implementation', ['einsum', 'xla'])
def test_a_model_knows_the_order_of_tokens_by_them(kind, implementation):
  """Without a table; another order gives other vectors; and packed rows are as rows apart."""
  config = of_kind(kind, attention_implementation=implementation)
  inputs = {name: np.array(x) for name, x in batch().items()}
  params = models.init_encoder(config, jax.random.key(0))
  assert 'position_embeddings' not in params['embeddings']
  plain = hidden(config, inputs, params)
  turned = inputs | {'input_ids': inputs['input_ids'].copy()}
  turned['input_ids'][:, 5:12] = inputs['input_ids'][:, 5:12][:, ::-1]
  bag = dataclasses.replace(config, position_embeddings='none')
  cls_of = lambda config, inputs: hidden(config, inputs, params)[0, 0]
  np.testing.assert_allclose(cls_of(bag, inputs), cls_of(bag, turned), atol=1e-5)
  assert np.abs(cls_of(config, inputs) - cls_of(config, turned)).max() > 1e-3
  a, b = (slice(1, 2), slice(0, 13)), (slice(2, 3), slice(0, 5))
  packed = {k: np.concatenate([v[a], v[b]], axis=1) for k, v in inputs.items()}
  packed['segment_ids'] = np.array([[1] * 13 + [2] * 5], np.int32)
  together = hidden(config, packed, params)[0]
  np.testing.assert_allclose(together[:13], plain[1, :13], atol=1e-5)
  np.testing.assert_allclose(together[13:], plain[2, :5], atol=1e-5)


@pytest.mark.parametrize('kind', positions.POSITIONS)
def test_rows_longer_than_a_table_of_positions_are_refused(kind):
  """A lookup past the end of a table gives its last row, and no error."""
  fields = ['--config.data.seq_length=1000', f'--config.model.position_embeddings={kind}']
  refused = contextlib.nullcontext()
  if kind in ('learned', 'sinusoidal', 'scaled_sinusoidal'):
    refused = pytest.raises(c.InputError, match='is longer than model.max_position_embeddings 512')
  with refused:
    c.load('configs/pretrain.py:arch=cramming', fields)


def test_theta_is_read_and_may_differ_by_layer():
  x = np.random.default_rng(0).normal(size=(2, 10, 24)).astype(np.float32)
  tokens = Tokens(np.ones((2, 10), np.int32), np.tile(np.arange(10), (2, 1)))
  config = of_kind('rotary')
  tower = models.Stack(config, 2)
  params = tower.init(jax.random.key(0), x, tokens)
  scanned = models.Stack(dataclasses.replace(config, scan_layers=True), 2)

  def out(tower, params, *thetas):
    layer = Layer(rotary_theta=np.array(thetas, np.float32)) if thetas else None
    return np.asarray(tower.apply(params, x, tokens, layer=layer))

  other = models.Stack(dataclasses.replace(config, rotary_theta=3.0), 2)
  np.testing.assert_array_equal(out(other, params), out(tower, params, 3.0, 3.0))
  assert np.abs(out(other, params) - out(tower, params)).max() > 1e-3
  assert np.abs(out(tower, params, 3.0, 50.0) - out(tower, params, 50.0, 3.0)).max() > 1e-3
  np.testing.assert_allclose(
    out(tower, params, 3.0, 50.0),
    out(scanned, models.stack_layers(params), 3.0, 50.0),
    atol=1e-5,
  )


def test_alibis_slopes_are_the_papers():
  assert positions.alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
  sixteen = positions.alibi_slopes(16)
  np.testing.assert_allclose(sixteen, [2 ** (-i / 2) for i in range(1, 17)])
  assert positions.alibi_slopes(12) == positions.alibi_slopes(8) + sixteen[0:8:2]
  assert positions.alibi_slopes(1) == [2.0**-8]


@pytest.mark.parametrize('heads', [4, 6])
def test_alibis_slopes_are_those_of_transformers(heads):
  torch = pytest.importorskip('torch')
  bloom = pytest.importorskip('transformers.models.bloom.modeling_bloom')
  theirs = bloom.build_alibi_tensor(torch.ones(1, 5), heads, torch.float32)[:, 0, 1]
  np.testing.assert_allclose(positions.alibi_slopes(heads), theirs.numpy(), rtol=1e-6)


def test_alibi_lowers_scores_by_distance():
  tokens = Tokens(np.ones((1, 6), np.int32))
  later = Tokens(tokens.segment_ids, places=np.arange(6) + 3)
  bias = positions.alibi(4, Pattern(later, tokens))
  assert bias.shape == (1, 4, 6, 6)
  for h, i, j in np.ndindex(4, 6, 6):
    assert bias[0, h, i, j] == pytest.approx(-abs(i + 3 - j) * 4.0 ** -(h + 1))
  q = np.zeros((1, 6, 4, 8), np.float32)
  plain = Pattern(tokens, tokens)
  p = attention_kernels.probabilities(q, q, positions.alibi(4, plain), plain)
  # Equal scores but for the bias: a place further is a quarter of a nat less, at the first head.
  np.testing.assert_allclose(np.log(p[0, 0, 0, 1:] / p[0, 0, 0, :-1]), -0.25, atol=1e-5)
