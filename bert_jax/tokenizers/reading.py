"""Reads a tokenizer from its file or from a model's folder, and checks the files beside it."""

import json
import re
from collections.abc import Mapping

from bert_jax.errors import InputError, first_line, log, quoted
from bert_jax.files import Path
from bert_jax.text import files
from bert_jax.tokenizers import spiece, tokenizer_json
from bert_jax.tokenizers.base import RESERVED, Tokenizer
from bert_jax.tokenizers.rust_tokenizer import TOKEN_FLAGS, listed
from bert_jax.tokenizers.sentence_piece import SentencePiece
from bert_jax.tokenizers.wordpiece import Splitting, WordPiece

_REMOVE = 'remove the one that is not of this model'
FILES = ('vocab.txt', 'spm.model', 'tokenizer.json', 'vocab.json', *spiece.FILES)
# Classes, or model_types, with a vocab.txt that split words by another program or file; refused.
_OTHER_CLASSES = ('bertjapanese', 'bertweet', 'phobert', 'herbert', 'roformer')
_BY_CHARACTERS = 'it cuts Chinese into words by jieba. To read it by characters, with other ids, '
_BY_CHARACTERS += 'let vocab.txt be its only vocabulary, and write "tokenizer_class": '
_BY_CHARACTERS += '"BertTokenizer" into its tokenizer_config.json'
# Classes of transformers that read tokenizer.json alone.
_GENERIC = 'PreTrainedTokenizerFast', 'TokenizersBackend'


def load(path: str | Path, *, do_lower_case: bool | None = True) -> Tokenizer:
  """Reads a `vocab.txt` (one piece a line, the id is the line), a SentencePiece `*.model`,
  DeBERTa's too, the `spiece.model` of an ALBERT, FNet or T5, the `sentencepiece.bpe.model` of an
  XLM-R or CamemBERT, a `tokenizer.json`, or a `vocab.json` with merges.txt.
  do_lower_case: of a vocab.txt, which does not say it; InputError if a tokenizer_config.json beside
  it says otherwise. None: as that file says, else by the share of the words with capitals.
  Files beside it that ask for what no tokenizer here does are an error."""
  path = Path(path)
  if not path.is_file():
    fault = 'is a folder' if path.is_dir() else 'does not exist'
    raise InputError(f'{path} {fault}; give a vocab.txt or *.model file')
  settings = files.json_of(path.with_name('tokenizer_config.json'))
  whole = path.with_name('tokenizer.json')
  if path.name == 'vocab.txt' and settings.get('tokenizer_class') in _GENERIC and whole.is_file():
    path = whole
  data = path.read_bytes()
  if not data.strip():
    raise InputError(f'{path} is empty; was it cut off while it was copied?')
  if path.suffix != '.model':
    _check_words(path)
  merges = path.with_name('merges.txt')
  if spiece.is_of(path):
    tokenizer = spiece.read(path)
  elif path.suffix == '.model':
    tokenizer = SentencePiece(data, source=str(path))
  elif path.name == 'vocab.json' and merges.is_file():
    tokenizer = tokenizer_json.read_pair(path, merges)
  elif path.suffix == '.json':
    tokenizer = tokenizer_json.read(path)
    _check_model_beside(path)
  else:
    pieces, splitting = _read_vocab(path, data), _splitting(path, do_lower_case)
    tokenizer = _beside(path, WordPiece(pieces, splitting, source=str(path)))
  return _with_tokens(path, tokenizer)


