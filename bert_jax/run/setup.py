"""A run before its first step: the steps are compiled, and the state is made or restored."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Mapping
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import files, hosts, models, sharding, step
from bert_jax.run import (
  evaluation,
  initialization,
  speed,
  spikes,
  stopping,
  tally,
)
from bert_jax.run.inputs import Inputs, check_continues
from bert_jax.tasks import TASKS
from bert_jax.workdir import checkpoint, contents, lock, records

log = logging.getLogger('bert_jax')


@dataclasses.dataclass
class Run:
  """Everything that the loop needs: the compiled steps, their arrays, and where to save them."""

  inputs: Inputs
  train_step: Any
  eval_step: Any  # None: nothing is evaluated
  constants: step.Constants
  empty_carry: Any  # the carry at the start of an evaluation
  rates: np.ndarray  # the learning rate of each step
  checkpoints: checkpoint.Checkpoints
  results: Mapping[str, float]  # metrics of the newest evaluation
  tally: tally.Tally
  clock: speed.Clock
  watch: stopping.Watch


def ended(inputs):
  """Restores a run that has ended in its workdir: (State, metrics of its last evaluation). None if
  the config leaves something to do. Nothing is compiled or written."""
  beginning, workdir = inputs.beginning, inputs.workdir
  config = workdir / contents.CONFIG
  has_ended = (
    inputs.in_workdir
    and files.exists(config)
    and (
      (end := records.read_summary(workdir)).state in records.ENDED
      and end.step == beginning.meta['step']
      and config_lib.flatten(contents.read_config(workdir)) == config_lib.flatten(inputs.config)
      and bool(beginning.meta['metrics']) == bool(inputs.eval_batches)
    )
  )
  if hosts.total(not has_ended):
    return None
  program = step.program(inputs.config, inputs.objective, inputs.mesh, inputs.timeline)
  check_continues(inputs, program)
  with contextlib.closing(checkpoint.Checkpoints(workdir)) as checkpoints:
    state, meta = checkpoints.restore(program.state)
  if meta['seal'] != beginning.meta['seal']:  # the newest is damaged
    return None
  how = 'finished' if meta['step'] == inputs.steps else 'stopped early'
  log.info('this run has %s, at step %d', how, meta['step'])
  return state, meta['metrics']


def prepare(inputs: Inputs, stack: contextlib.ExitStack, started: float) -> tuple[Run, step.State]:
  """Compiles the steps, claims the workdir and makes or restores the state.
  started: time.monotonic() when the run began."""
  config, mesh, beginning = inputs.config, inputs.mesh, inputs.beginning
  program = step.program(config, inputs.objective, mesh, inputs.timeline)
  weights = None
  if beginning.continues:
    check_continues(inputs, program)
  elif beginning.folder:
    weights = initialization.load_weights(beginning, config, inputs.objective, mesh)
    initialization.names_taken(program.state.params, *weights)  # or an InputError
  if hosts.first():
    stack.enter_context(lock.held(inputs.workdir))
  check_newest(inputs)
  if hosts.first():
    remarks = TASKS[config.objective].remarks(config, inputs.tokenizer, inputs.sources)
    if remarks:
      log.warning('the data and the settings:%s', ''.join(f'\n  - {x}' for x in remarks))
  train_step, eval_step, state = compiled(inputs, program, weights)
  hosts.wait('compiled')
  # Until here SIGTERM has ended the run at once, and Ctrl-C as soon as both steps were compiled.
  signalled = stack.enter_context(stopping.stop_signals())
  checkpoints = open_workdir(inputs)
  stack.enter_context(contextlib.closing(checkpoints))
  state, meta = first_state(inputs, program, checkpoints, state)
  parameters = models.count_parameters(state.params)
  costs = {'parameters': parameters, 'flops_per_step': flops_of(inputs)}
  contents.write_facts(inputs.workdir, config, inputs.sources, mesh, costs)
  seen = spikes.Spikes.from_meta(config.spikes, checkpoints, meta)
  run = Run(
    inputs,
    train_step,
    eval_step,
    sharding.put(program.constants, mesh),
    evaluation.empty_carry(inputs.objective, config, mesh),
    inputs.timeline.rates(np.arange(inputs.steps)),
    checkpoints,
    meta.get('metrics', {}),
    tally.Tally.from_meta(meta, config.batch_size, inputs=inputs, spikes=seen),
    speed.Clock(flops_of(inputs)),
    stopping.Watch(config, mesh, started, signalled),
  )
  return run, state


def compiled(inputs: Inputs, program: step.Program, weights: Any) -> tuple[Any, Any, Any]:
  """Compiles (training step, evaluation step or None, State of step 0 or None). None: nothing is
  evaluated; the run continues from a checkpoint. weights: see new_state."""
  config = inputs.config
  log.info('compiling the steps')
  begun = time.perf_counter()
  # Both are traced before one is compiled, since tracing shows mistakes of an objective.
  lowered = program.lower(), inputs.eval_batches and program.lower_evaluation()
  # The state is dispatched here, and computed while the steps are compiled.
  state = None if inputs.beginning.continues else new_state(inputs, program, weights)
  with futures.ThreadPoolExecutor() as threads:
    train_step, eval_step = threads.map(lambda x: x and x.compile(), lowered)
  log.info('%s', sharding.describe(program.state.params, inputs.mesh, config.log.parameters))
  log.info(
    'mesh %s; step compiled in %.1f s: %s, %.3g FLOPs; there are %d steps of %d rows, and metrics '
    'every %d',
    dict(inputs.mesh.shape),
    time.perf_counter() - begun,
    memory(train_step),
    flops_of(inputs),
    inputs.steps,
    config.batch_size,
    config.log.every,
  )
  return train_step, eval_step, state


def check_newest(inputs):
  """Raises Busy if another run has saved a checkpoint in the workdir since this one looked for the
  newest, which was before it held the lock."""
  hosts.wait('locked')
  then = inputs.beginning.meta if inputs.in_workdir else None
  now = checkpoint.newest_meta(inputs.workdir)
  if (now and now['seal']) != (then and then['seal']):
    raise lock.Busy(
      f'another run has trained in {inputs.workdir} while this one was reading; start it again.'
    )


def flops_of(inputs):
  """Floating-point operations of a training step: three forward passes, two for the backward."""
  return 3 * inputs.objective.flops(inputs.config.batch_size)


def open_workdir(inputs):
  """Writes the config and the vocabulary of a run; returns its Checkpoints."""
  config, workdir = inputs.config, inputs.workdir
  if hosts.first():
    if not inputs.in_workdir and files.exists(workdir / contents.CONFIG):
      log.info('an earlier run in %s has left no checkpoint: this one begins anew', workdir)
    contents.claim(workdir, config)
    if not inputs.in_workdir:
      inputs.tokenizer.save(workdir)
  hosts.wait('claimed')
  hosts.exists(workdir / contents.CONFIG)
  data = inputs.sources['eval'].fingerprint if inputs.eval_batches else ''
  judged_by = f'{config.checkpoint.best_metric} {config.checkpoint.best_mode} {data}'
  judged_by += ''.join(f' {x}' for x in config_lib.judged_otherwise(config))
  rollback = config.spikes.rollback
  return checkpoint.Checkpoints(workdir, config.checkpoint, inputs.identity, judged_by, rollback)


def first_state(
  inputs: Inputs,
  program: step.Program,
  checkpoints: checkpoint.Checkpoints,
  state: step.State | None,
) -> tuple[step.State, dict]:
  """The State that a run begins with, and the metadata of its checkpoint ({}: there is none).
  state: the State of step 0, used unless the run continues from a checkpoint."""
  meta = {}
  if inputs.beginning.continues:
    log.info('restoring the checkpoint of step %d', inputs.beginning.meta['step'])
    with contextlib.ExitStack() as stack:
      source = checkpoints
      if not inputs.in_workdir:
        source = checkpoint.Checkpoints(inputs.beginning.folder)
        stack.enter_context(contextlib.closing(source))
      state, meta = source.restore(program.state)
    log.info('continuing at step %d of %d', meta['step'], inputs.steps)
  if not inputs.in_workdir:
    checkpoints.best['step'] = meta.get('step', 0)
  return state, meta


def new_state(inputs, program, weights=None):
  """Makes the State of step 0. weights: what initialization.load_weights returns, or None."""
  init_key, _, _ = step.keys(inputs.config.seed, inputs.config.prng_impl)
  state = jax.jit(program.make_state, out_shardings=program.layout)(init_key)
  if weights:
    params = initialization.warm_start(state.params, *weights)
    count = inputs.config.model.new_top_layers
    params = initialization.with_new_top(params, state.params, count)
    state = dataclasses.replace(state, params=params)
  return state


def carrying_nothing(state: step.State) -> step.State:
  """The State with a carry of zeros, as at the first step of a run."""
  zeros = jax.tree.map(lambda x: jnp.zeros_like(x, device=x.sharding), state.carry)
  return dataclasses.replace(state, carry=zeros)


def memory(compiled):
  """The memory of a compiled step on each device, as a text."""
  sizes = compiled.memory_analysis()
  if sizes is None:
    return 'memory unknown'
  return (
    f'{sizes.argument_size_in_bytes / 2**20:,.0f} MiB of state and batch, '
    f'{sizes.temp_size_in_bytes / 2**20:,.0f} MiB of temporaries per device'
  )
