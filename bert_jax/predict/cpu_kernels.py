"""Weights as a CPU reads them fastest.

XLA's product of a few rows with a kernel [in, out] takes about twice as long on a CPU as that of
the kernel turned around, [out, in], with the rows as columns (measured with
`python -m bert_jax.tools.bench predict`). So kernels are turned when a model is loaded, and Linen's
own interception gives Dense this product; the modules know nothing of it.
"""

import contextlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

FEW = 256  # rows of a product: from about here on either operand may stand first


def turns(dtype):
  """Is this of use here?"""
  return jax.default_backend() == 'cpu' and dtype == 'float32'


def turned(params):
  """params with every kernel of a Dense transposed; its own inverse. On the host."""

  def turn(path, x):
    return np.ascontiguousarray(np.asarray(x).T) if path[-1].key == 'kernel' else x

  return jax.tree_util.tree_map_with_path(turn, params)


@contextlib.contextmanager
def dense(is_turned):
  """Within it, every Dense multiplies with a turned kernel."""
  if not is_turned:
    yield
    return
  with nn.intercept_methods(_multiply):
    yield


def _multiply(call, args, kwargs, context):
  module = context.module
  if not isinstance(module, nn.Dense):
    return call(*args, **kwargs)
  (x,) = args
  kernel = module.get_variable('params', 'kernel')
  rows = jnp.asarray(x, jnp.float32).reshape(-1, x.shape[-1])
  if rows.shape[0] > FEW:
    out = lax.dot_general(rows, kernel, (((1,), (1,)), ((), ())))
  else:  # the barriers keep XLA from turning it back
    out = lax.optimization_barrier(kernel @ lax.optimization_barrier(rows.T)).T
  return out.reshape(*x.shape[:-1], -1) + module.get_variable('params', 'bias')
