"""Converts the `spiece.model` of ALBERT and FNet to a tokenizer.json, as Hugging Face does.

Both lower-case text and strip accents, if nothing says otherwise, before SentencePiece's own
normalisation, and never take a number and the comma behind it as one piece.
"""

import base64
from typing import Any

from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text import files, protobuf
from bert_jax.tokenizers.rust_tokenizer import TOKEN_FLAGS, whole_content
from bert_jax.tokenizers.sentence_piece import processor

CLASSES = {'albert': 'AlbertTokenizer', 'fnet': 'FNetTokenizer'}
# Field numbers in sentencepiece_model.proto; _UNIGRAM is a value of _MODEL_TYPE.
_TRAINER, _MODEL_TYPE, _UNIGRAM = 2, 3, 1
_NORMALIZER, _CHARSMAP = 3, 2
_AFTER_NUMBER = 100.0  # the extra cost of "1," over its two pieces


def content(path: Path, data: bytes) -> dict[str, Any]:
  """The content of the equivalent tokenizer.json. InputError unless the files beside it name one of
  CLASSES, since other models with a file of this name treat text otherwise."""
  settings = files.json_of(path.with_name('tokenizer_config.json'))
  kind = files.json_of(path.with_name('config.json')).get('model_type')
  name = str(settings.get('tokenizer_class') or CLASSES.get(kind)).removesuffix('Fast')
  if name not in CLASSES.values():
    fault = f'{path} is not known to be of an ALBERT or FNet'
    known = ' or '.join(CLASSES.values())
    raise InputError(f'{fault}; write its tokenizer_class ({known}) into tokenizer_config.json.')
  flags = {'do_lower_case': True, 'keep_accents': False}
  flags |= {flag: settings[flag] for flag in flags if settings.get(flag) is not None}
  model, parts = processor(data, str(path)), protobuf.messages(data)
  if dict(protobuf.fields(parts.get(_TRAINER, b''))).get(_MODEL_TYPE, _UNIGRAM) != _UNIGRAM:
    raise InputError(f'{path} is no unigram model, as those of {name} are; is it of another?')
  quoting = lambda mark: {'type': 'Replace', 'pattern': {'String': mark}, 'content': '"'}
  steps: list[dict[str, Any]] = [quoting('``'), quoting("''")]
  if not flags['keep_accents']:
    steps += [{'type': 'NFKD'}, {'type': 'StripAccents'}]
  if flags['do_lower_case']:
    steps.append({'type': 'Lowercase'})
  if table := protobuf.messages(parts.get(_NORMALIZER, b'')).get(_CHARSMAP):
    steps.append({'type': 'Precompiled', 'precompiled_charsmap': base64.b64encode(table).decode()})
  pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
  cost = lambda piece: _AFTER_NUMBER * (piece[-1:] == ',' and piece[-2:-1].isdigit())
  vocabulary = [[piece, model.get_score(i) - cost(piece)] for i, piece in enumerate(pieces)]
  special = [
    {'id': i, 'content': piece, **TOKEN_FLAGS, 'lstrip': piece == '[MASK]', 'special': True}
    for i, piece in enumerate(pieces)
    if model.is_unknown(i) or model.is_control(i)
  ]
  space = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always', 'split': True}
  words = {'type': 'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'}, space]}
  unigram = {'type': 'Unigram', 'unk_id': model.unk_id(), 'byte_fallback': False}
  normalizer = {'type': 'Sequence', 'normalizers': steps}
  whole = whole_content(special, normalizer, words, space, unigram | {'vocab': vocabulary})
  return whole | {'searched': False}  # for control pieces, which no file adds
