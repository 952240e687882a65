"""The form of all data before batching: rows by number."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.metrics import Level

Arrays = dict[str, np.ndarray]


class Source:
  """Random access to rows of one shape, {name: array}.

  A subclass has `__len__`, a fingerprint, and `__getitem__` or `gather`. An evaluation scores the
  answers of a tasks.scored.Scored; of others it reports the terms only."""

  fingerprint: str  # changes when the rows do
  cuts = 1  # how often the rows hold the text

  def __init__(self):
    self.baselines: dict[str, Level] = {}  # {metric: its value without reading the input}
    self.part: dict[str, Level] = {}  # the baselines of the part that a run evaluates, if it does
    # {NAME of a value of an evaluation of all rows: what was measured before the training}.
    self.measured: dict[str, float] = {}
    self.levels: list[Callable[..., Any]] = []  # of a batch: its baselines, {metric: Mean}
    self.scales: dict[str, tuple[str, float]] = {}  # {metric: (term, factor of it)}

  def __len__(self) -> int:
    raise NotImplementedError

  def __getitem__(self, i: int) -> Arrays:
    return {name: array[0] for name, array in self.gather([i]).items()}

  def gather(self, numbers: Sequence[int]) -> Arrays:
    """{name: [R, ...]} of the rows with these numbers."""
    rows = [self[i] for i in numbers]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
