"""From a corpus to rows: planned once as ranges of tokens, so that row i is a function of i alone.

An example is [CLS] A [SEP] or [CLS] A [SEP] B [SEP]. What A and B are is the kind of rows:

  nsp     next-sentence pairs (Devlin et al. 2018): label 1 where B is from another document
  sop     sentence-order pairs (ALBERT, Lan et al. 2019): label 1 where the two are swapped
  full    consecutive tokens of a document, as many as the row holds (the last one: the rest)
  single  whole sentences of a document, as many as the row holds

No example crosses a document. A row holds one example, or several packed ones, each with a segment
id and positions of its own; attention never crosses segments.
"""

import hashlib

import numpy as np

from bert_jax.errors import InputError

PAIRS = ('nsp', 'sop')


class Rows:
  """A Source of the rows of one corpus. examples_per_row: 1, or the most to pack into one.

  language: number of the corpus' language, given to every row. dupe_factor: times the corpus is cut
  into pairs, differently each; other kinds are cut in one way only, so only once.
  """

  def __init__(
    self,
    corpus,
    tokenizer,
    *,
    kind,
    seq_length,
    seed=0,
    short_seq_prob=0.0,
    dupe_factor=1,
    examples_per_row=1,
    language=0,
  ):
    self.corpus, self.tokenizer, self.seq_length = corpus, tokenizer, seq_length
    self.language, self.examples_per_row = np.int32(language), examples_per_row
    self.baselines = {}
    self.cut_tokens = 0
    if kind in PAIRS:
      if kind == 'nsp' and len(corpus.documents) < 3:
        raise InputError(
          'next-sentence pairs need at least 2 documents; separate them by blank lines.'
        )
      rng = np.random.default_rng(seed)
      plans = [
        plan_pairs(corpus, seq_length - 3, kind, short_seq_prob, rng) for _ in range(dupe_factor)
      ]
      self.plan = np.concatenate([plan for plan, _ in plans])
      self.cut_tokens = sum(cut for _, cut in plans)
    else:
      self.plan = _PLANS[kind](corpus, seq_length - 2)
    self.row_at = None
    if examples_per_row > 1:
      order, self.row_at = pack(self.lengths(), seq_length, examples_per_row)
      self.plan = self.plan[order]
    digest = hashlib.sha256(corpus.fingerprint.encode())
    for array in (self.plan, self.row_at, seq_length):
      digest.update(np.asarray(array if array is not None else 0, np.int64).tobytes())
    self.fingerprint = digest.hexdigest()[:16]

  def lengths(self):
    """Tokens of each example of the plan, [CLS] and [SEP] included."""
    sizes = self.plan[:, 1] - self.plan[:, 0] + self.plan[:, 3] - self.plan[:, 2]
    return sizes + 2 + (self.plan[:, 3] > self.plan[:, 2])

  @property
  def fill(self):
    """Share of all positions that hold a token."""
    return float(self.lengths().sum() / max(1, len(self) * self.seq_length))

  def __len__(self):
    return len(self.plan if self.row_at is None else self.row_at) - (self.row_at is not None)

  def __getitem__(self, i):
    first, last = (i, i + 1) if self.row_at is None else self.row_at[i : i + 2]
    examples = self.plan[first:last].tolist()
    texts = [[self.corpus.piece(a, b) for a, b in (ab[:2], ab[2:4]) if a < b] for ab in examples]
    labels = [ab[4] for ab in examples]
    out = build_row(
      self.tokenizer, texts, self.seq_length, labels=labels, slots=self.examples_per_row
    )
    out['language'] = self.language
    return out


