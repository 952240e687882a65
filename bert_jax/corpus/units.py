"""Encodes documents as tokens and marks where the words, phrases and entities in them begin.

A document is encoded as the text that it is: to byte-level BPE and SentencePiece a sentence behind
a blank, a line end or nothing has other pieces. A token belongs to the sentence in which it ends,
as does what stands between sentences to the one before it. To WordPiece all that is one, so it
encodes sentence by sentence, which is faster.

Masking hides all tokens of a unit together. Words come from the tokenizer (a blank, a character of
a script without blanks), for Chinese from a segmenter, phrases and entities from a lexicon.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.corpus.lexicon import Lexicon, Segmenter
from bert_jax.corpus.tokenized import concatenated, offsets
from bert_jax.text.documents import Sentences
from bert_jax.text.sentences import UNSPACED
from bert_jax.tokenizers import Encoding, Tokenizer

_BETWEEN_WORDS = re.compile(rf'\s+|([{UNSPACED}])')  # 1: a character of a script without blanks
WORD, PHRASE, ENTITY = 1, 2, 4  # bits of Record.starts


class Record(NamedTuple):
  """One encoded document of n tokens, without [CLS] and [SEP]."""

  tokens: np.ndarray  # [n] int32
  sentences: np.ndarray  # [sentences] int32, tokens in each sentence
  starts: np.ndarray  # [n] uint8 bits: a word (1), a phrase (2), an entity (4) begins; see Marker


class Marker:
  """Encodes documents as Records. segmenter: '' or 'jieba'; phrases, entities: lexicon file or ''.
  text_encoding: of lexicons.
  The tokens of a lexicon's match become one unit if the match begins and ends with words. A token
  in no match belongs to the smaller unit: the phrase bit also marks words outside of phrases, the
  entity bit phrases and words outside of entities (ERNIE 1.0, Sun et al. 2019)."""

  def __init__(
    self,
    tokenizer: Tokenizer,
    *,
    segmenter: str = '',
    phrases: str = '',
    entities: str = '',
    text_encoding: str = '',
  ):
    self.tokenizer = tokenizer
    self.segmenter = Segmenter() if segmenter else None
    self.lexicons = []
    for name, bit, path in (('phrases', PHRASE, phrases), ('entities', ENTITY, entities)):
      if path:
        self.lexicons.append((name, bit, Lexicon(path, tokenizer.do_lower_case, text_encoding)))

  def text_of(self, sentences: Sequence[str]) -> str:
    """The text that the tokens of a document stand for; without another, its sentences as lines."""
    if self.tokenizer.depends_on_text_before and isinstance(sentences, Sentences):
      return sentences.text
    return '\n'.join(sentences)

  def __call__(self, documents: Sequence[Sequence[str]], counts: Counter) -> list[Record | None]:
    """Encodes documents, lists of sentences; None for a document without a token. Increases counts
    of tokens, documents_without_tokens, phrases_matched, entities_matched."""
    sentences = [sentence for document in documents for sentence in document]
    marks = bool(self.segmenter or self.lexicons)
    if self.tokenizer.depends_on_text_before:
      encodings = self._in_context(documents)
    else:  # offsets cost more than ids
      encodings = self.tokenizer.encode_batch(sentences) if marks else []
    if encodings:
      ids = [encoding.ids for encoding in encodings]
    else:
      ids = self.tokenizer.ids_batch(sentences)
    lengths = np.array([len(x) for x in ids], np.int32)
    at = offsets(lengths)  # [sentences + 1]
    tokens = concatenated(ids, np.int32)
    if self.tokenizer.depends_on_text_before:
      words = concatenated([encoding.word_starts for encoding in encodings], np.bool_)
    else:
      words = self.tokenizer.word_starts(tokens, at[:-1][lengths > 0])
    starts = words * np.uint8(WORD | PHRASE | ENTITY)
    if marks:
      self._mark(sentences, encodings, at, starts, counts)
    out: list[Record | None] = []
    for first, last in itertools.pairwise(offsets([len(document) for document in documents])):
      part = slice(at[first], at[last])
      numbers = lengths[first:last]
      record = Record(tokens[part], numbers[numbers > 0], starts[part])
      out.append(record if numbers.any() else None)
    counts['documents_without_tokens'] += out.count(None)
    counts['tokens'] += len(tokens)
    return out

  def _in_context(self, documents: Sequence[Sequence[str]]) -> list[Encoding]:
    """The Encodings of all sentences, each encoded as the part of its document that it is."""
    texts = [self.text_of(document) for document in documents]
    out = []
    for encoding, text, document in zip(
      self.tokenizer.encode_batch(texts), texts, documents, strict=True
    ):
      out += _by_sentence(encoding, text, document)
    return out

  def _mark(
    self,
    sentences: Sequence[str],
    encodings: Sequence[Encoding],
    begins: np.ndarray,
    starts: np.ndarray,
    counts: Counter,
  ) -> None:
    """Changes `starts` in sentences that the segmenter cuts or where a lexicon matches. begins: the
    offset of each sentence's first token."""
    for number, (sentence, encoding) in enumerate(zip(sentences, encodings, strict=True)):
      flags = starts[begins[number] : begins[number + 1]]
      words = flags > 0
      boundaries = self.segmenter.boundaries(sentence) if self.segmenter else None
      if boundaries is not None and len(words):
        places = np.minimum(encoding.offsets[:, 0], len(boundaries) - 1)
        word_of = np.cumsum(boundaries)[places]
        flags[np.diff(word_of, prepend=-1) == 0] = 0
      for name, bit, lexicon in self.lexicons:
        spans = lexicon.matches(sentence)
        counts[f'{name}_matched'] += _join(flags, bit, spans, encoding.offsets, words)


