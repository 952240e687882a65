"""How BERT splits a text into words (google-research/bert, tokenization.py), by the Rust library:
control characters are dropped, CJK characters and punctuation are words, uncased vocabularies
lower-case and strip accents, unless strip_accents says otherwise. The Rust code differs in corners
of Unicode: private-use characters are dropped, a word-final sigma becomes a plain one."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from tokenizers import normalizers, pre_tokenizers

MAX_WORD_CHARACTERS = 100  # a longer word is [UNK]
_WORDS = pre_tokenizers.BertPreTokenizer()


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
  def of(cls, settings: Mapping[str, Any]) -> 'Splitting':
    """By the settings of a file or a config with these names; one that is None has its default."""
    given = {}
    for field in dataclasses.fields(cls):
      value = settings.get(field.name)
      if value is not None:
        given[field.name] = bool(value)
    return cls(**given)

  def to_json(self) -> dict[str, bool]:
    """{field: value} for a file; a field that follows from the others is left out."""
    settings = dataclasses.asdict(self)
    if self.strip_accents == self.do_lower_case:
      del settings['strip_accents']
    return settings

  @functools.cached_property
  def normalizer(self) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
      lowercase=self.do_lower_case,
      strip_accents=self.strip_accents,
      handle_chinese_chars=self.tokenize_chinese_chars,
    )

  def words(self, text: str) -> list[str]:
    return [word for word, _ in _WORDS.pre_tokenize_str(self.normalizer.normalize_str(text))]


UNCASED = Splitting()


def splitting_of(content: Mapping[str, Any]) -> Splitting | None:
  """The Splitting of a tokenizer.json; None if it is no WordPiece or treats text otherwise than
  BERT."""
  given, model = content.get('normalizer') or {}, content.get('model') or {}
  splitter = content.get('pre_tokenizer') or {}
  if (model.get('type'), splitter.get('type')) != ('WordPiece', 'BertPreTokenizer'):
    return None
  prefix = model.get('continuing_subword_prefix', '##')
  longest = model.get('max_input_chars_per_word', MAX_WORD_CHARACTERS)
  if (given.get('type'), prefix, longest) != ('BertNormalizer', '##', MAX_WORD_CHARACTERS):
    return None
  rust = normalizers.BertNormalizer()
  rust.__setstate__(json.dumps(given).encode())  # as the library reads the file, or its error
  if not rust.clean_text:
    return None
  return Splitting(rust.lowercase, rust.handle_chinese_chars, rust.strip_accents)
