"""Checkpoints: saved atomically by Orbax, and verified by checksums when they are restored.

Orbax restores a flipped bit without an error, so the checksum of every array (manifest.py) is
stored beside it. A damaged checkpoint is put aside and the newest good one is used.

Orbax writes to disks and gs://. For other buckets (s3://) it writes to the disk of this machine,
and the run waits until the checkpoint is uploaded from there, Orbax's note of it last.
"""

import contextlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict
from orbax.checkpoint import checkpoint_managers as policies

from bert_jax import files, hosts, step
from bert_jax.buckets import Bucket, remove_tree
from bert_jax.copies import place, staged
from bert_jax.errors import InputError, Unwritten, first_line, listed, log
from bert_jax.files import Path, seal, write_whole
from bert_jax.workdir import manifest, saved_steps
from bert_jax.workdir.manifest import PARTS, Damaged


def newest_meta(workdir: str | Path) -> dict[str, Any] | None:
  """The metadata of a workdir's newest readable checkpoint, or None. It writes nothing."""
  if not hosts.exists(Path(workdir).expanduser() / 'checkpoints'):
    return None
  with contextlib.closing(Checkpoints(workdir)) as checkpoints:
    return checkpoints.newest_good(checkpoints.meta, log.debug)[0] if checkpoints.steps() else None


def best_of(workdir: Any, best: Mapping[str, Any], settings: ConfigDict) -> Mapping[str, Any]:
  """Says which step of a workdir is the best by `best` of its newest metadata, and returns that,
  {'step', 'metrics', ..}; {} if there is none by these settings, its config.checkpoint."""
  metric = settings.best_metric
  if not best['metrics'] or not best['of'].startswith(f'{metric} {settings.best_mode} '):
    return {}
  log.info(
    '%s: step %d counts, the best by %s (of equal ones the last)', workdir, best['step'], metric
  )
  return best


def _finite(metrics):
  return {name: value for name, value in metrics.items() if math.isfinite(value)}


def is_staged(folder: Any) -> bool:
  """Whether checkpoints are written on a disk and then uploaded, since Orbax cannot write there."""
  return isinstance(folder, Bucket) and folder.protocol != 'gs'


def check_processes(workdir: Any) -> None:
  """InputError if this is one of several processes and they cannot write checkpoints there."""
  if is_staged(workdir) and jax.process_count() > 1:
    raise InputError(f'only one process writes to {workdir}; use gs:// or a disk of all.')


