"""Other people's weights as our parameters, with every tensor accounted for.

A folder holds a config.json (`description.py`), tensors (`tensors.py`) under the names of a family
(`names.py`), and a vocabulary. Which head the weights have says what they can be asked, so it says
the objective too. Our vocabulary rows are padded to `padded_vocab_size` with zeros, theirs are not.
"""

import importlib.util
import logging
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from bert_jax import models
from bert_jax.convert import config_json, parameter_names, tensor_files, tensorflow_names
from bert_jax.errors import InputError
from bert_jax.tasks import TASKS
from bert_jax.tasks.pretraining import PRETRAINING

log = logging.getLogger('bert_jax')

VOCABULARY = ('encoder/embeddings/word_embeddings/embedding', 'mlm/bias', 'mlm/decoder')
POSITIONS = 'encoder/embeddings/position_embeddings/embedding'
TYPES = 'encoder/embeddings/token_type_embeddings/embedding'
RELU = 'pre_classifier.weight'  # of DistilBERT's classifier


class Weights(NamedTuple):
  """What a folder holds, and what became of each of its tensors."""

  description: config_json.Description
  objective: str
  flat: dict  # {our path: float32 array, layers apart, vocabulary not padded}
  sources: dict  # {our path: (their name, their dtype)}
  ignored: dict  # {their name, or rows of it: why they are no parameter of ours}
  unused: dict  # {their name: why it could not be used}
  new: dict  # {our path: what of it has no tensor of its own in the source}

  def tree(self, model):
    """The parameters for a ModelConfig, as our objectives name them; InputError if a shape is
    another one."""
    return tree(self.flat, model, {path: name for path, (name, _) in self.sources.items()})


def locate(path):
  """The folder of a model: a path, or a path inside an installed Python package."""
  folder = Path(path).expanduser()
  if folder.exists() or folder.is_absolute():
    return folder
  package = folder.parts[0] if folder.parts else ''
  found = importlib.util.find_spec(package) if package.isidentifier() else None
  return Path(found.origin).parent.joinpath(*folder.parts[1:]) if found and found.origin else folder


is_model = config_json.is_model


def read_model(folder):
  """{field of config.model: value} of a folder, as its config says."""
  return config_json.read(folder).model


def read(folder, positions=0):
  """The Weights of a folder. positions: rows its position table is to have; 0: as many as it has.

  InputError if the encoder is not whole, or a tensor has another shape than config.json asks for.
  """
  about = config_json.read(folder)
  found, path = tensor_files.read(folder)
  family = _family(found, about, path)
  known = parameter_names.plain(found, family, about.model['num_hidden_layers'])
  places = parameter_names.table(
    family, about.model['num_hidden_layers'], about.model['tie_word_embeddings']
  )
  if RELU in known:
    places = {ours: place for ours, place in places.items() if not ours.startswith('classifier')}
  ignored, copies = _not_parameters(known, found, places)
  there = {ours for ours, place in places.items() if place.name in known}
  lacking = _lacking(places, there)
  objective = _objective(about, {ours.partition('/')[0] for ours in there} - lacking.keys())
  unused = _unused(known, found, places, there, lacking, objective, ignored, copies)
  flat, sources, width = {}, {}, about.model['hidden_size'] * (family == 'google')
  for ours in sorted(there):
    place = places[ours]
    if (name := known[place.name]) in unused or name in ignored:
      continue
    flat[ours] = _layout(_checked(found[name], name), place, width)
    sources[ours] = name, str(found[name].dtype)
  weights = Weights(about, objective, flat, sources, ignored, unused, {})
  weights = _fit_tables(weights, positions)
  named = {ours: name for ours, (name, _) in sources.items()}
  _check_shapes(weights.flat, weights.description.model, named, about)
  if unused:
    log.info('%s: not used: %s', path, ', '.join(sorted(unused)))
  return weights


def _family(found, about, path):
  """Whose names they are."""
  if any('/' in name for name in found):
    if not any(
      name.startswith('bert/') or '/layer_with_weights-0/' in f'/{name}' for name in found
    ):
      raise InputError(
        f'{path} has none of the names of google-research/bert (bert/...) or of an encoder of '
        f"TensorFlow's Model Garden (layer_with_weights-0/...), but {min(found)!r}; it is not read."
      )
    return 'google'
  if about.family == 'roberta' and any(name.endswith('classifier.out_proj.bias') for name in found):
    return 'roberta classifier'
  return about.family


