"""Loads the weights of a run from its latest or best checkpoint, or from a given step."""

import contextlib
import logging
import math
from pathlib import Path
from typing import Any

from bert_jax.errors import InputError
from bert_jax.workdir import contents, int8, manifest
from bert_jax.workdir.checkpoint import Checkpoints, Damaged

log = logging.getLogger('bert_jax')


def load_params(
  workdir: str | Path, shapes: dict[str, Any], which: str | int = 'latest', partial: bool = False
) -> tuple[dict[str, Any], int]:
  """Loads a run's (params, step). which: 'latest', 'best' or a step.
  shapes: a tree of ShapeDtypeStructs with shardings (sharding.placed). Converted weights may lack
  heads: with `partial` only the parts that are there are returned, else it is an InputError, as are
  weights that were saved with another config or vocabulary than the workdir's."""
  int8.refuse_folder(workdir)
  with contextlib.closing(Checkpoints(workdir)) as checkpoints:

    def read(number):
      meta = checkpoints.meta(number)
      contents.check_belongs(workdir, meta)
      there = manifest.parts(meta)
      if (lacking := [part for part in shapes if part not in there]) and not partial:
        raise InputError(
          f'{workdir} has no {", ".join(lacking)} (its weights came without); start a run from it '
          'with --config.init_from.'
        )
      wanted = {part: tree for part, tree in shapes.items() if part in there}
      trees, _ = checkpoints.restore_step(number, {'params': wanted})
      return trees['params'], number

    steps = _steps_of(checkpoints, workdir, which)
    if which == 'latest':
      return checkpoints.newest_good(read, steps)[0]
    try:
      return read(steps[0])
    except Damaged as error:
      good = ', '.join(map(str, _good(checkpoints, error.number)))
      said = f'there are good ones at {good} (--checkpoint latest or a step)'
      raise InputError(f'{error}; {said if good else "no other is good"}.') from None


def _steps_of(checkpoints, workdir, which):
  """The candidate steps for 'latest', 'best' or a step, newest first; InputError if none."""
  steps = there = checkpoints.steps()[::-1]
  if which == 'best':
    if not (metric := contents.read_config(workdir).checkpoint.best_metric):
      raise InputError(
        f'{workdir} kept no best checkpoint (checkpoint.best_metric is empty); use latest or a '
        'step.'
      )
    steps = _best(checkpoints, there, metric)
  elif which != 'latest':
    steps = [number for number in there if str(number) == str(which)]
  if not steps:
    known = there[::-1] or 'none, train it first'
    raise InputError(f'{workdir} has no checkpoint {which!r}; it has {known}.')
  return steps


def _good(checkpoints, number):
  """The steps of all checkpoints but `number` whose metadata is good."""
  good = []
  for other in checkpoints.steps():
    with contextlib.suppress(Damaged):
      if other != number and checkpoints.meta(other):
        good.append(other)
  return good


def _best(checkpoints, steps, metric):
  """The step of the best checkpoint, by the newest good metadata, as [step] or []."""
  for number in steps:
    try:
      meta = checkpoints.meta(number)
    except Damaged as error:
      log.error('%s; if it was the best, that is not known', error)
      continue
    best = meta.get('best', {})
    if best.get('goodness', -math.inf) > -math.inf and best['of'].startswith(f'{metric} '):
      return [best['step']]
  return []
