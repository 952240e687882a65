"""Cuts sentence pairs: for NSP, half get a random second text; for SOP, half are swapped.

The cutting is google-research/bert's create_pretraining_data.py (Devlin et al. 2018; sentence
order: ALBERT, Lan et al. 2019), over all documents at once.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.corpus.tokenized import Corpus


class Cuts(NamedTuple):
  """Where consecutive sentences of n documents are cut into A and B, as arrays [n]: the document,
  its first sentence, the first sentence of B, the end of B, and the wanted number of tokens. A
  document with one sentence left has no B: `split` is the end."""

  document: np.ndarray
  first: np.ndarray
  split: np.ndarray
  last: np.ndarray
  target: np.ndarray


# A, B [n, 2] tokens, labels [n] (-1: none), first sentences of the next examples [n].
Drawn = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Pair(NamedTuple):
  """A kind of sentence pairs."""

  labels: tuple[str, ...]  # their names, in the order of their numbers
  documents: int  # the least a corpus needs
  draw: Callable[[Corpus, Cuts, np.random.Generator], Drawn]
  words: str  # the task that it teaches, as part of a sentence


def draw_next(corpus: Corpus, cuts: Cuts, rng: np.random.Generator) -> Drawn:
  """Replaces B in half of the examples, and where there is none, by a stretch of another document;
  B goes into the next example."""
  at, documents, n = corpus.sentences, corpus.documents, len(cuts.document)
  a, b = _spans(at, cuts)
  label = (rng.random(n) < 0.5) | (cuts.split == cuts.last)
  other = rng.integers(0, len(documents) - 2, n)  # any document but this one
  other += other >= cuts.document
  begin = documents[other] + _below(rng, documents[other + 1] - documents[other])
  want = at[begin] + cuts.target - (at[cuts.split] - at[cuts.first])
  end = np.clip(at.searchsorted(want), begin + 1, documents[other + 1])
  b = np.where(label[:, None], np.stack([at[begin], at[end]], axis=1), b)
  return a, b, label, np.where(label, cuts.split, cuts.last)


def draw_order(corpus: Corpus, cuts: Cuts, rng: np.random.Generator) -> Drawn:
  """Swaps A and B in half of the examples; a lone sentence is split within."""
  at, n = corpus.sentences, len(cuts.document)
  a, b = _spans(at, cuts)
  size = at[cuts.last] - at[cuts.first]
  inside = at[cuts.first] + 1 + _below(rng, size - 1)
  a[:, 1] = b[:, 0] = np.where(cuts.split == cuts.last, inside, at[cuts.split])
  label = rng.random(n) < 0.5
  a, b = np.where(label[:, None], b, a), np.where(label[:, None], a, b)
  return a, b, np.where(size > 1, label, -1), cuts.last  # a single token has no order


def _spans(at, cuts):
  """The token spans of A and B, [n, 2] each."""
  a = np.stack([at[cuts.first], at[cuts.split]], axis=1)
  return a, np.stack([at[cuts.split], at[cuts.last]], axis=1)


PAIRS = {
  'nsp': Pair(('next', 'random'), 2, draw_next, 'next sentences'),
  'sop': Pair(('in order', 'swapped'), 1, draw_order, 'the order of sentences'),
}


def further_labels(pair: Pair | None) -> tuple[str, ...]:
  """The names under which the third and later labels of a kind of pairs are counted."""
  return tuple(f'label_{k}' for k in range(2, len(pair.labels))) if pair else ()


def prior(totals: Sequence[Mapping[str, int]], kind: str) -> tuple[int, float]:
  """The most frequent label of a kind of pairs and its share, from Rows.totals of corpora."""
  total = Counter()
  for of_corpus in totals:
    total.update(of_corpus)
  names = 'ones', *further_labels(PAIRS[kind])
  shares = [total[name] / max(1, total['labelled']) for name in names]
  shares.insert(0, 1 - sum(shares))
  return shares.index(max(shares)), max(shares)


def plan_pairs(
  corpus: Corpus, room: int, pair: Pair, short_seq_prob: float, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
  """Plans one pass over a corpus: (plan as in corpus_rows.py, number of tokens cut off). The
  examples of a document are consecutive, in the order of its text.
  Consecutive sentences of a document are gathered up to `room` tokens (with `short_seq_prob`: up to
  a random smaller number) and split at a random sentence into A and B, which the pair's `draw` then
  changes and labels. Excess tokens are cut from either end of the longer half at random. Unlike in
  the reference, the length is drawn for each example, and not once per document."""
  at, documents = corpus.sentences, corpus.documents
  active = np.flatnonzero(np.diff(documents))  # documents with sentences left, one example of each
  first = documents[active]  # the next sentence of each document
  examples, cut = [], 0
  while len(active):
    n, stop = len(active), documents[active + 1]
    target = np.where(rng.random(n) < short_seq_prob, rng.integers(2, room + 1, n), room)
    last = np.clip(at.searchsorted(at[first] + target), first + 1, stop)
    split = first + 1 + _below(rng, last - first - 1)
    a, b, label, last = pair.draw(corpus, Cuts(active, first, split, last, target), rng)
    a, b, lost = _truncate(a, b, room, rng)
    swap = a[:, 0] == a[:, 1]  # A is empty: B stands first
    a, b = np.where(swap[:, None], b, a), np.where(swap[:, None], a, b)
    examples.append((active, np.concatenate([a, b, label[:, None].astype(np.int64)], axis=1)))
    cut += int(lost.sum())
    first = last
    more = first < stop
    active, first = active[more], first[more]
  document, plan = (np.concatenate(x) for x in zip(*examples, strict=True))
  return plan[np.argsort(document, kind='stable')], cut


def _below(rng, limits):
  """Draws a whole number from 0 to each limit, exclusive; 0 where the limit is 0."""
  return (rng.random(len(limits)) * limits).astype(np.int64)


def _truncate(a, b, room, rng):
  """Shortens spans (first token, end) [n, 2] to `room` tokens in all; also returns each loss [n].
  Tokens are taken from the longer of the two, each time from a random end."""
  size_a, size_b = a[:, 1] - a[:, 0], b[:, 1] - b[:, 0]
  lost = np.maximum(0, size_a + size_b - room)
  from_a = np.clip(size_a - size_b, 0, lost)
  from_b = np.clip(size_b - size_a, 0, lost - from_a)
  rest = lost - from_a - from_b  # equally long now: in turn, B first
  from_a, from_b = from_a + rest // 2, from_b + rest - rest // 2
  front_a, front_b = rng.binomial(from_a, 0.5), rng.binomial(from_b, 0.5)
  a = np.stack([a[:, 0] + front_a, a[:, 1] - from_a + front_a], axis=1)
  b = np.stack([b[:, 0] + front_b, b[:, 1] - from_b + front_b], axis=1)
  return a, b, lost
