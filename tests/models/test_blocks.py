"""Blocks of named pieces, and towers of them."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_models import batch, hidden, model

from bert_jax import config as c
from bert_jax import models, optim, parameter_layers, sharding
from bert_jax.models import block, embeddings, flops, layers, positions, stack
from bert_jax.models.config import ModelConfig
from bert_jax.models.positions import POSITIONS
from bert_jax.models.tokens import Layer, Tokens
from bert_jax.workdir import manifest

TOKENS = Tokens(np.array([[1] * 5 + [2] * 3, [1] * 6 + [0] * 2], np.int32))
X = np.random.default_rng(0).normal(size=(2, 8, 24)).astype(np.float32)


def changed(config=None, **fields):
  return dataclasses.replace(config or model(), **fields)


def one_block(config, context=None, x=X):
  """(parameters, output) of a block whose biases and scales are not all alike."""
  layer = block.Block(config, deterministic=True)
  params = layer.init(jax.random.key(0), x, TOKENS, Layer(), context)['params']
  keys = iter(jax.random.split(jax.random.key(1), 99))
  params = jax.tree.map(lambda p: p + 0.1 * jax.random.normal(next(keys), p.shape), params)
  return params, layer.apply({'params': params}, x, TOKENS, Layer(), context)[0]


def product(x, params):
  return x @ params['kernel'] + params['bias']


def layer_norm(x, params, eps):
  x = x - x.mean(-1, keepdims=True)
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * params['scale'] + params['bias']


def attend(config, params, x, keys, mask):
  """Attention by numpy, [B, Tq, D]."""
  q, k, v = (
    product(a, params[n]).reshape(*a.shape[:2], 3, 8)
    for a, n in ((x, 'query'), (keys, 'key'), (keys, 'value'))
  )
  scores = np.einsum('bqhd,bkhd->bhqk', q, k) / np.sqrt(8)
  p = np.asarray(jax.nn.softmax(np.where(mask[:, None], scores, -1e30), axis=-1))
  return product(np.einsum('bhqk,bkhd->bqhd', p, v).reshape(x.shape), params['output'])


@pytest.mark.parametrize('crossing', [False, True], ids=['', 'context'])
@pytest.mark.parametrize('feed_forward', ['mlp', 'glu'])
@pytest.mark.parametrize('placement', ['post', 'pre'])
def test_a_block_is_its_pieces_one_after_the_other(placement, feed_forward, crossing):
  config = changed(
    norm_placement=placement, feed_forward=feed_forward, layer_norm_eps=0.01, hidden_act='swish'
  )
  ids = TOKENS.segment_ids
  far_ids = np.array([[1, 1, 2, 2, 2], [1, 1, 1, 1, 0]], np.int32)
  far = np.random.default_rng(5).normal(size=(2, 5, 24)).astype(np.float32)
  # Causal, as a decoder's tokens are: it holds for the tokens themselves and not for the context.
  tokens = dataclasses.replace(TOKENS, causal=True)
  context = (far, Tokens(far_ids)) if crossing else None
  params, _ = one_block(config, context)
  got, _ = block.Block(config, True).apply({'params': params}, X, tokens, Layer(), context)
  params = jax.device_get(params)
  mask = (ids[:, :, None] == ids[:, None]) & (ids > 0)[:, None] & np.tri(8, dtype=bool)
  far_mask = (ids[:, :, None] == far_ids[:, None]) & (far_ids > 0)[:, None]
  act = lambda x: x / (1 + np.exp(-x))

  def feed(x):
    y = product(x, params['intermediate'])
    y = act(product(x, params['gate'])) * y if feed_forward == 'glu' else act(y)
    return product(y, params['output'])

  pieces = {'attention': lambda x: attend(config, params['attention'], x, x, mask)}
  if crossing:
    pieces['cross_attention'] = lambda x: attend(
      config, params['cross_attention'], x, far, far_mask
    )
  pieces['output'] = feed
  x = X
  for name, piece in pieces.items():
    norm = lambda x, name=name: layer_norm(x, params[f'{name}_LayerNorm'], 0.01)
    x = x + piece(norm(x)) if placement == 'pre' else norm(x + piece(x))
  real = ids > 0
  np.testing.assert_allclose(got[real], x[real], atol=2e-4)


def test_rms_norm_divides_by_the_root_of_the_mean_square():
  config = changed(norm='rms_norm', layer_norm_eps=0.01)
  norm = layers.norm(config)
  params = {'params': {'scale': np.linspace(1, 2, 24, dtype=np.float32)}}
  expected = X / np.sqrt((X**2).mean(-1, keepdims=True) + 0.01) * params['params']['scale']
  np.testing.assert_allclose(norm.apply(params, X), expected, atol=1e-5)
  encoder = models.init_encoder(config, jax.random.key(0))
  assert set(encoder['layer_0']['output_LayerNorm']) == {'scale'}
  assert np.isfinite(hidden(config, batch(), encoder)).all()


def test_a_gate_is_split_over_devices_as_what_it_opens():
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  for shape, part in (((24, 40), 'kernel'), ((40,), 'bias')):
    gate, other = (
      sharding.spec_of(f'encoder/layer_0/{name}/{part}', shape, mesh)
      for name in ('gate', 'intermediate')
    )
    assert gate == other and 'tensor' in gate


def test_each_piece_in_a_table_is_a_value_of_its_field():
  tables = {
    'mixer': block.MIXERS,
    'feed_forward': block.FEED_FORWARD,
    'norm': layers.NORMS,
    'norm_placement': block.NORM_PLACEMENTS,
    'position_embeddings': POSITIONS,
    'hidden_act': layers.ACTIVATIONS,
  }
  for name, table in tables.items():
    assert set(c.ALL[f'model.{name}'].allowed) == set(table), name
  blocks = {f'model.{field.name}' for field in dataclasses.fields(models.ModelConfig)}
  assert blocks == {name for name in c.ALL if name.startswith('model.')}


def test_a_mixer_is_a_module_and_a_name(monkeypatch):
  class Average(nn.Module):
    config: ModelConfig
    deterministic: bool

    @nn.compact
    def __call__(self, x_BTD, tokens, layer, context=None):
      return jnp.broadcast_to(x_BTD.mean(1, keepdims=True), x_BTD.shape)

  monkeypatch.setitem(block.MIXERS, 'average', Average)
  config = changed(mixer='average', scan_layers=True)
  params = models.init_encoder(config, jax.random.key(0))
  assert set(params['layers']) == {
    'average_LayerNorm',
    'intermediate',
    'output',
    'output_LayerNorm',
  }
  other = {name: np.array(x) for name, x in batch().items()}
  other['input_ids'][:, 3] = 7
  moved = np.abs(hidden(config, batch(), params) - hidden(config, other, params)).max(-1)
  assert (moved > 1e-5).all()


class TwoTowers(nn.Module):
  """An encoder of 3 layers, and a causal decoder of 2 that attends to it."""

  config: ModelConfig

  @nn.compact
  def __call__(self, x_BTD, y_BTD, tokens, deterministic=True):
    x_BTD = models.Stack(self.config, 3, name='encoder')(x_BTD, tokens, deterministic=deterministic)
    causal = Tokens(tokens.segment_ids, causal=True)
    return models.Stack(self.config, 2, name='decoder')(
      y_BTD, causal, context=(x_BTD, tokens), deterministic=deterministic
    )


@pytest.mark.parametrize('remat', ['none', 'dots'])
def test_two_towers_scanned_or_not_are_the_same(remat):
  """Outputs, gradients, and parameters there and back; layers of the two differ in number."""
  unrolled = TwoTowers(changed(norm_placement='pre'))
  scanned = TwoTowers(changed(norm_placement='pre', scan_layers=True, remat=remat))
  y = X[::-1].copy()
  params = jax.jit(unrolled.init)(jax.random.key(0), X, y, TOKENS)['params']
  assert set(params['encoder']) == {'LayerNorm', 'layer_0', 'layer_1', 'layer_2'}
  assert set(params['decoder']) == {'LayerNorm', 'layer_0', 'layer_1'}
  assert 'cross_attention' in params['decoder']['layer_1']
  stacked = models.stack_layers(params)
  assert stacked['encoder']['layers']['output']['kernel'].shape == (3, 40, 24)
  assert stacked['decoder']['layers']['output']['kernel'].shape == (2, 40, 24)

  @jax.jit
  def both(params, stacked):
    def loss(towers):
      real = (TOKENS.segment_ids > 0)[..., None]
      return lambda p: (jnp.where(real, towers.apply({'params': p}, X, y, TOKENS), 0) ** 3).sum()

    return [jax.value_and_grad(loss(t))(p) for t, p in ((unrolled, params), (scanned, stacked))]

  (value_a, gradient_a), (value_b, gradient_b) = both(params, stacked)
  assert float(value_a) == pytest.approx(float(value_b), rel=1e-4)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3),
    gradient_a,
    models.unstack_layers(gradient_b),
  )
  first = np.abs(gradient_a['encoder']['layer_0']['output']['kernel']).max()
  assert first > 1e-3  # the decoder's loss reaches the first layer of the encoder


class Ones(nn.Module):
  """A mixer that adds 1."""

  config: ModelConfig
  deterministic: bool

  @nn.compact
  def __call__(self, x_BTD, tokens, layer, context=None):
    return jnp.ones_like(x_BTD)


@pytest.mark.parametrize('scan', [False, True])
def test_every_layer_of_every_tower_drops_others(scan, monkeypatch):
  """Of mixers whose outputs are all 1, before dropout of a half: what is added to the residual, by
  the layers of two towers with one key, is different each time."""
  monkeypatch.setitem(block.MIXERS, 'ones', Ones)
  monkeypatch.setitem(block.NORM_PLACEMENTS, 'none', lambda x, f, norm, drop: x + drop(f(x)))
  monkeypatch.setitem(block.FEED_FORWARD, 'nothing', lambda config, x_BTD: jnp.zeros_like(x_BTD))
  config = changed(
    hidden_dropout_prob=0.5,
    mixer='ones',
    feed_forward='nothing',
    norm_placement='none',
    scan_layers=scan,
  )

  class Towers(nn.Module):
    @nn.compact
    def __call__(self, x):
      towers = (('a', 1), ('b', 1), ('c', 2))
      return [
        models.Stack(config, n, name=name)(x, TOKENS, deterministic=False) for name, n in towers
      ]

  run = lambda seed: Towers().apply({}, jnp.zeros_like(X), rngs={'dropout': jax.random.key(seed)})
  a, b, c = run(0)
  for dropped in (a, b):
    assert set(np.unique(dropped)) == {0, 2} and 0.4 < np.mean(dropped == 2) < 0.6
  assert np.mean(a == b) < 0.6
  assert set(np.unique(c)) == {0, 2, 4}  # 0 and 4 alone if both layers dropped the same
  np.testing.assert_array_equal(run(0)[2], c)
  assert np.mean(run(1)[2] == c) < 0.6


@pytest.mark.parametrize('kind', [np.asarray, jnp.asarray])
def test_stacking_takes_each_tower_by_itself_and_keeps_the_rest(kind):
  def tower(count, base):
    return {f'layer_{i}': {'a': {'kernel': kind(np.full((2, 3), base + i))}} for i in range(count)}

  params = {
    'encoder': {'embeddings': {'table': kind(np.ones(4))}} | tower(12, 0.0),
    'pair': {'left': tower(2, 50.0), 'right': tower(4, 70.0) | {'norm': kind(np.ones(2))}},
    'layer_norm': kind(np.ones(3)),
    'mlm': {'bias': kind(np.zeros(5))},
  }
  stacked = models.stack_layers(params)
  np.testing.assert_array_equal(
    stacked['encoder']['layers']['a']['kernel'][:, 0, 0], np.arange(12.0)
  )
  assert stacked['pair']['left']['layers']['a']['kernel'].shape == (2, 2, 3)
  assert stacked['pair']['right']['layers']['a']['kernel'].shape == (4, 2, 3)
  assert set(stacked['pair']['right']) == {'norm', 'layers'}
  assert set(stacked) == set(params) and type(stacked['mlm']['bias']) is type(params['mlm']['bias'])
  assert type(stacked['encoder']['layers']['a']['kernel']) is type(params['layer_norm'])
  back = models.unstack_layers(stacked)
  assert jax.tree.structure(back) == jax.tree.structure(params)
  jax.tree.map(np.testing.assert_array_equal, back, params)
  assert jax.tree.structure(models.stack_layers(stacked)) == jax.tree.structure(stacked)
  assert jax.tree.structure(models.unstack_layers(params)) == jax.tree.structure(params)


@pytest.mark.parametrize('feed_forward', ['mlp', 'glu'])
def test_flops_of_towers_match_the_compilers_count(feed_forward):
  config = changed(
    hidden_size=192, intermediate_size=768, hidden_act='relu', feed_forward=feed_forward
  )
  towers = TwoTowers(config)
  x = np.ones((2, 8, 192), np.float32)
  params = jax.eval_shape(towers.init, jax.random.key(0), x, x, TOKENS)
  apply = jax.jit(lambda params, x: towers.apply(params, x, x, TOKENS))
  cost = apply.lower(params, x).compile().cost_analysis()
  counted = flops.products(lambda params, x: towers.apply(params, x, x, TOKENS), params, x)
  assert counted == pytest.approx(cost['flops'], rel=0.03)


def test_flops_count_what_is_computed_of_a_window():
  """A window of 20 is computed in blocks of 128 queries with 256 keys, of which each row has one
  more; in rows that are shorter than four blocks, in whole rows."""

  def counted(config, T):
    x, tower = jnp.ones((4, T, 24)), models.Stack(config, 3)
    tokens = Tokens(jnp.ones((4, T), jnp.int32))
    params = jax.eval_shape(tower.init, jax.random.key(0), x, tokens)
    return flops.products(tower.apply, params, x, tokens)

  window = changed(attention_window=20)
  pairs, keys = 3 * 2 * 2 * 4 * 512 * 24, 3 * 2 * 2 * 4 * 128 * 24 * 24
  assert counted(model(), 512) - counted(window, 512) == pairs * (512 - 256) - keys
  assert counted(window, 100) == counted(model(), 100)


def test_numbers_of_layers_follow_the_config():
  numbers = lambda **fields: stack.layer_numbers(changed(**fields), 5)
  assert numbers() == Layer(window=0, rotary_theta=10_000.0)
  assert numbers(attention_window=8).window == 8
  by_layer = numbers(attention_window=8, global_attention_every=3, rotary_theta=50.0)
  np.testing.assert_array_equal(by_layer.window, [0, 8, 8, 0, 8])
  assert by_layer.at(1) == Layer(8, 50.0) and type(by_layer.at(1).window) is int


def head_by_hand(kind, x, params, act):
  """Of a masked-LM head, before the product with the words."""
  if kind != 'none':
    x = act(product(x, params['transform']))
  return layer_norm(x, params['LayerNorm'], 0.01) if kind == 'transform' else x


@pytest.mark.parametrize('kind', ['transform', 'dense', 'none'])
def test_masked_lm_heads_with_fewer_pieces(kind):
  config = changed(mlm_head=kind, hidden_act='swish', layer_norm_eps=0.01, vocab_multiple=1)
  table = np.random.default_rng(1).normal(size=(99, 24)).astype(np.float32)
  head = models.MaskedLMHead(config)
  params = head.init(jax.random.key(0), X, table)['params']
  params = jax.tree.map(lambda p: np.asarray(p) + 0.1, params)
  expected = head_by_hand(kind, X, params, lambda x: x / (1 + np.exp(-x))) @ table.T
  got = head.apply({'params': params}, X, table)
  np.testing.assert_allclose(got, expected + params['bias'], atol=1e-4)
  bare = models.MaskedLMHead(changed(config, decoder_bias=False))
  rest = {k: x for k, x in params.items() if k != 'bias'}
  np.testing.assert_allclose(bare.apply({'params': rest}, X, table), expected, atol=1e-4)


def test_poolers():
  for kind in ('tanh', 'transform', 'none'):
    pooler = models.Pooler(changed(pooler=kind, hidden_act='swish', layer_norm_eps=0.01))
    variables = jax.device_get(pooler.init(jax.random.key(0), X))
    got = pooler.apply(variables, X)
    if kind == 'none':
      assert not variables
      np.testing.assert_array_equal(got, X)
      continue
    y = product(X, variables['params']['dense'])
    if kind == 'transform':
      y = layer_norm(y / (1 + np.exp(-y)), variables['params']['LayerNorm'], 0.01)
    else:
      y = np.tanh(y)
    np.testing.assert_allclose(got, y, atol=1e-4)


def test_embeddings_without_a_norm_are_a_sum():
  config = changed(embedding_norm=False, position_embeddings='scaled_sinusoidal')
  inputs = batch()
  params = models.init_encoder(config, jax.random.key(0))['embeddings']
  assert set(params) == {'word_embeddings', 'token_type_embeddings', 'position_embeddings'}
  assert float(params['position_embeddings']['scale'][0]) == pytest.approx(24**-0.5)
  names = 'input_ids', 'token_type_ids', 'position_ids'
  embed = embeddings.Embeddings(config)
  got = embed.apply({'params': params}, *(inputs[n] for n in names), True)
  table = positions.sinusoidal_table(32, 24)[inputs['position_ids']] * 24**-0.5
  words = params['word_embeddings']['embedding'][inputs['input_ids']]
  types = params['token_type_embeddings']['embedding'][inputs['token_type_ids']]
  np.testing.assert_allclose(got, words + types + table, atol=1e-6)


@pytest.mark.parametrize('feed_forward', ['mlp', 'glu'])
def test_biases_are_where_the_config_says(feed_forward):
  def biases(**fields):
    config = changed(feed_forward=feed_forward, num_hidden_layers=1, **fields)
    layer = models.init_encoder(config, jax.random.key(0))['layer_0']
    return {path for path in manifest.flat(layer) if path.endswith('bias')}

  norms = {'attention_LayerNorm.bias', 'output_LayerNorm.bias'}
  attention = {f'attention.{name}.bias' for name in ('query', 'key', 'value', 'output')}
  inner = {'intermediate.bias'} | ({'gate.bias'} if feed_forward == 'glu' else set())
  every = norms | attention | inner | {'output.bias'}
  assert biases() == every
  assert biases(norm_bias=False) == every - norms
  assert biases(attention_bias=False) == every - attention
  assert biases(feed_forward_bias='output') == every - inner
  assert biases(feed_forward_bias='none') == every - inner - {'output.bias'}


def test_depths_where_the_first_layer_is_apart():
  """Learning rates by layer: a first layer of fewer parameters stands before the stacked ones."""
  config = changed(num_hidden_layers=4, norm_placement='pre', first_norm=False)
  params = {'encoder': models.init_encoder(config, jax.random.key(0))}
  stacked = models.stack_layers(params)
  assert set(stacked['encoder']) == {'embeddings', 'layer_0', 'layers', 'LayerNorm'}
  assert (
    parameter_layers.layer_counts(stacked)
    == parameter_layers.layer_counts(params)
    == {'encoder': 4}
  )
  apart, depths = (optim.layer_depths(x)['encoder'] for x in (params, stacked))
  assert depths['layer_0']['output']['kernel'] == 4 == apart['layer_0']['output']['kernel']
  assert depths['layers']['output']['kernel'].ravel().tolist() == [3, 2, 1]
  assert depths['embeddings'] == apart['embeddings']


@pytest.mark.parametrize('mixer', ['attention', 'conv', 'bag'])
def test_what_is_added_to_the_residual_stream_may_begin_smaller(mixer):
  """By sqrt(2 * layers), 4 with 8 layers; all else begins as it does without the field."""
  config = changed(
    num_hidden_layers=8, mixer=mixer, feed_forward='glu', hidden_size=48, position_embeddings='none'
  )
  trees = [
    manifest.flat(models.init_encoder(changed(config, scaled_initializer=on), jax.random.key(0)))
    for on in (False, True)
  ]
  smaller = {f'{mixer}.output.kernel', 'output.kernel'}
  for path, x in trees[0].items():
    scale = 0.25 if path.partition('.')[2] in smaller else 1.0
    np.testing.assert_allclose(trees[1][path], x * scale, rtol=1e-6, err_msg=path)
  assert all(f'layer_7.{name}' in trees[0] for name in smaller)
