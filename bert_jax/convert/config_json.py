"""Converts between the config.json of a released model and fields of config.model.

The file is Hugging Face's, for one of the FAMILIES, or Google's bert_config.json.
An option that makes the model compute something else than ours is an error that names it: weights
that load and compute something else are worse than none. Other keys are ignored.

hidden_act gelu is the erf form (Hendrycks and Gimpel 2016), as Hugging Face reads Google's releases
too; google-research/bert computes its tanh approximation, which differs by 5e-4 at most.
"""

from collections.abc import Collection, Mapping
from typing import Any

from bert_jax.config import model as config_model
from bert_jax.convert import sentence_transformers
from bert_jax.convert.families import FAMILIES, record
from bert_jax.convert.families.record import OTHERS, SIZES, Description, Exported, ReleasedFamily
from bert_jax.errors import InputError, quoted
from bert_jax.files import Path
from bert_jax.text import files

# Fields of config.model that bear on training or speed, not on what a trained model answers.
TRAINING = config_model.settings_affecting('start') | {
  'hidden_dropout_prob',
  'attention_probs_dropout_prob',
  'attention_output_dropout_prob',
  'attention_implementation',
  'dtype',
  'scan_layers',
  'remat',
  'vocab_multiple',
}
# {field of config.model on which answers depend: its value in a BERT}.
BERT = {
  name: field.default
  for name, field in config_model.SETTINGS.items()
  if name not in TRAINING and name not in SIZES
}
ANSWERING = config_model.SETTINGS.keys() - TRAINING
# {option: the values that it may have, as in a BERT}.
FIXED = dict.fromkeys(('is_decoder', 'add_cross_attention', 'is_encoder_decoder'), (False, None))
FIXED |= {'position_embedding_type': ('absolute', None), 'feed_forward_type': ('original', None)}
FIXED |= {'pruned_heads': ({}, None), 'auto_map': (None,)}
# {key or field whose value has a type, if it is there: (the type, the type in words)}.
TYPES: dict[str, tuple[Any, str]] = {}
for _kind, _in_words, _names in (
  (int, 'a whole number', 'pad_token_id embedding_size attention_window local_attention'),
  (int, 'a whole number', 'position_buckets max_relative_positions global_attn_every_n_layers'),
  (int, 'a whole number', f'{" ".join(SIZES)} num_decoder_layers num_key_value_heads'),
  (int, 'a whole number', 'relative_attention_num_buckets attention_head_size'),
  ((int, float), 'a number', f'{" ".join(OTHERS)} global_rope_theta local_rope_theta'),
  (str, 'a text', 'hidden_act model_type problem_type classifier_activation'),
  (list, 'a list', 'architectures layer_types'),
  (dict, 'an object', 'bert_jax id2label rope_parameters'),
  (bool, 'true or false', 'tie_word_embeddings norm_bias attention_bias mlp_bias head_bias'),
  (bool, 'true or false', 'decoder_bias embedding_scale'),
):
  TYPES |= dict.fromkeys(_names.split(), (_kind, _in_words))
HEAD_SIZE = 'attention_head_size'
LAYERS, MOST_LAYERS = ('num_hidden_layers', 'num_decoder_layers'), 10_000
MAY_BE_NULL = """pad_token_id problem_type architectures bert_jax id2label tie_word_embeddings
  layer_types rope_parameters local_rope_theta num_key_value_heads
  attention_head_size""".split()  # noqa: SIM905


def is_model(folder: Path) -> bool:
  """Whether a folder holds a released model: a config.json that no run of bert_jax wrote."""
  return _file(folder) is not None


