"""The run: set up, compile, loop. Read it from top to bottom.

    python -m bert_jax.train --config configs/pretrain.py:size=base --workdir W [--config.seed=1]

A run is a function of (config, step): the batch, the masks and the dropout of step n follow from
the seed and n alone. Started again in the same workdir it continues from the newest good checkpoint
and ends with the same bits as if it had never stopped.
"""

import argparse
import contextlib
import dataclasses
import logging
import math
import signal
import threading
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
  metrics,
  sharding,
  step,
  workdirs,
)
from bert_jax import config as config_lib
from bert_jax.errors import InputError
from bert_jax.rows import batches as batching
from bert_jax.speed import Clock
from bert_jax.tasks import TASKS
from bert_jax.tokenizers import run_tokenizer
from bert_jax.training_log import Progress, Writer

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
  batches: batching.Batches
  eval_batches: batching.Batches | None
  steps: int

  @property
  def in_workdir(self):
    """Does the run continue in the workdir that it was stopped in?"""
    return self.beginning.continues and self.beginning.folder == self.workdir

  @property
  def identity(self):
    return {
      'config': config_lib.fingerprint(self.config),
      'data': self.sources['train'].fingerprint,
    }


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


def train(config, workdir):
  """Runs a config in a workdir -> (State, final metrics {name: float}).

  The order in which a run starts: 1. the newest checkpoint of the workdir, 2. that of
  config.resume_from, 3. weights from config.init_from, 4. scratch. Mistakes in the input are errors
  before anything is compiled or written. Asked to stop (SIGTERM, Ctrl-C), it finishes the step,
  saves, and raises KeyboardInterrupt.
  """
  config_lib.show_log()
  hosts.check()
  inputs = read_inputs(config, Path(workdir).expanduser())
  with contextlib.ExitStack() as stack:
    stopping = stack.enter_context(stop_signals())
    stack.enter_context(jax.set_mesh(inputs.mesh))
    stack.enter_context(sharding.activation_rules())
    run, state = prepare(inputs, stack)
    return loop(run, state, stopping)


# ---- before the first step -----------------------------------------------------------------------


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
  spec, where = objective.spec(config.batch_size), sharding.batch_sharding(mesh)
  options = {
    'limits': evaluate.limits(config.model, tokenizer),
    'skip_damaged': config.data.skip_damaged,
    'lanes': bool(objective.carry(config.batch_size)),
  }
  batches = batching.Batches(sources['train'], spec, where, seed=config.seed, **options)
  eval_batches = None
  if 'eval' in sources:
    eval_batches = batching.Batches(sources['eval'], spec, where, **options)
  else:
    log.warning('nothing is evaluated: data.eval is empty')
  steps = config.steps or math.ceil(config.epochs * len(sources['train']) / config.batch_size)
  return Inputs(
    config, workdir, beginning, mesh, tokenizer, objective, sources, batches, eval_batches, steps
  )  # fmt: skip


def prepare(inputs, stack):
  """Compiles the steps, claims the workdir and makes or restores the state -> (Run, State)."""
  config, mesh, beginning = inputs.config, inputs.mesh, inputs.beginning
  program = step.program(config, inputs.objective, mesh, inputs.steps)
  weights = None
  if beginning.continues:
    elsewhere = not inputs.in_workdir
    manifest.check_continues(
      beginning.meta, program.state, inputs.identity, inputs.steps, elsewhere
    )
  elif beginning.folder:
    weights = initialization.load_weights(beginning, config, inputs.objective, mesh)
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
  judged_by = ' '.join(
    (config.checkpoint.best_metric, config.checkpoint.best_mode,
     inputs.sources['eval'].fingerprint if inputs.eval_batches else '')
  )  # fmt: skip
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


# ---- the loop ------------------------------------------------------------------------------------


def loop(run, state, stopping):
  """Trains from a State to the end -> (State, metrics of the last evaluation)."""
  config, steps, checkpoints = run.inputs.config, run.inputs.steps, run.checkpoints
  workdir, start = run.inputs.workdir, int(state.step)
  window, pending, stop, early = {}, None, False, False
  stops, clock = hosts.Vote(run.inputs.mesh), Clock(flops_of(run.inputs))
  with contextlib.ExitStack() as stack:
    writer = Writer(workdir, start, config.log.tensorboard)
    stack.enter_context(contextlib.closing(writer))
    progress = Progress(steps, start)
    stack.enter_context(contextlib.closing(progress))
    if evaluates(run, start) and not run.results and run.inputs.in_workdir:
      evaluate_now(run, state, writer, progress)  # since that was cut off
    if run.eval_step and start < steps and exhausted(config, checkpoints, start):
      log.info('this run has stopped early, at step %d', start)
      return state, run.results

    for number in range(start + 1, steps + 1):
      state, out = run.train_step(state, run.inputs.batches[number - 1], run.constants)
      clock.steps += 1
      # The metrics of a step are fetched while the next one runs.
      if pending is not None:
        window = take(run, window, pending, number - 1)
      pending = out

      stop = stops.cast(stopping())
      final = number == steps or stop
      log_now = final or number % config.log.every == 0
      eval_now = evaluates(run, number)
      save_now = final or due(number, config.checkpoint.every)
      if log_now or eval_now or save_now:
        window, pending = take(run, window, pending, number), None
      shown = ''
      if log_now:
        shown = log_line(run, window, clock, number, writer, progress)
        window = {}
      progress.update(shown)

      clock.pause()
      if save_now:  # before the evaluation, which may fail
        checkpoints.save(state, {}, run.seen)
      if eval_now:
        early = evaluate_now(run, state, writer, progress, save_now)
      clock.go()
      if stop or early:
        break

  checkpoints.wait()
  if early:
    log.info(
      'stopped early: no better %s than at step %d (evaluate --checkpoint best)',
      config.checkpoint.best_metric, checkpoints.best['step'],
    )  # fmt: skip
  elif stop and int(state.step) < steps:
    raise KeyboardInterrupt(
      f'stopped by a signal at step {int(state.step)} of {steps}; the same command continues'
    )
  return state, run.results


