"""From a source of rows to the global batch of each step.

A batch is a function of (seed, step): each pass over the rows is a permutation of them, cut into
consecutive batches. There is no state between steps, so a run resumes at any step, and each host
builds only the rows of its devices, whatever the mesh.

For an objective with a carry, batches are drawn in lanes instead: row b of a batch is the row of
the source that follows row b of the batch before (the first row follows the last one). This holds
within a pass. In the next one each lane begins anew, at another row, and nothing marks the seam: it
may lie inside a batch, and the carry is not reset.
"""

import contextlib
import functools
import logging
from typing import Protocol

import grain
import jax
import numpy as np

from bert_jax.corpus.tokenized import DamagedRecord
from bert_jax.errors import InputError
from bert_jax.rows.language_mixture import Mixture

log = logging.getLogger('bert_jax')


class Source(Protocol):
  """Random access to rows of one shape, {name: array}: the form of all data before batching.
  A source of examples to be answered is an examples.Scored. Of other sources, an evaluation reports
  the terms only and does not collect what the objective's `predict` returns. A source may have
  `scales`, {metric: (term, factor)}: metrics of an evaluation that are a term times a number."""

  fingerprint: str  # changes when the rows do
  baselines: dict[str, tuple[float, str]]  # {metric: (value without reading the input, its name)}

  def __len__(self) -> int: ...

  def __getitem__(self, i: int) -> dict[str, np.ndarray]: ...


