"""Makes of a `*.model` of SentencePiece the content of a tokenizer.json, as transformers 4 does.

Models are read that are trained here (sentence_piece_trainer.py), and those of CLASSES, released by
others: the spiece.model of ALBERT, FNet and T5, the sentencepiece.bpe.model of XLM-R and CamemBERT,
the spm.model of DeBERTa.

ALBERT and FNet lower-case text and strip accents, if nothing says otherwise, before SentencePiece's
own normalisation, and never take a number and the comma behind it as one piece. fairseq, by which
XLM-R and CamemBERT were trained, has its own special pieces first, and <mask> last. DeBERTa's
[MASK] is the piece after the last of its model, and so are T5's sentinels, <extra_id_0> the last.
"""

import base64
import re
from typing import Any, NamedTuple

import sentencepiece

from bert_jax.errors import InputError, quoted
from bert_jax.files import Path
from bert_jax.text import files, protobuf
from bert_jax.tokenizers import classes
from bert_jax.tokenizers.reserved import RESERVED, Around, reserved_ids
from bert_jax.tokenizers.runs import SPACE
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece import special_token

FILES = 'spiece.model', 'sentencepiece.bpe.model', 'spm.model'
# Field numbers in sentencepiece_model.proto; _UNIGRAM is a value of _MODEL_TYPE.
_TRAINER, _MODEL_TYPE, _UNIGRAM = 2, 3, 1
_NORMALIZER, _CHARSMAP = 3, 2
_AFTER_NUMBER = 100.0  # the extra cost of "1," over its two pieces
_FAIRSEQ = '<unk>', '<s>', '</s>'  # what a model begins with that has no further settings
_XLM_R = '<s>', '<pad>', '</s>', '<unk>'
_CAMEMBERT = '<s>NOTUSED', '<pad>', '</s>NOTUSED', '<unk>', '<unk>NOTUSED'
_OF_T5 = '<pad>', '</s>', '<unk>'
_SENTINELS = tuple(f'<extra_id_{i}>' for i in reversed(range(100)))


class Release(NamedTuple):
  """What a class of tokenizers makes of a SentencePiece model."""

  begins: tuple[str, ...] = ()  # the first pieces of the model; (): any
  first: tuple[str, ...] = ()  # special pieces that come before them
  replaced: int = 0  # so many pieces of the model stand among `first` already
  last: tuple[str, ...] = ()  # pieces that come after all of the model
  around: Around | None = None  # None: as in a BERT


# By class of tokenizers, see classes.kind_of.
CLASSES = {
  'albert': Release(),
  'fnet': Release(),
  'xlmroberta': Release(_FAIRSEQ, _XLM_R, 3, ('<mask>',)),
  'camembert': Release(_FAIRSEQ, _CAMEMBERT, 1, ('<mask>',)),
  't5': Release(_OF_T5, _OF_T5, 3, _SENTINELS, Around((), (1,), (1,))),
  'debertav2': Release(('[PAD]', '[CLS]', '[SEP]', '[UNK]'), last=('[MASK]',)),
}
OURS = Release()  # and of others, who train their models as SentencePiece's documentation says

_LOWER = {'type': 'Lowercase'}
_STRIP = {'type': 'Strip', 'strip_left': True, 'strip_right': True}
_ONE_BLANK = {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content': ' '}


def read_model(path: Path) -> Tokenizer:
  """Makes a tokenizer of a SentencePiece model. InputError if its name is that of a released one
  and the files beside it name none of CLASSES, since others treat text otherwise."""
  content, release = content_of(path)
  return Tokenizer(content, source=str(path), around=release.around)


def content_of(path: Path) -> tuple[dict[str, Any], Release]:
  """(the content of a tokenizer.json, the Release) of the model at a path."""
  name = classes.kind_of(path)
  if path.name not in FILES or (path.name == 'spm.model' and name != 'debertav2'):
    return model_content(path.read_bytes(), str(path)), OURS
  if name not in CLASSES:
    raise InputError(
      f'{path} is not known to be of a family that is read; write its tokenizer_class, such as '
      'AlbertTokenizer or T5Tokenizer, into tokenizer_config.json.'
    )
  release = CLASSES[name]
  model, kind, charsmap = _parsed(path.read_bytes(), str(path))
  begins = tuple(model.id_to_piece(i) for i in range(len(release.begins)))
  if kind != _UNIGRAM or begins != release.begins:
    raise InputError(
      f'{path} is no model of {name}, which is a unigram model that begins with '
      f'{" ".join(release.begins) or "any piece"}; is it of another?'
    )
  vocabulary = _with_special(model, release)
  special = {*release.first, *release.last, *RESERVED, '<pad>', '<unk>'}
  added = []
  for i, (piece, _) in enumerate(vocabulary):
    if piece in special:
      takes_blank = 'mask' in piece.lower() and name != 'debertav2'
      added.append(special_token(i, piece, lstrip=takes_blank))
  settings = files.json_of(path.with_name('tokenizer_config.json'))
  if name == 'debertav2':
    before = [_LOWER, _STRIP] if settings.get('do_lower_case') else [_STRIP]
    steps, splitters = [*before, *charsmap, _ONE_BLANK], [SPACE]
    if settings.get('split_by_punct'):
      splitters = [{'type': 'Punctuation', 'behavior': 'Isolated'}, SPACE]
  else:
    before = [] if release.first else _of_albert(settings)
    steps, splitters = [*before, *charsmap], [{'type': 'WhitespaceSplit'}, SPACE]
  content = {
    'version': '1.0',
    'added_tokens': added,
    'normalizer': {'type': 'Sequence', 'normalizers': steps},
    'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': splitters},
    'decoder': SPACE,
    'model': {
      'type': 'Unigram',
      'unk_id': release.first.index('<unk>') if release.first else model.unk_id(),
      'byte_fallback': False,
      'vocab': vocabulary,
    },
  }
  return content, release


