"""One step of training and one of evaluation: pure functions, and the program they become."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax import optim, sharding
from bert_jax.metrics import Mean


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """All that a checkpoint holds. carry: what an objective keeps from step to step ({}: nothing)."""

  step: jax.Array
  params: Any
  opt_state: Any
  carry: Any


def keys(seed, prng_impl):
  """Three streams of random bits that never meet: (initialisation, training, evaluation)."""
  return jax.random.split(jax.random.key(seed, impl=prng_impl), 3)


@dataclasses.dataclass(frozen=True)
class Program:
  """A run's training step before it is compiled. state, batch: ShapeDtypeStructs with shardings."""

  make_state: Any  # key -> State
  train_step: Any
  state: State
  batch: Any
  compiler_options: dict

  @property
  def layout(self):
    return jax.tree.map(lambda x: x.sharding, self.state)

  def lower(self):
    jitted = jax.jit(
      self.train_step,
      donate_argnums=0,
      out_shardings=(self.layout, None),
      compiler_options=self.compiler_options,
    )
    return jitted.lower(self.state, self.batch)


def program(config, objective, mesh, steps):
  """The Program of a run of `steps` steps on a mesh. It is lowered under jax.set_mesh(mesh) and
  sharding.activation_rules(), but made outside: its keys are real arrays, the mesh may not be."""
  init_key, train_key, _ = keys(config.seed, config.prng_impl)
  param_shapes = jax.eval_shape(objective.init, init_key)
  horizon = round(config.optimizer.horizon * steps)
  optimizer = optim.make_optimizer(config.optimizer, horizon, param_shapes)

  def make_state(key):
    params = objective.init(key)
    return State(jnp.zeros([], jnp.int32), params, optimizer.init(params), {})

  train_step = make_train_step(
    objective, optimizer, key=train_key, accumulation=config.optimizer.accumulation
  )
  state = sharding.placed(jax.eval_shape(make_state, init_key), mesh)
  where = sharding.batch_sharding(mesh)
  batch = {
    name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
    for name, x in objective.spec(config.batch_size).items()
  }
  return Program(make_state, train_step, state, batch, sharding.compiler_options(mesh))


def make_train_step(objective, optimizer, *, key, accumulation):
  """-> train_step(state, batch) -> (state, {name: Mean or scalar}).

  Randomness is fold_in(key, step), so a step is a function of (config, step, state). With
  accumulation > 1 the batch runs in that many microbatches and the gradient is that of the whole:
  each term's total is divided by its weight over the full batch, not averaged over microbatches.
  """
  weights = objective.loss_weights

  def train_step(state, batch):
    corrupt_key, dropout_key = jax.random.split(jax.random.fold_in(key, state.step))
    with jax.named_scope('corruption'):
      batch = objective.prepare(batch, corrupt_key, state.step)
    # Only the weights are used, and they depend on the batch alone: XLA drops the forward pass.
    whole = objective.terms(state.params, batch, dropout_key, True)
    norms = {name: jnp.maximum(jax.lax.stop_gradient(whole[name].weight), 1e-6) for name in weights}

    def loss_fn(params, batch, rng):
      terms = objective.terms(params, batch, rng, True)
      return sum(weights[n] * terms[n].total / norms[n] for n in weights), terms

    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    if accumulation == 1:
      (loss, terms), gradients = grad_fn(state.params, batch, dropout_key)
    else:

      def body(total, part):
        i, microbatch = part
        out = grad_fn(state.params, microbatch, jax.random.fold_in(dropout_key, i))
        return jax.tree.map(jnp.add, total, out), None

      parts = (jnp.arange(accumulation), jax.tree.map(_microbatches(accumulation), batch))
      shapes = jax.eval_shape(
        grad_fn, state.params, jax.tree.map(lambda x: x[0], parts[1]), dropout_key
      )
      zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
      ((loss, terms), gradients), _ = jax.lax.scan(body, zeros, parts)

    with jax.named_scope('optimizer'):
      updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
      params = optax.apply_updates(state.params, updates)
    metrics = dict(
      terms,
      loss=loss,
      grad_norm=optax.tree.norm(gradients),
      tokens=_tokens(batch),
      seen=objective.seen(batch),
    )
    return State(state.step + 1, params, opt_state, state.carry), metrics

  return train_step


def make_eval_step(objective, *, key):
  """-> eval_step(params, batch, index) -> ({name: Mean}, {name: array [B, ...]}).

  The corruption of batch number `index` is the same at every evaluation.
  """

  def eval_step(params, batch, index):
    batch = objective.prepare(batch, jax.random.fold_in(key, index))
    return objective.terms(params, batch, None, False), objective.predict(params, batch)

  return eval_step


def _microbatches(count):
  """[B, ...] -> [count, B / count, ...], interleaved so that every device keeps its own rows."""
  return lambda x: jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1)


def _tokens(batch):
  """Real tokens of the batch, and the positions it has room for."""
  real = batch['segment_ids'] > 0
  return Mean(jnp.sum(real, dtype=jnp.float32), jnp.float32(real.size))
