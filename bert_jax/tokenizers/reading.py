"""Reads a tokenizer from its file or from a model's folder, and checks the files beside it.

Of several files the first of FILES is read. Two that give a piece different ids are refused.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from bert_jax.errors import InputError, first_line, log, quoted
from bert_jax.files import Path
from bert_jax.text import files
from bert_jax.tokenizers import classes, sentence_piece
from bert_jax.tokenizers.byte_level import byte_level_content
from bert_jax.tokenizers.reserved import OTHER_NAMES, RESERVED, ROLES, Around, reserved_ids
from bert_jax.tokenizers.splitting import Splitting
from bert_jax.tokenizers.tokenizer import BLANK, Tokenizer, listed
from bert_jax.tokenizers.wordpiece import (
  is_uncased,
  read_vocab,
  wordpiece_content,
  wordpiece_tokenizer,
)

FILES = ('tokenizer.json', 'vocab.txt', 'vocab.json', *sentence_piece.FILES)
_BY_CHARACTERS = (
  'it cuts Chinese into words by jieba. To read it by characters, with other ids, let vocab.txt be '
  'its only vocabulary, and write "tokenizer_class": "BertTokenizer" into its tokenizer_config.json'
)
# Classes of transformers that put [CLS] and [SEP] around texts if the file has no post_processor.
_ENCLOSING = re.compile(r'(?!modern)(\w*bert|electra|fnet|mpnet|xlm|bart)', re.IGNORECASE)


def in_folder(folder: str | Path) -> Path | None:
  """The vocabulary file in the folder of a run or a released model; None if there is none."""
  for name in FILES:
    path = Path(folder) / name
    if path.is_file():
      return path
  return None


def load_folder(folder: str | Path) -> Tokenizer:
  """Reads the tokenizer in the folder of a run or a released model, with its own casing.
  Google's releases do not say the casing: a vocab.txt is cased if many of its words are."""
  folder = Path(folder).expanduser()
  path = in_folder(folder)
  if path is None:
    raise InputError(f'{folder} holds no vocabulary ({", ".join(FILES)}); is it a run?')
  return load(path, do_lower_case=None)


def load(path: str | Path, *, do_lower_case: bool | None = True) -> Tokenizer:
  """Reads a `vocab.txt` (one piece a line, the id is the line), a SentencePiece `*.model`, a
  `tokenizer.json`, or a `vocab.json` with merges.txt.
  do_lower_case: of a vocab.txt, which does not say it; InputError if a tokenizer_config.json beside
  it says otherwise. None: as that file says, else by the share of the words with capitals.
  Files beside it that ask for what no tokenizer here does are an error."""
  path = Path(path)
  if not path.is_file():
    raise InputError(f'{path} is no file; give a vocab.txt, tokenizer.json or *.model file')
  if path.name in FILES and path.with_name('tokenizer.json').is_file():
    path = path.with_name('tokenizer.json')
  if path.suffix != '.model':
    _check_words(path)
  with whole(path):
    if path.suffix == '.model':
      tokenizer = sentence_piece.read_model(path)
    elif path.name == 'vocab.json' and path.with_name('merges.txt').is_file():
      tokenizer = _read_pair(path, path.with_name('merges.txt'))
    elif path.suffix == '.json':
      tokenizer = _of_content(path, files.json_of(path))
      _check_beside(path, tokenizer)
    else:
      pieces = read_vocab(path)
      splitting = _splitting(path, pieces, do_lower_case)
      names = _names(path, {piece: i for i, piece in enumerate(pieces)})
      content = wordpiece_content(pieces, splitting, names)
      tokenizer = _by_class(path, Tokenizer(content, source=str(path), names=names))
    return classes.with_added(path, tokenizer)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[None]:
  """Turns any error while a file is read, such as the Rust library's, into an InputError."""
  try:
    yield
  except (InputError, OSError, MemoryError):
    raise
  except BaseException as error:
    if not isinstance(error, Exception) and type(error).__name__ != 'PanicException':  # of Rust
      raise
    why = f'{type(error).__name__}: {first_line(error):.100}'
    raise InputError(f'{path} is not built as a vocabulary is ({why}); is it whole?') from None


def _splitting(path: Path, pieces: list[str], do_lower_case: bool | None) -> Splitting:
  """The Splitting for a vocab.txt, by the tokenizer_config.json beside it; see load."""
  beside = path.with_name('tokenizer_config.json')
  settings = files.json_of(beside)
  if settings.get('do_lower_case') is None:
    lower = is_uncased(path, pieces) if do_lower_case is None else do_lower_case
    settings['do_lower_case'] = lower
  if settings.get('do_basic_tokenize') is False:
    log.info("%s: do_basic_tokenize is not read, as by transformers 5: words are BERT's", beside)
  splitting = Splitting.of(settings)
  if do_lower_case not in (None, splitting.do_lower_case):
    raise InputError(f'{beside} says do_lower_case is {not do_lower_case}; use that')
  return splitting


# ------------------------------------------------------------------------------ tokenizer.json


def _of_content(path: Path, content: dict[str, Any]) -> Tokenizer:
  """Makes a tokenizer from the parsed content of the tokenizer.json at `path`. Texts are searched
  for all added tokens, as by transformers, but for the reserved ones ([MASK])."""
  content = content | {'added_tokens': content.get('added_tokens') or []}
  classes.apply_class(path, content)
  ids = {token['content']: token['id'] for token in content['added_tokens']} | listed(content)
  names = _names(path, ids)
  tokenizer = Tokenizer(content, source=str(path), names=names, around=_around(path, content))
  if not content.get('post_processor'):
    tokenizer = _by_class(path, tokenizer)
  if tokenizer.splitting:  # written as the maker of such content does
    return wordpiece_tokenizer(tokenizer.pieces, tokenizer.splitting, source=str(path))
  return tokenizer


