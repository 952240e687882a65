"""Reads Hugging Face's tokenizer.json, and vocab.json with merges.txt (RoBERTa, GPT-2, GPT).

WordPiece and byte-level BPE as in BERT, RoBERTa and GPT-2 get the classes of this package; with
another normaliser, another way to split words or added tokens, the file runs as a RustTokenizer.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from bert_jax.errors import InputError, first_line, log, quoted
from bert_jax.files import Path
from bert_jax.text import files
from bert_jax.tokenizers.base import Tokenizer, reserved_ids
from bert_jax.tokenizers.byte_level import BLANK, ByteLevel
from bert_jax.tokenizers.rust_tokenizer import TOKEN_FLAGS, RustTokenizer, listed, whole_content
from bert_jax.tokenizers.wordpiece import MAX_WORD_CHARACTERS, Splitting, WordPiece

_END = '</w>'  # how GPT's pieces write the end of a word


@contextlib.contextmanager
def whole(path: Path) -> Iterator[None]:
  """Turns any error while a file is read, such as the Rust library's, into an InputError."""
  try:
    yield
  except InputError:
    raise
  except Exception as error:
    why = f'{type(error).__name__}: {first_line(error):.100}'
    raise InputError(f'{path} is not built as a vocabulary is ({why}); is it whole?') from None


def read(path: Path) -> Tokenizer:
  """Reads a tokenizer from a tokenizer.json."""
  with whole(path):
    return from_content(path, files.json_of(path))


def from_content(path: Path, content: dict[str, Any]) -> Tokenizer:
  """Makes a tokenizer from the parsed content of a tokenizer.json, the file at `path`.

  Texts are searched for all added tokens, as by transformers, but for the reserved ones ([MASK]).
  A run keeps in its tokenizer.json, under the OURS of rust_tokenizer.py, what its release said; one
  of an earlier version, without these, goes on as it began."""
  beside = files.json_of(path.with_name('config.json'))
  added, vocabulary = content.get('added_tokens') or [], dict(listed(content))
  size = len(vocabulary)
  if low := [x for x in added if x['content'] not in vocabulary and x['id'] < size]:
    fault = f'{path} adds {quoted(low[0]["content"])} under an id below those of its model'
    raise InputError(f'{fault}; it cannot be read.')
  vocabulary = {token['content']: token['id'] for token in added} | vocabulary
  pieces = _pieces(path, vocabulary)
  content = content | {'added_tokens': added}
  if 'objective' not in beside and (named := _named(path, vocabulary, reserved_ids(pieces))):
    content['reserved'] = named
  reserved = (reserved_ids(pieces) | (content.get('reserved') or {})).values()
  others = [token for token in added if vocabulary[token['content']] not in reserved]
  if 'objective' not in beside and any(token.get('special') for token in others):
    content.setdefault('searched', True)
  others = [token for token in others if content.get('searched') or not token.get('special')]
  kind = RustTokenizer if others or content.get('reserved') else _of_kind
  tokenizer = kind(content, pieces, source=str(path))
  around = content.get('around') or ('objective' not in beside and _around(path, content, beside))
  if around and tokenizer.set_around(around):
    content['around'] = tokenizer.around
    tokenizer = RustTokenizer(content, pieces, source=str(path))
  return tokenizer


def with_tokens(path: Path, tokenizer: Any, more: list[dict[str, Any]]) -> Tokenizer:
  """A tokenizer with more added tokens, which texts are searched for."""
  decoder = {'type': 'WordPiece', 'prefix': '##', 'cleanup': False}
  content = getattr(tokenizer, 'content', None)
  if content is None:
    content = json.loads(tokenizer.rust.to_str()) | {'post_processor': None}
    content |= {'decoder': content['decoder'] or decoder}
  return from_content(path, content | {'added_tokens': [*content['added_tokens'], *more]})


# Classes of transformers that put [CLS] and [SEP] around texts if the file has no post_processor.
_ENCLOSING = re.compile(r'(?!modern)(\w*bert|electra|fnet|xlm|bart)', re.IGNORECASE)


def _named(path, vocabulary, usual):
  """{name: id} of mask and padding where the files beside a tokenizer.json name other pieces than
  usual ones."""
  settings = files.json_of(path.with_name('special_tokens_map.json'))
  settings |= files.json_of(path.with_name('tokenizer_config.json'))
  named, instead = {}, usual.get('[UNK]', max(usual.values(), default=0))
  for name, key in (('[MASK]', 'mask_token'), ('[PAD]', 'pad_token')):
    token = settings.get(key)
    i = vocabulary.get(token.get('content') if isinstance(token, dict) else token)
    if i not in (None, usual.get(name, instead if name == '[PAD]' else None)):
      named[name] = i
  return named


