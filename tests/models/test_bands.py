"""Attention within a window, computed block by block, beside a mask over all pairs."""

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT
from test_models import model

from bert_jax import models
from bert_jax.models import attention_kernels, bands
from bert_jax.models.positions import alibi
from bert_jax.models.tokens import Layer, Pattern, Tokens

T, W = 810, 40  # blocks of 128: the last one is not full


def rows(packed=True):
  """[2, T] segment ids: several examples of all lengths and padding, or one example a row."""
  if not packed:
    return np.ones((2, T), np.int32)
  ids = np.zeros((2, T), np.int32)
  for row, ends in zip(ids, ([3, 70, 300, 780], [256, 257, 810])):
    for number, (start, end) in enumerate(zip([0, *ends], ends), 1):
      row[start:end] = number
  return ids


def qkv(seed=0):
  rng = np.random.default_rng(seed)
  return [rng.normal(size=(2, T, 2, 8)).astype(np.float32) for _ in range(3)]


def whole(q, k, v, rest, bias=None, implementation='einsum'):
  pattern, key = rest
  pattern = dataclasses.replace(pattern, bias=bias and bias(2, pattern))
  return attention_kernels.attend(q, k, v, pattern, kernel=implementation, key=key, rate=0.0)


def in_blocks(attend, pattern, widest=0):
  """A function as `attend` that computes it in blocks."""
  cut = bands.blocks_of(pattern, widest, T)

  def run(q, k, v, rest):
    arrays = cut.queries(q), cut.keys(k), cut.keys(v)
    return cut.rows(cut.attention(attend, pattern)(*arrays, rest), len(q))

  return run


def with_gradients(function, tokens, window, causal):
  """(output, gradients of q, k, v), where padding counts nothing. window: an int or an array."""

  @jax.jit
  def run(arrays, window):
    def loss(arrays):
      pattern = Pattern(tokens, tokens, causal=causal, window=window)
      out = function(pattern)(*arrays, (pattern, None))
      out = jnp.where((tokens.segment_ids > 0)[..., None, None], out, 0)
      return jnp.sum(out**3), out

    return jax.grad(loss, has_aux=True)(arrays)

  return run(qkv(), window) if not isinstance(window, int) else run.__wrapped__(qkv(), window)


@pytest.mark.parametrize(
  'causal, bias, packed, implementation',
  [
    (False, None, True, 'einsum'),
    (True, None, True, 'einsum'),
    (np.array([True, False]), None, True, 'einsum'),
    (False, alibi, True, 'einsum'),
    (True, alibi, False, 'xla'),
  ],
  ids=['both ways', 'causal', 'causal by row', 'alibi', 'causal alibi by xla'],
)
def test_blocks_compute_what_a_mask_over_all_pairs_does(causal, bias, packed, implementation):
  tokens = Tokens(rows(packed))
  attend = functools.partial(whole, bias=bias, implementation=implementation)
  expected = with_gradients(lambda pattern: attend, tokens, W, causal)
  shapes = []

  def noting(q, k, v, rest):
    shapes.append((q.shape, k.shape))
    return attend(q, k, v, rest)

  got = with_gradients(functools.partial(in_blocks, noting), tokens, W, causal)
  assert shapes[0] == ((14, 128, 2, 8), (14, 256, 2, 8))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, expected)
  far = with_gradients(lambda pattern: attend, tokens, 2 * W, causal)
  assert np.abs(far[1] - expected[1]).max() > 0.1


@pytest.mark.parametrize('window, block', [(128, 128), (130, 256)])
def test_a_block_is_as_long_as_the_window(window, block):
  """Whose half is seen on either side: the first and the last key of a block of keys count."""
  x, tokens = np.zeros((1, 2048)), Tokens(np.ones((1, 2048), np.int32))
  assert bands.blocks_of(Pattern(tokens, tokens, window=window), 0, 2048).queries(x).shape == (
    2048 // block,
    block,
  )
  tokens = Tokens(rows())
  expected = with_gradients(lambda pattern: whole, tokens, 128, False)
  got = with_gradients(functools.partial(in_blocks, whole), tokens, 128, False)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, expected)


@pytest.mark.parametrize('window', [0, W, W - 20, 6 * W])
def test_windows_of_scanned_layers_are_blocks_or_not(window):
  """Arrays of windows: none, those that blocks for W reach, and a wider one."""
  tokens = Tokens(rows())
  expected = with_gradients(lambda pattern: whole, tokens, window, False)
  got = with_gradients(lambda p: in_blocks(whole, p, W), tokens, jnp.int32(window), False)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, expected)


def test_short_rows_and_other_orders_are_left_alone():
  tokens, far = Tokens(rows()), Tokens(rows(), places=np.arange(T))
  other = Pattern(tokens, Tokens(rows()), window=W)
  for pattern, length in (
    (Pattern(tokens, tokens), T),
    (Pattern(tokens, tokens, window=300), T),
    (other, T),
    (Pattern(far, far, window=W), T),
    (Pattern(tokens, tokens, window=W), 4 * 128 - 1),
  ):
    assert isinstance(bands.blocks_of(pattern, W, length), bands.Whole)
  cut = bands.blocks_of(Pattern(tokens, tokens, window=W), 0, 4 * 128)
  assert isinstance(cut, bands.Bands)