def _not_parameters(known, found, places):
  """({their name: why it is none of ours}, the names of copies that stand for their original)."""
  ignored, stand_ins = {}, {}
  for copy, original in parameter_names.copies(places).items():
    if copy not in known:
      continue
    if original not in known:  # the original was left out: the copy is it
      stand_ins[original] = known[copy]
    elif not np.array_equal(found[known[copy]], found[known[original]]):
      raise InputError(
        f'{known[copy]} differs from {known[original]}, so they are not tied; say '
        '"tie_word_embeddings": false in config.json.'
      )
    else:
      ignored[known[copy]] = f'a copy of {known[original]}'
  known.update(stand_ins)
  for name in found:
    if why := parameter_names.is_state(name):
      ignored[name] = why
  return ignored, set(stand_ins.values())


def _lacking(places, there):
  """{part of a model: the names of theirs that are missing of it}, for parts that are not whole."""
  lacking = {}
  for ours in places.keys() - there:
    lacking.setdefault(ours.partition('/')[0], []).append(places[ours].name)
  if 'encoder' in lacking:
    raise InputError(
      f'the encoder of these weights is not whole: {len(lacking["encoder"])} missing, for example '
      f'{min(lacking["encoder"])}; is config.json theirs?'
    )
  return lacking


def _objective(about, parts):
  """What a model with these whole parts does."""
  asked = next(
    (
      task.name
      for task in TASKS.values()
      for head in task.heads
      if task is not PRETRAINING and about.architecture.endswith(head.ending)
    ),
    '',
  )
  if 'span' in parts:
    return 'qa'
  if 'classifier' not in parts:
    return PRETRAINING.name
  if asked in ('classification', 'choice') and 'pooler' not in parts:
    raise InputError(
      f'these weights are of a {about.architecture} and have no pooler, which its classifier '
      'stands on; are they whole?'
    )
  return asked or ('classification' if 'pooler' in parts else 'tagging')


def _unused(known, found, places, there, lacking, objective, ignored, copies):
  """{their name: why it cannot be used}: unknown ones, and those of parts that are not whole."""
  used, unused = set(), {}
  for ours in there:
    part, name = ours.partition('/')[0], known[places[ours].name]
    if part in lacking:
      unused[name] = f'its {part} is not whole: {min(lacking[part])} is missing'
    elif part not in TASKS[objective].parts:
      if part == 'pooler':
        ignored[name] = f'a model for {objective} has no pooler'
      else:
        unused[name] = f'a model for {objective} has no {part}'
    used.add(name)
  rest = sorted(found.keys() - used - ignored.keys() - copies)
  plain = {name: short for short, name in known.items()}
  prefix = places['encoder/embeddings/LayerNorm/scale'].name.partition('embeddings')[0]
  if inner := [name for name in rest if plain.get(name, name).startswith(prefix)]:
    raise InputError(
      f'the encoder of these weights has tensors that ours has not ({len(inner)}, for example '
      f'{inner[0]}), so it would not be the same model; is config.json theirs?'
    )
  for name in rest:
    of_relu = RELU in known and 'classifier.' in name
    unused[name] = (
      "DistilBERT's classifier has a dense layer with ReLU, where our pooler has tanh"
      if of_relu
      else 'heads of TensorFlow 2 are not read'
      if name.endswith(tensorflow_names.END)
      else 'no parameter of ours is called so'
    )
  return unused


def _checked(x, name):
  """An array, if it can be a parameter."""
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise InputError(
      f'{name} is {x.dtype}, so the weights are quantized; give those they were made from.'
    )
  if not np.isfinite(x.astype(np.float32)).all():
    raise InputError(f'{name} holds numbers that are not finite; these weights are broken.')
  return x


def _layout(x, place, width=0):
  """An array as ours. width: hidden size of a TensorFlow model; version 2 keeps heads apart."""
  x = np.asarray(x).astype(np.float32)
  if width and x.ndim == len(place.shape) + 1 and x.size == width ** len(place.shape):
    x = x.reshape([width] * len(place.shape))
  return np.ascontiguousarray(x.T) if place.turned else x


