"""Mixes the rows of several languages into one source, each language with its share."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.corpus.tokenized import digest_of

if TYPE_CHECKING:
  from bert_jax.rows.block_rows import BlockRows
  from bert_jax.rows.corpus_rows import Rows


class Mixture:
  """Joins {language: source} one after the other; shuffled batches mix them by their weights,
  which are shares of the rows and together 1."""

  def __init__(self, parts: Mapping[str, 'Rows | BlockRows'], weights: Mapping[str, float]):
    self.parts, self.weights = parts, weights
    self.ends = np.cumsum([len(part) for part in parts.values()])
    self.baselines, self.levels, self.scales = {}, [], {}
    self.cuts = getattr(next(iter(parts.values())), 'cuts', 1)
    facts = [(name, part.fingerprint, weights[name]) for name, part in parts.items()]
    self.fingerprint = digest_of([repr(facts)])

  def __len__(self) -> int:
    return int(self.ends[-1])

  def at(self, i: int) -> tuple[str, int]:
    """(language, row number within it) of row i."""
    k = int(np.searchsorted(self.ends, i, side='right'))
    name = list(self.parts)[k]
    return name, i - int(self.ends[k]) + len(self.parts[name])

  def __getitem__(self, i: int) -> dict[str, np.ndarray]:
    name, number = self.at(i)
    return self.parts[name][number]

  def gather(self, numbers: Sequence[int]) -> dict[str, np.ndarray]:
    """{name: [R, ...]} of the rows with these numbers."""
    places, out = [self.at(i) for i in numbers], {}
    for language in dict.fromkeys(name for name, _ in places):
      chosen = [k for k, (name, _) in enumerate(places) if name == language]
      rows = self.parts[language].gather([places[k][1] for k in chosen])
      for name, array in rows.items():
        whole = out.setdefault(name, np.zeros((len(places), *array.shape[1:]), array.dtype))
        whole[chosen] = array
    return out


def shares(
  sizes: Mapping[str, int], sampling: float, factors: Mapping[str, float] | None = None
) -> dict[str, float]:
  """{language: its share of the rows}: P(L)^S renormalised, where P(L) is its share of the tokens.
  sizes: {language: tokens}. sampling: S; 1 is the data as it is, 0.7 is M-BERT's, 0 shows all
  languages alike. factors: {language: factor on its share before all are renormalised}."""
  total = sum(sizes.values())
  smoothed = {k: (n / total) ** sampling * (factors or {}).get(k, 1.0) for k, n in sizes.items()}
  return {k: x / sum(smoothed.values()) for k, x in smoothed.items()}
