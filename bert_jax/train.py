"""The run and its loop. What happens before the first step is in run_setup.py.

    python -m bert_jax.train --config configs/pretrain.py:size=base --workdir W [--config.seed=1]

A run is a function of (config, step): the batch, the masks and the dropout of step n follow from
the seed and n alone. Started again in the same workdir it continues from the newest good checkpoint
and ends with the same bits as if it had never stopped.
"""

import argparse
import contextlib
import logging
import time
from pathlib import Path

import jax

from bert_jax import config as config_lib
from bert_jax import hosts, metrics, notebooks, sharding
from bert_jax.command_line import command_line, show_log
from bert_jax.errors import InputError, Paused, in_notebook
from bert_jax.rows.ahead import Ahead
from bert_jax.run import evaluation, setup, stopping, trackers
from bert_jax.run.log import Writer, progress_of
from bert_jax.run.profiling import Profile
from bert_jax.run.summary import Summary
from bert_jax.run.tally import Tally
from bert_jax.workdir import contents, records

log = logging.getLogger('bert_jax')

LONG_WAIT = 0.02  # share of the time for which steps wait for their batches that is worth a word


def train(config, workdir, given=()):
  """Runs a config in a workdir -> (State, final metrics {name: float}).
  The order in which a run starts: 1. the newest checkpoint of the workdir, 2. that of
  config.resume_from, 3. weights from config.init_from, 4. scratch. Mistakes in the input are errors
  before anything is compiled or written. Asked to stop (SIGTERM, Ctrl-C), or after
  config.max_hours, it finishes the step, saves, and raises KeyboardInterrupt. given: names of the
  fields, such as 'model.hidden_size', that the user has set and init_from must not change."""
  started = time.monotonic()
  show_log()
  hosts.check()
  return train_on(setup.read_inputs(config, Path(workdir).expanduser(), given), started)


def train_on(inputs, started):
  """Trains on Inputs -> (State, final metrics), as train. started: time.monotonic() of then."""
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(inputs.mesh))
    stack.enter_context(sharding.activation_rules())
    if ended := setup.ended(inputs):
      if in_notebook() and hosts.first():
        notebooks.show_curve(inputs.workdir)
      return ended
    run, state = setup.prepare(inputs, stack)
    watch = stopping.Watch(inputs.config, inputs.mesh, started, run.signalled)
    return loop(run, state, watch)


