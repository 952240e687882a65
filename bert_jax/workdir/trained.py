"""A trained model as one object, whether it comes from a run or from released weights."""

import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import models, sharding, tokenizers
from bert_jax.convert import from_huggingface, hub, released_config
from bert_jax.convert import sentence_transformers as vectors
from bert_jax.errors import InputError, listed, log
from bert_jax.files import Path
from bert_jax.objectives.encode import init_projection
from bert_jax.tasks import TASKS
from bert_jax.tokenizers import run_tokenizer
from bert_jax.workdir import contents, manifest
from bert_jax.workdir.checkpoint import Checkpoints, best_of


class Trained(NamedTuple):
  """A trained model. params holds the parts (encoder, pooler, mlm, classifier...) that it has."""

  config: ConfigDict
  tokenizer: tokenizers.Tokenizer
  params: dict[str, Any]
  step: int  # of training; 0 for a released model
  # How a sentence vector is made of its hidden states, if it was trained for that or says so.
  vector: vectors.Vector = vectors.UNKNOWN
  metrics: Mapping[str, float] = MappingProxyType({})  # of the evaluation of its checkpoint
  unread_head: str = ''  # why the head of a released model is not read, a sentence
  unread_modules: str = ''  # why it makes no vectors as its files say, a sentence


def load(source: str | Path, checkpoint: str | int = '') -> Trained:
  """Loads a trained model, a run's onto the first device. source: a workdir, a Hugging Face folder,
  the path of one inside an installed package, hf:NAME, or the folder of a TensorFlow checkpoint.
  checkpoint: of a run, see load_params."""
  folder = hub.folder(source)
  if from_huggingface.is_model(folder):
    refuse_checkpoint(source, checkpoint)
    weights = from_huggingface.read(folder)
    found = from_weights(folder, weights)
    return found._replace(unread_modules=vectors.refusal(folder))
  config = contents.read_config(folder)
  tokenizer = tokenizers.load_folder(folder)
  shapes = shapes_of(config, tokenizer, sharding.make_mesh(1, 1, 1, jax.local_devices()[:1]))
  params, meta = load_params(folder, shapes, checkpoint, partial=True)
  task = TASKS[config.objective]
  params = task.objective(config, tokenizer).exported(params)
  if task.prior:
    config_lib.set_field(config, task.prior, ())
  vector = vector_of(config, meta)
  unread_head = meta.get('unread', '')
  return Trained(config, tokenizer, params, meta['step'], vector, meta['metrics'], unread_head)


def vector_of(config: ConfigDict, meta: Mapping[str, Any]) -> vectors.Vector:
  """How a run makes the vector of a text. meta: of its checkpoint."""
  fields = TASKS[config.objective].vector
  if fields:
    given = config_lib.flatten(config)
    return vectors.Vector(*[given[field] for field in fields])
  if 'vector' in meta:  # of converted weights
    return vectors.Vector(*meta['vector'])
  return vectors.UNKNOWN


def refuse_checkpoint(source: str | Path, checkpoint: str | int) -> None:
  """InputError if a checkpoint of a released model is named, since it has none."""
  if checkpoint != '':
    raise InputError(
      f'{source} is a released model and has no checkpoint {checkpoint}; leave it out.'
    )


def from_weights(folder: Path, weights: from_huggingface.Weights) -> Trained:
  """Makes a Trained from from_huggingface.Weights and the vocabulary in their folder."""
  tokenizer = tokenizers.load_folder(folder)
  vector, longest = vectors.read(folder).vector, vectors.longest(folder)
  config = released_config.config_of(weights, tokenizer, longest, bool(vector.pooling))
  run_tokenizer.check_fits(tokenizer, config.model, folder)
  params = jax.device_put(from_huggingface.tree(weights.flat, models.ModelConfig(**config.model)))
  named = [name for name, text in vector.prompts.items() if text and name != vector.prompt]
  if named:
    log.info('%s: embed puts its prompts before texts by name: %s', folder, listed(named))
  return Trained(config, tokenizer, params, 0, vector, unread_head=weights.unread)


def part_of(model: Trained, part: str) -> Trained:
  """Another model inside a Trained, such as ELECTRA's generator, by its part of the parameters."""
  other_models = TASKS[model.config.objective].other_models
  if part not in model.params or part not in other_models:
    raise InputError(f'this model was trained for {model.config.objective!r} and has no {part}.')
  other = other_models[part](model)
  return other._replace(config=config_lib.check(other.config), vector=vectors.UNKNOWN)


def shapes_of(
  config: ConfigDict, tokenizer: tokenizers.Tokenizer, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """The shapes of an objective's parameters, and of the projection that converted weights have for
  any objective: ShapeDtypeStructs with shardings on a mesh."""
  objective = TASKS[config.objective].objective(config, tokenizer)

  def init(rng):
    return init_projection(models.ModelConfig(**config.model), rng) | objective.init(rng)

  return sharding.placed(jax.eval_shape(init, jax.random.key(0)), mesh)


def load_params(
  workdir: str | Path, shapes: dict[str, Any], checkpoint: str | int = '', partial: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Loads (the params of a run, its checkpoint's metadata). checkpoint: 'latest', 'best' or a step;
  '': the best where checkpoint.best_metric is set, which is said, else the newest. shapes: a tree
  of ShapeDtypeStructs with shardings. Converted weights may lack heads: with `partial` only the
  parts that are there are returned, else it is an InputError, as are weights that were saved with
  another config or vocabulary than the workdir's."""
  with contextlib.closing(Checkpoints(workdir)) as checkpoints:

    def read(number):
      meta = checkpoints.meta(number)
      contents.check_belongs(workdir, meta)
      saved = manifest.parts(meta)
      lacking = [part for part in shapes if part not in saved]
      if lacking and not partial:
        what = meta.get('unread') or 'start from it with init_from.'
        raise InputError(f'{workdir} has no {", ".join(lacking)}; {what}')
      wanted = {part: tree for part, tree in shapes.items() if part in saved}
      trees, _ = checkpoints.restore_step(number, {'params': wanted})
      return trees['params'], meta

    number = _step_of(checkpoints, workdir, checkpoint)
    if number is None:
      return checkpoints.newest_good(read)[0]
    try:
      return read(number)
    except manifest.Damaged as error:
      raise InputError(f'{error}; name another checkpoint, such as latest.') from None


def _step_of(checkpoints, workdir, checkpoint):
  """The step of a checkpoint; None for the newest. InputError if there is none."""
  steps = checkpoints.steps()
  if not steps:
    raise InputError(f'{workdir} has no checkpoint; train it first.')
  if checkpoint == 'latest':
    return None
  if checkpoint in ('', 'best'):
    meta, _ = checkpoints.newest_good(checkpoints.meta)
    number = best_of(workdir, meta['best'], contents.read_config(workdir).checkpoint).get('step')
    if checkpoint and number is None:
      raise InputError(f'{workdir} kept no best checkpoint; use latest or a step.')
    return number
  for step in steps:
    if str(step) == str(checkpoint):
      return step
  raise InputError(
    f'{workdir} has no checkpoint {checkpoint!r}; name latest, best or one of {steps}.'
  )