def build_row(tokenizer, examples, seq_length, *, labels=None, slots=1):
  """Examples -> the arrays of a row, padded to [T] int32; slots: the N of the [N] ones.

  examples: lists of one or two (ids, starts). labels: one for each; below 0 is none. Gives
  input_ids, token_type_ids, position_ids, segment_ids (1.. for each example), unit_starts, and
  cls_positions, labels, weights [N].
  """
  out = np.zeros((5, seq_length), np.int32)
  ids, types, positions, segments, starts = out
  ids[:] = tokenizer.pad_id
  cls_positions = np.zeros(slots, np.int32)
  at = 0
  for k, texts in enumerate(examples):
    begin = cls_positions[k] = at
    ids[at] = tokenizer.cls_id
    at += 1
    for kind, (tokens, units) in enumerate(texts):
      end = at + len(tokens)
      ids[at:end] = tokens
      starts[at:end] = units
      ids[end] = tokenizer.sep_id
      if kind:
        types[at : end + 1] = kind
      at = end + 1
    positions[begin:at] = np.arange(at - begin)
    segments[begin:at] = k + 1
  names = ('input_ids', 'token_type_ids', 'position_ids', 'segment_ids', 'unit_starts')
  row = dict(zip(names, out, strict=True), cls_positions=cls_positions)
  if labels is not None:
    row['labels'], row['weights'] = np.zeros(slots, np.int32), np.zeros(slots, np.float32)
    row['labels'][: len(labels)] = np.maximum(labels, 0)
    row['weights'][: len(labels)] = np.array(labels) >= 0
  return row


class Mixture:
  """Several Rows as one Source: in turn, or, where data is shuffled, mixed by weights.

  parts and weights by name; a weight is the share of the mixture's rows.
  """

  def __init__(self, parts, weights):
    self.parts, self.weights = parts, weights
    self.ends = np.cumsum([len(part) for part in parts.values()])
    self.baselines = {}
    digest = repr([(name, part.fingerprint, weights[name]) for name, part in parts.items()])
    self.fingerprint = hashlib.sha256(digest.encode()).hexdigest()[:16]

  def __len__(self):
    return int(self.ends[-1])

  def __getitem__(self, i):
    k = int(np.searchsorted(self.ends, i, side='right'))
    part = list(self.parts.values())[k]
    return part[i - int(self.ends[k]) + len(part)]


def shares(sizes, sampling, factors=None):
  """Share of each language in what is seen: P(L)^S renormalised, P(L) its share of the tokens.

  S = 1 is the data as it is, 0.7 is M-BERT's (google-research/bert, multilingual.md), 0 all alike.
  factors: {name: multiple} on top of it.
  """
  total = sum(sizes.values())
  smoothed = {k: (n / total) ** sampling * (factors or {}).get(k, 1.0) for k, n in sizes.items()}
  return {k: x / sum(smoothed.values()) for k, x in smoothed.items()}


# -------------------------------------------------------------------------------------------------
# Plans: [examples, 5] int64, from and to of A, from and to of B (0, 0: none), label (-1: none)
# -------------------------------------------------------------------------------------------------


