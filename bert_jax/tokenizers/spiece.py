"""Makes tokenizers of the SentencePiece models that others release, as transformers converts them:
the spiece.model of ALBERT and FNet, and the sentencepiece.bpe.model of XLM-R and CamemBERT.

ALBERT and FNet lower-case text and strip accents, if nothing says otherwise, before SentencePiece's
own normalisation, and never take a number and the comma behind it as one piece. fairseq, by which
XLM-R and CamemBERT were trained, has its own special pieces first, and <mask> last.
"""

import base64
from typing import NamedTuple

from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text import files, protobuf
from bert_jax.tokenizers.base import Tokenizer
from bert_jax.tokenizers.rust_tokenizer import TOKEN_FLAGS, whole_content
from bert_jax.tokenizers.sentence_piece import processor
from bert_jax.tokenizers.tokenizer_json import from_content

FILES = 'spiece.model', 'sentencepiece.bpe.model'
# Field numbers in sentencepiece_model.proto; _UNIGRAM is a value of _MODEL_TYPE.
_TRAINER, _MODEL_TYPE, _UNIGRAM = 2, 3, 1
_NORMALIZER, _CHARSMAP = 3, 2
_AFTER_NUMBER = 100.0  # the extra cost of "1," over its two pieces
_BEGINNING = ['<unk>', '<s>', '</s>']  # of a model that is trained without further settings


class Release(NamedTuple):
  """What a class of tokenizers makes of a SentencePiece model."""

  model_type: str  # the model_type of the config.json beside it
  first: tuple[str, ...] = ()  # fairseq's special pieces; (): the model's pieces as they are
  replaced: int = 0  # so many pieces of the model stand among them already


CLASSES = {
  'AlbertTokenizer': Release('albert'),
  'FNetTokenizer': Release('fnet'),
  'XLMRobertaTokenizer': Release('xlm-roberta', ('<s>', '<pad>', '</s>', '<unk>'), 3),
  'CamembertTokenizer': Release(
    'camembert', ('<s>NOTUSED', '<pad>', '</s>NOTUSED', '<unk>', '<unk>NOTUSED'), 1
  ),
}


def ids(path: Path) -> dict[str, int]:
  """{piece: id} of a released SentencePiece model; {} if the files beside it name no CLASSES."""
  name = _class_of(path)
  pairs = _vocabulary(name, _model(path, name)) if name in CLASSES else []
  return {str(piece): i for i, (piece, _) in enumerate(pairs)}


def read(path: Path) -> Tokenizer:
  """Makes a tokenizer of a released SentencePiece model. InputError unless the files beside it name
  one of CLASSES, since other models with a file of this name treat text otherwise."""
  if (name := _class_of(path)) not in CLASSES:
    fault = f'{path} is not known to be of an ALBERT, FNet, XLM-R or CamemBERT'
    known = ' or '.join(CLASSES)
    raise InputError(f'{fault}; write its tokenizer_class ({known}) into tokenizer_config.json.')
  model, first = _model(path, name), CLASSES[name].first
  vocabulary = _vocabulary(name, model)
  special = [i for i in range(len(model)) if model.is_unknown(i) or model.is_control(i)]
  special = {*map(model.id_to_piece, special), *(first and (*first, '<mask>'))}
  flags = lambda piece: TOKEN_FLAGS | {'lstrip': 'mask' in piece.lower(), 'special': True}
  pieces = {piece: i for i, (piece, _) in enumerate(vocabulary) if piece in special}
  added = [{'id': i, 'content': piece, **flags(piece)} for piece, i in pieces.items()]
  steps = [] if first else _cleaning(path)
  parts = protobuf.messages(model.serialized_model_proto())
  if table := protobuf.messages(parts.get(_NORMALIZER, b'')).get(_CHARSMAP):
    steps.append({'type': 'Precompiled', 'precompiled_charsmap': base64.b64encode(table).decode()})
  space = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always', 'split': True}
  words = {'type': 'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'}, space]}
  unknown = first.index('<unk>') if first else model.unk_id()
  unigram = {'type': 'Unigram', 'unk_id': unknown, 'byte_fallback': False, 'vocab': vocabulary}
  normalizer = {'type': 'Sequence', 'normalizers': steps}
  content = whole_content(added, normalizer, words, space, unigram)
  # No text is searched for a model's control pieces, as no file adds them; fairseq's are added.
  return from_content(path, content if first else content | {'searched': False})


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
    raise InputError(f'{path} is no unigram model, as those of {name} are; is it of another?')
  begins = [model.id_to_piece(i) for i in range(3)]
  if CLASSES[name].first and begins != _BEGINNING:
    fault = f'{path} begins with {" ".join(begins)}, and models of {name} with <unk> <s> </s>'
    raise InputError(f'{fault}; is it of another?')
  return model


def _vocabulary(name, model):
  """[[piece, score], ...] in order of their ids."""
  pairs = [[model.id_to_piece(i), model.get_score(i)] for i in range(len(model))]
  if not (release := CLASSES[name]).first:
    cost = lambda piece: _AFTER_NUMBER * (piece[-1:] == ',' and piece[-2:-1].isdigit())
    return [[piece, score - cost(piece)] for piece, score in pairs]
  first = [[piece, -100.0 if piece == '<unk>NOTUSED' else 0.0] for piece in release.first]
  return [*first, *pairs[release.replaced :], ['<mask>', 0.0]]


def _cleaning(path):
  """What ALBERT's code does to a text, as steps of a normalizer."""
  flags = {'do_lower_case': True, 'keep_accents': False}
  settings = files.json_of(path.with_name('tokenizer_config.json'))
  flags |= {flag: settings[flag] for flag in flags if settings.get(flag) is not None}
  quoting = lambda mark: {'type': 'Replace', 'pattern': {'String': mark}, 'content': '"'}
  steps = [quoting('``'), quoting("''")]
  if not flags['keep_accents']:
    steps += [{'type': 'NFKD'}, {'type': 'StripAccents'}]
  return [*steps, {'type': 'Lowercase'}] if flags['do_lower_case'] else steps
