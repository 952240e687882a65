"""The sums and counts of a run, to which each step is added. Here a step that is not finite ends
the run, or is skipped, and a spike of the loss is named."""

import contextlib
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_jax import files, hosts, metrics
from bert_jax.errors import InputError, listed, log
from bert_jax.run.inputs import Inputs


def number(x: Any) -> float | str:
  """A number for JSON, which cannot hold NaN and infinity: these become 'nan' and 'inf'."""
  return float(x) if math.isfinite(x) else str(float(x))


@dataclass
class Tally:
  """The sums and counts of a run. They are saved with each checkpoint, so that a run that continues
  decides as one that never stopped."""

  inputs: Inputs
  data_counts: dict[str, float] = field(default_factory=dict)  # of what was read since step 0
  window: dict[str, metrics.Mean] = field(default_factory=dict)  # sums since the last line
  events: dict[str, int] = field(default_factory=dict)  # {skipped_steps, loss_spikes: how many}
  in_a_row: int = 0  # how many of the last steps were skipped
  losses: list[float] = field(default_factory=list)  # the last ones, at most spikes.window
  step: int = 0
  # Metrics of steps that may still be running: {step: arrays on the devices}.
  pending: dict[int, Mapping[str, Any]] = field(default_factory=dict)

  @classmethod
  def from_meta(cls, meta: Mapping[str, Any], inputs: Inputs) -> 'Tally':
    """The Tally saved in a checkpoint's metadata ({}: that of a new run)."""
    saved = meta.get('tally', {})
    window = saved.get('window', {})
    return cls(
      inputs,
      data_counts=dict(saved.get('seen', {})),
      window={name: metrics.Mean(total, weight) for name, (total, weight) in window.items()},
      events=dict(saved.get('events', {})),
      in_a_row=saved.get('in_a_row', 0),
      losses=list(saved.get('losses', ())),
      step=meta.get('step', 0),
    )

  def to_meta(self) -> dict[str, Any]:
    """What from_meta reads."""
    window = {name: [float(x.total), float(x.weight)] for name, x in self.window.items()}
    return {
      'seen': dict(self.data_counts),
      'window': window,
      'events': dict(self.events),
      'in_a_row': self.in_a_row,
      'losses': self.losses,
    }

  def counts(self) -> dict[str, float]:
    """The counts since step 0 that a line of metrics names."""
    config = self.inputs.config
    counts = dict(self.data_counts)
    if config.optimizer.skip_nonfinite:
      counts['skipped_steps'] = self.events.get('skipped_steps', 0)
    if config.spikes.window:
      counts['loss_spikes'] = self.events.get('loss_spikes', 0)
    return counts

  def take(self, step: int, out: Mapping[str, Any]) -> None:
    """Takes the metrics of a step, which may still be running."""
    self.step = step
    self.pending[step] = out

  def add_taken(self, now: bool) -> None:
    """Adds the metrics that were taken: all if something reads them now, else all but the newest
    step's, for which no step waits."""
    for step in sorted(self.pending):
      if now or step < self.step:
        self._add(step, metrics.host_sum(self.pending.pop(step)))

  def _add(self, step, out):
    """Adds the metrics of a step, {name: number or Mean}. InputError if the run cannot go on."""
    if step - 1 in self.inputs.timeline.jumps():
      self.losses = []  # from here on the loss is another one
    norms = {name: number(x) for name, x in out.pop('module_norms', {}).items()}
    for name, count in out.pop('seen').items():
      self.data_counts[name] = self.data_counts.get(name, 0.0) + float(count)
    for name in ('loss', 'grad_norm'):
      if not math.isfinite(out[name]):
        self._skip(step, name, out, norms)
        return
    self.in_a_row = 0
    self.window = metrics.add(self.window, out)
    self._look_for_a_spike(step, float(out['loss']))

  def _skip(self, step, name, out, norms):
    """Counts a step whose loss or gradient is not finite; InputError after too many in a row."""
    self.in_a_row += 1
    if self.in_a_row >= self.inputs.config.optimizer.skip_nonfinite:
      raise self._not_finite(step, name, out, norms)
    self._count('skipped_steps')
    log.warning('step %d is skipped: its %s is %s', step, name, float(out[name]))

  def _look_for_a_spike(self, step, loss):
    """Names and counts a loss far above those of the steps before."""
    window = self.inputs.config.spikes.window
    if not window:
      return
    earlier = self.losses
    self.losses = [*earlier, loss][-window:]
    if len(earlier) < window:
      return
    mean, deviation = statistics.fmean(earlier), statistics.pstdev(earlier)
    if loss > mean + self.inputs.config.spikes.zscore * deviation:
      self._count('loss_spikes')
      log.warning(
        'the loss has a spike at step %d: %.4g, where it was %.4g ± %.2g in the %d steps before',
        step,
        loss,
        mean,
        deviation,
        window,
      )

  def _count(self, event):
    self.events[event] = self.events.get(event, 0) + 1

  def _not_finite(self, step, name, out, norms):
    """Writes nonfinite-STEP.json; returns the InputError that ends the run."""
    rows = self.inputs.batches.row_numbers(step - 1)
    path = self.inputs.workdir / f'nonfinite-{step}.json'
    facts = {
      'step': step,
      'rows': rows,
      'module_norms': norms,
      'loss': number(out['loss']),
      'grad_norm': number(out['grad_norm']),
    }
    if hosts.first():
      with contextlib.suppress(OSError):
        files.write_whole(path, json.dumps(facts) + '\n')
    named = f'rows {listed(rows)}'
    if norms:
      by_module = ', '.join(f'{module} {float(x):.3g}' for module, x in norms.items())
      named += f'; gradient norms: {by_module}'
    if self.in_a_row > 1:
      named = f'as in the {self.in_a_row - 1} steps before; {named}'
    return InputError(
      f'the {name} is {float(out[name])} at step {step} ({named}), so the run stops; checkpoints '
      'are from before. A lower optimizer.learning_rate, more warmup or float32 often helps; '
      f'python -m bert_jax.tools.replay {self.inputs.workdir} --step {step} runs the step alone.'
    )