def loop(run, state, watch):
  """Trains from a State to the end -> (State, metrics of the last evaluation)."""
  config, steps, checkpoints = run.inputs.config, run.inputs.steps, run.checkpoints
  workdir, start = run.inputs.workdir, int(state.step)
  number, pending, wish, early, cut = start, None, stopping.GO_ON, False, False
  with contextlib.ExitStack() as stack:
    missing = evaluates(run, start) and not run.results and run.inputs.in_workdir  # it was cut off
    writer = Writer(workdir, start, trackers.opened(config, workdir, start), missing)
    stack.enter_context(contextlib.closing(writer))
    summary = Summary(run, writer, start, time.monotonic() - watch.started)
    stack.enter_context(summary)
    progress = progress_of(steps, start, workdir)
    stack.enter_context(contextlib.closing(progress))
    if missing:
      try:
        evaluate_now(run, state, writer, progress, watch)
      except evaluation.Interrupted:
        wish, cut = watch.ask(), True
    if not cut and run.eval_step and start < steps and patience_is_over(config, checkpoints, start):
      log.info('this run has stopped early, at step %d', start)
      summary.state = 'stopped early'
      return state, run.results

    clock, profile = run.clock, Profile(config, workdir, run.clock)
    stack.enter_context(contextlib.closing(profile))
    ahead = Ahead(lambda n: run.inputs.batches.at(n, run.tally.skipped), steps)
    stack.enter_context(contextlib.closing(ahead))
    clock.reset()
    while number < steps and wish < stopping.TIME_IS_UP:
      profile.begin(number)
      with jax.profiler.StepTraceAnnotation('train', step_num=number + 1):
        batch, waited = ahead.take(number)
        state, out = run.train_step(state, batch, run.constants)
      clock.waited += waited
      clock.batches += run.inputs.timeline.rows_at(number) / config.batch_size
      summary.step = number = number + 1
      clock.steps += 1
      outs, pending = [pending] if pending else [], (out, number)

      wish = watch.ask()
      final = number == steps
      log_now = final or number % config.log.every == 0
      eval_now = evaluates(run, number)
      save_now = final or wish > stopping.GO_ON or is_due(run, number)
      # The metrics of a step are fetched while the next one runs, unless they are needed now.
      if log_now or eval_now or save_now:
        outs, pending = [*outs, pending], None
      spike, target = take(run, outs)
      if spike:
        with clock.doing('save'):
          state = go_back(run, state, spike, target, writer, progress)
        ahead.forget()
        pending, number = None, target
        continue
      shown = log_line(run, clock, number, writer, progress) if log_now else ''
      progress.update(shown)

      profile.end(number, state)
      if save_now:  # before the evaluation, which may fail
        save(run, state, {})
        watch.saved()
      if eval_now:
        try:
          early = evaluate_now(run, state, writer, progress, watch, save_now)
        except evaluation.Interrupted:
          save(run, state, {})
          wish, cut = max(wish, watch.ask()), True
      if save_now or eval_now:
        summary.write()
      if early:
        break
    whole = number == steps and not cut
    summary.state = 'stopped early' if early else 'finished' if whole else 'stopped'

  checkpoints.wait()
  if early:
    log.info(
      'stopped early: no better %s than at step %d (evaluate --checkpoint best)',
      config.checkpoint.best_metric,
      checkpoints.best['step'],
    )
  elif not whole:
    where = f'at step {number} of {steps}; the same command continues'
    if wish == stopping.STOP:
      raise KeyboardInterrupt(f'stopped by a signal {where}')
    raise Paused(f'max_hours={config.max_hours:g} are over: saved {where}')
  return state, run.results


def due(number, every):
  return every > 0 and number % every == 0


def is_due(run, number):
  """Is there a checkpoint after step `number`, whatever the clock says?"""
  config = run.inputs.config
  return due(number, config.checkpoint.every) or due(number, config.spikes.rollback)


def evaluates(run, number):
  """Is there an evaluation after step `number`?"""
  every = run.inputs.config.eval.every
  return run.eval_step is not None and (number == run.inputs.steps or due(number, every))


def patience_is_over(config, checkpoints, number):
  """Has the run been evaluated eval.patience times without a better checkpoint.best_metric?"""
  patience, every = config.eval.patience, config.eval.every
  return patience > 0 and (number - checkpoints.best['step']) // every >= patience


def take(run, outs):
  """Adds the metrics of steps, [(metrics, step)], to the run's tally. Returns (a step whose loss is
  a spike, the step that the run goes back to from there), or (0, 0) if it goes on. InputError if
  the loss or the gradient's norm is not finite."""
  for out, number in outs:
    if run.tally.take(run.inputs, out, number) and (target := target_of(run, number)):
      return number, target
  return 0, 0


def target_of(run, spike):
  """The step whose checkpoint the run goes back to from a spike, or 0."""
  if not (every := run.inputs.config.spikes.rollback):
    return 0
  target = (spike - 1) // every * every
  run.checkpoints.wait()
  if target not in run.checkpoints.steps():
    log.warning('there is no checkpoint to go back to from step %d', spike)
    return 0
  return target


def go_back(run, state, spike, target, writer, progress):
  """The State of the checkpoint `target`. The steps after it get batches from past the spike, which
  do not continue those before the checkpoint: what is carried begins anew."""
  shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
  shapes = jax.tree.map(shape, state)
  state, meta = run.checkpoints.back_to(target, shapes)
  state = setup.carrying_nothing(state)
  before, run.results = run.tally, meta['metrics']
  run.tally = Tally.from_meta(meta, run.inputs.config.batch_size)
  run.tally.went_back(target, before)
  rows_before = run.inputs.timeline.rows_before
  run.tally.skipped = before.skipped + rows_before(spike) - rows_before(target)
  run.tally.moves = [*run.tally.moves, [target, run.tally.skipped]]
  writer.back_to(target)
  progress.back_to(target)
  log.warning('going on from step %d with the data after that of step %d', target, spike)
  return state


