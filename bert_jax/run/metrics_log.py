"""What a run writes of its metrics: lines of metrics.jsonl (Writer, Logger), and summary.json."""

import datetime
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bert_jax import buckets, files, hosts, metrics
from bert_jax import config as config_lib
from bert_jax.errors import InputError, first_line, log, writing
from bert_jax.files import Path
from bert_jax.metrics import Level, LossLevel
from bert_jax.run.progress import Progress
from bert_jax.tasks import TASKS
from bert_jax.workdir import recorded, records

if TYPE_CHECKING:
  from bert_jax.run.setup import Run


# ---- lines ---------------------------------------------------------------------------------------


class Writer:
  """Writes metrics into metrics.jsonl of the workdir, in the first process, and to trackers.
  last: {split: its last line}. start: the step at which the run begins; later lines of a killed run
  are dropped, since they will be written again. evaluates: so is the evaluation of step `start`."""

  def __init__(
    self, workdir: Path, start: int, trackers: Sequence[Any] = (), evaluates: bool = False
  ):
    self.trackers = trackers
    self.last: dict[str, Mapping[str, Any]] = {}
    self.path = workdir / records.METRICS
    self.file = None
    self.bytes = self.crc32 = 0  # of metrics.jsonl
    if hosts.first():
      with writing(self.path):
        self._drop_later(start, evaluates)
        self.file = files.append(self.path)

  def _drop_later(self, start, evaluates):
    """Rewrites metrics.jsonl without later lines and without damaged ones."""
    data = files.read_bytes(self.path)
    if data is None:
      return
    kept = []
    for text in data.split(b'\n')[:-1]:
      line = records.line_of(text)
      if line is None:
        log.warning('%s had a damaged line, which is left out', self.path)
        continue
      is_at_start = line['step'] == start and (line['split'] == 'train' or not evaluates)
      if line['step'] < start or is_at_start:
        kept.append(text + b'\n')
        self.last[line['split']] = line
    content = b''.join(kept)
    if content != data:
      self.path.with_name(records.SUMMARY).unlink(missing_ok=True)  # it has the checksum of `data`
      files.write_whole(self.path, content)
    self.bytes, self.crc32 = len(content), zlib.crc32(content)

  def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
    if self.file is None:
      return
    line = metrics.to_json({'step': step, 'split': split, **values})
    self.last[split] = json.loads(line)
    with writing(self.path):
      self.file.write(line + '\n')
      self.file.flush()
      data = f'{line}\n'.encode()
      self.bytes += len(data)
      self.crc32 = zlib.crc32(data, self.crc32)
      for tracker in self.trackers:
        tracker.write(step, split, values)

  def upload(self) -> None:
    """Has the lines in the bucket, before what follows them: a checkpoint, a summary."""
    with writing(self.path):
      if isinstance(self.file, buckets.Written):
        self.file.upload()

  def close(self) -> None:
    with writing(self.path):
      if self.file is not None:
        self.file.close()
      for tracker in self.trackers:
        tracker.close()


class Logger:
  """Writes a line of the metrics since the last line, and updates the progress."""

  def __init__(self, run: 'Run', writer: Writer, progress: Progress):
    self.run, self.writer, self.progress = run, writer, progress

  def due(self, step: int) -> bool:
    return self.run.inputs.is_due(step, self.run.inputs.log_every)

  def log_if_due(self, step: int) -> None:
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
    run, tally, inputs = self.run, self.run.tally, self.run.inputs
    baselines = self._baselines()
    window, tally.window = tally.window, {}
    tokens = 0.0
    if window:  # else all its steps were skipped
      # The means may be of more steps than this process has made since the last line.
      tokens = float(window['tokens'].total) * run.clock.steps / float(window['loss'].weight)
      window |= inputs.objective.derived_metrics(window)
    values = metrics.values(window, baselines)
    if 'tokens' in values:
      values['fill'] = values.pop('tokens')
    speed = run.clock.read(tokens)
    counted = step - tally.events.get('skipped_steps', 0)  # the schedule counts no skipped step
    rate = {'learning_rate': float(run.rates[counted - 1])}
    self.writer.write(step, 'train', values | rate | speed | tally.counts())
    shown = dict(values)
    shown.pop('fill', None)
    rows_before = inputs.timeline.rows_before
    text = (
      f'{health(shown, baselines)}  tokens={tally.data_counts.get("seen_tokens", 0):,.0f}  '
      f'passes={inputs.passes(rows_before(step)):,.2f}  {pace(speed)}'
    )
    if not self.progress.is_bar:
      batches_left = (rows_before(inputs.steps) - rows_before(step)) / inputs.config.batch_size
      eta = datetime.timedelta(seconds=round(batches_left * run.clock.seconds_per_batch()))
      self.progress.line(f'step {step}/{inputs.steps}  {text}  ETA={eta}')
    return text


