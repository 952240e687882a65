"""Converts the `spiece.model` of ALBERT and FNet to a tokenizer.json, as Hugging Face does.

Both lower-case text and strip accents, if nothing says otherwise, before SentencePiece's own
normalisation, and never take a number and the comma behind it as one piece.
"""

import base64
from pathlib import Path
from typing import Any

import sentencepiece

from bert_jax.errors import InputError
from bert_jax.text import files, protobuf

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
    known = ' and '.join(CLASSES.values())
    raise InputError(
      f'{path} is not known to be of an ALBERT or FNet; write its tokenizer_class ({known} are '
      'read) into a tokenizer_config.json beside it, or put its tokenizer.json there.'
    )
  flags = {'do_lower_case': True, 'keep_accents': False}
  flags |= {flag: settings[flag] for flag in flags if settings.get(flag) is not None}
  try:
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
  except RuntimeError as error:
    raise InputError(f'{path} is not a SentencePiece model; is it damaged or cut off?') from error
  parts = dict(protobuf.fields(data))
  if dict(protobuf.fields(parts.get(_TRAINER, b''))).get(_MODEL_TYPE, _UNIGRAM) != _UNIGRAM:
    raise InputError(f'{path} is no unigram model, as those of {name} are; is it of another?')
  steps = [_replace('``', '"'), _replace("''", '"')]
  if not flags['keep_accents']:
    steps += [{'type': 'NFKD'}, {'type': 'StripAccents'}]
  if flags['do_lower_case']:
    steps.append({'type': 'Lowercase'})
  if table := dict(protobuf.fields(parts.get(_NORMALIZER, b''))).get(_CHARSMAP):
    steps.append({'type': 'Precompiled', 'precompiled_charsmap': base64.b64encode(table).decode()})
  ids = range(model.get_piece_size())
  pieces = [model.id_to_piece(i) for i in ids]
  scores = [model.get_score(i) - _AFTER_NUMBER * _ends_a_number(pieces[i]) for i in ids]
  space = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always', 'split': True}
  return {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': [
      dict(
        id=i,
        content=pieces[i],
        single_word=False,
        lstrip=pieces[i] == '[MASK]',
        rstrip=False,
        normalized=False,
        special=True,
      )
      for i in ids
      if model.is_unknown(i) or model.is_control(i)
    ],
    'normalizer': {'type': 'Sequence', 'normalizers': steps},
    'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'}, space]},
    'post_processor': None,
    'decoder': space,
    'model': {
      'type': 'Unigram',
      'unk_id': model.unk_id(),
      'byte_fallback': False,
      'vocab': [list(pair) for pair in zip(pieces, scores, strict=True)],
    },
  }


def _replace(old, new):
  return {'type': 'Replace', 'pattern': {'String': old}, 'content': new}


def _ends_a_number(piece):
  return len(piece) > 1 and piece[-1] == ',' and piece[-2].isdigit()
