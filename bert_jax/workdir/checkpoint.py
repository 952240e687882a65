"""Checkpoints: saved atomically by Orbax, and verified by checksums when they are restored.

Orbax survives kill -9 but restores a flipped bit without an error, so the checksum of every array
(see manifest.py) is stored beside it and compared at restore. A damaged checkpoint is put aside and
the newest good one is used.
"""

import contextlib
import itertools
import json
import logging
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from bert_jax import __version__, hosts, step
from bert_jax.errors import InputError, Unwritten, first_line
from bert_jax.files import seal, write_whole
from bert_jax.workdir import manifest
from bert_jax.workdir.manifest import PARTS

log = logging.getLogger('bert_jax')


def newest_meta(workdir):
  """The metadata of a workdir's newest readable checkpoint, or None. It writes nothing."""
  if not hosts.exists(Path(workdir).expanduser() / 'checkpoints'):
    return None
  with contextlib.closing(Checkpoints(workdir)) as checkpoints:
    damaged = []
    for number in reversed(checkpoints.steps()):
      try:
        return checkpoints.meta(number)
      except Damaged as error:
        damaged.append(error)
    if damaged:
      raise checkpoints.none_is_good(damaged)
  return None


class Checkpoints:
  """Saves, reads and deletes the checkpoints of one workdir.
  settings: config.checkpoint; None: read-only. identity: {name: value} that every checkpoint stores
  about its config and data. judged_by: names the metric and the data by which a checkpoint is the
  best. rollback: the newest checkpoint at a multiple of this step is kept too; 0: none."""

  def __init__(self, workdir, settings=None, identity=None, judged_by='', rollback=0):
    self.folder = Path(workdir).expanduser().absolute() / 'checkpoints'
    self.settings = settings
    self.identity = identity or {}
    self.judged_by, self.rollback = judged_by, rollback
    self.best = self._no_best(0)
    self.newest = {}  # the metadata of the checkpoint saved last
    self.manager = self._open()

  def _no_best(self, number):
    """The value of `best` before the first evaluation; patience counts from step `number`."""
    return {'goodness': -math.inf, 'step': number, 'of': self.judged_by}

  def _open(self):
    writes = self.settings is not None
    options = ocp.CheckpointManagerOptions(
      preservation_policy=Retention(self) if writes else None,
      read_only=not writes,
      create=writes,
      cleanup_tmp_directories=writes,
    )
    if not writes and not self.folder.is_dir():
      raise InputError(f'{self.folder.parent} holds no checkpoint; train it first.')
    return ocp.CheckpointManager(self.folder, options=options, item_names=(*PARTS, 'meta'))

  def kept(self, steps):
    """Which of these steps keep their checkpoints: the latest, the multiples, the best."""
    latest = sorted(steps)[-self.settings.keep_latest :]
    every = self.settings.keep_every
    best = self.best['step'] if self.best['goodness'] > -math.inf else None
    back = max((s for s in steps if self.rollback and s % self.rollback == 0), default=None)
    return {s for s in steps if s in latest or s in (best, back) or (every and s % every == 0)}

  def _goodness(self, metrics):
    value = metrics.get(self.settings.best_metric, math.nan)
    if math.isnan(value):
      return -math.inf
    return value if self.settings.best_mode == 'max' else -value

  def steps(self):
    return sorted(self.manager.all_steps())

  def is_best(self, metrics, number):
    """Whether the evaluation at step `number` is the best so far; the next save stores that."""
    if not self.settings.best_metric or self._goodness(metrics) <= self.best['goodness']:
      return False
    self.best = self._no_best(number) | {'goodness': self._goodness(metrics)}
    return True

  def save(self, state, metrics, seen, tally=None):
    """Starts writing the checkpoint of state.step; returns once the arrays may be donated.
    metrics: of the evaluation at this step, or {}; saving the step again adds them. seen: {name:
    number}, the run's counts since step 0. tally: what else the loop needs to continue, see
    Tally.to_meta."""
    number = int(jax.device_get(state.step))
    metrics = {k: v for k, v in metrics.items() if math.isfinite(v)}
    if number in self.manager.all_steps():
      return self._add_metrics(number, metrics)
    are_finite = manifest.finite(manifest.trained(state.params, state.opt_state))
    if not jax.device_get(are_finite):
      raise InputError(
        f'the parameters are not finite after step {number}, so nothing of it is saved; a lower '
        'optimizer.learning_rate, more warmup or float32 usually helps.'
      )
    trees = {part: getattr(state, part) for part in PARTS}
    meta = dict(self.identity, step=number, version=__version__, metrics=metrics, seen=seen)
    meta |= {'tally': tally or {}, 'best': self.best, 'arrays': manifest.array_table(trees)}
    meta['seal'] = seal(meta)
    self.newest = meta
    flat = {part: manifest.flat(tree) for part, tree in trees.items()}
    arrays = {part: ocp.args.StandardSave(tree) for part, tree in flat.items() if tree}
    with self._disk_errors():
      self.manager.save(number, args=ocp.args.Composite(meta=ocp.args.JsonSave(meta), **arrays))

  def _add_metrics(self, number, metrics):
    """Adds the metrics of its evaluation to the checkpoint just saved."""
    if not metrics or self.newest.get('step') != number:
      return
    self.wait()
    meta = self.newest | {'metrics': metrics, 'best': self.best}
    meta['seal'] = seal(meta)
    with self._disk_errors():
      if hosts.first():
        write_whole(self.folder / str(number) / 'meta' / 'metadata', json.dumps(meta))
      for old in set(self.steps()) - self.kept(self.steps()):  # the previous best
        self.manager.delete(old)

  def wait(self):
    """Waits until every checkpoint saved so far is on disk."""
    with self._disk_errors():
      self.manager.wait_until_finished()

  def close(self):
    with self._disk_errors():
      self.manager.close()

  @contextlib.contextmanager
  def _disk_errors(self):
    """Turns disk errors into an InputError; errors from a lost process pass unchanged."""
    try:
      yield
    except (OSError, ValueError) as error:
      if hosts.is_loss(error):
        raise
      raise Unwritten(
        f'a checkpoint could not be written to {self.folder} ({first_line(error)}); free some '
        'space and start again, the earlier checkpoints are whole.'
      ) from error

  def restore(self, shapes):
    """Restores (State, meta) of the newest good checkpoint; None if there is no checkpoint.
    shapes: a State of ShapeDtypeStructs with shardings. Damaged checkpoints are put aside."""
    damaged = []
    for number in reversed(self.steps()):
      try:
        trees, meta = self.restore_step(number, {p: getattr(shapes, p) for p in PARTS})
      except Damaged as error:
        log.error('%s; trying the one before it', error)
        damaged.append(error)
        continue
      self._put_aside(damaged)
      return self._state(trees, meta, shapes), meta
    if damaged:
      raise self.none_is_good(damaged)
    return None

  def back_to(self, number, shapes):
    """Restores an earlier checkpoint as (State, meta) and deletes the later ones."""
    self.wait()
    trees, meta = self.restore_step(number, {p: getattr(shapes, p) for p in PARTS})
    for later in self.steps():
      if later > number:
        self.manager.delete(later)
    return self._state(trees, meta, shapes), meta

  def _state(self, trees, meta, shapes):
    """The State of a checkpoint that was read; from now on it counts as the newest."""
    number, best = meta['step'], meta.get('best', {})
    self.best = best if best.get('of') == self.judged_by else self._no_best(number)
    self.newest = meta
    return step.State(jax.device_put(np.int32(number), shapes.step.sharding), **trees)

  def none_is_good(self, errors):
    """The InputError to raise if all checkpoints are Damaged."""
    if renamed := [error for error in errors if isinstance(error, Renamed)]:
      return renamed[0]
    return InputError(
      f'all checkpoints in {self.folder} are damaged ({", ".join(map(str, self.steps()))}); bring '
      'them back from a backup, or delete the workdir to start over.'
    )

  def meta(self, number):
    """The metadata of a checkpoint: identity, metrics, checksums."""
    why = ''
    try:
      # Orbax's manager is not used to read, here and below: if a process cannot read, the others
      # would wait in the manager for it.
      meta = ocp.JsonCheckpointHandler().restore(self.folder / str(number) / 'meta')
      if meta.get('seal') != seal(meta):
        why = 'its metadata does not match its seal'
    except Exception as error:
      why = f'its metadata cannot be read ({first_line(error)})'
    if hosts.total(bool(why)):  # all processes go on to another checkpoint, or none
      raise self._damaged(number, why or 'another process cannot read its metadata')
    if (saved := meta['step']) != number:
      raise Renamed(
        f'checkpoint {number} in {self.folder} is not of step {number} but of step {saved}, and '
        f'was renamed or copied; rename it back: mv {self.folder}/{number} {self.folder}/{saved}',
        number,
      )
    return meta

  def _damaged(self, number, why):
    return Damaged(f'checkpoint {number} in {self.folder} is damaged: {why}', number)

  def restore_step(self, number, shapes):
    """Restores and verifies ({part: tree}, meta) of one checkpoint; raises Damaged."""
    meta = self.meta(number)
    flat = {part: manifest.flat(tree) for part, tree in shapes.items()}
    for part, arrays in flat.items():
      manifest.compare(meta, part, arrays)
    out, failure = {}, ''
    try:
      for part in flat:
        if arrays := manifest.stored(meta, part, flat):
          with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
            args = ocp.args.StandardRestore(arrays)
            out[part] = handler.restore(self.manager.directory / str(number) / part, args=args)
    except Exception as error:
      if hosts.is_loss(error):
        raise
      failure = first_line(error)
    if hosts.total(bool(failure)):  # as above
      raise self._damaged(number, f'its arrays cannot be read ({failure or "by another process"})')
    wrong = [name for name, row in manifest.array_table(out).items() if row != meta['arrays'][name]]
    if wrong:
      more = f' and {len(wrong) - 1} more' if len(wrong) > 1 else ''
      raise self._damaged(number, f'{wrong[0]}{more} is not what was saved (checksum differs)')
    for part, arrays in flat.items():
      zeros = {  # the moments of parameters that were frozen until now
        name: jnp.zeros(x.shape, x.dtype, device=x.sharding)
        for name, x in arrays.items()
        if name not in out.get(part, {})
      }
      out[part] = manifest.unflat(out.get(part, {}) | zeros, shapes[part])
    return out, meta

  def _put_aside(self, damaged):
    """Moves damaged checkpoints out of the folder, so that their steps can be saved again.
    damaged: the errors raised when they were read."""
    if not damaged or self.settings is None:
      return
    self.manager.close()
    if hosts.first():
      for error in damaged:
        first = f'{error.name}-checkpoint-{error.number}'
        names = (first + '-again' * k for k in itertools.count())
        target = next(p for name in names if not (p := self.folder.parent / name).exists())
        (self.folder / str(error.number)).rename(target)
        log.warning('checkpoint %d is put aside as %s', error.number, target)
    hosts.wait('damaged checkpoints are aside')
    self.manager = self._open()


class Retention(policies.PreservationPolicy):
  """Tells Orbax which checkpoints to keep when another one is written."""

  def __init__(self, checkpoints):
    self.checkpoints = checkpoints

  def should_preserve(self, checkpoints, *, context):
    kept = self.checkpoints.kept([info.step for info in checkpoints])
    return [info.step in kept for info in checkpoints]


class Damaged(InputError):
  """A checkpoint that cannot be trusted; the message says which and why."""

  name = 'damaged'

  def __init__(self, message, number):
    super().__init__(message)
    self.number = number


class Renamed(Damaged):
  """A checkpoint whose metadata is of another step than its folder's name."""

  name = 'renamed'
