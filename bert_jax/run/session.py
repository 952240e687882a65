"""What a run does beside its steps: batches made ahead, counts, lines, checkpoints, evaluations,
and its end.

Each part decides itself when it is due; the loop calls one method of it after each step.
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import jax

from bert_jax.errors import Paused
from bert_jax.rows.ahead import Ahead
from bert_jax.run import evaluator, progress, setup, trackers
from bert_jax.run.evaluator import Evaluator
from bert_jax.run.log import Logger, Writer
from bert_jax.run.profiling import Profile
from bert_jax.run.saver import Saver
from bert_jax.run.stopping import Wish
from bert_jax.run.summary import Summary
from bert_jax.step import State

if TYPE_CHECKING:
  from bert_jax.run.setup import Run

log = logging.getLogger('bert_jax')


class Feed:
  """The batches of a run, made in the background before their steps need them."""

  def __init__(self, run: 'Run'):
    self.run, inputs = run, run.inputs
    self.ahead = Ahead(lambda step: inputs.batches.at(step, run.tally.skipped), inputs.steps)

  def take(self, step: int) -> Mapping[str, jax.Array]:
    """The batch of the step that follows step `step`."""
    inputs, clock = self.run.inputs, self.run.clock
    batch, waited = self.ahead.take(step)
    clock.waited += waited
    clock.steps += 1
    clock.batches += inputs.timeline.rows_at(step) / inputs.config.batch_size
    return batch

  def go_back(self) -> None:
    """Forgets the batches made ahead, since steps get others from now on."""
    self.ahead.forget()

  def close(self) -> None:
    self.ahead.close()


class Session:
  """The parts of a run from a State on; `stack` closes them, the last one first."""

  def __init__(self, run: 'Run', state: State, stack: contextlib.ExitStack):
    self.run, config, workdir = run, run.inputs.config, run.inputs.workdir
    step = int(jax.device_get(state.step))
    closed = lambda part: stack.enter_context(contextlib.closing(part))
    owes = evaluator.is_owed(run, step)
    self.writer = closed(Writer(workdir, step, trackers.opened(config, workdir, step), owes))
    self.tally, self.watch = run.tally, run.watch
    self.saver = Saver(run)
    self.summary = Summary(run, self.writer, time.monotonic() - run.watch.started)
    stack.enter_context(self.summary)
    self.progress = closed(progress.opened(run.inputs.steps, step, workdir))
    self.logger = Logger(run, self.writer, self.progress)
    self.evaluator = Evaluator(run, self.saver, self.writer, self.progress, owes)
    self.profile = closed(Profile(config, workdir, run.clock))
    self.feed = closed(Feed(run))
    run.clock.reset()

  def go_back(self, spike: int, state: State) -> State:
    """Goes back to the checkpoint before a spike and returns its State; the run goes on with the
    data past the spike. These do not continue the data before, so the carry begins anew."""
    run, step = self.run, self.run.tally.spikes.target(spike)
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    with run.clock.doing('save'):
      state, meta = run.checkpoints.back_to(step, jax.tree.map(shape, state))
      run.results = meta['metrics']
      state = setup.carrying_nothing(state)
      self.tally.go_back(step, spike, meta)
      self.tally.spikes.go_back(step, meta)
      self.feed.go_back()
      self.writer.go_back(step)
      self.progress.go_back(step)
    log.warning('going on from step %d with the data after that of step %d', step, spike)
    return state

  def end(self, step: int, state: State, wish: Wish) -> tuple[State, Mapping[str, float]]:
    """Waits until everything is saved; returns what the loop returns. Raises KeyboardInterrupt or
    Paused if the run ends before its last step."""
    run, config = self.run, self.run.inputs.config
    self.progress.close()
    with run.clock.doing('save'):
      run.checkpoints.wait()
    if wish == Wish.EARLY:
      self.summary.state = 'stopped early'
      than = f'{config.checkpoint.best_metric} than at step {run.checkpoints.best["step"]}'
      log.info('stopped early: no better %s (evaluate --checkpoint best)', than)
    elif step < run.inputs.steps or self.evaluator.owes:
      where = f'at step {step} of {run.inputs.steps}; the same command continues'
      if wish == Wish.STOP:
        raise KeyboardInterrupt(f'stopped by a signal {where}')
      raise Paused(f'max_hours={config.max_hours:g} are over: saved {where}')
    else:
      self.summary.state = 'finished'
    return state, run.results


@contextlib.contextmanager
def opened(run: 'Run', state: State) -> Iterator[Session]:
  """A context with the Session of a run from a State on; its parts are closed whatever happens."""
  with contextlib.ExitStack() as stack:
    yield Session(run, state, stack)
