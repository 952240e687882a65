"""Makes the global batch of each step from a source of rows.

A batch is a function of (seed, step): each pass over the rows is a permutation of them, cut into
consecutive batches. There is no state between steps, so a run resumes at any step, and each host
builds only the rows of its devices, whatever the mesh. Steps count from 0 here, as in State.step:
batches[n] is the batch after n steps are done. In metrics and checkpoints it is step n + 1.

For an objective with a carry, batches are drawn in lanes: row b of a batch follows, in the source,
row b of the batch before (the first row follows the last one). In the next pass each lane begins at
another row. Nothing marks the seam, and the carry is not reset.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax import hosts, sharding
from bert_jax.errors import InputError
from bert_jax.rows.language_mixture import Mixture
from bert_jax.rows.order import endless
from bert_jax.rows.source import Arrays, Source

if TYPE_CHECKING:
  from bert_jax.objectives.base import Objective
  from bert_jax.tokenizers import Tokenizer


class Batches:
  """The batch of each step: batches[step] -> {name: jax.Array [B, ...]}, sharded over axis 0.

  spec: the arrays that the objective expects.
  limits: {name: exclusive upper bound} of integers to check, since JAX reports no index past the
  end of a table.
  seed: with one there are endless passes, each shuffled anew; without one the rows come once, in
  order, and empty rows of weight 0 fill the last batch.
  lanes: see above.
  position: Timeline.position, if not all batches are full."""

  def __init__(
    self,
    source: Source,
    spec: Mapping[str, jax.ShapeDtypeStruct],
    sharding: jax.sharding.Sharding,
    *,
    limits: Mapping[str, int],
    seed: int | None = None,
    lanes: bool = False,
    position: Callable[[int, int], int | None] | None = None,
  ):
    self.source = source
    self.spec = spec
    self.sharding = sharding
    self.limits = {name: limit for name, limit in limits.items() if name in spec}
    self.batch_size = next(iter(spec.values())).shape[0]
    self.shuffled = seed is not None
    self.seed = seed
    self.lanes = lanes
    self.position = position or self._position_in_full_batches
    if not len(source):
      raise InputError('the data gives no rows; see the counts above, and data.train, data.eval.')
    if lanes and self.shuffled and isinstance(source, Mixture):
      raise InputError('rows that continue each other cannot be mixed; give one data.train.')
    if seed is None or lanes:
      self.order = range(len(source))
    else:
      self.order = endless(source, seed, self.batch_size)
    # The rows of a batch that the devices of this host have, by their index in the batch.
    of_devices: Any = sharding.addressable_devices_indices_map((self.batch_size,)).values()
    self.local = sorted({i for (part,) in of_devices for i in range(self.batch_size)[part]})

  def __len__(self) -> int:
    """The number of batches in one pass (the last one may be partly empty)."""
    return -(-len(self.source) // self.batch_size)

  def part(self, count: int) -> list[int]:
    """The numbers of `count` batches, 0 for all: spread evenly, since neighbours in a corpus are
    alike, or, of lanes, from their beginning."""
    count = min(count or len(self), len(self))
    if self.lanes:
      return list(range(count))
    return [k * len(self) // count for k in range(count)]

  def __getitem__(self, step: int) -> dict[str, jax.Array]:
    numbers = [self._number(self.position(step, i)) for i in self.local]
    rows = self._rows(numbers)
    return {name: self._global_array(name, rows[name]) for name in self.spec}

  def _global_array(self, name, local_rows):
    """The array [B, ...] of all hosts, of which this one gives its rows `self.local`."""
    local = np.array(self.local)

    def rows_of_device(index):
      of_batch = range(self.batch_size)[index[0]]
      return local_rows[local.searchsorted(of_batch)]

    return jax.make_array_from_callback(self.spec[name].shape, self.sharding, rows_of_device)

  def _position_in_full_batches(self, step, i):
    return step * self.batch_size + i

  def row_numbers(self, step: int) -> list[int] | list[str]:
    """The numbers of the rows in the batch of a step, in a mixture behind their language."""
    every = [self._number(self.position(step, i)) for i in range(self.batch_size)]
    numbers = [number for number in every if number is not None]
    if isinstance(self.source, Mixture):
      return ['{} {}'.format(*self.source.at(number)) for number in numbers]
    return numbers

  def _number(self, i: int | None) -> int | None:
    """The row number at place i, counted over all batches; None: an empty row."""
    if i is None or (not self.shuffled and i >= len(self.source)):
      return None
    return self._in_lane(i) if self.lanes else self.order[i]

  def _rows(self, numbers: Sequence[int | None]) -> Arrays:
    """{name: [R, ...]} of the rows with these numbers; None gives an empty row."""
    out = {}
    for name, spec in self.spec.items():
      out[name] = np.zeros((len(numbers), *spec.shape[1:]), spec.dtype)
    real = {k: number for k, number in enumerate(numbers) if number is not None}
    if real:
      rows = self._checked(list(real.values()))
      for name in out:
        out[name][list(real)] = rows[name]
    return out

  def check(self) -> None:
    """InputError if the first row is not what the objective expects."""
    self._checked([0])

  def _checked(self, numbers: Sequence[int]) -> Arrays:
    """The rows with these numbers; InputError if an array is missing, has another form or is out of
    bounds."""
    rows = self.source.gather(numbers)
    for name, spec in self.spec.items():
      array = rows.get(name)
      if array is None or array.shape[1:] != spec.shape[1:] or array.dtype != spec.dtype:
        found = 'nothing' if array is None else f'{array.dtype}{list(array.shape[1:])}'
        raise InputError(
          f'row {numbers[0]} has {found} for {name!r} where the objective expects '
          f'{np.dtype(spec.dtype)}{list(spec.shape[1:])}.'
        )
    for name, limit in self.limits.items():
      wrong = (rows[name] < 0) | (rows[name] >= limit)
      if wrong.any():
        number = numbers[int(np.argwhere(wrong)[0, 0])]
        raise InputError(
          f'row {number} has {name} {rows[name][wrong][0]}, outside [0, {limit}): '
          'the vocabulary or the data does not fit the model.'
        )
    return rows

  def _in_lane(self, i: int) -> int:
    """The source's row at place i, counted over all batches. Each lane reads one contiguous
    stretch; pass p covers the places p * rows .. (p + 1) * rows - 1."""
    rows = len(self.source)
    lanes = self.batch_size
    number = i // rows  # of the pass
    lane = i % lanes

    def places(end, *, below):
      """How many of the places before `end` are in lanes numbered lower than `below`."""
      return end // lanes * below + min(end % lanes, below)

    begin = number * rows
    in_lower_lanes = places(begin + rows, below=lane) - places(begin, below=lane)
    in_earlier_passes = places(begin, below=lane + 1) - places(begin, below=lane)
    within_lane = i // lanes - in_earlier_passes
    shift = 0
    if self.seed is not None:
      shift = int(np.random.default_rng([self.seed, number]).integers(rows))
    return (shift + in_lower_lanes + within_lane) % rows


def batches_of(
  source: Source,
  config: ConfigDict,
  tokenizer: 'Tokenizer',
  objective: 'Objective',
  mesh: jax.sharding.Mesh,
  seed: int | None = None,
  position: Callable[[int, int], int | None] | None = None,
) -> Batches:
  """The Batches of a source for a config's model; seed, position: see Batches."""
  rows = config.batch_size
  hosts.agree(source.fingerprint)
  return Batches(
    source,
    objective.spec(rows),
    sharding.batch_sharding(mesh),
    limits=objective.limits(tokenizer.vocab_size),
    seed=seed,
    lanes=bool(objective.eval_carry(rows) if seed is None else objective.carry(rows)),
    position=position,
  )
