"""Optimizers from Optax and from papers, BERT's own AdamW, and multipliers of the rate by layer.

BERT's AdamW (google-research/bert, optimization.py) has no bias correction. Norms and means over a
whole matrix are taken for each layer, also where layers are stacked.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import tree_map_with_path
from ml_collections import ConfigDict
from optax import GradientTransformation, GradientTransformationExtraArgs

from bert_jax import parameter_layers, timeline
from bert_jax.errors import InputError
from bert_jax.sharding import path_name

Tree = Any  # of arrays or shapes like the parameters, or of booleans or factors for each of them


def numbers(optimizer: ConfigDict, steps: int) -> dict[str, Any]:
  """The numbers of the schedule and weight decay, which a compiled step takes as arguments."""
  return timeline.numbers(optimizer, steps) | {'weight_decay': np.float32(optimizer.weight_decay)}


def scale_by_bert_adam(b1: float, b2: float, eps: float) -> GradientTransformation:
  """BERT's Adam: m / (sqrt(v) + eps), with running means without bias correction."""

  def init(params):
    mu, nu = optax.tree.zeros_like(params), optax.tree.zeros_like(params)
    return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=mu, nu=nu)

  def update(updates, state, params=None):
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, updates)
    updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
    return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

  return GradientTransformation(init, update)


def clip_by_global_norm(limit: float) -> GradientTransformation:
  """Multiplies gradients by min(1, limit / their norm). XLA fuses this product with what follows;
  the choice between two arrays in optax.clip_by_global_norm costs one more pass over gradients."""

  def clip(gradients, _):
    factor = jnp.minimum(1, limit / optax.tree.norm(gradients))
    return jax.tree.map(lambda g: g * factor, gradients)

  return optax.stateless(clip)


def stacked_in(params: Tree) -> Tree:
  """A tree of booleans: is the leading axis of an array an axis of layers?"""

  def is_stacked(path, _):
    layer = parameter_layers.layer_of(path_name(path))
    return layer is not None and layer[1] is None

  return tree_map_with_path(is_stacked, params)


def _by_layer(reduce, x, stacked):
  """reduce(x, axis=...) over all axes but the axis of stacked layers, if any; axes are kept."""
  return reduce(x, axis=tuple(range(1 if stacked else 0, x.ndim)), keepdims=True)


def stable_adamw(
  adam: GradientTransformation, decay: GradientTransformation, b2: float, eps: float, stacked: Tree
) -> GradientTransformation:
  """AdamW with the update clipping of Adafactor (Wortsman et al. 2023, StableAdamW,
  https://arxiv.org/abs/2304.13013, algorithm 2): the rate of each array, for its decay too, is
  divided by max(1, sqrt(mean(g^2 / v))), which is large where v has not yet learned of g.
  adam: optax.scale_by_adam with these b2 and eps. decay: the transformation that adds the decay."""

  def update(updates: Any, state: Any, params: Any = None) -> Any:
    gradients = updates
    after: Any = adam.update(gradients, state, params)
    updates, state = after
    updates, _ = decay.update(updates, decay.init(params), params)
    correction = 1 - b2**state.count

    def clipped(u, g, v, stacked):
      surprise = g * g / jnp.maximum(v / correction, eps**2)
      return u / jnp.maximum(1, jnp.sqrt(_by_layer(jnp.mean, surprise, stacked)))

    return jax.tree.map(clipped, updates, gradients, state.nu, stacked), state

  return GradientTransformation(adam.init, update)


def scale_by_trust_ratio(adapted: Tree, stacked: Tree) -> GradientTransformation:
  """LAMB's trust ratio (You et al. 2020, https://arxiv.org/abs/1904.00962): an update times the
  norm of its parameter over its own norm; times 1 if one is 0, and if not `adapted`."""

  def norm(x, stacked):
    return jnp.sqrt(_by_layer(jnp.sum, x * x, stacked))

  def scaled(u, p, adapted, stacked):
    if not adapted:
      return u
    length, of_update = norm(p, stacked), norm(u, stacked)
    is_zero = (length == 0) | (of_update == 0)
    return u * jnp.where(is_zero, 1.0, length / jnp.where(is_zero, 1.0, of_update))

  def update(updates, params):
    return jax.tree.map(scaled, updates, params, adapted, stacked)

  return optax.stateless(update)