def read(folder: Path) -> Description:
  """Reads a model's folder as a Description; InputError if it is of another kind."""
  path = _file(folder) or folder / 'config.json'
  content = files.json_of(path)
  _check_types(path, content)
  if (kind := content.get('model_type', 'bert')) not in FAMILIES:  # Google's files do not say it
    known = ', '.join(sorted(FAMILIES))
    raise InputError(f'{path} says model_type {quoted(kind)}; weights are read of {known}.')
  family = FAMILIES[kind]
  content = {family.older[key]: content[key] for key in family.older if key in content} | content
  _check_fixed(path, content, {**FIXED, **family.fixed})
  content = family.defaults | {family.keys.get(key, key): x for key, x in content.items()}
  for key, field in family.also.items():
    if field in ANSWERING and content.get(key) not in (None, ours := content.get(field)):
      raise record.other_model(path, key, content[key], f'here it is {field}, {quoted(ours)}')
  content = family.read(path, content)
  if family.projects == 'full width':
    content['embedding_size'] = content.get('hidden_size')
  content |= {field: 0 for field, x in family.same.items() if content[field] == content.get(x)}
  _check_types(path, content)
  width, heads = (content.get(name) for name in ('hidden_size', 'num_attention_heads'))
  said = content.get(key := HEAD_SIZE if HEAD_SIZE in content else 'head_dim')
  if said is None or (heads and said * heads == width):
    content[HEAD_SIZE] = 0
  elif HEAD_SIZE not in family.free:
    raise record.other_model(path, key, said, 'here it is hidden_size / num_attention_heads')
  act = content.get('hidden_act', 'gelu')
  _check_fixed(path, content, {'hidden_act': (*record.ACTIVATIONS,)})
  if missing := [name for name in SIZES if name not in content]:
    raise InputError(f'{path} does not say {", ".join(missing)}; add it.')
  said = *SIZES, *family.free, *family.derived
  model = BERT | family.fields | {field: content[field] for field in said}
  model |= {name: content.get(name, value) for name, value in OTHERS.items()} | {
    'hidden_act': record.ACTIVATIONS[act],
    'tie_word_embeddings': content.get('tie_word_embeddings') is not False,
  }
  model |= sentence_transformers.projection(folder)
  offset = family.offset(1 if content.get('pad_token_id') is None else content['pad_token_id'])
  if family.counts_offset:
    model['max_position_embeddings'] -= offset
  if not isinstance(architecture := (content.get('architectures') or [''])[0], str):
    raise InputError(f'{path} says architectures {quoted(architecture)}; write names.')
  ours = content.get('bert_jax') or {}
  if isinstance(saved := ours.get('model'), dict):  # 0, where a table of zeros was written, or 2
    model['type_vocab_size'] = saved.get('type_vocab_size', model['type_vocab_size'])
    _check_types(path, model)
  return Description(
    family,
    model,
    labels=_labels(path, content),
    problem=content.get('problem_type') or '',
    architecture=architecture,
    offset=offset,
    ours=ours,
    pooling='classifier_pooling' in family.fixed and content.get('classifier_pooling') or 'cls',
    begin=_begin(path, content) if family.has_decoder else '',
    writing=_writing(folder),
  )


def write(family: ReleasedFamily, model: Mapping[str, Any], offset: int) -> dict[str, Any]:
  """The keys of a config.json for these fields of config.model: the inverse of read."""
  usual = family.defaults.get('hidden_act', 'gelu')
  fields: dict[str, Any] = {'hidden_act': record.activation_name(model['hidden_act'], usual)}
  fields |= {field: model[field] for field in (*SIZES, *OTHERS, *family.free)}
  fields['type_vocab_size'] = fields['type_vocab_size'] or 2  # rows of zeros
  fields['max_position_embeddings'] += offset if family.counts_offset else 0
  fields |= {field: model[field] or model[other] for field, other in family.same.items()}
  if HEAD_SIZE in fields:
    fields[HEAD_SIZE] = model[HEAD_SIZE] or model['hidden_size'] // model['num_attention_heads']
  fields |= {key: model[field] for key, field in family.also.items()} | family.write(model)
  return {family.key_of(x): value for x, value in fields.items() if x not in family.unsaid}


def difference(family: ReleasedFamily, exported: Exported) -> tuple[str, Any] | None:
  """A field of config.model that a family cannot express, (field, the family's value); or None."""
  model = exported.model
  said = {*SIZES, *OTHERS, *family.free, *family.derived, 'tie_word_embeddings', 'hidden_act'}
  said |= {*sentence_transformers.FIELDS}
  expected = {field: value for field, value in BERT.items() if field in ANSWERING - said}
  expected |= family.fields | {x: (OTHERS | family.defaults)[x] for x in family.unsaid}
  idle = {'pooler': 'pooler', 'token_pooler': 'pooler', 'classifier_bias': 'classifier'}
  idle |= {'replaced_head': 'replaced', 'mask_decoder': 'mlm'}
  idle = {field for field, part in idle.items() if part not in exported.parts}
  if model.get(HEAD_SIZE, 0) * model['num_attention_heads'] == model['hidden_size']:
    idle.add(HEAD_SIZE)  # what 0 means
  for field, value in expected.items():
    if field not in (*family.without_effect, *idle) and field in model and model[field] != value:
      return field, value
  width = record.PROJECTIONS[family.projects](model['embedding_size'], model['hidden_size'])
  if model['embedding_size'] != width:
    return 'embedding_size', width
  return family.refusal(exported)


