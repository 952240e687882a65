"""Byte-level BPE as in RoBERTa and GPT-2, by Hugging Face's Rust library.

A text is its UTF-8 bytes, so nothing is unknown; a blank belongs to the word it stands before
(Radford et al. 2019, section 2.2). A word at the beginning of a text has no blank and so, without
`add_prefix_space`, other pieces than the same word later in the text.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from bert_jax.errors import InputError
from bert_jax.tokenizers.base import OTHER_NAMES, RESERVED, Tokenizer
from bert_jax.tokenizers.language_weights import Texts, WeightedLines

BLANK = 'Ġ'  # how byte-level vocabularies write a space
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # the pieces of single bytes
# RoBERTa's reserved pieces, in the order of its ids; its <mask> is its last piece.
FIRST = [OTHER_NAMES[name] for name in ('[CLS]', '[PAD]', '[SEP]', '[UNK]')]
LAST = OTHER_NAMES['[MASK]']


class ByteLevel(Tokenizer):
  """A byte-pair encoding tokenizer of UTF-8 bytes.
  pieces: in order of their ids. merges: [(left, right), ...] in order of their rank."""

  needs = ()  # GPT-2's has <|endoftext|> alone
  blank_is_of_word = mask_takes_blank = True

  def __init__(
    self,
    pieces: Iterable[str],
    merges: Iterable[Sequence[str]],
    *,
    add_prefix_space: bool = False,
    source: str = 'the vocabulary',
  ):
    pieces, merges = list(pieces), [(left, right) for left, right in merges]
    content = json.dumps(['byte-level', add_prefix_space, pieces, merges])
    super().__init__(pieces, hashlib.sha256(content.encode()).hexdigest(), source)
    self.add_prefix_space = add_prefix_space
    self._begins_word = np.array([piece.startswith(BLANK) for piece in pieces])
    # No special tokens are declared to the library, so a typed "<mask>" is plain text.
    ids = {piece: i for i, piece in enumerate(pieces)}
    self.rust = self._library = tokenizers.Tokenizer(models.BPE(ids, merges))
    self.rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space)
    self.rust.post_processor = processors.ByteLevel(add_prefix_space, trim_offsets=True)
    self.rust.decoder = decoders.ByteLevel()

  def files(self) -> dict[str, str]:
    return {'tokenizer.json': self.rust.to_str(pretty=True)}


def byte_tokenizer() -> ByteLevel:
  """A tokenizer of single bytes: 261 pieces, 5 of them reserved. Each text begins with a blank."""
  pieces = [*RESERVED, *ALPHABET]
  return ByteLevel(pieces, [], add_prefix_space=True, source='the vocabulary of bytes')


def train_byte_level(
  texts: Texts, *, vocab_size: int, sampling: float = 1.0
) -> tuple[ByteLevel, dict[str, Any]]:
  """Trains a vocabulary of exactly vocab_size pieces: (it, what was counted on the way).
  The pieces are <s> <pad> </s> <unk>, the 256 bytes, merges of pairs that occur at least twice,
  <unused0>, <unused1>, ... if the corpus is too small, and <mask>. A blank stands before each text,
  so a word has the same pieces wherever it stands. The text is held in memory. The same texts give
  the same pieces, since ties are broken by their numbers. sampling: see language_weights.weights.
  """
  smallest = len(FIRST) + len(ALPHABET) + 1
  if vocab_size < smallest:
    needed = f'{len(ALPHABET)} bytes and {len(FIRST) + 1} reserved pieces; use {smallest} or more'
    raise InputError(f'vocab_size {vocab_size} cannot hold {needed}')
  lines_of = lambda text: [line for line in text.split('\n') if line.strip()]
  lines = WeightedLines(texts, sampling, lines_of)
  rust = tokenizers.Tokenizer(models.BPE())
  rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
  settings = dict(vocab_size=vocab_size - 1, special_tokens=FIRST, initial_alphabet=ALPHABET)
  trainer = trainers.BpeTrainer(min_frequency=2, show_progress=False, **settings)
  rust.train_from_iterator(lines, trainer)
  ids = rust.get_vocab(with_added_tokens=True)
  pieces = sorted(ids, key=lambda piece: ids[piece])
  unused = [f'<unused{i}>' for i in range(vocab_size - 1 - len(pieces))]
  merges = json.loads(rust.to_str())['model']['merges']
  tokenizer = ByteLevel([*pieces, *unused, LAST], merges, add_prefix_space=True)
  counts = lines.counts | {'pieces': len(pieces) + 1, 'unused': len(unused)}
  return tokenizer, counts | {'shares': lines.shares}
