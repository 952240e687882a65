"""A run before its first step: the steps are compiled, and the state is made or restored."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import files, hosts, models, sharding, step
from bert_jax.command_line import aside
from bert_jax.copies import keep_compiled
from bert_jax.errors import log
from bert_jax.run import evaluation, frozen, memory, speed, stopping, warm_start
from bert_jax.run.initialization import WEIGHTS
from bert_jax.run.inputs import Inputs, check_continues
from bert_jax.run.tally import Tally
from bert_jax.tasks import TASKS
from bert_jax.timeline import Moment
from bert_jax.workdir import checkpoint, contents, lock, records


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
  tally: Tally
  clock: speed.Clock
  watch: stopping.Watch


def ended(inputs: Inputs) -> tuple[step.State, Mapping[str, float]] | None:
  """(State, metrics) of a run that has ended in its workdir; None if something is left to do."""
  if hosts.total(not _has_ended(inputs)):
    return None
  program = step.program(inputs.config, inputs.objective, inputs.mesh, inputs.timeline)
  check_continues(inputs, program)
  with contextlib.closing(checkpoint.Checkpoints(inputs.workdir)) as checkpoints:
    state, meta = checkpoints.restore(program.state)
  if meta['seal'] != inputs.start.meta['seal']:  # the newest is damaged
    return None
  how = 'finished' if meta['step'] == inputs.steps else 'stopped early'
  log.info('this run has %s, at step %d', how, meta['step'])
  best = checkpoint.best_of(inputs.workdir, meta['best'], inputs.config.checkpoint)
  return state, best.get('metrics', meta['metrics'])


def _has_ended(inputs):
  """Whether the workdir holds a run of this very config with its last state and evaluation."""
  if not inputs.in_workdir or not files.exists(inputs.workdir / contents.CONFIG):
    return False
  newest, summary = inputs.start.meta, records.read_summary(inputs.workdir)
  config = contents.read_config(inputs.workdir)
  return (
    summary.has_ended
    and (summary.step, summary.steps) == (newest['step'], inputs.steps)
    and config_lib.flatten(config) == config_lib.flatten(inputs.config)
    and bool(newest['metrics']) == bool(inputs.eval_batches)
  )


def prepare(inputs: Inputs, stack: contextlib.ExitStack, started: float) -> tuple[Run, step.State]:
  """Compiles the steps, claims the workdir, and makes or restores the state."""
  keep_compiled()
  config, mesh, start = inputs.config, inputs.mesh, inputs.start
  program = step.program(config, inputs.objective, mesh, inputs.timeline)
  weights = None
  if start.continues:
    check_continues(inputs, program)
  elif start.kind == WEIGHTS:
    weights = warm_start.load_weights(start, config, inputs.objective, mesh)
    params = program.state.params
    taken = warm_start.names_taken(params, weights.params, weights.other_labels)
    warm_start.warn_of_head(params, taken)
  if hosts.first():
    stack.enter_context(lock.held(inputs.workdir))
  check_newest(inputs)
  if hosts.first():
    for remark in TASKS[config.objective].remarks(config, inputs.tokenizer, inputs.sources):
      log.warning(remark)
  train_step, eval_step, state = compiled(inputs, program, weights)
  hosts.wait('compiled')
  # Until here a signal has ended the run at once.
  signalled = stack.enter_context(stopping.stop_signals())
  checkpoints = open_workdir(inputs)
  stack.enter_context(contextlib.closing(checkpoints))
  state, meta = first_state(inputs, program, checkpoints, state)
  if inputs.eval_batches:
    evaluation.count_part(inputs.eval_batches, config.eval.batches)
    inputs.sources['eval'].measured = frozen.measured(inputs, state.params)
  write_facts(inputs, models.count_parameters(state.params))
  run = Run(
    inputs,
    train_step,
    eval_step,
    constants=sharding.put(program.constants, mesh),
    empty_carry=evaluation.empty_carry(inputs.objective, config, mesh),
    rates=inputs.timeline.rates(np.arange(inputs.steps)),
    checkpoints=checkpoints,
    results=meta.get('metrics', {}),
    tally=Tally.from_meta(meta, inputs),
    clock=speed.Clock(flops_of(inputs)),
    watch=stopping.Watch(config, mesh, started, signalled),
  )
  return run, state


def compiled(inputs: Inputs, program: step.Program, weights: Any) -> tuple[Any, Any, Any]:
  """Compiles (training step, evaluation step or None, State of step 0 or None if the run goes
  on)."""
  log.info('compiling the steps')
  begun = time.perf_counter()
  # The state is made while the steps are traced and compiled.
  begun_state = None if inputs.start.continues else begin_state(inputs, program)
  # Both are traced before one is compiled, since tracing shows mistakes of an objective.
  lowered = [program.lower()]
  if inputs.eval_batches:
    lowered.append(program.lower_evaluation())
  compiling = aside(lambda x: x.compile(), lowered)
  state = None
  if begun_state:
    state = finish_state(inputs, begun_state, weights)
  train_step, *eval_step = compiling
  memory.keep(train_step, inputs.mesh)
  log.info('%s', sharding.describe(program.state.params, inputs.mesh))
  seconds = time.perf_counter() - begun
  log.info(
    f'mesh {dict(inputs.mesh.shape)}; step compiled in {seconds:.1f} s: '
    f'{memory.described(train_step)}, {flops_of(inputs):.3g} FLOPs; '
    f'there are {inputs.steps} steps of {inputs.config.batch_size} rows, and metrics every '
    f'{inputs.log_every}'
  )
  for change in inputs.timeline.changes():
    log.info('%s', change)
  return train_step, eval_step[0] if eval_step else None, state


def check_newest(inputs: Inputs) -> None:
  """Busy if another run has begun in the workdir since it was read as a new one. All processes come
  here after the first one has taken the lock, and wait until they see its file: so every one lists
  the checkpoints in a folder in which the first has made it."""
  hosts.wait('locked')
  hosts.exists(inputs.workdir / lock.NAME)
  if not inputs.in_workdir and checkpoint.newest_meta(inputs.workdir):
    raise lock.Busy(f'another run has trained in {inputs.workdir} meanwhile; start it again.')


def flops_of(inputs: Inputs, moment: Moment | None = None) -> float:
  """FLOPs of a full training step, at a Moment (None: the last): thrice those of a forward pass."""
  return 3 * inputs.objective.flops(inputs.config.batch_size, moment)


def write_facts(inputs: Inputs, parameters: int) -> None:
  """Writes run.json; parameters: how many the run has."""
  line = inputs.timeline
  firsts = sorted({0, *line.jumps()})
  contents.write_facts(
    inputs.workdir,
    inputs.config,
    inputs.sources,
    inputs.mesh,
    inputs.steps,
    parameters=parameters,
    flops_by_stage=[(first, flops_of(inputs, line.at(first))) for first in firsts],
  )


def open_workdir(inputs: Inputs) -> checkpoint.Checkpoints:
  """Writes the config and the vocabulary of a run; returns its Checkpoints."""
  config, workdir = inputs.config, inputs.workdir
  if hosts.first():
    contents.claim(workdir, config, inputs.asked)
    if not inputs.in_workdir:
      inputs.tokenizer.save(workdir)
  hosts.wait('claimed')
  hosts.exists(workdir / contents.CONFIG)
  settings = config.checkpoint
  data = inputs.sources['eval'].fingerprint if inputs.eval_batches else ''
  judged_by = [settings.best_metric, settings.best_mode, data]
  for name, value in TASKS[config.objective].judged_under(config).items():
    judged_by.append(f'{name}={value}')
  return checkpoint.Checkpoints(workdir, settings, inputs.identity, ' '.join(judged_by))


def first_state(
  inputs: Inputs, program: step.Program, checkpoints: checkpoint.Checkpoints, state: Any
) -> tuple[Any, Mapping[str, Any]]:
  """The State that a run begins with, and the metadata of its checkpoint ({}: `state`)."""
  meta, start = {}, inputs.start
  if start.continues:
    log.info('restoring the checkpoint of step %d', start.meta['step'])
    if inputs.in_workdir:
      state, meta = checkpoints.restore(program.state)
    else:
      folder: Any = start.folder
      with contextlib.closing(checkpoint.Checkpoints(folder)) as source:
        state, meta = source.restore(program.state)
    log.info('continuing at step %d of %d', meta['step'], inputs.steps)
  if not inputs.in_workdir:
    checkpoints.best['since'] = meta.get('step', 0)
  return state, meta


def begin_state(inputs: Inputs, program: step.Program) -> Iterator[step.State]:
  """Begins to make the State of step 0, in a thread; finish_state waits for it."""
  init_key, _, _ = step.keys(inputs.config.seed, inputs.config.prng_impl)
  lowered = jax.jit(program.make_state, out_shardings=program.layout).lower(init_key)
  return aside(lambda x: x.compile()(init_key), [lowered])


def finish_state(inputs: Inputs, begun: Iterator[step.State], weights: Any = None) -> step.State:
  """The State of step 0 that was begun. weights: what warm_start.load_weights returns, or None."""
  state = next(begun)
  params = inputs.objective.with_prior(state.params)
  if weights:
    params = warm_start.warm_start(params, weights.params, weights.other_labels)
  return dataclasses.replace(state, params=params)
