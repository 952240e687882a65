"""Transposes a model's kernels, because a CPU multiplies faster with them that way.

XLA multiplies a few rows by a kernel [in, out] more slowly than a transposed kernel [out, in] by
the rows as columns: single sentences take a quarter longer (all-MiniLM-L6, 32 tokens, two cores).
So kernels are transposed when a model is loaded, and Linen's interception makes every Dense use it.
"""

import contextlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

FEW = 256  # rows of a product; with more than about this many both forms are equally fast


def turned(params: Any) -> Any:
  """The parameters, on the host and unstacked, with every kernel transposed; twice undoes it."""

  def turn(path, x):
    x = np.asarray(x)
    return np.ascontiguousarray(x.T) if path[-1].key == 'kernel' and x.ndim == 2 else x

  return jax.tree_util.tree_map_with_path(turn, params)


def dense(is_turned: bool) -> contextlib.AbstractContextManager:
  """A context in which every Dense multiplies with a transposed kernel, if is_turned."""
  return nn.intercept_methods(_multiply) if is_turned else contextlib.nullcontext()


def _multiply(call, args, kwargs, context):
  """The output of a Dense, with its types, bias and precision, from a transposed kernel."""
  module = context.module
  if context.method_name != '__call__' or not isinstance(module, nn.Dense):
    kernel = module.variables.get('params', {}).get('kernel')
    if getattr(kernel, 'ndim', None) == 2:
      advice = 'give its parameter another name, or teach predict/cpu_kernels.py its product'
      has = 'has a kernel that is stored transposed here, and is no Dense'
      raise TypeError(f'{type(module).__name__} {has}; {advice}.')
    return call(*args, **kwargs)
  (x,) = (*args, *kwargs.values())
  kernel = module.get_variable('params', 'kernel')
  bias = module.get_variable('params', 'bias') if module.use_bias else None
  x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=module.dtype)
  rows, precision = x.reshape(-1, x.shape[-1]), module.precision
  if len(rows) > FEW:
    out = lax.dot_general(rows, kernel, (((1,), (1,)), ((), ())), precision=precision)
  else:  # the barriers keep XLA from undoing the transposition
    columns = lax.optimization_barrier(rows.T)
    out = lax.optimization_barrier(jnp.matmul(kernel, columns, precision=precision)).T
  out = out.reshape(*x.shape[:-1], -1)
  return out if bias is None else out + bias
