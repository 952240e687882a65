"""The weights that a run starts from, put into its new parameters: of another run, of a released
model, or of layers of its teacher (initialization.py says which)."""

from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax import models, parameter_layers, tokenizers
from bert_jax.convert import from_huggingface, released_config
from bert_jax.errors import InputError, log
from bert_jax.objectives.base import Objective
from bert_jax.run import teacher
from bert_jax.run.initialization import Start
from bert_jax.tasks import TASKS, teaching
from bert_jax.workdir import contents, manifest, trained


class Weights(NamedTuple):
  """The parameters of the model that a run starts from, as the objective of the run has them."""

  params: Any
  other_labels: bool  # whether its classifier is for other labels, or of another objective


def load_weights(
  start: Start, config: ConfigDict, objective: Objective, mesh: jax.sharding.Mesh
) -> Weights:
  """Loads the model that a run starts from."""
  if teaching.every_layer(config):
    taught: Any = objective
    params = teacher.layers_for(config, taught.weights)
    return Weights(objective.adopted(params), other_labels=False)
  folder: Any = start.folder
  tokenizer = tokenizers.load_folder(folder)
  if from_huggingface.is_model(folder):
    weights = from_huggingface.read(folder)
    rows = weights.description.model['max_position_embeddings']
    sizes = {**config.model, 'max_position_embeddings': rows}
    params = from_huggingface.tree(weights.flat, models.ModelConfig(**sizes))
    params = _extended(params, config.model)
    try:
      source = released_config.config_of(weights, tokenizer)
    except InputError as error:  # no objective has such a head or such labels
      log.warning('the head of %s is not taken: %s', folder, error)
      params.pop('classifier', None)
      return Weights(params, other_labels=True)
  else:
    source = contents.read_config(folder)
    shapes = trained.shapes_of(source, tokenizer, mesh)
    params, _ = trained.load_params(folder, shapes, partial=True)
    params = _extended(params, config.model)
  theirs = TASKS[source.objective].objective(source, tokenizer)
  is_same_task = source.objective == config.objective and theirs.labels == objective.labels
  return Weights(objective.adopted(theirs.exported(params)), other_labels=not is_same_task)


def _extended(params, model):
  if model.extend_positions == 'none':
    return params
  flat = manifest.flat(params)
  for name, table in flat.items():
    if name.endswith('position_embeddings.embedding'):
      rows, how = model.max_position_embeddings, model.extend_positions
      flat[name] = models.extended(np.asarray(table), rows, how)
  return manifest.unflat(flat, params)


def warm_start(params: Any, source: Any, other_labels: bool = False) -> Any:
  """Replaces arrays of params by arrays of `source` with the same name, with layers stacked or not,
  and logs what is new or unused. A tower (parameter_layers.py) that both have must fit as a whole.
  A head of another shape stays new, as does the classifier if the source's is for other labels."""
  taken = names_taken(params, source, other_labels)
  new, old = manifest.flat(params), manifest.flat(_with_layers_as_in(params, source))
  begun, unused = _parts(new.keys() - taken), _parts(old.keys() - taken)
  log.info(
    'init_from: taken: %s; new: %s; not used: %s',
    ', '.join(_parts(taken)) or 'none',
    ', '.join(begun) or 'none',
    ', '.join(unused) or 'none',
  )
  if other_labels and 'classifier' in unused:
    log.info('init_from: its classifier is for other labels')
  for name in taken:
    new[name] = jax.device_put(old[name], new[name].sharding)
  return manifest.unflat(new, params)


def warn_of_head(params: Any, taken: set[str]) -> None:
  """Warns if the head for masked words is not among the names that are taken."""
  if 'mlm' in params and 'mlm' not in _parts(taken):
    log.warning('init_from has no head for masked words: it is learned from nothing')


def _parts(names):
  """The parts of a model (encoder, pooler..) that arrays with these names belong to."""
  return sorted({name.partition('.')[0] for name in names})


def names_taken(params: Any, source: Any, other_labels: bool = False) -> set[str]:
  """The names of the arrays that warm_start takes; InputError if the source does not fit."""
  shapes = jax.eval_shape(lambda source: _with_layers_as_in(params, source), source)
  new, old = manifest.flat(params), manifest.flat(shapes)
  taken = {name for name in new.keys() & old.keys() if new[name].shape == old[name].shape}
  if other_labels:
    taken = {name for name in taken if not name.startswith('classifier.')}
  counts = parameter_layers.layer_counts(params)
  shared = counts.keys() & parameter_layers.layer_counts(source).keys()
  for name in [*sorted(new.keys() - taken), *sorted(old.keys() - new.keys())]:
    path = name.replace('.', '/')
    if parameter_layers.tower_of(path, counts) in shared:
      theirs = old[name].shape if name in old else 'nothing'
      here = f'is {new[name].shape} here' if name in new else 'this model has not'
      raise InputError(
        f'config.init_from has {theirs} for {path}, which {here}; give both runs the same model.'
      )
  if not (shared if counts else taken):
    named = ', '.join(sorted(counts)) or 'any parameter'
    raise InputError(
      f'config.init_from has nothing for {named}, so this run would start anew; name another '
      'model, or leave it empty.'
    )
  return taken


def _with_layers_as_in(params, source):
  """Stacks or unstacks the layers of each tower of `source` as in params."""
  if not isinstance(params, dict) or not isinstance(source, dict):
    return source
  if 'layers' in params:
    source = models.stack_layers(source)
  elif 'layer_0' in params:
    source = models.unstack_layers(source)
  return {name: _with_layers_as_in(params.get(name), tree) for name, tree in source.items()}