class Batches:
  """batches[step] -> {name: global jax.Array [B, ...]} sharded over the leading axis.
  spec: the arrays that the objective expects, {name: ShapeDtypeStruct}. limits: {name: exclusive
  upper bound} of integer arrays, where a batch has them, since JAX reports no index past the end of
  a table. With a seed there are endless passes, each shuffled anew; without one the rows come once,
  in order, and the last batch is filled up with empty rows of weight 0. lanes: each row of the
  batch reads a stretch of the source, and the seed draws the row where a pass begins. growth: the
  Growth of batches that are not full in the first steps, or None. skip_damaged: a row whose record
  cannot be read becomes an empty row, and is counted in damaged_rows."""

  def __init__(
    self, source: Source, spec, sharding, *, limits, seed=None, skip_damaged=False, lanes=False,
    growth=None,
  ):  # fmt: skip
    self.source, self.spec, self.sharding = source, spec, sharding
    self.limits = {name: limit for name, limit in limits.items() if name in spec}
    self.skip_damaged, self.damaged_rows = skip_damaged, 0
    self.batch_size = next(iter(spec.values())).shape[0]
    self.shuffled, self.seed, self.lanes = seed is not None, seed, lanes
    self.growth = growth
    if not len(source):
      raise InputError('the data gives no rows; see the counts above, and data.train, data.eval.')
    if lanes and self.shuffled and isinstance(source, Mixture):
      raise InputError(
        'rows that continue each other from step to step cannot be mixed; give one data.train.'
      )
    self.rows = endless(source, seed) if self.shuffled and not lanes else source
    indices = sharding.addressable_devices_indices_map((self.batch_size,)).values()
    self.local = sorted({i for (part,) in indices for i in range(self.batch_size)[part]})

  def __len__(self):
    """The number of batches in one pass (the last one may be partly empty)."""
    return -(-len(self.source) // self.batch_size)

  def __getitem__(self, step):
    rows = {i: self._row(self._place(step, i)) for i in self.local}

    def part(name, index):
      return np.stack([rows[i][name] for i in range(self.batch_size)[index[0]]])

    return {
      name: jax.make_array_from_callback(spec.shape, self.sharding, functools.partial(part, name))
      for name, spec in self.spec.items()
    }

  def row_numbers(self, step):
    """Which rows of the source a batch is made of: numbers, with the language before them where the
    source is a mixture."""
    places = [self._place(step, i) for i in range(self.batch_size)]
    places = [i for i in places if i is not None]
    if self.lanes:
      return [self._in_lane(i) for i in places]
    if not self.shuffled:
      return [i for i in places if i < len(self.source)]
    numbers = endless(_numbered(self.source), self.seed)
    return [numbers[i] for i in places]

  def filled(self, step):
    """The share of the batch of a step that has rows."""
    return self.growth.parts_at(step) / self.growth.parts if self.growth else 1.0

  def _place(self, step, i):
    return self.growth.place(step, i) if self.growth else step * self.batch_size + i

  def _row(self, i):
    if i is None or (not self.shuffled and i >= len(self.source)):
      return self._empty()
    try:
      out = self.rows[self._in_lane(i) if self.lanes else i]
    except DamagedRecord as error:
      if not self.skip_damaged:
        raise
      self.damaged_rows += 1
      log.warning('%s (row %d stays empty)', error, i)
      return self._empty()
    return self._checked(i, out)

  def check(self):
    """InputError if the first row of the source is not as the objective expects."""
    with contextlib.suppress(DamagedRecord):
      self._checked(0, self.source[0])

  def _checked(self, i, out):
    """Row i itself; InputError if an array of it is missing, of another form or out of bounds."""
    for name, spec in self.spec.items():
      if name not in out or out[name].shape != spec.shape[1:] or out[name].dtype != spec.dtype:
        got = f'{out[name].dtype}{list(out[name].shape)}' if name in out else 'nothing'
        raise InputError(
          f'row {i} has {got} for {name!r} where the objective expects '
          f'{np.dtype(spec.dtype)}{list(spec.shape[1:])}.'
        )
    for name, limit in self.limits.items():
      low, high = out[name].min(), out[name].max()
      if low < 0 or high >= limit:
        raise InputError(
          f'row {i} has {name} {low if low < 0 else high}, outside [0, {limit}): the '
          'vocabulary or the lengths of the data do not fit the model.'
        )
    return out

  def _in_lane(self, i):
    """Which row of the source stands at place i, counted over all batches. Each lane reads one
    contiguous stretch; pass p covers the places p * rows .. (p + 1) * rows - 1."""
    rows, lanes = len(self.source), self.batch_size
    number, lane = i // rows, i % lanes

    def places(end, *, below):
      """How many of the places before `end` are in lanes of a number lower than `below`."""
      return end // lanes * below + min(end % lanes, below)

    begin = number * rows
    in_lower_lanes = places(begin + rows, below=lane) - places(begin, below=lane)
    before_pass = places(begin, below=lane + 1) - places(begin, below=lane)
    earlier_in_lane = i // lanes - before_pass
    shift = int(np.random.default_rng([self.seed, number]).integers(rows)) if self.shuffled else 0
    return (shift + in_lower_lanes + earlier_in_lane) % rows

  def _empty(self):
    return {name: np.zeros(spec.shape[1:], spec.dtype) for name, spec in self.spec.items()}


class _Numbers:
  """A source like another one, whose rows are their numbers."""

  fingerprint = ''

  def __init__(self, source, name=''):
    self.count, self.name = len(source), name

  def __len__(self):
    return self.count

  def __getitem__(self, i):
    return f'{self.name} {i}' if self.name else int(i)


def _numbered(source):
  if not isinstance(source, Mixture):
    return _Numbers(source)
  parts = {name: _Numbers(rows, name) for name, rows in source.parts.items()}
  return Mixture(parts, source.weights)


def endless(source, seed):
  """Endless passes over all rows, each in another order. The parts of a Mixture are mixed by their
  weights, each with its own passes."""
  if not isinstance(source, Mixture):
    return grain.MapDataset.source(source).seed(seed).shuffle().repeat()
  seeds = np.random.SeedSequence(seed).generate_state(len(source.parts))
  parts = [endless(part, int(s)) for part, s in zip(source.parts.values(), seeds, strict=True)]
  return grain.MapDataset.mix(parts, [source.weights[name] for name in source.parts])