# {setting of transformers' generate without an argument here: the value that changes nothing}.
GENERATION = dict(no_repeat_ngram_size=0, encoder_no_repeat_ngram_size=0, min_length=0)
GENERATION |= dict(min_new_tokens=0, max_length=20, do_sample=False, num_beam_groups=1, typical_p=1)
_TOKENS = 'forced_bos_token_id', 'bad_words_ids', 'suppress_tokens', 'begin_suppress_tokens'
_TOKENS += 'forced_eos_token_id', 'stop_strings', 'sequence_bias', 'force_words_ids'
_TOKENS += 'exponential_decay_length_penalty', 'constraints', 'dola_layers', 'watermarking_config'
GENERATION |= dict.fromkeys((*_TOKENS, 'max_new_tokens', 'penalty_alpha', 'guidance_scale'))
GENERATION |= dict(encoder_repetition_penalty=1, renormalize_logits=False, token_healing=False)
# {setting of theirs that is read: how it is called here}, see Description.writing.
WRITING = {'repetition_penalty': 'repetition_penalty', 'num_beams': 'beams', 'eos_token_id': 'ends'}
WRITING |= {name: name for name in ('length_penalty', 'early_stopping')}


def _generation(folder: Path, names: Collection[str]) -> dict[str, Any]:
  """The named settings of generation that a folder has; generation_config.json comes first."""
  asked = {}
  for path in (folder / 'config.json', folder / 'generation_config.json'):
    content = files.json_of(path)
    asked |= {name: content[name] for name in names if content.get(name) is not None}
  return asked


def _writing(folder: Path) -> dict[str, Any]:
  said = {WRITING[name]: value for name, value in _generation(folder, WRITING).items()}
  if 'ends' in said:
    ends = said['ends'] if isinstance(said['ends'], list) else [said['ends']]
    if not all(isinstance(i, int) for i in ends):
      raise InputError(f'{folder} says eos_token_id is {quoted(ends)}; write numbers of pieces.')
    said['ends'] = tuple(ends)
  if 'early_stopping' in said:
    said['early_stopping'] = said['early_stopping'] is True  # 'never' is named as not read
  return said


def generation_not_read(folder: Path) -> list[str]:
  """The generation settings of a released model that are ignored here: ['min_length=56', ...]."""
  asked = _generation(folder, [*GENERATION, 'early_stopping'])
  known = GENERATION | {'early_stopping': asked.get('early_stopping') is True}
  return [f'{name}={value!r:.40}' for name, value in asked.items() if value != known[name]]


def _begin(path, content):
  """The first piece of targets: 'sep' ([SEP], here </s>) as in a BART, or 'cls' ([CLS])."""
  begin, end = content.get('bos_token_id', 0), content.get('eos_token_id', 2)
  start = content.get('decoder_start_token_id', 2)
  ends = end if isinstance(end, list) else [end]
  if start not in (begin, *ends):
    ours = 'here targets begin with its bos_token_id or its eos_token_id'
    raise record.other_model(path, 'decoder_start_token_id', start, ours)
  return 'sep' if start in ends else 'cls'


def _check_fixed(path, content, fixed):
  """InputError for an option with a value that our encoder does not have."""
  for name, allowed in fixed.items():
    if allowed and content.get(name, allowed[0]) not in allowed:
      known = [repr(value) for value in allowed if value is not None]
      ours = f'{" and ".join(known)} only' if known else 'none of it'
      raise record.other_model(path, name, content[name], f'our encoder has {ours}')


def _check_types(path, content):
  for name, value in content.items():
    if name not in TYPES or (value is None and name in MAY_BE_NULL):
      continue
    kind, wanted = TYPES[name]
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if fits and name in SIZES and value < (name != 'type_vocab_size'):
      fits, wanted = False, 'a positive number'
    elif fits and name in LAYERS and value > MOST_LAYERS:  # before a table of them is made
      fits, wanted = False, f'{MOST_LAYERS:,} at most'
    if not fits:
      raise InputError(f'{path} says {name} is {quoted(value)}; write {wanted}.')


def _labels(path, content):
  labels = content.get('id2label') or {}
  try:
    labels = {int(i): str(label) for i, label in labels.items()}
    return tuple(labels[i] for i in range(len(labels)))
  except (ValueError, KeyError, AttributeError):
    raise InputError(f'id2label in {path} does not count from 0; number the labels.') from None


def _file(folder: Path) -> Path | None:
  """The config.json of a released model in a folder, or None."""
  for path in (folder / 'config.json', folder / 'bert_config.json'):
    if path.is_file():
      content = files.json_of(path)
      if 'objective' not in content and ('model_type' in content or 'hidden_size' in content):
        return path
  return None
