"""WordPiece: the content of a tokenizer.json from Google's `vocab.txt`, one piece a line."""

import re
from collections.abc import Iterable
from typing import Any

from bert_jax.errors import InputError, log, quoted
from bert_jax.files import Path
from bert_jax.tokenizers.reserved import RESERVED, reserved_id
from bert_jax.tokenizers.splitting import MAX_WORD_CHARACTERS, UNCASED, Splitting
from bert_jax.tokenizers.tokenizer import Tokenizer


def wordpiece_tokenizer(
  pieces: Iterable[str], splitting: Splitting = UNCASED, *, source: str = 'the vocabulary'
) -> Tokenizer:
  """A WordPiece tokenizer: greedy longest match first in words; ## marks a continuing piece."""
  return Tokenizer(wordpiece_content(pieces, splitting, {}), source=source)


def wordpiece_content(pieces: Iterable[str], splitting: Splitting, names: dict) -> dict[str, Any]:
  pieces, added = list(pieces), []
  for reserved in RESERVED:
    name = names.get(reserved, reserved)
    i = reserved_id(pieces, name)
    if i is not None:
      if pieces[i] == name.lower() or name == '[UNK]':  # [unk] in some copies of bert-base-uncased
        pieces[i] = name
      added.append(special_token(i, pieces[i]))
  return {
    'version': '1.0',
    'added_tokens': sorted(added, key=lambda token: token['id']),
    'normalizer': {
      'type': 'BertNormalizer',
      'clean_text': True,
      'handle_chinese_chars': splitting.tokenize_chinese_chars,
      'strip_accents': splitting.strip_accents,
      'lowercase': splitting.do_lower_case,
    },
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'decoder': {'type': 'WordPiece', 'prefix': '##', 'cleanup': True},
    'model': {
      'type': 'WordPiece',
      'unk_token': '[UNK]',
      'continuing_subword_prefix': '##',
      'max_input_chars_per_word': MAX_WORD_CHARACTERS,
      'vocab': {piece: i for i, piece in enumerate(pieces)},
    },
  }


def special_token(i: int, content: str, *, lstrip: bool = False) -> dict[str, Any]:
  """A special token among the added_tokens of a tokenizer.json."""
  return {
    'id': i,
    'content': content,
    'single_word': False,
    'lstrip': lstrip,
    'rstrip': False,
    'normalized': False,
    'special': True,
  }


def read_vocab(path: Path) -> list[str]:
  """The pieces of a vocab.txt. The id of a piece is its line."""
  # Split at line ends alone: U+2028 is a piece of the Chinese vocabulary.
  lines = re.split('\r\n?|\n', path.read_bytes().decode('utf-8-sig'))
  pieces = [line.strip(' \t') for line in lines]
  while pieces and not pieces[-1]:
    pieces.pop()
  numbers = {}
  for number, piece in enumerate(pieces, 1):
    if not piece or piece in numbers:
      fault = f'has {quoted(piece)}, as line {numbers[piece]} does' if piece else 'has nothing'
      raise InputError(f'{path}: line {number} {fault}; give each line a piece of its own.')
    numbers[piece] = number
  return pieces


def is_uncased(path: Path, pieces: Iterable[str]) -> bool:
  """Whether a twentieth of the words of a vocab.txt at most has capitals: some may be added."""
  words = [piece.removeprefix('##') for piece in pieces]
  words = [word for word in words if word.isalpha() and word.lower() != word.upper()]
  capital = [word for word in words if word != word.lower()]
  uncased = 20 * len(capital) <= len(words)
  if capital:
    log.info(
      '%s is taken for %s, since %d of its %d words have capitals; if it is not, write '
      'do_lower_case into a tokenizer_config.json beside it',
      path,
      'uncased' if uncased else 'cased',
      len(capital),
      len(words),
    )
  return uncased