def largest(config, length):
  """The most numbers of an array in the training step of a tower, as the compiler is given it."""
  stack = models.Stack(config, config.num_hidden_layers)
  x, tokens = jnp.zeros((1, length, config.hidden_size)), Tokens(np.ones((1, length), np.int32))
  params = jax.eval_shape(stack.init, jax.random.key(0), x, tokens)
  loss = lambda params, key: stack.apply(
    params, x, tokens, deterministic=False, rngs={'dropout': key}
  ).sum()
  jaxpr = jax.make_jaxpr(jax.grad(loss))(params, jax.random.key(0))

  def sizes(jaxpr):
    for equation in jaxpr.eqns:
      yield from (np.prod(v.aval.shape, dtype=int) for v in equation.outvars)
      for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, 'eqns')):
        if hasattr(inner, 'eqns'):
          yield from sizes(inner)

  return max(sizes(jaxpr.jaxpr))


def test_a_layer_with_a_window_never_holds_all_pairs():
  fields = dict(attention_probs_dropout_prob=0.1, attention_window=32, position_embeddings='alibi')
  assert largest(model(**fields), 2048) < 2048**2
  assert largest(model(**fields, scan_layers=True), 2048) < 2048**2
  assert largest(model(**fields, global_attention_every=2), 2048) == 3 * 2048**2


TIMED = """
import time
import jax, jax.numpy as jnp
from bert_jax import config as c, models
from bert_jax.models.attention import Attention
from bert_jax.models.tokens import Layer, Tokens
config = c.load('configs/pretrain.py:arch=modern', ['--config.model.dtype=float32'])
attention = Attention(models.ModelConfig(**config.model), deterministic=False)
x, ids = jax.random.normal(jax.random.key(1), (1, 2048, 768)), jnp.ones((1, 2048), jnp.int32)
params = attention.init(jax.random.key(0), x, Tokens(ids), Layer())

def seconds(window):
  loss = lambda p, x: attention.apply(p, x, Tokens(ids), Layer(window=window)).var()
  gradient, times = jax.jit(jax.grad(loss, argnums=(0, 1))), []
  for _ in range(6):  # the first one compiles
    started = time.perf_counter()
    jax.block_until_ready(gradient(params, x))
    times.append(time.perf_counter() - started)
  return min(times)

print(seconds(128), seconds(0))
"""


@pytest.mark.slow
def test_a_window_of_128_costs_this_machine_a_third_of_none():
  """Of the time of a layer's attention in training, its dense layers among them, in rows of 2,048
  tokens; compiled as a run is. The same on a TPU is in test_preflight.py."""
  out = subprocess.run(
    [sys.executable, '-c', TIMED],
    env=os.environ | {'XLA_FLAGS': ''},
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  local, whole = map(float, out.stdout.split())
  assert local < whole / 3, (local, whole)


@pytest.mark.parametrize('remat', ['none', 'full'])
def test_scanned_layers_of_two_kinds_are_those_apart(remat):
  """Some with a window that pays, some without; with dropout, each call of a tower is the same."""
  fields = dict(
    num_hidden_layers=4,
    attention_window=16,
    global_attention_every=3,
    position_embeddings='rotary',
    local_rotary_theta=50.0,
  )
  x = np.random.default_rng(3).normal(size=(2, T, 24)).astype(np.float32)
  tokens = Tokens(rows())

  def run(params, **more):
    stack = models.Stack(model(**fields, **more), 4)

    def loss(params):
      out = stack.apply({'params': params}, x, tokens)
      return (jnp.where((tokens.segment_ids > 0)[..., None], out, 0) ** 3).sum()

    return jax.jit(jax.value_and_grad(loss))(params)

  params = models.Stack(model(**fields), 4).init(jax.random.key(0), x, tokens)['params']
  value, gradient = run(params)
  scanned, theirs = run(models.stack_layers(params), scan_layers=True, remat=remat)
  assert float(value) == pytest.approx(float(scanned), rel=1e-4)
  theirs = models.unstack_layers(theirs)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-3), gradient, theirs)


def test_the_layer_of_a_tower_says_the_window():
  """Layer(window) given to a tower counts, whatever the config says."""
  config = model(num_hidden_layers=2)
  x = np.random.default_rng(3).normal(size=(2, T, 24)).astype(np.float32)
  stack, tokens = models.Stack(config, 2), Tokens(rows())
  params = stack.init(jax.random.key(0), x, tokens)
  given = stack.apply(params, x, tokens, layer=Layer(window=W))
  said = models.Stack(dataclasses.replace(config, attention_window=W), 2).apply(params, x, tokens)
  np.testing.assert_array_equal(given, said)
  assert np.abs(given - stack.apply(params, x, tokens))[rows() > 0].max() > 0.01


def test_a_tower_in_blocks_is_that_over_whole_rows():
  """splash computes windows by itself, and on a CPU by a mask over all pairs."""
  ids = rows()
  starts = (np.diff(ids, prepend=0) != 0) * np.arange(T)
  at = np.arange(T) - np.maximum.accumulate(starts, axis=1)
  x = np.random.default_rng(3).normal(size=(2, T, 24)).astype(np.float32)
  tokens = Tokens(ids, position_ids=at)
  fields = dict(attention_window=W, position_embeddings='rotary')
  params = models.Stack(model(**fields), 2).init(jax.random.key(0), x, tokens)
  rng = np.random.default_rng(4)
  params = jax.tree.map(lambda a: a + 0.1 * rng.normal(size=a.shape).astype(np.float32), params)

  def run(implementation):
    stack = models.Stack(model(**fields, attention_implementation=implementation), 2)

    @jax.jit
    def loss(params, x):
      out, kept = stack.apply(params, x, tokens, mutable=['intermediates'])
      real = (ids > 0)[..., None]
      probabilities = jnp.where(real[:, None], jnp.stack(jax.tree.leaves(kept)), 0)
      return (jnp.where(real, out, 0) ** 3).mean(), (jnp.where(real, out, 0), probabilities)

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)

  got, expected = run('einsum'), run('splash')
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, expected)
