"""Trackers, which get the metrics of a run besides metrics.jsonl: TensorBoard, Weights & Biases."""

import contextlib
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax import files, hosts
from bert_jax.buckets import UPLOAD_SECONDS, Bucket
from bert_jax.copies import place, staged
from bert_jax.errors import InputError, first_line, unwritten
from bert_jax.files import Path


def check(config: ConfigDict) -> None:
  """InputError if a tracker that a config asks for cannot be used here."""
  if config.log.wandb == 'off' or not hosts.first():
    return
  wandb = _wandb()
  if config.log.wandb == 'online' and not _knows_key(wandb):
    fault = 'log.wandb=online, and Weights & Biases knows no key of yours'
    raise InputError(f'{fault}; run "wandb login" once, or set --config.log.wandb=offline.')


def opened(config: ConfigDict, workdir: Path, start: int) -> 'list[Tracker]':
  """Opens the trackers of a config in the first process, for a run that begins at step `start`."""
  trackers: list[Tracker] = []
  if hosts.first() and config.log.tensorboard:
    trackers.append(TensorBoard(workdir, start))
  if hosts.first() and config.log.wandb != 'off':
    trackers.append(WeightsAndBiases(workdir, config))
  return trackers


class TensorBoard:
  """Writes TensorBoard's event files in the thread that trains: the thread of tensorboardX's
  SummaryWriter hangs once a disk was full. start: TensorBoard hides later steps before it."""

  def __init__(self, workdir: Path, start: int):
    self.workdir, self.due = workdir, 0.0
    self._open(start)

  def _open(self, start):
    modules: dict[str, Any] = sys.modules
    hidden = modules.setdefault('torch', None) is None  # its import takes seconds, and is not used
    try:
      from tensorboardX import event_file_writer, summary
      from tensorboardX.proto import event_pb2
    finally:
      if hidden:
        del modules['torch']
    proto: Any = event_pb2
    self.scalar, self.event = summary.scalar, proto.Event
    # Files that begin in the same second have names of their own.
    self.file = event_file_writer.EventsWriter(str(staged(self.workdir / 'events')), f'.{start}')
    self.written = Path(self.file._file_name)
    self._write(step=start + 1, session_log=proto.SessionLog(status=proto.SessionLog.START))

  def _write(self, **content):
    self.file.write_event(self.event(wall_time=time.time(), **content))

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
      self._write(step=step, summary=self.scalar(f'{split}/{name}', value))
    self.file.flush()
    if isinstance(self.workdir, Bucket) and time.monotonic() >= self.due:
      self.due = time.monotonic() + UPLOAD_SECONDS
      with contextlib.suppress(OSError):  # it will be uploaded again
        place(self.written, self.workdir / self.written.name)
      if self.written.stat().st_size > 1 << 20:
        self.go_back(step)  # to a new file, since one is uploaded whole each time

  def go_back(self, step: int) -> None:
    """Hides the steps past this one, which will be written again."""
    self.close()
    self._open(step)

  def close(self) -> None:
    self.file.close()
    place(self.written, self.workdir / self.written.name)


class WeightsAndBiases:
  """Writes metrics to a run of https://wandb.ai with the name of the workdir; offline to
  WORKDIR/wandb. Project and group are set by the environment (WANDB_PROJECT). A run that continues
  keeps its id, and points of steps that it went back over stay: wandb never drops a point."""

  def __init__(self, workdir: Path, config: ConfigDict):
    folder, self.folder = workdir.absolute(), workdir / 'wandb'
    drawn = folder / 'wandb' / 'id.txt'  # the id of the run
    try:
      if not files.exists(drawn):
        files.make_folder(drawn.parent)
        files.write_whole(drawn, uuid.uuid4().hex[:12] + '\n')
      about: dict[str, Any] = {'name': folder.name, 'config': config.to_dict(), 'resume': 'allow'}
      about |= {'mode': config.log.wandb, 'settings': {'console': 'off', 'silent': True}}
      about |= {'dir': str(staged(drawn.parent).parent), 'id': files.read_text(drawn).strip()}
      self.run = _wandb().init(**about)
    except OSError as error:
      raise unwritten(folder / 'wandb', error) from None
    except _wandb().Error as error:
      advice = 'set --config.log.wandb=offline'
      raise InputError(f'Weights & Biases: {first_line(error)}; {advice}.') from None
    self.run.define_metric('*', step_metric='step')  # its own counter knows no way back

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    self.run.log({'step': step} | {f'{split}/{name}': x for name, x in metrics.items()})

  def go_back(self, step: int) -> None:
    pass

  def close(self) -> None:
    self.run.finish()
    place(staged(self.folder), self.folder)


Tracker = TensorBoard | WeightsAndBiases


def _wandb():
  """The package wandb, or an InputError. (A folder of that name imports as an empty package.)"""
  try:
    import wandb  # pyrefly: ignore[missing-import]  # optional

    wandb.init  # noqa: B018
  except (ImportError, AttributeError):
    advice = 'pip install wandb, or set it to off'
    raise InputError(f'log.wandb needs the package wandb; {advice}.') from None
  return wandb


def _knows_key(wandb):
  try:
    return wandb.login(prompt=False)
  except TypeError:  # of a version whose login always asks
    return bool(wandb.api.api_key)
