"""Optimizers and learning rates: Optax, and what BERT did differently.

BERT's AdamW (google-research/bert, optimization.py) divides m by sqrt(v) + eps with no bias
correction, and its linear schedule decays from step 0, not from the end of the warm-up.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax import towers
from bert_jax.errors import InputError
from bert_jax.sharding import path_name


def numbers(optimizer):
  """The numbers of config.optimizer that a compiled step takes as arguments, not as constants."""
  rate, decay = np.float32(optimizer.learning_rate), np.float32(optimizer.weight_decay)
  return {'learning_rate': rate, 'weight_decay': decay}


def make_schedule(optimizer, steps, peak=None):
  """step -> learning rate, for a run of `steps` steps. peak: used in place of the config's.
  Every schedule first rises linearly from 0 over `warmup` steps. Then linear: peak *
  (1 - step / steps), counted from step 0 (BERT). cosine: falls to 0 over the remaining steps.
  inverse_sqrt: peak * sqrt(warmup / step) (Vaswani et al. 2017). wsd: constant, then linear to 0
  over the last `decay` steps. constant: the peak."""
  peak = optimizer.learning_rate if peak is None else peak
  warmup = _steps(optimizer.warmup, steps)
  decay = max(1, _steps(optimizer.decay, steps))
  if warmup >= steps:
    raise InputError(
      f'optimizer.warmup of {warmup} steps leaves nothing of a run of {steps} steps; lower it, a '
      'number below 1 is a share of the run.'
    )
  after = {
    'linear': lambda step: 1 - step / steps,
    'cosine': lambda step: (
      0.5 * (1 + jnp.cos(jnp.pi * jnp.clip((step - warmup) / max(1, steps - warmup), 0, 1)))
    ),
    'constant': lambda step: jnp.ones_like(step),
    'inverse_sqrt': lambda step: jnp.sqrt(max(1, warmup) / jnp.maximum(step, 1)),
    'wsd': lambda step: jnp.clip((steps - step) / decay, 0, 1),
  }[optimizer.schedule]

  def schedule(step):
    step = jnp.asarray(step, jnp.float32)
    return peak * jnp.where(step < warmup, step / max(1, warmup), jnp.maximum(after(step), 0.0))

  return schedule


def _steps(amount, steps):
  return round(amount * steps) if amount < 1 else round(amount)


def scale_by_bert_adam(b1, b2, eps):
  """Adam as BERT was trained: m / (sqrt(v) + eps), running means without bias correction."""

  def init(params):
    mu, nu = optax.tree.zeros_like(params), optax.tree.zeros_like(params)
    return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=mu, nu=nu)

  def update(gradients, state, params=None):
    del params
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, gradients)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, gradients)
    updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
    return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

  return optax.GradientTransformation(init, update)


def clip_by_global_norm(limit):
  """Gradients times min(1, limit / their norm). XLA fuses this product with what follows, while the
  choice between two arrays in optax.clip_by_global_norm costs one more pass over all gradients."""

  def clip(gradients, _):
    factor = jnp.minimum(1, limit / optax.tree.norm(gradients))
    return jax.tree.map(lambda g: g * factor, gradients)

  return optax.stateless(clip)


OPTIMIZERS = {'bert_adamw': scale_by_bert_adam, 'adamw': optax.scale_by_adam}


def make_optimizer(optimizer, steps, params, values=None):
  """The Optax chain of `config.optimizer`. A frozen parameter has no moments, and its update is
  None.
  params: arrays or shapes; only their paths are used. values: as `numbers` returns them, but
  traced; used in place of the config's."""
  values = values or numbers(optimizer)
  still = frozen(optimizer, params)
  trained = lambda tree: split(tree, still)[0]
  multipliers = trained(lr_multipliers(optimizer, params))
  decayed = trained(jax.tree.map(lambda hit: not hit, matches(optimizer.no_decay, params)))
  chain = optax.chain(
    optax.identity(),  # keeps the places of the others, which checkpoints have in their names
    clip_by_global_norm(optimizer.clip_norm) if optimizer.clip_norm else optax.identity(),
    OPTIMIZERS[optimizer.name](optimizer.beta1, optimizer.beta2, optimizer.eps),
    optax.add_decayed_weights(values['weight_decay'], decayed),
    optax.scale_by_learning_rate(make_schedule(optimizer, steps, values['learning_rate'])),
    optax.stateless(lambda updates, _: jax.tree.map(lambda u, m: u * m, updates, multipliers)),
  )

  def update(gradients, state, params):
    return chain.update(trained(gradients), state, trained(params))

  return optax.GradientTransformation(lambda params: chain.init(trained(params)), update)


