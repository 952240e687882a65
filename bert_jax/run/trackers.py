"""Trackers, which get the metrics of a run besides metrics.jsonl: TensorBoard and Weights & Biases,
whose package is imported only if a config asks for it."""

import contextlib
import importlib
import os
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax import files, hosts
from bert_jax.buckets import UPLOAD_SECONDS, Bucket
from bert_jax.copies import place, staged
from bert_jax.errors import InputError, first_line, writing
from bert_jax.files import Path


class TensorBoard:
  """Writes TensorBoard's event files in the thread that trains: the thread of tensorboardX's
  SummaryWriter hangs once a disk was full. start: TensorBoard hides later steps before it."""

  def __init__(self, workdir: Path, start: int):
    self.workdir, self.due = workdir, 0.0
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
    begins = proto.SessionLog(status=proto.SessionLog.START)
    self.file.write_event(proto.Event(wall_time=time.time(), step=start + 1, session_log=begins))

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
      scalar = self.scalar(f'{split}/{name}', value)
      self.file.write_event(self.event(wall_time=time.time(), step=step, summary=scalar))
    self.file.flush()
    if isinstance(self.workdir, Bucket) and time.monotonic() >= self.due:
      self.due = time.monotonic() + UPLOAD_SECONDS
      with contextlib.suppress(OSError):  # it will be uploaded again
        place(self.written, self.workdir / self.written.name)

  def close(self) -> None:
    self.file.close()
    place(self.written, self.workdir / self.written.name)


class WeightsAndBiases:
  """Writes metrics to a run of https://wandb.ai with the name of the workdir; offline to
  WORKDIR/wandb. Project and group are set by the environment (WANDB_PROJECT). A run that continues
  keeps its id; points of steps that it makes again stay: wandb never drops a point."""

  def __init__(self, workdir: Path, config: ConfigDict):
    wandb = _wandb()
    self.folder = workdir / 'wandb'
    try:
      with writing(self.folder):
        self.run = wandb.init(
          id=_id(self.folder),
          name=os.path.basename(os.path.abspath(workdir)),
          config=config.to_dict(),
          resume='allow',
          mode=config.log.wandb,
          settings={'console': 'off', 'silent': True},
          dir=os.path.abspath(staged(self.folder).parent),
        )
    except wandb.Error as error:
      raise InputError(f'Weights & Biases: {first_line(error)}; set log.wandb=offline.') from None
    self.run.define_metric('*', step_metric='step')  # its own counter knows no way back

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    self.run.log({'step': step} | {f'{split}/{name}': x for name, x in metrics.items()})

  def close(self) -> None:
    self.run.finish()
    place(staged(self.folder), self.folder)


def check(config: ConfigDict) -> None:
  """InputError if a tracker that a config asks for cannot be used here."""
  if config.log.wandb != 'off' and hosts.first():
    _wandb()


def opened(config: ConfigDict, workdir: Path, start: int) -> list[Any]:
  """Opens the trackers of a config, for a run that begins at step `start`. Of several processes the
  first one has them."""
  trackers: list[Any] = []
  if config.log.tensorboard and hosts.first():
    trackers.append(TensorBoard(workdir, start))
  if config.log.wandb != 'off' and hosts.first():
    trackers.append(WeightsAndBiases(workdir, config))
  return trackers


def _id(folder):
  """The id of a run at Weights & Biases, made once and kept in a folder."""
  with writing(folder):
    if not files.exists(folder / 'id.txt'):
      files.make_folder(folder)
      files.write_whole(folder / 'id.txt', uuid.uuid4().hex[:12] + '\n')
    return files.read_text(folder / 'id.txt').strip()


def _wandb():
  """The optional package."""
  try:
    return importlib.import_module('wandb')
  except ImportError:
    raise InputError(
      'log.wandb needs the package wandb; pip install wandb, or leave it out.'
    ) from None
