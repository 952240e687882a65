"""When a run is evaluated, and what follows: a line, the best checkpoint, answers, an early end."""

from typing import TYPE_CHECKING, Any

from bert_jax import metrics
from bert_jax.run import evaluation
from bert_jax.run.log import Writer
from bert_jax.run.progress import Progress
from bert_jax.run.saver import Saver
from bert_jax.run.stopping import Wish
from bert_jax.step import State
from bert_jax.workdir import contents

if TYPE_CHECKING:
  from bert_jax.run.setup import Run


def is_due(run: 'Run', step: int) -> bool:
  """Is the run evaluated after this step?"""
  every = run.inputs.config.eval.every
  is_at = step == run.inputs.steps or (every > 0 and step % every == 0)
  return is_at and run.eval_step is not None


def is_owed(run: 'Run', step: int) -> bool:
  """Was the run stopped during the evaluation of the step that it now begins with?"""
  return is_due(run, step) and not run.results and run.inputs.in_workdir


class Evaluator:
  """Evaluates the states of a run. owes: was an evaluation broken off and not made up for?"""

  def __init__(self, run: 'Run', saver: Saver, writer: Writer, progress: Progress, owes: bool):
    self.run, self.saver, self.writer, self.progress = run, saver, writer, progress
    self.owes = owes

  def due(self, step: int) -> bool:
    return is_due(self.run, step)

  def catch_up(self, step: int, state: State) -> Wish:
    """Makes the evaluation that a stop broke off, before the first step. EARLY if the patience of
    the run is over already."""
    if self.owes:
      return self._evaluated(step, state)
    return Wish.EARLY if self._patience_is_over(step) else Wish.GO_ON

  def maybe(self, step: int, state: State) -> Wish:
    """Evaluates if it is due; returns what the run is to do next."""
    return self._evaluated(step, state) if self.due(step) else Wish.GO_ON

  def _evaluated(self, step, state):
    """Evaluates a state; if the run is to end meanwhile, only saves it. Returns what is next."""
    try:
      self._evaluate(step, state)
    except evaluation.Interrupted:
      self.owes = True
      self.saver.save(step, state, {})
      return self.run.watch.ask()
    self.owes = False
    return Wish.EARLY if self._patience_is_over(step) else Wish.GO_ON

  def _patience_is_over(self, step):
    """Has the run been evaluated eval.patience times without a better checkpoint.best_metric?"""
    settings, best = self.run.inputs.config.eval, self.run.checkpoints.best
    if self.run.eval_step is None or settings.patience <= 0 or step >= self.run.inputs.steps:
      return False
    return (step - best['step']) // settings.every >= settings.patience

  def _evaluate(self, step, state):
    """Evaluates a state and adds the results to its checkpoint; saves one if it is the best so far.
    Raises Interrupted if the run is to end meanwhile."""
    run, inputs, config = self.run, self.run.inputs, self.run.inputs.config
    batches: Any = inputs.eval_batches
    last = step == inputs.steps
    count = 0 if last else config.eval.batches
    run.results = {}
    with run.clock.doing('eval'):
      what = run.eval_step, state.params, run.empty_carry, batches, run.constants, count
      ends = lambda: run.watch.ask().ends
      run.results, answers = evaluation.one_pass(*what, inputs.objective.shares, ends)
    self.writer.write(step, 'eval', run.results)
    said = metrics.health(run.results, batches.source.baselines)
    self.progress.line(f'step {step}/{inputs.steps}  eval  {said}')
    is_best = run.checkpoints.is_best(run.results, step)
    is_saved = run.checkpoints.newest.get('step') == step
    if is_best or is_saved or config.eval.patience > 0:
      self.saver.save(step, state, run.results)
    if answers and (last or self._patience_is_over(step)):
      data = contents.evaluated_on(config.data.train, config.data.eval)
      folder = contents.answers_folder(inputs.workdir, data, step)
      evaluation.write(folder, batches.source, answers, run.results)
