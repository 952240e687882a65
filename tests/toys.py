"""Objectives of a few numbers that carry something or are given something, for tests of a step."""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import sharding, step
from bert_jax.metrics import mean
from bert_jax.objectives import base
from bert_jax.objectives.encode import row_spec


class Running(base.Objective):
  """Guesses the mean id of each row from the running mean of the rows before it in its lane."""

  loss_weights = {'running': 1.0}
  metrics = ('running',)

  def spec(self, batch_size):
    return row_spec(batch_size, 4)

  def init(self, rng):
    return {'slope': jnp.ones(1), 'offset': jnp.zeros(1)}

  def carry(self, batch_size):
    return {'mean': jax.ShapeDtypeStruct((batch_size,), jnp.float32)}

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    x_B = batch['input_ids'].mean(axis=1)
    guess_B = params['slope'] * carry['mean'] + params['offset']
    terms = {'running': mean((guess_B - x_B) ** 2, jnp.ones_like(x_B))}
    return terms, {'mean': carry['mean'] / 2 + x_B / 2}


class Taught(Running):
  """Its one number goes to the teacher's, scaled by a number that has no gradient at 0."""

  def __init__(self, teacher=3.0):
    self.teacher = teacher

  def carry(self, batch_size):
    return {}

  def constants(self, config):
    return {'teacher': {'kernel': np.float32([self.teacher])}}

  def init(self, rng):
    return {'student': jnp.zeros(1), 'scale': jnp.zeros(1)}

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    difference = params['student'] - constants['teacher']['kernel'] + jnp.sqrt(params['scale'])
    return {'running': mean(difference**2, jnp.ones(1))}, carry


def load(spec, *settings):
  """The config of a file with settings: texts of one NAME=VALUE or several, with blanks between."""
  return config_lib.load(spec, [f'--config.{x}' for text in settings for x in text.split()])


ADAMW = """
  batch_size=8 steps=10 epochs=0 optimizer.name=adamw optimizer.warmup=0 optimizer.no_decay=
  optimizer.learning_rate=0.1 optimizer.weight_decay=0"""


def config_of(*overrides):
  return load('configs/pretrain.py:runlocal', ADAMW, *overrides)


def batch_of(number):
  """Batch `number` of Running: the ids of a row are all the same."""
  ids = np.tile(np.arange(8, dtype=np.int32)[:, None] + number, 4)
  return dict.fromkeys(row_spec(8, 4), ids)


def steps_of(program, state, numbers, constants=None):
  """(State, metrics of the last step) after the steps of these numbers."""
  with jax.set_mesh(program.mesh), sharding.activation_rules():
    compiled = program.lower().compile()
    for number in numbers:
      batch = {k: jax.device_put(x, program.batch[k].sharding) for k, x in batch_of(number).items()}
      state, metrics = compiled(state, batch, constants or program.constants)
  return state, metrics


def first_state(program):
  with jax.set_mesh(program.mesh):
    return jax.jit(program.make_state, out_shardings=program.layout)(jax.random.key(0))


def run_on(*sizes):
  """Three steps of Running on a mesh (data, fsdp, tensor): [loss, carry, the shards of it]."""
  mesh = sharding.make_mesh(*sizes, jax.devices()[: np.prod(sizes)])
  config = config_of()
  program = step.program(config, Running(), mesh, config_lib.timeline_of(config, 10))
  state, metrics = steps_of(program, first_state(program), range(3))
  carried = state.carry['mean']
  shards = sorted(np.asarray(shard.data).tolist() for shard in carried.addressable_shards)
  return [float(metrics['loss']), np.asarray(carried).tolist(), shards]
