"""Weights languages against each other when one vocabulary is trained for several."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from bert_jax.errors import InputError
from bert_jax.tokenizers.tokenizer import checked

Texts = Iterable[str] | Mapping[str, Iterable[str]]  # in one language, or {language: its texts}


def by_language(texts: Texts) -> dict[str, Iterable[str]]:
  """{language: its texts}; texts that are not given by language get the name ''."""
  return dict(texts) if isinstance(texts, Mapping) else {'': texts}


def weights(sizes: dict[str, int], sampling: float) -> dict[str, int]:
  """{language: the whole number by which its counts are multiplied}, at most 100. sizes: {language:
  words or characters}. With S = sampling, a language that makes up the share P(L) of all text
  counts in proportion to P(L)^S, as in M-BERT, whose S is 0.7; 1 leaves all as it is."""
  empty = [name for name, size in sizes.items() if not size]
  if empty or not sizes:
    text = f'language {empty[0]!r}' if empty and empty[0] else 'the corpus'
    raise InputError(
      f'{text} holds no words: its texts are empty; check the column, paths and filters of them'
    )
  if sampling == 1 or len(sizes) == 1:
    return dict.fromkeys(sizes, 1)
  largest = max(sizes.values())  # the largest language has weight 100
  return {name: round(100 * (largest / size) ** (1 - sampling)) for name, size in sizes.items()}


def weighted_shares(sizes: dict[str, int], weights: dict[str, int]) -> dict[str, float]:
  """{language: its share of the weighted text}, to six digits."""
  counted = {name: size * weights[name] for name, size in sizes.items()}
  return {name: round(n / sum(counted.values()), 6) for name, n in counted.items()}


class WeightedLines:
  """The lines of texts, in memory, each repeated as often as its language's weight says: in the
  language with the lowest weight once. Where a weight is no multiple of that, some come once more.
  lines_of(text) -> its lines. counts: lines and characters. shares: from weighted_shares."""

  def __init__(self, texts: Texts, sampling: float, lines_of: Callable[[str], Iterable[str]]):
    self._lines = {}
    for name, part in by_language(texts).items():
      self._lines[name] = []
      for text in part:
        self._lines[name] += lines_of(checked([text])[0])
    sizes = {name: sum(map(len, part)) for name, part in self._lines.items()}
    self._times = weights(sizes, sampling)
    lines = sum(map(len, self._lines.values()))
    self.counts = {'lines': lines, 'characters': sum(sizes.values())}
    self.shares = weighted_shares(sizes, self._times)

  def __iter__(self) -> Iterator[str]:
    once = min(self._times.values())
    for language, part in self._lines.items():
      times = self._times[language]
      for i, line in enumerate(part):
        for _ in range((i + 1) * times // once - i * times // once):
          yield line
