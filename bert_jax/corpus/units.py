"""Encodes documents as tokens and marks where the words, phrases and entities in them begin.

Whole-word, phrase and entity masking hide all tokens of such a unit together. Words come from the
tokenizer (a blank, a character of a script without blanks), for Chinese from a segmenter, phrases
and entities from a user's lexicon.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.corpus.lexicon import Lexicon, Segmenter
from bert_jax.corpus.tokenized import offsets
from bert_jax.tokenizers import Tokenizer

WORD, PHRASE, ENTITY = 1, 2, 4  # bits of Record.starts


class Record(NamedTuple):
  """One encoded document of n tokens, without [CLS] and [SEP]."""

  tokens: np.ndarray  # [n] int32
  sentences: np.ndarray  # [sentences] int32, tokens in each sentence
  starts: np.ndarray  # [n] uint8 bits: a word (1), a phrase (2), an entity (4) begins; see Encoder


class Encoder:
  """Encodes documents as Records. segmenter: '' or 'jieba'; phrases, entities: lexicon file or ''.
  The tokens of a lexicon's match become one unit if the match begins and ends with words. A token
  in no match belongs to the smaller unit: the phrase bit also marks words outside of phrases, the
  entity bit phrases and words outside of entities (ERNIE 1.0, Sun et al. 2019)."""

  def __init__(
    self, tokenizer: Tokenizer, *, segmenter: str = '', phrases: str = '', entities: str = ''
  ):
    self.tokenizer = tokenizer
    self.segmenter = Segmenter(segmenter) if segmenter else None
    lower = getattr(tokenizer, 'do_lower_case', True)
    levels = ('phrases', PHRASE, phrases), ('entities', ENTITY, entities)
    self.lexicons = [(name, bit, Lexicon(path, lower)) for name, bit, path in levels if path]

  def __call__(self, documents: Sequence[Sequence[str]], counts: Counter) -> list[Record | None]:
    """Encodes documents, lists of sentences; None for a document without a token. Increases counts
    of tokens, documents_without_tokens, phrases_matched, entities_matched."""
    sentences = [sentence for document in documents for sentence in document]
    ids = self.tokenizer.ids_batch(sentences)
    lengths = np.array([len(x) for x in ids], np.int32)
    at = offsets(lengths)
    tokens = np.concatenate([*ids, np.zeros(0, np.int32)])
    words = self.tokenizer.word_starts(tokens, at[:-1][lengths > 0])
    starts = words * np.uint8(WORD | PHRASE | ENTITY)
    self._mark(sentences, at, starts, counts)
    out: list[Record | None] = []
    for first, last in itertools.pairwise(offsets([len(document) for document in documents])):
      part, numbers = slice(at[first], at[last]), lengths[first:last]
      out.append(
        Record(tokens[part], numbers[numbers > 0], starts[part]) if numbers.any() else None
      )
    counts['documents_without_tokens'] += out.count(None)
    counts['tokens'] += len(tokens)
    return out

  def _mark(self, sentences, begins, starts, counts):
    """Changes `starts` in sentences that the segmenter cuts or where a lexicon matches.
    begins: the offset of each sentence's first token."""
    if not (self.segmenter or self.lexicons):
      return
    marked = []  # (number of the sentence, where its words begin or None, matches of each lexicon)
    for number, sentence in enumerate(sentences):
      boundaries = self.segmenter.boundaries(sentence) if self.segmenter else None
      matches = [lexicon.matches(sentence) for *_, lexicon in self.lexicons]
      if boundaries is not None or any(matches):
        marked.append((number, boundaries, matches))
    # Offsets cost more than ids, so only these sentences are encoded with them.
    encodings = self.tokenizer.encode_batch([sentences[number] for number, *_ in marked])
    for (number, boundaries, matches), encoding in zip(marked, encodings, strict=True):
      at, words = encoding.offsets, encoding.word_starts
      flags = starts[begins[number] : begins[number] + len(words)]
      if boundaries is not None and len(words):
        word = np.cumsum(boundaries)[np.minimum(at[:, 0], len(boundaries) - 1)]
        flags[np.diff(word, prepend=-1) == 0] = 0
      for (name, bit, _), spans in zip(self.lexicons, matches, strict=True):
        counts[f'{name}_matched'] += _join(flags, bit, spans, at, words)


def _join(flags, bit, spans, at, words):
  """Joins each span (start, end) in characters that begins and ends with words into one unit.
  Returns how many it joined. flags: [n] uint8, changed; bit: PHRASE or ENTITY; at: [n, 2] span of
  each token in characters; words: [n] bool, whether a word begins there."""
  # A phrase is a unit for the entity level too, unless an entity says otherwise.
  bits = np.uint8(PHRASE | ENTITY if bit == PHRASE else ENTITY)
  joined = 0
  for start, end in spans:
    i, j = np.searchsorted(at[:, 0], (start, end))
    if i < j and at[i, 0] == start and at[j - 1, 1] == end and words[i] and words[j : j + 1].all():
      flags[i] |= bits
      flags[i + 1 : j] &= ~bits
      flags[j : j + 1] |= bits
      joined += 1
  return joined
