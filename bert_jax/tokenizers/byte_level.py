"""Byte-level BPE as in RoBERTa and GPT-2, by Hugging Face's Rust library.

A text is its UTF-8 bytes, so nothing is unknown; a blank belongs to the word it stands before
(Radford et al. 2019, section 2.2). A word at the beginning of a text has no blank and so, without
`add_prefix_space`, other pieces than the same word later in the text.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.tokenizers.base import RESERVED, Encoding, Tokenizer, checked

BLANK = 'Ġ'  # how byte-level vocabularies write a space


class ByteLevel(Tokenizer):
  """A byte-pair encoding tokenizer of UTF-8 bytes.
  pieces: in order of their ids. merges: [(left, right), ...] in order of their rank."""

  needs = ()  # GPT-2's has <|endoftext|> alone
  blank_is_of_word = mask_takes_blank = True

  def __init__(
    self,
    pieces: Iterable[str],
    merges: Iterable[tuple[str, str]],
    *,
    add_prefix_space: bool = False,
    source: str = 'the vocabulary',
  ):
    pieces, merges = list(pieces), [tuple(pair) for pair in merges]
    content = json.dumps(['byte-level', add_prefix_space, pieces, merges])
    super().__init__(pieces, hashlib.sha256(content.encode()).hexdigest(), source)
    self.add_prefix_space = add_prefix_space
    self._begins_word = np.array([piece.startswith(BLANK) for piece in pieces])
    # No special tokens are declared to the library, so a typed "<mask>" is plain text.
    ids = {piece: i for i, piece in enumerate(pieces)}
    self.rust = tokenizers.Tokenizer(models.BPE(ids, merges))
    self.rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    self.rust.post_processor = processors.ByteLevel(
      add_prefix_space=add_prefix_space, trim_offsets=True
    )
    self.rust.decoder = decoders.ByteLevel()

  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    return [self.encoding(e.ids, e.offsets) for e in self.rust.encode_batch(checked(texts))]

  def ids_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.array(e.ids, np.int32) for e in self.rust.encode_batch_fast(checked(texts))]

  def word_starts(self, ids: np.ndarray, text_starts: np.ndarray) -> np.ndarray:
    starts = self._begins_word[ids]
    starts[text_starts] = True
    return starts

  def decode(self, ids: Iterable[int]) -> str:
    texts = [self.rust.decode(run) for run in self._between_masks(ids)]
    return with_masks(texts, self.add_prefix_space)

  def files(self) -> dict[str, str]:
    return {'tokenizer.json': self.rust.to_str(pretty=True)}


def with_masks(texts: list[str], add_prefix_space: bool) -> str:
  """Joins texts by masks, each of which takes the blank before it. One blank at the beginning is
  left out where every text gets one (add_prefix_space) or where a mask begins it."""
  whole = ' [MASK]'.join(texts)
  return whole.removeprefix(' ') if add_prefix_space or not texts[0] else whole


def byte_tokenizer() -> ByteLevel:
  """A tokenizer of single bytes: 261 pieces, the reserved ones and 256 more. Each text begins with
  a blank, which separates the sentences of a document."""
  pieces = [*RESERVED, *sorted(pre_tokenizers.ByteLevel.alphabet())]
  return ByteLevel(pieces, [], add_prefix_space=True, source='the vocabulary of bytes')