def plan_full(corpus, room):
  """Stretches of `room` tokens; the last of a document is shorter."""
  begin, end = corpus.document_at[:-1], corpus.document_at[1:]
  number = -(-(end - begin) // room)
  which = np.repeat(np.arange(len(begin)), number)
  start = begin[which] + room * (
    np.arange(len(which)) - np.repeat(np.cumsum(number) - number, number)
  )
  return _singles(start, np.minimum(start + room, end[which]))


def plan_single(corpus, room):
  """Whole sentences while they fit; a sentence longer than the row goes on in the next one."""
  at, ends = corpus.sentences, corpus.document_at[1:]
  document, start = np.arange(len(ends)), corpus.document_at[:-1]
  found = []
  while len(document):
    whole = at[at.searchsorted(start + room, side='right') - 1]
    end = np.minimum(np.where(whole > start, whole, start + room), ends[document])
    found.append((document, start, end))
    more = end < ends[document]
    document, start = document[more], end[more]
  document, start, end = (np.concatenate(x) for x in zip(*found, strict=True))
  order = np.argsort(document, kind='stable')
  return _singles(start[order], end[order])


def _singles(start, end):
  none = np.zeros_like(start)
  return np.stack([start, end, none, none, none - 1], axis=1)


def plan_pairs(corpus, room, kind, short_seq_prob, rng):
  """(plan, tokens cut off): one pass over the corpus, all documents a row further at a time.

  The cutting is google-research/bert's create_pretraining_data.py: consecutive sentences of a
  document are gathered up to the row's length (`short_seq_prob`: a random shorter one) and split at
  a random sentence into A and B. For nsp, B is in half of the rows replaced by a stretch of another
  document, the sentences it displaced going into the next row; also when there is nothing to split.
  For sop, A and B are swapped in half of the rows; a lone sentence is split within. What is too
  long is cut from the front or the back of the longer half at random. One difference: the length is
  drawn for each row, where the reference draws it once per document, so that `short_seq_prob` is a
  share of rows however long documents are.
  """
  at, documents = corpus.sentences, corpus.documents
  active = np.flatnonzero(np.diff(documents))
  first = documents[active]
  found, cut = [], 0
  while len(active):
    n, stop = len(active), documents[active + 1]
    short = rng.random(n) < short_seq_prob
    target = np.where(short, rng.integers(2, room + 1, n), room)
    last = np.clip(at.searchsorted(at[first] + target), first + 1, stop)
    split = first + 1 + _below(rng, last - first - 1)
    alone = last - first == 1
    a = np.stack([at[first], at[split]], axis=1)
    b = np.stack([at[split], at[last]], axis=1)
    if kind == 'nsp':
      label = (rng.random(n) < 0.5) | alone
      other = rng.integers(0, len(documents) - 2, n)
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
    swap = a[:, 0] == a[:, 1]  # B alone: then it stands first
    a, b = np.where(swap[:, None], b, a), np.where(swap[:, None], a, b)
    found.append((active, np.concatenate([a, b, label[:, None].astype(np.int64)], axis=1)))
    cut += int(lost.sum())
    first = last
    more = first < stop
    active, first = active[more], first[more]
  document, plan = (np.concatenate(x) for x in zip(*found, strict=True))
  return plan[np.argsort(document, kind='stable')], cut


_PLANS = {'full': plan_full, 'single': plan_single}


def _below(rng, limits):
  """A whole number from 0 to each limit, exclusive; 0 where the limit is 0."""
  return (rng.random(len(limits)) * limits).astype(np.int64)


def _truncate(a, b, room, rng):
  """(from, to) spans [n, 2] shortened to `room` in all: the longer one first, at a random end each
  time; with what each row lost."""
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


def pack(lengths, room, most):
  """Which examples share a row: best fit, longest first, at most `most` in each.

  Returns (order [E], row_at [R + 1]): row r holds the examples order[row_at[r]:row_at[r + 1]]. Rows
  and the examples in them keep the order of the plan.
  """
  row_of = np.zeros(len(lengths), np.int64)
  rooms = [[] for _ in range(room + 1)]  # rows by how much they still take
  held = []  # examples of each row
  by_length = np.argsort(-lengths, kind='stable')
  for example, length in zip(by_length.tolist(), lengths[by_length].tolist(), strict=True):
    free = next((r for r in range(length, room) if rooms[r]), room)
    if free < room:
      row = rooms[free].pop()
    else:
      row = len(held)
      held.append(0)
    row_of[example] = row
    held[row] += 1
    if held[row] < most:
      rooms[free - length].append(row)
  # Rows are numbered by the first example in them.
  firsts = np.full(len(held), len(lengths))
  np.minimum.at(firsts, row_of, np.arange(len(lengths)))
  number = np.empty(len(held), np.int64)
  number[np.argsort(firsts)] = np.arange(len(held))
  order = np.argsort(number[row_of], kind='stable')
  return order, np.concatenate([[0], np.cumsum(np.bincount(number[row_of], minlength=len(held)))])
