"""The order of rows in endless passes over them, each shuffled anew.

The rows of one unit are permuted. Of several units (see corpus_rows.py) each comes once in a pass,
cut into pairs in one of dupe_factor ways: the units are permuted, and so are the rows in each. Laid
end to end they are cut into `window` lanes of equal length, and a batch takes a few consecutive
rows from each lane. So all rows of some steps are from `window` units, and a host reads only the
units of its own rows. Place i of this order is arithmetic, so that a run resumes at once.
"""

import functools
import sys
from typing import Any, SupportsIndex

import grain
import numpy as np

from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.language_mixture import Mixture
from bert_jax.rows.source import Source


def endless(source: Source, seed: int, batch_size: int = 1, first: int = 0) -> Any:
  """The numbers of the rows of a source in endless passes, each in another order, as a sequence.

  first: the number of the source's first row. batch_size: see Order. The parts of a Mixture are
  mixed by their weights."""
  if isinstance(source, Rows) and source.units > 1:
    return Order(source, seed, batch_size, first)
  if not isinstance(source, Mixture):
    numbers = grain.MapDataset.source(range(first, first + len(source)))
    return numbers.seed(seed).shuffle().repeat()
  seeds = np.random.SeedSequence(seed).generate_state(len(source.parts))
  parts = []
  begin = first  # the number of the first row of each part
  for (name, part), part_seed in zip(source.parts.items(), seeds, strict=True):
    rows_of_batch = max(1, round(batch_size * source.weights[name]))
    order = endless(part, int(part_seed), rows_of_batch, begin)
    if isinstance(order, Order):
      order = grain.MapDataset.source(order)  # pyrefly: ignore[bad-argument-type] (it is one)
    parts.append(order)
    begin += len(part)
  weights = [source.weights[name] for name in source.parts]
  return grain.MapDataset.mix(parts, weights)


class Order:
  """The numbers of the rows of several units in endless passes, for batches of a size.

  first: the number of the first row, if the rows are part of a mixture. window: see the text at the
  top; a batch has no more lanes than rows."""

  def __init__(self, rows: Rows, seed: int, batch_size: int, first: int = 0):
    self.rows = rows
    self.seed = seed
    self.batch_size = batch_size
    self.first = first
    self.lanes = min(rows.window, batch_size)
    self._units = functools.lru_cache(2)(self._permuted_units)
    self._within = functools.lru_cache(4 * self.lanes)(self._permuted_rows)

  def __len__(self) -> int:
    """Endless, as far as a sequence can be."""
    return sys.maxsize

  def __getitem__(self, i: SupportsIndex) -> int:
    """The number of the row at place i, counted over all passes."""
    rows = self.rows
    lanes = self.lanes
    batch_size = self.batch_size
    size = int(rows.row_at[-1])  # rows of a pass
    number, place = divmod(int(i), size)
    step, row = divmod(place, batch_size)
    lane = row * lanes // batch_size
    # Rows begin..end - 1 of each batch are from this lane.
    begin = -(-lane * batch_size // lanes)
    end = -(-(lane + 1) * batch_size // lanes)
    # The place of the row where the permuted units lie end to end.
    steps, rest = divmod(size, batch_size)
    in_lower_lanes = steps * begin + min(rest, begin)
    at = in_lower_lanes + step * (end - begin) + row - begin
    order, ends = self._units(number)
    k = int(ends.searchsorted(at, side='right'))
    unit = int(order[k])
    cut = number % rows.cuts
    rows_of_unit = int(rows.rows_of[unit])
    within = at - int(ends[k]) + rows_of_unit
    if within == rows_of_unit // 2 and k + 1 < len(order):
      rows.expect(cut * rows.units + int(order[k + 1]))  # which follows in this lane
    row_of_unit = int(self._within(number, unit)[within])
    return self.first + cut * size + int(rows.row_at[unit]) + row_of_unit

  def _permuted_units(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    """(the units in the order of a pass [units], the row at which each of them ends [units])."""
    rng = np.random.default_rng([self.seed, number])
    order = rng.permutation(self.rows.units)
    return order, np.cumsum(self.rows.rows_of[order])

  def _permuted_rows(self, number: int, unit: int) -> np.ndarray:
    """The rows of a unit in the order of a pass, by their numbers in the unit."""
    rng = np.random.default_rng([self.seed, number, unit])
    return rng.permutation(int(self.rows.rows_of[unit]))
