"""Converts between the config.json of a released model and fields of config.model.

The file is Hugging Face's, for one of the FAMILIES, or Google's bert_config.json.
An option that makes the model compute something else than ours is an error that names it: weights
that load and compute something else are worse than none. Other keys are ignored.

hidden_act gelu is the erf form (Hendrycks and Gimpel 2016), as Hugging Face reads Google's releases
too; google-research/bert computes its tanh approximation, which differs by 5e-4 at most.
"""

from collections.abc import Mapping
from typing import Any

from bert_jax.config import model as config_model
from bert_jax.config.check import checked
from bert_jax.convert import sentence_transformers
from bert_jax.convert.families import FAMILIES, record
from bert_jax.convert.families.record import KEYS, Description, Exported, ReleasedFamily
from bert_jax.errors import InputError, quoted
from bert_jax.files import Path
from bert_jax.text import files

# Fields of config.model that bear on training or speed, not on what a trained model answers.
TRAINING = config_model.settings_affecting('start') | {
  'hidden_dropout_prob',
  'attention_probs_dropout_prob',
  'attention_output_dropout_prob',
  'classifier_dropout_prob',
  'span_dropout_prob',
  'attention_implementation',
  'dtype',
  'scan_layers',
  'remat',
  'vocab_multiple',
}
ANSWERING = config_model.SETTINGS.keys() - TRAINING  # no config.json has the others
# {field of config.model on which answers depend: its value in a BERT}.
BERT: dict[str, Any] = {}
for _name, _field in config_model.SETTINGS.items():
  if _name in ANSWERING and _name not in record.SIZES:
    BERT[_name] = _field.default
# {option: the values that it may have, as in a BERT}, if a config.json says it.
FIXED: dict[str, Any] = {
  'is_decoder': (False,),
  'add_cross_attention': (False,),
  'is_encoder_decoder': (False,),
  'position_embedding_type': ('absolute',),
  'feed_forward_type': ('original',),
  'pruned_heads': ({},),
  'auto_map': (),
}
HEAD_SIZE = 'attention_head_size'


def is_model(folder: Path) -> bool:
  """Whether a folder holds a released model: a config.json that no run of bert_jax wrote."""
  return _file(folder) is not None


def _file(folder: Path) -> Path | None:
  """The config.json of a released model in a folder, or None."""
  for path in (folder / 'config.json', folder / 'bert_config.json'):
    if path.is_file():
      content = files.json_of(path)
      if 'objective' not in content and ('model_type' in content or 'hidden_size' in content):
        return path
  return None


def read(folder: Path) -> Description:
  """Reads a model's folder as a Description; InputError if it is of another kind."""
  path = _file(folder) or folder / 'config.json'
  content = files.json_of(path)
  kind = content.get('model_type', 'bert')  # Google's files do not say it
  if not isinstance(kind, str) or kind not in FAMILIES:
    known = ', '.join(sorted(FAMILIES))
    raise InputError(f'{path} says model_type {quoted(kind)}; weights are read of {known}.')
  family = FAMILIES[kind]
  try:
    description = _described(folder, path, family, content)
  except (AttributeError, LookupError, TypeError) as error:  # a value of another type
    raise InputError(f'{path} is no config.json of a {family.classes} ({error}).') from None
  for field, value in description.model.items():
    setting = config_model.SETTINGS[field]
    description.model[field] = checked(f'{path}: {field}', value, setting.type, setting.allowed)
  return description


