"""Makes tokenizers of the SentencePiece models that others release, as transformers 4 converts
them: the spiece.model of ALBERT, FNet and T5, the sentencepiece.bpe.model of XLM-R and CamemBERT,
and the spm.model of DeBERTa.

ALBERT and FNet lower-case text and strip accents, if nothing says otherwise, before SentencePiece's
own normalisation, and never take a number and the comma behind it as one piece. fairseq, by which
XLM-R and CamemBERT were trained, has its own special pieces first, and <mask> last. DeBERTa's
[MASK] is the piece after the last of its model, and so are T5's sentinels, <extra_id_0> the last.
"""

import base64
from typing import NamedTuple

from bert_jax.errors import InputError, quoted
from bert_jax.files import Path
from bert_jax.text import files, protobuf
from bert_jax.tokenizers.base import Tokenizer
from bert_jax.tokenizers.rust_tokenizer import TOKEN_FLAGS, whole_content
from bert_jax.tokenizers.sentence_piece import processor
from bert_jax.tokenizers.tokenizer_json import from_content

FILES = 'spiece.model', 'sentencepiece.bpe.model'
_DEBERTA, _T5 = 'DebertaV2Tokenizer', 'T5Tokenizer'
_MOST_SENTINELS = 10_000
# Field numbers in sentencepiece_model.proto; _UNIGRAM is a value of _MODEL_TYPE.
_TRAINER, _MODEL_TYPE, _UNIGRAM = 2, 3, 1
_NORMALIZER, _CHARSMAP = 3, 2
_AFTER_NUMBER = 100.0  # the extra cost of "1," over its two pieces
_FAIRSEQ = '<unk>', '<s>', '</s>'  # what a model begins with that has no further settings
_XLM_R = '<s>', '<pad>', '</s>', '<unk>'
_CAMEMBERT = '<s>NOTUSED', '<pad>', '</s>NOTUSED', '<unk>', '<unk>NOTUSED'
_OF_T5 = '<pad>', '</s>', '<unk>'


class Release(NamedTuple):
  """What a class of tokenizers makes of a SentencePiece model."""

  model_type: str  # the model_type of the config.json beside it
  begins: tuple[str, ...] = ()  # the first pieces of the model; (): any
  first: tuple[str, ...] = ()  # special pieces that come before them
  replaced: int = 0  # so many pieces of the model stand among `first` already
  mask: str = ''  # a piece that comes after all of the model; '': the model has its own
  # Ids before, between and behind the texts of a pair; (): as in a BERT.
  around: tuple[tuple[int, ...], ...] = ()


CLASSES = {
  'AlbertTokenizer': Release('albert'),
  'FNetTokenizer': Release('fnet'),
  'XLMRobertaTokenizer': Release('xlm-roberta', _FAIRSEQ, _XLM_R, 3, '<mask>'),
  'CamembertTokenizer': Release('camembert', _FAIRSEQ, _CAMEMBERT, 1, '<mask>'),
  _T5: Release('t5', _OF_T5, _OF_T5, 3, around=((), (1,), (1,))),
  _DEBERTA: Release('deberta-v2', ('[PAD]', '[CLS]', '[SEP]', '[UNK]'), mask='[MASK]'),
}


def is_of(path: Path) -> bool:
  """Whether a file is named as one of these models, and, if ours have that name, too, is one."""
  return path.name in FILES or path.name == 'spm.model' and _class_of(path) == _DEBERTA


def ids(path: Path) -> dict[str, int]:
  """{piece: id} of a released SentencePiece model; {} if the files beside it name no CLASSES."""
  name = _class_of(path)
  pairs = _vocabulary(path, name, _model(path, name)) if name in CLASSES else []
  return {str(piece): i for i, (piece, _) in enumerate(pairs)}


def read(path: Path) -> Tokenizer:
  """Makes a tokenizer of a released SentencePiece model. InputError unless the files beside it name
  one of CLASSES, since other models with a file of this name treat text otherwise."""
  if (name := _class_of(path)) not in CLASSES:
    fault = f'{path} is not known to be of a family that is read'
    known = ' or '.join(CLASSES)
    raise InputError(f'{fault}; write its tokenizer_class ({known}) into tokenizer_config.json.')
  model, release = _model(path, name), CLASSES[name]
  vocabulary = _vocabulary(path, name, model)
  special = [i for i in range(len(model)) if model.is_unknown(i) or model.is_control(i)]
  special = {*map(model.id_to_piece, special), *release.first, *_last(path, name)}
  flags = TOKEN_FLAGS | {'special': True}
  strips = lambda piece: 'mask' in piece.lower() and name != _DEBERTA
  pieces = {piece: i for i, (piece, _) in enumerate(vocabulary) if piece in special}
  added = [{'id': i, 'content': x, **flags, 'lstrip': strips(x)} for x, i in pieces.items()]
  before, after, words = _steps(path, name)
  parts = protobuf.messages(model.serialized_model_proto())
  if table := protobuf.messages(parts.get(_NORMALIZER, b'')).get(_CHARSMAP):
    table = base64.b64encode(table).decode()
    before = [*before, {'type': 'Precompiled', 'precompiled_charsmap': table}]
  space = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always', 'split': True}
  words = {'type': 'Sequence', 'pretokenizers': [*words, space]}
  unknown = release.first.index('<unk>') if release.first else model.unk_id()
  unigram = {'type': 'Unigram', 'unk_id': unknown, 'byte_fallback': False, 'vocab': vocabulary}
  normalizer = {'type': 'Sequence', 'normalizers': [*before, *after]}
  content = whole_content(added, normalizer, words, space, unigram)
  content |= {'around': release.around} if release.around else {}
  # No text is searched for a model's control pieces, as no file adds them; those of `first` are.
  return from_content(path, content if release.first else content | {'searched': False})


