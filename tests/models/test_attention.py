"""Attention: who sees whom, by every implementation, with its gradient."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_models import model

from bert_jax import models
from bert_jax.models import attention_kernels, dropout
from bert_jax.models.tokens import Layer, Pattern, Tokens, sees
from bert_jax.objectives.encode import encode

SEGMENTS = np.array([[1] * 7 + [2] * 5, [1] * 3 + [2] * 4 + [0] * 5, [0] * 12], np.int32)


def within(segment_ids, **fields):
  """The Pattern of self-attention inside these segments."""
  tokens = Tokens(segment_ids)
  return Pattern(tokens, tokens, **fields)


@pytest.mark.parametrize('to_itself', [True, False])
@pytest.mark.parametrize('rate', [0.0, 0.3])
def test_the_gradient_of_attention_is_its_derivative(rate, to_itself):
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
    pattern = within(segments)
    return attention_kernels.softmax_attention(q, k, v, None, pattern, keys[4], rate, to_itself)

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
      out = attend(*qkv, within(segments))
      return (jnp.where(real, out, 0) ** 2).sum(), out

    return jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)(q, k, v)

  formula = functools.partial(attention_kernels.attend, kernel='einsum')
  (_, a), gradients_a = total(formula)
  (_, b), gradients_b = total(functools.partial(attention_kernels.splash, interpret=True))
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
    name: jax.jit(functools.partial(attention_kernels.attend, kernel=name))(
      q, k, v, within(segments)
    )
    for name in ('xla', 'splash')
  }
  np.testing.assert_allclose(out['xla'], out['splash'], atol=1e-6)


def test_cudnn_attention_raises_where_there_is_none():
  if jax.default_backend() == 'gpu':
    pytest.skip('this machine has cudnn')
  q = jnp.ones((1, 4, 2, 8), jnp.bfloat16)
  with pytest.raises(Exception, match='(?i)cudnn|cuda|gpu'):
    jax.jit(
      lambda: attention_kernels.attend(q, q, q, within(jnp.ones((1, 4), jnp.int32)), kernel='cudnn')
    )().block_until_ready()


def seen_by_loops(queries, keys, causal, window, query_places=None, key_places=None):
  """[B, Tq, Tk], one question at a time."""
  out = np.zeros((*queries.shape, keys.shape[1]), bool)
  for b, i, j in np.ndindex(*out.shape):
    back = (i if query_places is None else query_places[i]) - (
      j if key_places is None else key_places[j]
    )
    here = causal if isinstance(causal, bool) else causal[b]
    near = window == 0 or (0 <= back < window if here else -(window // 2) <= back <= window // 2)
    later = here and back < 0
    out[b, i, j] = queries[b, i] == keys[b, j] > 0 and near and not later
  return out


CAUSAL = [False, True, np.array([True, False, True])]


@pytest.mark.parametrize('window', [0, 1, 4, 5])
@pytest.mark.parametrize('causal', CAUSAL, ids=['both ways', 'causal', 'by row'])
def test_who_sees_whom(causal, window):
  expected = seen_by_loops(SEGMENTS, SEGMENTS, causal, window)
  pattern = within(SEGMENTS, causal=causal, window=window)
  np.testing.assert_array_equal(sees(pattern), expected)
  # As data of a compiled function, constants or not, it is the same.
  np.testing.assert_array_equal(jax.jit(sees)(pattern), expected)
  traced = jax.jit(lambda n: sees(dataclasses.replace(pattern, window=n)))
  np.testing.assert_array_equal(traced(np.int32(window)), expected)


def test_who_sees_whom_of_other_lengths_and_places():
  keys = np.array([[1] * 3 + [2] * 6, [1, 0, 2, 2, 2, 0, 0, 0, 0], [1] * 9], np.int32)
  pattern = Pattern(Tokens(SEGMENTS), Tokens(keys))
  np.testing.assert_array_equal(sees(pattern), seen_by_loops(SEGMENTS, keys, False, 0))
  # Five keys of earlier tokens, then those of the row itself: a memory.
  keys, places = np.ones((1, 9), np.int32), np.arange(-5, 4)
  pattern = Pattern(Tokens(keys[:, :4]), Tokens(keys, places=places), causal=True, window=3)
  expected = seen_by_loops(keys[:, :4], keys, True, 3, key_places=places)
  assert expected.sum() == 12
  np.testing.assert_array_equal(sees(pattern), expected)


def random_attention(Tq=12, Tk=9, H=2, d=8, seed=0):
  """(q, k, v, weights of the output, Pattern): other lengths, packed segments, padding."""
  rng = np.random.default_rng(seed)
  q, k, v, weights = (rng.normal(size=(3, T, H, d)).astype(np.float32) for T in (Tq, Tk, Tk, Tq))
  keys = np.sort(rng.integers(0, 3, (3, Tk)), axis=1)[:, ::-1].astype(np.int32)
  queries = np.sort(rng.integers(0, 3, (3, Tq)), axis=1)[:, ::-1].astype(np.int32)
  return q, k, v, weights, Pattern(Tokens(queries), Tokens(keys))


def formula(q, k, v, pattern, key=None, rate=0.0):
  scores = jnp.einsum('bqhd,bkhd->bhqk', q, k) / q.shape[-1] ** 0.5
  if pattern.bias is not None:
    scores += pattern.bias
  p = jax.nn.softmax(jnp.where(sees(pattern)[:, None], scores, -1e30), axis=-1)
  if rate:
    p = jnp.where(dropout.keep_mask(key, rate, p.shape), p / (1 - rate), 0)
  return jnp.einsum('bhqk,bkhd->bqhd', p, v)


@pytest.mark.parametrize(
  'implementation, rate, bias, fields',
  [
    ('einsum', 0.0, None, dict()),
    ('einsum', 0.0, (2, 12, 9), dict(causal=True)),
    ('einsum', 0.3, (3, 1, 12, 9), dict(window=5)),
    ('einsum', 0.3, (1, 2, 1, 9), dict(causal=np.array([True, False, True]), window=4)),
    ('einsum', 0.0, (12, 1), dict(window=np.int32(4))),
    ('xla', 0.0, (2, 12, 9), dict(causal=np.array([True, False, True]), window=4)),
    ('xla', 0.0, None, dict(causal=True)),
  ],
)
def test_values_and_gradients_are_those_of_the_formula(implementation, rate, bias, fields):
  """Of queries, keys, values and a learned bias of any shape, where lengths differ."""
  q, k, v, weights, pattern = random_attention()
  pattern = dataclasses.replace(pattern, **fields)
  if bias:
    bias = np.random.default_rng(1).normal(size=bias).astype(np.float32)
  key = jax.random.key(3)
  real = np.asarray(sees(pattern).any(-1))[..., None, None]

  def total(attend):
    def f(q, k, v, bias):
      out = jnp.where(real, attend(q, k, v, dataclasses.replace(pattern, bias=bias)), 0)
      return (out * weights).sum(), out

    argnums = (0, 1, 2, 3) if bias is not None else (0, 1, 2)
    return jax.jit(jax.value_and_grad(f, argnums=argnums, has_aux=True))(q, k, v, bias)

  ours = functools.partial(attention_kernels.attend, kernel=implementation, key=key, rate=rate)
  theirs = functools.partial(formula, key=key, rate=rate)
  (_, a), gradients_a = total(ours)
  (_, b), gradients_b = total(theirs)
  np.testing.assert_allclose(a, b, atol=2e-6)
  for x, y in zip(gradients_a, gradients_b, strict=True):
    assert np.abs(y).max() > 0
    np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize('implementation', ['einsum', 'xla'])
@pytest.mark.parametrize('Tk', [9, 12])
def test_queries_that_see_nothing_have_the_gradient_of_the_formula(Tk, implementation):
  """Those of a row whose context is empty, and of a segment that the context does not have."""
  q, k, v, weights, pattern = random_attention(Tk=Tk)
  queries, keys = np.ones((3, 12), np.int32), np.ones((3, Tk), np.int32)
  queries[1, 4:], keys[2] = 2, 0
  pattern = Pattern(Tokens(queries), Tokens(keys))
  blind = ~np.asarray(sees(pattern)).any(-1)
  assert not blind[0].any() and blind[1].sum() == 8 and blind[2].all()
  bias = np.random.default_rng(1).normal(size=(3, 2, 12, Tk)).astype(np.float32)

  def gradients(attend):
    def f(q, k, v, bias):
      return (attend(q, k, v, dataclasses.replace(pattern, bias=bias)) * weights).sum()

    return jax.grad(f, argnums=(0, 1, 2, 3))(q, k, v, bias)

  ours = gradients(functools.partial(attention_kernels.attend, kernel=implementation))
  for a, b in zip(ours, gradients(formula), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)
  assert not np.any(ours[0][blind]) and not np.any(ours[1][2]) and np.any(ours[2][2])


@pytest.mark.parametrize(
  'length, fields',
  [
    (256, dict(causal=True)),
    (256, dict(window=96)),
    (256, dict(causal=True, window=96)),
    (128, {}),
  ],
  ids=['causal', 'window', 'causal window', 'fewer keys'],
)
def test_splash_attention_knows_causal_windows_and_lengths(length, fields):
  """In packed rows, interpreted, beside einsum: values and gradients."""
  keys = jax.random.split(jax.random.key(0), 3)
  q = jax.random.normal(keys[0], (2, 256, 2, 64))
  k, v = (jax.random.normal(key, (2, length, 2, 64)) for key in keys[1:])
  segments = np.repeat(np.array([[1, 1, 2, 3], [1, 2, 2, 0]], np.int32), 64, axis=1)
  pattern = Pattern(Tokens(segments), Tokens(segments[:, :length]), **fields)
  real = np.asarray(sees(pattern).any(-1))[..., None, None]

  def total(attend):
    def f(q, k, v):
      out = jnp.where(real, attend(q, k, v, pattern), 0)
      return (out**2).sum(), out

    return jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)(q, k, v)

  (_, a), gradients_a = total(functools.partial(attention_kernels.attend, kernel='einsum'))
  (_, b), gradients_b = total(functools.partial(attention_kernels.splash, interpret=True))
  np.testing.assert_allclose(a, b, atol=2e-6)
  for x, y in zip(gradients_a, gradients_b, strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize(
  'implementation, fields, words',
  [
    ('splash', dict(bias=np.zeros((2, 12, 12), np.float32)), 'cannot add a bias .ALiBi.'),
    ('cudnn', dict(bias=np.zeros((2, 12, 12), np.float32)), 'cannot add a bias .ALiBi.'),
    ('splash', dict(window=np.int32(4)), 'one window for all scanned layers'),
    ('splash', dict(causal=np.array([True, False, True])), 'causal in some rows only'),
  ],
)
def test_what_an_implementation_cannot_do_it_says(implementation, fields, words):
  q = np.zeros((3, 12, 2, 8), np.float32)
  with pytest.raises(ValueError, match=f'attention_implementation={implementation} .*{words}.*; '):
    attention_kernels.attend(q, q, q, within(SEGMENTS, **fields), kernel=implementation)
  for able in ('einsum', 'xla'):
    attention_kernels.attend(q, q, q, within(SEGMENTS, **fields), kernel=able)


def test_places_and_dropout_are_not_for_everyone():
  q = np.zeros((3, 12, 2, 8), np.float32)
  tokens = Tokens(SEGMENTS, places=np.arange(12) * 2)
  with pytest.raises(ValueError, match='splash knows the order of tokens in a row only'):
    attention_kernels.attend(q, q, q, Pattern(tokens, tokens, causal=True), kernel='splash')
  with pytest.raises(ValueError, match='xla cannot drop attention probabilities'):
    attention_kernels.attend(
      q, q, q, within(SEGMENTS), kernel='xla', key=jax.random.key(0), rate=0.1
    )


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(position_embeddings='alibi', attention_implementation='splash'), 'cannot add a bias'),
    (
      dict(
        attention_window=8,
        global_attention_every=2,
        attention_implementation='splash',
        scan_layers=True,
      ),
      'set model.scan_layers=false or use einsum',
    ),
    (dict(position_embeddings='rotary', num_attention_heads=8), 'turns pairs of numbers'),
    (dict(global_attention_every=3), 'there is no window; set model.attention_window'),
    (dict(attention_implementation='xla', attention_probs_dropout_prob=0.1), 'cannot drop'),
    (dict(attention_window=8, attention_implementation='splash'), ''),
    (dict(attention_window=8, global_attention_every=2, attention_implementation='splash'), ''),
    (dict(attention_window=8, global_attention_every=2, scan_layers=True), ''),
    (dict(position_embeddings='alibi', attention_implementation='xla'), ''),
    (dict(position_embeddings='rotary', attention_implementation='cudnn'), ''),
    (dict(), ''),
  ],
  ids=str,
)
def test_a_model_says_what_it_cannot_before_it_is_compiled(fields, sentence):
  said = models.unsupported(dataclasses.replace(model(), **fields))
  assert sentence in said and bool(said) == bool(sentence)


def test_a_model_that_is_causal_by_row_says_so():
  config = model(attention_implementation='splash')
  assert 'causal in some rows only' in models.unsupported(config, causal='by row')
  assert models.unsupported(config, causal=True) == ''


def heard(config, count, tokens, x, layer=None):
  """[B, T, T]: does the output of a tower at one token depend on the vector of another?"""
  tower = models.Stack(config, count)
  weights = np.random.default_rng(1).normal(size=x.shape[-1]).astype(np.float32)

  @jax.jit
  def jacobian(x):
    params = tower.init(jax.random.key(0), x, tokens, layer=layer)
    # Rows do not hear each other, so one sum over them serves all.
    return jax.jacobian(lambda x: (tower.apply(params, x, tokens, layer=layer) @ weights).sum(0))(x)

  return np.abs(jacobian(x)).sum(-1).swapaxes(0, 1) > 1e-7


@pytest.mark.parametrize(
  'causal, window, implementation',
  [
    (False, 4, 'einsum'),
    (True, 0, 'einsum'),
    (np.array([True, False, True]), 4, 'einsum'),
    (True, 4, 'xla'),
  ],
  ids=str,
)
def test_no_output_depends_on_what_it_may_not_see(causal, window, implementation):
  """By the derivative of a block, in packed rows."""
  config = dataclasses.replace(
    model(attention_implementation=implementation), attention_window=window
  )
  x = np.random.default_rng(0).normal(size=(3, 12, 24)).astype(np.float32)
  expected = seen_by_loops(SEGMENTS, SEGMENTS, causal, window)
  real = SEGMENTS > 0
  got = heard(config, 1, Tokens(SEGMENTS, causal=causal), x)
  np.testing.assert_array_equal(got[real], (expected | np.eye(12, dtype=bool))[real])


@pytest.mark.parametrize('scan, remat', [(False, 'full'), (True, 'full')])
def test_windows_may_differ_by_layer(scan, remat):
  """Of every three layers one sees everything; and each layer of a tower can have its own."""
  config = dataclasses.replace(
    model(scan_layers=scan, remat=remat), attention_window=5, global_attention_every=3
  )
  x = np.random.default_rng(0).normal(size=(1, 12, 24)).astype(np.float32)
  tokens = Tokens(np.ones((1, 12), np.int32))
  back = np.abs(np.arange(12)[:, None] - np.arange(12))
  assert heard(config, 3, tokens, x).all()
  # In a tower of two: 1 place to either side, and then 3.
  np.testing.assert_array_equal(
    heard(config, 2, tokens, x, Layer(window=np.array([2, 7])))[0], back <= 4
  )


def test_a_causal_encoder_hears_nothing_later():
  config = model()
  params = models.init_encoder(config, jax.random.key(0))
  rng = np.random.RandomState(0)
  batch = dict.fromkeys(('token_type_ids', 'position_ids'), np.zeros((2, 10), np.int32))
  batch |= {'input_ids': rng.randint(5, 99, (2, 10)), 'segment_ids': np.ones((2, 10), np.int32)}
  other = batch | {'input_ids': batch['input_ids'].copy()}
  other['input_ids'][:, 6:] = 7
  both = [encode(config, params, b, causal=np.array([True, False])) for b in (batch, other)]
  changed = np.abs(both[0] - both[1]).max(-1) > 1e-6
  np.testing.assert_array_equal(changed[0], np.arange(10) >= 6)
  assert changed[1].all()
