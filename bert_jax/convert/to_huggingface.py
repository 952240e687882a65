"""Writes a model as a folder that Hugging Face's libraries load, no tensor missing or left over.

It becomes a model of the first family that fits; one that no family can express is refused.
Settings without a key of Hugging Face's stand in config.json under `bert_jax`. If the class has a
pooler and the weights have none, zeros are written: it would be drawn at random.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bert_jax import __version__, models
from bert_jax import config as config_lib
from bert_jax.convert import (
  checksums,
  config_json,
  exported_tokenizers,
  from_huggingface,
  model_card,
  sentence_transformers,
)
from bert_jax.convert.families import FAMILIES
from bert_jax.convert.families.record import Exported, ReleasedFamily
from bert_jax.convert.fused_tensors import joined
from bert_jax.convert.parameter_names import copies, table
from bert_jax.convert.tensor_files import SAFETENSORS, write_safetensors
from bert_jax.errors import InputError, log
from bert_jax.files import Path, write_whole
from bert_jax.tasks import TASKS

if TYPE_CHECKING:
  from bert_jax.workdir.trained import Trained

NO_POOLER = 'The model has no pooler, and {} has one: its weights are zeros here, so use '
NO_POOLER += 'last_hidden_state, not pooler_output.'


def write(
  out: Path, trained: 'Trained', labels: Sequence[str], facts: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
  """Writes a model as the folder `out`; returns ({our path: name in the file}, {our path: why it is
  left out}). labels: of the classifier, in order. facts: of the run, for the card."""
  config, tokenizer = trained.config, trained.tokenizer
  model, task = models.ModelConfig(**config.model), TASKS[config.objective]
  flat = from_huggingface.flatten(jax.device_get(trained.params), model)
  parts = {path.partition('/')[0] for path in flat}
  head = _head(config, parts)
  family = _family(config.model, parts, tokenizer, flat.get(from_huggingface.TYPES), head)
  has_class = head.class_suffix not in family.no_class
  has_pooler = head.class_suffix.endswith(family.pooler)
  architecture = family.classes + (head.class_suffix if has_class else 'Model')
  if head.class_suffix in family.lacks:
    no = f'Hugging Face has no {architecture} that computes the same'
    raise InputError(f'{no}, so this cannot be written; use it with bert_jax.predict.')
  why = f'a {head.class_suffix} has none, it is for training alone'
  reasons = dict.fromkeys(head.training_only, why)
  if 'pooler' not in head.parameters and not has_pooler and not model.token_pooler:
    reasons['pooler'] = f'a {config.objective} model of theirs has no pooler'
  if head.class_suffix != 'Model':
    reasons['projection'] = 'it goes with a bare encoder alone'
  left_out = {path: reasons[part] for path in flat if (part := path.partition('/')[0]) in reasons}
  kept = {path: np.asarray(x, np.float32) for path, x in flat.items() if path not in left_out}
  offset = family.offset(tokenizer.pad_id)
  described = config_json.write(family, config.model, offset)
  tensors, names = _tensors(kept, family, head, model, offset, described.get('type_vocab_size'))
  dense = {x: tensors.pop(x) for x in [*tensors] if x.startswith(sentence_transformers.DENSE)}
  ours = _ours(config, head)
  if described.get('type_vocab_size', model.type_vocab_size) != model.type_vocab_size:
    ours['model'] = {'type_vocab_size': model.type_vocab_size}
  if lacks_pooler := has_pooler and not any(path.startswith('pooler/') for path in kept):
    ours['pooler'] = False
  settings = {'architectures': [architecture]} if has_class else {}
  settings |= {'model_type': family.name, **described}
  settings |= _settings(config, family, labels, tokenizer) | {'bert_jax': ours}
  out.mkdir(parents=True, exist_ok=True)
  write_safetensors(out / SAFETENSORS, tensors, {'format': 'pt', 'bert_jax': __version__})
  # A text is cut where it was in training, so that the answers are the same.
  longest = min(task.limit(config) or model.max_position_embeddings, model.max_position_embeddings)
  exported_tokenizers.write(out, tokenizer, family, longest, task.as_released(config).cut_side)
  no_pooler = NO_POOLER.format(architecture) if lacks_pooler else ''
  notes = [no_pooler] if no_pooler else []
  for text in notes:
    log.warning('%s', text)
  if head.class_suffix == 'Model':
    vector = trained.vector
    if not vector.other:
      vector = vector._replace(pooling=vector.pooling or 'mean')
    length = min(longest, config.data.seq_length)
    sentence_transformers.write(out, vector, model.hidden_size, length, dense, model.projection_act)
  facts = {**facts, 'casing': exported_tokenizers.casing(tokenizer), 'longest': longest}
  write_whole(out / 'README.md', model_card.write(config, architecture, head, notes, facts))
  if asked := dict(config_lib.flatten(config).get(task.writing, ())):
    said = {theirs: asked[ours] for theirs, ours in config_json.WRITING.items() if ours in asked}
    write_whole(out / 'generation_config.json', json.dumps(said, indent=2) + '\n')
  # Written last: a folder with a config.json is a whole model.
  text = json.dumps(settings, indent=2, ensure_ascii=False) + '\n'
  checksums.write(out, {'config.json': text})
  write_whole(out / 'config.json', text)
  return {path: names[path] for path in kept}, left_out


def _family(model, parts, tokenizer, types, head) -> ReleasedFamily:
  """The family for weights with these parts and this table of token types, or an InputError."""
  tells_apart = 'nsp' in parts or (types is not None and (types != types[0]).any())
  has_pooler = 'pooler' in parts and ('pooler' in head.parameters or head.class_suffix == 'Model')
  exported = Exported(model, parts, tokenizer, tells_apart, has_pooler)
  family = next(family for family in FAMILIES.values() if family.fits(exported))
  why_not = config_json.why_not(family, exported)
  if why_not:
    raise InputError(why_not)
  return family


def _tensors(kept, family, head, model, offset, type_rows):
  """Renames {our path: array}: ({name in the file: array}, {our path: name in the file}). offset:
  rows of their position table before position 0. type_rows: rows of their token type table."""
  if {'classifier', 'span'} & {*head.parameters}:
    family = family.named_as(head.class_suffix)
  places = table(family, vars(model))
  if unknown := sorted(kept.keys() - places.keys()):
    none = f'{unknown[0]} has no place in a {family.name} model of Hugging Face'
    raise InputError(f'{none}; start an objective without it from this encoder by init_from.')
  prefix = family.prefix if head.class_suffix == 'Model' else ''
  places = {path: x._replace(name=x.name.removeprefix(prefix)) for path, x in places.items()}
  buffers = family.buffers(vars(model))
  tensors = joined(kept, places) | {name.removeprefix(prefix): x for name, x in buffers.items()}
  names = {path: place.name for path, place in places.items()}
  for path in set(from_huggingface.ALL_POSITIONS) & kept.keys() if offset else ():
    tensors[names[path]] = np.pad(tensors[names[path]], ((offset, 0), (0, 0)))
  D, types = model.hidden_size, names.get(from_huggingface.TYPES)
  if types in tensors:
    tensors[types] = tensors[types][:type_rows]  # a RoBERTa's rows are equal
  elif types:
    tensors[types] = np.zeros((type_rows, model.embedding_width), np.float32)
  if head.class_suffix.endswith(family.pooler) and 'pooler/dense/kernel' not in kept:
    tensors[names['pooler/dense/kernel']] = np.zeros((D, D), np.float32)
    tensors[names['pooler/dense/bias']] = np.zeros(D, np.float32)
  if 'mlm/decoder' in kept:  # an untied decoder has its bias, which some have twice
    for copy, original in copies(family, places).items():
      tensors[copy] = tensors[original]
  return tensors, names


def _head(config, parts):
  """The record (Head) of the Hugging Face class for a model with these parts."""
  kind, known = f'{"causal " * config.model.causal}model', ', '.join(sorted(parts))
  heads = [x for x in TASKS[config.objective].heads if x.causal == config.model.causal]
  fault, fix = '', 'use it with bert_jax.predict'
  if config.model.position_embeddings == 'relative':
    fault = 'no class with such relative positions (it ships no Transformer-XL)'
  elif not heads or 'encoder' not in parts:
    fault = f'no class for a {kind} of {config.objective} with {known}'
    fix += ', or begin another by config.init_from'
  if fault:
    raise InputError(f'Hugging Face has {fault}, so this cannot be written; {fix}.')
  if 'nsp' in parts and 'pooler' not in parts:
    raise InputError('the next-sentence head stands on a pooler, and there is none to write.')
  if fitting := [head for head in heads if parts >= set(head.parameters)]:
    return fitting[0]
  nearest = min(heads, key=lambda head: len({*head.parameters} - parts))
  lacking = ', '.join(sorted({*nearest.parameters} - parts))
  fault = f'only {known} is there, and Hugging Face has {lacking} in a model for {config.objective}'
  raise InputError(f'{fault}; convert a whole one.')


def _ours(config, head) -> dict[str, Any]:
  """The settings of a run that config.json keeps under bert_jax; of a path only its last part."""
  ours: dict[str, Any] = {'version': __version__, 'objective': config.objective}
  ours['seq_length'] = config.data.seq_length
  if head.class_suffix != 'Model':  # a bare encoder was not trained here
    local = lambda x: model_card.without_places(x) if isinstance(x, str) else x
    for block in TASKS[config.objective].blocks:
      ours[block] = {field: local(x) for field, x in config[block].to_dict().items()}
    for block, _, field in (name.partition('.') for name in head.training_only.values() if name):
      ours[block][field] = 0.0  # the head is left out, and its term with it
  return ours


def _settings(config, family, labels, tokenizer):
  """The keys of config.json for the vocabulary and the head."""
  task = TASKS[config.objective]
  ids = {key: getattr(tokenizer, f'{role}_id') for key, role in family.ids.items()}
  if family.has_decoder:
    begin = config_lib.flatten(config).get(task.begin, 'cls')
    ids['decoder_start_token_id'] = getattr(tokenizer, f'{begin}_id')
    ids['forced_eos_token_id'] = None
  tied, pad_id = config.model.tie_word_embeddings, tokenizer.pad_id
  out = {'tie_word_embeddings': tied, 'pad_token_id': pad_id, **ids, 'dtype': 'float32'}
  released = task.as_released(config)
  pooled, has = released.pooling, family.fixed.get('classifier_pooling') or ('cls',)
  if pooled != 'cls' and pooled not in has:
    fault = f"the classifier reads {pooled} vectors, and Hugging Face's {family.classes} cls"
    raise InputError(f'{fault}, so this cannot be written; use it with bert_jax.predict.')
  if pooled != 'cls':
    out['classifier_pooling'] = pooled
  if released.problem:
    out['problem_type'] = released.problem
    labels = labels or (task.card(config).number,)
  if labels:
    out['id2label'] = {str(i): label for i, label in enumerate(labels)}
    out['label2id'] = {label: i for i, label in enumerate(labels)}
  return out
