"""What a corpus keeps of a document: its tokens, its sentences, and where units of meaning begin.

Units are what whole-word, phrase and entity masking hide together. They are marked here, once, so
that masking knows no language: words come from the tokenizer (a blank, a character of a script
without blanks), for Chinese from a segmenter, phrases and entities from a user's lexicon.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.lexicon import Lexicon, Segmenter

WORD, PHRASE, ENTITY = 1, 2, 4  # bits of Record.starts


class Record(NamedTuple):
  """A document, n tokens of it, without [CLS] and [SEP]."""

  tokens: np.ndarray  # [n] int32
  sentences: np.ndarray  # [sentences] int32, how many tokens each has
  starts: np.ndarray  # [n] uint8: does a word (1), a unit with phrases (2), with entities (4) begin


class Encoder:
  """Documents to Records. segmenter: '' or 'jieba'; phrases, entities: lexicon files, or ''.

  A lexicon's match makes one unit of its tokens where it begins and ends with words; the unit of
  the entity level is the entity, else the phrase, else the word (ERNIE 1.0, Sun et al. 2019).
  """

  def __init__(self, tokenizer, *, segmenter='', phrases='', entities=''):
    self.tokenizer = tokenizer
    self.segmenter = Segmenter(segmenter) if segmenter else None
    lower = getattr(tokenizer, 'do_lower_case', True)
    self.lexicons = [
      (name, bit, Lexicon(path, lower))
      for name, bit, path in (('phrases', PHRASE, phrases), ('entities', ENTITY, entities))
      if path
    ]

  def __call__(self, documents: Sequence[Sequence[str]], counts: Counter) -> list[Record | None]:
    """A Record for each document (a list of sentences), or None for one without a token.

    counts is added to: tokens, documents_without_tokens, phrases_matched, entities_matched.
    """
    sentences = [sentence for document in documents for sentence in document]
    ids, starts = self._encode(sentences, counts)
    lengths = np.array([len(x) for x in ids], np.int32)
    ends = np.cumsum(lengths)
    tokens = np.concatenate([*ids, np.zeros(0, np.int32)])
    if starts is None:
      words = self.tokenizer.word_starts(tokens, (ends - lengths)[lengths > 0])
      starts = words * np.uint8(WORD | PHRASE | ENTITY)
    out, first = [], 0
    for document in documents:
      last = first + len(document)
      a, b = ends[first] - lengths[first] if document else 0, ends[last - 1] if document else 0
      counts['documents_without_tokens'] += int(a == b)
      kept = lengths[first:last]
      out.append(Record(tokens[a:b], kept[kept > 0], starts[a:b]) if a < b else None)
      first = last
    counts['tokens'] += len(tokens)
    return out

  def _encode(self, sentences, counts):
    """(ids of each sentence, starts of all tokens or None if the tokenizer's words will do)."""
    if not (self.segmenter or self.lexicons):
      return self.tokenizer.ids_batch(sentences), None
    encodings = self.tokenizer.encode_batch(sentences)
    starts = [self._starts(*pair, counts) for pair in zip(sentences, encodings)]
    return [e.ids for e in encodings], np.concatenate([*starts, np.zeros(0, np.uint8)])

  def _starts(self, sentence, encoding, counts):
    begins, ends = encoding.offsets.T
    words = encoding.word_starts
    boundaries = self.segmenter.boundaries(sentence) if self.segmenter else None
    level = words
    if boundaries is not None and len(begins):
      word = np.cumsum(boundaries)[np.minimum(begins, len(sentence) - 1)]
      level = words & (np.diff(word, prepend=-1) != 0)
    flags = level * np.uint8(WORD | PHRASE | ENTITY)
    for name, bit, lexicon in self.lexicons:
      # A phrase is a unit for the entity level too, unless an entity says otherwise.
      bits = np.uint8(PHRASE | ENTITY if bit == PHRASE else ENTITY)
      for start, end in lexicon.matches(sentence):
        i, j = np.searchsorted(begins, (start, end))
        inside = i < j and begins[i] == start and ends[j - 1] == end and words[i]
        if inside and (j == len(words) or words[j]):
          flags[i] |= bits
          flags[i + 1 : j] &= ~bits
          if j < len(flags):
            flags[j] |= bits
          counts[f'{name}_matched'] += 1
    return flags
