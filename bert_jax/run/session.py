"""What a run does beside its steps: batches made ahead, counts, lines, checkpoints, evaluations,
and its end.

Each part decides itself when it is due; the loop calls one method of it after each step.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import jax

from bert_jax import buckets
from bert_jax.errors import Paused, Stopped, log
from bert_jax.rows.ahead import Ahead
from bert_jax.run import evaluation, progress, trackers
from bert_jax.run.metrics_log import Logger, SummaryFile, Writer, health
from bert_jax.run.setup import Run
from bert_jax.run.stopping import Decision
from bert_jax.step import State
from bert_jax.tasks import TASKS
from bert_jax.workdir import contents
from bert_jax.workdir.checkpoint import best_of


class Saver:
  """Saves checkpoints when they are due."""

  def __init__(self, run: Run, writer: Writer):
    self.run, self.writer = run, writer

  def due(self, step: int, decision: Decision) -> bool:
    every = self.run.inputs.config.checkpoint.every
    return self.run.inputs.is_due(step, every) or decision > Decision.GO_ON

  def save_if_due(self, step: int, state: State, decision: Decision) -> None:
    if self.due(step, decision):
      self.save(state, {})
      self.run.watch.saved()

  def save(self, state: State, results: Mapping[str, float]) -> None:
    """Saves a state, or adds its results to the checkpoint of this step."""
    run = self.run
    with run.clock.doing('save'):
      self.writer.upload()
      run.checkpoints.save(state, results, run.tally.to_meta())


class Evaluator:
  """Evaluates a run, and does what follows. owes: a stop broke off the evaluation of the step where
  the run begins."""

  def __init__(self, session: 'Session', step: int):
    self.session, self.run = session, session.run
    self.counted: tuple[Any, list[dict]] = {}, []  # the evaluation of the step that counts
    self.owes = self.run.inputs.in_workdir and self.due(step) and not self.run.results

  def due(self, step: int) -> bool:
    every = self.run.inputs.config.eval.every
    return self.run.inputs.is_due(step, every) and self.run.eval_step is not None

  def counts(self, step: int) -> dict[str, int]:
    """{kind of the Point: how many batches are read, 0 for all} of the evaluation of a step. All
    points of a curve are of the same rows; of the last state there is one of all rows, too."""
    batches: Any = self.run.inputs.eval_batches
    count = self.run.inputs.config.eval.batches
    if step == self.run.inputs.steps and 0 < count < len(batches):
      return {'eval': count, 'whole': 0}
    return {'eval': count}

  def catch_up(self, step: int, state: State) -> Decision:
    """Makes the evaluation that a stop broke off. EARLY if patience is over already."""
    if self.owes:
      return self._evaluated(step, state)
    return Decision.EARLY if self._patience_is_over(step) else Decision.GO_ON

  def evaluate_if_due(self, step: int, state: State) -> Decision:
    """Evaluates if it is due; returns what the run is to do next."""
    return self._evaluated(step, state) if self.due(step) else Decision.GO_ON

  def _evaluated(self, step, state):
    """Evaluates a state; if the run is to end meanwhile, only saves it. Returns what is next."""
    try:
      self._evaluate(step, state)
    except evaluation.Interrupted:
      self.owes = True
      self.session.saver.save(state, {})
      return self.run.watch.ask()
    self.owes = False
    return Decision.EARLY if self._patience_is_over(step) else Decision.GO_ON

  def _patience_is_over(self, step):
    """Has the run been evaluated eval.patience times without a better checkpoint.best_metric?"""
    settings, best = self.run.inputs.config.eval, self.run.checkpoints.best
    if self.run.eval_step is None or settings.patience <= 0 or step >= self.run.inputs.steps:
      return False
    return (step - best['since']) // settings.every >= settings.patience

  def _evaluate(self, step, state):
    """Evaluates a state and adds the results to its checkpoint; saves it if it is the best. If it
    is evaluated on all rows beside a part, these results count. The answers on the disk are those
    of the best and of the last state."""
    run, inputs, config = self.run, self.run.inputs, self.run.inputs.config
    batches: Any = inputs.eval_batches
    counts = self.counts(step)
    results, answers = {}, []
    run.results = {}
    with run.clock.doing('eval'):
      for kind, count in counts.items():
        results[kind], answers = evaluation.one_pass(
          run.eval_step,
          state.params,
          run.empty_carry,
          batches,
          run.constants,
          count=count,
          objective=inputs.objective,
          ends=lambda: run.watch.ask().ends,
          scores=TASKS[config.objective].scores,
        )
    run.results = results.get('whole', results['eval'])
    for kind, result in results.items():
      self.session.writer.write(step, kind, result)
      text = health(result, evaluation.levels(batches, counts[kind]))
      rows = f', all {len(batches.source):,} rows' if kind == 'whole' else ''
      self.session.progress.line(f'step {step}/{inputs.steps}  eval{rows}  {text}')
    metric = config.checkpoint.best_metric
    if metric and metric not in run.results:
      log.warning(f'step {step}: there is no {metric} to choose the best checkpoint by')
    before = run.checkpoints.best['step']
    is_best = run.checkpoints.is_best(run.results, step)
    is_last = step >= inputs.steps or self._patience_is_over(step)
    if answers and (is_best or is_last):
      if is_best:
        buckets.remove_tree(self._folder(before))
      evaluation.write(self._folder(step), batches.source, answers, run.results)
    if is_best or not run.checkpoints.best['metrics']:
      self.counted = run.results, answers
    is_saved = run.checkpoints.newest.get('step') == step
    if is_best or is_saved or config.eval.patience > 0:
      self.session.saver.save(state, run.results)
    if is_last:
      result, answers = self.counted
      evaluation.warn(result, batches.source, answers, TASKS[config.objective].judge(config))

  def _folder(self, step):
    """Where the answers of a step are written."""
    data = self.run.inputs.config.data
    return contents.answers_folder(self.run.inputs.workdir, data.train, data.eval, step)


class Session:
  """The parts of a run from a State on; `stack` closes them, the last one first."""

  def __init__(self, run: Run, state: State, stack: contextlib.ExitStack):
    self.run, config, workdir = run, run.inputs.config, run.inputs.workdir
    step = int(jax.device_get(state.step))
    self.tally, self.watch = run.tally, run.watch
    self.evaluator = Evaluator(self, step)
    opened_trackers = trackers.opened(config, workdir, step)
    self.writer = Writer(workdir, step, opened_trackers, self.evaluator.owes)
    stack.callback(self.writer.close)
    self.saver = Saver(run, self.writer)
    self.summary = SummaryFile(run, self.writer)
    stack.enter_context(self.summary)
    self.progress = progress.Progress(run.inputs.steps, step, workdir)
    stack.callback(self.progress.close)
    self.logger = Logger(run, self.writer, self.progress)
    self.ahead = Ahead(run.inputs.batches.__getitem__, run.inputs.steps)
    stack.callback(self.ahead.close)
    run.clock.reset()

  def batch(self, step: int) -> Mapping[str, jax.Array]:
    """The batch of the step that follows step `step`, made in the background before."""
    inputs, clock = self.run.inputs, self.run.clock
    batch, waited = self.ahead.take(step)
    clock.waited += waited
    clock.steps += 1
    clock.batches += inputs.timeline.rows_at(step) / inputs.config.batch_size
    return batch

  def decide(self, step: int) -> Decision:
    """What all processes decide after a step. Here a run waits for its devices."""
    decision = self.watch.ask()
    is_read = self.logger.due(step) or self.saver.due(step, decision) or self.evaluator.due(step)
    self.tally.add_taken(now=is_read)
    return decision

  def end(self, step: int, state: State, decision: Decision) -> tuple[State, Mapping[str, float]]:
    """Waits until all is saved. KeyboardInterrupt or Paused if the run is not over."""
    run, config = self.run, self.run.inputs.config
    self.progress.close()
    with run.clock.doing('save'):
      run.checkpoints.wait()
    if decision == Decision.EARLY:
      self.summary.state = 'stopped early'
      log.info(
        f'stopped early: {config.checkpoint.best_metric} is not better than it was at step '
        f'{run.checkpoints.best["since"]}'
      )
    elif step < run.inputs.steps or self.evaluator.owes:
      where = f'at step {step} of {run.inputs.steps}; run the same again to continue'
      if decision == Decision.STOP:
        raise Stopped(f'stopped by a signal {where}')
      raise Paused(f'max_hours={config.max_hours:g} are over: saved {where}')
    else:
      self.summary.state = 'finished'
    best = best_of(run.inputs.workdir, run.checkpoints.best, config.checkpoint)
    return state, best.get('metrics', run.results)
