"""What a run writes while it trains: metrics.jsonl, trackers, a progress bar or lines (that of a
notebook is in notebooks.py)."""

import json
import logging
import sys
from pathlib import Path

import tqdm

from bert_jax import files, hosts, notebooks
from bert_jax.errors import in_notebook, unwritten
from bert_jax.metrics import to_json
from bert_jax.workdir import records

log = logging.getLogger('bert_jax')


class Writer:
  """Writes metrics.jsonl into the workdir, in the first process, and to trackers (trackers.py).
  last: {split: its last line}. start: the step at which the run begins. A killed run may have
  written lines of later steps after its last checkpoint; they are dropped, since the resumed
  run writes them again. evaluates: the evaluation of step `start` is made up for, so a line of it
  is dropped, too."""

  def __init__(self, workdir, start, trackers=(), evaluates=False):
    self.trackers, self.last = trackers, {}
    self.path = Path(workdir) / records.METRICS
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
    """Rewrites metrics.jsonl without the lines that are written again. A file with damaged lines is
    set aside whole; a line without an end was cut off by a kill."""
    if (data := files.read_bytes(self.path)) is None:
      return
    lines = data.split(b'\n')[:-1]
    steps = [_step(line) for line in lines]
    if damaged := [n for n, step in enumerate(steps, 1) if step is None]:
      log.warning(
        '%s is damaged in %d lines, the first of which is line %d: it is set aside as %s, and the '
        'others stay',
        self.path,
        len(damaged),
        damaged[0],
        files.set_aside(self.path),
      )
    kept = [line for line, step in zip(lines, steps) if step is not None and step <= start]
    if evaluates:
      kept = [x for x in kept if (_step(x), json.loads(x).get('split')) != (start, 'eval')]
    self.last = {line['split']: line for line in map(json.loads, kept) if 'split' in line}
    files.write_whole(self.path, b''.join(line + b'\n' for line in kept))

  def write(self, step, split, metrics):
    if self.file is None:
      return
    line = to_json({'step': step, 'split': split} | metrics)
    self.last[split] = json.loads(line)
    try:
      if not files.exists(self.path):  # its folder was removed
        self.file.close()
        self.file = files.append(self.path)
      self.file.write(line + '\n')
      self.file.flush()
      for tracker in self.trackers:
        tracker.write(step, split, metrics)
    except OSError as error:
      raise unwritten(self.path, error) from None

  def back_to(self, step):
    """Drops the lines past a step."""
    self._close(self.file)
    self._open(step)
    for tracker in self.trackers:
      tracker.back_to(step)

  def close(self):
    self._close(self.file, *self.trackers)

  def _close(self, *opened):
    try:
      for file in filter(None, opened):
        file.close()
    except OSError as error:
      raise unwritten(self.path, error) from None


def _step(line):
  """The step of a line of metrics.jsonl, or None if it is not whole."""
  try:
    step = json.loads(line)['step']
  except (ValueError, KeyError, TypeError, RecursionError):
    return None
  return step if isinstance(step, int) else None


def progress_of(steps, start, workdir):
  """What shows how far a run has come: a Progress or, in a notebook, a notebooks.Live."""
  if in_notebook() and hosts.first():
    return notebooks.Live(steps, start, workdir)
  return Progress(steps, start)


class Progress:
  """A bar with loss, tokens/s, MFU and ETA on a terminal; elsewhere plain lines."""

  def __init__(self, steps, start):
    self.bar = tqdm.tqdm(
      total=steps,
      initial=start,
      unit='step',
      dynamic_ncols=True,
      leave=True,
      disable=None if hosts.first() else True,  # None: shown on a terminal only
    )

  def update(self, text):
    self.bar.update()
    if text:
      self.bar.set_postfix_str(text)

  def back_to(self, step):
    self.bar.n = step
    self.bar.refresh()

  def line(self, text):
    """Writes a line to the log, above the bar if there is one."""
    if self.bar.disable:
      log.info(text)
    else:
      self.bar.write(text, file=sys.stderr)

  def close(self):
    self.bar.close()
