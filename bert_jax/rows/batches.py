"""Makes the global batch of each step from a source of rows.

A batch is a function of (seed, step): each pass over the rows is a permutation of them, cut into
consecutive batches. There is no state between steps, so a run resumes at any step, and each host
builds only the rows of its devices, whatever the mesh.

For an objective with a carry, batches are drawn in lanes: row b of a batch follows, in the source,
row b of the batch before (the first row follows the last one). In the next pass each lane begins at
another row. Nothing marks the seam, and the carry is not reset.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import grain
import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax import hosts, sharding
from bert_jax.errors import InputError
from bert_jax.metrics import Level
from bert_jax.rows.block_rows import BlockRows, Order
from bert_jax.rows.language_mixture import Mixture

if TYPE_CHECKING:
  from bert_jax.objectives.base import Objective
  from bert_jax.tokenizers import Tokenizer

Arrays = dict[str, np.ndarray]


class Source(Protocol):
  """Random access to rows of one shape, {name: array}: the form of all data before batching.
  An evaluation scores the answers of a tasks.labelled.Scored; of others it reports the terms only.
  A source may have `scales`, {metric: (term, factor)}: metrics that are a term times a number;
  `levels`, functions of a batch that give its own baselines, {metric: Mean}, by which a run counts
  `part`, the baselines of what it evaluates; `cuts`: how often its rows hold the text, if more than
  once; and `gather`, to read several rows at once."""

  fingerprint: str  # changes when the rows do
  baselines: dict[str, Level]  # {metric: its value without reading the input}

  def __len__(self) -> int: ...

  def __getitem__(self, i: int) -> Arrays: ...


class Batches:
  """The batch of each step: batches[step] -> {name: jax.Array [B, ...]}, sharded over axis 0.
  spec: the arrays that the objective expects. limits: {name: exclusive upper bound} of integers to
  check, since JAX reports no index past the end of a table. With a seed there are endless passes,
  each shuffled anew; without one the rows come once, in order, and empty rows of weight 0 fill the
  last batch. lanes: see above. position: Timeline.position, if not all batches are full."""

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
    self.source, self.spec, self.sharding = source, spec, sharding
    self.limits = {name: limit for name, limit in limits.items() if name in spec}
    self.batch_size = size = next(iter(spec.values())).shape[0]
    self.shuffled, self.seed, self.lanes = seed is not None, seed, lanes
    self.position = position or (lambda step, i: step * size + i)
    if not len(source):
      raise InputError('the data gives no rows; see the counts above, and data.train, data.eval.')
    if lanes and self.shuffled and isinstance(source, Mixture):
      raise InputError('rows that continue each other cannot be mixed; give one data.train.')
    self.order = range(len(source)) if seed is None or lanes else endless(source, seed, size)
    indices: Any = sharding.addressable_devices_indices_map((size,)).values()
    self.local = sorted({i for (part,) in indices for i in range(size)[part]})
    if lanes and isinstance(source, BlockRows):
      source.most_open = max(source.most_open, 2 * len(self.local))

  def __len__(self) -> int:
    """The number of batches in one pass (the last one may be partly empty)."""
    return -(-len(self.source) // self.batch_size)

  def part(self, count: int) -> list[int]:
    """The numbers of `count` batches, 0 for all: spread evenly, since neighbours in a corpus are
    alike, or, of lanes, from their beginning."""
    count = min(count or len(self), len(self))
    return [k if self.lanes else k * len(self) // count for k in range(count)]

  def __getitem__(self, step: int) -> dict[str, jax.Array]:
    local = np.array(self.local)
    rows = self._rows([self._number(self.position(step, i)) for i in self.local])

    def array(name):
      part = lambda index: rows[name][local.searchsorted(range(self.batch_size)[index[0]])]
      return jax.make_array_from_callback(self.spec[name].shape, self.sharding, part)

    return {name: array(name) for name in self.spec}

  def row_numbers(self, step: int) -> list[int] | list[str]:
    """The numbers of the rows in the batch of a step, in a mixture behind their language."""
    numbers = [self._number(self.position(step, i)) for i in range(self.batch_size)]
    numbers = [number for number in numbers if number is not None]
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
    shapes = {name: (len(numbers), *spec.shape[1:]) for name, spec in self.spec.items()}
    out = {name: np.zeros(shape, self.spec[name].dtype) for name, shape in shapes.items()}
    chosen = {k: number for k, number in enumerate(numbers) if number is not None}
    if chosen:
      rows = self._gather([*chosen.values()])
      for name in out:
        out[name][[*chosen]] = rows[name]
    return out

  def _gather(self, numbers: Sequence[int]) -> Arrays:
    """{name: [R, ...]} of the rows with these numbers, checked."""
    if gather := getattr(self.source, 'gather', None):
      return self._checked(numbers, gather(numbers))
    rows = [self.source[i] for i in numbers]
    names = self.spec.keys() & rows[0].keys()
    return self._checked(numbers, {name: np.stack([row[name] for row in rows]) for name in names})

  def check(self) -> None:
    """InputError if the first row is not what the objective expects."""
    self._gather([0])

  def _checked(self, numbers: Sequence[int], rows: Arrays) -> Arrays:
    """Returns the rows; InputError if an array is missing, has another form or is out of bounds."""
    for name, spec in self.spec.items():
      array = rows.get(name)
      if array is None or array.shape[1:] != spec.shape[1:] or array.dtype != spec.dtype:
        got = 'nothing' if array is None else f'{array.dtype}{list(array.shape[1:])}'
        fault = f'row {numbers[0]} has {got} for {name!r} where the objective expects'
        raise InputError(f'{fault} {np.dtype(spec.dtype)}{list(spec.shape[1:])}.')
    for name, limit in self.limits.items():
      wrong = (rows[name] < 0) | (rows[name] >= limit)
      if wrong.any():
        number = numbers[int(np.argwhere(wrong)[0, 0])]
        fault = f'row {number} has {name} {rows[name][wrong][0]}, outside [0, {limit})'
        raise InputError(f'{fault}: the vocabulary or the data does not fit the model.')
    return rows

  def _in_lane(self, i: int) -> int:
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
    shift = 0 if self.seed is None else np.random.default_rng([self.seed, number]).integers(rows)
    return (int(shift) + in_lower_lanes + i // lanes - before_pass) % rows


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


def endless(source: Source, seed: int, batch_size: int = 1, first: int = 0) -> Any:
  """Row numbers of a source in endless passes, each in another order, as a sequence from `first`
  on. The parts of a Mixture are mixed by their weights. batch_size: see block_rows.Order."""
  if isinstance(source, BlockRows) and source.blocks.units > 1:
    return Order(source, seed, batch_size, first)
  if not isinstance(source, Mixture):
    return grain.MapDataset.source(range(first, first + len(source))).seed(seed).shuffle().repeat()
  seeds = np.random.SeedSequence(seed).generate_state(len(source.parts))
  begins, parts = [0, *source.ends[:-1].tolist()], []
  for (name, part), own, begin in zip(source.parts.items(), seeds, begins, strict=True):
    rows = max(1, round(batch_size * source.weights[name]))  # of a batch
    order = endless(part, int(own), rows, begin)
    if isinstance(order, Order):
      order = grain.MapDataset.source(order)  # pyrefly: ignore[bad-argument-type] (it is one)
    parts.append(order)
  return grain.MapDataset.mix(parts, [source.weights[name] for name in source.parts])
