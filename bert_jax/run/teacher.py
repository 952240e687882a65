"""The teacher of a run: a trained model from whose answers, and whose layers, another learns."""

import dataclasses
import hashlib
import logging

import jax
import numpy as np

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.objectives.distillation import Distilled, DistilledLanguageModel
from bert_jax.tasks import TASKS
from bert_jax.workdir import manifest, trained

log = logging.getLogger('bert_jax')

LEARNED = ('temperature', 'soft_weight', 'label_weight', 'hidden_weight')


def has_teacher(config):
  return 'teacher' in config and bool(config.teacher)


def starts_from_teacher(config):
  """Does a run with this config start from layers of its teacher?"""
  return has_teacher(config) and config.distillation.every_layer > 0


def source_of(config):
  """The model that a run starts from, as config.init_from names it; '': none."""
  return config.teacher if starts_from_teacher(config) else config.init_from


def student_sizes(config, sizes):
  """{field of config.model: value} of a run that starts from layers of a model with these sizes.
  In pre-training it says itself whether it has token types."""
  every = config.distillation.every_layer
  if sizes.get('share_layers'):
    raise InputError(
      f'the layers of {config.teacher} share their weights, so none can be left out; set '
      'distillation.every_layer=0.'
    )
  sizes = sizes | {'num_hidden_layers': -(-sizes['num_hidden_layers'] // every)}
  if TASKS[config.objective].reads_corpus:
    del sizes['type_vocab_size']
  return sizes


def taught(config, objective, tokenizer):
  """The objective of a config, taught by config.teacher if there is one. InputError unless student
  and teacher read the same vocabulary and answer the same question; nothing is compiled yet."""
  if not has_teacher(config):
    return objective
  source = trained.load(config.teacher)
  if source.tokenizer.fingerprint != tokenizer.fingerprint:
    raise InputError(
      f'the teacher {config.teacher} has another vocabulary than this run, so its probabilities '
      'are of other words; give the run its vocabulary (tokenizer.path), or name another teacher.'
    )
  model = _model_of(config, source.config.model)
  theirs = TASKS[source.config.objective].objective(source.config, tokenizer)
  params = jax.device_get(source.params)
  settings = {name: config.distillation[name] for name in LEARNED if name in config.distillation}
  if TASKS[config.objective].reads_corpus:
    kind, teacher = DistilledLanguageModel, dataclasses.replace(objective, model=model)
    if {'encoder', 'mlm'} - params.keys() or model.causal:
      raise InputError(
        f'the teacher {config.teacher} does not predict masked words, which are what is learned '
        'here; name a masked language model.'
      )
    params = {part: params[part] for part in ('encoder', 'mlm')}
    if settings['hidden_weight'] and model.hidden_size != config.model.hidden_size:
      raise InputError(
        f'the hidden states of the teacher are {model.hidden_size} wide and those of this run '
        f'{config.model.hidden_size}, so there is no cosine between them; set '
        'distillation.hidden_weight=0.'
      )
  else:
    kind = Distilled
    _check_answers(config, objective, source, theirs)
    sizes = 'seq_length', 'examples_per_row', 'parts'  # of choices
    sizes = {name: getattr(objective, name) for name in sizes if hasattr(objective, name)}
    teacher = dataclasses.replace(theirs, model=model, **sizes)
    needed = jax.eval_shape(teacher.init, jax.random.key(0))
    params = {part: params[part] for part in needed}
  log.info('teacher: %s, %d layers of %d', config.teacher, *_shape(model))
  return kind(objective, teacher, params, _fingerprint(params), **settings)


def _shape(model):
  return model.num_hidden_layers, model.hidden_size


def _model_of(config, theirs):
  """The ModelConfig of the teacher, computed as the student is. InputError if it cannot read the
  rows of this run."""
  theirs = theirs.copy_and_resolve_references()
  same = 'dtype', 'attention_implementation'
  theirs.update({name: config.model[name] for name in same} | {'remat': 'none'})
  longest = config.data.seq_length
  if 'task' in config:
    longest = config.task.max_length or longest
  stretch, of_student = theirs.recurrent_length, config.model.recurrent_length
  # Rows of several examples have them where the stretches of this run begin.
  if stretch and config.data.examples_per_row > 1 and (not of_student or of_student % stretch):
    raise InputError(
      f'the teacher {config.teacher} reads stretches of {stretch} tokens, at which the examples of '
      f'a row are to begin; set model.recurrent_length={stretch} and memory_length, or '
      'data.examples_per_row=1.'
    )
  longest = min(longest, stretch or longest)  # there positions begin anew
  has_table = theirs.position_embeddings in ('learned', 'sinusoidal', 'scaled_sinusoidal')
  if has_table and longest > theirs.max_position_embeddings:
    raise InputError(
      f'the teacher {config.teacher} reads {theirs.max_position_embeddings} tokens at most and '
      f'this run has up to {longest}; lower data.seq_length, or name another teacher.'
    )
  if theirs.type_vocab_size == 1 != config.model.type_vocab_size:
    raise InputError(
      f'the teacher {config.teacher} has one token type and this run '
      f'{config.model.type_vocab_size or "any"}; set model.type_vocab_size=1.'
    )
  return models.ModelConfig(**theirs)


def _check_answers(config, objective, source, theirs):
  """InputError unless the teacher has answers to the examples of this run, of the same form."""
  if source.config.objective != config.objective:
    raise InputError(
      f'the teacher {config.teacher} was trained for {source.config.objective!r} and this run is '
      f'for {config.objective!r}; fine-tune a teacher for the same task.'
    )
  if objective.labels != theirs.labels:
    raise InputError(
      f'the teacher {config.teacher} has other labels ({_listed(theirs)}) than this run '
      f'({_listed(objective)}); give the run those of the teacher, in its order.'
    )
  for name in ('multi_label', 'hierarchical', 'candidates'):  # of classifiers, of coreference
    mine, other = (getattr(x, name, 0) for x in (objective, theirs))
    if mine != other:
      raise InputError(
        f'the teacher {config.teacher} was trained with {name}={other} and this run has {mine}, so '
        'their answers have not the same form; give this run what the teacher has.'
      )
  parts = jax.eval_shape(theirs.init, jax.random.key(0))
  if missing := sorted(parts.keys() - source.params.keys()):
    raise InputError(
      f'the weights of the teacher {config.teacher} came without {missing[0]}; fine-tune it first.'
    )


def _listed(objective):
  labels = ', '.join(map(str, objective.labels[:5]))
  return labels + ', ..' * (len(objective.labels) > 5) or 'none'


def _fingerprint(params):
  """A hash of every number of the teacher, by which a run notices that it was exchanged."""
  total = hashlib.sha256()
  for name, x in sorted(manifest.flat(params).items()):
    total.update(f'{name} {x.shape} {x.dtype}'.encode())
    total.update(np.ascontiguousarray(x).data)
  return total.hexdigest()[:16]


def layers_for(config, params):
  """The parameters of a teacher with the layers that a student starts from (every n-th from the
  first, as DistilBERT), and without the token types that it has not."""
  params = models.unstack_layers(params)
  encoder = {name: x for name, x in params['encoder'].items() if not name.startswith('layer_')}
  for i in range(config.model.num_hidden_layers):
    encoder[f'layer_{i}'] = params['encoder'][f'layer_{i * config.distillation.every_layer}']
  if not config.model.type_vocab_size:
    tables = dict(encoder['embeddings'])
    tables.pop('token_type_embeddings', None)
    encoder['embeddings'] = tables
  return params | {'encoder': encoder}
