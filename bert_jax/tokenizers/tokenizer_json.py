"""Reads Hugging Face's tokenizer.json, and RoBERTa's vocab.json with merges.txt.

Only tokenizers whose ids would be the same here are read: another normaliser, another way to split
words, or pieces outside of the vocabulary are errors.
"""

import contextlib
import logging
from pathlib import Path

from bert_jax.errors import InputError
from bert_jax.text import files
from bert_jax.tokenizers.byte_level import ByteLevel
from bert_jax.tokenizers.wordpiece import MAX_WORD_CHARACTERS, WordPiece

log = logging.getLogger('bert_jax')


@contextlib.contextmanager
def _whole(path):
  """Makes any error while a file is read an InputError that names the file.
  The Rust library raises plain Exceptions."""
  try:
    yield
  except InputError:
    raise
  except Exception as error:
    why = f'{type(error).__name__}: {error!s:.100}'
    raise InputError(f'{path} is not built as a vocabulary is ({why}); is it whole?') from None


def read(path: Path):
  """The WordPiece or ByteLevel tokenizer of a tokenizer.json."""
  content = files.json_of(path)
  with _whole(path):
    return _read(path, content)


def _read(path, content):
  model, splitter = content.get('model') or {}, content.get('pre_tokenizer') or {}
  kind = model.get('type'), splitter.get('type')
  vocabulary = dict(model.get('vocab') or {}) if kind[0] in ('WordPiece', 'BPE') else {}
  for token in content.get('added_tokens') or ():
    if not token.get('special') and token['content'] not in vocabulary:
      raise InputError(
        f'{path} adds the token {token["content"]!r}, which its vocabulary has not, and no text is '
        'searched for such; this model cannot be read.'
      )
    vocabulary.setdefault(token['content'], token['id'])
  if kind == ('WordPiece', 'BertPreTokenizer'):
    return WordPiece(_pieces(path, vocabulary), **_flags(path, content), source=str(path))
  other = [model.get(name) for name in ('continuing_subword_prefix', 'end_of_word_suffix')]
  plain = not (content.get('normalizer') or any(other) or model.get('byte_fallback'))
  if kind == ('BPE', 'ByteLevel') and plain and splitter.get('use_regex', True):
    merges = [m.split(' ') if isinstance(m, str) else m for m in model['merges']]
    blank = bool(splitter.get('add_prefix_space'))
    pieces = _pieces(path, vocabulary)
    added = {token['content']: token for token in content.get('added_tokens') or ()}
    if added.get('<mask>', {}).get('lstrip') is False:
      log.warning(
        '%s leaves the blank before <mask> to the text; here it belongs to the mask, as in the '
        'releases of RoBERTa, so ids beside masks differ from theirs', path,
      )  # fmt: skip
    return ByteLevel(pieces, merges, add_prefix_space=blank, source=str(path))
  raise InputError(
    f'{path} is a {kind[0]} split by {kind[1]}; read are WordPiece split by BertPreTokenizer and '
    'byte-level BPE (RoBERTa) without a normalizer, so put a vocab.txt or *.model beside it.'
  )


def read_pair(vocabulary: Path, merges: Path):
  """The ByteLevel tokenizer of vocab.json and merges.txt."""
  with _whole(vocabulary):
    pieces = _pieces(vocabulary, files.json_of(vocabulary))
  with _whole(merges):
    lines = merges.read_bytes().decode('utf-8').replace('\r\n', '\n').split('\n')
    pairs = [line.split(' ') for line in lines if line and not line.startswith('#version')]
    if faulty := [pair for pair in pairs if len(pair) != 2]:
      raise InputError(f'{merges} has a line that is no pair, {faulty[0]}; is it whole?')
    return ByteLevel(pieces, pairs, source=str(vocabulary))


def _flags(path, content):
  """The arguments of WordPiece, from the normalizer of a tokenizer.json."""
  settings, model = content.get('normalizer') or {}, content['model']
  for name, value, berts in (
    ('normalizer', settings.get('type'), 'BertNormalizer'),
    ('clean_text', settings.get('clean_text', True), True),
    ('continuing_subword_prefix', model.get('continuing_subword_prefix', '##'), '##'),
    ('max_input_chars_per_word', model.get('max_input_chars_per_word', 100), MAX_WORD_CHARACTERS),
  ):
    if value != berts:
      raise InputError(
        f"{path} has {name} {value}, where a BERT's is {berts}; its ids would differ."
      )
  flags = {
    'do_lower_case': settings.get('lowercase', True),
    'tokenize_chinese_chars': settings.get('handle_chinese_chars', True),
    'strip_accents': settings.get('strip_accents'),
  }
  for name, value in flags.items():
    if not isinstance(value, bool) and (name, value) != ('strip_accents', None):
      raise InputError(f'{path} says {name} is {value!r}; write true or false.')
  return flags


def _pieces(path, vocabulary):
  """The pieces in order of their ids, which must have no gap."""
  if odd := [piece for piece, i in vocabulary.items() if not isinstance(i, int)]:
    raise InputError(f'the id of {odd[0]!r} in {path} is no number; is it whole?')
  pieces = sorted(vocabulary, key=vocabulary.get)
  if [vocabulary[piece] for piece in pieces] != list(range(len(pieces))):
    raise InputError(f'the ids of {path} do not count from 0 without a gap; it cannot be read.')
  return pieces
