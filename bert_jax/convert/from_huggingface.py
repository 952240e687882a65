"""Reads released weights as parameters of our models, with every tensor accounted for.

A folder holds a config.json, tensors under the names of a family of models, and a vocabulary. The
head among the weights decides the model's objective. Our tables of words are padded with rows of
zeros to `padded_vocab_size`; in files they are not.

Below, a path names one of our parameters, 'encoder/layer_0/output/kernel'; a source name is the
name of a tensor in the file.
"""

import importlib.util
import logging
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from bert_jax import models
from bert_jax.convert import checksums, config_json, parameter_names, tensor_files
from bert_jax.convert.families import google
from bert_jax.convert.families.record import Description, ReleasedFamily
from bert_jax.convert.parameter_names import FIELDS
from bert_jax.errors import InputError, quoted
from bert_jax.tasks import TASKS
from bert_jax.text import files

VOCABULARY = ('encoder/embeddings/word_embeddings/embedding', 'mlm/bias', 'mlm/decoder')
POSITIONS = 'encoder/embeddings/position_embeddings/embedding'
ALL_POSITIONS = POSITIONS, POSITIONS.replace('encoder', 'decoder')
TYPES = 'encoder/embeddings/token_type_embeddings/embedding'


class Weights(NamedTuple):
  """The weights read from a folder, with the use made of each of its tensors."""

  description: Description
  objective: str
  flat: dict  # {path: float32 array, layers apart, vocabulary not padded}
  sources: dict  # {path: (source name, source dtype)}
  ignored: dict  # {source name, or rows of it: why no parameter here comes from it}
  unused: dict  # {source name: why it could not be used}
  new: dict  # {path: which of its rows have no tensor in the source}

  def tree(self, model):
    """The parameters in a ModelConfig's tree; InputError if a shape does not fit it."""
    return tree(self.flat, model, self.sources)


def locate(path):
  """Resolves a path, which may begin with the name of an installed Python package, to a folder."""
  folder = Path(path).expanduser()
  if files.exists(folder) or folder.is_absolute():
    return folder
  package = folder.parts[0] if folder.parts else ''
  spec = importlib.util.find_spec(package) if package.isidentifier() else None
  return Path(spec.origin).parent.joinpath(*folder.parts[1:]) if spec and spec.origin else folder


is_model, describe = config_json.is_model, config_json.read


def read(folder, positions=0):
  """Reads the Weights of a folder. positions: rows that the position table shall have; 0: as it is.
  InputError if the encoder is incomplete, or a tensor's shape contradicts config.json."""
  checksums.check(Path(folder))
  description = describe(folder)
  tensors, file = tensor_files.read(folder)
  family, model = _named_as(tensors, description, file), description.model
  source_names = parameter_names.names_in_file(tensors, family, model['num_hidden_layers'])
  places = parameter_names.table(family, model)
  for place in (places[path] for path in family.zeros if places[path].name not in source_names):
    source_names[place.name] = place.name  # a missing one means zeros
    shape = [model[FIELDS[letter]] for letter in place.shape]
    tensors[place.name] = np.zeros([1] * place.is_row + shape, np.float32)
  other_head = family.other_head(description, source_names)
  places = {path: x for path, x in places.items() if path.partition('/')[0] not in other_head.parts}
  copies = parameter_names.copies(family, places)
  ignored, copies = _not_parameters(source_names, tensors, copies)
  present = {path for path, place in places.items() if place.name in source_names}
  incomplete = {}  # {incomplete part of a model: the source names that it lacks}
  for path in places.keys() - present:
    incomplete.setdefault(path.partition('/')[0], []).append(places[path].name)
  for tower in incomplete.keys() & {'encoder', 'decoder'}:
    lacks = f'{len(incomplete[tower])} missing, for example {min(incomplete[tower])}'
    raise InputError(f'the {tower} of these weights is not whole: {lacks}; is config.json theirs?')
  parts = {path.partition('/')[0] for path in present} - incomplete.keys()
  objective = _objective(description, parts)
  whose = family, tensors, source_names, places
  unused = _unused(*whose, present, incomplete, objective, ignored, copies)
  unused |= {name: other_head.why for name in unused if name.startswith(other_head.names)}
  flat, sources, width = {}, {}, model['hidden_size'] if family.heads_apart else 0
  for path in sorted(present):
    place = places[path]
    if (name := source_names[place.name]) in unused or name in ignored:
      continue
    flat[path] = _layout(tensors[name], name, place, width)
    sources[path] = name, str(tensors[name].dtype)
  weights = Weights(description, objective, flat, sources, ignored, unused, {})
  weights = _fit_tables(weights, positions)
  _check_shapes(weights.flat, weights.description.model, weights.sources, description)
  if unused:
    logging.getLogger('bert_jax').info('%s: not used: %s', file, ', '.join(sorted(unused)))
  return weights


