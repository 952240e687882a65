"""A tokenized corpus in memory or on disk: a sequence of tokens, cut into sentences and documents.

The rows of a run (rows/corpus_rows.py) are planned as ranges of that sequence, so a plan is arrays
of numbers, and only the tokens of the rows in use are ever read.
"""

import functools
import hashlib
import logging
from collections.abc import Callable, Iterable

import numpy as np

from bert_jax.errors import InputError

log = logging.getLogger('bert_jax')

BATCH_SENTENCES = 20_000  # sentences handed to the tokenizer at once


class DamagedRecord(InputError):
  """A record cannot be read; the message names its shard and its number."""


class Corpus:
  """A tokenized corpus: documents of sentences; sentence s is tokens sentences[s] to sentences[s +
  1].
  Its tokens are read in records, one or more for each document: read(record) -> (tokens [n] int32,
  starts [n] uint8, see units.Record). records [R]: the numbers of the records, in order; record_at
  [R + 1]: offset of the first token of each. sentences [S + 1] are offsets of tokens, documents [D
  + 1] offsets of sentences. sizes [D, 2]: characters and bytes of each document's text, or None."""

  def __init__(
    self, read: Callable, records, record_at, sentences, documents, fingerprint: str, sizes=None
  ):
    self.read, self.fingerprint, self.sizes = read, fingerprint, sizes
    self.records = np.asarray(records, np.int64)
    self.record_at = np.asarray(record_at, np.int64)
    self.sentences = np.asarray(sentences, np.int64)
    self.documents = np.asarray(documents, np.int64)

  def __len__(self):
    """The number of tokens."""
    return int(self.record_at[-1])

  @property
  def number_of_documents(self):
    return len(self.documents) - 1

  @property
  def document_at(self):
    """[D + 1] offset of the first token of each document, and the number of tokens."""
    return self.sentences[self.documents]

  def piece(self, start, end):
    """(tokens, starts) between two offsets, `end` exclusive."""
    r = int(self.record_at.searchsorted(start, side='right')) - 1
    tokens, starts = self._read(r)
    at = int(self.record_at[r])
    if end <= at + len(tokens):
      return tokens[start - at : end - at], starts[start - at : end - at]
    parts = [(tokens[start - at :], starts[start - at :])]
    while (at := int(self.record_at[r + 1])) < end:  # it goes on in the next records
      r += 1
      tokens, starts = self._read(r)
      parts.append((tokens[: end - at], starts[: end - at]))
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))

  def _read(self, r):
    tokens, starts = self.read(int(self.records[r]))
    if len(tokens) != self.record_at[r + 1] - self.record_at[r]:
      raise DamagedRecord(
        f'record {self.records[r]} of the corpus has {len(tokens)} tokens and its index says '
        f'{self.record_at[r + 1] - self.record_at[r]}: it has changed since it was prepared; '
        'prepare it again'
      )
    return tokens, starts

  def select(self, keep):
    """A Corpus with only the documents where keep, bool [D], is True."""
    per_document = np.diff(self.documents)
    sentences = offsets(np.diff(self.sentences)[np.repeat(keep, per_document)])
    document = self.document_at[:-1].searchsorted(self.record_at[:-1], side='right') - 1
    chosen = keep[document] if len(keep) else np.zeros(0, bool)
    records, record_at = self.records[chosen], offsets(np.diff(self.record_at)[chosen])
    digest = hashlib.sha256(self.fingerprint.encode() + np.packbits(keep).tobytes()).hexdigest()
    documents = offsets(per_document[keep])
    sizes = None if self.sizes is None else self.sizes[keep]
    return Corpus(self.read, records, record_at, sentences, documents, digest[:16], sizes)

  def unigrams(self, vocab_size, skip_damaged=False):
    """Counts how often each id occurs, [vocab_size] int64, by reading the whole corpus."""
    counts, texts, damaged = np.zeros(vocab_size, np.int64), [], []
    for k, record in enumerate(self.records, 1):
      try:
        texts.append(self.read(int(record))[0])
      except DamagedRecord as error:
        if not skip_damaged:
          raise
        damaged.append(error)
      if texts and (len(texts) == 256 or k == len(self.records)):
        counts += np.bincount(np.concatenate(texts), minlength=vocab_size)
        texts.clear()
    if damaged:
      more = f', nor those of {len(damaged) - 1} more' if len(damaged) > 1 else ''
      log.warning('%s (its tokens are not counted%s)', damaged[0], more)
    return counts


def size_of(sentences):
  """(characters, bytes) of a document's text with a line break between sentences."""
  whole = '\n'.join(sentences)
  return len(whole), len(whole.encode(errors='replace'))


def offsets(lengths):
  """Cumulative sums with a 0 in front, [n + 1]: where each of n stretches begins, and the end."""
  return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def tokenize(documents: Iterable[list[str]], encoder, counts):
  """Tokenizes documents, lists of sentences: (Corpus in memory, [documents] bool: whether it has
  tokens). Documents without a token are left out. encoder: a units.Encoder. counts: see Encoder."""
  records, pending, sizes = [], [], []

  def flush():
    records.extend(encoder(pending, counts))
    pending.clear()

  size = 0
  for sentences in documents:
    pending.append(sentences)
    sizes.append(size_of(sentences))
    size += len(sentences)
    if size >= BATCH_SENTENCES:
      flush()
      size = 0
  flush()
  kept = [record for record in records if record is not None]
  tokens, sentences, starts = (
    np.concatenate([*(record[k] for record in kept), np.zeros(0, kind)]).astype(kind)
    for k, kind in enumerate((np.int32, np.int32, np.uint8))
  )
  record_at = offsets([len(record.tokens) for record in kept])
  documents = offsets([len(record.sentences) for record in kept])
  digest = hashlib.sha256()
  for part in (tokens, sentences, starts, documents):
    digest.update(part.tobytes())
  has_tokens = np.array([record is not None for record in records], bool)
  sizes = np.array(sizes, np.int64).reshape(-1, 2)[has_tokens]
  whole = Corpus(
    functools.partial(_slice, tokens, starts, record_at),
    np.arange(len(kept)),
    record_at,
    offsets(sentences),
    documents,
    digest.hexdigest()[:16],
    sizes,
  )
  return whole, has_tokens


def _slice(tokens, starts, record_at, record):
  """(tokens, starts) of one record of a corpus in memory."""
  part = slice(record_at[record], record_at[record + 1])
  return tokens[part], starts[part]


def predictable(counts, tokenizer):
  """The counts [V] with 0 at the special pieces, [UNK] among them, which are never predicted."""
  counts = counts.copy()
  counts[list(tokenizer.special_ids)] = 0
  return counts


def unigram_nats(counts, of=None):
  """Cross-entropy in nats per token of a text under the unigram frequencies of another one.
  counts: [V] of the text that gives the frequencies; a piece it lacks counts once. of: [V] of the
  text to predict; None: the same text. The result is the loss of the best predictor that never
  looks at the context; a masked-LM loss that stays there has learned frequencies only."""
  of = counts if of is None else of
  probabilities = np.maximum(counts, 1) / np.maximum(counts, 1)[counts + of > 0].sum()
  return float(-(of / of.sum()) @ np.log(probabilities))
