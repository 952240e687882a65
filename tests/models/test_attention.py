"""Attention: who sees whom, by every implementation, with its gradient."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from test_models import model

from bert_jax import models
from bert_jax.models import attention_kernels, dropout
from bert_jax.models.tokens import Pattern, Tokens, sees

SEGMENTS = np.array([[1] * 7 + [2] * 5, [1] * 3 + [2] * 4 + [0] * 5, [0] * 12], np.int32)
MIXED = np.array([True, False, True])  # causal by row


def within(segment_ids, **fields):
  """The Pattern of self-attention inside these segments."""
  tokens = Tokens(segment_ids)
  return Pattern(tokens, tokens, **fields)


def draw(*shapes, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def formula(qkv, pattern, key=None, rate=0.0):
  q, k, v = qkv
  scores = jnp.einsum('bqhd,bkhd->bhqk', q, k) / q.shape[-1] ** 0.5
  scores += 0 if pattern.bias is None else pattern.bias
  p = jax.nn.softmax(jnp.where(sees(pattern)[:, None], scores, -1e30), axis=-1)
  if rate:
    p = jnp.where(dropout.keep_mask(key, rate, p.shape), p / (1 - rate), 0)
  return jnp.einsum('bhqk,bkhd->bqhd', p, v)


def compared(attend, other, qkv, pattern, bias=None, blind=False):
  """Asserts that two attentions have the same values and gradients of queries, keys, values and
  bias; returns both. blind: with queries that see nothing, else without."""
  (scale,) = draw(qkv[0].shape, seed=2)
  real = blind | np.asarray(sees(pattern).any(-1))[..., None, None]

  def total(attend):
    def f(qkv, bias):
      out = jnp.where(real, attend(qkv, dataclasses.replace(pattern, bias=bias)), 0)
      return (out * scale).sum(), out

    argnums = (0, 1) if bias is not None else 0
    return jax.jit(jax.value_and_grad(f, argnums=argnums, has_aux=True))(qkv, bias)

  ((_, a), gradients), ((_, b), expected) = total(attend), total(other)
  np.testing.assert_allclose(a, b, atol=2e-6)
  for x, y in zip(*map(jax.tree.leaves, (gradients, expected)), strict=True):
    assert np.abs(y).max() > 0
    np.testing.assert_allclose(x, y, atol=2e-5)
  return a, gradients


@pytest.mark.parametrize(
  'kernel, rate, bias, fields',
  [
    ('einsum', 0.0, (2, 12, 12), dict(to_itself=True, window=3)),
    ('einsum', 0.3, (3, 1, 12, 9), dict(window=5)),
    ('einsum', 0.3, (1, 2, 1, 9), dict(causal=MIXED, window=4)),
    ('einsum', 0.0, (12, 1), dict(window=np.int32(4))),
    ('xla', 0.0, (2, 12, 9), dict(causal=MIXED, window=4)),
  ],
)
def test_values_and_gradients_are_those_of_the_formula(kernel, rate, bias, fields):
  """With packed segments and padding, where lengths differ, and a learned bias of any shape."""
  fields = dict(fields)
  Tk = 12 if fields.pop('to_itself', False) else 9
  qkv = tuple(draw((3, 12, 2, 8), (3, Tk, 2, 8), (3, Tk, 2, 8)))
  ids = np.sort(np.random.default_rng(0).integers(0, 3, (3, 12)), axis=1)[:, ::-1].astype(np.int32)
  tokens = Tokens(ids)
  pattern = Pattern(tokens, tokens if Tk == 12 else Tokens(ids[:, 1:10]), **fields)
  (bias,) = draw(bias, seed=1) if bias else (None,)
  options = dict(key=jax.random.key(3), rate=rate)
  ours = functools.partial(attention_kernels.attend, kernel=kernel, **options)
  got, _ = compared(ours, functools.partial(formula, **options), qkv, pattern, bias)
  if not rate:  # and in numpy
    seen = np.asarray(sees(pattern))
    expected = references.attention(*qkv, seen, 0 if bias is None else bias)
    np.testing.assert_allclose(got[seen.any(-1)], expected[seen.any(-1)], atol=2e-6)


@pytest.mark.parametrize('Tk, kernel', [(9, 'einsum'), (12, 'xla')])
def test_queries_that_see_nothing_have_the_gradient_of_the_formula(Tk, kernel):
  """Those of a row whose context is empty, and of a segment that the context does not have."""
  queries, keys = np.ones((3, 12), np.int32), np.ones((3, Tk), np.int32)
  queries[1, 4:], keys[2] = 2, 0
  pattern = Pattern(Tokens(queries), Tokens(keys))
  blind = ~np.asarray(sees(pattern)).any(-1)
  assert not blind[0].any() and blind[1].sum() == 8 and blind[2].all()
  *qkv, bias = draw((3, 12, 2, 8), (3, Tk, 2, 8), (3, Tk, 2, 8), (3, 2, 12, Tk))
  ours = functools.partial(attention_kernels.attend, kernel=kernel)
  _, ((dq, dk, dv), _) = compared(ours, formula, tuple(qkv), pattern, bias, blind=True)
  assert not np.any(dq[blind]) and not np.any(dk[2]) and np.any(dv[2])


@pytest.mark.parametrize('causal', [False, True, MIXED], ids=['both ways', 'causal', 'by row'])
def test_who_sees_whom(causal):
  traced = jax.jit(lambda n: sees(within(SEGMENTS, causal=causal, window=n)))
  for window in (0, 1, 4, 5):
    expected = references.sees(SEGMENTS, SEGMENTS, causal, window)
    pattern = within(SEGMENTS, causal=causal, window=window)
    np.testing.assert_array_equal(sees(pattern), expected)
    np.testing.assert_array_equal(traced(np.int32(window)), expected)


def test_who_sees_whom_of_other_lengths_and_places():
  keys = np.array([[1] * 3 + [2] * 6, [1, 0, 2, 2, 2, 0, 0, 0, 0], [1] * 9], np.int32)
  pattern = Pattern(Tokens(SEGMENTS), Tokens(keys))
  np.testing.assert_array_equal(sees(pattern), references.sees(SEGMENTS, keys))
  # Five keys of earlier tokens, then those of the row itself: a memory.
  keys, places = np.ones((1, 9), np.int32), np.arange(-5, 4)
  pattern = Pattern(Tokens(keys[:, :4]), Tokens(keys, places=places), causal=True, window=3)
  expected = references.sees(keys[:, :4], keys, True, 3, (range(4), places))
  assert expected.sum() == 12
  np.testing.assert_array_equal(sees(pattern), expected)


SPLASH = dict(attention_implementation='splash')
WINDOWS = dict(attention_window=8, global_attention_every=2)
DEBERTA = dict(position_embeddings='disentangled', max_relative_positions=11)


@pytest.mark.parametrize(
  'fields, causal, words',
  [
    (SPLASH | dict(position_embeddings='alibi'), False, 'cannot add a bias'),
    (SPLASH | WINDOWS | dict(scan_layers=True), False, 'model.scan_layers=false'),
    (SPLASH, 'by row', 'in some rows only'),
    (dict(global_attention_every=3), False, 'attention_window'),
    (dict(memory_length=3, share_layers=True), False, 'model.share_layers=false'),
    (dict(attention_implementation='xla', attention_probs_dropout_prob=0.1), False, 'cannot drop'),
    (dict(position_embeddings='rotary', attention_head_size=3), False, 'heads have 3'),
    (dict(mixer='conv'), 'by row', 'use attention'),
    (dict(mixer='conv', conv_width=4), False, 'model.conv_width 4'),
    (dict(mixer='bag', position_embeddings='relative'), False, 'model.mixer=bag'),
    (dict(first_norm=False), False, 'model.norm_placement=pre'),
    (dict(local_rotary_theta=500.0), False, 'local_rotary_theta'),
    (dict(num_key_value_heads=2), False, 'num_key_value_heads 2 does not divide'),
    (DEBERTA | dict(position_buckets=20), False, 'use an even number from 4 to 18'),
    (DEBERTA | dict(mask_decoder=2), True, 'mask_decoder=2 needs'),
    (SPLASH | WINDOWS, True, ''),
    (dict(position_embeddings='alibi', attention_implementation='xla'), 'by row', ''),
  ],
  ids=str,
)
def test_a_model_says_what_it_cannot_before_it_is_compiled(fields, causal, words):
  said = models.unsupported(model(**fields), causal)
  assert words in said and bool(said) == bool(words)