def _named_as(tensors, description, file) -> ReleasedFamily:
  """The family whose tensor names the file uses."""
  family = description.family
  if any('/' in name for name in tensors):
    if not any(map(google.is_ours, tensors)):
      known = "google-research/bert (bert/...) or of an encoder of TensorFlow's Model Garden"
      none = f'none of the names of {known} (layer_with_weights-0/...)'
      raise InputError(f'{file} has {none}, but {quoted(min(tensors))}; it is not read.')
    return google.GOOGLE
  if family.classifier and any(name.endswith(family.classifier.mark) for name in tensors):
    return family.named_as_classifier()
  return family


def _not_parameters(source_names, tensors, copies):
  """({source name: why it is no parameter}, source names of the copies that stand in for an
  original which the file lacks; source_names is changed to use them)."""
  ignored, stand_ins = {}, {}
  for copy, original in copies.items():
    if copy not in source_names:
      continue
    if original not in source_names:
      stand_ins[original] = source_names[copy]
    elif not np.array_equal(tensors[source_names[copy]], tensors[source_names[original]]):
      two = f'{source_names[copy]} differs from {source_names[original]}, so they are not tied'
      raise InputError(f'{two}; say "tie_word_embeddings": false in config.json.')
    else:
      ignored[source_names[copy]] = f'a copy of {source_names[original]}'
  source_names.update(stand_ins)
  ignored |= {name: why for name in tensors if (why := parameter_names.not_a_parameter(name))}
  return ignored, set(stand_ins.values())


def _objective(description, parts):
  """Chooses the objective of a model with these complete parts: of several that fit, one trained on
  labelled examples, then one that its class is named after, then the one with most parts."""
  architecture, fitting = description.architecture, []
  for task in TASKS.values():
    for head in task.heads:
      if not head.import_as_this_family or head.causal != description.model['causal']:
        continue
      *others, last = head.parameters
      is_named, is_labelled = architecture.endswith(head.class_suffix), not task.reads_corpus
      lacks = [part for part in others if part not in parts]
      if is_named and is_labelled and lacks and last in parts:
        no = f'these weights are of a {architecture} and have no {lacks[0]}'
        raise InputError(f'{no}, which its {last} stands on; are they whole?')
      if parts >= set(head.parameters) and (is_named or not head.found_by_class_name):
        fitting.append(((is_labelled, is_named, len(head.parameters)), task.name))
  return max(fitting, key=lambda rank_and_name: rank_and_name[0])[1]


def _unused(family, tensors, source_names, places, present, incomplete, objective, ignored, copies):
  """{source name: why it cannot be used}: unknown names, and tensors of parts that are incomplete
  or foreign to the objective. Tensors that may be left out silently are added to `ignored`."""
  used, unused = set(), {}
  parts = {path.partition('/')[0] for path in present} - incomplete.keys()
  no_pairs = TASKS[objective].reads_corpus and 'mlm' in parts and 'nsp' not in parts
  for path in present:
    part, name = path.partition('/')[0], source_names[places[path].name]
    if part in incomplete:
      unused[name] = f'its {part} is not whole: {min(incomplete[part])} is missing'
    elif part == 'pooler' and no_pairs:
      ignored[name] = 'there is no head for pairs, which would stand on the pooler'
    elif part not in TASKS[objective].parts:
      if part == 'pooler':
        ignored[name] = f'a model for {objective} has no pooler'
      else:
        unused[name] = f'a model for {objective} has no {part}'
    used.add(name)
  rest = sorted(tensors.keys() - used - ignored.keys() - copies)
  plain = {name: short for short, name in source_names.items()}
  if inner := [name for name in rest if plain.get(name, name).startswith(family.prefix)]:
    more = f'tensors that ours has not ({len(inner)}, for example {quoted(inner[0])})'
    other = 'so it would not be the same model; is config.json theirs?'
    raise InputError(f'the encoder of these weights has {more}, {other}')
  for name in rest:
    unused[name] = 'no parameter of ours is called so'
    if name.endswith(google.END):
      unused[name] = 'heads of TensorFlow 2 are not read'
  return unused


def _layout(x, name, place, width):
  """A tensor as float32 in our layout; InputError if it cannot be a parameter. width: hidden size
  of a TensorFlow model, or 0; TensorFlow 2 has an axis of attention heads: [D, H, d] for [D, D]."""
  if not jnp.issubdtype(x.dtype, jnp.floating):
    what = f'{name} is {x.dtype}, so the weights are quantized'
    raise InputError(f'{what}; give those they were made from.')
  x = np.asarray(x).astype(np.float32)
  if not np.isfinite(x).all():
    raise InputError(f'{name} holds numbers that are not finite; these weights are broken.')
  i, n = place.part
  if n > 1:
    if place.axis >= x.ndim or x.shape[place.axis] % n:
      raise InputError(f'{name} is {x.shape}, which is not {n} matrices of one size; is it whole?')
    size = x.shape[place.axis] // n
    x = np.take(x, range(i * size, (i + 1) * size), place.axis)
  if width and x.ndim == len(place.shape) + 1 and x.size == width ** len(place.shape):
    x = x.reshape([width] * len(place.shape))
  if place.is_row and x.ndim == 2 and len(x) == 1:
    x = x[0]
  return np.ascontiguousarray(x.T) if place.turned else x