def _described(folder, path, family, content):
  """The Description of a config.json; an error of Python if a value is of another type."""
  content = _in_our_words(path, family, content)
  model = dict(BERT | family.fields)
  for field in (*KEYS, *family.free, *family.derived):
    model[field] = content[field]
  act = content['hidden_act']
  model['hidden_act'] = record.ACTIVATIONS.get(act, act)
  model['tie_word_embeddings'] = content.get('tie_word_embeddings') is not False
  model |= sentence_transformers.read(folder).dense
  ours = content.get('bert_jax') or {}
  # Token types: 0, where a table of zeros was written, or 2.
  written = ours.get('model', {})
  model['type_vocab_size'] = written.get('type_vocab_size', model['type_vocab_size'])
  pad_id = content.get('pad_token_id')
  offset = family.offset(1 if pad_id is None else pad_id)
  if family.counts_offset:
    model['max_position_embeddings'] -= offset
  pooling = 'cls'
  if 'classifier_pooling' in family.fixed:
    pooling = content.get('classifier_pooling') or 'cls'
  labels = content.get('id2label') or {}
  return Description(
    family,
    model,
    labels=tuple(str(labels[str(i)]) for i in range(len(labels))),
    problem=content.get('problem_type') or '',
    architecture=str((content.get('architectures') or [''])[0]),
    offset=offset,
    ours=ours,
    pooling=pooling,
    begin=_begin(path, content) if family.has_decoder else '',
    activation=_activation(folder, content),
    **_writing(folder, family.has_decoder),
    cut_side=files.json_of(folder / 'tokenizer_config.json').get('truncation_side', 'right'),
  )


def _in_our_words(path, family, content):
  """The content of a config.json with our names and values, and defaults for what it lacks."""
  older = {key: content[other] for other, key in family.older.items() if other in content}
  content = older | content
  renamed = {family.keys.get(key, key): value for key, value in content.items()}
  content = {'hidden_act': 'gelu'} | record.USUAL | family.defaults | renamed
  for name, allowed in (FIXED | dict(family.fixed)).items():
    if allowed is not None and content.get(name) not in (None, *allowed):
      ours = f'our encoder has {" and ".join(map(repr, allowed)) or "none of it"} only'
      raise record.other_model(path, name, content[name], ours)
  for key, field in family.also.items():
    usual = content.get(field)
    if field in ANSWERING and content.get(key) not in (None, usual):
      raise record.other_model(path, key, content[key], f'here it is {field}, {quoted(usual)}')
  content = family.read(path, content)
  missing = [field for field in record.SIZES if content.get(field) is None]
  if missing:
    raise InputError(f'{path} does not say {", ".join(missing)}; add it.')
  if family.projects == 'full width':
    content['embedding_size'] = content['hidden_size']
  for field, other in family.same.items():
    if content[field] == content[other]:
      content[field] = 0
  _check_head_size(path, family, content)
  return content


def _check_head_size(path, family, content):
  """Sets attention_head_size to 0 where it is the usual one; InputError where it must be that."""
  key = HEAD_SIZE if HEAD_SIZE in content else 'head_dim'
  size = content.get(key)
  if size is None or size * content['num_attention_heads'] == content['hidden_size']:
    content[HEAD_SIZE] = 0
  elif HEAD_SIZE not in family.free:
    raise record.other_model(path, key, size, 'here it is hidden_size / num_attention_heads')


def _activation(folder, content):
  """The activation of a CrossEncoder of sentence-transformers, by its newest key, or ''."""
  settings = files.json_of(folder / sentence_transformers.PROMPTS)
  newer = (content.get('sentence_transformers') or {}).get('activation_fn')
  older = content.get('sbert_ce_default_activation_function')
  said = settings.get('activation_fn') or newer or older or ''
  if not said and settings.get('model_type') == 'CrossEncoder':
    usual = 'activation.Sigmoid' if len(content.get('id2label') or ()) == 1 else 'linear.Identity'
    said = sentence_transformers.TORCH + usual
  return said


def _begin(path, content):
  """The first piece of targets: 'sep' ([SEP], here </s>) as in a BART, or 'cls' ([CLS])."""
  begin, end = content.get('bos_token_id', 0), content.get('eos_token_id', 2)
  start = content.get('decoder_start_token_id', 2)
  ends = end if isinstance(end, list) else [end]
  if start not in (begin, *ends):
    ours = 'here targets begin with its bos_token_id or its eos_token_id'
    raise record.other_model(path, 'decoder_start_token_id', start, ours)
  return 'sep' if start in ends else 'cls'


