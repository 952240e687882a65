"""Reads the spm.model of a DeBERTa, converted as by Hugging Face: SentencePiece's own ids and its
normalisation, and [MASK], which the model lacks, as the next piece."""

import base64
from typing import Any

from bert_jax.errors import InputError
from bert_jax.files import Path
from bert_jax.text import files, protobuf
from bert_jax.tokenizers.base import Tokenizer
from bert_jax.tokenizers.rust_tokenizer import TOKEN_FLAGS, whole_content
from bert_jax.tokenizers.sentence_piece import processor
from bert_jax.tokenizers.tokenizer_json import from_content

MASK, CLASS, KIND = '[MASK]', 'DebertaV2Tokenizer', 'deberta-v2'
# Field numbers in sentencepiece_model.proto; _UNIGRAM is a value of _MODEL_TYPE.
_TRAINER, _MODEL_TYPE, _UNIGRAM = 2, 3, 1
_NORMALIZER, _CHARSMAP = 3, 2


def is_of(path: Path) -> bool:
  """Whether the files beside an spm.model name a DeBERTa's tokenizer."""
  said = files.json_of(path.with_name('tokenizer_config.json')).get('tokenizer_class')
  kind = files.json_of(path.with_name('config.json')).get('model_type')
  return str(said).removesuffix('Fast') == CLASS or (said is None and kind == KIND)


def read(path: Path, data: bytes) -> Tokenizer:
  """Makes a tokenizer of the content of a DeBERTa's spm.model; InputError if it is of another."""
  model = processor(data, str(path))
  pieces = [model.id_to_piece(i) for i in range(len(model))]
  parts = protobuf.messages(data)
  kind = dict(protobuf.fields(parts.get(_TRAINER, b''))).get(_MODEL_TYPE, _UNIGRAM)
  if MASK in pieces or pieces[model.unk_id()] != '[UNK]' or kind != _UNIGRAM:
    fault = f'{path} is no model of a {CLASS}, a unigram with [UNK] and without {MASK}'
    raise InputError(f'{fault}; is the tokenizer_config.json beside it theirs?')
  settings = files.json_of(path.with_name('tokenizer_config.json'))
  special = [i for i in range(len(model)) if model.is_unknown(i) or model.is_control(i)]
  named = [*((i, pieces[i]) for i in special), (len(model), MASK)]
  added = [{'id': i, 'content': piece, **TOKEN_FLAGS, 'special': True} for i, piece in named]
  steps: list[dict[str, Any]] = [{'type': 'Lowercase'}] if settings.get('do_lower_case') else []
  steps.append({'type': 'Strip', 'strip_left': True, 'strip_right': True})
  spec = protobuf.messages(parts.get(_NORMALIZER, b''))
  if table := spec.get(_CHARSMAP):
    steps.append({'type': 'Precompiled', 'precompiled_charsmap': base64.b64encode(table).decode()})
  steps.append({'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content': ' '})
  space = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always', 'split': True}
  words = [{'type': 'Punctuation', 'behavior': 'Isolated'}] * bool(settings.get('split_by_punct'))
  unigram = {'type': 'Unigram', 'unk_id': model.unk_id(), 'byte_fallback': False}
  unigram['vocab'] = [[piece, model.get_score(i)] for i, piece in enumerate(pieces)]
  normalizer = {'type': 'Sequence', 'normalizers': steps}
  words = {'type': 'Sequence', 'pretokenizers': [*words, space]}
  content = whole_content(added, normalizer, words, space, unigram)
  return from_content(path, content | {'searched': False})  # for control pieces, which no file adds