def due(number, every):
  return every > 0 and number % every == 0


def evaluates(run, number):
  """Is there an evaluation after step `number`?"""
  every = run.inputs.config.eval.every
  return run.eval_step is not None and (number == run.inputs.steps or due(number, every))


def exhausted(config, checkpoints, number):
  """Has the run been evaluated eval.patience times without a better checkpoint.best_metric?"""
  patience, every = config.eval.patience, config.eval.every
  return patience > 0 and (number - checkpoints.best['step']) // every >= patience


def take(run, window, out, number):
  """The window with a step's metrics added, whose counts go to run.seen; a loss that is not finite
  ends the run here."""
  out = metrics.host_sum(out)
  run.seen = {name: run.seen.get(name, 0.0) + float(n) for name, n in out.pop('seen').items()}
  for name in ('loss', 'grad_norm'):
    if math.isfinite(out[name]):
      continue
    raise InputError(
      f'the {name} is {float(out[name])} at step {number}, so the run stops; the checkpoints in '
      f'{run.inputs.workdir} are from before it. A lower optimizer.learning_rate, more warmup or '
      'float32 usually helps.'
    )
  return metrics.add(window, out)


def log_line(run, window, clock, number, writer, progress):
  """Writes the metrics of the steps since the last line; returns them as text for the bar."""
  batches, baselines = run.inputs.batches, run.inputs.batches.source.baselines
  tokens = window.pop('tokens')
  values = metrics.values(window, baselines)
  speed = clock.read(tokens.total) | {'fill': float(tokens.value)}
  if batches.skip_damaged and (damaged := hosts.total(batches.damaged_rows)):
    speed['damaged_rows'] = damaged
  rate = {'learning_rate': float(run.schedule(number - 1))}
  writer.write(number, 'train', values | rate | speed | run.seen)
  shown = (
    f'{metrics.health(values, baselines)}  {speed["tokens_per_s"]:,.0f} tokens/s  '
    f'MFU {speed["mfu"]:.1%}'
  )
  if progress.bar.disable:
    left = (run.inputs.steps - number) / speed['steps_per_s']
    progress.line(f'step {number}/{run.inputs.steps}  {shown}  ETA {left:.0f} s')
  return shown


def evaluate_now(run, state, writer, progress, saved=True):
  """Evaluates a state, adds that to its checkpoint, or saves one if it is the best. True if the run
  is to stop early. saved: there is a checkpoint of this state already."""
  inputs, config, number = run.inputs, run.inputs.config, int(state.step)
  last = number == inputs.steps
  run.results, answers = evaluate.run(
    run.eval_step,
    state.params,
    run.empty_carry,
    inputs.eval_batches,
    run.constants,
    0 if last else config.eval.batches,
  )
  writer.write(number, 'eval', run.results)
  baselines = inputs.eval_batches.source.baselines
  progress.line(f'step {number}/{inputs.steps}  eval  {metrics.health(run.results, baselines)}')
  if run.checkpoints.is_best(run.results, number) or config.eval.patience > 0 or saved:
    run.checkpoints.save(state, run.results, run.seen)
  early = not last and exhausted(config, run.checkpoints, number)
  if answers and (early or last):
    folder = evaluate.folder_of(inputs.workdir, config.data.eval, number)
    evaluate.write(folder, inputs.eval_batches.source, answers, run.results)
  return early


def memory(compiled):
  """Memory of a compiled step on each device, as a sentence."""
  sizes = compiled.memory_analysis()
  if sizes is None:
    return 'memory unknown'
  return (
    f'{sizes.argument_size_in_bytes / 2**20:,.0f} MiB of state and batch, '
    f'{sizes.temp_size_in_bytes / 2**20:,.0f} MiB of temporaries per device'
  )


@contextlib.contextmanager
def stop_signals():
  """Yields a function: was the run asked to stop? SIGTERM and the first Ctrl-C save and end it; the
  second Ctrl-C ends it at once."""
  asked = threading.Event()
  old = {}
  if threading.current_thread() is threading.main_thread():

    def ask(number, frame):
      if asked.is_set() and number == signal.SIGINT:
        signal.default_int_handler(number, frame)
      asked.set()

    old = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
  try:
    yield asked.is_set
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)


def main(argv=None):
  parser = argparse.ArgumentParser(
    prog='python -m bert_jax.train',
    allow_abbrev=False,
    description='Runs a config in a workdir, or continues the run that is there.',
    epilog='Any field of the config is set as --config.NAME=VALUE, for example '
    '--config.optimizer.learning_rate=3e-4; python -m bert_jax.config lists them all.',
  )
  parser.add_argument(
    '--config',
    required=True,
    metavar='FILE[:ARGS]',
    help='for example configs/pretrain.py:size=tiny,runlocal',
  )
  parser.add_argument('--workdir', default='', help='where the run is written, and resumed from')
  hosts.add_argument(parser)
  args, overrides = parser.parse_known_args(argv)
  with config_lib.command_line(), hosts.together():
    hosts.join(args.distributed)
    config = config_lib.load(args.config, overrides)
    if not args.workdir:
      raise InputError('--workdir is missing; name the folder this run is to be written to.')
    _, results = train(config, args.workdir)
    if hosts.first():
      print(metrics.to_json({'workdir': args.workdir} | results))


if __name__ == '__main__':
  main()