def _by_text(text: str, encoding: Encoding) -> np.ndarray:
  """[n] bool: does a word begin there by the text? A piece of bytes may be part of a character."""
  bounds = np.zeros(len(text) + 1, bool)
  for match in _BETWEEN_WORDS.finditer(text):
    bounds[match.end()] = True
    if match.lastindex:  # a character that is a word
      bounds[match.start()] = True
  at, end = encoding.offsets.T
  moved = np.diff(at, prepend=-1) > 0
  moved[1:] |= ((at == end) & ~encoding.word_starts)[:-1]  # not behind a blank that is of the word
  return bounds[at] & moved & (at < end)


def _by_sentence(encoding: Encoding, text: str, sentences: Sequence[str]) -> Iterator[Encoding]:
  """Cuts the Encoding of a text into Encodings of its sentences, with offsets in the sentence."""
  word_starts = encoding.word_starts | _by_text(text, encoding)
  begins = []  # where each sentence begins in the text
  at = 0
  for sentence in sentences:
    begins.append(text.index(sentence, at))
    at = begins[-1] + len(sentence)
  cuts = encoding.offsets[:, 1].searchsorted(begins[1:], side='right')
  all_ids = np.split(encoding.ids, cuts)
  all_offsets = np.split(encoding.offsets, cuts)
  all_starts = np.split(word_starts, cuts)
  for begin, ids, spans, starts in zip(begins, all_ids, all_offsets, all_starts):
    starts[:1] = True
    yield Encoding(ids, np.maximum(spans - begin, 0), starts)


def _join(
  flags: np.ndarray, bit: int, spans: Sequence[tuple[int, int]], at: np.ndarray, words: np.ndarray
) -> int:
  """Joins each span (start, end) in characters that begins and ends with words into one unit.

  Returns how many it joined.
  flags: [n] uint8, changed.
  bit: PHRASE or ENTITY.
  at: [n, 2] span of each token in characters.
  words: [n] bool, whether a word begins there.
  """
  # A phrase is a unit for the entity level too, unless an entity says otherwise.
  bits = np.uint8(PHRASE | ENTITY if bit == PHRASE else ENTITY)
  joined = 0
  for start, end in spans:
    i, j = np.searchsorted(at[:, 0], (start, end))
    is_whole = i < j and at[i, 0] == start and at[j - 1, 1] == end
    if is_whole and words[i] and words[j : j + 1].all():
      flags[i] |= bits
      flags[i + 1 : j] &= ~bits
      flags[j : j + 1] |= bits
      joined += 1
  return joined
