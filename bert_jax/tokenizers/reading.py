"""Text to ids and back: WordPiece (Google's `vocab.txt`), SentencePiece (`*.model`), and byte-level
BPE (RoBERTa's), as files and folders hold them.

The work is done by two well-kept libraries, Hugging Face's Rust `tokenizers` and Google's
`sentencepiece`; ours is what they leave to the caller: one surface, files that are checked when
they are read, a reserved token typed in a text ("[MASK]") stays plain text, and offsets count
characters of the text as it was given.
"""

from pathlib import Path

from bert_jax.errors import InputError
from bert_jax.text import files
from bert_jax.tokenizers import tokenizer_json
from bert_jax.tokenizers.base import RESERVED, Encoding, Tokenizer, checked
from bert_jax.tokenizers.byte_level import ByteLevel
from bert_jax.tokenizers.sentence_piece import SentencePiece
from bert_jax.tokenizers.wordpiece import MAX_WORD_CHARACTERS, WordPiece, normalizer

__all__ = [
  'MAX_WORD_CHARACTERS', 'RESERVED', 'ByteLevel', 'Encoding', 'SentencePiece', 'Tokenizer',
  'WordPiece', 'checked', 'in_folder', 'load', 'load_folder', 'normalizer',
]  # fmt: skip

FILES = ('vocab.txt', 'spm.model', 'tokenizer.json', 'vocab.json')
# Of a tokenizer_config.json; true, false or null.
_FLAGS = ('do_lower_case', 'tokenize_chinese_chars', 'strip_accents')
# Classes that split words by a program or a file of their own, although they have a vocab.txt.
_OTHER_CLASSES = ('BertJapanese', 'Bertweet', 'Phobert', 'Herbert')


def load(
  path: str | Path, *, do_lower_case: bool = True, tokenize_chinese_chars: bool = True
) -> Tokenizer:
  """Reads a `vocab.txt` (one piece a line, the id is the line), a SentencePiece `*.model`, a
  `tokenizer.json`, or a `vocab.json` with merges.txt beside it.

  The flags belong to vocab.txt, which does not say whether it is cased; the others do. A
  tokenizer_config.json beside it is believed about the CJK characters and the accents. What it says
  of the casing must be what was asked for, since lower-casing into a cased vocabulary fails in
  silence. Files beside it that ask for what no tokenizer here does are an error.
  """
  path = Path(path)
  if path.is_dir():
    raise InputError(f'{path} is a folder; give the path of the vocab.txt or *.model file in it')
  if not path.exists():
    raise InputError(f'{path} does not exist; give the path of a vocab.txt or *.model file')
  data = path.read_bytes()
  if not data.strip():
    raise InputError(f'{path} is empty; was it cut off while it was copied?')
  if path.suffix != '.model' and path.name != 'tokenizer.json':
    _check_words(path)
  tokenizer = _read(path, data, do_lower_case, tokenize_chinese_chars)
  _check_added(path, tokenizer)
  return tokenizer


def _read(path, data, do_lower_case, tokenize_chinese_chars):
  if path.suffix == '.model':
    return SentencePiece(data, source=str(path))
  if path.name == 'vocab.json' and path.with_name('merges.txt').is_file():
    return tokenizer_json.read_pair(path, path.with_name('merges.txt'))
  if path.suffix == '.json':
    return tokenizer_json.read(path)
  flags = {'do_lower_case': do_lower_case, 'tokenize_chinese_chars': tokenize_chinese_chars}
  flags |= _flags_beside(path)
  if flags['do_lower_case'] != do_lower_case:
    raise InputError(
      f'the tokenizer_config.json beside {path} says do_lower_case is {not do_lower_case}, but '
      f'{do_lower_case} was asked for; use do_lower_case={not do_lower_case}'
    )
  return WordPiece(_read_vocab(path, data), **flags, source=str(path))