def pace(speed: Mapping[str, float]) -> str:
  """The speed of a run as text: 'tokens/s=1,234  MFU=25.1%  goodput=88%'."""
  out = f'tokens/s={speed["tokens_per_s"]:,.0f}'
  if 'mfu' in speed:
    out += f'  MFU={speed["mfu"]:.1%}'
  return f'{out}  goodput={speed["goodput"]:.0%}  data_wait={speed["data_wait"]:.0%}'


def health(values: Mapping[str, float], baselines: Mapping[str, Level]) -> str:
  """The metrics as a line: 'mlm 4.102 (1.80 below unigram)  nsp_accuracy 0.71 (prior 0.53)'."""
  own = metrics.own_levels(values)
  hidden = {'constant', *(f'{name}_{level.kind}' for name, level in own.items())}
  hidden |= {f'{name}_below_{level.kind}' for name, level in baselines.items()}
  parts = []
  for name, value in values.items():
    if name in hidden or name.endswith(metrics.REGRESSION):
      continue
    text = f'{name} {value:.4g}'
    level = own.get(name) or baselines.get(name)
    if level and level.kind in metrics.LOSSES:
      side = 'below' if value < level.value else 'ABOVE'
      text += f' ({abs(level.value - value):.2f} {side} {level.kind})'
    elif level and level.value:
      text += f' ({level.kind} {level.value:.2f})'
    frozen = values.get(name + metrics.REGRESSION)
    if frozen is not None:
      text += f' (logistic regression on the frozen starting vectors: {frozen:.2f})'
    parts.append(text)
  if 'constant' in values:
    parts.append('one answer for all')
  return '  '.join(parts)


# ---- summary -------------------------------------------------------------------------------------


class SummaryFile:
  """Writes summary.json (workdir/recorded.py) when it is entered, when something was saved, and at
  the end."""

  def __init__(self, run: 'Run', writer: Writer):
    self.run, self.writer = run, writer
    self.state = 'running'

  def __enter__(self) -> 'SummaryFile':
    self.write()
    return self

  def __exit__(self, kind: Any, error: Any, _: Any) -> None:
    if kind:
      self.state = 'stopped' if issubclass(kind, KeyboardInterrupt) else 'failed'
    self.write(first_line(error) if self.state == 'failed' else '')

  def write_if_due(self, step: int) -> None:
    """Writes summary.json if there is a checkpoint or an evaluation of this step."""
    evaluated = self.writer.last.get('eval', {}).get('step')
    if step in (self.run.checkpoints.newest.get('step'), evaluated):
      self.write()

  def write(self, error: str = '') -> None:
    if not hosts.first():
      return
    inputs = self.run.inputs
    config = inputs.config
    summary = recorded.Summary(
      state=self.state,
      step=self.run.tally.step,
      steps=inputs.steps,
      metric=TASKS[config.objective].judge(config),
      config=config_lib.fingerprint(config),
      bytes=self.writer.bytes,
      crc32=self.writer.crc32,
      last=self.writer.last,
      error=error,
    )
    path = inputs.workdir / records.SUMMARY
    try:
      self.writer.upload()  # the lines whose checksum it has
      files.write_sealed(path, summary.to_json())
    except (OSError, InputError) as fault:  # nothing depends on it
      log.warning('%s cannot be written: %s', path, first_line(fault))
