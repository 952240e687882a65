"""Reads the sentences on which a model is probed, from CoNLL-U with tags or from lines of text."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import InputError
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.tagging import conll
from bert_jax.text import files
from bert_jax.tokenizers import Tokenizer

Specs = Sequence[str]
Words = tuple[Sequence[str], Sequence[bool], Sequence[str | None]]  # and is a blank before, tags


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
  encoding: str = '',
) -> list[Sentence]:
  """Reads `most` sentences (0: all) of each [LANGUAGE=]SPEC, the same ones every time. room: the
  most pieces of a sentence; longer ones are cut. counts: counts sentences left out or cut.
  encoding: of the files, as data.text_encoding."""
  out = []
  for option, specs, reader in (('--conllu', conllu, _from_conllu), ('--text', text, _from_lines)):
    for spec in specs:
      for language, part in files.parts(spec):
        try:
          sentences = reader(part, counts, encoding)
        except InputError as error:
          raise InputError(str(error).replace('data.eval=', f'{option} ')) from None
        some = drawn(sentences, most, 'sentences not used (--sentences)', counts)
        out += _encoded(tokenizer, language, some, room, counts)
  return out


def drawn(values: Sequence[Any], most: int, left_out: str, counts: Counter[str]) -> list[Any]:
  """Draws `most` values (0: all), the same ones every time, and counts the others."""
  if not 0 < most < len(values):
    return list(values)
  counts[left_out] += len(values) - most
  return [values[i] for i in sorted(np.random.default_rng(0).permutation(len(values))[:most])]


def _from_conllu(spec: str, counts: Counter[str], encoding: str) -> list[Words]:
  problems = Problems('eval', True, encoding)
  layout = conll.Layout('conllu', token_column=1, tag_column=3)
  sentences: list[Words] = []
  for sentence in conll.read(spec, 'eval', problems, layout):
    tags = sentence.tags or (None,) * len(sentence.tokens)
    sentences.append((sentence.tokens, _blanks(sentence.tokens), tags))
  counts.update({kind: n for kind, n in problems.counts.items() if '(' in kind})
  return sentences


def _from_lines(spec: str, counts: Counter[str], encoding: str) -> list[Words]:
  sentences: list[Words] = []
  read = Counter()
  for path in files.split_files(spec, 'eval'):
    for _, line in files.lines(path, read, encoding):
      words = tuple(line.split())
      if words:
        sentences.append((words, _blanks(words), ()))
  counts.update({kind: n for kind, n in read.items() if kind != 'files'})
  if not sentences:
    raise InputError(f'--text {spec} holds no line with text; is it the right file?')
  return sentences


def _blanks(words: Sequence[str]) -> tuple[bool, ...]:
  """Is a blank before each word?"""
  return (False, *[True] * (len(words) - 1))


def _encoded(
  tokenizer: Tokenizer, language: str, sentences: Sequence[Words], room: int, counts: Counter[str]
) -> list[Sentence]:
  out, at = [], 0
  each = [pair for words, blanks, _ in sentences for pair in zip(words, blanks)]
  pieces = tokenizer.words_batch([word for word, _ in each], [blank for _, blank in each])
  for words, _, tags in sentences:
    of_words = pieces[at : at + len(words)]
    at += len(words)
    ids = np.concatenate([*of_words, np.zeros(0, np.int32)]).astype(np.int32)
    word_of = np.repeat(np.arange(len(words)), [len(x) for x in of_words])
    if not len(ids):
      counts['sentences without a piece (left out)'] += 1
      continue
    if len(ids) > room:
      counts[f'sentences cut (longer than {room} pieces)'] += 1
    out.append(Sentence(language, tuple(words), tuple(tags), ids[:room], word_of[:room]))
    counts['unknown pieces ([UNK])'] += int(np.sum(ids[:room] == tokenizer.unk_id))
  return out
