"""A tokenized corpus in memory or on disk: a sequence of tokens, cut into sentences and documents.

The rows of a run (rows/corpus_rows.py) are planned as ranges of that sequence, so a plan is arrays
of numbers, and only the tokens of the rows in use are ever read.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from bert_jax.errors import InputError
from bert_jax.text.documents import is_held_out, text_hash

if TYPE_CHECKING:
  from bert_jax.corpus.units import Encoder
  from bert_jax.tokenizers import Tokenizer

BATCH_SENTENCES = 20_000  # sentences handed to the tokenizer at once

Piece = tuple[np.ndarray, np.ndarray]  # tokens [n] int32, starts [n] uint8 (see units.Record)


class DamagedRecord(InputError):
  """A record cannot be read; the message names its shard and its number."""


class Corpus:
  """A tokenized corpus: D documents of S sentences; sentence s is the tokens sentences[s] to
  sentences[s + 1], document d the sentences documents[d] to documents[d + 1].
  Its tokens are read in R records, one or more a document. records: the numbers by which `read`
  gives them. record_tokens [R], sentence_tokens [S], document_sentences [D]: how many are in each.
  sizes [D, 2]: characters and bytes of each document. hashes [D]: documents.text_hash of each."""

  def __init__(
    self,
    read: Callable[[int], Piece],
    records: ArrayLike,
    record_tokens: ArrayLike,
    sentence_tokens: ArrayLike,
    document_sentences: ArrayLike,
    fingerprint: str,
    sizes: np.ndarray | None = None,
    hashes: np.ndarray | None = None,
  ):
    self.read, self.fingerprint, self.sizes, self.hashes = read, fingerprint, sizes, hashes
    self.records, self.record_at = np.asarray(records, np.int64), offsets(record_tokens)
    self.sentences, self.documents = offsets(sentence_tokens), offsets(document_sentences)

  def __len__(self) -> int:
    """The number of tokens."""
    return int(self.record_at[-1])

  @property
  def number_of_documents(self) -> int:
    return len(self.documents) - 1

  @property
  def document_at(self) -> np.ndarray:
    """[D + 1] offset of the first token of each document, and the number of tokens."""
    return self.sentences[self.documents]

  def piece(self, start: int, end: int) -> Piece:
    """(tokens, starts) between two offsets, `end` exclusive."""
    first = int(self.record_at.searchsorted(start, side='right')) - 1
    records = range(first, max(first + 1, int(self.record_at.searchsorted(end))))
    parts = [self._read(r) for r in records]
    tokens, starts = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    part = slice(start - int(self.record_at[first]), end - int(self.record_at[first]))
    return tokens[part], starts[part]

  def _read(self, r: int) -> Piece:
    tokens, starts = self.read(int(self.records[r]))
    if len(tokens) != (expected := self.record_at[r + 1] - self.record_at[r]):
      fault = f'record {self.records[r]} of the corpus has {len(tokens)} tokens'
      raise DamagedRecord(f'{fault} and its index says {expected}; prepare it again')
    return tokens, starts

  def select(self, keep: np.ndarray) -> 'Corpus':
    """A Corpus with only the documents where keep, bool [D], is True."""
    per_document = np.diff(self.documents)
    document = self.document_at[:-1].searchsorted(self.record_at[:-1], side='right') - 1
    chosen = keep[document] if len(keep) else np.zeros(0, bool)
    records, record_tokens = self.records[chosen], np.diff(self.record_at)[chosen]
    sentences = np.diff(self.sentences)[np.repeat(keep, per_document)]
    fingerprint = digest_of([self.fingerprint, np.packbits(keep).tobytes()])
    facts = (None if x is None else x[keep] for x in (self.sizes, self.hashes))
    parts = record_tokens, sentences, per_document[keep]
    return Corpus(self.read, records, *parts, fingerprint, *facts)

  def divided(self, share: float) -> tuple['Corpus', 'Corpus | None']:
    """Splits by a hash of the texts: (the Corpus to train on, the held-out one or None)."""
    held = is_held_out(self.hashes, share)
    return self.select(~held), self.select(held) if share else None

  def unigrams(self, vocab_size: int) -> np.ndarray:
    """Counts how often each id occurs, [vocab_size] int64, by reading the whole corpus."""
    counts, texts = np.zeros(vocab_size, np.int64), []
    for k, record in enumerate(self.records, 1):
      texts.append(self.read(int(record))[0])
      if texts and (len(texts) == 256 or k == len(self.records)):
        counts += np.bincount(np.concatenate(texts), minlength=vocab_size)
        texts.clear()
    return counts


def size_of(text: str) -> tuple[int, int]:
  """(characters, bytes) of a text."""
  return len(text), len(text.encode(errors='replace'))


def digest_of(parts: Iterable[str | bytes]) -> str:
  """The SHA-256 of some texts or bytes, one after the other, in 16 hexadecimal digits."""
  digest = hashlib.sha256()
  for part in parts:
    digest.update(part.encode() if isinstance(part, str) else part)
  return digest.hexdigest()[:16]


def spaced(number: int, most: int) -> np.ndarray:
  """At most so many of the numbers below `number`, evenly spaced, both ends among them."""
  return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(int))


def offsets(lengths: ArrayLike) -> np.ndarray:
  """Cumulative sums with a 0 in front, [n + 1]: where each of n stretches begins, and the end."""
  return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def tokenize(
  documents: Iterable[tuple[str, list[str]]], encoder: 'Encoder', counts: Counter
) -> Corpus:
  """A Corpus in memory of the documents that have tokens. counts: see units.Encoder."""
  records, pending, facts, waiting = [], [], [], 0
  for _, sentences in documents:
    pending.append(sentences)
    facts.append((*size_of(encoder.text_of(sentences)), text_hash(sentences)))
    waiting += len(sentences)
    if waiting >= BATCH_SENTENCES:
      records += encoder(pending, counts)
      pending, waiting = [], 0
  records += encoder(pending, counts)
  has_tokens = np.array([record is not None for record in records], bool)
  of_documents = np.array(facts, np.int64).reshape(-1, 3)[has_tokens]
  kept = [record for record in records if record is not None]
  tokens, sentences, starts = (
    np.concatenate([*(record[k] for record in kept), np.zeros(0, kind)]).astype(kind)
    for k, kind in enumerate((np.int32, np.int32, np.uint8))
  )
  record_tokens = [len(record.tokens) for record in kept]
  document_sentences = [len(record.sentences) for record in kept]
  arrays = tokens, sentences, starts, offsets(document_sentences)
  fingerprint = digest_of(array.tobytes() for array in arrays)
  begin = offsets(record_tokens)

  def read(record: int) -> Piece:
    part = slice(begin[record], begin[record + 1])
    return tokens[part], starts[part]

  lengths = record_tokens, sentences, document_sentences
  sizes, hashes = of_documents[:, :2], of_documents[:, 2].astype(np.uint32)
  return Corpus(read, np.arange(len(kept)), *lengths, fingerprint, sizes, hashes)


def predictable(counts: np.ndarray, tokenizer: 'Tokenizer') -> np.ndarray:
  """The counts [V] with 0 at the special pieces, [UNK] among them, which are never predicted."""
  counts = counts.copy()
  counts[list(tokenizer.special_ids)] = 0
  return counts


def unigram_table(counts: np.ndarray, of: np.ndarray) -> np.ndarray:
  """Nats [V] of each piece under the unigram frequencies of a text: the loss of the best predictor
  that never looks at the context. counts: [V] of the text that gives the frequencies; a piece it
  lacks counts once. of: [V] of the text to predict."""
  return -np.log(np.maximum(counts, 1) / np.maximum(counts, 1)[counts + of > 0].sum())