def _names(path: Path, ids: Mapping[str, int]) -> dict[str, str]:
  """{reserved piece: its name} of those that files beside a vocabulary call otherwise than usual.
  An MPNet's has those of BERT and of RoBERTa, and uses the latter."""
  settings = classes.settings_of(path)
  usual = reserved_ids(sorted(ids, key=lambda piece: ids[piece]))
  # What stands for a pad that a vocabulary lacks: see Tokenizer.pad_id.
  usual.setdefault('[PAD]', usual.get('[UNK]', max(usual.values(), default=0)))
  names = {}
  is_mpnet = classes.kind_of(path) == 'mpnet'
  for role in ('cls', 'sep', 'mask', 'pad'):
    token = classes.text_of(settings.get(f'{role}_token'))
    if is_mpnet and token is None:
      token = OTHER_NAMES[ROLES[role]]
    if token in ids and ids[token] != usual.get(ROLES[role]):
      names[ROLES[role]] = token
  return names


def _around(path: Path, content: Mapping[str, Any]) -> Around | None:
  """What the post_processor of a tokenizer.json puts around texts; None: not said, as in BERT."""
  kind, given = classes.kind_of(path), content.get('post_processor')
  if not given and (not kind or _ENCLOSING.match(kind)):
    return None
  two_words = {'type': 'WordLevel', 'vocab': {'a': 0, 'b': 1}, 'unk_token': 'a'}
  toy = {'version': '1.0', 'added_tokens': [], 'model': two_words, 'post_processor': given}
  library = tokenizers.Tokenizer.from_str(json.dumps(toy))
  single, pair = library.encode('a'), library.encode('a', 'b')
  text, first, second = (x.sequence_ids.index(i) for x, i in ((single, 0), (pair, 0), (pair, 1)))
  parts = single.ids[:text], pair.ids[first + 1 : second], single.ids[text + 1 :]
  return Around(*map(tuple, parts)) if kind or any(parts) else None


def _by_class(path: Path, tokenizer: Tokenizer) -> Tokenizer:
  """A tokenizer whose file does not say what stands around texts: of the classes that read
  WordPiece only MPNet's puts two [SEP]s between them, whatever they are called."""
  if tokenizer.content['model']['type'] != 'WordPiece' or classes.kind_of(path) == 'mpnet':
    return tokenizer
  around = tokenizer.around._replace(between=tokenizer.around.behind)
  if around == tokenizer.around:
    return tokenizer
  return Tokenizer(tokenizer.content, source=str(path), names=tokenizer.names, around=around)


def _check_beside(path: Path, tokenizer: Tokenizer) -> None:
  """InputError if another vocabulary beside a tokenizer.json has other ids or scores."""
  ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
  ours, vocabulary = {'id': ids}, tokenizer.content['model']['vocab']
  if isinstance(vocabulary, list):  # of pairs (piece, score)
    ours['score'] = dict(vocabulary)
  for name in FILES[1:]:
    other = path.with_name(name)
    if not other.is_file():
      continue
    if name == 'vocab.txt':
      theirs = {'id': {piece: i for i, piece in enumerate(read_vocab(other))}}
    elif name == 'vocab.json':
      theirs = {'id': files.json_of(other)}
    else:
      theirs = sentence_piece.table_of(other, ids)
    for what, values in theirs.items():
      for piece, value in values.items():
        found = ours.get(what, values).get(piece, math.inf)
        if abs(found - value) > 1e-3 and piece.upper() not in RESERVED:
          raise InputError(
            f'{path} and {other} differ: the {what} of {quoted(piece)} is '
            f'{"none" if found == math.inf else found} in the one and {value} in the other; '
            'remove the one that is not of this model'
          )


# ------------------------------------------------------------------------------ other files


def _read_pair(vocabulary: Path, merges: Path) -> Tokenizer:
  """Reads a byte-level tokenizer, such as RoBERTa's and GPT-2's, from vocab.json and merges.txt."""
  ids = files.json_of(vocabulary)
  pairs = []
  for line in re.split('\r\n?|\n', merges.read_bytes().decode('utf-8')):
    if line and not line.startswith('#version'):
      pairs.append(line.split(' '))
  if BLANK not in ids:
    raise InputError(
      f'{vocabulary} is no vocabulary of bytes; let transformers save its tokenizer.json beside it.'
    )
  content = byte_level_content(sorted(ids, key=lambda piece: ids[piece]), pairs)
  classes.apply_class(vocabulary, content)
  return Tokenizer(content, source=str(vocabulary))


# Classes, or model_types, that split words by another program than a vocabulary beside them says.
_OTHER_CLASSES = ('bertjapanese', 'bertweet', 'phobert', 'herbert')


def _check_words(path: Path) -> None:
  """InputError if files beside a vocabulary ask for a way to split words that is not supported."""
  name = classes.kind_of(path)
  if name == 'roformer':
    advice = _BY_CHARACTERS
  elif name.startswith(_OTHER_CLASSES) and path.name != 'tokenizer.json':
    advice = 'this model cannot be read'
  else:
    return
  raise InputError(
    f'{path.parent} is of the class {name}, which splits words otherwise than '
    f'here with a {path.name}; {advice}.'
  )
