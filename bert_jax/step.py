"""The training step and the evaluation step: pure functions, and the Program compiled from them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from bert_jax import gradients, models, optim, sharding
from bert_jax.errors import InputError, log
from bert_jax.gradients import Gradient, zeros
from bert_jax.metrics import Mean
from bert_jax.models import layers
from bert_jax.objectives.base import Objective
from bert_jax.timeline import EVALUATION, Moment, Timeline


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """What a step changes and a checkpoint saves. carry: see Objective.carry."""

  step: Any
  params: Any
  opt_state: Any
  carry: Any

  def __repr__(self) -> str:  # one line: a notebook shows the value of a cell
    return f'State(step {self.step}, {models.count_parameters(self.params):,} parameters)'


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Constants:
  """Arrays that are the same in all steps: an argument of these, so that runs share a program."""

  train_key: jax.Array
  eval_key: jax.Array
  numbers: dict[str, Any]  # see optim.numbers
  fixed: Any  # see Objective.constants


def keys(seed: int, prng_impl: str) -> jax.Array:
  """Three independent random keys: for initialisation, training and evaluation."""
  return jax.random.split(jax.random.key(seed, impl=prng_impl), 3)


def constants_of(config: ConfigDict, objective: Objective, horizon: int = 0) -> Constants:
  """The Constants of a run, as arrays on the host. horizon: its Timeline's; 0: of an evaluation."""
  train_key = keys(config.seed, config.prng_impl)[1]
  eval_key = keys(config.eval.seed, config.prng_impl)[2]
  numbers = optim.numbers(config.optimizer, horizon) if horizon else {}
  return Constants(train_key, eval_key, numbers, objective.constants(config))


@dataclasses.dataclass(frozen=True)
class Program:
  """The steps of a run before they are compiled. state, batch, eval_carry: ShapeDtypeStructs with
  shardings. constants: arrays, which a compiled step accepts from any device."""

  make_state: Callable[[jax.Array], State]  # of a random key
  train_step: Callable[[State, Any, Constants], tuple[State, dict[str, Any]]]
  eval_step: Callable[..., tuple[dict[str, Mean], Any, Any]]
  state: State
  batch: Any
  constants: Constants
  mesh: jax.sharding.Mesh
  eval_carry: Any

  @property
  def layout(self) -> State:
    return jax.tree.map(lambda x: x.sharding, self.state)

  def lower(self) -> jax.stages.Lowered:
    jitted = jax.jit(
      self.train_step,
      out_shardings=(self.layout, None),
      compiler_options=sharding.compiler_options(self.mesh),
      donate_argnums=0,
    )
    return jitted.lower(self.state, self.batch, sharding.placed(self.constants, self.mesh))

  def lower_evaluation(self) -> jax.stages.Lowered:
    return jax.jit(self.eval_step).lower(
      self.state.params,
      self.eval_carry,
      self.batch,
      jax.ShapeDtypeStruct((), jnp.int32),
      sharding.placed(self.constants, self.mesh),
    )


def program(
  config: ConfigDict, objective: Objective, mesh: jax.sharding.Mesh, timeline: Timeline
) -> Program:
  """Makes the Program of a run on a mesh. Call it outside of jax.set_mesh(mesh) if its devices are
  only described; lower the Program inside, and inside sharding.activation_rules()."""
  if config.optimizer.accumulation > 1 and objective.carry(config.batch_size):
    raise InputError(
      f'objective {config.objective} carries something from step to step, which does not go with '
      f'optimizer.accumulation={config.optimizer.accumulation}; set it to 1.'
    )
  constants = constants_of(config, objective, timeline.horizon)
  params = jax.eval_shape(objective.init, constants.train_key)

  def make_optimizer(numbers):
    return optim.make_optimizer(config.optimizer, timeline.horizon, params, numbers)

  def state_of(params):
    opt_state = make_optimizer(constants.numbers).init(params)
    carry = zeros(objective.carry(config.batch_size))
    return State(jnp.zeros([], jnp.int32), params, opt_state, carry)

  train_step = make_train_step(
    objective,
    make_optimizer,
    moment_of=timeline.at,
    accumulation=config.optimizer.accumulation,
    frozen=optim.frozen(config.optimizer, params),
    skip=config.optimizer.skip_nonfinite > 0,
    grows=config.optimizer.batch_warmup > 0,
    by_device=_by_device(config, objective, mesh),
  )
  rows = sharding.batch_sharding(mesh)
  shapes = jax.eval_shape(state_of, params)
  state = State(
    sharding.placed(shapes.step, mesh),
    sharding.placed(params, mesh),
    sharding.placed(shapes.opt_state, mesh, params),
    sharding.like(shapes.carry, rows),
  )
  batch = sharding.like(objective.spec(config.batch_size), rows)

  def make_state(key):
    return state_of(objective.init(key))

  return Program(
    make_state=make_state,
    train_step=layers.traced_in(config.model.dtype, train_step),
    eval_step=layers.traced_in(config.model.dtype, make_eval_step(objective)),
    state=state,
    batch=batch,
    constants=constants,
    mesh=mesh,
    eval_carry=sharding.like(objective.eval_carry(config.batch_size), rows),
  )


def _by_device(config, objective, mesh):
  """gradients.over_devices for a run, or None if XLA splits the step."""
  sums, gather = config.mesh.sums, config.mesh.gather
  if gradients.shards(mesh, gather) == 1 or sums == 'compiler':
    return None
  # A loss that compares rows needs all of them, and old versions of JAX may not split this mesh.
  if objective.rows_meet or not gradients.fits(mesh, gather):
    log.info('gradients are summed as with mesh.sums=compiler')
    return None
  return functools.partial(
    gradients.over_devices,
    mesh=mesh,
    sums=config.model.dtype if sums == 'model' else sums,
    gather=gather,
    slices=config.mesh.slices,
  )


