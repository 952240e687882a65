"""Floating-point operations, counted in the jaxpr of a function."""

import math
from collections.abc import Callable
from typing import Any

import jax


def products(function: Callable, *arguments: Any) -> int:
  """Counts the operations of the matrix products in function(*arguments), arrays or shapes.
  Loops count as often as they run, and of branches the most expensive one. Products in a Pallas
  kernel are not seen; the branch for other devices, which stands beside it, is counted."""
  return _products(jax.make_jaxpr(function)(*arguments).jaxpr)


def _products(jaxpr):
  total = 0
  for equation in jaxpr.eqns:
    name, params = equation.primitive.name, equation.params
    if name == 'dot_general':
      (axes, _), _ = params['dimension_numbers']
      left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
      total += 2 * math.prod(out) * math.prod(left[axis] for axis in axes)
    elif name != 'pallas_call':
      inner = [_products(part) for part in _inner(params)] or [0]
      total += (max(inner) if name == 'cond' else sum(inner)) * params.get('length', 1)
  return total


def _inner(params):
  """Yields the jaxprs in the parameters of an equation: the body of a loop, or branches."""
  for value in params.values():
    for part in value if isinstance(value, (tuple, list)) else [value]:
      part = getattr(part, 'jaxpr', part)
      if hasattr(part, 'eqns'):
        yield part
