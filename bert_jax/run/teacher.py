"""Loads the teacher of a run, checks that it fits, and makes the taught objective."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import models
from bert_jax.convert import hub
from bert_jax.errors import InputError, about, log
from bert_jax.files import Path
from bert_jax.objectives.base import Objective
from bert_jax.tasks import TASKS, teaching
from bert_jax.tokenizers import Tokenizer
from bert_jax.workdir import manifest, trained


def folder_of(config: ConfigDict) -> Path:
  """The folder of the teacher of a run; InputError if it is not there."""
  with about('config.teacher'):
    return hub.folder(config.teacher)


def student_sizes(config: ConfigDict, sizes: Mapping[str, Any]) -> dict[str, Any]:
  """The sizes of a student that starts from layers of a model: {field of config.model: value}."""
  every = teaching.every_layer(config)
  if sizes.get('share_layers'):
    raise InputError(f'{config.teacher} shares layers; set distillation.every_layer=0.')
  sizes = {**sizes, 'num_hidden_layers': -(-sizes['num_hidden_layers'] // every)}
  if TASKS[config.objective].reads_corpus:
    del sizes['type_vocab_size']
  return sizes


def lesson(
  config: ConfigDict, objective: Objective, tokenizer: Tokenizer
) -> Callable[[Objective], Objective]:
  """What makes an objective such as this one a taught one by config.teacher, if there is one;
  InputError unless the two fit."""
  if not teaching.has_teacher(config):
    return lambda student: student
  source = trained.load(folder_of(config))
  if source.tokenizer.fingerprint != tokenizer.fingerprint:
    raise InputError(
      f'the teacher {config.teacher} has another vocabulary than this run; give the run its '
      'vocabulary (tokenizer.path).'
    )
  model = _model_of(config, source.config.model)
  theirs = TASKS[source.config.objective].objective(source.config, tokenizer)
  teacher = teaching.Teacher(source.config, theirs, model, jax.device_get(source.params))
  taught: Any = TASKS[config.objective].taught  # families that cannot be taught lack the field
  learned = taught(config, objective, teacher)
  log.info(
    'teacher: %s, %d layers of %d', config.teacher, model.num_hidden_layers, model.hidden_size
  )
  fingerprint = manifest.fingerprint(learned.params)

  def taught_objective(student):
    return learned.kind(
      student, learned.teacher, learned.params, fingerprint, **teaching.settings(config)
    )

  return taught_objective


def taught(config: ConfigDict, objective: Objective, tokenizer: Tokenizer) -> Objective:
  """The objective of a config, taught by config.teacher; see `lesson`."""
  return lesson(config, objective, tokenizer)(objective)


def _model_of(config, theirs):
  """The ModelConfig of the teacher with the student's dtype, if it can read the student's rows."""
  theirs = theirs.copy_and_resolve_references()
  theirs.dtype = config.model.dtype
  theirs.attention_implementation = config.model.attention_implementation
  theirs.remat = 'none'
  longest = TASKS[config.objective].limit(config) or config.data.seq_length
  if models.has_position_table(theirs) and longest > theirs.max_position_embeddings:
    raise InputError(
      f'the teacher {config.teacher} reads {theirs.max_position_embeddings} tokens at most and '
      f'this run has up to {longest}; lower data.seq_length, or name another teacher.'
    )
  return models.ModelConfig(**theirs)


def layers_for(config: ConfigDict, params: Mapping[str, Any]) -> dict[str, Any]:
  """Every n-th layer of a teacher from the first, as DistilBERT, and token types if it has them."""
  params = models.unstack_layers(params)
  encoder = {name: x for name, x in params['encoder'].items() if not name.startswith('layer_')}
  for i in range(config.model.num_hidden_layers):
    encoder[f'layer_{i}'] = params['encoder'][f'layer_{i * teaching.every_layer(config)}']
  if not config.model.type_vocab_size:
    encoder['embeddings'] = dict(encoder['embeddings'])
    encoder['embeddings'].pop('token_type_embeddings', None)
  return {**params, 'encoder': encoder}
