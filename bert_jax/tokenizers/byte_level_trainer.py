"""Trains byte-level BPE vocabularies, by Hugging Face's Rust library: the same texts give the same
bytes, since ties are broken by the numbers of the pieces, which begin with the sorted bytes."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.errors import InputError
from bert_jax.tokenizers.base import OTHER_NAMES
from bert_jax.tokenizers.byte_level import ByteLevel
from bert_jax.tokenizers.language_weights import Texts, WeightedLines

# RoBERTa's reserved pieces, in the order of its ids; its <mask> is its last piece.
FIRST = [OTHER_NAMES[name] for name in ('[CLS]', '[PAD]', '[SEP]', '[UNK]')]
LAST = OTHER_NAMES['[MASK]']
BYTES = 256


def train_byte_level(
  texts: Texts, path: str | Path, *, vocab_size: int, sampling: float = 1.0
) -> dict[str, Any]:
  """Writes a tokenizer.json of exactly vocab_size pieces and returns what was counted on the way.
  They are <s> <pad> </s> <unk>, the 256 bytes, merges of pairs that occur at least twice, and
  <mask>. A corpus too small for so many is filled up with <unused0>, <unused1>, ... A blank stands
  before each text, so a word has the same pieces wherever it stands. The text is held in memory.
  sampling: see language_weights.weights; 'shares' of the result is the share of the characters that
  each language then has."""
  smallest = len(FIRST) + BYTES + 1
  if vocab_size < smallest:
    raise InputError(
      f'vocab_size {vocab_size} cannot hold {BYTES} bytes and {len(FIRST) + 1} reserved pieces; '
      f'use {smallest} or more'
    )
  lines = WeightedLines(texts, sampling, _lines)
  rust = tokenizers.Tokenizer(models.BPE())
  rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size - 1,
    min_frequency=2,
    special_tokens=FIRST,
    show_progress=False,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
  )
  rust.train_from_iterator(lines, trainer)
  ids = rust.get_vocab(with_added_tokens=True)
  pieces = sorted(ids, key=ids.get)
  unused = [f'<unused{i}>' for i in range(vocab_size - 1 - len(pieces))]
  merges = json.loads(rust.to_str())['model']['merges']
  tokenizer = ByteLevel([*pieces, *unused, LAST], merges, add_prefix_space=True)
  Path(path).write_text(tokenizer.files()['tokenizer.json'], 'utf-8')
  counts = lines.counts | {'pieces': len(pieces) + 1, 'unused': len(unused)}
  return counts | {'shares': lines.shares}


def _lines(text: str) -> list[str]:
  return [line for line in text.split('\n') if line.strip()]
