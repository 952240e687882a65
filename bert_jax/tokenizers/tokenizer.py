"""The tokenizer of every vocabulary: the content of a tokenizer.json, run by Hugging Face's Rust
library `tokenizers`. WordPiece, SentencePiece and byte-level BPE are makers of such content.

Text is not searched for reserved pieces ("[MASK]", "<s>"), which are plain where they are typed.
Asking a vocabulary for the id of a reserved piece that it lacks is an InputError.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from bert_jax.errors import InputError, first_line
from bert_jax.files import Path, make_folder, write_whole
from bert_jax.text.sentences import UNSPACED
from bert_jax.tokenizers.reserved import (
  OTHER_NAMES,
  RESERVED,
  ROLES,
  SPELLINGS,
  Around,
  reserved_ids,
  template,
  usual_around,
)
from bert_jax.tokenizers.runs import MARK, IdsOfRuns, ends_at_blanks
from bert_jax.tokenizers.splitting import Splitting, splitting_of

BLANK = 'Ġ'  # how byte-level vocabularies write a space
_MARK_FOR_BLANK = '"pattern": {"String": " "}, "content": "▁"'  # Gemma's normalizer
_SURROGATES = re.compile('[\ud800-\udfff]')
_FIRST_UNSPACED, _LAST_UNSPACED = re.compile(f'[{UNSPACED}]'), re.compile(f'[{UNSPACED}]$')


class Encoding(NamedTuple):
  """One text as n pieces, without [CLS] and [SEP]."""

  ids: np.ndarray  # [n] int32
  offsets: np.ndarray  # [n, 2] int32, start and end in characters of the text as given
  word_starts: np.ndarray  # [n] bool, True at the first piece of a word


class Tokenizer:
  """A vocabulary and the encoding of texts as its ids.

  content: what a tokenizer.json holds.
  source: where the vocabulary comes from, for messages.
  names: {reserved piece: its name} of those that have names of their own.
  around: the ids that are put before, between and behind texts (reserved.Around). None: BERT's.

  pieces: all pieces, in the order of their ids.
  vocab_size: how many pieces there are.
  reserved: {reserved piece, such as [SEP]: its id}, of those that the vocabulary has.
  searched_tokens: the added tokens for which texts are searched, which are all but reserved ones.
  fingerprint: a hash. Two tokenizers with the same one give the same ids for every text.
  splitting: how texts are split into words, if the vocabulary is wholly BERT's; else None.
  blank_is_of_word: is a blank part of the word behind it?
  mask_takes_blank: is the blank before a mask part of the mask?
  add_prefix_space: is a blank put before each text?
  depends_on_text_before: do the ids of a sentence depend on the blank or line end before it?
  begin_ids: the ids that stand before a text that a model is to continue.
  between: how many [SEP]s stand between the texts of a pair.
  encloses: does a text stand between one [CLS], if the vocabulary has one, and one [SEP]?"""

  def __init__(
    self,
    content: Mapping[str, Any],
    *,
    source: str = 'the vocabulary',
    names: Mapping[str, str] | None = None,
    around: Around | None = None,
  ):
    self.source, self.names = source, dict(names or {})
    self.content = dict(content)
    self._added = sorted(content.get('added_tokens') or [], key=lambda token: token['id'])
    self._listed = listed(content)
    self.pieces = _pieces(self._listed, self._added, source)
    self.vocab_size = len(self.pieces)
    self._reserve(around)
    library_content = self._library_content()
    self._library = tokenizers.Tokenizer.from_str(json.dumps(library_content))
    self._library.encode_special_tokens = True
    known = [library_content, sorted(self.reserved.items()), self.begin_ids, self.between]
    self.fingerprint = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    self._set_words()
    spelt = {self.pieces[i].upper() for i in self.special_ids}
    is_plain = self.is_usual and not self.searched_tokens and spelt <= {*RESERVED}
    self.splitting: Splitting | None = splitting_of(content) if is_plain else None
    self.depends_on_text_before = self.splitting is None
    self._ids_of_runs = None
    if self.splitting:
      self._ids_of_runs = IdsOfRuns(self._library, self.splitting.tokenize_chinese_chars)
    elif not self.searched_tokens and ends_at_blanks(content):
      self._ids_of_runs = IdsOfRuns(self._library, characters_are_words=False)

  # ------------------------------------------------------------------------ reserved pieces

  def _reserve(self, around: Around | None) -> None:
    """Sets the ids of reserved pieces and what stands around texts."""
    known = reserved_ids(self.pieces)
    if self.content['model']['type'] != 'BPE':  # GPT's and others' have other special tokens
      for name in ('[PAD]', '[UNK]', '[SEP]'):
        if name not in known:
          raise InputError(
            f'{self.source} has no {name} (nor {OTHER_NAMES[name]}); a BERT vocabulary needs it.'
          )
    self.reserved = known | {role: self.pieces.index(x) for role, x in self.names.items()}
    usual = usual_around(self.pieces, self.reserved)
    self.around = around or usual
    self.is_usual = self.around == usual
    self.begin_ids = self.around.before
    before, between, behind = self.around
    self.between = max(1, len(between))
    has_cls = len(before) == 1 or not (before or '[CLS]' in self.reserved)
    self.encloses = has_cls and len(behind) == 1 and {*between} == {*behind}
    if self.encloses:
      self.reserved['[SEP]'] = behind[0]
    if len(before) == 1:
      self.reserved['[CLS]'] = before[0]
    # Of tokens added beside these, texts are searched for all but those with a reserved name.
    added = {token['content'] for token in self._added}
    self._hidden = {self.pieces[i] for i in self.special_ids} | (SPELLINGS - added)
    self.searched_tokens = added - self._hidden

  @property
  def special_ids(self) -> tuple[int, ...]:
    return tuple(sorted(set(self.reserved.values())))

  @property
  def ends(self) -> tuple[bool, bool]:
    """Whether a text of which a vector is made has a [CLS], which T5 lacks, and a [SEP], which
    GPT-2 lacks, too."""
    return bool(self.around.before), bool(self.around.behind)

  def check_encloses(self) -> None:
    """InputError if a file says that texts do not stand between one [CLS], unless the vocabulary
    has none, and one [SEP]."""
    if not self.encloses:
      shown = [' '.join(self.pieces[i] for i in ids) or 'nothing' for ids in self.around]
      raise InputError(
        f'{self.source} puts {shown[0]} before, {shown[1]} between and {shown[2]} behind the texts '
        'of a pair, and an encoder here reads [CLS] A [SEP] B [SEP]; mend its post_processor.'
      )

  def _reserved_id(self, name: str) -> int:
    if name not in self.reserved:
      raise InputError(
        f'{self.source} has no {name} (nor {OTHER_NAMES[name]}), '
        'and what is asked of this model needs it (a causal classifier does not that has '
        'table.ends=false).'
      )
    return self.reserved[name]

  @property
  def cls_id(self) -> int:
    return self._reserved_id('[CLS]')

  @property
  def sep_id(self) -> int:
    return self._reserved_id('[SEP]')

  @property
  def mask_id(self) -> int:
    return self._reserved_id('[MASK]')

  @property
  def unk_id(self) -> int:
    """The id of [UNK]; without one (byte-level), of a special piece, which no text produces."""
    return self.reserved.get('[UNK]', max(self.special_ids, default=0))

  @property
  def pad_id(self) -> int:
    """The id of [PAD], else unk_id: segment_ids say what is padding, so any piece will do."""
    return self.reserved.get('[PAD]', self.unk_id)

  # ------------------------------------------------------------------------ the library

  def _library_content(self) -> dict[str, Any]:
    """The tokenizer.json that texts are encoded with. Tokens that texts are not searched for get a
    blank before them in the model, which no word has, so no text can produce one; those that are
    not in the model are special, and the library is told to take no text for such."""

    def renamed(piece):
      return f' {piece}' if piece in self._hidden else piece

    model = dict(self.content['model'])
    if model['type'] == 'Unigram':
      model['vocab'] = [[renamed(piece), score] for piece, score in model['vocab']]
    else:
      model['vocab'] = {renamed(piece): i for piece, i in self._listed.items()}
      if 'unk_token' in model:
        model['unk_token'] = renamed(model['unk_token'])
    added = []
    for token in self._added:
      is_hidden = token['content'] in self._hidden
      if not (is_hidden and token['content'] in self._listed):
        added.append(token | {'special': is_hidden})
    kept = {name: self.content.get(name) for name in ('normalizer', 'pre_tokenizer', 'decoder')}
    return {'version': '1.0', **kept, 'model': model, 'added_tokens': added}

  def _set_words(self) -> None:
    """Sets for each piece whether words begin or end there, and whether it is a blank that goes
    with the next piece. In scripts without blanks each piece of a SentencePiece model is a word."""
    model, splitter = self.content['model'], json.dumps(self.content.get('pre_tokenizer'))
    prefix, suffix = model.get('continuing_subword_prefix'), model.get('end_of_word_suffix')
    normalizer = json.dumps(self.content.get('normalizer'), ensure_ascii=False)
    keeps_blanks, marks_words = '"ByteLevel"' in splitter, '"Metaspace"' in splitter
    marks_blanks = _MARK_FOR_BLANK in normalizer
    is_added = np.array([piece in self.searched_tokens for piece in self.pieces])
    begins = ends = is_added
    if keeps_blanks:
      begins = [piece.startswith(BLANK) for piece in self.pieces]
    elif marks_words or marks_blanks:
      begins = [bool(x[:1] == MARK or _FIRST_UNSPACED.match(x)) for x in self.pieces]
      ends = [bool(_LAST_UNSPACED.search(x)) for x in self.pieces]
    elif suffix:
      ends = [piece.endswith(suffix) for piece in self.pieces]
    elif model['type'] == 'WordPiece':
      begins = [not piece.startswith(prefix or '##') for piece in self.pieces]
    else:
      raise InputError(
        f'{self.source} is a {first_line(model["type"])} whose words cannot be told: read are '
        'WordPiece and what ByteLevel or Metaspace splits, or marks blanks or ends of words; '
        'put a vocab.txt or *.model beside it.'
      )
    self._begins_word = np.array(begins) | is_added
    self._ends_word = np.array(ends) | is_added
    self._blank = np.array([piece == MARK for piece in self.pieces])
    self.blank_is_of_word = keeps_blanks or (marks_blanks and not marks_words)
    self.add_prefix_space = '"add_prefix_space": true' in splitter
    takes_blank = {token['content'] for token in self._added if token.get('lstrip')}
    self.mask_takes_blank = (
      '[MASK]' in self.reserved and self.pieces[self.reserved['[MASK]']] in takes_blank
    )

  def normalized(self, text: str) -> str:
    """A text as it is before it is split into words."""
    normalizer = self._library.normalizer
    return normalizer.normalize_str(text) if normalizer else text

  @property
  def do_lower_case(self) -> bool:
    """Whether texts are lower-cased."""
    return self.normalized('A') == 'a'

  # ------------------------------------------------------------------------ texts to ids and back

  def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
    """Encodes texts with offsets and word starts, without [CLS] and [SEP]. Offsets leave out the
    blank that is part of a word, so a lone blank has empty ones."""
    texts = checked(texts)
    encodings = []
    for text, e in zip(texts, self._library.encode_batch(texts, add_special_tokens=False)):
      ids, offsets = np.array(e.ids, np.int32), np.array(e.offsets, np.int32).reshape(-1, 2)
      if self.depends_on_text_before and len(offsets):
        offsets[:, 0] = np.minimum(_next_letter(text)[offsets[:, 0]], offsets[:, 1])
        if self._ids_of_runs is not None:  # SentencePiece puts a blank before each text
          offsets[self._blank[ids], 1] = offsets[self._blank[ids], 0]
      starts = self.word_starts(ids, np.zeros(min(1, len(ids)), int))
      encodings.append(Encoding(ids, offsets, starts))
    return encodings

  def ids_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """The ids that encode_batch gives, [n] int32 for each text, several times as fast."""
    texts = checked(texts)
    if self._ids_of_runs is not None:
      return self._ids_of_runs.of_texts(texts)
    encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(e.ids, np.int32) for e in encodings]

  def words_batch(self, words: Sequence[str], after_blank: Sequence[bool]) -> list[np.ndarray]:
    """The ids of words that are encoded one by one. after_blank: whether each follows a blank."""
    if self.blank_is_of_word:
      pairs = zip(checked(words), after_blank, strict=True)
      words = [f' {word}' if follows else word for word, follows in pairs]
    return self.ids_batch(words)

  def word_starts(self, ids: np.ndarray, text_starts: np.ndarray) -> np.ndarray:
    """[n] bool, True where a word begins in ids [n] of texts, which begin at text_starts."""
    starts = self._begins_word[ids]
    starts[1:] |= self._ends_word[ids[:-1]]
    starts[1:] &= ~self._blank[ids[:-1]]
    starts[text_starts] = True
    return starts

  def decode(self, ids: Iterable[int]) -> str:
    """Turns ids into readable text; [PAD], [CLS] and [SEP] are left out, [MASK] is shown."""
    hidden = {self.reserved.get(name) for name in ('[PAD]', '[CLS]', '[SEP]')}
    shown = [int(i) for i in ids if i not in hidden]
    if self.splitting:
      return ' '.join(self.pieces[i] for i in shown).replace(' ##', '')
    runs = [[]]  # between masks, which the library would drop
    for i in shown:
      if i == self.reserved.get('[MASK]'):
        runs.append([])
      else:
        runs[-1].append(i)
    texts = [self._library.decode(run) for run in runs]
    if not self.blank_is_of_word:
      parts = texts[:1]
      for text in texts[1:]:
        parts += ['[MASK]', text]
      return ' '.join(part for part in parts if part)
    # A mask takes the blank before it; no text begins with a blank that was put there.
    whole = ' [MASK]'.join(texts)
    if self.add_prefix_space or not texts[0]:
      return whole.removeprefix(' ')
    return whole

  def shown(self, piece: int) -> str:
    """A piece as text, with its blank; as the vocabulary has it, if it is a part of a letter."""
    name = self.pieces[piece]
    if not self.blank_is_of_word or name in self._hidden:
      return name.replace(MARK, ' ')
    text = self._library.decode([piece])
    return name if '\ufffd' in text else text or name

  def encode_with_masks(self, text: str) -> np.ndarray:
    """The ids of a text in which "[MASK]" means the mask token, for fill-mask."""
    *before, last = text.split('[MASK]')
    if self.mask_takes_blank:
      before = [part.rstrip() for part in before]
    first, *rest = self.ids_batch([*before, last])
    mask = np.array([self.mask_id], np.int32)
    parts = [first]
    for ids in rest:
      parts += [mask, ids]
    return np.concatenate(parts)

  def pair(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ids of two texts for [CLS] first [SEP] second [SEP]; further [SEP]s end the first."""
    return np.concatenate([first, np.array(self.around.between[1:], np.int32)]), second

  # ------------------------------------------------------------------------ files

  def files(self) -> dict[str, str]:
    """{name: content} of the files to save: Google's vocab.txt of a vocabulary that is wholly
    BERT's, else a tokenizer.json; the last one is the one to give to load()."""
    settings: dict[str, Any] = {'tokenizer_class': 'PreTrainedTokenizerFast'}
    if self.splitting:
      # The casing is written first: without it, load would take the vocabulary for an uncased one.
      settings = {'tokenizer_class': 'BertTokenizer'} | self.splitting.to_json()
      name, whole = 'vocab.txt', ''.join(f'{piece}\n' for piece in self.pieces)
    else:
      for role, reserved in ROLES.items():
        if reserved in self.names:
          settings[f'{role}_token'] = self.names[reserved]
      name = 'tokenizer.json'
      whole = json.dumps(self.released(self.around), ensure_ascii=False, indent=2) + '\n'
    return {'tokenizer_config.json': json.dumps(settings, indent=2) + '\n', name: whole}

  def released(self, around: Around) -> dict[str, Any]:
    """The content of a tokenizer.json that puts these ids around texts."""
    post_processor = None
    if any(around):
      post_processor = template(self.pieces, around)
      if (self.content.get('pre_tokenizer') or {}).get('type') == 'ByteLevel':  # to trim offsets
        steps = [self.content['pre_tokenizer'], post_processor]
        post_processor = {'type': 'Sequence', 'processors': steps}
    return self.content | {'truncation': None, 'padding': None, 'post_processor': post_processor}

  def save(self, folder: str | Path) -> Path:
    """Writes the files and returns the path to give to load()."""
    make_folder(folder)
    written = self.files()
    for name, content in written.items():
      write_whole(Path(folder) / name, content)
    return Path(folder) / list(written)[-1]


