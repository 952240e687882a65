"""Reads a tokenizer from its file or from a model's folder, and checks the files beside it."""

import re
from pathlib import Path

from bert_jax.errors import InputError, first_line, quoted
from bert_jax.text import files
from bert_jax.tokenizers import spiece, tokenizer_json
from bert_jax.tokenizers.base import RESERVED, Tokenizer
from bert_jax.tokenizers.sentence_piece import SentencePiece
from bert_jax.tokenizers.wordpiece import Splitting, WordPiece

FILES = ('vocab.txt', 'spm.model', 'tokenizer.json', 'vocab.json', 'spiece.model')
# Classes that have a vocab.txt, but split words by another program or file; refused.
_OTHER_CLASSES = ('BertJapanese', 'Bertweet', 'Phobert', 'Herbert')


def load(
  path: str | Path, *, do_lower_case: bool | None = True, tokenize_chinese_chars: bool = True
) -> Tokenizer:
  """Reads a `vocab.txt` (one piece a line, the id is the line), a SentencePiece `*.model`, the
  `spiece.model` of an ALBERT or FNet, a `tokenizer.json`, or a `vocab.json` with merges.txt.
  The flags are for vocab.txt, which does not say whether it is cased. A tokenizer_config.json
  beside it decides on CJK characters and accents, and its casing must be the one asked for.
  do_lower_case None: as the file beside it says, else a vocabulary without capitals is lower-cased.
  Files beside it that ask for what no tokenizer here does are an error."""
  path = Path(path)
  if not path.is_file():
    fault = 'is a folder' if path.is_dir() else 'does not exist'
    raise InputError(f'{path} {fault}; give a vocab.txt or *.model file')
  data = path.read_bytes()
  if not data.strip():
    raise InputError(f'{path} is empty; was it cut off while it was copied?')
  if path.suffix != '.model' and path.name != 'tokenizer.json':
    _check_words(path)
  merges = path.with_name('merges.txt')
  if path.name == 'spiece.model':
    tokenizer = tokenizer_json.from_content(path, spiece.content(path, data))
  elif path.suffix == '.model':
    tokenizer = SentencePiece(data, source=str(path))
  elif path.name == 'vocab.json' and merges.is_file():
    tokenizer = tokenizer_json.read_pair(path, merges)
  elif path.suffix == '.json':
    tokenizer = tokenizer_json.read(path)
  else:
    splitting = _splitting(path, do_lower_case, tokenize_chinese_chars)
    pieces = _read_vocab(path, data)
    tokenizer = WordPiece(pieces, splitting, source=str(path))
    if path.name == 'vocab.txt':
      _check_same(path, pieces)
  _check_added(path, tokenizer)
  return tokenizer


def _read_vocab(path: Path, data: bytes) -> list[str]:
  """The pieces of a vocab.txt, from its content."""
  if b'\0' in data:
    line = data[: data.index(b'\0')].count(b'\n') + 1
    raise InputError(f'{path} is not text: line {line} holds a zero byte; give a vocab.txt')
  try:
    text = data.decode('utf-8-sig')
  except UnicodeDecodeError as e:
    line = e.object[: e.start].count(b'\n') + 1
    raise InputError(f'{path} is not UTF-8 on line {line}; convert the file to UTF-8') from e
  # Split at \n alone: U+2028 is a piece of the Chinese vocabulary.
  pieces = [line.strip(' \t\r') for line in text.removesuffix('\n').split('\n')]
  lines = {}
  for line, piece in enumerate(pieces, 1):
    if not piece:
      raise InputError(f'{path} has nothing on line {line}; every line must hold one piece')
    if (first := lines.setdefault(piece, line)) != line:
      twice = f'{path} has the piece {quoted(piece)} on lines {first} and {line}'
      raise InputError(f'{twice}; write one that no text has in place of the second')
  return pieces