def _read_vocab(path: Path, data: bytes) -> list[str]:
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
  first_line = {}
  for line, piece in enumerate(pieces, 1):
    if not piece:
      raise InputError(f'{path} has nothing on line {line}; every line must hold one piece')
    if piece in first_line:
      raise InputError(
        f'{path} has the piece {piece} on lines {first_line[piece]} and {line}; '
        'each piece may appear once'
      )
    first_line[piece] = line
  return pieces


def _flags_beside(path: Path) -> dict[str, bool]:
  """What the tokenizer_config.json beside a vocab.txt says; null is as good as nothing."""
  path = path.with_name('tokenizer_config.json')
  settings = files.json_of(path)
  flags = {name: settings.get(name) for name in _FLAGS}
  flags = {name: value for name, value in flags.items() if value is not None}
  for name, value in flags.items():
    if not isinstance(value, bool):
      raise InputError(f'{path} says {name} is {value!r}; write true or false')
  return flags


def _check_added(path: Path, tokenizer: Tokenizer):
  """InputError if the files beside a vocabulary add tokens that it has not."""
  added, config = (path.with_name(f'{name}.json') for name in ('added_tokens', 'tokenizer_config'))
  listed = files.json_of(config).get('added_tokens_decoder')
  listed = listed.values() if isinstance(listed, dict) else ()
  tokens = [*files.json_of(added), *(str(t.get('content')) for t in listed if isinstance(t, dict))]
  known = {*tokenizer.pieces, *map(str.lower, RESERVED)} if tokens else ()
  if new := [token for token in tokens if token not in known]:
    raise InputError(
      f'the files beside {path} add {len(new)} tokens that it has not, for example {new[0]!r}, and '
      'no text is searched for such; this model cannot be read.'
    )


def _check_words(path: Path):
  """InputError if the files beside a vocabulary ask for words found otherwise than here."""
  settings = files.json_of(path.with_name('tokenizer_config.json'))
  kind = settings.get('tokenizer_class')
  kind = kind or files.json_of(path.with_name('config.json')).get('tokenizer_class')
  splitter, pieces = (settings.get(f'{part}_tokenizer_type') for part in ('word', 'subword'))
  refused = {
    f'tokenizer_class {kind}': str(kind).startswith(_OTHER_CLASSES),
    f'word_tokenizer_type {splitter}': splitter not in (None, 'basic'),
    f'subword_tokenizer_type {pieces}': pieces not in (None, 'wordpiece'),
    'do_basic_tokenize false': settings.get('do_basic_tokenize') not in (None, True),
    'never_split': bool(settings.get('never_split')),
  }
  if wrong := [name for name, is_wrong in refused.items() if is_wrong]:
    raise InputError(
      f'{path.parent} asks for {wrong[0]}, which splits words otherwise than is done here with a '
      f'{path.name}, so the ids would differ; this model cannot be read.'
    )


def in_folder(folder: str | Path) -> Path | None:
  """The file that save() wrote into this folder, or that a released model brings, if any."""
  paths = (Path(folder) / name for name in FILES)
  return next((path for path in paths if path.is_file()), None)


def load_folder(folder: str | Path) -> Tokenizer:
  """The tokenizer that save() wrote into this folder, or of a released model, with its own casing.

  Nothing in Google's releases says it, and then the words do: capitals among them are cased.
  """
  folder = Path(folder).expanduser()
  path = in_folder(folder)
  if path is None:
    raise InputError(
      f'{folder} holds no vocabulary that is read ({", ".join(FILES)}); is it a run?'
    )
  if path.suffix != '.txt':
    return load(path)
  lower = _flags_beside(path).get('do_lower_case')
  return load(path, do_lower_case=not _has_capitals(path) if lower is None else lower)


def _has_capitals(path: Path) -> bool:
  words = (line.strip().removeprefix('##') for line in path.read_text(errors='replace').split('\n'))
  return any(word.isalpha() and word != word.lower() for word in words)
