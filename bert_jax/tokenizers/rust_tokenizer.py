"""Any tokenizer that a tokenizer.json describes, run by the library that the file is made for.

The library does the normalizing, splits words, and applies the model and the tokens added to its
vocabulary (runs of blanks, as in ModernBERT's), so the ids are its own. One thing differs: text is
not searched for reserved tokens ([CLS], <mask>), which stay plain where they are typed.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from bert_jax.errors import InputError, first_line
from bert_jax.tokenizers.base import Encoding, Tokenizer, checked, reserved_id
from bert_jax.tokenizers.byte_level import BLANK

# Keys that only our files have. `searched`: texts are searched for special tokens that are not
# reserved. `reserved`: {name: id} of a mask and padding that are called otherwise. `around`: what
# stands around texts.
OURS = 'searched', 'reserved', 'around'
# {pre-tokenizer of a tokenizer.json: the mark it puts before a word that follows a blank}.
_MARKS = {'ByteLevel': BLANK, 'Metaspace': '▁'}
_MARK_FOR_BLANK = '"pattern": {"String": " "}, "content": "▁"'  # Gemma's normalizer


class RustTokenizer(Tokenizer):
  """Runs a tokenizer.json, parsed as `content`. pieces: in order of their ids, added ones too."""

  def __init__(self, content: dict[str, Any], pieces: Iterable[str], *, source: str):
    pieces = list(pieces)
    if content['model']['type'] == 'BPE':  # GPT's and others' have other special tokens
      self.needs = ()
    elif content['model']['type'] == 'Unigram' and reserved_id(pieces, '[CLS]') is None:  # T5's
      self.needs = '[PAD]', '[UNK]', '[SEP]'
    parts = {name: content.get(name) for name in ('normalizer', 'pre_tokenizer', 'model')}
    self._added = content.get('added_tokens') or []
    ours = {name: content[name] for name in OURS if content.get(name)}
    known = ['rust', parts, self._added, pieces, *([ours] if ours else [])]
    known = json.dumps(known, sort_keys=True)
    super().__init__(pieces, hashlib.sha256(known.encode()).hexdigest(), source)
    self.content = content
    self.reserved |= content.get('reserved') or {}
    if 'around' in content:
      self.set_around(content['around'])
    self._listed = listed(content)
    self._hidden = {pieces[i] for i in self.special_ids}
    if not content.get('searched'):
      self._hidden |= {token['content'] for token in self._added if token.get('special')}
    self._set_words(parts, source)
    takes_blank = {token['content'] for token in self._added if token.get('lstrip')}
    self.mask_takes_blank = '[MASK]' in self.reserved and pieces[self.mask_id] in takes_blank
    self._library = tokenizers.Tokenizer.from_str(json.dumps(self._searched(parts)))
    self._library.encode_special_tokens = True
    for token in self._added:  # the library shows a normalized token as texts are, lower-cased
      if token['content'] not in self._hidden:
        self.pieces[token['id']] = self._library.id_to_token(token['id']) or token['content']

  def _searched(self, parts: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer.json that texts are encoded with. Tokens that texts are not searched for get a
    blank before them in the model, which no word has, so no text can produce one; those that are
    not in the model are special, and the library is told to take no text for such."""
    model = dict(parts['model'])
    names = lambda listed: [f' {x}' if x in self._hidden else x for x in listed]
    if model['type'] == 'Unigram':
      scores = [score for _, score in model['vocab']]
      model['vocab'] = [list(pair) for pair in zip(names(self._listed), scores)]
    else:
      model['vocab'] = dict(zip(names(self._listed), self._listed.values()))
      if model.get('unk_token') in self._hidden:
        model['unk_token'] = f' {model["unk_token"]}'
    added = [
      token | {'special': token['content'] in self._hidden}
      for token in sorted(self._added, key=lambda token: token['id'])
      if token['content'] not in self._hidden or token['content'] not in self._listed
    ]
    decoder = {'decoder': self.content.get('decoder')}
    return parts | decoder | {'version': '1.0', 'model': model, 'added_tokens': added}

  def _set_words(self, parts: Mapping[str, Any], source: str) -> None:
    """Sets for each piece whether words begin or end there."""
    model, kinds = parts['model'], _kinds(parts['pre_tokenizer'])
    marks = [mark for kind, mark in _MARKS.items() if kind in kinds]
    replaces = json.dumps(parts['normalizer'], ensure_ascii=False)
    if not marks and _MARK_FOR_BLANK in replaces:
      marks, kinds = ['▁'], ['Replace']
    prefix, suffix = model.get('continuing_subword_prefix'), model.get('end_of_word_suffix')
    if not (marks or suffix or model['type'] == 'WordPiece'):
      by = first_line(', '.join(kinds)) if kinds else 'nothing'
      read = 'WordPiece and what ByteLevel or Metaspace splits, or marks blanks or ends of words'
      fault = f'{source} is a {first_line(model["type"])} split by {by}, and read are {read}'
      raise InputError(f'{fault}; put a vocab.txt or *.model beside it.')
    added = {token['content'] for token in self._added} - self._hidden
    is_added = np.array([piece in added for piece in self.pieces])
    begins = [not suffix and not piece.startswith(prefix or '##') for piece in self.pieces]
    if marks:
      begins = [piece.startswith(marks[0]) for piece in self.pieces]
    ends = [bool(suffix) and piece.endswith(suffix) for piece in self.pieces]
    self._begins_word, self._ends_word = np.array(begins) | is_added, np.array(ends) | is_added
    self._blank = np.array([piece == '▁' for piece in self.pieces])
    self.blank_is_of_word = marks == [BLANK] or kinds == ['Replace']
    self.add_prefix_space = '"add_prefix_space": true' in json.dumps(parts['pre_tokenizer'])

  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    texts = checked(texts)
    encodings = self._library.encode_batch(texts, add_special_tokens=False)
    blanks = lambda part: len(part) - len(part.lstrip())
    return [
      self.encoding(e.ids, [(start + blanks(text[start:end]), end) for start, end in e.offsets])
      for text, e in zip(texts, encodings)
    ]

  def files(self) -> dict[str, str]:
    return {'tokenizer.json': json.dumps(self.content, ensure_ascii=False, indent=2) + '\n'}

  @property
  def rust(self) -> tokenizers.Tokenizer:
    """The library's tokenizer exactly as the file says, which does search for special tokens."""
    plain = {'truncation': None, 'padding': None}
    return tokenizers.Tokenizer.from_str(json.dumps(self.released | plain))

  @property
  def released(self) -> dict[str, Any]:
    """The content without what only ours has."""
    return {name: x for name, x in self.content.items() if name not in OURS}


def listed(content: Mapping[str, Any]) -> dict[str, int]:
  """{piece: id} of the model of a tokenizer.json, without the added tokens."""
  vocabulary = (content.get('model') or {}).get('vocab') or {}
  if isinstance(vocabulary, list):  # [(piece, score), ...] in order
    return {piece: i for i, (piece, _) in enumerate(vocabulary)}
  return vocabulary


def _kinds(part: Mapping[str, Any] | None) -> list[str]:
  """The type of a part of a tokenizer.json, or the types within if it is a Sequence."""
  part = part or {}
  inner = [kind for x in part.get('pretokenizers') or () for kind in _kinds(x)]
  return inner if part.get('type') == 'Sequence' else [part['type']] if part else []


# What a tokenizer.json says of a token besides its id, its text, and whether it is special.
TOKEN_FLAGS = {'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False}


def whole_content(
  added: list[Any], normalizer: Any, pre_tokenizer: Any, decoder: Any, model: Any
) -> dict[str, Any]:
  """The content of a tokenizer.json, from its parts. added: its added tokens."""
  out = {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added}
  out |= {'normalizer': normalizer, 'pre_tokenizer': pre_tokenizer, 'post_processor': None}
  return out | {'decoder': decoder, 'model': model}
