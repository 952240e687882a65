"""The layers that all parts of a model share: activations, norms, matrix products, tables."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.models.config import ModelConfig

MAX_ROWS_FOR_PRODUCT = 1024  # of a table: on a TPU the gradient of a larger one is no product
EXACT = jax.lax.Precision.HIGHEST  # of a product of float32 arrays, on every chip


def gelu(x: Array) -> Array:
  """The exact GELU, as BERT's: x times the normal distribution function (Hendrycks & Gimpel 2016).
  By erf in float32: erfc, as in jax.nn.gelu, has two branches, which cost a TPU more cycles."""
  z = x.astype(jnp.float32)
  return (z * (0.5 + 0.5 * jax.lax.erf(z * math.sqrt(0.5)))).astype(x.dtype)


def gelu_tanh(x: Array) -> Array:
  return jax.nn.gelu(x, approximate=True)


def identity(x: Array) -> Array:
  return x


ACTIVATIONS = {
  'gelu': gelu,
  'gelu_tanh': gelu_tanh,
  'relu': jax.nn.relu,
  'swish': jax.nn.swish,
}


def initializer(config: ModelConfig, last: bool = False) -> nn.initializers.Initializer:
  """Normal(0, initializer_range) cut off at two standard deviations and not rescaled, as BERT's.
  last: for the output layer of a sublayer; scaled_initializer then divides by sqrt(2 * layers), so
  that the sum over all layers of the model does not grow (GPT-2, Megatron, ModernBERT)."""
  smaller = last and config.scaled_initializer
  scale = (2 * config.num_hidden_layers) ** -0.5 if smaller else 1.0
  return nn.initializers.truncated_normal(config.initializer_range * scale)


def dense(
  config: ModelConfig, features: int, name: str, bias: bool = True, *, last: bool = False
) -> nn.Dense:
  """A matrix product in `config.dtype`, and a bias: [..., n] -> [..., features]."""
  precision = EXACT if config.dtype == 'float32' else None
  return nn.Dense(
    features,
    use_bias=bias,
    dtype=cast(Any, config.dtype),
    precision=precision,
    kernel_init=initializer(config, last),
    name=name,
  )


def exact_dense(config: ModelConfig, features: int, name: str, bias: bool = True) -> nn.Dense:
  """As `dense`, in float32 whatever `config.dtype` is: bfloat16 would make many logits equal."""
  return dense(dataclasses.replace(config, dtype='float32'), features, name, bias)


def traced_in(dtype: str, function: Callable[..., Any]) -> Callable[..., Any]:
  """`function`, to be compiled, with products as exact as model.dtype says on every chip. If it is
  float32, a TPU would round the factors of a product to bfloat16 by default, which takes a sixth of
  the time, and an NVIDIA GPU to TensorFloat-32."""
  if dtype != 'float32':
    return function

  @functools.wraps(function)
  def exact(*args):
    with jax.default_matmul_precision('highest'):
      return function(*args)

  return exact


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def look_up(table_VE: Array, ids: Array, dtype: Any = 'float32') -> Array:
  """The rows `ids` [...] of a table, rounded to `dtype`, [..., E]; NaN past its end. The sums
  of its gradient are in the table's type, on a TPU a product if it is small. It has no jax.jvp."""
  return jnp.take(table_VE.astype(dtype), ids, axis=0).astype(table_VE.dtype)


def _kept(table_VE, ids, dtype):
  return look_up(table_VE, ids, dtype), (table_VE, ids)


def _summed(dtype, kept, g):
  table_VE, ids = kept

  def scattered(ids, g):
    shape = jax.ShapeDtypeStruct(table_VE.shape, table_VE.dtype)
    return jax.linear_transpose(lambda table_VE: jnp.take(table_VE, ids, axis=0), shape)(g)[0]

  if len(table_VE) > MAX_ROWS_FOR_PRODUCT:
    return scattered(ids, g), None
  product = functools.partial(sums_by_row, rows=len(table_VE))
  return jax.lax.platform_dependent(ids, g, tpu=product, default=scattered), None


look_up.defvjp(_kept, _summed)


def sums_by_row(ids: Array, g: Array, rows: int) -> Array:
  """The sum [rows, E] of the vectors g [..., E] with each id [...], as a matrix product."""
  is_row = jax.nn.one_hot(jnp.where(ids < 0, ids + rows, ids).ravel(), rows, dtype=g.dtype)
  # One factor is 0 or 1, so three of the six products of EXACT are enough for float32.
  precision = jax.lax.Precision.HIGH if g.dtype == jnp.float32 else None
  return jnp.einsum('nv,ne->ve', is_row, g.reshape(-1, g.shape[-1]), precision=precision)


class Table(nn.Embed):
  """A table of vectors [V, E] in float32, looked up by ids."""

  def __call__(self, ids: Array | None) -> Array:
    if ids is None or ids.dtype.kind not in 'iu' or self.num_embeddings == 1:
      return super().__call__(ids)  # which gives the vector of a single row for any id
    return look_up(self.embedding, ids, self.dtype)


def embed(config: ModelConfig, count: int, name: str, dtype: Any = 'float32') -> Table:
  """A table of `count` vectors, looked up by ids [B, T] -> [B, T, E] float32, rounded to `dtype`:
  chips gather it so. For an id past its end it returns NaN, and no error."""
  init = initializer(config)
  return Table(count, config.embedding_width, dtype=dtype, embedding_init=init, name=name)


def layer_norm(config: ModelConfig, name: str) -> nn.LayerNorm:
  """Ba et al. 2016 (https://arxiv.org/abs/1607.06450)."""
  dtype: Any = config.dtype
  return nn.LayerNorm(config.layer_norm_eps, dtype=dtype, use_bias=config.norm_bias, name=name)


def rms_norm(config: ModelConfig, name: str) -> nn.RMSNorm:
  """Subtracts no mean and adds no bias (Zhang & Sennrich 2019)."""
  dtype: Any = config.dtype
  return nn.RMSNorm(config.layer_norm_eps, dtype=dtype, name=name)


NORMS = {'layer_norm': layer_norm, 'rms_norm': rms_norm}


def norm(config: ModelConfig, name: str = 'LayerNorm') -> Callable[[Array], Array]:
  """The norm `config.norm`. The name of its parameters does not depend on its kind."""
  return NORMS[config.norm](config, name)
