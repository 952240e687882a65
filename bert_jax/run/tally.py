"""Adds up the metrics of a run's steps: sums for a line of the log, counts since step 0, and steps
whose loss or gradient is not finite. It is saved with a checkpoint, so that a run that continues
decides as one that never stopped."""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ml_collections import ConfigDict

from bert_jax import hosts, metrics
from bert_jax.errors import InputError, listed, log
from bert_jax.files import write_whole
from bert_jax.run.inputs import Inputs
from bert_jax.run.spikes import Spikes

SAVED = 'events', 'in_a_row', 'skipped', 'moves'
EVENTS = 'skipped_steps', 'loss_spikes', 'rollbacks'


def number(x: Any) -> float | str:
  """A number for JSON, which cannot hold NaN and infinity: these become 'nan' and 'inf'."""
  return float(x) if math.isfinite(x) else str(float(x))


@dataclass
class Tally:
  """The sums and counts of a run, and, not saved, its inputs, its spikes and its newest step."""

  seen: dict[str, float] = field(default_factory=dict)  # counts of the data since step 0
  window: dict[str, metrics.Mean] = field(default_factory=dict)  # sums since the last line
  events: dict[str, int] = field(default_factory=dict)  # how often each of EVENTS happened
  in_a_row: int = 0  # how many of the last steps were skipped
  skipped: int = 0  # rows of the data that the run left out, going back
  moves: list[list[int]] = field(default_factory=list)  # [step it went back to, skipped then]
  inputs: Inputs = None  # pyrefly: ignore[bad-assignment]  # a saved Tally has none
  spikes: Spikes = None  # pyrefly: ignore[bad-assignment]
  step: int = 0
  pending: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # {step: on the devices}

  @classmethod
  def from_meta(cls, meta: Mapping[str, Any], batch_size: int, **of_run: Any) -> 'Tally':
    """The Tally saved in a checkpoint's metadata ({}: of a new run); of_run: `inputs`, `spikes`.
    Earlier versions counted skipped batches in place of rows, the first ones `seen` only."""
    saved = dict(meta.get('tally', {}))
    if 'offset' in saved:
      saved['skipped'] = saved.pop('offset') * batch_size
      saved['moves'] = [[step, count * batch_size] for step, count in saved.get('moves', [])]
    window = {name: metrics.Mean(*pair) for name, pair in saved.get('window', {}).items()}
    kept = {name: saved[name] for name in SAVED if name in saved}
    return cls(meta.get('seen', {}), window, step=meta.get('step', 0), **kept, **of_run)

  def to_meta(self) -> dict[str, Any]:
    """The metadata of a checkpoint that from_meta reads, besides `seen`."""
    window = {name: [float(m.total), float(m.weight)] for name, m in self.window.items()}
    saved = {name: getattr(self, name) for name in SAVED}
    return {'window': window} | saved | self.spikes.to_meta()

  def skipped_after(self, step: int) -> int:
    """How many rows were skipped before the step after `step`, which may be long past."""
    first = 0 if self.moves else self.skipped  # of a version without `moves`
    return next((rows for at, rows in reversed(self.moves) if at <= step), first)

  def counts(self, config: ConfigDict) -> dict[str, float]:
    known, spikes = {name: self.events.get(name, 0) for name in EVENTS}, config.spikes
    shown = config.optimizer.skip_nonfinite, spikes.window, spikes.rollback
    return self.seen | {name: n for (name, n), on in zip(known.items(), shown) if on}

  def take(self, step: int, out: Mapping[str, Any]) -> None:
    """Takes the metrics of a step, which may still be running."""
    self.step, self.pending[step] = step, out

  def settle(self, now: bool) -> int:
    """Adds the metrics that were taken: all if something reads them now, else all but the newest
    step's, for which no step waits. Returns the step of a spike to go back from, or 0."""
    for step in sorted(self.pending):
      due = now or step < self.step
      if due and self._add(step, metrics.host_sum(self.pending.pop(step))):
        self.pending.clear()
        return step
    return 0

  def _add(self, step, out):
    """Adds the metrics of a step; returns whether its loss is a spike from which to go back."""
    if step - 1 in self.inputs.timeline.jumps():
      self.spikes.forget()
    norms = {name: number(x) for name, x in out.pop('module_norms', {}).items()}
    self.seen = {name: self.seen.get(name, 0.0) + float(n) for name, n in out.pop('seen').items()}
    wrong = [name for name in ('loss', 'grad_norm') if not math.isfinite(out[name])]
    if wrong:
      self.in_a_row += 1
      if self.in_a_row >= self.inputs.config.optimizer.skip_nonfinite:
        raise self._not_finite(out, wrong[0], norms, step)
      self._count('skipped_steps')
      log.warning('step %d is skipped: its %s is %s', step, wrong[0], float(out[wrong[0]]))
      return False
    self.in_a_row = 0
    self.window = metrics.add(self.window, out)
    if not self.spikes.is_spike(step, float(out['loss'])):
      return False
    self._count('loss_spikes')
    return self.spikes.target(step) > 0

  def go_back(self, step: int, spike: int, meta: Mapping[str, Any]) -> None:
    """Restores the sums of the checkpoint of a step to which the run goes back from a spike."""
    saved = Tally.from_meta(meta, self.inputs.config.batch_size)
    # The steps from here to the spike are undone, and with them their skips.
    stays = lambda name: name in ('loss_spikes', 'rollbacks')
    kept = {name: n for name, n in self.events.items() if stays(name)}
    self.events = kept | {name: n for name, n in saved.events.items() if not stays(name)}
    self._count('rollbacks')
    self.seen, self.window, self.in_a_row = saved.seen, saved.window, saved.in_a_row
    rows_before = self.inputs.timeline.rows_before
    self.skipped += rows_before(spike) - rows_before(step)
    self.moves = [*saved.moves, [step, self.skipped]]
    self.step = step

  def _count(self, event):
    self.events = self.events | {event: self.events.get(event, 0) + 1}

  def _not_finite(self, out, name, norms, step):
    """Writes a file for bert_jax.tools.replay; returns the InputError that ends the run."""
    inputs = self.inputs
    rows = inputs.batches.row_numbers(step - 1, self.skipped)
    path = inputs.workdir / f'nonfinite-{step}.json'
    facts = {'step': step, 'rows': rows, 'module_norms': norms, 'moves': self.moves}
    facts |= {name: number(out[name]) for name in ('loss', 'grad_norm')}
    if hosts.first():
      with contextlib.suppress(OSError):
        write_whole(path, json.dumps(facts) + '\n')
    each = ', '.join(f'{k} {float(x):.3g}' for k, x in norms.items())
    named = listed(rows) + f'; gradient norms: {each}' * bool(norms)
    again = f' as in the {self.in_a_row - 1} before it' if self.in_a_row > 1 else ''
    fault = f'the {name} is {float(out[name])} at step {step}{again} (rows {named})'
    advice = 'A lower optimizer.learning_rate, more warmup or float32 often helps'
    alone = f'python -m bert_jax.tools.replay {path} runs the step alone'
    return InputError(f'{fault}, so the run stops; checkpoints are from before. {advice}; {alone}.')
