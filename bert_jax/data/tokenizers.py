"""Text to ids and back: WordPiece (Google's `vocab.txt`) and SentencePiece (`*.model`).

The work is done by two well-kept libraries, Hugging Face's Rust `tokenizers` and Google's
`sentencepiece`; ours is what they leave to the caller: one surface, files that are checked when
they are read, a reserved token typed in a text ("[MASK]") stays plain text, and offsets count
characters of the text as it was given.

WordPiece is Google's algorithm (google-research/bert, tokenization.py): control characters go, CJK
characters and punctuation stand alone, uncased vocabularies lower-case and strip accents, cased
ones do neither, words of more than 100 characters become [UNK] (Hugging Face's limit for BERT;
Google's later 200 changes only words that are noise anyway). Corners of Unicode where the Rust code
departs from Google's Python: private-use characters are dropped, a word-final capital sigma becomes
a plain one.
"""

import abc
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_pb2
from tokenizers import models, normalizers, pre_tokenizers

from bert_jax.config import InputError, write_whole
from bert_jax.data.scripts import UNSPACED

RESERVED = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
MAX_WORD_CHARACTERS = 100  # a longer word is [UNK]
_OTHER_NAMES = dict(zip(RESERVED, ('<pad>', '<unk>', '<s>', '</s>', '<mask>')))  # RoBERTa's
_SURROGATES = re.compile('[\ud800-\udfff]')
_BEGINS_WORD = re.compile(f'[▁{UNSPACED}]')
_UNSPACED_END = re.compile(f'[{UNSPACED}]$')
_KNOWN_RUNS = 500_000
_LONGEST_RUN = 20  # characters; a longer one hardly comes twice
_LONG_RUNS = 12  # characters; texts whose runs are so long on average are encoded as a whole
_FLAGS = ('do_lower_case', 'tokenize_chinese_chars')  # of a tokenizer_config.json


class Encoding(NamedTuple):
  """One text as pieces; n of them, without [CLS] and [SEP]."""

  ids: np.ndarray  # [n] int32
  offsets: np.ndarray  # [n, 2] int32, start and end in characters of the text as given
  word_starts: np.ndarray  # [n] bool, True at the first piece of a word


class Tokenizer(abc.ABC):
  """What both kinds have in common; they add encode_batch, ids_batch, decode and save."""

  def __init__(self, pieces: Iterable[str], fingerprint: str, source: str):
    self.pieces = list(pieces)
    self.vocab_size = len(self.pieces)
    self.fingerprint = fingerprint  # equal fingerprints give equal ids for every text
    self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
      _find_reserved(self.pieces, name, source) for name in RESERVED
    )
    self.special_ids = tuple(
      sorted((self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id))
    )

  @abc.abstractmethod
  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    """Pieces, offsets and word starts of each text, without [CLS] and [SEP]."""

  @abc.abstractmethod
  def ids_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """The ids of encode_batch alone, several times as fast."""

  @abc.abstractmethod
  def word_starts(self, ids: np.ndarray, text_starts: np.ndarray) -> np.ndarray:
    """[n] bool, True where a word begins; ids [n] of texts in a row that begin at text_starts.

    Texts without ids have no place in text_starts.
    """

  @abc.abstractmethod
  def decode(self, ids: Iterable[int]) -> str:
    """Readable text; [PAD], [CLS] and [SEP] are left out, [MASK] is shown."""

  @abc.abstractmethod
  def save(self, folder: str | Path) -> Path:
    """Writes the files and returns the path to give to load()."""

  def encode_with_masks(self, text: str) -> np.ndarray:
    """The ids of a text in which "[MASK]" does mean mask_id: for fill-mask."""
    first, *rest = self.ids_batch(text.split('[MASK]'))
    mask = np.array([self.mask_id], np.int32)
    return np.concatenate([first] + [part for ids in rest for part in (mask, ids)])

  def _shown(self, ids: Iterable[int]) -> list[int]:
    return [int(i) for i in ids if i not in (self.pad_id, self.cls_id, self.sep_id)]


