"""Sentence pairs: in half of NSP's the second one is random, in half of SOP's the two are swapped.

The cutting is google-research/bert's create_pretraining_data.py (Devlin et al. 2018; sentence
order: ALBERT, Lan et al. 2019), over all documents at once.
"""

import numpy as np

PAIRS = ('nsp', 'sop')


def plan_pairs(corpus, room, kind, short_seq_prob, rng):
  """One pass over a corpus: (plan, number of tokens cut off).

  For the plan and its labels see corpus_rows.py; the examples of a document are consecutive, in the
  order of its text.

  Consecutive sentences of a document are gathered up to `room` tokens (with `short_seq_prob`: up to
  a random smaller number) and split at a random sentence into A and B. For nsp, B is replaced in
  half of the examples by a stretch of another document, and the sentences it displaced go into the
  next example; also when there is only one sentence, so nothing to split. For sop, A and B are
  swapped in half of the examples; a lone sentence is split within. What is too long is cut from the
  front or the back of the longer half at random. One difference to the reference: the length is
  drawn for each example, and not once per document, so that `short_seq_prob` is a share of examples
  however long documents are.
  """
  at, documents = corpus.sentences, corpus.documents
  active = np.flatnonzero(np.diff(documents))  # documents with sentences left, one example of each
  first = documents[active]  # the next sentence of each of them
  examples, cut = [], 0
  while len(active):
    n, stop = len(active), documents[active + 1]
    target = np.where(rng.random(n) < short_seq_prob, rng.integers(2, room + 1, n), room)
    last = np.clip(at.searchsorted(at[first] + target), first + 1, stop)
    split = first + 1 + _below(rng, last - first - 1)
    alone = last - first == 1
    a = np.stack([at[first], at[split]], axis=1)
    b = np.stack([at[split], at[last]], axis=1)
    if kind == 'nsp':
      label = (rng.random(n) < 0.5) | alone
      other = rng.integers(0, len(documents) - 2, n)  # any document but this one
      other += other >= active
      begin = documents[other] + _below(rng, documents[other + 1] - documents[other])
      want = at[begin] + target - (at[split] - at[first])
      end = np.clip(at.searchsorted(want), begin + 1, documents[other + 1])
      b = np.where(label[:, None], np.stack([at[begin], at[end]], axis=1), b)
      last = np.where(label, split, last)
    else:
      size = at[last] - at[first]
      inside = at[first] + 1 + _below(rng, size - 1)
      a[:, 1] = b[:, 0] = np.where(alone, inside, at[split])
      label = rng.random(n) < 0.5
      a, b = np.where(label[:, None], b, a), np.where(label[:, None], a, b)
      label = np.where(size > 1, label, -1)  # a single token has no order
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
  """A whole number from 0 to each limit, exclusive; 0 where the limit is 0."""
  return (rng.random(len(limits)) * limits).astype(np.int64)


def _truncate(a, b, room, rng):
  """Spans (first token, end) [n, 2] shortened to `room` tokens in all, and what each row lost [n].
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
