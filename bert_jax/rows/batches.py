"""From a source of rows to the global batch of a step.

The batch is a function of (seed, step): a permutation of the rows for each pass over them, cut into
consecutive batches. Nothing is remembered between steps, so a run resumes at any of them, and every
host builds just the rows its own devices hold, whatever the mesh.
"""

import logging
from typing import Any, Protocol

import grain
import jax
import numpy as np

from bert_jax.corpus.tokenized import DamagedRecord
from bert_jax.errors import InputError
from bert_jax.rows.pretraining import Mixture

log = logging.getLogger('bert_jax')


class Source(Protocol):
  """Random access to rows: what all data becomes before it is batched."""

  fingerprint: str  # changes when the rows do
  baselines: dict[str, tuple[float, str]]  # {metric: (what ignoring the input reaches, its name)}

  def __len__(self) -> int: ...

  def __getitem__(self, i: int) -> dict[str, np.ndarray]: ...


class Batches:
  """batches[step] -> {name: global jax.Array [B, ...]} sharded over the leading axis.

  spec: what the objective expects, {name: ShapeDtypeStruct}. limits: {name: exclusive upper bound}
  of integer arrays, since JAX reads past the end of a table without a word. With a seed the rows
  are shuffled anew in each pass, without end; without one they come once and in order, and the last
  batch is filled up with empty rows of weight 0. skip_damaged: a row whose record cannot be read is
  such an empty row too, and counted in damaged_rows.
  """

  def __init__(
    self, source: Source, spec: dict[str, Any], sharding, *, limits, seed=None, skip_damaged=False
  ):
    self.source, self.spec, self.sharding, self.limits = source, spec, sharding, limits
    self.skip_damaged, self.damaged_rows = skip_damaged, 0
    self.batch_size = next(iter(spec.values())).shape[0]
    self.shuffled = seed is not None
    if not len(source):
      raise InputError('the data gives no rows; see the counts above, and data.train, data.eval.')
    self.rows = source
    if self.shuffled:
      self.rows = endless(source, seed)
    indices = sharding.addressable_devices_indices_map((self.batch_size,)).values()
    self.local = sorted({i for (part,) in indices for i in range(self.batch_size)[part]})

  def __len__(self):
    """Batches in one pass (the last one may be partly empty)."""
    return -(-len(self.source) // self.batch_size)

  def __getitem__(self, step):
    rows = {i: self._row(step * self.batch_size + i) for i in self.local}
    return {
      name: jax.make_array_from_callback(
        spec.shape,
        self.sharding,
        lambda index, name=name: np.stack(
          [rows[i][name] for i in range(self.batch_size)[index[0]]]
        ),
      )
      for name, spec in self.spec.items()
    }

  def _row(self, i):
    if not self.shuffled and i >= len(self.source):
      return self._empty()
    try:
      out = self.rows[i]
    except DamagedRecord as error:
      if not self.skip_damaged:
        raise
      self.damaged_rows += 1
      log.warning('%s (row %d stays empty)', error, i)
      return self._empty()
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

  def _empty(self):
    return {name: np.zeros(spec.shape[1:], spec.dtype) for name, spec in self.spec.items()}


def endless(source, seed):
  """All rows in an order of its own for each pass, without end; the parts of a Mixture are mixed,
  each in passes of its own length."""
  if not isinstance(source, Mixture):
    return grain.MapDataset.source(source).seed(seed).shuffle().repeat()
  seeds = np.random.SeedSequence(seed).generate_state(len(source.parts))
  parts = [endless(part, int(s)) for part, s in zip(source.parts.values(), seeds, strict=True)]
  return grain.MapDataset.mix(parts, [source.weights[name] for name in source.parts])
