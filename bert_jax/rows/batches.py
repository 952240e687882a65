"""Makes the global batch of each step from a source of rows.

A batch is a function of (seed, step): each pass over the rows is a permutation of them, cut into
consecutive batches. There is no state between steps, so a run resumes at any step, and each host
builds only the rows of its devices, whatever the mesh.

For an objective with a carry, batches are drawn in lanes instead: row b of a batch is the row of
the source that follows row b of the batch before (the first row follows the last one). This holds
within a pass. In the next one each lane begins anew, at another row, and nothing marks the seam: it
may lie inside a batch, and the carry is not reset.
"""

import functools
import logging
from typing import Protocol

import grain
import jax
import numpy as np

from bert_jax import hosts, sharding
from bert_jax.corpus.tokenized import DamagedRecord
from bert_jax.errors import InputError
from bert_jax.metrics import Level
from bert_jax.rows.block_rows import BlockRows, Order
from bert_jax.rows.language_mixture import Mixture

log = logging.getLogger('bert_jax')

TRIED = 16  # the most rows that are read before a run to find one that can be read
NAMED = 3  # unreadable rows that are named in the log; further ones are only counted


class Source(Protocol):
  """Random access to rows of one shape, {name: array}: the form of all data before batching.
  A source of examples with answers to score is a tasks.scored.Scored. With other sources, an
  evaluation reports the terms only and does not collect what the objective's `predict` returns. A
  source may have `scales`, {metric: (term, factor)}: metrics that are a term times a number."""

  fingerprint: str  # changes when the rows do
  baselines: dict[str, Level]  # {metric: its value without reading the input}

  def __len__(self) -> int: ...

  def __getitem__(self, i: int) -> dict[str, np.ndarray]: ...


