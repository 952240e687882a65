"""The layers that all parts of a model share: activations, norms, matrix products, tables."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp


def gelu(x):
  """The exact GELU, as BERT's: x times the normal distribution function (Hendrycks & Gimpel 2016).
  Computed by erf in float32. jax.nn.gelu uses erfc, whose two branches cost a TPU more cycles for
  digits that are rounded away here."""
  z = x.astype(jnp.float32)
  return (z * (0.5 + 0.5 * jax.lax.erf(z * math.sqrt(0.5)))).astype(x.dtype)


ACTIVATIONS = {
  'gelu': gelu,
  'gelu_tanh': lambda x: jax.nn.gelu(x, approximate=True),
  'relu': jax.nn.relu,
  'swish': jax.nn.swish,
}


def initializer(config, last=False):
  """Normal(0, initializer_range) cut off at two standard deviations and not rescaled, as BERT's.
  last: for the output layer of a sublayer; scaled_initializer then divides by sqrt(2 * layers), so
  that the sum over all layers of the model does not grow (GPT-2, Megatron, ModernBERT)."""
  scaled = last and config.scaled_initializer
  scale = (2 * config.num_hidden_layers) ** -0.5 if scaled else 1.0
  return nn.initializers.truncated_normal(config.initializer_range * scale)


def dense(config, features, name, bias=True, *, last=False):
  """A matrix product in `config.dtype`, and a bias: [..., n] -> [..., features].
  last: see initializer."""
  init = initializer(config, last)
  return nn.Dense(features, use_bias=bias, dtype=config.dtype, kernel_init=init, name=name)


def embed(config, count, name):
  """A table of `count` vectors, looked up by ids [B, T] -> [B, T, E] float32.
  Ids must lie inside the table: nn.Embed returns NaN, and no error, for an id past its end."""
  init = initializer(config)
  return nn.Embed(count, config.embedding_width, dtype=jnp.float32, embedding_init=init, name=name)


NORMS = {
  'layer_norm': nn.LayerNorm,
  'rms_norm': nn.RMSNorm,  # Zhang & Sennrich 2019: subtracts no mean and adds no bias
}


def norm(config, name='LayerNorm'):
  """The norm `config.norm`. The name of its parameters does not depend on its kind."""
  options = {'use_bias': False} if config.norm == 'layer_norm' and not config.norm_bias else {}
  return NORMS[config.norm](epsilon=config.layer_norm_eps, dtype=config.dtype, name=name, **options)
