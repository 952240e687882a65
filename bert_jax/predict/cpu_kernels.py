"""Weights as a CPU reads them fastest.

XLA's product of a few rows with a kernel [in, out] takes longer on a CPU than that of the kernel
turned around, [out, in], with the rows as columns: an answer about one sentence a quarter
(all-MiniLM-L6, 32 tokens, two cores). So kernels are turned when a model is loaded, and Linen's own
interception gives Dense this product; the modules know nothing of it.
"""

import contextlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

FEW = 256  # rows of a product: from about here on either operand may stand first


def turns(dtype):
  """Is it worth it here, for a model that computes in this type?"""
  return jax.default_backend() == 'cpu' and dtype == 'float32'


def turned(params):
  """params, on the host, with every kernel [in, out] transposed; its own inverse. The layers must
  be apart (models.unstack_layers)."""

  def turn(path, x):
    x = np.asarray(x)
    return np.ascontiguousarray(x.T) if path[-1].key == 'kernel' and x.ndim == 2 else x

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
  """What a Dense returns, whatever its types, bias and precision, from its turned kernel."""
  module = context.module
  if context.method_name != '__call__' or not isinstance(module, nn.Dense):
    kernel = module.variables.get('params', {}).get('kernel')
    if getattr(kernel, 'ndim', 0) == 2:
      raise TypeError(
        f'{type(module).__name__} has a kernel that is stored transposed here, and is no Dense; '
        'give its parameter another name, or teach predict/cpu_kernels.py its product.'
      )
    return call(*args, **kwargs)
  (x,) = (*args, *kwargs.values())
  kernel = module.get_variable('params', 'kernel')
  bias = module.get_variable('params', 'bias') if module.use_bias else None
  x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=module.dtype)
  rows, precision = x.reshape(-1, x.shape[-1]), module.precision
  product = module.dot_general or (module.dot_general_cls and module.dot_general_cls())
  if product:  # not the usual one: of the kernel as the module expects it
    out = product(rows, kernel.T, (((1,), (0,)), ((), ())), precision=precision)
  elif len(rows) > FEW:
    out = lax.dot_general(rows, kernel, (((1,), (1,)), ((), ())), precision=precision)
  else:  # the barriers keep XLA from turning it back
    columns = lax.optimization_barrier(rows.T)
    out = lax.optimization_barrier(jnp.matmul(kernel, columns, precision=precision)).T
  out = out.reshape(*x.shape[:-1], -1)
  return out if bias is None else out + bias