def _splitting(path: Path, do_lower_case: bool | None, tokenize_chinese_chars: bool) -> Splitting:
  """The Splitting for a vocab.txt, from the tokenizer_config.json beside it and the arguments."""
  beside = path.with_name('tokenizer_config.json')
  asked = {'do_lower_case': do_lower_case, 'tokenize_chinese_chars': tokenize_chinese_chars}
  said = Splitting.known(files.json_of(beside))
  if do_lower_case is None and 'do_lower_case' not in said:
    words = re.split(r'\s*\n(?:##)?', path.read_text(errors='replace'))
    asked['do_lower_case'] = all(x == x.lower() for x in words if x.isalpha())
  splitting = Splitting.from_json(beside, asked | said)
  if do_lower_case not in (None, splitting.do_lower_case):
    raise InputError(f'{beside} says do_lower_case is {not do_lower_case}; use that')
  return splitting


def _check_added(path: Path, tokenizer: Tokenizer) -> None:
  """InputError if files beside a vocabulary add tokens that it lacks."""
  added, config = (path.with_name(f'{name}.json') for name in ('added_tokens', 'tokenizer_config'))
  more = files.json_of(config).get('added_tokens_decoder')
  more = more.values() if isinstance(more, dict) else ()
  tokens = [*files.json_of(added), *(str(t.get('content')) for t in more if isinstance(t, dict))]
  known = {*tokenizer.pieces, *map(str.lower, RESERVED)} if tokens else ()
  if new := [token for token in tokens if token not in known]:
    raise InputError(
      f'the files beside {path} add {len(new)} tokens that it lacks, such as {quoted(new[0])}, and '
      'no text is searched for such; this model cannot be read.'
    )


def _check_same(path: Path, pieces: list[str]) -> None:
  """InputError if the tokenizer.json beside a vocab.txt gives its pieces other ids."""
  other = path.with_name('tokenizer.json')
  model = files.json_of(other).get('model')
  if not isinstance(model, dict) or model.get('type') not in (None, 'WordPiece'):
    return
  theirs, ours = model.get('vocab'), {piece: i for i, piece in enumerate(pieces)}
  if not isinstance(theirs, dict):
    raise InputError(f'{other} holds no vocabulary; is it whole?')
  for piece in (piece for piece in [*ours, *theirs] if theirs.get(piece) != ours.get(piece)):
    here, there = (x.get(piece, 'none') for x in (ours, theirs))
    ids = f'the id of {quoted(piece)} is {here} in the one and {there} in the other'
    raise InputError(f'{path} and {other} differ: {ids}; remove the one that is not of this model')


def _check_words(path: Path) -> None:
  """InputError if files beside a vocabulary ask for a way to split words that is not supported."""
  settings = files.json_of(path.with_name('tokenizer_config.json'))
  kind = settings.get('tokenizer_class')
  kind = kind or files.json_of(path.with_name('config.json')).get('tokenizer_class')
  splitter, pieces = (settings.get(f'{part}_tokenizer_type') for part in ('word', 'subword'))
  refused = {
    f'tokenizer_class {first_line(kind)}': str(kind).startswith(_OTHER_CLASSES),
    f'word_tokenizer_type {first_line(splitter)}': splitter not in (None, 'basic'),
    f'subword_tokenizer_type {first_line(pieces)}': pieces not in (None, 'wordpiece'),
    'do_basic_tokenize false': settings.get('do_basic_tokenize') not in (None, True),
    'never_split': bool(settings.get('never_split')),
  }
  if wrong := [name for name, is_wrong in refused.items() if is_wrong]:
    fault = f'{path.parent} asks for {wrong[0]}, which splits words otherwise than here'
    raise InputError(f'{fault} with a {path.name}; this model cannot be read.')


def in_folder(folder: str | Path) -> Path | None:
  """The vocabulary file in the folder of a run or a released model; None if there is none."""
  paths = (Path(folder) / name for name in FILES)
  return next((path for path in paths if path.is_file()), None)


def load_folder(folder: str | Path) -> Tokenizer:
  """Reads the tokenizer in the folder of a run or a released model, with its own casing.
  Google's releases do not say the casing: a vocab.txt that has words with capitals is cased."""
  if (path := in_folder(folder := Path(folder).expanduser())) is None:
    raise InputError(f'{folder} holds no vocabulary ({", ".join(FILES)}); is it a run?')
  return load(path, do_lower_case=None)
