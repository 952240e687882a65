"""The TPU's kernel of attention, interpreted, beside einsum; which model gets it, and when."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from test_attention import MIXED, compared, draw, within
from test_models import Stack, model

from bert_jax.models import attention_kernels, positions, refusals
from bert_jax.models.tokens import Pattern, Tokens

EINSUM = functools.partial(attention_kernels.attend, kernel='einsum')
SPLASH = functools.partial(attention_kernels.splash, interpret=True)
BLOCKS = dict(LARGEST_BLOCK=256, OF_WINDOWS=128)  # a quarter of the real ones


def drawn(seed, rows, heads):
  """Queries, keys and values of any length, with examples and padding, and any Pattern of them."""
  rng = np.random.default_rng(seed)
  B, H, T, Tk = rows, heads, *rng.integers(20, 600, 2)
  d = rng.choice([64, 32, 128, 20])
  across = rng.random() < 0.2
  window = rng.choice([0, rng.integers(2, T + 1)])

  def tokens(length):
    examples = np.sort(rng.integers(1, 4, (B, length)), axis=1)
    return Tokens(np.where(np.arange(length) < rng.integers(1, length + 1, (B, 1)), examples, 0))

  queries = tokens(T)
  if across:
    pattern = Pattern(queries, tokens(Tk))
  else:
    pattern = Pattern(queries, queries, causal=bool(rng.integers(2)), window=int(window))
  Tk = pattern.keys.segment_ids.shape[1]
  return tuple(draw((B, T, H, d), (B, Tk, H, d), (B, Tk, H, d), seed=seed)), pattern


@pytest.mark.parametrize('seed', range(4))
def test_splash_is_einsum(seed, monkeypatch):
  for name, size in BLOCKS.items():
    monkeypatch.setattr(attention_kernels, name, size)
  qkv, pattern = drawn(seed, rows=2, heads=1 + seed % 3)
  compared(SPLASH, EINSUM, qkv, pattern)
  assert np.isfinite(SPLASH(qkv, pattern)).all()  # of padding, too


EIGHT = """
import sys

import jax
from test_splash import BLOCKS, EINSUM, SPLASH, compared, drawn

from bert_jax import sharding
from bert_jax.models import attention_kernels

vars(attention_kernels).update(BLOCKS)
with jax.set_mesh(sharding.make_mesh(2, 2, 2)), sharding.activation_rules():
  for seed in range(int(sys.argv[1])):
    compared(SPLASH, EINSUM, *drawn(seed, rows=4, heads=2))
"""


@pytest.mark.parametrize('number', [2, pytest.param(200, marks=pytest.mark.slow)])
def test_splash_is_einsum_on_a_mesh(number):
  """Rows over `data` and `fsdp`, heads over `tensor`."""
  flags = f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count=8'
  env = dict(os.environ, XLA_FLAGS=flags, PYTHONPATH=os.pathsep.join(sys.path))
  command = [sys.executable, '-c', EIGHT, str(number)]
  out = subprocess.run(command, env=env, capture_output=True, text=True)
  assert out.returncode == 0, out.stderr[-2000:]


@pytest.fixture
def tpu(monkeypatch):
  """The models are traced as for a TPU; rows of 40 tokens are long."""
  monkeypatch.setattr(attention_kernels, 'on_tpu', lambda: True)
  monkeypatch.setattr(refusals, 'LONG', 40)


MODERN = dict(
  attention_window=6,
  global_attention_every=2,
  position_embeddings='rotary',
  local_rotary_theta=500.0,
  num_key_value_heads=1,
)


def test_a_model_is_the_same_by_splash(tpu, monkeypatch):
  """Long rows of a model with windows and rotary positions, recomputed in the backward pass."""
  calls = []

  def interpreted(qkv, pattern):
    calls.append(pattern.window)
    return SPLASH(qkv, pattern)

  monkeypatch.setattr(attention_kernels, 'splash', interpreted)
  (x, g) = draw((2, 40, model().hidden_size), (2, 40, model().hidden_size))
  tokens = Tokens(np.repeat(np.array([[1, 2], [1, 0]], np.int32), 20, axis=1))

  def results(**fields):
    stack = Stack(model(**MODERN, **fields), 2)
    params = stack.init(jax.random.key(0), x, tokens)
    real = (tokens.segment_ids > 0)[..., None]
    loss = lambda params, x: (jnp.where(real, stack.apply(params, x, tokens), 0) * g).sum()
    return jax.tree.leaves(jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, x))

  got = results(remat='full')
  assert {*calls} == {0, 6}
  monkeypatch.setattr(attention_kernels, 'on_tpu', lambda: False)
  expected = results()
  for a, b in zip(got, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_rotary_positions_and_their_gradient():
  """A rotation, so its gradient is turned back."""
  x, g = draw((2, 5, 3, 8), (2, 5, 3, 8))
  at = np.random.default_rng(3).integers(0, 100, (2, 5))
  out, backward = jax.vjp(lambda x: positions.rotary(x, at, 30.0), x)
  np.testing.assert_allclose(out, references.rotary(x, at, 30.0), atol=1e-5)
  np.testing.assert_allclose(*backward(g), references.rotary(g, -at, 30.0), atol=1e-5)


@pytest.mark.parametrize(
  'kernel, length, causal, fields',
  [
    ('splash', 40, False, MODERN),
    ('splash', 41, True, {}),
    ('einsum', 39, False, MODERN),
    ('einsum', 40, MIXED, {}),
    ('einsum', 40, False, dict(position_embeddings='alibi')),
    ('einsum', 40, False, dict(position_embeddings='relative')),
    ('einsum', 40, False, dict(attention_probs_dropout_prob=0.1)),
    ('einsum', 40, False, MODERN | dict(scan_layers=True)),
    ('einsum', 40, False, dict(attention_implementation='einsum')),
    ('xla', 40, False, dict(attention_implementation='xla')),
    ('splash', 3, False, dict(attention_implementation='splash')),
  ],
)
def test_auto_is_splash_where_it_can_be(tpu, kernel, length, causal, fields, monkeypatch):
  pattern = within(np.ones((3, length), np.int32), causal=causal)
  assert refusals.kernel_of(model(**fields), pattern) == kernel
  if 'attention_implementation' not in fields:
    keys = Tokens(pattern.queries.segment_ids)  # of other tokens
    across = Pattern(pattern.queries, keys, causal=causal)
    assert refusals.kernel_of(model(**fields), across) == 'einsum'
    monkeypatch.setattr(attention_kernels, 'on_tpu', lambda: False)
    assert refusals.kernel_of(model(**fields), pattern) == 'einsum'
