"""Checkpoints: saved atomically by Orbax, verified by our own checksums, and the order of starts.

Orbax survives kill -9 but restores a flipped bit without a word, so every array's checksum is
stored beside it and compared at restore; a damaged checkpoint is put aside and the newest good one
is used. The checksum is a sum over the elements, so it is the same on any mesh and any number of
hosts.
"""

import contextlib
import itertools
import logging
import math
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from bert_jax import __version__, hosts, manifest, step, workdirs
from bert_jax.errors import InputError, first_line
from bert_jax.manifest import PARTS

log = logging.getLogger('bert_jax')


def newest_meta(workdir):
  """What the newest readable checkpoint of a workdir says of itself, or None. Changes nothing."""
  if not hosts.exists(Path(workdir).expanduser() / 'checkpoints'):
    return None
  with contextlib.closing(Checkpoints(workdir)) as checkpoints:
    for number in reversed(checkpoints.steps()):
      with contextlib.suppress(Damaged):
        return checkpoints.meta(number)
    if checkpoints.steps():
      raise checkpoints.none_is_good()
  return None


class Checkpoints:
  """The checkpoints of one workdir: save now and then, restore the newest good one."""

  def __init__(self, workdir, settings=None, facts=None, judged_by=''):
    self.folder = Path(workdir).expanduser().absolute() / 'checkpoints'
    self.settings = settings
    self.facts = facts or {}
    self.judged_by = judged_by  # what the best is the best of: a metric, on some data
    self.best = self._no_best(0)
    self.manager = self._open()

  def _no_best(self, number):
    """No evaluation has been good yet, and none before step `number` counts."""
    return {'goodness': -math.inf, 'step': number, 'of': self.judged_by}

  def _open(self):
    keep = self.settings
    preserve = [policies.LatestN(keep.keep_latest)] if keep else []
    if keep and keep.keep_every:
      preserve.append(policies.EveryNSteps(keep.keep_every))
    if keep and keep.best_metric:
      preserve.append(
        policies.BestN(get_metric_fn=_when_best, n=1, keep_checkpoints_without_metrics=False)
      )
    options = ocp.CheckpointManagerOptions(
      preservation_policy=policies.AnyPreservationPolicy(preserve) if keep else None,
      best_fn=_when_best if keep and keep.best_metric else None,  # else metrics are not kept
      read_only=keep is None,
      create=keep is not None,
      cleanup_tmp_directories=keep is not None,
    )
    if keep is None and not self.folder.is_dir():
      raise InputError(f'{self.folder.parent} holds no checkpoint; train it first.')
    return ocp.CheckpointManager(self.folder, options=options, item_names=(*PARTS, 'meta'))

  def _goodness(self, metrics):
    value = metrics.get(self.settings.best_metric, math.nan)
    if math.isnan(value):
      return -math.inf
    return value if self.settings.best_mode == 'max' else -value

  def steps(self):
    return sorted(self.manager.all_steps())

  def is_best(self, metrics, number):
    """Are these eval metrics of step `number` the best so far? Checkpoints remember it."""
    if not self.settings.best_metric or self._goodness(metrics) <= self.best['goodness']:
      return False
    self.best = self._no_best(number) | {'goodness': self._goodness(metrics)}
    return True

  def save(self, state, metrics, seen):
    """Starts writing the checkpoint of state.step; returns once the arrays may be donated.

    metrics: of its evaluation, or {}; seen: {name: number}, what the run has counted so far.
    """
    number = int(state.step)
    if number in self.manager.all_steps():
      return
    if not manifest.finite(state.params):
      raise InputError(
        f'the parameters are not finite after step {number}, so nothing of it is saved; a lower '
        'optimizer.learning_rate, more warmup or float32 usually helps.'
      )
    trees = {part: getattr(state, part) for part in PARTS}
    metrics = {k: v for k, v in metrics.items() if math.isfinite(v)}
    meta = dict(
      self.facts,
      step=number,
      version=__version__,
      metrics=metrics,
      seen=seen,
      best=self.best,
      arrays=manifest.array_table(trees),
    )
    meta['seal'] = manifest.seal(meta)
    flat = {part: manifest.flat(tree) for part, tree in trees.items()}
    arrays = {part: ocp.args.StandardSave(tree) for part, tree in flat.items() if tree}
    with self._disk_errors():
      self.manager.save(
        number,
        metrics={'best': number} if metrics and self.best['step'] == number else {},
        args=ocp.args.Composite(meta=ocp.args.JsonSave(meta), **arrays),
      )

  def wait(self):
    """Returns when what was saved is on disk."""
    with self._disk_errors():
      self.manager.wait_until_finished()

  def close(self):
    self.manager.close()

  @contextlib.contextmanager
  def _disk_errors(self):
    """A disk that is full shows when the next checkpoint is written, or at the end."""
    try:
      yield
    except (OSError, ValueError) as error:
      if hosts.is_loss(error):
        raise
      raise InputError(
        f'a checkpoint could not be written to {self.folder} ({first_line(error)}); free some '
        'space and start again, the earlier checkpoints are whole.'
      ) from error

  def restore(self, shapes):
    """(State, meta) of the newest good checkpoint, or None if there is none at all.

    shapes: a State of ShapeDtypeStructs with shardings. Damaged checkpoints are named and put
    aside.
    """
    damaged = []
    for number in reversed(self.steps()):
      try:
        trees, meta = self.restore_step(number, {p: getattr(shapes, p) for p in PARTS})
      except Damaged as error:
        log.error('%s; trying the one before it', error)
        damaged.append(number)
        continue
      self._put_aside(damaged)
      best = meta.get('best', {})
      self.best = best if best.get('of') == self.judged_by else self._no_best(number)
      count = jax.device_put(np.int32(number), shapes.step.sharding)
      return step.State(count, **trees), meta
    if damaged:
      raise self.none_is_good()
    return None

  def none_is_good(self):
    return InputError(
      f'all checkpoints in {self.folder} are damaged ({", ".join(map(str, self.steps()))}); bring '
      'them back from a backup, or delete the workdir to start over.'
    )

  def meta(self, number):
    """What is stored beside the arrays of a checkpoint: facts, metrics, checksums."""
    why = ''
    try:
      # Not by the manager, here and below: the others would wait in it for one that cannot read.
      meta = ocp.JsonCheckpointHandler().restore(self.folder / str(number) / 'meta')
      if meta.get('seal') != manifest.seal(meta):
        why = 'its metadata does not match its seal'
    except Exception as error:
      why = f'its metadata cannot be read ({first_line(error)})'
    if hosts.total(bool(why)):  # all of them, or none, go on to another one
      raise self._damaged(number, why or 'another process cannot read its metadata')
    return meta

  def _damaged(self, number, why):
    return Damaged(f'checkpoint {number} in {self.folder} is damaged: {why}')

  def restore_step(self, number, shapes):
    """({part: tree}, meta) of one checkpoint, verified; raises Damaged. shapes: {part: tree}."""
    meta = self.meta(number)
    flat = {part: manifest.flat(tree) for part, tree in shapes.items()}
    for part, arrays in flat.items():
      manifest.compare(meta, part, arrays)
    out, failure = {}, ''
    try:
      for part, arrays in flat.items():
        if arrays:
          with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
            args = ocp.args.StandardRestore(arrays)
            out[part] = handler.restore(self.manager.directory / str(number) / part, args=args)
    except Exception as error:
      if hosts.is_loss(error):
        raise
      failure = first_line(error)
    if hosts.total(bool(failure)):  # all of them, or none, go on to another one
      raise self._damaged(number, f'its arrays cannot be read ({failure or "by another process"})')
    trees = {part: manifest.unflat(out.get(part, {}), tree) for part, tree in shapes.items()}
    wrong = [
      name for name, row in manifest.array_table(trees).items() if row != meta['arrays'][name]
    ]
    if wrong:
      more = f' and {len(wrong) - 1} more' if len(wrong) > 1 else ''
      raise self._damaged(number, f'{wrong[0]}{more} is not what was saved (checksum differs)')
    return trees, meta

  def _put_aside(self, damaged):
    """Renames damaged checkpoints so that their steps can be saved again and nothing is deleted."""
    if not damaged or self.settings is None:
      return
    self.manager.close()
    if hosts.first():
      for number in damaged:
        names = (f'damaged-checkpoint-{number}' + '-again' * k for k in itertools.count())
        target = next(p for name in names if not (p := self.folder.parent / name).exists())
        (self.folder / str(number)).rename(target)
    hosts.wait('damaged checkpoints are aside')
    self.manager = self._open()