class Checkpoints(policies.PreservationPolicy):
  """The checkpoints of a workdir. settings: config.checkpoint; None: read-only. identity: what
  every checkpoint stores about its config and data. judged_by: names the metric and the data that
  make the best."""

  def __init__(
    self,
    workdir: str | Path,
    settings: ConfigDict | None = None,
    identity: Mapping[str, str] = MappingProxyType({}),
    judged_by: str = '',
  ):
    self.folder: Any = Path(workdir).expanduser().absolute() / 'checkpoints'
    self.is_staged = is_staged(self.folder)
    self.writes, self.settings = settings is not None, settings or ConfigDict()
    self.identity, self.judged_by = identity, judged_by
    self.best = self._no_best(0)
    self.newest: Mapping[str, Any] = {}  # the metadata of the checkpoint saved last
    self.manager = self._open()

  def _no_best(self, number):
    """The value of `best` before the first evaluation. since: the step patience counts from."""
    none = {'goodness': -math.inf, 'of': self.judged_by, 'metrics': {}}
    return none | {'step': number, 'since': number}

  def _open(self):
    in_bucket = isinstance(self.folder, Bucket)
    if self.writes and in_bucket:
      whole = {str(number) for number in saved_steps.newest_first(self.folder)}
      for name in files.names(self.folder):
        if name.isdecimal() and name not in whole:
          remove_tree(self.folder / name)  # its upload was cut off
      remove_tree(staged(self.folder))
    if self.writes:
      options = ocp.CheckpointManagerOptions(
        preservation_policy=self,
        cleanup_tmp_directories=not in_bucket,  # copied there, all would seem unfinished
      )
    elif self.folder.is_dir():
      options = ocp.CheckpointManagerOptions(read_only=True, create=False)
    else:
      raise InputError(f'{self.folder.parent} holds no checkpoint; train it first.')
    folder = str(staged(self.folder) if self.is_staged else self.folder)
    files.make_folder(folder)
    return ocp.CheckpointManager(folder, options=options, item_names=(*PARTS, 'meta'))

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
    """Tells Orbax which checkpoints to keep when another one is written."""
    kept = self.kept([info.step for info in checkpoints])
    return [info.step in kept for info in checkpoints]

  def kept(self, steps: Collection[int]) -> set[int]:
    """Which of these steps keep their checkpoints: the latest, the multiples, the best."""
    kept = set(sorted(steps)[-self.settings.keep_latest :])
    if self.settings.keep_every:
      kept |= {step for step in steps if step % self.settings.keep_every == 0}
    if self.best['metrics']:
      kept.add(self.best['step'])
    return kept & set(steps)

  def steps(self) -> list[int]:
    by_orbax = self.writes and not self.is_staged
    return sorted(self.manager.all_steps() if by_orbax else saved_steps.newest_first(self.folder))

  def is_best(self, metrics: Mapping[str, float], number: int) -> bool:
    """Whether the evaluation at step `number` is the best so far; the next save stores that. Of
    equal ones it is the later, which has learned more, though patience counts from the first."""
    value = metrics.get(self.settings.best_metric, math.nan)
    goodness = value if self.settings.best_mode == 'max' else -value
    if not math.isfinite(value) or goodness < self.best['goodness']:
      return False
    since = number if goodness > self.best['goodness'] else self.best['since']
    found = {'goodness': goodness, 'since': since, 'metrics': _finite(metrics)}
    self.best = self._no_best(number) | found
    return True

  def save(
    self,
    state: step.State,
    metrics: Mapping[str, float],
    tally: Mapping[str, Any] = MappingProxyType({}),
  ) -> None:
    """Starts writing the checkpoint of state.step; returns once the arrays may be donated.
    metrics: of the evaluation at this step, or {}; saving the step again adds them. tally: what
    else the loop needs to continue, see Tally.to_meta."""
    number = int(jax.device_get(state.step))
    metrics = _finite(metrics)
    if number in self.steps():
      return self._add_metrics(number, metrics)
    if not jax.device_get(manifest.finite(state.params)):
      raise InputError(
        f'the parameters are not finite after step {number}, so nothing of it is saved; a lower '
        'optimizer.learning_rate or float32 usually helps.'
      )
    trees = {part: manifest.flat(getattr(state, part)) for part in PARTS}
    meta = {
      **self.identity,
      'step': number,
      'metrics': metrics,
      'tally': dict(tally),
      'best': self.best,
      'arrays': manifest.array_table(trees),
    }
    meta['seal'] = seal(meta)
    self.newest = meta
    items: dict[str, Any] = {'meta': ocp.args.JsonSave(meta)}
    for part, tree in trees.items():
      if tree:
        items[part] = ocp.args.StandardSave(tree)
    with self._disk_errors():
      self.manager.save(number, args=ocp.args.Composite(**items))
      if self.is_staged:
        self.manager.wait_until_finished()
        whole = staged(self.folder) / str(number)
        place(whole, self.folder / str(number), last=(saved_steps.NOTE,))
        self.manager.delete(number)
        self._delete(set(self.steps()) - self.kept(self.steps()))

  def _add_metrics(self, number, metrics):
    """Adds the metrics of its evaluation to the checkpoint just saved."""
    if not metrics or self.newest.get('step') != number:
      return
    self.wait()
    meta = {**self.newest, 'metrics': metrics, 'best': self.best}
    meta['seal'] = seal(meta)
    with self._disk_errors():
      if hosts.first():
        write_whole(manifest.path_of(self.folder, number), json.dumps(meta))
      self._delete(set(self.steps()) - self.kept(self.steps()))  # the previous best

  def _delete(self, steps):
    for number in steps:
      if self.is_staged:
        (self.folder / str(number) / saved_steps.NOTE).unlink(missing_ok=True)  # it counts no more
        remove_tree(self.folder / str(number))
      else:
        self.manager.delete(number)

  def wait(self) -> None:
    with self._disk_errors():
      self.manager.wait_until_finished()

  def close(self) -> None:
    with self._disk_errors():
      self.manager.close()

  @contextlib.contextmanager
  def _disk_errors(self) -> Iterator[None]:
    """Turns disk errors into an InputError; errors from a lost process pass unchanged."""
    try:
      yield
    except (OSError, ValueError) as error:
      if hosts.is_lost_connection(error):
        raise
      raise Unwritten(
        f'a checkpoint could not be written to {self.folder} ({first_line(error)}); free some '
        'space and start again: those before are whole.'
      ) from error

  def newest_good(
    self, read: Callable[[int], Any], tell: Callable[..., None] = log.error
  ) -> tuple[Any, list['Damaged']]:
    """(read(step) of the newest step where it raises no Damaged, the Damaged before)."""
    damaged = []
    for number in saved_steps.newest_first(self.folder):
      try:
        return read(number), damaged
      except Damaged as error:
        if not (self.folder / str(number)).exists():
          continue  # a run has removed it meanwhile
        damaged.append(error)
        tell('%s; trying the one before it', error)
    raise InputError(
      f'all checkpoints in {self.folder} are damaged ({", ".join(map(str, self.steps()))}): '
      f'{damaged[0] if damaged else "there is none"}. Bring them back from a backup, or delete the '
      'workdir to start over.'
    )

  def restore(self, shapes: step.State) -> tuple[step.State, Mapping[str, Any]]:
    """Restores (State, metadata) of the newest good checkpoint.
    shapes: a State of ShapeDtypeStructs with shardings. Damaged checkpoints are put aside."""
    (state, meta), damaged = self.newest_good(lambda number: self.restored(number, shapes))
    self._put_aside(damaged)
    return state, meta

  def restored(self, number: int, shapes: step.State) -> tuple[step.State, Mapping[str, Any]]:
    """(State, metadata) of a checkpoint, which counts as the newest from now on, or Damaged."""
    trees, meta = self.restore_step(number, {part: getattr(shapes, part) for part in PARTS})
    best = meta.get('best', {})
    self.best = best if best.get('of') == self.judged_by else self._no_best(number)
    self.newest = meta
    return step.State(jax.device_put(np.int32(number), shapes.step.sharding), **trees), meta

  def meta(self, number: int) -> dict[str, Any]:
    damage = None
    try:
      # Orbax's manager is not used to read, here and below: if a process cannot read, the others
      # would wait in the manager for it.
      meta = manifest.read(self.folder, number)
    except Damaged as error:
      meta, damage = {}, error
    if hosts.total(bool(damage)):  # all processes go on to another checkpoint, or none
      raise damage or Damaged(self.folder, number, 'another process cannot read its metadata')
    return meta

  def restore_step(self, number: int, shapes: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Restores and verifies ({part: tree}, metadata) of one checkpoint; raises Damaged."""
    meta = self.meta(number)
    flat = {part: manifest.flat(tree) for part, tree in shapes.items()}
    for part, arrays in flat.items():
      manifest.compare(meta, part, arrays)
    out, failure, folder = {}, '', self.manager.directory / str(number)
    try:
      for part, arrays in flat.items():
        if not arrays:
          continue
        if self.is_staged:
          source = self.folder / str(number) / part
          source.store.get(str(source), str(folder / part), recursive=True)
        with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
          out[part] = handler.restore(folder / part, args=ocp.args.StandardRestore(arrays))
    except Exception as error:
      if hosts.is_lost_connection(error):
        raise
      failure = first_line(error)
    if self.is_staged:
      remove_tree(Path(folder))
    if hosts.total(bool(failure)):  # as above
      why = f'its arrays cannot be read ({failure or "by another process"})'
      raise Damaged(self.folder, number, why)
    wrong = [name for name, row in manifest.array_table(out).items() if row != meta['arrays'][name]]
    if wrong:
      why = f'{listed(wrong, 1)} is not what was saved (checksum differs)'
      raise Damaged(self.folder, number, why)
    return {part: manifest.unflat(out.get(part, {}), tree) for part, tree in shapes.items()}, meta

  def _put_aside(self, damaged: Sequence['Damaged']) -> None:
    """Moves damaged checkpoints out of the folder, so that their steps can be saved again."""
    if not damaged or not self.writes:
      return
    self.manager.close()
    if hosts.first():
      for error in damaged:
        target = self.folder.parent / f'damaged-checkpoint-{error.number}'
        remove_tree(target)  # an earlier one of that step
        (self.folder / str(error.number)).rename(target)
        log.warning('checkpoint %d is put aside as %s', error.number, target)
    hosts.wait('damaged checkpoints are aside')
    self.manager = self._open()
