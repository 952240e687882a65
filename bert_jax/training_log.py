"""What a run writes while it trains: metrics.jsonl, TensorBoard files, a progress bar or lines."""

import json
import logging
import sys
import threading
from pathlib import Path

import tqdm

from bert_jax import hosts
from bert_jax.errors import unwritten
from bert_jax.metrics import to_json
from bert_jax.whole_files import set_aside, write_whole

log = logging.getLogger('bert_jax')


WAITING = 1000  # numbers that wait for TensorBoard's thread at most; a line has a few dozen


class Writer:
  """Writes metrics.jsonl and, if asked, TensorBoard files into the workdir, in the first process.
  start: the step at which the run begins. A killed run may have written lines of later steps after
  its last checkpoint; they are dropped, since the resumed run writes them again. evaluates: the
  evaluation of step `start` is made up for, so a line of it is dropped, too."""

  def __init__(self, workdir, start, tensorboard, evaluates=False):
    self.workdir, self.tensorboard = workdir, tensorboard
    self.path = Path(workdir) / 'metrics.jsonl'
    self._open(start, evaluates)

  def _open(self, start, evaluates=False):
    self.file = self.board = None
    if not hosts.first():
      return
    try:
      self._drop_later(start, evaluates)
      self.file = self.path.open('a')
    except OSError as error:
      raise unwritten(self.path, error) from None
    if self.tensorboard:
      import tensorboardX  # here: it is slow to import and not every run wants it

      before = _threads()
      self.board = tensorboardX.SummaryWriter(
        str(self.workdir), purge_step=start + 1, max_queue=WAITING
      )
      self.threads = _threads() - before

  def _drop_later(self, start, evaluates):
    """Rewrites metrics.jsonl without the lines that are written again. A file with damaged lines is
    set aside whole; a line without an end was cut off by a kill."""
    if not self.path.exists():
      return
    lines = self.path.read_bytes().split(b'\n')[:-1]
    steps = [_step(line) for line in lines]
    if damaged := [n for n, step in enumerate(steps, 1) if step is None]:
      log.warning(
        '%s is damaged in %d lines, the first of which is line %d: it is set aside as %s, and the '
        'others stay', self.path, len(damaged), damaged[0], set_aside(self.path),
      )  # fmt: skip
    kept = [line for line, step in zip(lines, steps) if step is not None and step <= start]
    if evaluates:
      kept = [x for x in kept if (_step(x), json.loads(x).get('split')) != (start, 'eval')]
    write_whole(self.path, b''.join(line + b'\n' for line in kept))

  def write(self, step, split, metrics):
    if self.file is None:
      return
    try:
      if not self.path.exists():  # its folder was removed
        self.file.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = self.path.open('a')
      self.file.write(to_json({'step': step, 'split': split} | metrics) + '\n')
      self.file.flush()
    except OSError as error:
      raise unwritten(self.path, error) from None
    if self.board and not all(thread.is_alive() for thread in self.threads):
      # What is handed to it now would wait for ever.
      log.warning('TensorBoard files end before step %d, %s goes on', step, self.path)
      self.board = None
    if self.board:
      for name, value in metrics.items():
        self.board.add_scalar(f'{split}/{name}', value, step)

  def back_to(self, step):
    """Drops the lines past a step."""
    self.close()
    self._open(step)

  def close(self):
    try:
      for file in filter(None, (self.file, self.board)):
        file.close()
    except OSError as error:
      raise unwritten(self.path, error) from None


def _threads():
  """The threads that write TensorBoard files."""
  return {x for x in threading.enumerate() if type(x).__module__.startswith('tensorboardX')}


def _step(line):
  """The step of a line of metrics.jsonl, or None if it is not whole."""
  try:
    step = json.loads(line)['step']
  except (ValueError, KeyError, TypeError, RecursionError):
    return None
  return step if isinstance(step, int) else None


class Progress:
  """A bar with loss, tokens/s, MFU and ETA on a terminal; elsewhere plain lines."""

  def __init__(self, steps, start):
    self.bar = tqdm.tqdm(
      total=steps, initial=start, unit='step', dynamic_ncols=True, leave=True,
      disable=None if hosts.first() else True,  # None: shown on a terminal only
    )  # fmt: skip

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
