"""Where a run begins, and the config that it follows from there. It begins with the first of these
that exists:

1. The newest checkpoint in its workdir, 2. or in the workdir config.resume_from: the whole state.
3. The model config.init_from: its weights, as far as they fit; or layers of config.teacher.
4. Nothing: new parameters and, unless tokenizer.path is given, a new vocabulary.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import models
from bert_jax.config import model as config_model
from bert_jax.convert import from_huggingface, hub, tensor_files
from bert_jax.convert import sentence_transformers as vectors
from bert_jax.errors import InputError, about, listed, log
from bert_jax.files import Path
from bert_jax.run import teacher
from bert_jax.tasks import TASKS, labelled, teaching
from bert_jax.text import files, record_sources
from bert_jax.timeline import RATE
from bert_jax.workdir import checkpoint, contents, saved_steps, trained

SHOWN = 8  # differences between two configs that a sentence names
SCRATCH, WEIGHTS, CONTINUED = 'scratch', 'weights', 'continued'


class Start(NamedTuple):
  """Where a run begins, decided before any weights are read: from SCRATCH, with the WEIGHTS of a
  model, or CONTINUED from a checkpoint."""

  kind: str = SCRATCH
  folder: Path | None = None  # of that run or released model, with its tokenizer
  meta: Mapping[str, Any] = {}  # of the checkpoint

  @property
  def continues(self) -> bool:
    return self.kind == CONTINUED


def start_of(config: ConfigDict, workdir: Path | str, weights: bool = True) -> Start:
  """Decides where a run begins. Fetches a config.init_from on the Hub (hf:NAME). weights: or, if
  false, only what describes the model."""
  for folder in (workdir, config.resume_from):
    meta = checkpoint.newest_meta(folder) if folder else None
    if meta:
      return Start(CONTINUED, Path(folder), meta)
  if config.resume_from:
    raise InputError(f'config.resume_from={config.resume_from} has no checkpoint; train it first.')
  source = teaching.source_of(config)
  if not source:
    teaching.check_layers(config)
    return Start()
  with about('config.teacher' if source == config.get('teacher') else 'config.init_from'):
    return Start(WEIGHTS, hub.folder(source, weights))


def check_sources(config: ConfigDict, begins: bool) -> None:
  """InputError unless the weights are there that a run starts from, if it begins, and learns from.
  They are fetched and not read, so a shard may be missing."""
  if begins and config.resume_from:
    start_of(config, '')
  sources = {'teacher': config.get('teacher', '')}
  if begins:
    sources['init_from'] = config.init_from
  for name, source in sources.items():
    if not source:
      continue
    with about(f'config.{name}'):
      folder = hub.folder(source)
      if from_huggingface.is_model(folder):
        tensor_files.located(folder)
      elif next(saved_steps.newest_first(folder / 'checkpoints'), None) is None:
        raise InputError(f'{folder} holds no checkpoint; train it first.')


# ---- the config ----------------------------------------------------------------------------------


def config_of(
  start: Start, config: ConfigDict, workdir: Path, set_by_user: Collection[str] = ()
) -> ConfigDict:
  """The config that a run follows: that of its workdir, if it has begun there, else the given one,
  completed by the model that it starts from and by its data."""
  if files.exists(workdir / contents.CONFIG):
    return _continued_config(config, workdir)
  if start.continues and start.folder != workdir:
    config = _filled_in(config, start.folder)
  else:
    config = adopt_model(config, start, set_by_user)
  task = TASKS[config.objective]
  has_usual_rate = task.defaults.get(RATE) == 0
  if has_usual_rate and config.optimizer.learning_rate == 0:
    config = config.copy_and_resolve_references()
    config.optimizer.learning_rate = labelled.rate_of(config)
  _check_formats(config, set_by_user)
  idle = {*set_by_user} & {*task.without_effect(config)}
  if idle:
    log.warning(f'this run does not read {listed(sorted(idle))}; leave what has no effect out')
  return config_lib.check(task.resolve(config.copy_and_resolve_references()))


def _check_formats(config, set_by_user):
  """InputError if the user named columns of files without a header, and the data is in none."""
  specs = [spec for spec in (config.data.train, config.data.eval) if spec]
  texts = [spec for spec in specs if not record_sources.has_records(spec)]
  tables = [spec for spec in texts if files.suffix(Path(spec)) not in ('.jsonl', '.json')]
  for name in set_by_user:
    if specs and not tables and name.endswith('.columns'):
      raise InputError(
        f'{name} is for a CSV or TSV without a header, and the columns of this data have names; '
        'leave it, and name the columns to read.'
      )


def _continued_config(config: ConfigDict, workdir: Path) -> ConfigDict:
  """The given config, with which a run goes on in its workdir. InputError if a field that decides
  has another value than when the run began; the length of the run may change."""
  begun = contents.read_config(workdir)
  config = _filled_in(config, workdir)
  changes = config_lib.changes(begun, config)
  changes = [x for x in changes if x.partition(':')[0] not in config_lib.LENGTH]
  if len(changes) > SHOWN:
    changes[SHOWN:] = [f'and {len(changes) - SHOWN} more']
  if changes:
    shown = '; '.join(changes).replace(f'{RATE}: ', f'{RATE}, where 0 is the usual one: ')
    raise InputError(
      f'{workdir} holds a run with another config ({shown}); give the values and rows that it has '
      '(rows in memory are named by a checksum), use another folder (config.init_from or '
      'config.resume_from start from this one), or delete it.'
    )
  return config_lib.check(config)


def _filled_in(config, folder):
  """A config in which the fields that the data or a model has filled in for the run in a folder
  have these values, where they are given as they were then."""
  config = config.copy_and_resolve_references()
  values = config_lib.flatten(contents.read_config(folder))
  given = json.loads(json.dumps(config_lib.flatten(config)))
  for name, asked in contents.read_asked(folder).items():
    if name in given and given[name] == asked:
      config_lib.set_field(config, name, values[name])
  return config


def asked_for(given: ConfigDict, config: ConfigDict, workdir: Path) -> dict[str, Any]:
  """{field: its given value} of the fields that were filled in for the run in a workdir, as it was
  when it began there."""
  if files.exists(workdir / contents.CONFIG):
    return contents.read_asked(workdir)
  values = config_lib.flatten(config)
  return {name: x for name, x in config_lib.flatten(given).items() if values[name] != x}


def with_prior(config: ConfigDict, source: Any) -> ConfigDict:
  """Fills in where a new head begins, by its training rows; without a bias it cannot."""
  field = TASKS[config.objective].prior
  if field and config_lib.flatten(config)[field] == labelled.FROM_DATA:
    config = config.copy_and_resolve_references()
    config_lib.set_field(config, field, source.prior if config.model.classifier_bias else ())
  return config


def adopt_model(config: ConfigDict, start: Start, set_by_user: Collection[str] = ()) -> ConfigDict:
  """Takes the sizes of the model that a run starts from, if any, and the beginning of its targets
  into the config. InputError if the model has another value in a field set_by_user."""
  if start.kind != WEIGHTS:
    return config
  folder: Any = start.folder
  task = TASKS[config.objective]
  if from_huggingface.is_model(folder):
    described = from_huggingface.describe(folder)
    model, begin = described.model, described.begin
    is_sigmoid = described.activation.endswith('.Sigmoid')
  else:
    before = contents.read_config(folder)
    fields, of_before = config_lib.flatten(before), TASKS[before.objective]
    model, begin = before.model, fields.get(of_before.begin, '')
    is_sigmoid = fields.get(of_before.sigmoid, False)
  sizes = _sizes(config, model, set_by_user)
  _check_set_by_user(config, sizes, set_by_user)
  config = config.copy_and_resolve_references()
  for name, size in sizes.items():
    if f'model.{name}' in set_by_user and config.model[name] != size:
      log.info(f'model.{name} is {size}, as in {teaching.source_of(config)}')
  config.model.update(sizes)
  if begin and task.begin and task.begin not in set_by_user:
    config_lib.set_field(config, task.begin, begin)
  has_numbers = config_lib.flatten(config).get(task.numbers)
  if is_sigmoid and has_numbers and task.sigmoid not in set_by_user:
    log.info(f'numbers are sigmoids, as in {teaching.source_of(config)}: {task.sigmoid}=true')
    config_lib.set_field(config, task.sigmoid, True)
  if task.vector:
    if from_huggingface.is_model(folder):
      refusal = vectors.refusal(folder)
      if refusal:
        raise InputError(refusal)
    _adopt_pooling(config, task.vector, folder, set_by_user)
  return config_lib.check(config)


def _sizes(config, model, set_by_user):
  """{field of config.model: value} that a run takes from the settings of the model it starts from:
  those that must fit its weights. (A released model has no vocab_multiple: the run's pads it.)"""
  task, ours = TASKS[config.objective], config.model
  fixed = set(config_model.settings_affecting('weights'))
  if task.reads_corpus or 'model.causal' in set_by_user:
    fixed.discard('causal')  # pre-training may read another way; other tasks if the user says so
  heads = {'classifier_dropout_prob', 'span_dropout_prob'}
  fixed |= {name for name in heads if f'model.{name}' not in set_by_user}
  if not (model['projection_size'] and task.vector):  # there is none, or a new one
    fixed -= {'projection_size', 'projection_act', 'projection_bias'}
  sizes = {field: value for field, value in model.items() if field in fixed}
  if teaching.every_layer(config):
    sizes = teacher.student_sizes(config, sizes)
  if ours.extend_positions != 'none':
    _check_extension(ours, model)
    del sizes['max_position_embeddings']
  return sizes


def _adopt_pooling(config, fields, folder, set_by_user):
  """Takes how a model pools the vectors of texts, if it says so and the config has its default, and
  names what is not taken of how it makes them."""
  if from_huggingface.is_model(folder):
    vector = vectors.read(folder).vector
  else:
    meta = checkpoint.newest_meta(folder) or {}
    vector = trained.vector_of(contents.read_config(folder), meta)
  (field, length), source = fields, teaching.source_of(config)
  pooling, usual, given = vector.pooling, config_lib.ALL[field].default, config_lib.flatten(config)
  if pooling and given[field] == usual != pooling and field not in set_by_user:
    log.info('%s is %s, as in %s', field, pooling, source)
    config_lib.set_field(config, field, pooling)
  prompts = [name for name, text in vector.prompts.items() if text]
  if prompts:
    log.info('prompts of %s are not put before texts here: %s', source, listed(prompts))
  if pooling and given[length] != vector.normalized:
    log.info('%s is %s, and in %s %s', length, given[length], source, vector.normalized)


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


def _check_set_by_user(config, sizes, set_by_user):
  """InputError if the user has set a size that the model to start from does not have."""
  started = models.ModelConfig(**{**config.model, **sizes})
  for name, size in sizes.items():
    given = config.model[name]
    is_shorter = name == 'max_position_embeddings' and given < size
    if f'model.{name}' not in set_by_user or given == size:
      continue
    if is_shorter and not models.has_position_table(started):
      continue
    raise InputError(
      f'model.{name} is {size!r} in what {teaching.source_of(config)} gives, and '
      f'model.{name}={given} is given; leave that out.'
    )