def _around(path, content, beside):
  """What the post_processor of a released tokenizer.json puts around texts, or None."""
  said = files.json_of(path.with_name('tokenizer_config.json')).get('tokenizer_class')
  kind, given = str(said or beside.get('model_type') or ''), content.get('post_processor')
  if not given and (not kind or _ENCLOSING.match(kind)):
    return None
  model = {'type': 'WordLevel', 'vocab': {'a': 0, 'b': 1}, 'unk_token': 'a'}
  whole = whole_content([], None, None, None, model) | {'post_processor': given}
  pair = tokenizers.Tokenizer.from_str(json.dumps(whole)).encode('a', 'b')
  first, second = (pair.sequence_ids.index(i) for i in (0, 1))
  parts = pair.ids[:first], pair.ids[first + 1 : second], pair.ids[second + 1 :]
  return parts if kind or any(parts) else None


def _of_kind(content, pieces, source):
  """The simplest tokenizer for a tokenizer.json without tokens that texts are searched for."""
  model, splitter = content.get('model') or {}, content.get('pre_tokenizer') or {}
  kind, added = (model.get('type'), splitter.get('type')), content['added_tokens']
  is_plain = kind == ('WordPiece', 'BertPreTokenizer')
  if is_plain and (splitting := _splitting(content)):
    return WordPiece(pieces, splitting, source=source)
  names = 'continuing_subword_prefix', 'end_of_word_suffix', 'byte_fallback'
  plain = not (content.get('normalizer') or any(map(model.get, names)))
  plain = plain and splitter.get('use_regex', True)
  if kind == ('BPE', 'ByteLevel') and plain:
    merges = [m.split(' ') if isinstance(m, str) else m for m in model['merges']]
    blank = bool(splitter.get('add_prefix_space'))
    mask = {token['content']: token for token in added}.get('<mask>', {})
    if mask.get('lstrip') is False:
      effect = 'ids beside masks differ, since it belongs to the mask here, as in RoBERTa'
      log.warning('%s leaves the blank before <mask> to the text; %s', source, effect)
    return ByteLevel(pieces, merges, add_prefix_space=blank, source=source)
  return RustTokenizer(content, pieces, source=source)


def read_pair(vocabulary: Path, merges: Path) -> Tokenizer:
  """Reads GPT's or a byte-level tokenizer from vocab.json and merges.txt."""
  pieces = _pieces(vocabulary, files.json_of(vocabulary))
  with whole(merges):
    lines = re.split('\r\n?|\n', merges.read_bytes().decode('utf-8'))
    pairs = [line.split(' ') for line in lines if line and not line.startswith('#version')]
    if faulty := [pair for pair in pairs if len(pair) != 2]:
      raise InputError(f'{merges} has a line that is no pair, {quoted(faulty[0])}; is it whole?')
    if any(x.endswith(_END) for x in pieces) and not any(x.startswith(BLANK) for x in pieces):
      return RustTokenizer(_gpt(pieces, pairs), pieces, source=str(vocabulary))
    return with_tokens(vocabulary, ByteLevel(pieces, pairs, source=str(vocabulary)), [])


def _gpt(pieces: list[str], pairs: list[list[str]]) -> dict[str, Any]:
  """The tokenizer.json of GPT (Radford et al. 2018): lower-cased words, split as in BERT."""
  unknown = {'id': pieces.index('<unk>'), 'content': '<unk>', 'special': True} | TOKEN_FLAGS
  normalizer = {'type': 'BertNormalizer', 'clean_text': True, 'handle_chinese_chars': True}
  normalizer |= {'strip_accents': None, 'lowercase': True}
  model = {'type': 'BPE', 'dropout': None, 'unk_token': '<unk>', 'continuing_subword_prefix': ''}
  model |= {'end_of_word_suffix': _END, 'fuse_unk': False, 'byte_fallback': False}
  model |= {'vocab': {piece: i for i, piece in enumerate(pieces)}, 'merges': pairs}
  decoder = {'type': 'BPEDecoder', 'suffix': _END}
  return whole_content([unknown], normalizer, {'type': 'BertPreTokenizer'}, decoder, model)


def _splitting(content: Mapping[str, Any]) -> Splitting | None:
  """The Splitting of a WordPiece tokenizer.json; None if it treats text otherwise than BERT."""
  given, model = content.get('normalizer') or {}, content['model']
  prefix = model.get('continuing_subword_prefix', '##')
  longest = model.get('max_input_chars_per_word', MAX_WORD_CHARACTERS)
  if (given.get('type'), prefix, longest) != ('BertNormalizer', '##', MAX_WORD_CHARACTERS):
    return None
  rust = tokenizers.normalizers.BertNormalizer()
  rust.__setstate__(json.dumps(given).encode())  # as the library reads the file, or its error
  flags = rust.lowercase, rust.handle_chinese_chars, rust.strip_accents
  return Splitting(*flags) if rust.clean_text else None


def _pieces(path: Path, vocabulary: Mapping[str, Any]) -> list[str]:
  """The pieces in order of their ids, which must have no gap."""
  if odd := [piece for piece, i in vocabulary.items() if not isinstance(i, int)]:
    raise InputError(f'the id of {quoted(odd[0])} in {path} is no number; is it whole?')
  pieces = sorted(vocabulary, key=lambda piece: vocabulary[piece])
  if [vocabulary[piece] for piece in pieces] != list(range(len(pieces))):
    raise InputError(f'the ids of {path} do not count from 0 without a gap; it cannot be read.')
  return pieces