def frozen(optimizer, params):
  """A tree of booleans: True for parameters that never change, since their multiplier is 0."""
  return jax.tree.map(lambda m: not np.any(m), lr_multipliers(optimizer, params))


def split(params, frozen=None):
  """(trained, frozen): the tree twice, each with None in place of the other's parameters."""
  frozen = frozen or jax.tree.map(lambda _: False, params)
  trained = jax.tree.map(lambda still, x: None if still else x, frozen, params)
  return trained, jax.tree.map(lambda still, x: x if still else None, frozen, params)


def merge(trained, frozen):
  """The inverse of `split`."""
  return jax.tree.map(
    lambda a, b: b if a is None else a, trained, frozen, is_leaf=lambda x: x is None
  )


def matches(pattern, params):
  """A tree of booleans: does the regex occur in the parameter's path? '' occurs in none."""
  hits = jax.tree_util.tree_map_with_path(
    lambda path, _: bool(pattern and re.search(pattern, path_name(path))), params
  )
  if pattern and not any(jax.tree.leaves(hits)):
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    raise InputError(
      f'regex {pattern!r} in config.optimizer matches no parameter; their paths look '
      f'like {", ".join(names[:: max(1, len(names) // 4)])}.'
    )
  return hits


def lr_multipliers(optimizer, params):
  """The factor of each parameter's learning rate: a float, or an array over scanned layers.
  0 for `freeze`; else the first factor of `lr_multipliers` whose regex matches, times
  layer_lr_decay ** depth (see layer_depths; as in ELECTRA's fine-tuning)."""
  frozen = matches(optimizer.freeze, params)
  rules = [(matches(pattern, params), factor) for pattern, factor in optimizer.lr_multipliers]
  depths = layer_depths(params)

  def multiplier(frozen, depth, *hits):
    if frozen:
      return 0.0
    factor = next((f for (_, f), hit in zip(rules, hits) if hit), 1.0)
    return factor * optimizer.layer_lr_decay**depth

  return jax.tree.map(multiplier, frozen, depths, *(tree for tree, _ in rules))


def layer_depths(params):
  """How far each parameter lies below the top of its tower (towers.py), counted in layers.
  1 in the last layer, the number of layers + 1 in the embeddings, 0 in the heads and in a final
  LayerNorm. Embeddings beside towers lie below the deepest of them. An int, or an array over the
  axis of scanned layers."""
  counts = towers.layer_counts(params)

  def depth(path, x):
    name = path_name(path)
    if layer := towers.layer_of(name):
      tower, number = layer
      if number is None:
        return np.arange(x.shape[0], 0, -1).reshape(-1, *[1] * (len(x.shape) - 1))
      return counts[tower] - number
    tower = towers.tower_of(name, counts)
    folder, in_embeddings, _ = f'/{name[len(tower or "") :]}/'.partition('/embeddings/')
    beside = [t for t in counts if f'/{t}'.startswith(f'{folder}/')] if tower is None else [tower]
    return max((counts[t] for t in beside), default=-1) + 1 if in_embeddings else 0

  return jax.tree_util.tree_map_with_path(depth, params)
