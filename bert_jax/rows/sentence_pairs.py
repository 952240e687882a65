"""Cuts sentence pairs: for NSP, half get a random second text; for SOP, half are swapped.

The cutting is google-research/bert's create_pretraining_data.py (Devlin et al. 2018; sentence
order: ALBERT, Lan et al. 2019), over all documents at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.corpus.tokenized import Corpus


class Cuts(NamedTuple):
  """Where consecutive sentences of n documents are cut into A and B, as arrays [n].

  A document with one sentence left has no B: then `split` is `last`."""

  document: np.ndarray  # the number of the document
  first: np.ndarray  # the first sentence of A
  split: np.ndarray  # the first sentence of B
  last: np.ndarray  # the first sentence after B
  target: np.ndarray  # the wanted number of tokens


# (the tokens of A [n, 2] and of B [n, 2], each a begin and an end; labels [n], -1: none; the first
# sentences of the next examples [n])
Drawn = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Pair(NamedTuple):
  """A kind of sentence pairs. draw: makes A, B and the label of each example from where a text is
  cut, and says where the next examples begin."""

  labels: tuple[str, str]  # the names of the labels 0 and 1
  documents: int  # the least a corpus needs
  draw: Callable[[Corpus, Cuts, np.random.Generator], Drawn]
  words: str  # the task that it teaches, as part of a sentence


def draw_next(corpus: Corpus, cuts: Cuts, rng: np.random.Generator) -> Drawn:
  """Replaces B in half of the examples, and where there is none, by a stretch of another document.
  The B that was replaced begins the next example."""
  at = corpus.sentences
  documents = corpus.documents
  n = len(cuts.document)
  a, true_b = _spans(at, cuts)
  label = (rng.random(n) < 0.5) | (cuts.split == cuts.last)
  other = rng.integers(0, len(documents) - 2, n)  # any document but this one
  other += other >= cuts.document
  begin = documents[other] + _below(rng, documents[other + 1] - documents[other])
  size_a = at[cuts.split] - at[cuts.first]
  want = at[begin] + cuts.target - size_a  # where B should end
  end = np.clip(at.searchsorted(want), begin + 1, documents[other + 1])
  random_b = np.stack([at[begin], at[end]], axis=1)
  b = np.where(label[:, None], random_b, true_b)
  next_first = np.where(label, cuts.split, cuts.last)
  return a, b, label, next_first


def draw_order(corpus: Corpus, cuts: Cuts, rng: np.random.Generator) -> Drawn:
  """Swaps A and B in half of the examples; a lone sentence is split within."""
  at = corpus.sentences
  n = len(cuts.document)
  first, second = _spans(at, cuts)
  size = at[cuts.last] - at[cuts.first]
  inside = at[cuts.first] + 1 + _below(rng, size - 1)
  boundary = np.where(cuts.split == cuts.last, inside, at[cuts.split])
  first[:, 1] = boundary
  second[:, 0] = boundary
  is_swapped = rng.random(n) < 0.5
  a = np.where(is_swapped[:, None], second, first)
  b = np.where(is_swapped[:, None], first, second)
  label = np.where(size > 1, is_swapped, -1)  # a single token has no order
  return a, b, label, cuts.last


def _spans(at, cuts):
  """The token spans of A and B, [n, 2] each. at: where sentences begin in the text."""
  begin, middle, end = at[cuts.first], at[cuts.split], at[cuts.last]
  a = np.stack([begin, middle], axis=1)
  b = np.stack([middle, end], axis=1)
  return a, b


PAIRS = {
  'nsp': Pair(
    labels=('next', 'random'),
    documents=2,
    draw=draw_next,
    words='next sentences',
  ),
  'sop': Pair(
    labels=('in order', 'swapped'),
    documents=1,
    draw=draw_order,
    words='the order of sentences',
  ),
}


def prior(totals: Sequence[Mapping[str, int]]) -> tuple[int, float]:
  """The more frequent label of pairs and its share, from Rows.totals of corpora."""
  labelled = sum(of_corpus['labelled'] for of_corpus in totals)
  ones = sum(of_corpus['ones'] for of_corpus in totals)
  share = ones / max(1, labelled)
  return (1, share) if share > 0.5 else (0, 1 - share)


def plan_pairs(
  corpus: Corpus, room: int, pair: Pair, short_seq_prob: float, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
  """Plans one pass over a corpus: (plan [examples, 5] as in plans.py, number of tokens cut off).

  Consecutive sentences of a document are gathered up to `room` tokens (with `short_seq_prob`: up to
  a random smaller number) and split at a random sentence into A and B, which the pair's `draw` then
  changes and labels. Excess tokens are cut from either end of the longer half at random. Unlike in
  the reference, the length is drawn for each example, and not once per document.

  The examples of a document are consecutive, in the order of its text."""
  at = corpus.sentences
  documents = corpus.documents
  active = np.flatnonzero(np.diff(documents))  # documents with sentences left, one example of each
  first = documents[active]  # the next sentence of each document
  owners, plans = [], []  # the document of each example, and its columns
  cut = 0
  while len(active):
    n = len(active)
    stop = documents[active + 1]
    is_short = rng.random(n) < short_seq_prob
    target = np.where(is_short, rng.integers(2, room + 1, n), room)
    last = np.clip(at.searchsorted(at[first] + target), first + 1, stop)
    split = first + 1 + _below(rng, last - first - 1)
    cuts = Cuts(active, first, split, last, target)
    a, b, label, first = pair.draw(corpus, cuts, rng)
    a, b, lost = _truncate(a, b, room, rng)
    is_empty = (a[:, 0] == a[:, 1])[:, None]  # then B stands first
    columns = [
      np.where(is_empty, b, a),
      np.where(is_empty, a, b),
      label[:, None].astype(np.int64),
    ]
    owners.append(active)
    plans.append(np.concatenate(columns, axis=1))
    cut += int(lost.sum())
    more = first < stop
    active = active[more]
    first = first[more]
  in_order = np.argsort(np.concatenate(owners), kind='stable')
  return np.concatenate(plans)[in_order], cut


def _below(rng, limits):
  """Draws a whole number from 0 to each limit, exclusive; 0 where the limit is 0."""
  return (rng.random(len(limits)) * limits).astype(np.int64)


def _truncate(a, b, room, rng):
  """Shortens spans (first token, end) a and b [n, 2] to `room` tokens together.

  Tokens are taken from the longer of the two, each time from a random end. Returns the spans, and
  how many tokens each pair has lost [n]."""
  size_a = a[:, 1] - a[:, 0]
  size_b = b[:, 1] - b[:, 0]
  lost = np.maximum(0, size_a + size_b - room)
  from_a = np.clip(size_a - size_b, 0, lost)
  from_b = np.clip(size_b - size_a, 0, lost - from_a)
  rest = lost - from_a - from_b  # equally long now: in turn, B first
  from_a += rest // 2
  from_b += rest - rest // 2
  return _shorter(a, from_a, rng), _shorter(b, from_b, rng), lost


def _shorter(spans, lost, rng):
  """Spans [n, 2] without `lost` [n] tokens, each taken from the front or the end by chance."""
  front = rng.binomial(lost, 0.5)
  return np.stack([spans[:, 0] + front, spans[:, 1] - lost + front], axis=1)
