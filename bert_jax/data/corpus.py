"""A tokenized corpus in memory and the rows cut from it for pre-training.

Rows are planned once, as arrays of offsets into one long token array, so that row i is a function
of i alone and any step of a run can be built without the ones before it.
"""

import array
import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bert_jax.config import InputError

BATCH_SENTENCES = 20_000  # sentences handed to the tokenizer at once


class Corpus(NamedTuple):
  """Documents of sentences of tokens. Sentence s is tokens[sentences[s]:sentences[s + 1]]."""

  tokens: np.ndarray  # [tokens] int32
  sentences: np.ndarray  # [sentences + 1] int64, offsets into tokens
  documents: np.ndarray  # [documents + 1] int64, offsets into sentences

  @property
  def fingerprint(self):
    digest = hashlib.sha256()
    for part in self:
      digest.update(part.tobytes())
    return digest.hexdigest()[:16]


def tokenize(documents: Iterable[list[str]], tokenizer) -> Corpus:
  """Lists of sentences -> Corpus. Sentences and documents without a token are left out."""
  tokens, lengths, per_document = [], [], []
  pending, owners = [], []

  def flush():
    for owner, ids in zip(owners, tokenizer.ids_batch(pending)):
      if len(ids):
        tokens.append(ids)
        lengths.append(len(ids))
        per_document[owner] += 1
    pending.clear()
    owners.clear()

  for sentences in documents:
    per_document.append(0)
    pending.extend(sentences)
    owners.extend([len(per_document) - 1] * len(sentences))
    if len(pending) >= BATCH_SENTENCES:
      flush()
  flush()
  counts = [n for n in per_document if n]
  return Corpus(
    np.concatenate(tokens) if tokens else np.zeros(0, np.int32),
    np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
    np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
  )


def unigram_counts(corpus, tokenizer):
  """How often each piece occurs; special ones, [UNK] among them, are never predicted: 0."""
  counts = np.bincount(corpus.tokens, minlength=tokenizer.vocab_size)
  counts[list(tokenizer.special_ids)] = 0
  return counts


def unigram_nats(counts, of=None):
  """Cross-entropy in nats per token of the counts `of` (default: counts itself) under counts.

  What the best predictor that never looks at the context pays; a masked-LM loss that stays here has
  learned nothing but frequencies. Unseen pieces count as seen once.
  """
  of = counts if of is None else of
  probabilities = np.maximum(counts, 1) / np.maximum(counts, 1)[counts + of > 0].sum()
  return float(-(of / of.sum()) @ np.log(probabilities))


class NspRows:
  """Sentence-pair rows [CLS] A [SEP] B [SEP]: label 0, B follows A; label 1, B is from elsewhere.

  The cutting is google-research/bert's create_pretraining_data.py: consecutive sentences of a
  document are gathered up to the row's length (`short_seq_prob`: a random shorter one), split at a
  random sentence into A and B, and in half of the rows B is replaced by a stretch of another
  document, the sentences it displaced going into the next row. Random B also when there is nothing
  to split. What is too long is cut from the front or the back of the longer half at random. One
  difference: the length is drawn for each row, where the reference draws it once per document, so
  that `short_seq_prob` is a share of rows however long documents are.
  """

  def __init__(self, corpus, tokenizer, *, seq_length, short_seq_prob, dupe_factor, seed):
    if len(corpus.documents) < 3:
      raise InputError(
        'next-sentence pairs need at least 2 documents; separate them by blank lines.'
      )
    self.corpus, self.tokenizer, self.seq_length = corpus, tokenizer, seq_length
    rng = np.random.default_rng(seed)
    plans = [_plan_pairs(corpus, seq_length - 3, short_seq_prob, rng) for _ in range(dupe_factor)]
    self.plan = np.concatenate(
      [plan for plan, _ in plans]
    )  # [rows, 5]: A from-to, B from-to, label
    self.cut_tokens = sum(cut for _, cut in plans)
    self.fingerprint = hashlib.sha256(
      self.plan.tobytes() + corpus.fingerprint.encode()
    ).hexdigest()[:16]

  def __len__(self):
    return len(self.plan)

  def __getitem__(self, i):
    a0, a1, b0, b1, label = self.plan[i]
    a, b = self.corpus.tokens[a0:a1], self.corpus.tokens[b0:b1]
    return row(self.tokenizer, (a, b), self.seq_length) | {
      'cls_positions': np.zeros(1, np.int32),
      'labels': np.array([label], np.int32),
      'weights': np.ones(1, np.float32),
    }