def make_train_step(
  objective: Objective,
  make_optimizer: Callable[[Any], optax.GradientTransformation],
  *,
  moment_of: Callable[[Any], Moment] = lambda step: Moment(),
  accumulation: int = 1,
  frozen: Any = None,
  skip: bool = False,
  grows: bool = False,
  by_device: Callable[[Gradient], Gradient] | None = None,
) -> Callable[[State, Any, Constants], tuple[State, dict[str, Any]]]:
  """Makes train_step(state, batch, constants) -> (state, {name: Mean or scalar}). make_optimizer:
  of constants.numbers. moment_of: Timeline.at. frozen: a tree of booleans, True without a gradient.
  skip: if loss or gradient are not finite, only the step's number changes; metrics then have
  `module_norms`. With accumulation > 1 each term is divided by its weight in the whole batch.
  grows: see gradients.accumulated. by_device: gradients.over_devices, or None."""
  weights = objective.loss_weights

  def train_step(state, batch, constants):
    corrupt_key, dropout_key = jax.random.split(jax.random.fold_in(constants.train_key, state.step))
    with jax.named_scope('corruption'):
      batch = objective.prepare(batch, corrupt_key, moment_of(state.step))

    batch_weights = None
    if accumulation > 1 or by_device:
      # Only weights are used, which depend on the batch alone: XLA drops the forward pass.
      terms, _ = objective.terms(
        state.params, batch, dropout_key, True, state.carry, constants.fixed
      )
      batch_weights = {name: terms[name].weight for name in weights}
    trained, frozen_params = optim.split(state.params, frozen)

    # `others` are an argument, since over_devices must tell a shard_map how each array is split.
    def loss_fn(trained, batch, rng, carry, others):
      frozen_params, batch_weights, fixed = others
      params = optim.merge(trained, frozen_params)
      terms, carry = objective.terms(params, batch, rng, True, carry, fixed)
      return _loss(terms, weights, batch_weights), (terms, carry)

    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    if accumulation > 1:
      grad_fn = gradients.accumulated(grad_fn, accumulation, grows)
    if by_device:
      grad_fn = by_device(grad_fn)
    others = frozen_params, batch_weights, constants.fixed
    (loss, (terms, carry)), grads = grad_fn(trained, batch, dropout_key, state.carry, others)
    with jax.named_scope('optimizer'):
      optimizer = make_optimizer(constants.numbers)
      new, opt_state, norm = _updated(objective, optimizer, grads, state.opt_state, trained)
    after = State(state.step + 1, optim.merge(new, frozen_params), opt_state, carry)
    metrics = terms | {'loss': loss, 'grad_norm': optax.tree.norm(grads)}
    metrics |= {'update_norm': norm, 'tokens': _real_tokens(batch), 'seen': objective.counts(batch)}
    if skip:
      finite = jnp.isfinite(loss) & jnp.isfinite(metrics['grad_norm'])
      before = dataclasses.replace(state, step=after.step)
      after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before)
      metrics['module_norms'] = module_norms(grads)
    return after, metrics

  return train_step


def _real_tokens(batch):
  """How many tokens of a batch are no padding, over all of its positions."""
  real = batch['segment_ids'] > 0
  return Mean(jnp.sum(real, dtype=jnp.float32), jnp.float32(real.size))


def _loss(terms, weights, batch_weights):
  """The sum of the terms' means, each times its weight in the loss. batch_weights: {term: weight of
  the whole batch, by which its total is divided}; None: `terms` are of the whole batch."""
  loss = 0
  for name, factor in weights.items():
    weight = jax.lax.stop_gradient(batch_weights[name] if batch_weights else terms[name].weight)
    loss += factor * terms[name].total / jnp.maximum(weight, 1e-6)
  return loss


def _updated(objective, optimizer, grads, opt_state, trained):
  """(parameters, optimizer state, norm of the change) after a step of the optimizer."""

  def update(params):
    updates, new_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), new_state

  new, new_state = objective.apply_update(trained, update)
  # Not the norm of `updates`: XLA would compute all of them twice to add them up.
  return new, new_state, optax.tree.norm(jax.tree.map(jnp.subtract, new, trained))


def module_norms(gradients: Any) -> dict[str, jax.Array]:
  """The norm of each module's gradient: {'encoder/layer_0': norm, ...}."""
  modules = {}
  for path, x in jax.tree_util.tree_leaves_with_path(gradients):
    parts = sharding.path_name(path).split('/')
    modules.setdefault('/'.join(parts[:-1][:2] or parts), []).append(x)
  return {name: optax.tree.norm(leaves) for name, leaves in modules.items()}


def make_eval_step(objective: Objective) -> Callable[..., tuple[dict[str, Mean], Any, Any]]:
  """Makes eval_step(params, carry, batch, index, constants) -> (terms, predictions, next carry).
  Random keys depend on the batch's number `index` alone, so all evaluations have the same."""

  def eval_step(params, carry, batch, index, constants):
    batch = objective.prepare(batch, jax.random.fold_in(constants.eval_key, index), EVALUATION)
    # No batch has the number 2**32 - 1, so these keys differ from the keys of the corruption.
    key = jax.random.fold_in(jax.random.fold_in(constants.eval_key, 2**32 - 1), index)
    outputs = objective.predict(params, batch)
    terms, carry = objective.terms(params, batch, key, False, carry, constants.fixed)
    return terms, outputs, carry

  return eval_step
