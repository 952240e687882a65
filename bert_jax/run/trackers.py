"""Trackers, which get the metrics of a run besides metrics.jsonl: TensorBoard, Weights & Biases,
MLflow and trackio. The packages of the last three are imported only if a config asks for them."""

import abc
import contextlib
import importlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files, hosts
from bert_jax.buckets import UPLOAD_SECONDS, Bucket
from bert_jax.copies import place, staged
from bert_jax.errors import InputError, first_line, log, writing
from bert_jax.files import Path


class Tracker(abc.ABC):
  """Gets the metrics of a run as they are written. It is made with (workdir, config, the step at
  which the run begins)."""

  @abc.abstractmethod
  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None: ...

  def go_back(self, step: int) -> None:  # noqa: B027  # most of them drop no point
    """Is told that the steps past this one will be written again."""

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
        self.go_back(step)  # to a new file, since one is uploaded whole each time

  def go_back(self, step: int) -> None:
    """Hides the steps past this one, which will be written again."""
    self.close()
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


class MLflow(Tracker):
  """Writes metrics to a run of an MLflow store: log.mlflow is its address, such as
  sqlite:///runs/mlflow.db or http://HOST:5000, and MLFLOW_EXPERIMENT_NAME its experiment. A run
  that continues keeps its id, and points of steps that it went back over stay. Points that cannot
  be written are kept and written with the next ones; the run goes on."""

  def __init__(self, workdir: Path, config: ConfigDict, start: int):
    mlflow = _package('mlflow')
    self.metric, self.waiting = mlflow.entities.Metric, []
    experiment = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'bert_jax')
    name, fields = workdir.absolute().name, config_lib.flatten(config).items()
    try:
      self.client = mlflow.MlflowClient(config.log.mlflow)
      known = self.client.get_experiment_by_name(experiment)
      number = known.experiment_id if known else self.client.create_experiment(experiment)
      create = lambda: self.client.create_run(number, run_name=name).info.run_id
      self.id = _id(workdir, 'mlflow', create)
      self.client.update_run(self.id, status='RUNNING')
      there = self.client.get_run(self.id).data.params  # which can never change
      new = {key: str(x)[:6000] for key, x in fields if str(x) and key not in there}
      parameters = [mlflow.entities.Param(key, x) for key, x in new.items()]
      for i in range(0, len(parameters), 100):  # the most of one call
        self.client.log_batch(self.id, params=parameters[i : i + 100])
    except Exception as error:  # of the store, its network or its database
      advice = 'check the address, or set it to nothing'
      raise InputError(f'log.mlflow: {first_line(error)}; {advice}.') from None

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    now = int(1000 * time.time())
    self.waiting += [self.metric(f'{split}/{k}', x, now, step) for k, x in metrics.items()]
    try:
      while self.waiting:
        self.client.log_batch(self.id, metrics=self.waiting[:1000])  # the most of one call
        del self.waiting[:1000]
    except Exception as error:
      log.warning('MLflow: %s; its points are kept and written later', first_line(error))

  def close(self) -> None:
    self.client.set_terminated(self.id)


class Trackio(Tracker):
  """Writes metrics to a project of trackio (`trackio show`), whose name log.trackio is: on this
  machine, or on a Space of the Hub (TRACKIO_SPACE_ID). A run that continues keeps its name, and
  points of steps that it went back over stay."""

  def __init__(self, workdir: Path, config: ConfigDict, start: int):
    name = f'{workdir.absolute().name}-{_id(workdir, "trackio", lambda: uuid.uuid4().hex[:6])}'
    about: dict[str, Any] = {'config': config.to_dict(), 'resume': 'allow', 'embed': False}
    about |= {'auto_log_gpu': False, 'auto_log_cpu': False}
    try:
      with contextlib.redirect_stdout(sys.stderr):
        self.run = _package('trackio').init(project=config.log.trackio, name=name, **about)
    except Exception as error:  # of its database, the Hub or the network
      advice = 'mend it, or set it to nothing'
      raise InputError(f'log.trackio: {first_line(error)}; {advice}.') from None

  def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
    self.run.log({f'{split}/{name}': x for name, x in metrics.items()}, step=step)

  def close(self) -> None:
    with contextlib.redirect_stdout(sys.stderr):
      self.run.finish()


# {field of config.log: its tracker}. TensorBoard's package is always there.
KINDS: dict[str, Callable[[Path, ConfigDict, int], Tracker]]
KINDS = {'tensorboard': TensorBoard, 'wandb': WeightsAndBiases, 'mlflow': MLflow}
KINDS['trackio'] = Trackio


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