class FullRows:
  """Rows [CLS] text [SEP] of consecutive tokens of one document, as long as the row allows."""

  def __init__(self, corpus, tokenizer, *, seq_length):
    self.corpus, self.tokenizer, self.seq_length = corpus, tokenizer, seq_length
    edges = corpus.sentences[corpus.documents]
    self.plan = np.array(
      [
        (start, min(start + seq_length - 2, end))
        for begin, end in zip(edges[:-1], edges[1:])
        for start in range(begin, end, seq_length - 2)
      ],
      np.int64,
    ).reshape(-1, 2)
    self.cut_tokens = 0
    self.fingerprint = corpus.fingerprint

  def __len__(self):
    return len(self.plan)

  def __getitem__(self, i):
    start, end = self.plan[i]
    return row(self.tokenizer, (self.corpus.tokens[start:end],), self.seq_length)


def row(tokenizer, texts, seq_length):
  """[CLS] text [SEP] (text [SEP]) of token arrays -> the four arrays of a row, padded, [T]
  int32."""
  parts = [[tokenizer.cls_id]]
  for text in texts:
    parts += [text, [tokenizer.sep_id]]
  ids = np.concatenate(parts)
  first = 2 + len(texts[0])
  out = np.zeros((4, seq_length), np.int32)
  out[0] = tokenizer.pad_id
  out[0, : len(ids)] = ids
  out[1, first : len(ids)] = 1
  out[2, : len(ids)] = np.arange(len(ids))
  out[3, : len(ids)] = 1
  return dict(zip(('input_ids', 'token_type_ids', 'position_ids', 'segment_ids'), out))


def _plan_pairs(corpus, room, short_seq_prob, rng):
  """One pass over the corpus -> ([rows, 5] int64, tokens cut off)."""
  sentence_at, document_at = corpus.sentences.tolist(), corpus.documents.tolist()
  documents = len(document_at) - 1
  rows, cut = array.array('q'), 0  # 40 bytes a row

  def target():
    return int(rng.integers(2, room + 1)) if rng.random() < short_seq_prob else room

  def stretch(document, first, length):
    """Sentences of a document from `first` on, until `length` tokens: (from, to)."""
    start, end = sentence_at[first], document_at[document + 1]
    last = first + 1
    while last < end and sentence_at[last] - start < length:
      last += 1
    return start, sentence_at[last]

  for document in range(documents):
    begin, end = document_at[document], document_at[document + 1]
    length = target()
    first = s = begin
    while s < end:
      s += 1
      size = sentence_at[s] - sentence_at[first]
      if s < end and size < length:
        continue
      count = s - first
      split = first + (int(rng.integers(1, count)) if count > 1 else 1)
      a = (sentence_at[first], sentence_at[split])
      if count == 1 or rng.random() < 0.5:
        label = 1
        other = int(rng.integers(documents - 1))
        other += other >= document
        other_first = int(rng.integers(document_at[other], document_at[other + 1]))
        b = stretch(other, other_first, length - (a[1] - a[0]))
        s = split
      else:
        label = 0
        b = (sentence_at[split], sentence_at[s])
      (a0, a1), (b0, b1), lost = _truncate(a, b, room, rng)
      rows.extend((a0, a1, b0, b1, label))
      cut += lost
      first, length = s, target()
  return np.frombuffer(rows, np.int64).reshape(-1, 5), cut


def _truncate(a, b, room, rng):
  """Two (from, to) spans shortened to `room` in all: the longer one first, at a random end each
  time."""
  size_a, size_b = a[1] - a[0], b[1] - b[0]
  lost = max(0, size_a + size_b - room)
  if not lost:
    return a, b, 0
  from_a = min(lost, max(0, size_a - size_b))
  from_b = min(lost - from_a, max(0, size_b - size_a))
  rest = lost - from_a - from_b  # equally long now: in turn, B first
  from_a, from_b = from_a + rest // 2, from_b + rest - rest // 2
  front_a, front_b = int(rng.binomial(from_a, 0.5)), int(rng.binomial(from_b, 0.5))
  return (
    (a[0] + front_a, a[1] - from_a + front_a),
    (b[0] + front_b, b[1] - from_b + front_b),
    lost,
  )