class Batches:
  """The batch of each step: batches[step] -> {name: jax.Array [B, ...]}, sharded over axis 0.
  spec: the arrays that the objective expects, {name: ShapeDtypeStruct}. limits: {name: exclusive
  upper bound} of integer arrays to check, since JAX reports no index past the end of a table. With
  a seed there are endless passes, each shuffled anew; without one the rows come once, in order, and
  the last batch is filled up with empty rows of weight 0. lanes: each row of the batch reads a
  stretch of the source, and the seed draws the row where a pass begins. position:
  Timeline.position, if not all batches are full. skip_damaged: a row whose record cannot be read
  becomes an empty row, and is counted in damaged_rows."""

  def __init__(
    self,
    source: Source,
    spec,
    sharding,
    *,
    limits,
    seed=None,
    skip_damaged=False,
    lanes=False,
    position=None,
  ):
    self.source, self.spec, self.sharding = source, spec, sharding
    self.limits = {name: limit for name, limit in limits.items() if name in spec}
    self.skip_damaged, self.damaged_rows = skip_damaged, 0
    self._damaged_at = {}  # {(step, skipped): damaged rows of its batch}
    self.batch_size = next(iter(spec.values())).shape[0]
    self.shuffled, self.seed, self.lanes = seed is not None, seed, lanes
    self.position = position or self._position
    if not len(source):
      raise InputError('the data gives no rows; see the counts above, and data.train, data.eval.')
    if lanes and self.shuffled and isinstance(source, Mixture):
      raise InputError(
        'rows that continue each other from step to step cannot be mixed; give one data.train.'
      )
    shuffled = self.shuffled and not lanes
    self.order = endless(source, seed, self.batch_size) if shuffled else None
    indices = sharding.addressable_devices_indices_map((self.batch_size,)).values()
    self.local = sorted({i for (part,) in indices for i in range(self.batch_size)[part]})
    if lanes and isinstance(source, BlockRows):
      source.keep_open(len(self.local))

  def __len__(self):
    """The number of batches in one pass (the last one may be partly empty)."""
    return -(-len(self.source) // self.batch_size)

  def __getitem__(self, step):
    return self.at(step)

  def at(self, step: int, skipped: int = 0) -> dict[str, jax.Array]:
    """The batch of a step in a run that has skipped `skipped` rows before it."""
    numbers = [self._number(self.position(step, i, skipped)) for i in self.local]
    before = self.damaged_rows
    rows, place = self._rows(numbers), {i: k for k, i in enumerate(self.local)}
    if self.damaged_rows > before:
      self._damaged_at[step, skipped] = self.damaged_rows - before

    def part(name, index):
      return rows[name][[place[i] for i in range(self.batch_size)[index[0]]]]

    return {
      name: jax.make_array_from_callback(spec.shape, self.sharding, functools.partial(part, name))
      for name, spec in self.spec.items()
    }

  def row_numbers(self, step: int, skipped: int = 0) -> list[int] | list[str]:
    """The source's rows in the batch `at` a step: their numbers, with the language before them in a
    mixture."""
    numbers = [self._number(self.position(step, i, skipped)) for i in range(self.batch_size)]
    numbers = [number for number in numbers if number is not None]
    if isinstance(self.source, Mixture):
      return ['{} {}'.format(*self.source.at(number)) for number in numbers]
    return numbers

  def damaged_before(self, end: int, skipped: int = 0) -> int:
    """This host's damaged rows in batches before step `end`, since the last call, in a run that has
    skipped `skipped` rows. Batches made ahead are not counted."""
    known = [at for at in [*self._damaged_at] if at[0] < end or at[1] != skipped]
    counts = {at: self._damaged_at.pop(at) for at in known}
    return sum(count for at, count in counts.items() if at[1] == skipped)

  def _position(self, step, i, skipped):
    return step * self.batch_size + i + skipped

  def _number(self, i):
    """The row number at place i, counted over all batches; None: an empty row."""
    if i is None or (not self.shuffled and i >= len(self.source)):
      return None
    if self.lanes:
      return self._in_lane(i)
    return self.order[i] if self.shuffled else i

  def _rows(self, numbers):
    """{name: [R, ...]} of the rows with these numbers; None gives an empty row."""
    shapes = ((name, len(numbers), spec) for name, spec in self.spec.items())
    out = {name: np.zeros((n, *spec.shape[1:]), spec.dtype) for name, n, spec in shapes}
    chosen = [k for k, number in enumerate(numbers) if number is not None]
    try:
      parts = [(chosen, self._gather([numbers[k] for k in chosen]))] if chosen else []
    except DamagedRecord:
      if not self.skip_damaged:
        raise
      parts = [([k], self._gather_whole(numbers[k])) for k in chosen]
    for places, rows in parts:
      for name in out if rows else ():
        out[name][places] = rows[name]
    return out

  def _gather(self, numbers):
    """{name: [R, ...]} of the rows with these numbers, checked."""
    if hasattr(self.source, 'gather'):
      return self._checked(numbers, self.source.gather(numbers))
    rows = [self._checked([i], _with_axis(self.source[i])) for i in numbers]
    return {name: np.concatenate([row[name] for row in rows]) for name in self.spec}

  def _gather_whole(self, number):
    """The row with this number; if its record cannot be read, counts it and returns {}."""
    try:
      return self._gather([number])
    except DamagedRecord as error:
      self.damaged_rows += 1
      if self.damaged_rows <= NAMED:
        log.warning('%s (row %d stays empty)', error, number)
      if self.damaged_rows == NAMED:
        log.warning('further rows that stay empty are counted alone, in the metric damaged_rows')
      return {}

  def check(self):
    """InputError if the first readable row is not as the objective expects, or if none of TRIED
    rows all over the source can be read."""
    chosen = np.unique(np.linspace(0, len(self.source) - 1, TRIED).astype(int)).tolist()
    for number in chosen:
      try:
        self._gather([number])
        return
      except DamagedRecord as error:
        damage = error
    raise InputError(f'no row can be read, of {len(chosen)} all over the data: {damage}')

  def _checked(self, numbers, rows):
    """Returns the rows; InputError if an array is missing, has another form or is out of bounds."""
    for name, spec in self.spec.items():
      array = rows.get(name)
      if array is None or array.shape[1:] != spec.shape[1:] or array.dtype != spec.dtype:
        got = 'nothing' if array is None else f'{array.dtype}{list(array.shape[1:])}'
        raise InputError(
          f'row {numbers[0]} has {got} for {name!r} where the objective expects '
          f'{np.dtype(spec.dtype)}{list(spec.shape[1:])}.'
        )
    for name, limit in self.limits.items():
      wrong = (rows[name] < 0) | (rows[name] >= limit)
      if wrong.any():
        row = int(np.argwhere(wrong)[0, 0])
        raise InputError(
          f'row {numbers[row]} has {name} {rows[name][wrong][0]}, outside [0, {limit}): the '
          'vocabulary or the lengths of the data do not fit the model.'
        )
    return rows

  def _in_lane(self, i):
    """The source's row at place i, counted over all batches. Each lane reads one contiguous
    stretch; pass p covers the places p * rows .. (p + 1) * rows - 1."""
    rows, lanes = len(self.source), self.batch_size
    number, lane = i // rows, i % lanes

    def places(end, *, below):
      """How many of the places before `end` are in lanes numbered lower than `below`."""
      return end // lanes * below + min(end % lanes, below)

    begin = number * rows
    in_lower_lanes = places(begin + rows, below=lane) - places(begin, below=lane)
    before_pass = places(begin, below=lane + 1) - places(begin, below=lane)
    earlier_in_lane = i // lanes - before_pass
    shift = int(np.random.default_rng([self.seed, number]).integers(rows)) if self.shuffled else 0
    return (shift + in_lower_lanes + earlier_in_lane) % rows


def batches_of(source, config, tokenizer, objective, mesh, seed=None, position=None):
  """The Batches of a source for a config's model; seed, position: see Batches."""
  rows = config.batch_size
  where, skips = sharding.batch_sharding(mesh), config.data.skip_damaged
  lanes = bool(objective.eval_carry(rows) if seed is None else objective.carry(rows))
  hosts.agree(source.fingerprint)
  return Batches(
    source,
    objective.spec(rows),
    where,
    limits=objective.limits(tokenizer.vocab_size),
    seed=seed,
    skip_damaged=skips,
    lanes=lanes,
    position=position,
  )


class _Numbers:
  """A source of the row numbers first, first + 1, .., `count` of them."""

  def __init__(self, first, count):
    self.first, self.count = first, count

  def __len__(self):
    return self.count

  def __getitem__(self, i):
    return self.first + int(i)


def endless(source, seed, batch_size=1, first=0):
  """Row numbers of a source in endless passes, each in another order. The parts of a Mixture are
  mixed by their weights, each with its own passes. batch_size: for BlockRows, see block_rows.Order.
  first: the number of the first row."""
  if isinstance(source, BlockRows) and source.blocks.units > 1:
    return Order(source, seed, batch_size, first)
  if not isinstance(source, Mixture):
    numbers = _Numbers(first, len(source))
    return grain.MapDataset.source(numbers).seed(seed).shuffle().repeat()
  seeds = np.random.SeedSequence(seed).generate_state(len(source.parts))
  begins, total = [0, *source.ends[:-1].tolist()], sum(source.weights.values())
  parts = [  # each part gets its share of a batch's rows
    endless(part, int(s), max(1, round(batch_size * source.weights[name] / total)), begin)
    for (name, part), s, begin in zip(source.parts.items(), seeds, begins, strict=True)
  ]
  parts = [grain.MapDataset.source(x) if isinstance(x, Order) else x for x in parts]
  return grain.MapDataset.mix(parts, [source.weights[name] for name in source.parts])


def _with_axis(row):
  return {name: np.asarray(array)[None] for name, array in row.items()}
