"""What the loop adds up from the metrics of its steps: the sums of a line of the log, counts since
step 0, steps whose loss or gradient is not finite, and spikes of the loss.

All of it is saved with a checkpoint, so that a run that continues writes the same lines and makes
the same decisions as one that never stopped.
"""

import contextlib
import json
import logging
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax import hosts, metrics
from bert_jax.errors import InputError
from bert_jax.files import write_whole

log = logging.getLogger('bert_jax')

TRIES = 5  # how often a run goes back to the same checkpoint
SHOWN = 8  # rows that a sentence names


def number(x):
  """A number for JSON, which has none that is not finite: 'nan', 'inf'."""
  return float(x) if math.isfinite(x) else str(float(x))


@dataclass
class Tally:
  """seen: counts of the data since step 0. window: {name: Mean}, the sums since the last line.
  events: how many steps were skipped, losses were spikes and rows were damaged, and how often the
  run went back.
  in_a_row: steps that were skipped, up to the last one. losses: those that the next is compared
  with. skipped: how many rows of the data the run left out, going back. moves: [[step, rows skipped
  from there on]] of each time that it went back. back: the step it went back to last, and how
  often."""

  seen: dict = field(default_factory=dict)
  window: dict = field(default_factory=dict)
  events: dict = field(default_factory=dict)
  in_a_row: int = 0
  losses: list = field(default_factory=list)
  skipped: int = 0
  moves: list = field(default_factory=list)
  back: tuple = (0, 0)

  @classmethod
  def from_meta(cls, meta: Mapping[str, Any], batch_size: int) -> 'Tally':
    """The Tally in the metadata of a checkpoint. Earlier versions counted skipped batches in place
    of rows, the first ones nothing but what was seen."""
    saved = dict(meta.get('tally', {}))
    if 'offset' in saved:
      saved['skipped'] = saved.pop('offset') * batch_size
      saved['moves'] = [[step, count * batch_size] for step, count in saved.get('moves', [])]
    window = {name: metrics.Mean(*pair) for name, pair in saved.pop('window', {}).items()}
    return cls(meta.get('seen', {}), window, **saved)

  def to_meta(self):
    """What a checkpoint holds beside `seen`, for from_meta."""
    window = {name: [float(m.total), float(m.weight)] for name, m in self.window.items()}
    return {
      'window': window,
      'events': self.events,
      'in_a_row': self.in_a_row,
      'losses': self.losses,
      'skipped': self.skipped,
      'moves': self.moves,
      'back': list(self.back),
    }

  def skipped_after(self, step: int) -> int:
    """The rows skipped until the step that follows step `step`, which may be long past."""
    first = 0 if self.moves else self.skipped  # of a version without `moves`
    return next((rows for at, rows in reversed(self.moves) if at <= step), first)

  def counts(self, config):
    """{name: number} for a line of the log."""
    events = {
      'skipped_steps': config.optimizer.skip_nonfinite,
      'loss_spikes': config.spikes.window,
      'rollbacks': config.spikes.rollback,
    }
    events['damaged_rows'] = self.events.get('damaged_rows', 0)
    return self.seen | {name: self.events.get(name, 0) for name, on in events.items() if on}

  def take(self, inputs, out, step):
    """Adds the metrics of step `step`. Returns whether its loss is a spike; where a field has
    another value than in the step before, it is compared with none before it. InputError if the run
    stops here, since its numbers are not finite."""
    if step - 1 in inputs.timeline.jumps():
      self.losses = []
    out = metrics.host_sum(out)
    norms = {name: number(x) for name, x in out.pop('module_norms', {}).items()}
    self.seen = {name: self.seen.get(name, 0.0) + float(n) for name, n in out.pop('seen').items()}
    wrong = [name for name in ('loss', 'grad_norm') if not math.isfinite(out[name])]
    if wrong:
      self.in_a_row += 1
      if self.in_a_row >= inputs.config.optimizer.skip_nonfinite:
        raise self._not_finite(inputs, out, wrong[0], norms, step)
      self._count('skipped_steps')
      log.warning('step %d is skipped: its %s is %s', step, wrong[0], float(out[wrong[0]]))
      return False
    self.in_a_row = 0
    self.window = metrics.add(self.window, out)
    return self._is_spike(inputs.config.spikes, float(out['loss']), step)

  def went_back(self, step, before):
    """This is the tally of checkpoint `step`, to which the run goes back from a spike; `before`
    is that of the spike. InputError if it has gone back there too often."""
    times = before.back[1] + 1 if before.back[0] == step else 1
    # The steps from here to the spike are undone, and with them what was skipped or damaged.
    undone = 'skipped_steps', 'damaged_rows'
    kept = {name: n for name, n in before.events.items() if name not in undone}
    self.events = kept | {name: n for name, n in self.events.items() if name in undone}
    self._count('rollbacks')
    self.back = (step, times)
    if times > TRIES:
      raise InputError(
        f'the loss has a spike again, after the run went back to step {step} {TRIES} times, each '
        'time past other data; a lower optimizer.learning_rate or a higher spikes.zscore helps.'
      )

  def damaged(self, rows):
    """So many rows of the steps since the last call could not be read."""
    self._count('damaged_rows', rows)

  def _count(self, event, number=1):
    self.events = self.events | {event: self.events.get(event, 0) + number}

  def _is_spike(self, spikes, loss, step):
    if not spikes.window:
      return False
    earlier, self.losses = self.losses, [*self.losses, loss][-spikes.window :]
    if len(earlier) < spikes.window:
      return False
    mean, deviation = statistics.fmean(earlier), statistics.pstdev(earlier)
    if loss <= mean + spikes.zscore * deviation:
      return False
    self._count('loss_spikes')
    log.warning(
      'the loss has a spike at step %d: %.4g, where it was %.4g ± %.2g in the %d steps before it',
      step,
      loss,
      mean,
      deviation,
      spikes.window,
    )
    return True

  def _not_finite(self, inputs, out, name, norms, step):
    """The InputError that ends a run, once a file for bert_jax.tools.replay is written."""
    rows = inputs.batches.row_numbers(step - 1, self.skipped)
    path = Path(inputs.workdir) / f'nonfinite-{step}.json'
    facts = {
      'step': step,
      'rows': rows,
      'loss': number(out['loss']),
      'grad_norm': number(out['grad_norm']),
      'module_norms': norms,
      'moves': self.moves,
    }
    if hosts.first():
      with contextlib.suppress(OSError):
        write_whole(path, json.dumps(facts) + '\n')
    named = ', '.join(map(str, rows[:SHOWN]))
    named += f' and {len(rows) - SHOWN} more' if len(rows) > SHOWN else ''
    if norms:
      named += '; gradient norms: ' + ', '.join(f'{k} {float(x):.3g}' for k, x in norms.items())
    again = f' as in the {self.in_a_row - 1} before it' if self.in_a_row > 1 else ''
    return InputError(
      f'the {name} is {float(out[name])} at step {step}{again} (rows {named}), so the run stops; '
      f'checkpoints in {inputs.workdir}, if any, are from before it. A lower '
      'optimizer.learning_rate, more warmup or float32 usually helps; python -m '
      f'bert_jax.tools.replay {path} runs the step alone.'
    )
