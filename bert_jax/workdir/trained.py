"""A trained model as one object, whether it comes from a run or from released weights."""

import contextlib
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import models, sharding, tokenizers
from bert_jax.convert import config_json, from_huggingface, hub, released_config
from bert_jax.convert import sentence_transformers as vectors
from bert_jax.errors import InputError, log
from bert_jax.files import Path
from bert_jax.objectives.encode import init_projection
from bert_jax.tasks import TASKS
from bert_jax.tokenizers import run_tokenizer
from bert_jax.workdir import contents, manifest
from bert_jax.workdir.checkpoint import Checkpoints
from bert_jax.workdir.manifest import Damaged


class Trained(NamedTuple):
  """A trained model. params holds the parts (encoder, pooler, mlm, classifier...) that it has."""

  config: ConfigDict
  tokenizer: tokenizers.Tokenizer
  params: dict[str, Any]
  step: int  # of training; 0 for a released model
  # How a sentence vector is made of its hidden states, if it was trained for that or says so.
  vector: vectors.Vector = vectors.UNKNOWN
  metrics: Mapping[str, float] = MappingProxyType({})  # of the evaluation of its checkpoint


def load(source: str | Path, which: str | int = 'latest', positions: int = 0) -> Trained:
  """Loads a trained model, a run's onto the first device. source: a workdir, a Hugging Face folder,
  the path of one inside an installed package, hf:NAME, or the folder of a TensorFlow checkpoint.
  which: the checkpoint of a run: 'latest', 'best' or a step. positions: the number of rows that the
  position table of a released model gets; 0: as many as it has."""
  folder = hub.folder(source)
  if from_huggingface.is_model(folder):
    refuse_which(source, which)
    weights = from_huggingface.read(folder, positions)
    if weights.description.ours and weights.unused:
      name, why = min(weights.unused.items())
      fault = f'{folder} is not as bert_jax wrote it: its tensor {name} has no place ({why})'
      raise InputError(f'{fault}; export the model again.')
    return from_weights(folder, weights)
  if positions:
    raise InputError(f'{source} is a run, whose positions stay as they are; leave out positions.')
  config = contents.read_config(folder)
  tokenizer = tokenizers.load_folder(folder)
  shapes = shapes_of(config, tokenizer, sharding.make_mesh(1, 1, 1, jax.local_devices()[:1]))
  params, meta = load_params(folder, shapes, which, partial=True)
  task = TASKS[config.objective]
  params = task.objective(config, tokenizer).exported(params)
  if task.prior:
    config_lib.set_field(config, task.prior, ())
  vector = vector_of(folder, config, meta)
  return Trained(config, tokenizer, params, meta['step'], vector, meta['metrics'])


def vector_of(folder: Path, config: ConfigDict, meta: Mapping[str, Any]) -> vectors.Vector:
  """How a run makes the vector of a text. meta: of its checkpoint."""
  if fields := TASKS[config.objective].vector:
    given = config_lib.flatten(config)
    return vectors.Vector(*(given[field] for field in fields))
  # Converted weights may say it, in earlier versions in files beside them.
  known = meta.get('vector')
  return vectors.Vector(*known) if known else vectors.read(folder)


def refuse_which(source: str | Path, which: str | int) -> None:
  """InputError unless `which` is the default, since a released model has no checkpoints."""
  if which != 'latest':
    raise InputError(f'{source} is a released model and has no checkpoint {which}; leave it out.')


def from_weights(folder: Path, weights: from_huggingface.Weights) -> Trained:
  """Makes a Trained from from_huggingface.Weights and the vocabulary in their folder."""
  tokenizer = tokenizers.load_folder(folder)
  config = released_config.config_of(weights, tokenizer, vectors.longest(folder))
  run_tokenizer.check_fits(tokenizer, config.model, folder)
  not_read, described = config_json.generation_not_read(folder), weights.description
  ends = described.writing.get('ends', ())
  if described.family.has_decoder and {*ends} - {tokenizer.sep_id}:
    not_read.append(f'eos_token_id={[*ends]}')
  if not_read and described.family.writes:
    said = 'of its generation is not read here; texts may differ from those of transformers'
    log.warning('%s: %s %s', folder, ', '.join(not_read), said)
  params = jax.device_put(weights.tree(models.ModelConfig(**config.model)))
  return Trained(config, tokenizer, params, 0, vectors.read(folder))


