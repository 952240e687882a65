"""Writes the metrics of a run: metrics.jsonl, trackers, and a line for somebody who watches."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax import files, hosts, metrics
from bert_jax.errors import unwritten
from bert_jax.run.progress import Progress
from bert_jax.run.trackers import Tracker
from bert_jax.workdir import records

if TYPE_CHECKING:
  from bert_jax.run.setup import Run

log = logging.getLogger('bert_jax')

LONG_WAIT = 0.02  # a line mentions waiting for batches from this share of the time on


class Writer:
  """Writes metrics into metrics.jsonl of the workdir, in the first process, and to trackers.
  last: {split: its last line}. start: the step at which the run begins; lines of later steps, which
  a killed run wrote after its last checkpoint, are dropped, since they will be written again.
  evaluates: the evaluation of step `start` is repeated, too."""

  def __init__(
    self, workdir: Path, start: int, trackers: Sequence[Tracker] = (), evaluates: bool = False
  ):
    self.trackers = trackers
    self.last: dict[str, Mapping[str, Any]] = {}
    self.path = workdir / records.METRICS
    self._open(start, evaluates)

  def _open(self, start, evaluates=False):
    self.file = None
    if not hosts.first():
      return
    try:
      self._drop_later(start, evaluates)
      self.file = files.append(self.path)
    except OSError as error:
      raise unwritten(self.path, error) from None

  def _drop_later(self, start, evaluates):
    """Rewrites metrics.jsonl. A file with damaged lines is set aside whole; a line without an end
    was cut off by a kill."""
    if (data := files.read_bytes(self.path)) is None:
      return
    lines = data.split(b'\n')[:-1]
    steps = [_step(line) for line in lines]
    if damaged := [n for n, step in enumerate(steps, 1) if step is None]:
      count, first, aside = len(damaged), damaged[0], files.set_aside(self.path)
      said = '%s is damaged in %d lines, the first of which is line %d: it is set aside as %s'
      log.warning(f'{said}, and the others stay', self.path, count, first, aside)
    kept = [line for line, step in zip(lines, steps) if step is not None and step <= start]
    if evaluates:
      kept = [x for x in kept if (_step(x), json.loads(x).get('split')) != (start, 'eval')]
    self.last = {line['split']: line for line in map(json.loads, kept) if 'split' in line}
    files.write_whole(self.path, b''.join(line + b'\n' for line in kept))

  def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
    if self.file is None:
      return
    line = metrics.to_json({'step': step, 'split': split, **values})
    self.last[split] = json.loads(line)
    try:
      if not files.exists(self.path):  # its folder was removed
        self.file.close()
        self.file = files.append(self.path)
      self.file.write(line + '\n')
      self.file.flush()
      for tracker in self.trackers:
        tracker.write(step, split, values)
    except OSError as error:
      raise unwritten(self.path, error) from None

  def go_back(self, step: int) -> None:
    """Drops the lines past a step."""
    self._close(self.file)
    self._open(step)
    for tracker in self.trackers:
      tracker.go_back(step)

  def close(self) -> None:
    self._close(self.file, *self.trackers)

  def _close(self, *opened):
    try:
      for file in filter(None, opened):
        file.close()
    except OSError as error:
      raise unwritten(self.path, error) from None


def _step(line):
  """The step of a line of metrics.jsonl, or None if the line is damaged."""
  try:
    step = json.loads(line)['step']
  except (ValueError, KeyError, TypeError, RecursionError):
    return None
  return step if isinstance(step, int) else None


class Logger:
  """Writes a line of the metrics since the last line, and updates the progress."""

  def __init__(self, run: 'Run', writer: Writer, progress: Progress):
    self.run, self.writer, self.progress = run, writer, progress

  def due(self, step: int) -> bool:
    """Is a line written after this step?"""
    return step == self.run.inputs.steps or step % self.run.inputs.config.log.every == 0

  def maybe(self, step: int) -> None:
    self.progress.update(self._line(step) if self.due(step) else '')

  def _line(self, step):
    """Writes a line; returns it as text for the progress."""
    run, tally = self.run, self.run.tally
    baselines = run.inputs.batches.source.baselines
    window, tally.window = tally.window, {}
    window |= run.inputs.objective.shares(window) if window else {}
    values, tokens = metrics.values(window, baselines), 0.0
    if window:  # else all its steps were skipped. A part may be from before the run was stopped.
      tokens = float(window['tokens'].total) * run.clock.steps / float(window['loss'].weight)
      values['fill'] = values.pop('tokens')
    speed = run.clock.read(tokens)
    tally.count_damaged(step)
    skipped = tally.events.get('skipped_steps', 0)  # the schedule did not count them
    rate = {'learning_rate': float(run.rates[step - 1 - skipped])}
    self.writer.write(step, 'train', values | rate | speed | tally.counts(run.inputs.config))
    terms = {name: value for name, value in values.items() if name != 'fill'}
    shown = f'{metrics.health(terms, baselines)}  {speed["tokens_per_s"]:,.0f} tokens/s'
    shown += f'  MFU {speed["mfu"]:.1%}' if 'mfu' in speed else ''
    if speed['data_wait'] > LONG_WAIT:
      shown += f'  waits {speed["data_wait"]:.0%} of the time for data'
    if not self.progress.is_bar:
      left = (run.inputs.steps - step) / speed['steps_per_s']
      self.progress.line(f'step {step}/{run.inputs.steps}  {shown}  ETA {left:.0f} s')
    return shown
