"""The interface of all tokenizers: a vocabulary with its reserved pieces, encoding, decoding.

BERT reserves five pieces. GPT-2 has one, <|endoftext|>, which begins and ends a text; GPT has only
<unk>. Asking a vocabulary for the id of a reserved piece that it lacks is an InputError.
"""

import abc
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import InputError
from bert_jax.files import Path, make_folder, write_whole

RESERVED = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
OTHER_NAMES = dict(zip(RESERVED, ('<pad>', '<unk>', '<s>', '</s>', '<mask>')))  # RoBERTa's
END_OF_TEXT = '<|endoftext|>'  # GPT-2's; stands for [CLS] and [SEP] where there are none
_SURROGATES = re.compile('[\ud800-\udfff]')


class Encoding(NamedTuple):
  """One text as n pieces, without [CLS] and [SEP]."""

  ids: np.ndarray  # [n] int32
  offsets: np.ndarray  # [n, 2] int32, start and end in characters of the text as given
  word_starts: np.ndarray  # [n] bool, True at the first piece of a word


class Tokenizer(abc.ABC):
  """A vocabulary and the encoding of texts as its ids; each kind implements the abstract methods.
  source: where the pieces come from, for messages. needs: the RESERVED pieces that every vocabulary
  of the kind must have. blank_is_of_word: a blank is part of the word behind it. mask_takes_blank:
  the blank before a mask is part of the mask. add_prefix_space: a blank is put before each text.
  reads_between: the ids of a sentence depend on what stands before it (a blank, a line end).
  Each kind sets for its pieces whether they begin a word (`_begins_word`), end one (`_ends_word`),
  or are a blank that goes with the next piece (`_blank`)."""

  needs: tuple[str, ...] = RESERVED
  blank_is_of_word = mask_takes_blank = add_prefix_space = False
  reads_between = True
  _begins_word: np.ndarray
  _library: Any  # the tokenizer of the library that encodes; here it is Hugging Face's

  def __init__(self, pieces: Iterable[str], fingerprint: str, source: str):
    self.pieces, self.source = list(pieces), source
    self.vocab_size = len(self.pieces)
    self.fingerprint = fingerprint  # equal fingerprints give equal ids for every text
    self._ends_word = self._blank = np.zeros(self.vocab_size, bool)
    for name in self.needs:
      if reserved_id(self.pieces, name) is None:
        fault = f'{source} has no {name} (nor {OTHER_NAMES[name]})'
        raise InputError(f'{fault}; a BERT vocabulary needs {" ".join(RESERVED)}')
    self.reserved = reserved_ids(self.pieces)
    # The ids put before a text that a model is to continue. GPT-2 gets the text alone, as at its
    # release, since its one special piece says that another text has ended.
    cls, end = self.reserved.get('[CLS]'), reserved_id(self.pieces, END_OF_TEXT)
    self.begin_ids: tuple[int, ...] = () if cls is None or cls == end else (cls,)
    # [SEP]s between the two texts of a pair; a vocabulary with </s> is RoBERTa's.
    sep = self.reserved.get('[SEP]', 0)
    self.between = 2 if self.pieces[sep] == OTHER_NAMES['[SEP]'] else 1
    self.around, self.encloses = [], True

  @property
  def special_ids(self) -> tuple[int, ...]:
    return tuple(sorted(set(self.reserved.values())))

  def set_around(self, around: Sequence[Sequence[int]]) -> bool:
    """Puts ids before, between and behind the texts of a pair; returns whether that is a change."""
    known = self.begin_ids, self.between, dict(self.reserved)
    self.around = before, between, behind = [list(ids) for ids in around]
    self.begin_ids = tuple(before)
    has_cls = len(before) == 1 or not (before or '[CLS]' in self.reserved)
    self.encloses = has_cls and len(behind) == 1 and {*between} == {*behind}
    if self.encloses:
      self.reserved |= {'[SEP]': behind[0]} | ({'[CLS]': before[0]} if before else {})
      self.between = len(between)
    return known != (self.begin_ids, self.between, self.reserved)

  @property
  def ends(self) -> tuple[bool, bool]:
    """Whether a text of which a vector is made has a [CLS], which T5 lacks, and a [SEP]."""
    return '[CLS]' in self.reserved, True

  def check_encloses(self) -> None:
    """InputError if a file says that texts do not stand between one [CLS], unless the vocabulary
    has none, and one [SEP]."""
    if not self.encloses:
      shown = [' '.join(self.pieces[i] for i in ids) or 'nothing' for ids in self.around]
      puts = f'puts {shown[0]} before, {shown[1]} between and {shown[2]} behind the texts of a pair'
      ours = 'and an encoder here reads [CLS] A [SEP] B [SEP]; mend its post_processor'
      raise InputError(f'{self.source} {puts}, {ours}.')

  def _reserved_id(self, name: str) -> int:
    if name not in self.reserved:
      lacks = f'{self.source} has no {name} (nor {OTHER_NAMES[name]})'
      raise InputError(f'{lacks}, and what is asked of this model needs it.')
    return self.reserved[name]

  cls_id = property(lambda self: self._reserved_id('[CLS]'))
  sep_id = property(lambda self: self._reserved_id('[SEP]'))
  mask_id = property(lambda self: self._reserved_id('[MASK]'))

  @property
  def unk_id(self) -> int:
    """The id of [UNK]; without one (byte-level), of a special piece, which no text produces."""
    return self.reserved.get('[UNK]', max(self.special_ids, default=0))

  @property
  def pad_id(self) -> int:
    """The id of [PAD], else unk_id: segment_ids say what is padding, so any piece will do."""
    return self.reserved.get('[PAD]', self.unk_id)

  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    """Encodes texts with offsets and word starts, without [CLS] and [SEP]."""
    found = self._library.encode_batch(checked(texts), add_special_tokens=False)
    return [self.encoding(e.ids, e.offsets) for e in found]

  def encoding(self, ids: Sequence[int], offsets: Any) -> Encoding:
    """Builds the Encoding of one text from the ids and the offsets of its pieces."""
    array = np.array(ids, np.int32)
    starts = self.word_starts(array, np.zeros(min(1, len(array)), int))
    return Encoding(array, np.array(offsets, np.int32).reshape(-1, 2), starts)

  def ids_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """The ids that encode_batch gives, [n] int32 for each text, several times as fast."""
    found = self._library.encode_batch_fast(checked(texts), add_special_tokens=False)
    return [np.array(e.ids, np.int32) for e in found]

  def words_batch(self, words: Sequence[str], after_blank: Sequence[bool]) -> list[np.ndarray]:
    """The ids of words that are encoded one by one. after_blank: whether each follows a blank."""
    if self.blank_is_of_word:
      words = [' ' * bool(blank) + word for word, blank in zip(checked(words), after_blank)]
    return self.ids_batch(words)

  def word_starts(self, ids: np.ndarray, text_starts: np.ndarray) -> np.ndarray:
    """[n] bool, True where a word begins in ids [n] of texts, which begin at text_starts."""
    starts = self._begins_word[ids]
    starts[1:] |= self._ends_word[ids[:-1]]
    starts[1:] &= ~self._blank[ids[:-1]]
    starts[text_starts] = True
    return starts

  def decode(self, ids: Iterable[int]) -> str:
    """Turns ids into readable text; [PAD], [CLS] and [SEP] are left out, [MASK] is shown."""
    runs = [[]]  # between masks, which the library would drop
    for i in self._shown(ids):
      runs.append([]) if i == self.reserved.get('[MASK]') else runs[-1].append(i)
    first, *rest = map(self._library.decode, runs)
    if not self.blank_is_of_word:
      parts = [first, *(part for text in rest for part in ('[MASK]', text))]
      return ' '.join(part for part in parts if part)
    # A mask takes the blank before it; no text begins with a blank that was put there.
    whole = ' [MASK]'.join([first, *rest])
    return whole.removeprefix(' ') if self.add_prefix_space or not first else whole

  @abc.abstractmethod
  def files(self) -> Mapping[str, str | bytes]:
    """{name: content} of the files to save; the last one is the one to give to load()."""

  def save(self, folder: str | Path) -> Path:
    """Writes the files and returns the path to give to load()."""
    make_folder(folder)
    for name, content in self.files().items():
      write_whole(Path(folder) / name, content)
    return Path(folder) / name

  def encode_with_masks(self, text: str) -> np.ndarray:
    """The ids of a text in which "[MASK]" means the mask token, for fill-mask."""
    *before, last = text.split('[MASK]')
    before = [part.rstrip() if self.mask_takes_blank else part for part in before]
    first, *rest = self.ids_batch([*before, last])
    mask = np.array([self.mask_id], np.int32)
    return np.concatenate([first] + [part for ids in rest for part in (mask, ids)])

  def pair(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ids of two texts for [CLS] first [SEP] second [SEP]; further [SEP]s end the first."""
    return np.concatenate([first, np.full(self.between - 1, self.sep_id, np.int32)]), second

  def _shown(self, ids: Iterable[int]) -> list[int]:
    hidden = {self.reserved.get(name) for name in ('[PAD]', '[CLS]', '[SEP]')}
    return [int(i) for i in ids if i not in hidden]


def checked(texts: Sequence[str]) -> list[str]:
  """The texts as given; InputError if they are not strings.
  Lone surrogates (halves of characters), which both libraries refuse, become U+FFFD."""
  if isinstance(texts, str):
    raise InputError('expected a list of texts but got one string; put it in a list')
  for i, text in enumerate(texts):
    if not isinstance(text, str):
      raise InputError(f'text {i} is {type(text).__name__}, not str; decode or convert it first')
  return [t if t.isascii() else _SURROGATES.sub('\ufffd', t) for t in texts]


def reserved_id(pieces: list[str], name: str) -> int | None:
  """The id of a reserved piece in any of its spellings; None if it is missing."""
  spellings = (name, name.lower(), OTHER_NAMES.get(name, name))
  return next((pieces.index(x) for x in spellings if x in pieces), None)


def reserved_ids(pieces: list[str]) -> dict[str, int]:
  """{name: id} of the RESERVED pieces that are there; END_OF_TEXT stands for [CLS] and [SEP]."""
  end = reserved_id(pieces, END_OF_TEXT)
  ids = {name: reserved_id(pieces, name) for name in RESERVED}
  ids |= {name: end for name in ('[CLS]', '[SEP]') if ids[name] is None}
  return {name: i for name, i in ids.items() if i is not None}
