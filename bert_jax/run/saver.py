"""When a run saves a checkpoint, and what goes with it."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bert_jax import files, hosts
from bert_jax.run.stopping import Wish
from bert_jax.step import State
from bert_jax.workdir import contents

if TYPE_CHECKING:
  from bert_jax.run.setup import Inputs, Run

log = logging.getLogger('bert_jax')


class Saver:
  """Saves the states of a run."""

  def __init__(self, run: 'Run'):
    self.run = run

  def due(self, step: int, wish: Wish) -> bool:
    """Is a checkpoint saved after this step?"""
    inputs, config = self.run.inputs, self.run.inputs.config
    every = config.checkpoint.every, config.spikes.rollback
    is_at = any(n > 0 and step % n == 0 for n in every)
    return is_at or step == inputs.steps or wish > Wish.GO_ON

  def maybe(self, step: int, state: State, wish: Wish) -> None:
    if self.due(step, wish):
      self.save(step, state, {})
      self.run.watch.saved()

  def save(self, step: int, state: State, results: Mapping[str, float]) -> None:
    """Saves a state, or adds the results of its evaluation to its checkpoint."""
    run = self.run
    keep_workdir(run.inputs)
    run.tally.count_damaged(step)
    with run.clock.doing('save'):
      run.checkpoints.save(state, results, run.tally.seen, run.tally.to_meta())


def keep_workdir(inputs: 'Inputs') -> None:
  """Writes the config and vocabulary of a run again if its workdir was removed since it began:
  without them nobody could read its checkpoints."""
  if hosts.first() and not files.exists(inputs.workdir / contents.CONFIG):
    contents.claim(inputs.workdir, inputs.config)
    inputs.tokenizer.save(inputs.workdir)
    said = 'its config and vocabulary are written again; its checkpoints and metrics are gone'
    log.warning('%s was removed while the run writes into it: %s', inputs.workdir, said)
