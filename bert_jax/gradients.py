"""The gradient of a batch: on each device one microbatch after another, then one sum over devices.

XLA alone would sum each gradient where it arises: a table's twice in every microbatch, so that
communication grows with accumulation, and a kernel's in the type of its product.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bert_jax import sharding

# Of (params, batch, key, carry, others) -> ((loss, (terms, carry)), gradients). The arrays of batch
# and carry are [B, ...]; loss, terms and gradients are sums over rows.
Gradient = Callable[[Any, Any, jax.Array, Any, Any], tuple[Any, Any]]


def zeros(shapes: Any) -> Any:
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def anywhere(x: jax.Array) -> jax.Array:
  """True if a number of x is not 0, here or, where XLA splits arrays inside a shard_map, on any of
  the devices: its sums over devices may stand in a branch, so all must take the same one."""
  mesh = jax.sharding.get_abstract_mesh()
  manual = mesh.manual_axes
  some = jnp.any(x)
  if manual and len(manual) < len(mesh.axis_names):
    return jax.lax.pmax(some, manual)
  return some


def accumulated(grad_fn: Gradient, count: int, grows: bool) -> Gradient:
  """`grad_fn` summed over `count` microbatches, whose rows are interleaved so that they stay on
  their devices. grows: nothing is computed for microbatches without rows (timeline.py)."""

  def summed(params, batch, key, carry, others):
    def body(total, part):
      i, microbatch = part

      def added():
        out = grad_fn(params, microbatch, jax.random.fold_in(key, i), carry, others)
        return jax.tree.map(jnp.add, total, out)

      if not grows:
        return added(), None
      has_rows = anywhere(microbatch['segment_ids'] > 0)
      return jax.lax.cond(has_rows, added, lambda: total), None

    def cut(x):  # [B, ...] -> [count, B / count, ...]
      rows = x.reshape(x.shape[0] // count, count, *x.shape[1:])
      return jnp.swapaxes(rows, 0, 1)

    numbers = jnp.arange(count)
    microbatches = jax.tree.map(cut, batch)
    first = jax.tree.map(lambda x: x[0], microbatches)
    shapes = jax.eval_shape(grad_fn, params, first, key, carry, others)
    total, _ = jax.lax.scan(body, zeros(shapes), (numbers, microbatches))
    return total

  return summed


def _split_here(mesh, gather):
  """The mesh axes over which `over_devices` splits a step itself; XLA splits the others."""
  if gather == 'layer' and mesh.shape['fsdp'] > 1:
    return {'data'}
  return {'data', 'fsdp'} if mesh.shape['tensor'] > 1 else set(sharding.AXES)


def shards(mesh: Mesh, gather: str) -> int:
  """The number of devices among which `over_devices` splits a batch. Where it is 1 there is nothing
  to sum, and XLA fails at a sum over one device beside axes that it splits itself."""
  return math.prod(mesh.shape[axis] for axis in _split_here(mesh, gather))


def fits(mesh: Mesh, gather: str) -> bool:
  """Can `over_devices` split a step? Old versions of JAX cannot leave an axis to XLA."""
  whole = _split_here(mesh, gather) == set(sharding.AXES)
  return whole or jax.__version_info__ >= (0, 10)


def _with_rows(computed, batch, carry, axes):
  """computed(), in a branch that all devices take if the batch has rows on any of them. Without
  rows: zeros, and the carry as it is."""

  def nothing():
    (loss, (terms, _)), gradients = zeros(jax.eval_shape(computed))
    return (loss, (terms, carry)), gradients

  has_rows = jnp.any(batch['segment_ids'] > 0)
  return jax.lax.cond(jax.lax.pmax(has_rows, axes), computed, nothing)


def _pieces(params, mesh):
  """The axis of each parameter that is split over mesh.fsdp, or -1."""

  def axis(x):
    for i, names in enumerate(x.spec):
      if 'fsdp' in (names or ()):
        return i
    return -1

  return jax.tree.map(axis, sharding.tree_shardings(params, mesh))


def over_devices(
  grad_fn: Gradient, mesh: Mesh, sums: str, gather: str, slices: int = 1
) -> Gradient:
  """`grad_fn`, which each device computes for its own rows, summed over devices once.
  sums: the type in which gradients cross devices. gather: with `step` each device gathers whole
  parameters once a step and gets its pieces of the summed gradients; with `layer` XLA gathers and
  sums over mesh.fsdp where it needs them, and only the sum over mesh.data is made here.
  slices: of TPUs. For several the gradient of a slice is a branch, which batches with rows take,
  since XLA hardly fuses what stands beside a sum between slices."""
  manual = _split_here(mesh, gather)
  axes = tuple(axis for axis in ('data', 'fsdp') if axis in manual)
  rows = P(axes)

  # On CPUs XLA sums bfloat16 in float32, or fails.
  kind = 'float32' if mesh.devices.flat[0].platform == 'cpu' else sums

  # Over several slices the devices of one sum first, in its branch, and then the slices.
  in_branch = tuple(axis for axis in axes if axis == 'fsdp' and slices > 1)

  def first(x, axis):
    x = x.astype(kind)
    if axis >= 0:
      return jax.lax.psum_scatter(x, 'fsdp', scatter_dimension=axis, tiled=True)
    return jax.lax.psum(x, in_branch) if in_branch else x

  def last(x, axis, param):
    left = 'data' if axis >= 0 or in_branch else axes
    return jax.lax.psum(x, left).astype(param.dtype)

  def spec_of(axis):
    return P(*(None,) * axis, 'fsdp') if axis >= 0 else P()

  def summed(params, batch, key, carry, others):
    at = _pieces(params, mesh)
    if 'fsdp' not in axes:
      at = jax.tree.map(lambda _: -1, at)

    def on_a_device(params, batch, key, carry, others):
      def computed():
        with sharding.activation_rules(besides=manual):
          out, gradients = grad_fn(params, batch, key, carry, others)
        return out, jax.tree.map(first, gradients, at)

      out = _with_rows(computed, batch, carry, axes) if slices > 1 else computed()
      (loss, (terms, carry)), gradients = out
      loss, terms = jax.lax.psum((loss, terms), axes)
      return (loss, (terms, carry)), jax.tree.map(last, gradients, at, params)

    specs = jax.tree.map(spec_of, at)
    by_device: Any = jax.shard_map(
      on_a_device,
      in_specs=(P(), rows, P(), rows, P()),
      out_specs=((P(), (P(), rows)), specs),
      axis_names=manual,
      check_vma=False,
    )
    return by_device(params, batch, key, carry, others)

  return summed
