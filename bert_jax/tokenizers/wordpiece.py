"""WordPiece: Google's `vocab.txt`, by Hugging Face's Rust library.

The algorithm is Google's (google-research/bert, tokenization.py): control characters are dropped,
CJK characters and punctuation are words, uncased vocabularies lower-case and strip accents, unless
strip_accents says otherwise; words of more than 100 characters become [UNK]. The Rust code differs
in corners of Unicode: private-use characters are dropped, a word-final sigma becomes a plain one.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bert_jax.errors import InputError, quoted
from bert_jax.tokenizers.base import RESERVED, Tokenizer, checked, reserved_id

_WORDS = pre_tokenizers.BertPreTokenizer()
MAX_WORD_CHARACTERS = 100  # a longer word is [UNK]
# A run is a stretch of text between blanks. Runs' ids are cached, since most occur again.
_KNOWN_RUNS = 500_000  # how many are remembered at most
_LONGEST_RUN = 20  # characters; a longer one, such as an address, is not remembered
_LONG_RUNS = 12  # characters; texts whose runs are so long on average are not split at blanks
_HAS_CHINESE = re.compile('[\u4e00-\u9fff]{2}')
_CHINESE = re.compile('[\u4e00-\u9fff]|[^ \u4e00-\u9fff]+')  # a character, or the text between


@dataclasses.dataclass(frozen=True)
class Splitting:
  """How a text is normalised and split into words, before words are split into pieces."""

  do_lower_case: bool = True
  tokenize_chinese_chars: bool = True  # each CJK character is a word
  strip_accents: bool | None = None  # None: as do_lower_case

  def __post_init__(self):
    if self.strip_accents is None:
      object.__setattr__(self, 'strip_accents', self.do_lower_case)

  @classmethod
  def of(cls, settings: Mapping[str, Any], source: object) -> 'Splitting':
    """By the settings of a file or a config with these names; one that is None has its default."""
    names = [field.name for field in dataclasses.fields(cls)]
    said = {name: settings[name] for name in names if settings.get(name) is not None}
    for name, value in said.items():
      if not isinstance(value, bool):
        raise InputError(f'{source} says {name} is {quoted(value)}; write true or false.')
    return cls(**said)

  def to_json(self) -> dict[str, bool]:
    """{field: value} for a file; a field that follows from the others is left out."""
    settings = dataclasses.asdict(self)
    if self.strip_accents == self.do_lower_case:
      del settings['strip_accents']
    return settings

  @functools.cached_property
  def normalizer(self) -> normalizers.Normalizer:
    flags = dict(lowercase=self.do_lower_case, strip_accents=self.strip_accents)
    return normalizers.BertNormalizer(handle_chinese_chars=self.tokenize_chinese_chars, **flags)

  def words(self, text: str) -> list[str]:
    return [word for word, _ in _WORDS.pre_tokenize_str(self.normalizer.normalize_str(text))]


UNCASED = Splitting()


class WordPiece(Tokenizer):
  """A WordPiece tokenizer: greedy longest match first in words; ## marks a continuing piece."""

  reads_between = False

  def __init__(
    self, pieces: Iterable[str], splitting: Splitting = UNCASED, *, source: str = 'the vocabulary'
  ):
    pieces = list(pieces)
    for name in RESERVED:  # some copies of bert-base-uncased spell them [unk]; write them one way
      if (i := reserved_id(pieces, name)) is not None:
        pieces[i] = name
    strips, lower = splitting.strip_accents, splitting.do_lower_case
    content = ['wordpiece', lower, pieces, *['no spaces'] * (not splitting.tokenize_chinese_chars)]
    content += [f'strip accents {strips}'] * (strips != lower)
    super().__init__(pieces, hashlib.sha256(json.dumps(content).encode()).hexdigest(), source)
    self.splitting = splitting
    self._begins_word = np.array([not piece.startswith('##') for piece in pieces])
    # No special tokens are declared to the library, so the typed "[MASK]" is three plain words.
    ids = {piece: i for i, piece in enumerate(pieces)}
    model = models.WordPiece(ids, unk_token='[UNK]', max_input_chars_per_word=MAX_WORD_CHARACTERS)
    self.rust = self._library = tokenizers.Tokenizer(model)
    self.rust.normalizer, self.rust.pre_tokenizer = splitting.normalizer, _WORDS
    self._known = _IdsOfRuns(self.rust)

  do_lower_case = property(lambda self: self.splitting.do_lower_case)

  def ids_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    ids_of, out, whole = self._known.__getitem__, [], []
    for i, text in enumerate(checked(texts)):
      runs = _runs(text, self.splitting.tokenize_chinese_chars)
      if len(runs) == 1 and len(text) > _LONGEST_RUN:
        whole.append(i)
        out.append(text)
      else:
        out.append(np.frombuffer(b''.join(map(ids_of, runs)), np.int32))
    for i, encoding in zip(whole, self.rust.encode_batch_fast([out[i] for i in whole])):
      out[i] = np.array(encoding.ids, np.int32)
    return out

  def decode(self, ids: Iterable[int]) -> str:
    return ' '.join(self.pieces[i] for i in self._shown(ids)).replace(' ##', '')

  def files(self) -> dict[str, str]:
    settings = {'tokenizer_class': 'BertTokenizer'} | self.splitting.to_json()
    vocabulary = ''.join(f'{piece}\n' for piece in self.pieces)
    # The casing is written first: without it, load would take the vocabulary for an uncased one.
    written = json.dumps(settings, indent=2) + '\n'
    return {'tokenizer_config.json': written, 'vocab.txt': vocabulary}


class _IdsOfRuns(dict):
  """A cache {run: its ids as bytes of int32}; a missing run is encoded when asked for."""

  def __init__(self, rust: tokenizers.Tokenizer):
    super().__init__()
    self.rust = rust

  def __missing__(self, run: str) -> bytes:
    (encoding,) = self.rust.encode_batch_fast([run])
    ids = np.array(encoding.ids, np.int32).tobytes()
    if len(self) >= _KNOWN_RUNS:
      self.clear()
    if len(run) <= _LONGEST_RUN:
      self[run] = ids
    return ids


def _runs(text: str, characters_are_words: bool) -> list[str]:
  """Splits a text at its blanks, which no rule of WordPiece reaches across. A text of long runs
  stays whole, as they rarely repeat; Chinese is split at its characters, if these are words."""
  spaced = text.replace('\n', ' ').replace('\t', ' ').replace('\r', ' ')
  runs = spaced.split(' ')
  if len(text) < _LONG_RUNS * len(runs):
    return runs
  return _CHINESE.findall(spaced) if characters_are_words and _HAS_CHINESE.search(text) else [text]
