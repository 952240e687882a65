"""What every tokenizer is: pieces with ids, five of them reserved, texts to ids and back."""

import abc
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.errors import InputError

RESERVED = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
OTHER_NAMES = dict(zip(RESERVED, ('<pad>', '<unk>', '<s>', '</s>', '<mask>')))  # RoBERTa's
_SURROGATES = re.compile('[\ud800-\udfff]')


class Encoding(NamedTuple):
  """One text as pieces; n of them, without [CLS] and [SEP]."""

  ids: np.ndarray  # [n] int32
  offsets: np.ndarray  # [n, 2] int32, start and end in characters of the text as given
  word_starts: np.ndarray  # [n] bool, True at the first piece of a word


class Tokenizer(abc.ABC):
  """What all kinds have in common; they add encode_batch, ids_batch, decode and save."""

  def __init__(self, pieces: Iterable[str], fingerprint: str, source: str):
    self.pieces = list(pieces)
    self.vocab_size = len(self.pieces)
    self.fingerprint = fingerprint  # equal fingerprints give equal ids for every text
    self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
      find_reserved(self.pieces, name, source) for name in RESERVED
    )
    # [SEP]s between the two texts of a pair; a vocabulary with </s> is RoBERTa's.
    self.between = 2 if self.pieces[self.sep_id] == OTHER_NAMES['[SEP]'] else 1
    self.special_ids = tuple(
      sorted((self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id))
    )

  @abc.abstractmethod
  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    """Pieces, offsets and word starts of each text, without [CLS] and [SEP]."""

  def encoding(self, ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> Encoding:
    """The Encoding of one text of these pieces."""
    ids = np.array(ids, np.int32)
    starts = self.word_starts(ids, np.zeros(min(1, len(ids)), int))
    return Encoding(ids, np.array(offsets, np.int32).reshape(-1, 2), starts)

  @abc.abstractmethod
  def ids_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """The ids of encode_batch alone, several times as fast."""

  def words_batch(self, words: Sequence[str], after_blank: Sequence[bool]) -> list[np.ndarray]:
    """The ids of words that are encoded one by one. after_blank: does a blank stand before each in
    its text? That matters where a blank is part of the word."""
    del after_blank
    return self.ids_batch(words)

  @abc.abstractmethod
  def word_starts(self, ids: np.ndarray, text_starts: np.ndarray) -> np.ndarray:
    """[n] bool, True where a word begins; ids [n] of texts in a row that begin at text_starts.

    Texts without ids have no place in text_starts.
    """

  @abc.abstractmethod
  def decode(self, ids: Iterable[int]) -> str:
    """Readable text; [PAD], [CLS] and [SEP] are left out, [MASK] is shown."""

  @abc.abstractmethod
  def save(self, folder: str | Path) -> Path:
    """Writes the files and returns the path to give to load()."""

  def encode_with_masks(self, text: str) -> np.ndarray:
    """The ids of a text in which "[MASK]" does mean mask_id: for fill-mask."""
    first, *rest = self.ids_batch(text.split('[MASK]'))
    mask = np.array([self.mask_id], np.int32)
    return np.concatenate([first] + [part for ids in rest for part in (mask, ids)])

  def pair(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ids of two texts for [CLS] first [SEP] second [SEP], the first with all [SEP]s but one
    that stand between them."""
    more = np.full(self.between - 1, self.sep_id, np.int32)
    return np.concatenate([first, more]), second

  def _shown(self, ids: Iterable[int]) -> list[int]:
    return [int(i) for i in ids if i not in (self.pad_id, self.cls_id, self.sep_id)]


def checked(texts: Sequence[str]) -> list[str]:
  """The texts, if they are strings; half characters (lone surrogates), which both libraries refuse,
  become U+FFFD, the mark of a broken character."""
  if isinstance(texts, str):
    raise InputError('expected a list of texts but got one string; put it in a list')
  for i, text in enumerate(texts):
    if not isinstance(text, str):
      raise InputError(f'text {i} is {type(text).__name__}, not str; decode or convert it first')
  return [t if t.isascii() else _SURROGATES.sub('\ufffd', t) for t in texts]


def find_reserved(pieces: list[str], name: str, source: str) -> int:
  for spelling in (name, name.lower(), OTHER_NAMES[name]):
    if spelling in pieces:
      return pieces.index(spelling)
  raise InputError(
    f'{source} has no {name} (nor {OTHER_NAMES[name]}); '
    'a BERT vocabulary needs ' + ' '.join(RESERVED)
  )