def muon(adam: GradientTransformation, params: Tree) -> GradientTransformationExtraArgs:
  """Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/) for the kernels in layers, and
  `adam` for the rest. Muon's updates are scaled to the root mean square 0.2, about as Adam's, so
  both take the same rate and decay (Liu et al. 2025, https://arxiv.org/abs/2502.16982)."""

  def label(path, x, stacked):
    name = path_name(path)
    is_matrix = name.endswith('/kernel') and len(x.shape) - stacked == 2
    return 'muon' if is_matrix and parameter_layers.layer_of(name) else 'adam'

  matrix = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)

  def matrices(tree):
    return jax.tree.map(lambda _: matrix, tree)

  orthogonal = optax.contrib.scale_by_muon(beta=0.95, weight_dimension_numbers=matrices)
  as_large = optax.stateless_with_tree_map(lambda u, _: u * 0.2 * max(jnp.shape(u)[-2:]) ** 0.5)
  labels = tree_map_with_path(label, params, stacked_in(params))
  return optax.partition({'muon': optax.chain(orthogonal, as_large), 'adam': adam}, labels)


def _adam(optimizer, kind=optax.scale_by_adam):
  return kind(optimizer.beta1, optimizer.beta2, optimizer.eps)


def _bert_adamw_chain(optimizer, decay, decayed, params):
  return _adam(optimizer, scale_by_bert_adam), decay


def _adamw_chain(optimizer, decay, decayed, params):
  return _adam(optimizer), decay


def _stable_adamw_chain(optimizer, decay, decayed, params):
  adam = _adam(optimizer)
  return (stable_adamw(adam, decay, optimizer.beta2, optimizer.eps, stacked_in(params)),)


def _lamb_chain(optimizer, decay, decayed, params):
  return _adam(optimizer), decay, scale_by_trust_ratio(decayed, stacked_in(params))


def _muon_chain(optimizer, decay, decayed, params):
  return muon(_adam(optimizer), params), decay


# {name: (optimizer, decay, decayed, params) -> transformations between clipping and the rate}.
# decay: the transformation that adds the weight decay; decayed: a tree of booleans, where it does.
# What is summed over an array is summed by `_by_layer`.
OPTIMIZERS: dict[str, Callable[..., tuple[GradientTransformation, ...]]] = {
  'bert_adamw': _bert_adamw_chain,
  'adamw': _adamw_chain,
  'stable_adamw': _stable_adamw_chain,
  'lamb': _lamb_chain,
  'muon': _muon_chain,
}


def make_optimizer(
  optimizer: ConfigDict, steps: int, params: Tree, values: dict[str, Any] | None = None
) -> GradientTransformation:
  """The Optax transformation of `config.optimizer`. A frozen parameter has no moments, and its
  update is None. params: only paths and shapes are used. values: `numbers`, but traced."""
  values = values or numbers(optimizer, steps)
  is_frozen = frozen(optimizer, params)

  def trained(tree):
    return split(tree, is_frozen)[0]

  undecayed = matches(optimizer.no_decay, params)
  decayed = trained(jax.tree.map(lambda hit: not hit, undecayed))
  decay = optax.add_decayed_weights(values['weight_decay'], decayed)
  schedule = timeline.make_schedule(optimizer, steps, values)
  multipliers = trained(lr_multipliers(optimizer, params))

  def multiplied(updates, _):
    return jax.tree.map(lambda u, m: u * m, updates, multipliers)

  chain = optax.chain(
    optax.identity(),  # keeps the numbers of the others, which are in the names of checkpoints
    clip_by_global_norm(optimizer.clip_norm) if optimizer.clip_norm else optax.identity(),
    *OPTIMIZERS[optimizer.name](optimizer, decay, decayed, trained(params)),
    optax.scale_by_learning_rate(schedule),
    optax.stateless(multiplied),
  )

  def init(params):
    return chain.init(trained(params))

  def update(updates, state, params=None):
    return chain.update(trained(updates), state, trained(params))

  return GradientTransformation(init, update)