def write(family: ReleasedFamily, model: Mapping[str, Any], offset: int) -> dict[str, Any]:
  """The keys of a config.json for these fields of config.model: the inverse of read."""
  usual = family.defaults.get('hidden_act', 'gelu')
  fields: dict[str, Any] = {'hidden_act': record.activation_name(model['hidden_act'], usual)}
  fields |= {field: model[field] for field in (*KEYS, *family.free)}
  if family.counts_offset:
    fields['max_position_embeddings'] += offset
  fields['type_vocab_size'] = fields['type_vocab_size'] or 2  # rows of zeros
  for field, other in family.same.items():
    fields[field] = model[field] or model[other]
  if HEAD_SIZE in fields:
    fields[HEAD_SIZE] = model[HEAD_SIZE] or model['hidden_size'] // model['num_attention_heads']
  fields |= {key: model[field] for key, field in family.also.items()}
  fields |= family.write(model)
  return {family.key_of(x): value for x, value in fields.items() if x not in family.unsaid}


# {field: the part of the parameters without which it has no effect}.
PART_OF = {
  'pooler': 'pooler',
  'token_pooler': 'pooler',
  'classifier_bias': 'classifier',
  'replaced_head': 'replaced',
  'mask_decoder': 'mlm',
}


def differences(family: ReleasedFamily, exported: Exported) -> dict[str, Any]:
  """{field of config.model: the value in a family} where a model to be written has another."""
  model = exported.model
  expected: dict[str, Any] = {x: (record.USUAL | family.defaults)[x] for x in family.unsaid}
  free = {*KEYS, *family.free, *family.derived, *sentence_transformers.FIELDS}
  free |= {'tie_word_embeddings', 'hidden_act'}
  expected |= {field: value for field, value in BERT.items() if field not in free}
  expected |= family.fields
  if family.projects:
    width = record.PROJECTIONS[family.projects]
    expected['embedding_size'] = width(model['embedding_size'], model['hidden_size'])
  out = {}
  for field, value in expected.items():
    has_effect = field not in family.without_effect
    if field in PART_OF:
      has_effect = has_effect and PART_OF[field] in exported.parts
    if field == HEAD_SIZE and model['hidden_size'] == model[field] * model['num_attention_heads']:
      has_effect = False  # what 0 means
    if has_effect and model.get(field, value) != value:
      out[field] = value
  return out


# ---- How a model writes --------------------------------------------------------------------------

# {setting of transformers' generate that is read: how it is called here}, see Description.writing.
WRITING = {
  'num_beams': 'beams',
  'eos_token_id': 'ends',
  'length_penalty': 'length_penalty',
  'early_stopping': 'early_stopping',
}


# {setting that changes what is written and is not read: the value that changes nothing}. Beams are
# read of a model with a decoder.
_WITHOUT = """do_sample no_repeat_ngram_size encoder_no_repeat_ngram_size min_length min_new_tokens
  max_new_tokens bad_words_ids suppress_tokens begin_suppress_tokens stop_strings sequence_bias
  exponential_decay_length_penalty penalty_alpha dola_layers force_words_ids"""
_ONE = 'num_beams num_beam_groups repetition_penalty encoder_repetition_penalty guidance_scale'
UNREAD: dict[str, Any] = {'forced_bos_token_id': None, 'max_length': 20}
UNREAD |= dict.fromkeys(_WITHOUT.split(), 0)
UNREAD |= dict.fromkeys(_ONE.split(), 1)


def _writing(folder: Path, beams: bool) -> dict[str, Any]:
  """Description.writing and .unread_writing, by generation_config.json, else by config.json. beams:
  is it written by beam search?"""
  found = {}
  for path in (folder / 'config.json', folder / 'generation_config.json'):
    found |= files.json_of(path)
  out = {ours: found[name] for name, ours in WRITING.items() if found.get(name) is not None}
  if 'ends' in out:
    ends = out['ends'] if isinstance(out['ends'], list) else [out['ends']]
    out['ends'] = tuple(ends)
  if 'early_stopping' in out:
    out['early_stopping'] = out['early_stopping'] is True
  if beams:
    found['num_beams'] = 1
  named = [x for x, usual in UNREAD.items() if found.get(x) not in (None, usual)]
  return {'writing': out, 'unread_writing': ', '.join(f'{name}={found[name]}' for name in named)}