def _read_vocab(path: Path, data: bytes) -> list[str]:
  """The pieces of a vocab.txt, from its content. The id of a piece is its line, so a line that
  cannot be a piece keeps its place, under a name with a blank, which no word has."""
  text = data.decode('utf-8-sig', 'surrogateescape')
  if wrong := re.search('[\0\udc80-\udcff]', text):
    line = text.count('\n', 0, wrong.start()) + 1
    if wrong[0] == '\0':
      raise InputError(f'{path} is not text: line {line} holds a zero byte; give a vocab.txt')
    raise InputError(f'{path} is not UTF-8 on line {line}; convert the file to UTF-8')
  # Split at line ends alone: U+2028 is a piece of the Chinese vocabulary.
  pieces = [line.strip(' \t') for line in re.split('\r\n?|\n', text)]
  while pieces and not pieces[-1]:
    pieces.pop()
  last = {piece: i for i, piece in enumerate(pieces)}  # as others read it: the last line counts
  unread = [i for i, piece in enumerate(pieces) if not piece or last[piece] != i]
  if unread:
    piece = pieces[unread[0]]
    why = f'has {quoted(piece)}, as line {last[piece] + 1} does' if piece else 'has nothing'
    said = '%s: line %d %s; it keeps its id, which no text gets (%d such lines)'
    log.warning(said, path, unread[0] + 1, why, len(unread))
  for i in unread:
    pieces[i] = f'[line {i + 1}]'
  return pieces


def _splitting(path: Path, do_lower_case: bool | None) -> Splitting:
  """The Splitting for a vocab.txt, by the tokenizer_config.json beside it; see load."""
  beside = path.with_name('tokenizer_config.json')
  said = files.json_of(beside)
  if said.get('do_lower_case') is None:
    said['do_lower_case'] = _is_uncased(path) if do_lower_case is None else do_lower_case
  splitting = Splitting.of(said, beside)
  if do_lower_case not in (None, splitting.do_lower_case):
    raise InputError(f'{beside} says do_lower_case is {not do_lower_case}; use that')
  return splitting


def _is_uncased(path: Path) -> bool:
  """Whether a twentieth of the words of a vocab.txt at most has capitals: some may be added."""
  words = re.split(r'\s*\n(?:##)?', path.read_text(errors='replace'))
  words = [word for word in words if word.isalpha() and word.lower() != word.upper()]
  capital = [word for word in words if word != word.lower()]
  is_uncased = 20 * len(capital) <= len(words)
  if capital:
    kind, say = ('uncased', log.warning) if is_uncased else ('cased', log.info)
    found = f'{len(capital):,} of its {len(words):,} words have capitals, such as {capital[0]}'
    fix = 'if it is not, write do_lower_case into a tokenizer_config.json beside it'
    say('%s is taken for %s, since %s; %s', path, kind, found, fix)
  return is_uncased


def _with_tokens(path: Path, tokenizer: Tokenizer) -> Tokenizer:
  """The tokenizer with the tokens, all in its vocabulary, that the files beside it search for."""
  settings = files.json_of(path.with_name('special_tokens_map.json'))
  settings |= files.json_of(path.with_name('tokenizer_config.json'))
  given = files.json_of(path.with_name('added_tokens.json'))
  tokens = [{'content': token, 'normalized': True} for token in given]
  for name in ('additional_special_tokens', 'extra_special_tokens', 'added_tokens_decoder'):
    more = settings.get(name) or ()
    tokens += more.values() if isinstance(more, dict) else more
  tokens = [x if isinstance(x, dict) else {'content': x, 'special': True} for x in tokens]
  tokens = {str(token.get('content')): token for token in tokens}
  ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
  known = {tokenizer.pieces[i] for i in tokenizer.special_ids}
  known |= {token['content'] for token in getattr(tokenizer, 'content', {}).get('added_tokens', ())}
  known |= {*map(str.lower, RESERVED)} - ids.keys()
  new = [name for name in tokens if name not in known]
  if lost := [x for x in new if x not in ids or isinstance(tokenizer, SentencePiece)]:
    fault = f'the files beside {path} add {len(lost)} tokens that no text is searched for'
    raise InputError(f'{fault}, such as {quoted(lost[0])}; this model cannot be read.')
  flags = lambda token: {flag: bool(token.get(flag)) for flag in (*TOKEN_FLAGS, 'special')}
  added = [flags(tokens[name]) | {'id': ids[name], 'content': name} for name in new]
  return tokenizer_json.with_tokens(path, tokenizer, added) if added else tokenizer


