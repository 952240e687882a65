"""Writes the metrics of a run: metrics.jsonl, trackers, and a line for somebody who watches."""

import datetime
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax import buckets, files, hosts, metrics
from bert_jax.errors import log, writing
from bert_jax.files import Path
from bert_jax.metrics import Level, LossLevel, own_levels
from bert_jax.run.progress import Progress
from bert_jax.run.setup import Run
from bert_jax.run.trackers import Tracker
from bert_jax.tasks import TASKS
from bert_jax.workdir import records

LONG_WAIT = 0.02  # a line mentions waiting for batches or saves from this share of the time on


class Writer:
  """Writes metrics into metrics.jsonl of the workdir, in the first process, and to trackers.
  last: {split: its last line}. start: the step at which the run begins; later lines of a killed run
  are dropped, since they will be written again. evaluates: so is the evaluation of step `start`."""

  def __init__(
    self, workdir: Path, start: int, trackers: Sequence[Tracker] = (), evaluates: bool = False
  ):
    self.trackers = trackers
    self.last: dict[str, Mapping[str, Any]] = {}
    self.path = workdir / records.METRICS
    self._open(start, evaluates)

  def _open(self, start, evaluates=False):
    self.file, self.written = None, (0, 0)  # the bytes and CRC-32 of metrics.jsonl
    if hosts.first():
      with writing(self.path):
        self._drop_later(start, evaluates)
        self.file = files.append(self.path)

  def _drop_later(self, start, evaluates):
    """Rewrites metrics.jsonl without later lines; with damaged lines it is set aside whole."""
    if (data := files.read_bytes(self.path)) is None:
      return
    lines = [(records.line_of(text), text) for text in data.split(b'\n')[:-1]]
    if damaged := [n for n, (line, _) in enumerate(lines, 1) if line is None]:
      count, first, aside = len(damaged), damaged[0], files.set_aside(self.path)
      said = '%s is damaged in %d lines, the first of which is line %d: it is set aside as %s'
      log.warning(f'{said}, and the others stay', self.path, count, first, aside)
    repeats = lambda line: evaluates and line['step'] == start and line['split'] != 'train'
    stays = lambda line: line['step'] <= start and not repeats(line)
    kept = [(line, text) for line, text in lines if line and stays(line)]
    self.last = {line['split']: line for line, _ in kept}
    content = b''.join(text + b'\n' for _, text in kept)
    if content != data:
      # It has the checksum of these lines.
      self.path.with_name(records.SUMMARY).unlink(missing_ok=True)
      files.write_whole(self.path, content)
    self.written = len(content), zlib.crc32(content)

  def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
    if self.file is None:
      return
    line = metrics.to_json({'step': step, 'split': split, **values})
    self.last[split] = json.loads(line)
    with writing(self.path):
      is_on_disk = not isinstance(self.path, buckets.Bucket)
      if is_on_disk and not files.exists(self.path):  # its folder was removed
        self.file.close()
        self.file, self.written = files.append(self.path), (0, 0)
      self.file.write(line + '\n')
      self.file.flush()
      (size, crc), data = self.written, f'{line}\n'.encode()
      self.written = size + len(data), zlib.crc32(data, crc)
      for tracker in self.trackers:
        tracker.write(step, split, values)

  def upload(self) -> None:
    """Has the lines in the bucket, before a checkpoint that follows them."""
    with writing(self.path):
      if isinstance(self.file, buckets.Written):
        self.file.flush(ends=True)

  def go_back(self, step: int) -> None:
    self._close(self.file)
    self._open(step)
    for tracker in self.trackers:
      tracker.go_back(step)

  def close(self) -> None:
    self._close(self.file, *self.trackers)

  def _close(self, *opened):
    with writing(self.path):
      for file in filter(None, opened):
        file.close()


