"""The run and its loop. What happens before the first step is in run_setup.py.

    python -m bert_jax.train --config configs/pretrain.py:size=base --workdir W [--config.seed=1]

A run is a function of (config, step): the batch, the masks and the dropout of step n follow from
the seed and n alone. Started again in the same workdir it continues from the newest good checkpoint
and ends with the same bits as if it had never stopped.
"""

import argparse
import contextlib
import logging
import math
import signal
import threading
from pathlib import Path

import jax

from bert_jax import config as config_lib
from bert_jax import evaluate, hosts, metrics, run_setup, sharding
from bert_jax.errors import InputError
from bert_jax.speed import Clock
from bert_jax.training_log import Progress, Writer

log = logging.getLogger('bert_jax')


def train(config, workdir):
  """Runs a config in a workdir -> (State, final metrics {name: float}).
  The order in which a run starts: 1. the newest checkpoint of the workdir, 2. that of
  config.resume_from, 3. weights from config.init_from, 4. scratch. Mistakes in the input are errors
  before anything is compiled or written. Asked to stop (SIGTERM, Ctrl-C), it finishes the step,
  saves, and raises KeyboardInterrupt."""
  config_lib.show_log()
  hosts.check()
  inputs = run_setup.read_inputs(config, Path(workdir).expanduser())
  with contextlib.ExitStack() as stack:
    stopping = stack.enter_context(stop_signals())
    stack.enter_context(jax.set_mesh(inputs.mesh))
    stack.enter_context(sharding.activation_rules())
    run, state = run_setup.prepare(inputs, stack)
    return loop(run, state, stopping)


def loop(run, state, stopping):
  """Trains from a State to the end -> (State, metrics of the last evaluation)."""
  config, steps, checkpoints = run.inputs.config, run.inputs.steps, run.checkpoints
  workdir, start = run.inputs.workdir, int(state.step)
  window, pending, stop, early = {}, None, False, False
  stops, clock = hosts.Vote(run.inputs.mesh), Clock(run_setup.flops_of(run.inputs))
  with contextlib.ExitStack() as stack:
    writer = Writer(workdir, start, config.log.tensorboard)
    stack.enter_context(contextlib.closing(writer))
    progress = Progress(steps, start)
    stack.enter_context(contextlib.closing(progress))
    if evaluates(run, start) and not run.results and run.inputs.in_workdir:
      evaluate_now(run, state, writer, progress)  # since that was cut off
    if run.eval_step and start < steps and patience_is_over(config, checkpoints, start):
      log.info('this run has stopped early, at step %d', start)
      return state, run.results

    for number in range(start + 1, steps + 1):
      state, out = run.train_step(state, run.inputs.batches[number - 1], run.constants)
      clock.steps += 1
      clock.batches += run.inputs.batches.filled(number - 1)
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


def patience_is_over(config, checkpoints, number):
  """Has the run been evaluated eval.patience times without a better checkpoint.best_metric?"""
  patience, every = config.eval.patience, config.eval.every
  return patience > 0 and (number - checkpoints.best['step']) // every >= patience


def take(run, window, out, number):
  """Adds a step's metrics to `window`, the sums since the last line of the log, and its counts to
  run.seen. Returns the window. InputError if the loss or the gradient's norm is not finite."""
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
  count = 0 if last else config.eval.batches
  run.results, answers = evaluate.run(
    run.eval_step, state.params, run.empty_carry, inputs.eval_batches, run.constants, count
  )
  writer.write(number, 'eval', run.results)
  baselines = inputs.eval_batches.source.baselines
  progress.line(f'step {number}/{inputs.steps}  eval  {metrics.health(run.results, baselines)}')
  if run.checkpoints.is_best(run.results, number) or config.eval.patience > 0 or saved:
    run.checkpoints.save(state, run.results, run.seen)
  early = not last and patience_is_over(config, run.checkpoints, number)
  if answers and (early or last):
    folder = evaluate.folder_of(inputs.workdir, config.data.eval, number)
    evaluate.write(folder, inputs.eval_batches.source, answers, run.results)
  return early


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
    '--config', required=True, metavar='FILE[:ARGS]', help='such as configs/pretrain.py:size=tiny'
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
