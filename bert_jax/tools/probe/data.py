"""Reads the sentences on which a model is probed, from CoNLL-U with tags or from lines of text."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import InputError, about
from bert_jax.tasks.tagging import conll
from bert_jax.text import files
from bert_jax.tokenizers import Tokenizer

Specs = Sequence[str]
Words = tuple[Sequence[str], Sequence[str | None]]  # the words of a sentence, and their tags


class Sentence(NamedTuple):
  language: str  # '' if it is not named
  words: tuple[str, ...]  # [W]
  tags: tuple[str | None, ...]  # [W] parts of speech, None where not known; (): plain text
  ids: np.ndarray  # [n] int32
  word_of: np.ndarray  # [n] the number of each piece's word

  @property
  def first(self) -> np.ndarray:
    """The number of each word's first piece, [W]; -1 for a word without a piece."""
    out = np.full(len(self.words), -1)
    out[self.word_of[::-1]] = np.arange(len(self.ids))[::-1]
    return out


def read(
  tokenizer: Tokenizer,
  conllu: Specs,
  text: Specs,
  most: int,
  room: int,
  counts: Counter[str],
) -> list[Sentence]:
  """Reads `most` sentences (0: all) of each [LANGUAGE=]SPEC, the same ones every time.

  room: the most pieces of a sentence; longer ones are cut.
  counts: counts the sentences that are left out or cut."""
  out = []
  for option, specs, reader in (('--conllu', conllu, _from_conllu), ('--text', text, _from_lines)):
    for spec in specs:
      for language, part in files.parts(spec):
        with about(option):
          sentences = reader(part)
        some = drawn(sentences, most, 'sentences not used (--sentences)', counts)
        out += _encoded(tokenizer, language, some, room, counts)
  return out


def drawn(values: Sequence[Any], most: int, left_out: str, counts: Counter[str]) -> list[Any]:
  """Draws `most` values (0: all), the same ones every time, and counts the others."""
  if not 0 < most < len(values):
    return list(values)
  counts[left_out] += len(values) - most
  numbers = np.random.default_rng(0).permutation(len(values))[:most]
  return [values[i] for i in sorted(numbers)]


def _from_conllu(spec: str) -> list[Words]:
  sentences: list[Words] = []
  for sentence in conll.of_conllu(spec):
    tags = sentence.tags or (None,) * len(sentence.tokens)
    sentences.append((sentence.tokens, tags))
  return sentences


def _from_lines(spec: str) -> list[Words]:
  sentences: list[Words] = []
  for path in files.split_files(spec, 'eval'):
    for _, line in files.not_json(path, files.lines(path, Counter())):
      words = line.split()
      if words:
        sentences.append((words, ()))
  if not sentences:
    raise InputError(f'{spec} holds no line with text; is it the right file?')
  return sentences


def _encoded(
  tokenizer: Tokenizer,
  language: str,
  sentences: Sequence[Words],
  room: int,
  counts: Counter[str],
) -> list[Sentence]:
  """The sentences as pieces; all words are encoded at once, which is faster."""
  every_word, after_blank = [], []
  for words, _ in sentences:
    every_word += words
    after_blank += [number > 0 for number in range(len(words))]
  pieces_of_words = iter(tokenizer.words_batch(every_word, after_blank))
  out = []
  for words, tags in sentences:
    pieces = [next(pieces_of_words) for _ in words]
    ids = np.concatenate(pieces).astype(np.int32)
    word_of = np.repeat(np.arange(len(words)), [len(x) for x in pieces])
    if not len(ids):
      counts['sentences without a piece (left out)'] += 1
      continue
    if len(ids) > room:
      counts[f'sentences cut (longer than {room} pieces)'] += 1
      ids, word_of = ids[:room], word_of[:room]
    sentence = Sentence(
      language=language,
      words=tuple(words),
      tags=tuple(tags),
      ids=ids,
      word_of=word_of,
    )
    out.append(sentence)
  return out
