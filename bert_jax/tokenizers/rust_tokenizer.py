"""Any tokenizer that a tokenizer.json describes, run by the library that the file is made for.

The library does the normalizing, splits words, and applies the model and the tokens added to its
vocabulary (runs of blanks, as in ModernBERT's), so the ids are its own. One thing differs: text is
not searched for special tokens ([CLS], <mask>), which stay plain where they are typed.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from bert_jax.errors import InputError, first_line
from bert_jax.tokenizers.base import Encoding, Tokenizer, checked
from bert_jax.tokenizers.byte_level import BLANK

# {pre-tokenizer of a tokenizer.json: the mark it puts before a word that follows a blank}.
_MARKS = {'ByteLevel': BLANK, 'Metaspace': '▁'}


class RustTokenizer(Tokenizer):
  """Runs a tokenizer.json, parsed as `content`. pieces: in order of their ids, added ones too."""

  def __init__(self, content: dict[str, Any], pieces: Iterable[str], *, source: str):
    pieces = list(pieces)
    if content['model']['type'] == 'BPE':  # GPT's and others' have other special tokens
      self.needs = ()
    parts = {name: content.get(name) for name in ('normalizer', 'pre_tokenizer', 'model')}
    self._added = content.get('added_tokens') or []
    known = json.dumps(['rust', parts, self._added, pieces], sort_keys=True)
    super().__init__(pieces, hashlib.sha256(known.encode()).hexdigest(), source)
    self.content = content
    self._set_words(parts, source)
    takes_blank = {token['content'] for token in self._added if token.get('lstrip')}
    self.mask_takes_blank = '[MASK]' in self.reserved and pieces[self.mask_id] in takes_blank
    self._rust = tokenizers.Tokenizer.from_str(json.dumps(self._searched(parts)))

  def _searched(self, parts: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer.json that texts are encoded with: its special tokens get a blank before them,
    which no word has in the library's models, so no text can produce one."""
    special = {token['content'] for token in self._added if token.get('special')}
    special |= {self.pieces[i] for i in self.special_ids}
    names = [f' {piece}' if piece in special else piece for piece in self.pieces]
    model = dict(parts['model'])
    if model['type'] == 'Unigram':
      scores = [score for _, score in model['vocab']]
      scores += [min(scores)] * (len(names) - len(scores))  # unknown ones cost 10 more than that
      model['vocab'] = [list(pair) for pair in zip(names, scores, strict=True)]
    else:
      model['vocab'] = {name: i for i, name in enumerate(names)}
      if model.get('unk_token') in special:
        model['unk_token'] = f' {model["unk_token"]}'
    added = [token for token in self._added if token['content'] not in special]
    decoder = {'decoder': self.content.get('decoder')}
    return parts | decoder | {'version': '1.0', 'model': model, 'added_tokens': added}

  def _set_words(self, parts: Mapping[str, Any], source: str) -> None:
    """Sets for each piece whether words begin or end there."""
    model, kinds = parts['model'], _kinds(parts['pre_tokenizer'])
    marks = [mark for kind, mark in _MARKS.items() if kind in kinds]
    prefix, suffix = model.get('continuing_subword_prefix'), model.get('end_of_word_suffix')
    if not (marks or suffix or model['type'] == 'WordPiece'):
      by = first_line(', '.join(kinds)) if kinds else 'nothing'
      read = 'WordPiece and what is split by ByteLevel or Metaspace or has an end_of_word_suffix'
      fault = f'{source} is a {first_line(model["type"])} split by {by}, and read are {read}'
      raise InputError(f'{fault}; put a vocab.txt or *.model beside it.')
    added = {token['content'] for token in self._added if not token.get('special')}
    is_added = np.array([piece in added for piece in self.pieces])
    begins = [not suffix and not piece.startswith(prefix or '##') for piece in self.pieces]
    if marks:
      begins = [piece.startswith(marks[0]) for piece in self.pieces]
    ends = [bool(suffix) and piece.endswith(suffix) for piece in self.pieces]
    self._begins_word, self._ends_word = np.array(begins) | is_added, np.array(ends) | is_added
    self._blank = np.array([piece == '▁' for piece in self.pieces])
    self.blank_is_of_word = marks == [BLANK]
    self.add_prefix_space = '"add_prefix_space": true' in json.dumps(parts['pre_tokenizer'])

  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    texts = checked(texts)
    encodings = self._rust.encode_batch(texts, add_special_tokens=False)
    blanks = lambda part: len(part) - len(part.lstrip())
    return [
      self.encoding(e.ids, [(start + blanks(text[start:end]), end) for start, end in e.offsets])
      for text, e in zip(texts, encodings)
    ]

  def files(self) -> dict[str, str]:
    content = json.dumps(self.content, ensure_ascii=False, indent=2)
    return {'tokenizer.json': content + '\n'}

  @property
  def rust(self) -> tokenizers.Tokenizer:
    """The library's tokenizer exactly as the file says, which does search for special tokens."""
    plain = {'truncation': None, 'padding': None}
    return tokenizers.Tokenizer.from_str(json.dumps(self.content | plain))


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
