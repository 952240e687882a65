"""Where a run begins: with the first of these that exists.

1. The newest checkpoint in its workdir, 2. or in the workdir config.resume_from: the whole state.
3. The model config.init_from: its weights, as far as they fit; or layers of config.teacher.
4. Nothing: new parameters and, unless tokenizer.path is given, a new vocabulary.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import models
from bert_jax.config import model as config_model
from bert_jax.convert import from_huggingface, hub, tensor_files
from bert_jax.convert import sentence_transformers as vectors
from bert_jax.errors import InputError, about, log
from bert_jax.files import Path
from bert_jax.run import teacher
from bert_jax.tasks import TASKS, teaching
from bert_jax.tasks.labelled import FROM_DATA
from bert_jax.text import files
from bert_jax.workdir import checkpoint, contents, saved_steps, trained

# Ends of the fields that training data fills in.
LABELS, WEIGHTS = '.labels', '.class_weights'


class Beginning(NamedTuple):
  """The folder and checkpoint where a run begins, decided before any weights are read."""

  folder: Path | None  # of the run or released model, with its tokenizer; None: from scratch
  meta: Mapping[str, Any] | None  # of the checkpoint to continue from; None: start at step 0

  @property
  def continues(self) -> bool:
    return self.meta is not None


def beginning_of(config: ConfigDict, workdir: Path | str, weights: bool = True) -> Beginning:
  """Decides the Beginning of a run. Fetches a config.init_from on the Hub (hf:NAME). weights: or,
  if false, only what describes the model."""
  for folder in (workdir, config.resume_from):
    if folder and (meta := checkpoint.newest_meta(folder)):
      if meta.get('converted'):
        fault = f'{folder} holds converted weights and no training to go on with'
        raise InputError(f'{fault}; train in another workdir with --config.init_from={folder}.')
      return Beginning(Path(folder), meta)
  if config.resume_from:
    there = files.exists(config.resume_from)
    why = 'has no checkpoint; train it first' if there else 'does not exist; name a workdir'
    raise InputError(f'config.resume_from={config.resume_from} {why}.')
  if not (source := teaching.source_of(config)):
    teaching.check_layers(config)
    return Beginning(None, None)
  with about('config.teacher' if source == config.get('teacher') else 'config.init_from'):
    return Beginning(hub.folder(source, weights), None)


def check_sources(config: ConfigDict, begins: bool) -> None:
  """InputError unless the weights are there that a run starts from, if it begins, and learns from.
  They are fetched and not read, so a shard may be missing."""
  if begins and config.resume_from:
    beginning_of(config, '')
  names = ['init_from'] * begins + ['teacher'] * teaching.has_teacher(config)
  for name, source in ((name, config[name]) for name in names if config[name]):
    with about(f'config.{name}'):
      folder = hub.folder(source)
      if from_huggingface.is_model(folder):
        tensor_files.located(folder)
      elif next(saved_steps.newest_first(folder / 'checkpoints'), None) is None:
        raise InputError(f'{folder} holds no checkpoint; train it first.')
  if begins and (spec := teaching.described(config)):
    with about('config.teacher'):
      config_lib.load(spec)


def resolved(config: ConfigDict, workdir: Path) -> ConfigDict:
  """Fills in what follows from the data; but a run that goes on from a workdir keeps the labels it
  began with, and where its head began."""
  config, resolve = config.copy_and_resolve_references(), TASKS[config.objective].resolve
  begun = contents.read_config(workdir) if files.exists(workdir / contents.CONFIG) else config
  given, before = map(config_lib.flatten, (config, begun))
  asked = lambda x: x.endswith(LABELS) and not given.get(x, 1)
  balanced = lambda x: x.endswith(WEIGHTS) and before[x] and given.get(x) == ('balanced',)
  prior = lambda x: x == TASKS[config.objective].prior and given.get(x) == FROM_DATA
  kept = [x for x in before if begun is not config and (asked(x) or balanced(x) or prior(x))]

  def keep(config: ConfigDict) -> ConfigDict:
    config = config.copy_and_resolve_references()
    for name in kept:
      config_lib.set_field(config, name, before[name])
    return config_lib.check(config)

  try:
    config = keep(config)
  except InputError:  # it is of another kind than what has begun, which contents.check says
    kept = []
  return keep(resolve(config))  # what the data says now does not change a model that has begun


def with_prior(config: ConfigDict, source: Any) -> ConfigDict:
  """Fills in where a new head begins, by its training rows; without a bias it cannot."""
  field = TASKS[config.objective].prior
  if field and config_lib.flatten(config)[field] == FROM_DATA:
    config = config.copy_and_resolve_references()
    config_lib.set_field(config, field, source.prior if config.model.classifier_bias else ())
  return config


def adopt_model(
  config: ConfigDict, beginning: Beginning, set_by_user: Collection[str] = ()
) -> ConfigDict:
  """Takes the sizes of the model that a run starts from, if any, and the beginning of its targets
  into the config. InputError if the model has another value in a field set_by_user."""
  if not (source := teaching.source_of(config)):
    teaching.check_layers(config)
    if config.model.new_top_layers:
      fault = 'model.new_top_layers leaves out layers of init_from, which is empty'
      raise InputError(f'{fault}; name a model there, or set it to 0.')
    return config
  folder: Any = beginning.folder
  task = TASKS[config.objective]
  if from_huggingface.is_model(folder):
    described = from_huggingface.describe(folder)
    model, begin = described.model, described.begin
  else:
    before = contents.read_config(folder)
    model, begin = before.model, config_lib.flatten(before).get(TASKS[before.objective].begin, '')
  # Pre-training may read another way than the model did; other tasks only if the user says so.
  may_change = task.reads_corpus or 'model.causal' in set_by_user
  # Fields that must fit the weights come from their model, others from the run. (A released model
  # has no vocab_multiple: its tables are padded by the run's.)
  fixed = config_model.settings_affecting('weights') - ({'causal'} if may_change else set())
  if not (model['projection_size'] and task.vector):
    fixed -= {field for field in fixed if field.startswith('projection_')}  # none, or a new one
  sizes = {field: value for field, value in model.items() if field in fixed}
  if teaching.every_layer(config) and not beginning.continues:
    sizes = teacher.student_sizes(config, sizes)
  count, layers = config.model.new_top_layers, sizes['num_hidden_layers']
  if count and (count > layers or model['share_layers']):
    has = 'layers that share their weights' if model['share_layers'] else f'{layers} layers'
    raise InputError(f'model.new_top_layers={count}: {source} has {has}; set it to less, or to 0.')
  if config.model.extend_positions != 'none' and not beginning.continues:
    _check_extension(config.model, model)
    del sizes['max_position_embeddings']
  if config.model.global_tokens:  # a pattern of attention, which any weights compute
    for name in ('attention_window', 'global_attention_every', 'global_tokens'):
      sizes.pop(name, None)
  _check_set_by_user(config, sizes, source, set_by_user)
  config = config.copy_and_resolve_references()
  if changed := [f'{k} {config.model[k]} -> {v}' for k, v in sizes.items() if config.model[k] != v]:
    of = folder if beginning.continues else source
    log.info('the model is of %s, whatever the config says: %s', of, ', '.join(changed))
  config.model.update(sizes)
  if begin and task.begin and task.begin not in set_by_user:
    config_lib.set_field(config, task.begin, begin)
  for field in {*task.vector[:1]} - {*set_by_user}:
    usual, pooling = config_lib.ALL[field].default, _pooling_of(folder)
    if pooling and config_lib.flatten(config)[field] == usual != pooling:
      log.info('%s is %s, as in %s', field, pooling, source)
      config_lib.set_field(config, field, pooling)
  return config_lib.check(config)


def _pooling_of(folder):
  """How the model in a folder pools the vectors of texts; '': it does not say so."""
  if from_huggingface.is_model(folder):
    return vectors.read(folder).pooling
  meta = checkpoint.newest_meta(folder) or {}
  return trained.vector_of(folder, contents.read_config(folder), meta).pooling


def _check_extension(ours, model):
  """InputError unless the position table of a model can be extended to the length of ours."""
  how, rows = ours.extend_positions, ours.max_position_embeddings
  table, kind = model['max_position_embeddings'], model['position_embeddings']
  if kind != 'learned' or rows <= table:
    raise InputError(
      f'model.extend_positions={how} makes a learned table longer, and init_from has {table} '
      f'positions, {kind}; raise model.max_position_embeddings ({rows}), or leave extend_positions.'
    )
  log.info('positions: %d of init_from become %d (%s)', table, rows, how)


def _check_set_by_user(config, sizes, source, set_by_user):
  """InputError if the user has set a size that the model to start from does not have."""
  started = models.ModelConfig(**{**config.model, **sizes})
  limit, lower = 'max_position_embeddings', config.model.max_position_embeddings
  for name in sizes:
    if name == limit and not models.has_position_table(started) and lower < sizes[name]:
      continue
    if f'model.{name}' in set_by_user and config.model[name] != sizes[name]:
      given = f'--config.model.{name}={config.model[name]} is given; leave that out'
      raise InputError(f'model.{name} is {sizes[name]!r} in what {source} gives, and {given}.')
