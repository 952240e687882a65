"""Blocks of named pieces, what can stand in place of attention, and towers of blocks."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from references import drawn, float64
from refusal import one_sentence
from test_models import Stack, model
from test_predict import load_pretrain, random_model, sentences
from toys import load

from bert_jax import config as c
from bert_jax import models
from bert_jax.models import block
from bert_jax.models.config import ModelConfig
from bert_jax.models.mixers import Mixer
from bert_jax.models.stack import layer_numbers
from bert_jax.models.tokens import Layer, Tokens
from bert_jax.predict import packed_rows
from bert_jax.tasks.ask import RecordProblems
from bert_jax.workdir import manifest

TOKENS = Tokens(np.array([[1] * 5 + [2] * 3, [1] * 6 + [0] * 2], np.int32))
IDS = np.array([[1] * 6 + [2] * 5 + [3] + [0] * 4, [1] * 16], np.int32)
X16 = np.random.default_rng(0).normal(size=(2, 16, 24)).astype(np.float32)
X = X16[:, :8]
close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3)


class Ones(Mixer):
  """Adds 1."""

  @nn.compact
  def __call__(self, x_BTD, tokens, layer):
    return jnp.ones_like(x_BTD)


# ---- towers --------------------------------------------------------------------------------------


class TwoTowers(nn.Module):
  """An encoder of 1 layer, and a causal decoder of 2 that attends to it."""

  config: ModelConfig

  @nn.compact
  def __call__(self, x_BTD, y_BTD, tokens):
    x_BTD = Stack(self.config, 1, name='encoder')(x_BTD, tokens)
    causal = Tokens(tokens.segment_ids, causal=True)
    return Stack(self.config, 2, name='decoder')(y_BTD, causal, context=(x_BTD, tokens))


def test_two_towers_scanned_or_not_are_the_same():
  """Outputs, gradients, and parameters there and back; layers of the two differ in number."""
  unrolled, y = TwoTowers(model(norm_placement='pre')), X[::-1].copy()
  params = drawn(unrolled.init, X, y, TOKENS)['params']
  assert set(params['encoder']) == {'LayerNorm', 'layer_0'}
  assert set(params['decoder']) == {'LayerNorm', 'layer_0', 'layer_1'}
  assert 'cross_attention' in params['decoder']['layer_1']
  stacked = models.stack_layers(params)
  assert stacked['encoder']['layers']['output']['kernel'].shape == (1, 40, 24)
  assert stacked['decoder']['layers']['output']['kernel'].shape == (2, 40, 24)

  def run(towers, params):
    real = (TOKENS.segment_ids > 0)[..., None]
    out = lambda p: jnp.where(real, towers.apply({'params': p}, X, y, TOKENS), 0)
    return jax.jit(jax.value_and_grad(lambda p: (out(p) ** 3).sum()))(params)

  value, gradient = run(unrolled, params)
  scanned = TwoTowers(model(norm_placement='pre', scan_layers=True, remat='dots'))
  other, theirs = run(scanned, stacked)
  assert float(value) == pytest.approx(float(other), rel=1e-4)
  jax.tree.map(close, gradient, models.unstack_layers(theirs))
  first = np.abs(gradient['encoder']['layer_0']['output']['kernel']).max()
  assert first > 1e-3  # the decoder's loss reaches the first layer of the encoder


@pytest.mark.parametrize('share', [False, True])
@pytest.mark.parametrize('scan', [False, True])
def test_every_layer_of_every_tower_drops_others(scan, share, monkeypatch):
  """Of mixers whose outputs are all 1, before dropout of a half: what is added to the residual, by
  the layers of three towers with one key, is different each time, also by shared layers."""
  monkeypatch.setitem(block.MIXERS, 'ones', Ones)
  monkeypatch.setitem(block.NORM_PLACEMENTS, 'none', lambda x, f, norm, drop: x + drop(f(x)))
  monkeypatch.setitem(block.FEED_FORWARD, 'nothing', lambda config, x_BTD: jnp.zeros_like(x_BTD))
  names = dict(mixer='ones', feed_forward='nothing', norm_placement='none')
  config = model(hidden_dropout_prob=0.5, scan_layers=scan, share_layers=share, **names)

  class Towers(nn.Module):
    @nn.compact
    def __call__(self, x):
      towers = [Stack(config, n, name=name) for name, n in (('a', 1), ('b', 1), ('c', 2))]
      return [tower(x, TOKENS, deterministic=False) for tower in towers]

  apply = jax.jit(lambda key: Towers().apply({}, jnp.zeros_like(X), rngs={'dropout': key}))
  run = lambda seed: apply(jax.random.key(seed))
  a, b, c = run(0)
  for dropped in (a, b):
    assert set(np.unique(dropped)) == {0, 2} and 0.4 < np.mean(dropped == 2) < 0.6
  assert np.mean(a == b) < 0.6
  assert set(np.unique(c)) == {0, 2, 4}  # 0 and 4 alone if both layers dropped the same
  np.testing.assert_array_equal(run(0)[2], c)
  assert np.mean(run(1)[2] == c) < 0.6


def test_stacking_takes_each_tower_by_itself_and_keeps_the_rest():
  def tower(count, base):
    return {f'layer_{i}': {'a': {'kernel': np.full((2, 3), base + i)}} for i in range(count)}

  params = {
    'encoder': {'embeddings': {'table': np.ones(4)}} | tower(12, 0.0),
    'pair': {'left': tower(2, 50.0), 'right': tower(4, 70.0) | {'norm': np.ones(2)}},
  }
  stacked = models.stack_layers(params)
  kernel = stacked['encoder']['layers']['a']['kernel']
  np.testing.assert_array_equal(kernel[:, 0, 0], np.arange(12.0))
  assert stacked['pair']['left']['layers']['a']['kernel'].shape == (2, 2, 3)
  assert set(stacked['pair']['right']) == {'norm', 'layers'} and type(kernel) is np.ndarray
  for back in models.unstack_layers(stacked), models.unstack_layers(params):
    jax.tree.map(np.testing.assert_array_equal, back, params)


@pytest.mark.parametrize('mixer', ['attention', 'conv'])
def test_what_is_added_to_the_residual_stream_may_begin_smaller(mixer):
  """By sqrt(2 * layers); all else begins as it does without the field."""
  fields = dict(mixer=mixer, num_hidden_layers=1, position_embeddings='none', feed_forward='glu')
  configs = [model(scaled_initializer=on, **fields) for on in (False, True)]
  init = jax.jit(lambda key: [models.init_encoder(config, key) for config in configs])
  trees = [manifest.flat(tree) for tree in init(jax.random.key(0))]
  smaller = {f'{mixer}.output.kernel', 'output.kernel'}
  for path, x in trees[0].items():
    scale = 0.5**0.5 if path.partition('.')[2] in smaller else 1.0
    np.testing.assert_allclose(trees[1][path], x * scale, rtol=1e-6, err_msg=path)
  assert all(f'layer_0.{name}' in trees[0] for name in smaller)


# ---- operations ----------------------------------------------------------------------------------


# ---- mixers --------------------------------------------------------------------------------------


def mixed(name, x, ids, **fields):
  """(parameters, outputs) of a mixer whose parameters are all drawn, biases too."""
  mixer = block.MIXERS[name](model(mixer=name, **fields), True)
  variables, rest = drawn(mixer.init, x, Tokens(ids), Layer()), (Tokens(ids), Layer())
  run = jax.jit(lambda variables, x: mixer.apply(variables, x, *rest))
  return variables.get('params', {}), np.asarray(run(variables, x))


@pytest.mark.parametrize('name', references.MIXERS)
def test_mixers_are_their_formulas_in_each_example(name):
  params, got = mixed(name, X16, IDS, conv_width=5)
  for b, number in ((0, 1), (0, 2), (0, 3), (1, 1)):
    here = IDS[b] == number
    expected = references.MIXERS[name](float64(params), X16[b, here])
    np.testing.assert_allclose(got[b, here], expected, atol=1e-5)


def test_taps_of_a_convolution_begin_at_the_root_of_their_number():
  mixer = block.MIXERS['conv'](model(mixer='conv', conv_width=7), True)
  x, tokens = jnp.zeros((1, 3, 4096)), Tokens(jnp.ones((1, 3), jnp.int32))
  taps = mixer.init(jax.random.key(0), x, tokens, Layer())['params']['taps']
  assert np.std(taps) == pytest.approx(7**-0.5, rel=0.02)


def test_a_bag_of_words_adds_up_in_float32_under_bfloat16():
  mixer = block.MIXERS['bag'](model(mixer='bag', dtype='bfloat16'), True)
  x = 1 + np.random.default_rng(0).random((1, 1000, 16), np.float32)
  inputs = jnp.asarray(x, jnp.bfloat16), Tokens(jnp.ones((1, 1000), jnp.int32)), Layer()
  params = {'output': {'kernel': jnp.eye(16), 'bias': jnp.zeros(16)}}
  got = mixer.apply({'params': params}, *inputs)
  np.testing.assert_allclose(np.asarray(got, np.float32)[0, 0], x.mean(axis=1)[0], rtol=1e-2)


def test_layers_that_all_have_a_window_have_the_local_theta():
  numbers = layer_numbers(
    model(
      position_embeddings='rotary', attention_window=8, local_rotary_theta=500.0, rotary_theta=1e4
    ),
    count=3,
  )
  assert (numbers.window, numbers.rotary_theta) == (8, 500.0)


def test_fourier_is_numpys():
  params, got = mixed('fourier', X16, np.ones((2, 16), np.int32))
  assert not params
  np.testing.assert_allclose(got, np.fft.fft2(X16).real, atol=2e-4)


# ---- models of them ------------------------------------------------------------------------------


@pytest.mark.parametrize(
  'changes, sentence',
  [
    ('mixer=fourier data.examples_per_row=2', 'data.examples_per_row=1'),
    ('mixer=bag position_embeddings=none attention_window=16', 'model.attention_window'),
    ('share_layers=true optimizer.layer_lr_decay=0.9', 'layer_lr_decay'),
  ],
)
def test_what_does_not_go_together_is_one_sentence(changes, sentence):
  names = [x if x.startswith(('data.', 'optimizer.')) else f'model.{x}' for x in changes.split()]
  with one_sentence(sentence):
    load('configs/pretrain.py:runlocal', *names)


def model_with(vocab, tokenizer, **fields):
  config = load_pretrain(vocab, 2)
  config.model.update(fields)
  return random_model(c.check(config), tokenizer)


def test_a_fourier_model_reads_each_text_alone_in_a_row_as_in_training(vocab, tokenizer):
  """What is asked besides, and how long it is, changes no answer."""
  fourier = model_with(vocab, tokenizer, mixer='fourier')
  texts = sentences(3, most=12)
  together = fourier.embed(texts)
  for text, vector in zip(texts, together):
    np.testing.assert_allclose(fourier.embed([text])[0], vector, atol=1e-5)
  examples = fourier.ask('embed').examples(texts, RecordProblems())
  rows = [row for rows in packed_rows.batches(examples, 32) for row in rows]
  assert {len(row['input_ids']) for row in rows} == {32}
  batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
  counted = np.broadcast_to(np.arange(32, dtype=np.int32), batch['input_ids'].shape)
  hidden = fourier.hidden(fourier.params, batch | {'position_ids': counted})
  np.testing.assert_array_equal(fourier.hidden(fourier.params, batch), hidden)
  assert (batch['position_ids'] != counted).any()  # of padding, which is mixed as well
  assert max(row['segment_ids'].max() for row in rows) == 1