def _beside(path: Path, tokenizer: WordPiece) -> Tokenizer:
  """The tokenizer of a vocab.txt and of the tokenizer.json beside it, which may add tokens and say
  what stands around texts. InputError if that gives other ids."""
  other = path.with_name('tokenizer.json')
  if path.name != 'vocab.txt' or not (content := files.json_of(other)):
    return tokenizer
  with tokenizer_json.whole(other):
    ours, theirs = {piece: i for i, piece in enumerate(tokenizer.pieces)}, listed(content)
    if not (why := _other_id(ours, theirs)):
      plain = {'added_tokens': [], 'post_processor': None}
      plain = tokenizer_json.from_content(other, content | plain)
      if plain.fingerprint == tokenizer.fingerprint:
        return tokenizer_json.from_content(other, content)
      mine = json.loads(tokenizer.rust.to_str())
      differs = lambda mine, said: any(x not in (None, mine.get(k)) for k, x in said.items())
      parts = 'model', 'normalizer', 'pre_tokenizer'
      parts = [part for part in parts if differs(mine[part], content.get(part) or {'': ''})]
      why = f'the {" and the ".join(parts)} of the second would give other ids'
  raise InputError(f'{path} and {other} differ: {why}; {_REMOVE}')


def _other_id(ours: Mapping[str, int], theirs: Mapping[str, int]) -> str:
  """A piece that has another id in the second of two vocabularies, in words; '': there is none."""
  for piece in [*ours, *theirs]:
    here, there = (x.get(piece, 'none') for x in (ours, theirs))
    if here != there:
      return f'the id of {quoted(piece)} is {here} in the one and {there} in the other'
  return ''


def _check_model_beside(path: Path) -> None:
  """InputError if a released SentencePiece model beside a tokenizer.json has other pieces."""
  for other in filter(Path.is_file, map(path.with_name, spiece.FILES)):
    theirs = spiece.ids(other)
    if theirs and (why := _other_id(listed(files.json_of(path)), theirs)):
      raise InputError(f'{path} and {other} differ: {why}; {_REMOVE}')


def _check_words(path: Path) -> None:
  """InputError if files beside a vocabulary ask for a way to split words that is not supported."""
  settings = files.json_of(path.with_name('tokenizer_config.json'))
  model = files.json_of(path.with_name('config.json'))
  said = (settings.get('tokenizer_class'), *map(model.get, ('tokenizer_class', 'model_type')))
  kind = first_line(next(filter(None, said), 'none'))
  is_of = lambda names: kind.lower().replace('-', '').startswith(names)
  # In a tokenizer.json, too, others split words than RoFormer's program.
  refused = {f'tokenizer_class {kind}': is_of('roformer')}
  if path.name != 'tokenizer.json':
    splitter, pieces = (settings.get(f'{part}_tokenizer_type') for part in ('word', 'subword'))
    refused |= {
      f'tokenizer_class {kind}': is_of(_OTHER_CLASSES),
      f'word_tokenizer_type {first_line(splitter)}': splitter not in (None, 'basic'),
      f'subword_tokenizer_type {first_line(pieces)}': pieces not in (None, 'wordpiece'),
      'do_basic_tokenize false': settings.get('do_basic_tokenize') not in (None, True),
      'never_split': bool(settings.get('never_split')),
    }
  if wrong := [name for name, is_wrong in refused.items() if is_wrong]:
    fault = f'{path.parent} asks for {wrong[0]}, which splits words otherwise than here'
    fix = _BY_CHARACTERS if is_of('roformer') else 'this model cannot be read'
    raise InputError(f'{fault} with a {path.name}; {fix}.')


def in_folder(folder: str | Path) -> Path | None:
  """The vocabulary file in the folder of a run or a released model; None if there is none."""
  paths = (Path(folder) / name for name in FILES)
  return next((path for path in paths if path.is_file()), None)


def load_folder(folder: str | Path) -> Tokenizer:
  """Reads the tokenizer in the folder of a run or a released model, with its own casing.
  Google's releases do not say the casing: a vocab.txt is cased if many of its words are."""
  if (path := in_folder(folder := Path(folder).expanduser())) is None:
    raise InputError(f'{folder} holds no vocabulary ({", ".join(FILES)}); is it a run?')
  return load(path, do_lower_case=None)