class WordPiece(Tokenizer):
  """Greedy longest match first within words; a piece that continues a word starts with ##."""

  def __init__(
    self,
    pieces: Iterable[str],
    *,
    do_lower_case: bool = True,
    tokenize_chinese_chars: bool = True,
    source: str = 'the vocabulary',
  ):
    pieces = list(pieces)
    for name in RESERVED:  # some copies of bert-base-uncased spell them [unk]; write them one way
      pieces[_find_reserved(pieces, name, source)] = name
    content = json.dumps(
      ['wordpiece', do_lower_case, pieces] + ([] if tokenize_chinese_chars else ['no spaces'])
    )
    super().__init__(pieces, hashlib.sha256(content.encode()).hexdigest(), source)
    self.do_lower_case = do_lower_case
    self.tokenize_chinese_chars = tokenize_chinese_chars  # each CJK character is a word
    self._begins_word = np.array([not piece.startswith('##') for piece in pieces])
    self._known = {}  # the ids of what stood between blanks, as bytes of int32
    # No special tokens are declared to the library, so the typed "[MASK]" is three plain words.
    self._tokenizer = tokenizers.Tokenizer(
      models.WordPiece(
        {piece: i for i, piece in enumerate(pieces)},
        unk_token='[UNK]',
        max_input_chars_per_word=MAX_WORD_CHARACTERS,
      )
    )
    self._tokenizer.normalizer = normalizer(do_lower_case, tokenize_chinese_chars)
    self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    return [
      Encoding(
        np.array(e.ids, np.int32),
        np.array(e.offsets, np.int32).reshape(-1, 2),
        np.diff(np.array(e.word_ids, np.int32), prepend=-1) != 0,
      )
      for e in self._tokenizer.encode_batch(checked(texts))
    ]

  def ids_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    texts = [_runs(text) for text in checked(texts)]
    if len(self._known) > _KNOWN_RUNS:
      self._known = {}
    ids = {run: self._known.get(run) for run in set().union(*texts)}
    new = [run for run, known in ids.items() if known is None]
    for run, encoding in zip(new, self._tokenizer.encode_batch_fast(new)):
      ids[run] = np.array(encoding.ids, np.int32).tobytes()
    self._known.update((run, ids[run]) for run in new if len(run) <= _LONGEST_RUN)
    return [np.frombuffer(b''.join(map(ids.__getitem__, runs)), np.int32) for runs in texts]

  def word_starts(self, ids: np.ndarray, text_starts: np.ndarray) -> np.ndarray:
    return self._begins_word[ids]

  def decode(self, ids: Iterable[int]) -> str:
    return ' '.join(self.pieces[i] for i in self._shown(ids)).replace(' ##', '')

  def save(self, folder: str | Path) -> Path:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / 'vocab.txt'
    settings = {
      'tokenizer_class': 'BertTokenizer',
      'do_lower_case': self.do_lower_case,
      'tokenize_chinese_chars': self.tokenize_chinese_chars,
    }
    # The casing first: a vocabulary without it would be taken for an uncased one.
    write_whole(folder / 'tokenizer_config.json', json.dumps(settings, indent=2) + '\n')
    write_whole(path, ''.join(f'{piece}\n' for piece in self.pieces))
    return path


class SentencePiece(Tokenizer):
  """A model trained by `sentencepiece`: it holds its own normalisation, casing included.

  Offsets leave out the space before a word, and may be empty: a lone '▁' covers only that space.
  """

  def __init__(self, model: bytes, *, source: str = 'the model'):
    try:
      self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as e:
      raise InputError(f'{source} is not a SentencePiece model; is it damaged or cut off?') from e
    pieces = [self._model.id_to_piece(i) for i in range(self._model.get_piece_size())]
    super().__init__(pieces, hashlib.sha256(model).hexdigest(), source)
    # A piece of a script without blanks is a word of its own.
    self._begins_word = np.array([bool(_BEGINS_WORD.match(piece)) for piece in pieces])
    self._ends_word = np.array([bool(_UNSPACED_END.search(piece)) for piece in pieces])
    self._blank = np.array([piece == '▁' for piece in pieces])
    for i in (self.pad_id, self.cls_id, self.sep_id, self.mask_id):
      if not self._model.is_control(i):
        raise InputError(
          f'{source} has {pieces[i]} as an ordinary piece, which text could produce; '
          'train it with --control_symbols instead'
        )

  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    texts = checked(texts)
    protos = self._model.encode(texts, out_type='serialized_proto')
    return [self._encoding(text, proto) for text, proto in zip(texts, protos)]

  def _encoding(self, text: str, proto: bytes) -> Encoding:
    pieces = sentencepiece_pb2.SentencePieceText.FromString(proto).pieces
    spans = np.array([(p.begin, p.end) for p in pieces], np.int32).reshape(-1, 2)
    utf8 = np.frombuffer(text.encode(), np.uint8)
    offsets = np.cumsum(np.append(0, (utf8 & 0xC0) != 0x80), dtype=np.int32)[spans]
    offsets[:, 0] += np.array([len(p.surface) - len(p.surface.lstrip()) for p in pieces], np.int32)
    ids = np.array([p.id for p in pieces], np.int32)
    return Encoding(ids, offsets, self.word_starts(ids, np.zeros(min(1, len(ids)), int)))

  def ids_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.array(ids, np.int32) for ids in self._model.encode(checked(texts), out_type=int)]

  def word_starts(self, ids: np.ndarray, text_starts: np.ndarray) -> np.ndarray:
    starts = self._begins_word[ids]
    starts[1:] |= self._ends_word[ids[:-1]]
    starts[1:] &= ~self._blank[ids[:-1]]  # a blank goes with what it stands before
    starts[text_starts] = True
    return starts

  def decode(self, ids: Iterable[int]) -> str:
    runs = [[]]  # between masks, which the library would leave out
    for i in self._shown(ids):
      runs.append([]) if i == self.mask_id else runs[-1].append(i)
    texts = [self._model.decode(run) for run in runs]
    parts = texts[:1] + [part for text in texts[1:] for part in ('[MASK]', text)]
    return ' '.join(part for part in parts if part)

  def save(self, folder: str | Path) -> Path:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / 'spm.model'
    write_whole(path, self._model.serialized_model_proto())
    return path


