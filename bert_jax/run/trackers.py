"""Trackers, which get the metrics of a run besides metrics.jsonl: TensorBoard and Weights & Biases,
whose package is imported only if a config asks for it."""

import abc
import contextlib
import importlib
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax import files, hosts
from bert_jax.buckets import UPLOAD_SECONDS, Bucket
from bert_jax.copies import place, staged
from bert_jax.errors import InputError, first_line, writing
from bert_jax.files import Path


class Tracker(abc.ABC):
  """Gets the metrics of a run as they are written. It is made with (workdir, config, the step at
  which the run begins)."""

  @abc.abstractmethod
  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None: ...

  @abc.abstractmethod
  def close(self) -> None: ...


class TensorBoard(Tracker):
  """Writes TensorBoard's event files in the thread that trains: the thread of tensorboardX's
  SummaryWriter hangs once a disk was full. start: TensorBoard hides later steps before it."""

  def __init__(self, workdir: Path, config: ConfigDict, start: int):
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
        self.close()  # and goes on in a new file, since one is uploaded whole each time
        self._open(step)

  def close(self) -> None:
    self.file.close()
    place(self.written, self.workdir / self.written.name)


class WeightsAndBiases(Tracker):
  """Writes metrics to a run of https://wandb.ai with the name of the workdir; offline to
  WORKDIR/wandb. Project and group are set by the environment (WANDB_PROJECT). A run that continues
  keeps its id, and points of steps that it went back over stay: wandb never drops a point."""

  def __init__(self, workdir: Path, config: ConfigDict, start: int):
    wandb, self.folder = _package('wandb'), workdir / 'wandb'
    about: dict[str, Any] = {'id': _id(workdir, 'wandb', lambda: uuid.uuid4().hex[:12])}
    about |= {'name': workdir.absolute().name, 'config': config.to_dict(), 'resume': 'allow'}
    about |= {'mode': config.log.wandb, 'settings': {'console': 'off', 'silent': True}}
    try:
      with writing(workdir.absolute() / 'wandb'):
        self.run = wandb.init(dir=str(staged(workdir.absolute() / 'wandb').parent), **about)
    except wandb.Error as error:
      advice = 'set --config.log.wandb=offline'
      raise InputError(f'Weights & Biases: {first_line(error)}; {advice}.') from None
    self.run.define_metric('*', step_metric='step')  # its own counter knows no way back

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    self.run.log({'step': step} | {f'{split}/{name}': x for name, x in metrics.items()})

  def close(self) -> None:
    self.run.finish()
    place(staged(self.folder), self.folder)


# {field of config.log: its tracker}. TensorBoard's package is always there.
KINDS: dict[str, Callable[[Path, ConfigDict, int], Tracker]]
KINDS = {'tensorboard': TensorBoard, 'wandb': WeightsAndBiases}


def _asked(config):
  """The names of the trackers of a config; of several processes the first one has them."""
  return [x for x in KINDS if hosts.first() and config.log[x] not in (False, '', 'off')]


def check(config: ConfigDict) -> None:
  """InputError if a tracker that a config asks for cannot be used here."""
  packages = {name: _package(name) for name in _asked(config) if name != 'tensorboard'}
  if config.log.wandb == 'online' and 'wandb' in packages and not _knows_key(packages['wandb']):
    fault = 'log.wandb=online, and Weights & Biases knows no key of yours'
    raise InputError(f'{fault}; run "wandb login" once, or set --config.log.wandb=offline.')


def opened(config: ConfigDict, workdir: Path, start: int) -> list[Tracker]:
  """Opens the trackers of a config, for a run that begins at step `start`."""
  return [KINDS[name](workdir, config, start) for name in _asked(config)]


def _id(workdir, tracker, make):
  """The id of a run at a tracker, made once and kept in WORKDIR/TRACKER/id.txt."""
  folder = workdir.absolute() / tracker
  with writing(folder):
    if not files.exists(folder / 'id.txt'):
      files.make_folder(folder)
      files.write_whole(folder / 'id.txt', make() + '\n')
    return files.read_text(folder / 'id.txt').strip()


def _package(name):
  """An optional package, or an InputError. (A folder of its name imports as an empty package.)"""
  try:
    package = importlib.import_module(name)
    if getattr(package, '__file__', None):
      return package
  except ImportError:
    pass
  advice = f'pip install {name}, or leave it out'
  raise InputError(f'log.{name} needs the package {name}; {advice}.')


def _knows_key(wandb):
  try:
    return wandb.login(prompt=False)
  except TypeError:  # of a version whose login always asks
    return bool(wandb.api.api_key)