def _fit_tables(weights, positions):
  """What RoBERTa counts otherwise, what stands for nothing, and another number of positions than
  the source has."""
  about, flat, new = weights.description, dict(weights.flat), {}
  model = dict(about.model)
  position_name = weights.sources[POSITIONS][0]
  if about.offset:
    flat[POSITIONS] = flat[POSITIONS][about.offset :]
    weights.ignored[f'{position_name}, rows 0 to {about.offset - 1}'] = 'they are of no position'
  if TYPES in flat and len(flat[TYPES]) == 1:
    flat[TYPES] = np.repeat(flat[TYPES], 2, axis=0)
    new[TYPES] = 'row 1, a copy of row 0, the only one'
  if TYPES in flat and not model['type_vocab_size']:
    if flat[TYPES].any():
      raise InputError('config.json says there are no token types, but their table is not zero.')
    weights.ignored[weights.sources.pop(TYPES)[0]] = 'zeros: there are no token types'
    del flat[TYPES]
  if about.ours.get('pooler') is False:  # our export of an encoder without one, see export.py
    for path in [path for path in flat if path.startswith('pooler/') and not flat[path].any()]:
      weights.ignored[weights.sources.pop(path)[0]] = 'zeros: there is no pooler'
      del flat[path]
  if positions:
    table = flat[POSITIONS]
    if positions > len(table):
      new[POSITIONS] = f'rows {len(table)} to {positions - 1}'
    if positions < len(table):
      rows = f'rows {about.offset + positions} to {about.offset + len(table) - 1}'
      weights.ignored[f'{position_name}, {rows}'] = f'cut: {positions} positions were asked for'
    rows = np.random.default_rng(0).normal(
      0, model['initializer_range'], (positions, table.shape[1])
    )
    rows[: len(table)] = table[:positions]
    flat[POSITIONS], model['max_position_embeddings'] = rows.astype(np.float32), positions
  return weights._replace(flat=flat, new=new, description=about._replace(model=model))


def _check_shapes(flat, model, sources, about=None):
  """InputError unless every array has the shape that the fields of a model ask for, those of a
  config.json if that is what they are about."""
  places = parameter_names.table('bert', model['num_hidden_layers'], model['tie_word_embeddings'])
  for path, x in flat.items():
    letters = places[path].shape
    sizes = [
      model[parameter_names.FIELDS[c]] if c in parameter_names.FIELDS else 2 if c == '2' else None
      for c in letters
    ]
    if x.ndim == len(sizes) and all(m in (n, None) for n, m in zip(x.shape, sizes)):
      continue
    name = sources.get(path, path)
    wrong = [
      (c, n) for c, n, m in zip(letters, x.shape, sizes) if n != m and c in parameter_names.FIELDS
    ]
    if x.ndim != len(sizes) or len(wrong) != 1:
      raise InputError(f'{name} is {x.shape}, where the config asks for {tuple(sizes)} of {path}.')
    field, n = parameter_names.FIELDS[wrong[0][0]], wrong[0][1]
    fix = f'set model.{field}={n}'
    if about:
      theirs = {ours: name for name, ours in config_json.DISTIL.items()}
      key = theirs.get(field, field) if about.family == 'distilbert' else field
      n += about.offset if field == 'max_position_embeddings' else 0
      fix = f'write "{key}": {n} in its config.json'
    raise InputError(
      f'{name} is {x.shape}, and {field} is {model[field]}; {fix}'
      + (' or convert it with --positions.' if field == 'max_position_embeddings' else '.')
    )


def tree(flat, model, sources=()):
  """{our path: array} -> parameters as a ModelConfig lays them out."""
  _check_shapes(flat, vars(model), dict(sources))
  flat = dict(flat)
  for path in flat.keys() & set(VOCABULARY):
    x = flat[path]
    flat[path] = np.pad(x, [(0, model.padded_vocab_size - len(x))] + [(0, 0)] * (x.ndim - 1))
  params = traverse_util.unflatten_dict(flat, sep='/')
  if model.scan_layers:
    params['encoder'] = models.stack_layers(params['encoder'])
  return params


def flatten(params, model):
  """The inverse of tree: {our path: array}, layers apart, without the rows that pad."""
  params = params | {'encoder': models.unstack_layers(params['encoder'])}
  flat = traverse_util.flatten_dict(params, sep='/')
  return {
    path: np.asarray(x)[: model.vocab_size if path in VOCABULARY else None]
    for path, x in flat.items()
  }