def _class_of(path):
  """The name of the tokenizer's class, as the files beside a model say."""
  said = files.json_of(path.with_name('tokenizer_config.json')).get('tokenizer_class')
  kind = files.json_of(path.with_name('config.json')).get('model_type')
  by_type = {release.model_type: name for name, release in CLASSES.items()}
  return str(said or by_type.get(kind)).removesuffix('Fast')


def _model(path, name):
  """The library's reader of the model; InputError if it is of another kind."""
  data = path.read_bytes()
  model, trainer = processor(data, str(path)), protobuf.messages(data).get(_TRAINER, b'')
  if dict(protobuf.fields(trainer)).get(_MODEL_TYPE, _UNIGRAM) != _UNIGRAM:
    raise InputError(f'{path} is no unigram model, as all of {name} are; is it of another?')
  release = CLASSES[name]
  found = tuple(model.id_to_piece(i) for i in range(len(release.begins)))
  last = _last(path, name)
  if found != release.begins or any(model.piece_to_id(x) != model.unk_id() for x in last):
    fault = f'{path} begins with {" ".join(found)}, and models of {name} with'
    says = f'{" ".join(release.begins)}' + f', without a {last[0]} of their own' * bool(last)
    raise InputError(f'{fault} {says}; is it of another?')
  return model


def _last(path, name):
  """The pieces that a class has behind its model's. T5's are sentinels, by default 100."""
  if name != _T5:
    return [mask] if (mask := CLASSES[name].mask) else []
  beside = path.with_name('tokenizer_config.json')
  number = files.json_of(beside).get('extra_ids', 100)
  if not isinstance(number, int) or not 0 <= number <= _MOST_SENTINELS:
    wanted = f'write how many sentinels it has, {_MOST_SENTINELS:,} at most'
    raise InputError(f'{beside} says extra_ids is {quoted(number)}; {wanted}.')
  return [f'<extra_id_{i}>' for i in reversed(range(number))]


def _vocabulary(path, name, model):
  """[[piece, score], ...] in order of their ids."""
  release, last = CLASSES[name], _last(path, name)
  pairs = [[model.id_to_piece(i), model.get_score(i)] for i in range(len(model))]
  if not (release.first or last):
    cost = lambda piece: _AFTER_NUMBER * (piece[-1:] == ',' and piece[-2:-1].isdigit())
    return [[piece, score - cost(piece)] for piece, score in pairs]
  first = [[piece, -100.0 if piece == '<unk>NOTUSED' else 0.0] for piece in release.first]
  return [*first, *pairs[release.replaced :], *([piece, 0.0] for piece in last)]


def _steps(path, name):
  """What a class does to a text: (the steps of a normalizer before SentencePiece's own, those after
  it, what splits words)."""
  settings = files.json_of(path.with_name('tokenizer_config.json'))
  blanks, lower = {'type': 'WhitespaceSplit'}, {'type': 'Lowercase'}
  if CLASSES[name].first:
    return [], [], [blanks]
  if name == _DEBERTA:
    strip = {'type': 'Strip', 'strip_left': True, 'strip_right': True}
    one_blank = {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content': ' '}
    marks = [{'type': 'Punctuation', 'behavior': 'Isolated'}]
    before = [lower, strip] if settings.get('do_lower_case') else [strip]
    return before, [one_blank], marks if settings.get('split_by_punct') else []
  flags = {'do_lower_case': True, 'keep_accents': False}
  flags |= {flag: settings[flag] for flag in flags if settings.get(flag) is not None}
  quoting = lambda mark: {'type': 'Replace', 'pattern': {'String': mark}, 'content': '"'}
  steps = [quoting('``'), quoting("''")]
  if not flags['keep_accents']:
    steps += [{'type': 'NFKD'}, {'type': 'StripAccents'}]
  return [*steps, lower] if flags['do_lower_case'] else steps, [], [blanks]
