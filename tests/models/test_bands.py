"""Attention within a window, computed block by block, beside a mask over all pairs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import drawn
from test_models import Stack, model
from test_objectives import close

from bert_jax.models import attention_kernels, bands
from bert_jax.models.positions import alibi
from bert_jax.models.tokens import Pattern, Tokens

T, W = 530, 40  # blocks of 128: the last one is not full


def rows(packed=True):
  """[2, T] segment ids: several examples of all lengths and padding, or one example a row."""
  if not packed:
    return np.ones((2, T), np.int32)
  ids = np.zeros((2, T), np.int32)
  for row, ends in zip(ids, ([3, 70, 300, 500], [256, 257, 530])):
    for number, (start, end) in enumerate(zip([0, *ends], ends), 1):
      row[start:end] = number
  return ids


def draw(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


QKV = tuple(draw(2, T, 2, 8, seed=seed) for seed in range(3))


def whole(qkv, rest, bias=None, kernel='einsum'):
  pattern, key = rest
  pattern = dataclasses.replace(pattern, bias=bias and bias(2, pattern))
  return attention_kernels.attend(qkv, pattern, kernel=kernel, key=key, rate=0.0)


def in_blocks(attend, pattern, widest=0):
  """A function as `attend` that computes it in blocks."""
  cut = bands.blocks_of(pattern, widest, T)

  def run(qkv, rest):
    q, k, v = qkv
    arrays = cut.queries(q), cut.keys(k), cut.keys(v)
    return cut.rows(cut.attention(attend, pattern)(arrays, rest), len(q))

  return run


def with_gradients(function, tokens, causal=False):
  """A function of a window, an int or an array: (output, gradients of q, k, v), where padding
  counts nothing."""

  def run(arrays, window):
    def loss(arrays):
      pattern = Pattern(tokens, tokens, causal=causal, window=window)
      out = function(pattern)(arrays, (pattern, None))
      out = jnp.where((tokens.segment_ids > 0)[..., None, None], out, 0)
      return jnp.sum(out**3), out

    return jax.grad(loss, has_aux=True)(arrays)

  constant, traced = jax.jit(run, static_argnums=1), jax.jit(run)
  return lambda window: (constant if isinstance(window, int) else traced)(QKV, window)


@pytest.mark.parametrize(
  'causal, bias, packed, kernel',
  [
    (False, None, True, 'einsum'),
    (np.array([True, False]), None, True, 'einsum'),
    (False, alibi, True, 'einsum'),
    (True, alibi, False, 'xla'),
  ],
  ids=['both ways', 'causal by row', 'alibi', 'causal alibi by xla'],
)
def test_blocks_compute_what_a_mask_over_all_pairs_does(causal, bias, packed, kernel):
  tokens = Tokens(rows(packed))
  attend = functools.partial(whole, bias=bias, kernel=kernel)
  far, expected = map(with_gradients(lambda pattern: attend, tokens, causal), np.int32([2 * W, W]))
  shapes = []

  def noting(qkv, rest):
    shapes.append((qkv[0].shape, qkv[1].shape))
    return attend(qkv, rest)

  got = with_gradients(functools.partial(in_blocks, noting), tokens, causal)(W)
  assert shapes[0] == ((10, 128, 2, 8), (10, 256, 2, 8))
  close(got, expected)
  assert np.abs(far[1] - expected[1]).max() > 0.1


def test_a_block_is_as_long_as_the_window():
  """Whose half is seen on either side: the first and the last key of a block of keys count."""
  x, tokens = np.zeros((1, 2048)), Tokens(np.ones((1, 2048), np.int32))
  for window, block in ((128, 128), (130, 256)):
    blocks = bands.blocks_of(Pattern(tokens, tokens, window=window), 0, 2048)
    assert blocks.queries(x).shape == (2048 // block, block)
  tokens = Tokens(rows())
  expected = with_gradients(lambda pattern: whole, tokens)
  got = with_gradients(functools.partial(in_blocks, whole), tokens)
  close(got(128), expected(np.int32(128)))
  # Arrays of windows, as of scanned layers: none, those that blocks for W reach, and a wider one.
  got = with_gradients(lambda p: in_blocks(whole, p, W), tokens)
  for window in np.int32([0, W, W - 20, 6 * W]):
    close(got(window), expected(window))


@pytest.mark.parametrize('window', [100, 128])
def test_causal_rows_of_a_mixed_batch_look_back_a_whole_window(window):
  tokens, causal = Tokens(rows()), np.array([True, False])
  expected = with_gradients(lambda pattern: whole, tokens, causal)
  got = with_gradients(functools.partial(in_blocks, whole), tokens, causal)
  close(got(window), expected(np.int32(window)))


def test_short_rows_and_other_orders_are_left_alone():
  tokens, far = Tokens(rows()), Tokens(rows(), places=np.arange(T))
  of = lambda window, queries=tokens, keys=None: Pattern(queries, keys or queries, window=window)
  for pattern in of(0), of(300), of(W, keys=Tokens(rows())), of(W, far):
    assert isinstance(bands.blocks_of(pattern, W, T), bands.Whole)
  assert isinstance(bands.blocks_of(of(W), W, 4 * 128 - 1), bands.Whole)
  assert isinstance(bands.blocks_of(of(W), 0, 4 * 128), bands.Bands)


def holds_all_pairs(config, length):
  """Does the training step of a tower have an array of [.., length, length] numbers?"""
  stack = Stack(config, config.num_hidden_layers)
  x, tokens = jnp.zeros((1, length, config.hidden_size)), Tokens(np.ones((1, length), np.int32))
  params = jax.eval_shape(stack.init, jax.random.key(0), x, tokens)

  def loss(params, key):
    return stack.apply(params, x, tokens, deterministic=False, rngs={'dropout': key}).sum()

  step = jax.jit(jax.grad(loss)).lower(params, jax.random.key(0))
  return f'{length}x{length}x' in step.as_text()


def test_a_layer_with_a_window_never_holds_all_pairs():
  fields = dict(attention_probs_dropout_prob=0.1, attention_window=32, position_embeddings='alibi')
  assert not holds_all_pairs(model(**fields, scan_layers=True), 2048)
  assert holds_all_pairs(model(**fields, global_attention_every=2), 2048)


def test_a_tower_in_blocks_is_that_over_whole_rows(monkeypatch):
  ids = rows()
  starts = (np.diff(ids, prepend=0) != 0) * np.arange(T)
  at = np.arange(T) - np.maximum.accumulate(starts, axis=1)
  x, tokens = draw(2, T, 24, seed=3), Tokens(ids, position_ids=at)
  fields = dict(attention_window=W, position_embeddings='rotary')
  stack = Stack(model(**fields), 1)
  params = drawn(stack.init, x, tokens)

  def run():
    @jax.jit
    def loss(params, x):
      out, kept = stack.apply(params, x, tokens, mutable=['intermediates'])
      real = (ids > 0)[..., None]
      probabilities = jnp.where(real[:, None], jnp.stack(jax.tree.leaves(kept)), 0)
      return (jnp.where(real, out, 0) ** 3).mean(), (jnp.where(real, out, 0), probabilities)

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)

  in_blocks = run()
  monkeypatch.setattr(bands, 'blocks_of', lambda *_: bands.Whole())
  close(in_blocks, run())
