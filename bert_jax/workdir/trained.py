"""A trained model as one object, whether it comes from a run or from released weights."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import models, sharding, tokenizers
from bert_jax.convert import (
  config_json,
  from_huggingface,
  hub,
  released_config,
  sentence_transformers,
)
from bert_jax.errors import InputError
from bert_jax.tasks import TASKS
from bert_jax.workdir import contents
from bert_jax.workdir import weights as run_weights

log = logging.getLogger('bert_jax')


class Trained(NamedTuple):
  """A trained model. params holds the parts (encoder, pooler, mlm, classifier...) that it has."""

  config: ConfigDict
  tokenizer: tokenizers.Tokenizer
  params: dict[str, Any]
  step: int  # of training; 0 for a released model
  # How a sentence vector is made of its hidden states, if it was trained for that or says so.
  vector: sentence_transformers.Vector = sentence_transformers.UNKNOWN


def load(source: str | Path, which: str | int = 'latest', positions: int = 0) -> Trained:
  """Loads a trained model from a source: a run's workdir, a Hugging Face folder, the path of one
  inside an installed package, hf:NAME on the Hub, or the folder of a TensorFlow checkpoint. A run's
  model is put on the first device of this process.
  which: the checkpoint of a run: 'latest', 'best' or a step. positions: the number of rows that the
  position table of a released model gets; 0: as many as it has."""
  folder = hub.folder(source)
  if from_huggingface.is_model(folder):
    refuse_which(source, which)
    weights = from_huggingface.read(folder, positions)
    if weights.description.ours and weights.unused:
      name, why = min(weights.unused.items())
      raise InputError(
        f'{folder} was written by bert_jax and its tensor {name} has no place ({why}); it is not '
        'as it was written, so export the model again.'
      )
    return from_weights(folder, weights)
  if positions:
    raise InputError(f'{source} is a run, whose positions stay as they are; leave out positions.')
  config = contents.read_config(folder)
  tokenizer = tokenizers.load_folder(folder)
  shapes = shapes_of(config, tokenizer, sharding.make_mesh(1, 1, 1, jax.local_devices()[:1]))
  params, step = run_weights.load_params(folder, shapes, which, partial=True)
  vector = sentence_transformers.Vector(*TASKS[config.objective].vector(config))
  if not vector.pooling:
    vector = sentence_transformers.read(folder)
  return Trained(config, tokenizer, params, step, vector)


def refuse_which(source: str | Path, which: str | int) -> None:
  """InputError unless `which` is the default, since a released model has no checkpoints."""
  if which != 'latest':
    raise InputError(f'{source} is a released model and has no checkpoint {which}; leave it out.')


def from_weights(folder: Path, weights: from_huggingface.Weights) -> Trained:
  """Makes a Trained from from_huggingface.Weights and the vocabulary in their folder."""
  tokenizer = tokenizers.load_folder(folder)
  config = released_config.config_of(weights, tokenizer, sentence_transformers.longest(folder))
  pieces, rows = tokenizer.vocab_size, config.model.vocab_size
  if pieces > rows:
    raise InputError(
      f'{folder} has a vocabulary of {pieces} pieces and weights of {rows} rows; it is not theirs.'
    )
  if pieces < rows / 2:
    raise InputError(
      f'the vocabulary in {folder} has {pieces} pieces only and the weights have {rows} rows for '
      'them; it is cut off, or not theirs.'
    )
  asked = ', '.join(config_json.generation_not_read(folder))
  if asked and weights.description.family.writes:
    said = 'of its generation is not read here; texts may differ from those of transformers'
    log.warning('%s: %s %s', folder, asked, said)
  params = jax.device_put(weights.tree(models.ModelConfig(**config.model)))
  return Trained(config, tokenizer, params, 0, sentence_transformers.read(folder))


def part_of(model: Trained, part: str) -> Trained:
  """Another model inside a Trained, such as ELECTRA's generator, by the part of the parameters that
  names it (Family.other_models); InputError if there is none."""
  others = {part: name for name, family in TASKS.items() for part in family.other_models}
  if part not in model.params or part not in TASKS[model.config.objective].other_models:
    raise InputError(
      f'this model was trained for {model.config.objective!r} and has no {part}; only runs of '
      f'objective {others[part]!r} have one, and a released one is a folder of its own.'
    )
  other = TASKS[model.config.objective].other_models[part](model)
  return other._replace(config=config_lib.check(other.config), vector=sentence_transformers.UNKNOWN)


def shapes_of(
  config: ConfigDict, tokenizer: tokenizers.Tokenizer, mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """The shapes of an objective's parameters: ShapeDtypeStructs with shardings on a mesh."""
  objective = TASKS[config.objective].objective(config, tokenizer)
  return sharding.placed(jax.eval_shape(objective.init, jax.random.key(0)), mesh)