def part_of(model: Trained, part: str) -> Trained:
  """Another model inside a Trained, such as ELECTRA's generator, by its part of the parameters."""
  others = {part: name for name, family in TASKS.items() for part in family.other_models}
  if part not in model.params or part not in TASKS[model.config.objective].other_models:
    fault = f'this model was trained for {model.config.objective!r} and has no {part}'
    raise InputError(f'{fault}; only runs of objective {others[part]!r} have one.')
  other = TASKS[model.config.objective].other_models[part](model)
  return other._replace(config=config_lib.check(other.config), vector=vectors.UNKNOWN)


def shapes_of(
  config: ConfigDict, tokenizer: tokenizers.Tokenizer, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """The shapes of an objective's parameters, and of the projection that converted weights have for
  any objective: ShapeDtypeStructs with shardings on a mesh."""
  objective = TASKS[config.objective].objective(config, tokenizer)
  init = lambda rng: init_projection(models.ModelConfig(**config.model), rng) | objective.init(rng)
  return sharding.placed(jax.eval_shape(init, jax.random.key(0)), mesh)


def load_params(
  workdir: str | Path, shapes: dict[str, Any], which: str | int = 'latest', partial: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Loads (the params of a run, its checkpoint's metadata). which: 'latest', 'best' or a step.
  shapes: a tree of ShapeDtypeStructs with shardings. Converted weights may lack heads: with
  `partial` only the parts that are there are returned, else it is an InputError, as are weights
  that were saved with another config or vocabulary than the workdir's."""
  with contextlib.closing(Checkpoints(workdir)) as checkpoints:

    def read(number):
      meta = checkpoints.meta(number)
      contents.check_belongs(workdir, meta)
      there = manifest.parts(meta)
      if (lacking := [part for part in shapes if part not in there]) and not partial:
        lacks = ', '.join(lacking)
        raise InputError(f'{workdir} has no {lacks}; start from it with --config.init_from.')
      wanted = {part: tree for part, tree in shapes.items() if part in there}
      trees, _ = checkpoints.restore_step(number, {'params': wanted})
      return trees['params'], meta

    there = checkpoints.steps()
    number = _step_of(checkpoints, workdir, which)
    if number is None:
      return checkpoints.newest_good(read)[0]
    try:
      return read(number)
    except Damaged as error:
      if checkpoints.steps() != there:  # a run has saved meanwhile, and removed others
        return load_params(workdir, shapes, which, partial)
      good = []
      for number in checkpoints.steps():
        with contextlib.suppress(Damaged):
          good += [str(number)] if number != error.number and checkpoints.meta(number) else []
      others = f'others are at {", ".join(good)} (--checkpoint STEP)' * bool(good)
      raise InputError(f'{error}; {others or "no other is good"}.') from None


def _step_of(checkpoints, workdir, which):
  """The step for 'best' or a step; None for 'latest'. InputError if there is none."""
  steps = there = checkpoints.steps()[::-1]
  if which == 'best':
    if not (metric := contents.read_config(workdir).checkpoint.best_metric):
      raise InputError(f'{workdir} kept no best checkpoint; use latest or a step.')
    steps = _best(checkpoints, there, metric)
  elif which != 'latest':
    steps = [number for number in there if str(number) == str(which)]
  if not steps:
    known = there[::-1] or 'none, train it first'
    raise InputError(f'{workdir} has no checkpoint {which!r}; it has {known}.')
  return None if which == 'latest' else steps[0]


def _best(checkpoints, steps, metric):
  """The step of the best checkpoint, by the newest good metadata, as [step] or []."""
  for number in steps:
    try:
      meta = checkpoints.meta(number)
    except Damaged as error:
      log.error('%s; if it was the best, that is not known', error)
      continue
    best = meta.get('best', {})
    if best.get('goodness', -math.inf) > -math.inf and best['of'].startswith(f'{metric} '):
      return [best['step']]
  return []