def frozen(optimizer: ConfigDict, params: Tree) -> Tree:
  """A tree of booleans: True for parameters that never change, since their multiplier is 0."""
  return jax.tree.map(lambda m: not np.any(m), lr_multipliers(optimizer, params))


def split(params: Tree, frozen: Tree = None) -> tuple[Tree, Tree]:
  """Splits a tree into (trained, frozen), each with None in place of the other's parameters."""
  frozen = frozen or jax.tree.map(lambda _: False, params)
  trained = jax.tree.map(lambda is_frozen, x: None if is_frozen else x, frozen, params)
  others = jax.tree.map(lambda is_frozen, x: x if is_frozen else None, frozen, params)
  return trained, others


def merge(trained: Tree, frozen: Tree) -> Tree:
  """The inverse of `split`."""

  def one_of(a, b):
    return b if a is None else a

  return jax.tree.map(one_of, trained, frozen, is_leaf=lambda x: x is None)


def matches(pattern: str, params: Tree) -> Tree:
  """A tree of booleans: does a regex occur in the parameter's path? '' occurs in none."""

  def is_hit(path, _):
    return bool(pattern and re.search(pattern, path_name(path)))

  hits = tree_map_with_path(is_hit, params)
  if pattern and not any(jax.tree.leaves(hits)):
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    some = ', '.join(names[:: max(1, len(names) // 4)])
    raise InputError(
      f'regex {pattern!r} in config.optimizer matches no parameter; their paths look like {some}.'
    )
  return hits


def lr_multipliers(optimizer: ConfigDict, params: Tree) -> Tree:
  """The factor on each parameter's learning rate: a float, or an array over scanned layers. 0 for
  `freeze`; else the first factor of `lr_multipliers` whose regex matches, times layer_lr_decay **
  depth (see layer_depths), where the last layer has the depth layer_lr_last."""
  rules = [(optimizer.freeze, 0.0), *optimizer.lr_multipliers]
  factors = [factor for _, factor in rules]
  above = optimizer.layer_lr_last - 1

  def multiplier(depth, *hits):
    factor = next((factor for factor, hit in zip(factors, hits) if hit), 1.0)
    if factor == 0:
      return factor
    is_in_layer_or_below = depth > 0  # an array for scanned layers
    return factor * optimizer.layer_lr_decay ** (depth + above * is_in_layer_or_below)

  hits = [matches(pattern, params) for pattern, _ in rules]
  return jax.tree.map(multiplier, layer_depths(params), *hits)


def layer_depths(params: Tree) -> Tree:
  """How far each parameter lies below the top of its tower, in layers: 1 in the last layer, the
  number of layers + 1 in the embeddings, 0 in the heads and in a final LayerNorm. Embeddings beside
  towers lie below the deepest of them. An int, or an array over the axis of scanned layers."""
  counts = parameter_layers.layer_counts(params)

  def depth(path, x):
    name = path_name(path)
    layer = parameter_layers.layer_of(name)
    if layer:
      tower, number = layer
      if number is None:
        of_each_layer = np.arange(x.shape[0], 0, -1)
        return of_each_layer.reshape(-1, *[1] * (len(x.shape) - 1))
      return counts[tower] - number
    tower = parameter_layers.tower_of(name, counts)
    # All layers read the table of distances, as they do what the embeddings give.
    own = f'/{name[len(tower or "") :]}/'.replace('/distances/', '/embeddings/')
    folder, in_embeddings, _ = own.partition('/embeddings/')
    if not in_embeddings:
      return 0
    if tower is not None:
      return counts[tower] + 1
    beside = [t for t in counts if f'/{t}'.startswith(f'{folder}/')]
    return max((counts[t] for t in beside), default=-1) + 1

  return tree_map_with_path(depth, params)