_IS_SPACE = np.array([chr(i).isspace() for i in range(0x3002)])  # there are none behind these


def _next_letter(text: str) -> np.ndarray:
  """[len(text) + 1] int32: the place of the first character from each place on that is no space."""
  codes = np.frombuffer(text.encode('utf-32-le'), np.uint32)
  places = np.arange(len(text) + 1, dtype=np.int32)
  places[:-1][_IS_SPACE[np.minimum(codes, 0x3001)]] = len(text)
  return np.minimum.accumulate(places[::-1])[::-1]


def checked(texts: Sequence[str]) -> list[str]:
  """The texts as given; InputError if they are not strings.
  Lone surrogates (halves of characters), which the library refuses, become U+FFFD."""
  if isinstance(texts, str):
    raise InputError('expected a list of texts but got one string; put it in a list')
  for i, text in enumerate(texts):
    if not isinstance(text, str):
      raise InputError(f'text {i} is {type(text).__name__}, not str; decode or convert it first')
  return [t if t.isascii() else _SURROGATES.sub('\ufffd', t) for t in texts]


def listed(content: Mapping[str, Any]) -> dict[str, int]:
  """{piece: id} of the model of a tokenizer.json, without the added tokens."""
  vocabulary = (content.get('model') or {}).get('vocab') or {}
  if isinstance(vocabulary, list):  # [(piece, score), ...] in order
    return {piece: i for i, (piece, _) in enumerate(vocabulary)}
  return vocabulary


def _pieces(vocabulary: Mapping[str, Any], added: list[dict[str, Any]], source: str) -> list[str]:
  """All pieces in order of their ids, which must have no gap."""
  ids = {token['content']: token['id'] for token in added} | dict(vocabulary)
  pieces = sorted(ids, key=lambda piece: ids[piece])
  if [ids[piece] for piece in pieces] != list(range(len(pieces))):
    raise InputError(f'the ids of {source} do not count from 0 without a gap; it cannot be read.')
  return pieces