def _with_special(model: Any, release: Release) -> list[list[Any]]:
  """[[piece, score], ...] of a released model with its special pieces."""
  vocabulary = [[model.id_to_piece(i), model.get_score(i)] for i in range(len(model))]
  if release.first or release.last:
    first = [[x, -100.0 if x == '<unk>NOTUSED' else 0.0] for x in release.first]
    last = [[piece, 0.0] for piece in release.last]
    return first + vocabulary[release.replaced :] + last
  for pair in vocabulary:
    if re.search(r'\d,$', pair[0]):
      pair[1] -= _AFTER_NUMBER
  return vocabulary


def _of_albert(settings: dict[str, Any]) -> list[dict[str, Any]]:
  """What ALBERT and FNet do to a text before SentencePiece's own steps."""
  steps: list[dict[str, Any]] = []
  for mark in ('``', "''"):
    steps.append({'type': 'Replace', 'pattern': {'String': mark}, 'content': '"'})
  if not settings.get('keep_accents'):
    steps += [{'type': 'NFKD'}, {'type': 'StripAccents'}]
  if settings.get('do_lower_case') is not False:
    steps.append(_LOWER)
  return steps


def table_of(path: Path, known: dict[str, int]) -> dict[str, dict[str, float]]:
  """{'id': {piece: id}, 'score': {piece: score}} of the plain pieces of a model. Ids are counted
  from the `known` one of the first piece, since classes put special pieces before it."""
  model, _, _ = _parsed(path.read_bytes(), str(path))
  ids, scores, shift = {}, {}, 0
  for i in range(len(model)):
    piece = model.id_to_piece(i)
    if model.is_control(i) or model.is_unknown(i):
      continue
    if not ids:
      shift = known.get(piece, i) - i
    ids[piece] = i + shift
    if not re.search(r'\d,$', piece):  # see _with_special
      scores[piece] = model.get_score(i)
  return {'id': ids, 'score': scores}


def model_content(data: bytes, source: str = 'the model') -> dict[str, Any]:
  """The content of a tokenizer.json from the bytes of a model that is trained here, or likewise."""
  model, kind, charsmap = _parsed(data, source)
  vocabulary = [[model.id_to_piece(i), model.get_score(i)] for i in range(len(model))]
  reserved = set(reserved_ids([piece for piece, _ in vocabulary]).values())
  for i in range(len(model)):
    if model.is_control(i) and i not in reserved:
      vocabulary[i][0] = f' {vocabulary[i][0]}'  # which no text produces
  content: dict[str, Any] = {
    'version': '1.0',
    'added_tokens': [special_token(i, vocabulary[i][0]) for i in sorted(reserved)],
    'normalizer': {'type': 'Sequence', 'normalizers': [*charsmap, _ONE_BLANK, _STRIP]},
    'pre_tokenizer': SPACE,
    'decoder': SPACE,
  }
  if kind == _UNIGRAM:
    content['model'] = {
      'type': 'Unigram',
      'unk_id': model.unk_id(),
      'byte_fallback': False,
      'vocab': vocabulary,
    }
  else:
    content['model'] = {
      'type': 'BPE',
      'unk_token': vocabulary[model.unk_id()][0],
      'fuse_unk': True,
      'byte_fallback': False,
      'vocab': {piece: i for i, (piece, _) in enumerate(vocabulary)},
      'merges': _merges(vocabulary),
    }
  _check_ids(content, model, source)
  return content


def _merges(vocabulary: list[list[Any]]) -> list[list[str]]:
  """The merges of a BPE model: every way to make a piece of two others, in the order of pieces."""
  ids = {piece: i for i, (piece, _) in enumerate(vocabulary)}
  merges = []
  for piece, score in vocabulary:
    ways = []
    for cut in range(1, len(piece)):
      left, right = piece[:cut], piece[cut:]
      if left in ids and right in ids:
        ways.append((ids[left], ids[right], score, [left, right]))
    merges += sorted(ways)
  merges.sort(key=lambda way: -way[2])
  return [pair for *_, pair in merges]


# Lines by which a converted model is compared with the library's reader of it.
_SAMPLE = 'The Café, 2  doors: "naïve"', 'Straße; Жёлтый дом — λόγος', '河流 and 東京タワー123 ﬁ ½'


def _check_ids(content: dict[str, Any], model: Any, source: str) -> None:
  """InputError if the model encodes texts by settings that are not read here."""
  tokenizer = Tokenizer(content, source=source)
  for text, ids in zip(_SAMPLE, tokenizer.ids_batch(_SAMPLE)):
    if ids.tolist() != model.encode(text):
      raise InputError(
        f'{source} gives other ids for {quoted(text)} than SentencePiece does by its settings, '
        "which are not read here; train it with SentencePiece's defaults."
      )


def _parsed(data: bytes, source: str) -> tuple[Any, Any, list[dict[str, Any]]]:
  """(the library's reader of a model, the number of its kind, its normalisation as steps of a
  tokenizer.json); InputError if the bytes are none."""
  try:
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
  except RuntimeError as e:
    raise InputError(f'{source} is not a SentencePiece model; is it damaged or cut off?') from e
  parts = protobuf.messages(data)
  trainer = dict(protobuf.fields(parts.get(_TRAINER, b'')))
  kind = trainer.get(_MODEL_TYPE, _UNIGRAM)
  charsmap = protobuf.messages(parts.get(_NORMALIZER, b'')).get(_CHARSMAP)
  if not charsmap:
    return model, kind, []
  encoded = base64.b64encode(charsmap).decode()
  return model, kind, [{'type': 'Precompiled', 'precompiled_charsmap': encoded}]