def load(
  path: str | Path, *, do_lower_case: bool = True, tokenize_chinese_chars: bool = True
) -> Tokenizer:
  """Reads a `vocab.txt` (one piece a line, the id is the line) or a SentencePiece `*.model`.

  The flags belong to vocab.txt, which does not say whether it is cased; a `.model` does. A
  tokenizer_config.json beside it is believed about the CJK characters. What it says of the casing
  must be what was asked for, since lower-casing into a cased vocabulary fails in silence.
  """
  path = Path(path)
  if path.is_dir():
    raise InputError(f'{path} is a folder; give the path of the vocab.txt or *.model file in it')
  if not path.exists():
    raise InputError(f'{path} does not exist; give the path of a vocab.txt or *.model file')
  data = path.read_bytes()
  if not data.strip():
    raise InputError(f'{path} is empty; was it cut off while it was copied?')
  if path.suffix == '.model':
    return SentencePiece(data, source=str(path))
  flags = {'do_lower_case': do_lower_case, 'tokenize_chinese_chars': tokenize_chinese_chars}
  flags |= _flags_beside(path)
  if flags['do_lower_case'] != do_lower_case:
    raise InputError(
      f'the tokenizer_config.json beside {path} says do_lower_case is {not do_lower_case}, but '
      f'{do_lower_case} was asked for; use do_lower_case={not do_lower_case}'
    )
  return WordPiece(_read_vocab(path, data), **flags, source=str(path))


def normalizer(do_lower_case: bool, tokenize_chinese_chars: bool = True) -> normalizers.Normalizer:
  """What WordPiece does to a text before it looks for words; training uses the same."""
  return normalizers.BertNormalizer(
    lowercase=do_lower_case,
    strip_accents=do_lower_case,
    handle_chinese_chars=tokenize_chinese_chars,
  )


def checked(texts: Sequence[str]) -> list[str]:
  """The texts, if they are strings; half characters (lone surrogates), which both libraries refuse,
  become U+FFFD, the mark of a broken character."""
  if isinstance(texts, str):
    raise InputError('expected a list of texts but got one string; put it in a list')
  for i, text in enumerate(texts):
    if not isinstance(text, str):
      raise InputError(f'text {i} is {type(text).__name__}, not str; decode or convert it first')
  return [t if t.isascii() else _SURROGATES.sub('\ufffd', t) for t in texts]


def _runs(text: str) -> list[str]:
  """What stands between blanks, which no rule of WordPiece reaches across; some are empty.

  A text of long runs, such as Chinese, is one run: little of it would come again.
  """
  runs = text.replace('\n', ' ').replace('\t', ' ').replace('\r', ' ').split(' ')
  return runs if len(text) < _LONG_RUNS * len(runs) else [text]


def _find_reserved(pieces: list[str], name: str, source: str) -> int:
  for spelling in (name, name.lower(), _OTHER_NAMES[name]):
    if spelling in pieces:
      return pieces.index(spelling)
  raise InputError(
    f'{source} has no {name} (nor {_OTHER_NAMES[name]}); '
    'a BERT vocabulary needs ' + ' '.join(RESERVED)
  )


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
  if not path.exists():
    return {}
  try:
    settings = json.loads(path.read_bytes())
    flags = {name: settings.get(name) for name in _FLAGS}
  except (ValueError, AttributeError) as e:
    raise InputError(f'{path} is not a JSON object; repair or remove it') from e
  flags = {name: value for name, value in flags.items() if value is not None}
  for name, value in flags.items():
    if not isinstance(value, bool):
      raise InputError(f'{path} says {name} is {value!r}; write true or false')
  return flags


def in_folder(folder: str | Path) -> Path | None:
  """The file that save() wrote into this folder, if there is one."""
  paths = (Path(folder) / name for name in ('vocab.txt', 'spm.model'))
  return next((path for path in paths if path.is_file()), None)


def load_folder(folder: str | Path, *, do_lower_case: bool = True) -> Tokenizer:
  """The tokenizer that save() wrote into this folder, or of a released model, with its own casing;
  do_lower_case is for a vocab.txt with nothing beside it that says."""
  folder = Path(folder).expanduser()
  path = in_folder(folder)
  if path is None:
    raise InputError(f'{folder} holds no vocabulary (vocab.txt or spm.model); is it a run?')
  return load(path, do_lower_case=_flags_beside(path).get('do_lower_case', do_lower_case))
