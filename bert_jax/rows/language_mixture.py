"""Mixes the rows of several languages into one source, each language with its share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.corpus.tokenized import digest_of
from bert_jax.rows.source import Arrays, Source


class Mixture(Source):
  """Joins the sources of several languages one after the other.

  parts: {language: source}.
  weights: {language: its share of the rows}, by which shuffled batches mix them; together 1."""

  def __init__(self, parts: Mapping[str, Any], weights: Mapping[str, float]):
    super().__init__()
    self.parts = parts
    self.weights = weights
    self.ends = np.cumsum([len(part) for part in parts.values()])
    self.cuts = next(iter(parts.values())).cuts
    facts = [(name, part.fingerprint, weights[name]) for name, part in parts.items()]
    self.fingerprint = digest_of([repr(facts)])

  def __len__(self) -> int:
    return int(self.ends[-1])

  def at(self, i: int) -> tuple[str, int]:
    """(language, row number within it) of row i."""
    k = int(np.searchsorted(self.ends, i, side='right'))
    name = list(self.parts)[k]
    begin = int(self.ends[k]) - len(self.parts[name])
    return name, i - begin

  def gather(self, numbers: Sequence[int]) -> Arrays:
    """{name: [R, ...]} of the rows with these numbers. Rows of one language are made together."""
    by_language = {}  # {language: (places in `numbers`, row numbers within the language)}
    for k, i in enumerate(numbers):
      language, number = self.at(i)
      chosen, within = by_language.setdefault(language, ([], []))
      chosen.append(k)
      within.append(number)
    out = {}
    for language, (chosen, within) in by_language.items():
      for name, array in self.parts[language].gather(within).items():
        if name not in out:
          out[name] = np.zeros((len(numbers), *array.shape[1:]), array.dtype)
        out[name][chosen] = array
    return out


def language_shares(sizes: Mapping[str, int], sampling: float) -> dict[str, float]:
  """{language: its share of the rows}: P(L)^S renormalised, where P(L) is its share of the tokens.
  sizes: {language: tokens}. sampling: S; 1 is the data as it is, 0.7 is M-BERT's, 0 shows all
  languages alike."""
  total = sum(sizes.values())
  smoothed = {language: (size / total) ** sampling for language, size in sizes.items()}
  whole = sum(smoothed.values())
  return {language: share / whole for language, share in smoothed.items()}