def save(run, state, results):
  setup.keep_workdir(run.inputs)
  count_damaged(run, int(state.step))
  with run.clock.doing('save'):
    run.checkpoints.save(state, results, run.tally.seen, run.tally.to_meta())


def count_damaged(run, number):
  """Adds the damaged rows of the steps up to `number` to the run's tally."""
  batches = run.inputs.batches
  if batches.skip_damaged:
    run.tally.damaged(hosts.total(batches.damaged_before(number, run.tally.skipped)))


def log_line(run, clock, number, writer, progress):
  """Writes the metrics of the steps since the last line; returns them as text for the bar."""
  baselines = run.inputs.batches.source.baselines
  window, run.tally.window = run.tally.window, {}
  window |= run.inputs.objective.shares(window) if window else {}
  values, tokens, count = metrics.values(window, baselines), 0.0, 0
  if window:  # else all its steps were skipped
    count = float(window['loss'].weight)
    # A part of the window may be from before the run was stopped.
    tokens = float(window['tokens'].total) * clock.steps / count
    values['fill'] = values.pop('tokens')
  speed = clock.read(tokens)
  count_damaged(run, number)
  skipped = run.tally.events.get('skipped_steps', 0)  # the schedule did not count them
  rate = {'learning_rate': float(run.rates[number - 1 - skipped])}
  writer.write(number, 'train', values | rate | speed | run.tally.counts(run.inputs.config))
  terms = {name: value for name, value in values.items() if name != 'fill'}
  shown = f'{metrics.health(terms, baselines)}  {speed["tokens_per_s"]:,.0f} tokens/s'
  shown += f'  MFU {speed["mfu"]:.1%}' if 'mfu' in speed else ''
  if speed['data_wait'] > LONG_WAIT:
    shown += f'  waits {speed["data_wait"]:.0%} of the time for data'
  if progress.bar.disable:
    left = (run.inputs.steps - number) / speed['steps_per_s']
    progress.line(f'step {number}/{run.inputs.steps}  {shown}  ETA {left:.0f} s')
  return shown


def evaluate_now(run, state, writer, progress, watch, saved=True):
  """Evaluates a state, adds that to its checkpoint, or saves one if it is the best. True if the run
  is to stop early. saved: there is a checkpoint of this state already. Raises Interrupted if the
  run is to end meanwhile."""
  inputs, config, number = run.inputs, run.inputs.config, int(state.step)
  last = number == inputs.steps
  count = 0 if last else config.eval.batches
  run.results = {}
  with run.clock.doing('eval'):
    run.results, answers = evaluation.one_pass(
      run.eval_step,
      state.params,
      run.empty_carry,
      inputs.eval_batches,
      run.constants,
      count,
      inputs.objective.shares,
      watch.ends,
    )
  writer.write(number, 'eval', run.results)
  baselines = inputs.eval_batches.source.baselines
  progress.line(f'step {number}/{inputs.steps}  eval  {metrics.health(run.results, baselines)}')
  if run.checkpoints.is_best(run.results, number) or config.eval.patience > 0 or saved:
    save(run, state, run.results)
  early = not last and patience_is_over(config, run.checkpoints, number)
  if answers and (early or last):
    spec = contents.evaluated_on(config.data.train, config.data.eval)
    folder = contents.answers_folder(inputs.workdir, spec, number)
    evaluation.write(folder, inputs.eval_batches.source, answers, run.results)
  return early


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
  with command_line(), hosts.together():
    hosts.join(args.distributed)
    config = config_lib.load(args.config, overrides)
    if not args.workdir:
      raise InputError('--workdir is missing; name the folder this run is to be written to.')
    _, results = train(config, args.workdir, config_lib.names_of(overrides))
    if hosts.first():
      data = records.read_facts(args.workdir).data.get('eval', records.Split())
      known = metrics.beside(results, data.baselines, data.examples)
      print(metrics.to_json({'workdir': args.workdir} | results | known))


if __name__ == '__main__':
  main()
