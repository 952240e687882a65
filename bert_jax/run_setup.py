"""A run before its first step: the input is read and checked, the steps are compiled, and the state
is made or restored."""

import contextlib
import dataclasses
import logging
import math
import time
from pathlib import Path
from typing import Any

import jax

from bert_jax import (
  checkpoint,
  evaluate,
  hosts,
  initialization,
  manifest,
  optim,
  sharding,
  step,
  workdirs,
)
from bert_jax import config as config_lib
from bert_jax.errors import InputError
from bert_jax.rows.batches import Batches
from bert_jax.rows.growing_batches import Growth
from bert_jax.tasks import TASKS
from bert_jax.tokenizers import run_tokenizer

log = logging.getLogger('bert_jax')


@dataclasses.dataclass
class Inputs:
  """What a run is made of, before anything is compiled or written."""

  config: Any  # with everything filled in that only the data can tell
  workdir: Path
  beginning: initialization.Beginning
  mesh: jax.sharding.Mesh
  tokenizer: Any
  objective: Any
  sources: dict  # {split: Source}
  batches: Batches
  eval_batches: Batches | None
  steps: int

  @property
  def in_workdir(self):
    """Does the run continue in the workdir that it was stopped in?"""
    return self.beginning.continues and self.beginning.folder == self.workdir

  @property
  def identity(self):
    data = self.sources['train'].fingerprint
    return {'config': config_lib.fingerprint(self.config), 'data': data}


@dataclasses.dataclass
class Run:
  """All that the loop needs: the compiled steps, their arrays, and the place to save them."""

  inputs: Inputs
  train_step: Any
  eval_step: Any  # None: nothing is evaluated
  constants: step.Constants
  empty_carry: Any  # that an evaluation begins with
  schedule: Any  # step -> learning rate
  checkpoints: checkpoint.Checkpoints
  results: dict  # metrics of the newest evaluation
  seen: dict  # counts since step 0


def read_inputs(config, workdir):
  """The Inputs of a run, or an InputError."""
  config = config_lib.check(config)
  beginning = initialization.beginning_of(config, workdir)
  config = initialization.adopt_model(config, beginning)
  mesh = sharding.mesh_of(config)
  task = TASKS[config.objective]
  config = config_lib.check(task.resolve(config))
  workdirs.check(workdir, config)
  tokenizer = run_tokenizer.of_run(config, beginning.folder, lambda: task.texts(config))
  sources = task.sources(config, tokenizer)
  objective = task.objective(config, tokenizer)
  if config.checkpoint.best_metric not in ('', *objective.metrics):
    raise InputError(
      f'checkpoint.best_metric {config.checkpoint.best_metric!r} is not among the metrics of this '
      f'objective: {", ".join(objective.metrics)}.'
    )
  common = config, tokenizer, objective, mesh
  batches = evaluate.batches_of(
    sources['train'], *common, seed=config.seed, growth=growth_of(config)
  )
  eval_batches = None
  if 'eval' in sources:
    eval_batches = evaluate.batches_of(sources['eval'], *common)
  else:
    log.warning('nothing is evaluated: data.eval is empty')
  steps = config.steps or math.ceil(config.epochs * len(sources['train']) / config.batch_size)
  return Inputs(
    config, workdir, beginning, mesh, tokenizer, objective, sources, batches, eval_batches, steps
  )  # fmt: skip


def growth_of(config):
  """The Growth of a run's batches, or None if all are full."""
  optimizer = config.optimizer
  if not optimizer.batch_warmup:
    return None
  horizon = round(optimizer.horizon * config.steps)
  steps = optim.steps_of(optimizer.batch_warmup, horizon)
  return Growth(config.batch_size, optimizer.accumulation, steps)


def prepare(inputs, stack):
  """Compiles the steps, claims the workdir and makes or restores the state -> (Run, State)."""
  config, mesh, beginning = inputs.config, inputs.mesh, inputs.beginning
  program = step.program(config, inputs.objective, mesh, inputs.steps)
  weights = None
  if beginning.continues:
    moves = not inputs.in_workdir
    manifest.check_continues(beginning.meta, program.state, inputs.identity, inputs.steps, moves)
  elif beginning.folder:
    weights = initialization.load_weights(beginning, config, inputs.objective, mesh)
    initialization.names_taken(program.state.params, *weights)  # or an InputError
  started = time.perf_counter()
  train_step, eval_step = program.lower().compile(), None
  if inputs.eval_batches:
    eval_step = program.lower_evaluation().compile()
  log.info('%s', sharding.describe(program.state.params, mesh))
  log.info(
    'mesh %s; step compiled in %.1f s: %s, %.3g FLOPs',
    dict(mesh.shape), time.perf_counter() - started, memory(train_step), flops_of(inputs),
  )  # fmt: skip
  hosts.wait('compiled')
  checkpoints = open_workdir(inputs)
  stack.enter_context(contextlib.closing(checkpoints))
  state, results, seen = first_state(inputs, program, checkpoints, weights)
  workdirs.write_facts(inputs.workdir, inputs.sources, mesh)
  constants = sharding.put(program.constants, mesh)
  empty_carry = evaluate.empty_carry(inputs.objective, config, mesh)
  run = Run(
    inputs, train_step, eval_step, constants, empty_carry, program.schedule, checkpoints, results,
    seen,
  )  # fmt: skip
  return run, state


def flops_of(inputs):
  """Floating-point operations of a training step: backward is twice the forward pass."""
  return 3 * inputs.objective.flops(inputs.config.batch_size)


def open_workdir(inputs):
  """Writes the config and the vocabulary of a run -> its Checkpoints."""
  config, workdir = inputs.config, inputs.workdir
  if hosts.first():
    workdirs.claim(workdir, config)
    if not inputs.in_workdir:
      inputs.tokenizer.save(workdir)
  hosts.wait('claimed')
  hosts.exists(workdir / workdirs.CONFIG)
  data = inputs.sources['eval'].fingerprint if inputs.eval_batches else ''
  judged_by = f'{config.checkpoint.best_metric} {config.checkpoint.best_mode} {data}'
  return checkpoint.Checkpoints(workdir, config.checkpoint, inputs.identity, judged_by)


def first_state(inputs, program, checkpoints, weights):
  """(State, metrics of its evaluation, counts since step 0) that a run begins with."""
  results, seen = {}, {}
  if inputs.beginning.continues:
    with contextlib.ExitStack() as stack:
      source = checkpoints
      if not inputs.in_workdir:
        source = checkpoint.Checkpoints(inputs.beginning.folder)
        stack.enter_context(contextlib.closing(source))
      state, meta = source.restore(program.state)
    results, seen = meta['metrics'], meta.get('seen', {})
    log.info('continuing at step %d of %d', int(state.step), inputs.steps)
  else:
    init_key, _, _ = step.keys(inputs.config.seed, inputs.config.prng_impl)
    state = jax.jit(program.make_state, out_shardings=program.layout)(init_key)
    if weights:
      params = initialization.warm_start(state.params, *weights)
      state = dataclasses.replace(state, params=params)
  if not inputs.in_workdir:
    checkpoints.best['step'] = int(state.step)
  return state, results, seen


def memory(compiled):
  """Memory of a compiled step on each device, as a sentence."""
  sizes = compiled.memory_analysis()
  if sizes is None:
    return 'memory unknown'
  return (
    f'{sizes.argument_size_in_bytes / 2**20:,.0f} MiB of state and batch, '
    f'{sizes.temp_size_in_bytes / 2**20:,.0f} MiB of temporaries per device'
  )
