"""Optimizers and schedules: Optax, plus the two things BERT did its own way.

BERT's AdamW (google-research/bert, optimization.py) divides m by sqrt(v) + eps with no bias
correction, and its linear schedule decays from step 0, not from the end of the warm-up.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.errors import InputError
from bert_jax.sharding import path_name


def make_schedule(optimizer, steps):
  """step -> learning rate, for a run of `steps` steps.

  All warm up linearly from 0 over `warmup` steps. linear: peak * (1 - step / steps), counted from
  step 0 (BERT). cosine: to 0 over what is left. inverse_sqrt: peak * sqrt(warmup / step) (Vaswani
  et al. 2017). wsd: constant, then linear to 0 over the last `decay` steps. constant: constant.
  """
  peak = optimizer.learning_rate
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
  """m / (sqrt(v) + eps) of plain running means, as BERT was trained: no bias correction."""

  def init(params):
    return optax.ScaleByAdamState(
      count=jnp.zeros([], jnp.int32),
      mu=optax.tree.zeros_like(params),
      nu=optax.tree.zeros_like(params),
    )

  def update(gradients, state, params=None):
    del params
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, gradients)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, gradients)
    updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
    return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

  return optax.GradientTransformation(init, update)


def clip_by_global_norm(limit):
  """Gradients times min(1, limit / their norm). A factor joins the loops of what comes after;
  Optax's own choice between two arrays costs one more pass over all gradients."""

  def clip(gradients, _):
    factor = jnp.minimum(1, limit / optax.tree.norm(gradients))
    return jax.tree.map(lambda g: g * factor, gradients)

  return optax.stateless(clip)


OPTIMIZERS = {'bert_adamw': scale_by_bert_adam, 'adamw': optax.scale_by_adam}


def make_optimizer(optimizer, steps, params):
  """The Optax chain of `config.optimizer`. params: arrays or shapes; only their paths are used."""
  multipliers = lr_multipliers(optimizer, params)
  frozen = jax.tree.map(lambda m: not np.any(m), multipliers)
  decayed = jax.tree.map(lambda hit: not hit, matches(optimizer.no_decay, params))
  return optax.chain(
    optax.masked(optax.set_to_zero(), frozen),
    clip_by_global_norm(optimizer.clip_norm) if optimizer.clip_norm else optax.identity(),
    OPTIMIZERS[optimizer.name](optimizer.beta1, optimizer.beta2, optimizer.eps),
    optax.add_decayed_weights(optimizer.weight_decay, decayed),
    optax.scale_by_learning_rate(make_schedule(optimizer, steps)),
    optax.stateless(lambda updates, _: jax.tree.map(lambda u, m: u * m, updates, multipliers)),
  )


def matches(pattern, params):
  """A tree of booleans: does the regex occur in the parameter's path? '' matches none."""
  hits = jax.tree_util.tree_map_with_path(
    lambda path, _: bool(pattern and re.search(pattern, path_name(path))), params
  )
  if pattern and not any(jax.tree.leaves(hits)):
    names = [path_name(p) for p, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    raise InputError(
      f'regex {pattern!r} in config.optimizer matches no parameter; their paths look '
      f'like {", ".join(names[:: max(1, len(names) // 4)])}.'
    )
  return hits


def lr_multipliers(optimizer, params):
  """What each parameter's step is multiplied by: a float, or an array over a scanned layer axis.

  0 for `freeze`; else the first matching factor of `lr_multipliers` times layer_lr_decay ** depth,
  where depth is 0 for the heads, 1 for the last layer and layers + 1 for the embeddings (as in
  ELECTRA's fine-tuning).
  """
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
  """How many layers each parameter lies below the heads: an int, or an array for scanned layers."""
  flat = jax.tree_util.tree_flatten_with_path(params)[0]
  layers = [
    int(m[1]) + 1 for path, _ in flat if (m := re.search(r'/layer_(\d+)/', path_name(path)))
  ]
  layers += [x.shape[0] for path, x in flat if '/layers/' in path_name(path)]
  count = max(layers, default=0)

  def depth(path, x):
    name = path_name(path)
    if '/layers/' in name:
      return np.arange(count, 0, -1).reshape(count, *[1] * (len(x.shape) - 1))
    if match := re.search(r'/layer_(\d+)/', name):
      return count - int(match[1])
    return count + 1 if '/embeddings/' in name else 0

  return jax.tree_util.tree_map_with_path(depth, params)