class Damaged(InputError):
  """A checkpoint that cannot be trusted; the message says which and why."""


def load_params(workdir, shapes, which='latest', partial=False):
  """(params, step) of a workdir's run for use or warm start. which: 'latest', 'best' or a step.

  shapes: tree of ShapeDtypeStructs with shardings (sharding.placed). Converted weights may lack
  heads: with `partial` the params hold the parts that are there, else that is an InputError.
  """
  checkpoints = Checkpoints(workdir)
  try:
    steps = checkpoints.steps()
    if which == 'best':
      settings = workdirs.read_config(workdir).checkpoint
      if not settings.best_metric:
        raise InputError(
          f'{workdir} kept no best checkpoint (checkpoint.best_metric is empty); use '
          'latest or a step.'
        )
      metas = {s: checkpoints.meta(s) for s in steps}
      steps = [
        s
        for s, meta in metas.items()
        if settings.best_metric in meta['metrics'] and meta.get('best', {}).get('step') == s
      ]
    elif which != 'latest':
      steps = [s for s in steps if str(s) == str(which)]
    if not steps:
      raise InputError(
        f'{workdir} has no checkpoint {which!r}; it has '
        f'{checkpoints.steps() or "none, train it first"}.'
      )
    for number in reversed(steps):
      try:
        there = manifest.parts(checkpoints.meta(number))
        lacking = [part for part in shapes if part not in there]
        if lacking and not partial:
          raise InputError(
            f'{workdir} has no {", ".join(lacking)} (its weights came without); start a run from '
            'it with --config.init_from.'
          )
        own = {part: tree for part, tree in shapes.items() if part in there}
        trees, _ = checkpoints.restore_step(number, {'params': own})
        return trees['params'], number
      except Damaged as error:
        log.error('%s; trying the one before it', error)
    raise InputError(
      f'no good checkpoint is left in {workdir}; train it again or restore a backup.'
    )
  finally:
    checkpoints.close()


def _when_best(metrics):
  """What Orbax ranks checkpoints by: the last to have been the best yet is the best."""
  return metrics.get('best', -1)
