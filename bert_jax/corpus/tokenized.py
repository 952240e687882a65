"""A tokenized corpus: a sequence of tokens, cut into sentences and documents.

The rows of a run (rows/plans.py) are planned as ranges of that sequence. So a plan is arrays of
numbers, and of a corpus on the disk only the tokens of the rows in use are read.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from bert_jax.text.documents import is_held_out, text_hash

if TYPE_CHECKING:
  from bert_jax.corpus.units import Marker, Record
  from bert_jax.tokenizers import Tokenizer

BATCH_SENTENCES = 20_000  # sentences handed to the tokenizer at once
COUNTED_AT_ONCE = 1 << 24  # tokens

Piece = tuple[np.ndarray, np.ndarray]  # tokens [n] int32, starts [n] uint8 (see units.Record)


class Corpus:
  """A tokenized corpus of D documents, S sentences and N tokens.

  Sentence s is the tokens sentences[s] to sentences[s + 1], document d the sentences documents[d]
  to documents[d + 1]. It is planned in one unit; a large prepared corpus (store.Chunks) in several.
  tokens [N]: ids.
  starts [N]: see units.Record.
  sentence_tokens [S]: how many tokens are in each sentence.
  document_sentences [D]: how many sentences are in each document.
  sizes [D, 2]: characters and bytes of each document.
  hashes [D]: documents.text_hash of each.
  """

  units = window = 1

  def __init__(
    self,
    tokens: np.ndarray,
    starts: np.ndarray,
    sentence_tokens: ArrayLike,
    document_sentences: ArrayLike,
    fingerprint: str,
    sizes: np.ndarray,
    hashes: np.ndarray,
  ):
    self.tokens = tokens
    self.starts = starts
    self.fingerprint = fingerprint
    self.sentences = offsets(sentence_tokens)
    self.documents = offsets(document_sentences)
    self.sizes = sizes
    self.hashes = hashes

  def __len__(self) -> int:
    """The number of tokens."""
    return len(self.tokens)

  @property
  def number_of_documents(self) -> int:
    return len(self.documents) - 1

  @property
  def document_at(self) -> np.ndarray:
    """[D + 1] offset of the first token of each document, and the number of tokens."""
    return self.sentences[self.documents]

  def unit(self, number: int) -> 'Corpus':
    return self

  def piece(self, start: int, end: int) -> Piece:
    """(tokens, starts) between two offsets, `end` exclusive."""
    return self.tokens[start:end].astype(np.int32), self.starts[start:end]

  def stretches(self, begins: np.ndarray, sizes: np.ndarray) -> Piece:
    """(tokens, starts) of n stretches, one after the other."""
    at = spread(begins, sizes)
    return self.tokens[at].astype(np.int32), self.starts[at]

  def select(self, keep: np.ndarray) -> 'Corpus':
    """A Corpus with only the documents where keep, bool [D], is True."""
    of_tokens = np.repeat(keep, np.diff(self.document_at))
    of_sentences = np.repeat(keep, np.diff(self.documents))
    return Corpus(
      self.tokens[of_tokens],
      self.starts[of_tokens],
      np.diff(self.sentences)[of_sentences],
      np.diff(self.documents)[keep],
      digest_of([self.fingerprint, np.packbits(keep).tobytes()]),
      self.sizes[keep],
      self.hashes[keep],
    )

  def divided(self, share: float) -> tuple['Corpus', 'Corpus | None']:
    """Splits by a hash of the texts: (the Corpus to train on, the held-out one or None)."""
    if not share:
      return self, None
    held = is_held_out(self.hashes, share)
    return self.select(~held), self.select(held)

  def unigrams(self, vocab_size: int) -> np.ndarray:
    """Counts how often each id occurs, [vocab_size] int64."""
    counts = np.zeros(vocab_size, np.int64)
    for first in range(0, len(self), COUNTED_AT_ONCE):
      counts += np.bincount(self.tokens[first : first + COUNTED_AT_ONCE], minlength=vocab_size)
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


def concatenated(arrays: Sequence[np.ndarray], kind: DTypeLike) -> np.ndarray:
  """The arrays one after the other; an empty one of this kind if there is none."""
  return np.concatenate([*arrays, np.zeros(0, kind)])


def spread(begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """Concatenated ranges: sizes[0] numbers from begins[0] on, sizes[1] from begins[1] on, .."""
  sizes = np.asarray(sizes, np.int64)
  return np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


def tokenize(
  documents: Iterable[tuple[str, list[str]]], marker: 'Marker', counts: Counter
) -> Corpus:
  """A Corpus in memory of the documents that have tokens. counts: see units.Marker."""
  kept = []  # Records
  facts = []  # (characters, bytes, hash) of each
  for sentences, record in _encoded(documents, marker, counts):
    if record is not None:
      kept.append(record)
      facts.append((*size_of(marker.text_of(sentences)), text_hash(sentences)))
  tokens = concatenated([record.tokens for record in kept], np.int32)
  starts = concatenated([record.starts for record in kept], np.uint8)
  sentence_tokens = concatenated([record.sentences for record in kept], np.int32)
  document_sentences = [len(record.sentences) for record in kept]
  hashed = tokens, sentence_tokens, starts, offsets(document_sentences)
  of_documents = np.array(facts, np.int64).reshape(-1, 3)
  return Corpus(
    tokens,
    starts,
    sentence_tokens,
    document_sentences,
    digest_of(array.tobytes() for array in hashed),
    of_documents[:, :2],
    of_documents[:, 2].astype(np.uint32),
  )


def _encoded(
  documents: Iterable[tuple[str, list[str]]], marker: 'Marker', counts: Counter
) -> Iterator[tuple[list[str], 'Record | None']]:
  """Yields (sentences, record) of each document, which are encoded many at a time."""
  pending, waiting = [], 0
  for _, sentences in documents:
    pending.append(sentences)
    waiting += len(sentences)
    if waiting >= BATCH_SENTENCES:
      yield from zip(pending, marker(pending, counts), strict=True)
      pending, waiting = [], 0
  yield from zip(pending, marker(pending, counts), strict=True)


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
