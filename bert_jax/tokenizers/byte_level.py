"""Byte-level BPE as in RoBERTa and GPT-2: the content of a tokenizer.json, and its trainer.

A text is its UTF-8 bytes, so nothing is unknown; a blank belongs to the word it stands before
(Radford et al. 2019, section 2.2). A word at the beginning of a text has no blank and so, without
`add_prefix_space`, other pieces than the same word later in the text.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.tokenizers.language_weights import Texts, WeightedLines
from bert_jax.tokenizers.reserved import OTHER_NAMES, RESERVED, reserved_ids
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece import special_token

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # the pieces of single bytes
# RoBERTa's reserved pieces, in the order of its ids; its <mask> is its last piece.
FIRST = [OTHER_NAMES[name] for name in ('[CLS]', '[PAD]', '[SEP]', '[UNK]')]
LAST = OTHER_NAMES['[MASK]']


def byte_level_content(
  pieces: Iterable[str], merges: Iterable[Sequence[str]], *, add_prefix_space: bool = False
) -> dict[str, Any]:
  """pieces: in order of their ids. merges: [(left, right), ...] in order of their rank."""
  pieces, added = list(pieces), []
  for name, i in sorted(reserved_ids(pieces).items(), key=lambda item: item[1]):
    if pieces[i] not in [token['content'] for token in added]:
      # A mask takes the blank before it.
      added.append(special_token(i, pieces[i], lstrip=name == '[MASK]'))
  split = {'type': 'ByteLevel', 'add_prefix_space': add_prefix_space, 'use_regex': True}
  return {
    'version': '1.0',
    'added_tokens': added,
    'normalizer': None,
    'pre_tokenizer': split | {'trim_offsets': True},
    'decoder': split | {'trim_offsets': True},
    'model': {
      'type': 'BPE',
      'vocab': {piece: i for i, piece in enumerate(pieces)},
      'merges': [list(pair) for pair in merges],
    },
  }


def byte_tokenizer() -> Tokenizer:
  """A tokenizer of single bytes: 261 pieces, 5 of them reserved. Each text begins with a blank."""
  content = byte_level_content([*RESERVED, *ALPHABET], [], add_prefix_space=True)
  return Tokenizer(content, source='the vocabulary of bytes')


def train_byte_level(
  texts: Texts, *, vocab_size: int, sampling: float = 1.0
) -> tuple[Tokenizer, dict[str, Any]]:
  """Trains a vocabulary of exactly vocab_size pieces: (it, what was counted on the way).
  The pieces are <s> <pad> </s> <unk>, the 256 bytes, merges of pairs that occur at least twice,
  <unused0>, <unused1>, ... if the corpus is too small, and <mask>. A blank stands before each text,
  so a word has the same pieces wherever it stands. The text is held in memory. The same texts give
  the same pieces, since ties are broken by their numbers. sampling: see language_weights.weights.
  """

  def lines_of(text):
    return [line for line in text.split('\n') if line.strip()]

  lines = WeightedLines(texts, sampling, lines_of)
  rust = tokenizers.Tokenizer(models.BPE())
  rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size - 1,
    special_tokens=FIRST,
    initial_alphabet=ALPHABET,
    min_frequency=2,
    show_progress=False,
  )
  rust.train_from_iterator(lines, trainer)
  ids = rust.get_vocab(with_added_tokens=True)
  pieces = sorted(ids, key=lambda piece: ids[piece])
  unused = [f'<unused{i}>' for i in range(vocab_size - 1 - len(pieces))]
  merges = json.loads(rust.to_str())['model']['merges']
  content = byte_level_content([*pieces, *unused, LAST], merges, add_prefix_space=True)
  counts = lines.counts | {'pieces': len(pieces) + 1, 'unused': len(unused)}
  return Tokenizer(content), counts | {'shares': lines.shares}
