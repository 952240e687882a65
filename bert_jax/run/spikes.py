"""Spikes of the loss, far above the losses before, after which a run may go back to a checkpoint
and leave out the data of the spike."""

import statistics
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.errors import InputError, log
from bert_jax.workdir.checkpoint import Checkpoints

TRIES = 5  # how often a run goes back to the same checkpoint


class Spikes:
  """Compares each loss with those before it. back: (the step gone back to last, how often)."""

  def __init__(self, settings: ConfigDict, checkpoints: Checkpoints, meta: Mapping[str, Any]):
    saved = meta.get('tally', {})
    self.settings, self.checkpoints = settings, checkpoints
    self.losses, self.back = [*saved.get('losses', ())], tuple(saved.get('back', (0, 0)))

  def to_meta(self) -> dict[str, Any]:
    return {'losses': self.losses, 'back': list(self.back)}

  def is_spike(self, step: int, loss: float) -> bool:
    """Is the loss of this step a spike? Later steps are compared with it either way."""
    window = self.settings.window
    if not window:
      return False
    earlier, self.losses = self.losses, [*self.losses, loss][-window:]
    if len(earlier) < window:
      return False
    mean, deviation = statistics.fmean(earlier), statistics.pstdev(earlier)
    if loss <= mean + self.settings.zscore * deviation:
      return False
    before = f'{mean:.4g} ± {deviation:.2g} in the {window} steps before it'
    log.warning('the loss has a spike at step %d: %.4g, where it was %s', step, loss, before)
    return True

  def forget(self) -> None:
    self.losses = []

  def target(self, spike: int) -> int:
    """The step of the checkpoint to which a run goes back from a spike; 0: it does not go back."""
    if not (every := self.settings.rollback):
      return 0
    target = (spike - 1) // every * every
    self.checkpoints.wait()
    if target not in self.checkpoints.steps():
      log.warning('there is no checkpoint to go back to from step %d', spike)
      return 0
    return target

  def go_back(self, step: int, meta: Mapping[str, Any]) -> None:
    """Goes back to the losses at a step's checkpoint. InputError if the run did so too often."""
    times = self.back[1] + 1 if self.back[0] == step else 1
    self.losses, self.back = list(meta.get('tally', {}).get('losses', ())), (step, times)
    if times > TRIES:
      fault = f'the loss has a spike again, after the run went back to step {step} {TRIES} times'
      raise InputError(f'{fault}; lower optimizer.learning_rate, or raise spikes.zscore.')