def _fit_tables(weights, positions):
  """Fits the embedding tables to ours: drops RoBERTa's rows before position 0, makes token types
  two or, if all are zero, none, and cuts or extends the positions to the number asked for."""
  description, flat, new = weights.description, dict(weights.flat), {}
  model = dict(description.model)
  tables = [path for path in ALL_POSITIONS if path in flat]
  for path in tables if description.offset else ():
    flat[path] = flat[path][description.offset :]
    rows = f'{weights.sources[path][0]}, rows 0 to {description.offset - 1}'
    weights.ignored[rows] = 'they are of no position'
  if TYPES in flat and len(flat[TYPES]) == 1:
    flat[TYPES] = np.repeat(flat[TYPES], 2, axis=0)
    new[TYPES] = 'row 1, a copy of row 0, the only one'
  if TYPES in flat and not model['type_vocab_size']:
    if flat[TYPES].any():
      raise InputError('config.json says there are no token types, but their table is not zero.')
    weights.ignored[weights.sources.pop(TYPES)[0]] = 'zeros: there are no token types'
    del flat[TYPES]
  if description.ours.get('pooler') is False:  # to_huggingface added zeros for a missing one
    for path in [path for path in flat if path.startswith('pooler/') and not flat[path].any()]:
      weights.ignored[weights.sources.pop(path)[0]] = 'zeros: there is no pooler'
      del flat[path]
  if positions and not tables:
    kind = model['position_embeddings']
    raise InputError(f'this model has {kind} positions and no table of them; leave out positions.')
  for path in tables if positions else ():
    table = flat[path]
    if positions > len(table):
      new[path] = f'rows {len(table)} to {positions - 1}'
    if positions < len(table):
      rows = f'rows {description.offset + positions} to {description.offset + len(table) - 1}'
      name = weights.sources[path][0]
      weights.ignored[f'{name}, {rows}'] = f'cut: {positions} positions were asked for'
    shape = positions, table.shape[1]
    rows = np.random.default_rng(0).normal(0, model['initializer_range'], shape)
    rows[: len(table)] = table[:positions]
    flat[path], model['max_position_embeddings'] = rows.astype(np.float32), positions
  return weights._replace(flat=flat, new=new, description=description._replace(model=model))


def _check_shapes(flat, model, sources, description=None):
  """InputError unless every array has the shape that the fields of config.model ask for. sources:
  see Weights. description: of the config.json that the fields come from, if any."""
  fields = FIELDS if model['embedding_size'] else FIELDS | {'E': 'hidden_size'}
  shapes = parameter_names.shapes(model)
  for path, x in flat.items():
    letters = shapes[path]
    sizes = [model[fields[c]] if c in fields else int(c) if c in '12' else None for c in letters]
    if x.ndim == len(sizes) and all(m in (n, None) for n, m in zip(x.shape, sizes)):
      continue
    name = sources[path][0] if path in sources else path
    wrong = [(fields[c], n) for c, n, m in zip(letters, x.shape, sizes) if n != m and c in fields]
    if x.ndim != len(sizes) or len(wrong) != 1:
      raise InputError(f'{name} is {x.shape}, where the config asks for {tuple(sizes)} of {path}.')
    ((field, n),) = wrong
    fix = f'set model.{field}={n}'
    if description:
      family = description.family
      if field == 'max_position_embeddings' and family.counts_offset:
        n += description.offset
      fix = f'write "{family.key_of(field)}": {n} in its config.json'
    fix += ' or convert it with --positions' if field == 'max_position_embeddings' else ''
    raise InputError(f'{name} is {x.shape}, and {field} is {model[field]}; {fix}.')


def tree(flat, model, sources=()):
  """Builds a ModelConfig's tree of parameters from {path: array}."""
  _check_shapes(flat, vars(model), dict(sources))
  flat = dict(flat)
  for path in flat.keys() & set(VOCABULARY):
    x = flat[path]
    flat[path] = np.pad(x, [(0, model.padded_vocab_size - len(x))] + [(0, 0)] * (x.ndim - 1))
  params = traverse_util.unflatten_dict(flat, sep='/')
  return models.stack_layers(params) if model.stacks_layers else params


def flatten(params, model):
  """Flattens a tree of parameters to {path: array}, layers apart, without padding rows."""
  flat = traverse_util.flatten_dict(models.unstack_layers(params), sep='/')
  size = dict.fromkeys(VOCABULARY, model.vocab_size)
  return {path: np.asarray(x)[: size.get(path)] for path, x in flat.items()}