class Logger:
  """Writes a line of the metrics since the last line, and updates the progress."""

  def __init__(self, run: Run, writer: Writer, progress: Progress):
    self.run, self.writer, self.progress = run, writer, progress

  def due(self, step: int) -> bool:
    return step == self.run.inputs.steps or step % self.run.inputs.log_every == 0

  def maybe(self, step: int) -> None:
    self.progress.update(self._line(step) if self.due(step) else '')

  def _baselines(self):
    """Baselines of a line. Of labelled examples a line has few, whose losses are not compared with
    a baseline of all: a few numbers far from the mean are most of a squared error."""
    known = self.run.inputs.batches.source.baselines
    if TASKS[self.run.inputs.config.objective].reads_corpus:
      return known
    return {name: x for name, x in known.items() if not isinstance(x, LossLevel)}

  def _line(self, step):
    """Writes a line; returns it as text for the progress."""
    run, tally = self.run, self.run.tally
    baselines, log_every = self._baselines(), run.inputs.log_every
    window, tally.window = tally.window, {}
    window |= run.inputs.objective.derived_metrics(window) if window else {}
    values, tokens, few = metrics.values(window, baselines), 0.0, ''
    if window:  # else all its steps were skipped. A part may be from before the run was stopped.
      tokens = float(window['tokens'].total) * run.clock.steps / float(window['loss'].weight)
      values['fill'] = values.pop('tokens')
      steps = round(float(window['loss'].weight))
      few = f'(means of {steps:,}, not {log_every:,} steps) ' if 2 * steps < log_every else ''
    speed = run.clock.read(tokens)
    skipped = tally.events.get('skipped_steps', 0)  # the schedule did not count them
    rate = {'learning_rate': float(run.rates[step - 1 - skipped])}
    self.writer.write(step, 'train', values | rate | speed | tally.counts(run.inputs.config))
    is_one = len(run.inputs.objective.loss_weights) == 1  # the loss, or in other units
    terms = {name: x for name, x in values.items() if name not in ('fill', 'loss' * is_one)}
    rows, size = run.inputs.timeline.rows_before, run.inputs.config.batch_size
    passes = run.inputs.passes(rows(step) + tally.skipped)
    seen = tally.seen.get('seen_tokens', 0)
    amount = f'{seen / 1e6:,.2f} M' if seen >= 1e5 else f'{seen:,.0f}'
    shown = f'{few}{health(terms, baselines)}  {amount} tokens  {passes:,.2f} passes  {pace(speed)}'
    if not self.progress.is_bar:
      each = sum(run.clock.before.values()) / run.clock.done  # with evaluations, saves
      eta = datetime.timedelta(seconds=round((rows(run.inputs.steps) - rows(step)) / size * each))
      self.progress.line(f'step {step}/{run.inputs.steps}  {shown}  ETA {eta}')
    return shown


def pace(speed: Mapping[str, float]) -> str:
  """How fast a run is, and what it waits for: '1,234 tokens/s  MFU 25.1%  goodput 88%'."""
  process = lambda key: f' (process {speed[key]})' if key in speed else ''
  out = f'{speed["tokens_per_s"]:,.0f} tokens/s'
  out += f'  MFU {speed["mfu"]:.1%}' if 'mfu' in speed else ''
  out += f'  goodput {speed["goodput"]:.0%}'
  seconds = {what: speed[f'{what}_seconds'] for what in ('step', 'data', 'eval', 'save')}
  every = max(sum(seconds.values()), 1e-9)
  saves, trained = seconds['save'] / every, (seconds['step'] + seconds['data']) / every
  if (data := speed['data_wait'] * trained) > LONG_WAIT:
    out += f'  waits {data:.0%} of the time for data{process("data_wait_process")}'
  out += f'  waits {saves:.0%} of the time for saves' * (saves > LONG_WAIT)
  return out + '  all wait for a slow one' * ('slow_process' in speed) + process('slow_process')


def health(metrics: Mapping[str, float], baselines: Mapping[str, Level]) -> str:
  """The metrics as a line: 'mlm 4.102 (1.80 below unigram)  nsp_accuracy 0.71 (prior 0.53)'."""
  derived = {f'{name}_below_{x.kind}' for name, x in baselines.items() if isinstance(x, LossLevel)}
  own = own_levels(metrics)
  baselines = {**baselines, **own}
  derived |= {'constant', *(f'{name}_{x.kind}' for name, x in own.items())}

  def said(name, value):
    level, kind = baseline = baselines.get(name, Level(0.0, ''))
    if isinstance(baseline, LossLevel):
      gap = f'{abs(level - value):.2f} {"below" if value < level else "ABOVE"}'
      return f'{name} {value:.4g} ({"at" if gap.startswith("0.00") else gap} {kind})'
    beside = f' ({kind} {level:.2f})' if level else ''  # 0 says nothing
    return f'{name} {value:.4g}{beside}'

  parts = [said(*pair) for pair in metrics.items() if pair[0] not in derived]
  return '  '.join(parts + ['one answer for all'] * ('constant' in metrics))
