"""Reads released weights as parameters of our models, with every tensor accounted for.

A folder holds a config.json, tensors under the names of a family of models, and a vocabulary. The
head among the weights decides the model's objective. Our tables of words are padded with rows of
zeros to `padded_vocab_size`; in files they are not.

Below, a path names one of our parameters, 'encoder/layer_0/output/kernel'; a source name is the
name of a tensor in the file.
"""

import importlib.util
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from bert_jax import models
from bert_jax.convert import checksums, config_json, fused_tensors, parameter_names, tensor_files
from bert_jax.convert import sentence_transformers as vectors
from bert_jax.convert.families import google
from bert_jax.convert.families.record import Description, ReleasedFamily
from bert_jax.convert.parameter_names import FIELDS
from bert_jax.errors import InputError, log, quoted
from bert_jax.files import Path
from bert_jax.tasks import TASKS
from bert_jax.text import files

VOCABULARY = ('encoder/embeddings/word_embeddings/embedding', 'mlm/bias', 'mlm/decoder')
POSITIONS = 'encoder/embeddings/position_embeddings/embedding'
ALL_POSITIONS = POSITIONS, POSITIONS.replace('encoder', 'decoder')
TYPES = 'encoder/embeddings/token_type_embeddings/embedding'
Arrays = Mapping[str, np.ndarray]  # by path
Sources = Mapping[str, tuple[str, str]]  # {path: (source name, source dtype)}


class Weights(NamedTuple):
  """The weights read from a folder, with the use made of each of its tensors."""

  description: Description
  objective: str
  flat: dict[str, np.ndarray]  # {path: float32 array, layers apart, vocabulary not padded}
  sources: dict[str, tuple[str, str]]  # as Sources
  ignored: dict[str, str]  # {source name, or rows of it: why no parameter here comes from it}
  unused: dict[str, str]  # {source name: why it could not be used}
  new: dict[str, str]  # {path: which of its rows have no tensor in the source}

  def tree(self, model: models.ModelConfig) -> dict[str, Any]:
    """The parameters as a tree; InputError if a shape does not fit the model."""
    return tree(self.flat, model, self.sources)


def locate(path: str | Path) -> Path:
  """Resolves a path, which may begin with the name of an installed Python package, to a folder."""
  folder = Path(path).expanduser()
  if files.exists(folder) or folder.is_absolute():
    return folder
  package = folder.parts[0] if folder.parts else ''
  spec = importlib.util.find_spec(package) if package.isidentifier() else None
  return Path(spec.origin).parent.joinpath(*folder.parts[1:]) if spec and spec.origin else folder


is_model, describe = config_json.is_model, config_json.read


def read(folder: Path, positions: int = 0) -> Weights:
  """Reads the Weights of a folder. positions: rows that the position table shall have; 0: as it is.
  InputError if the encoder is incomplete, or a tensor's shape contradicts config.json."""
  checksums.check(folder)
  description = describe(folder)
  tensors, file = tensor_files.read(folder)
  tensors |= vectors.tensors(folder, description.model['hidden_size'])
  family, model = _named_as(tensors, description, file), description.model
  source_names = parameter_names.names_in_file(tensors, family)
  places = parameter_names.table(family, model)
  for place in (places[path] for path in family.zeros if places[path].name not in source_names):
    source_names[place.name] = place.name  # a missing one means zeros
    shape = [model[FIELDS[letter]] for letter in place.shape]
    tensors[place.name] = np.zeros([1] * place.is_row + shape, np.float32)
  other_head = family.other_head(description, source_names)
  places = {path: x for path, x in places.items() if _part(path) not in other_head.parts}
  copies = parameter_names.copies(family, places)
  ignored, stand_ins = _not_parameters(source_names, tensors, copies, places)
  ignored |= _buffers(source_names, tensors, family.buffers(model))
  names = {path: source_names[x.name] for path, x in places.items() if x.name in source_names}
  incomplete = {}  # {incomplete part of a model: the source names that it lacks}
  for path in places.keys() - names.keys():
    incomplete.setdefault(_part(path), []).append(places[path].name)
  for tower in incomplete.keys() & {'encoder', 'decoder', 'projection'}:
    lacks = f'{len(incomplete[tower])} missing, for example {min(incomplete[tower])}'
    has = f'the file has {len(tensors)} tensors, for example {quoted(min(tensors, default="none"))}'
    fault = f'the {tower} of these weights is not whole: {lacks}, and {has}'
    raise InputError(f'{fault}; is config.json theirs?')
  objective = _objective(description, set(map(_part, names)) - incomplete.keys())
  unused, silent = _of_no_use(names, incomplete, objective, model['token_pooler'])
  ignored |= silent
  rest = tensors.keys() - {*names.values(), *ignored, *stand_ins}
  unused |= _without_place(rest, source_names, family)
  unused |= {name: other_head.why for name in unused if name.startswith(other_head.names)}
  flat, sources = {}, {}
  for path, name in sorted(names.items()):
    if name not in unused and name not in ignored:
      flat[path] = fused_tensors.cut(tensors[name], name, places[path])
      sources[path] = name, str(tensors[name].dtype)
  weights = Weights(description, objective, flat, sources, ignored, unused, {})
  weights = _fit_tables(weights, positions)
  _check_shapes(weights.flat, weights.description.model, weights.sources, description)
  if unused:
    log.info('%s: not used: %s', file, ', '.join(sorted(unused)))
  return weights


def _part(path: str) -> str:
  """The part of a model that a parameter is in: encoder, pooler, mlm, ..."""
  return path.partition('/')[0]


def _named_as(tensors, description, file) -> ReleasedFamily:
  """The family whose tensor names the file uses."""
  family = description.family
  if any('/' in name for name in tensors):
    if not any(name.startswith('bert/') for name in tensors):
      known = 'none of the names of google-research/bert (bert/..)'
      only = 'of TensorFlow only its checkpoints are read'
      raise InputError(f'{file} has {known}, but {quoted(min(tensors))}; {only}.')
    return google.GOOGLE
  return family.named_as(description.architecture, tensors)


def _not_parameters(source_names, tensors, copies, paths):
  """({source name: why it is no parameter}, source names of the copies that stand in for an
  original which the file lacks or has no use for; source_names is changed to use them). paths: of
  the model's parameters."""
  ignored, stand_ins = {}, {}
  for copy, original in copies.items():
    if copy not in source_names:
      continue
    if original not in source_names:
      stand_ins[original] = source_names[copy]
    elif np.array_equal(tensors[source_names[copy]], tensors[source_names[original]]):
      ignored[source_names[copy]] = f'a copy of {source_names[original]}'
    elif copy.endswith('.bias') and 'mlm/decoder' in paths:  # transformers 5 adds this one alone
      ignored[source_names[original]] = f'the decoder is not tied, and adds {source_names[copy]}'
      stand_ins[original] = source_names[copy]
    else:
      two = f'{source_names[copy]} differs from {source_names[original]}'
      raise InputError(f'{two}; say "tie_word_embeddings": false in config.json.')
  source_names.update(stand_ins)
  ignored |= {name: why for name in tensors if (why := parameter_names.not_a_parameter(name))}
  return ignored, list(stand_ins.values())


def _buffers(source_names, tensors, buffers):
  """{source name: why it is none} of a family's buffers, {name: array}; InputError for others."""
  there = {source_names[name]: x for name, x in buffers.items() if name in source_names}
  for name, x in there.items():
    if tensors[name].shape != x.shape or not np.allclose(tensors[name], x, atol=1e-5):
      fault = f'{name} is not what config.json makes it'
      raise InputError(f'{fault}; these weights are of another kind.')
  return dict.fromkeys(there, 'a buffer that follows from config.json')


def _objective(description: Description, parts: Collection[str]) -> str:
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
      if set(parts) >= set(head.parameters) and (is_named or not head.found_by_class_name):
        fitting.append(((is_labelled, is_named, len(head.parameters)), task.name))
  return max(fitting, key=lambda rank_and_name: rank_and_name[0])[1]


def _of_no_use(names, incomplete, objective, pools_tokens):
  """({source name: why it cannot be used}, {source name: why that needs no word}) for tensors of
  parts that are incomplete or that the objective's models have not. names: {path: source name}.
  pools_tokens: do labelled tokens go through the pooler?"""
  unused, silent, task = {}, {}, TASKS[objective]
  parts = set(map(_part, names)) - incomplete.keys()
  no_pairs = task.reads_corpus and 'mlm' in parts and 'nsp' not in parts
  for path, name in names.items():
    part = _part(path)
    if part in incomplete:
      unused[name] = f'its {part} is not whole: {min(incomplete[part])} is missing'
    elif part == 'pooler' and no_pairs:
      silent[name] = 'there is no head for pairs, which would stand on the pooler'
    elif part not in (*task.parts, 'projection', *['pooler'] * pools_tokens):
      reasons = silent if part == 'pooler' else unused
      reasons[name] = f'a model for {objective} has no {part}'
  return unused, silent


def _without_place(rest, source_names, family):
  """{source name: why it is not used} for tensors without a parameter; InputError for encoders'."""
  plain = {name: short for short, name in source_names.items()}
  if inner := [name for name in sorted(rest) if plain.get(name, name).startswith(family.prefix)]:
    more = f'tensors that ours has not ({len(inner)}, for example {quoted(inner[0])})'
    raise InputError(f'the encoder of these weights has {more}; is config.json theirs?')
  return dict.fromkeys(rest, 'no parameter of ours is called so')


def _fit_tables(weights: Weights, positions: int) -> Weights:
  """Fits the embedding tables to ours: drops RoBERTa's rows before position 0, makes token types
  two or none where an export of ours says so, and cuts or extends positions as asked."""
  description, _, flat, sources, ignored, _, new = weights
  model, offset = dict(description.model), description.offset

  def left_out(path, why):
    ignored[sources.pop(path)[0]] = why
    del flat[path]

  tables = [path for path in ALL_POSITIONS if path in flat]
  for path in tables if offset else ():
    flat[path] = flat[path][offset:]
    ignored[f'{sources[path][0]}, rows 0 to {offset - 1}'] = 'they are of no position'
  if TYPES in flat and len(flat[TYPES]) == 1 and model['type_vocab_size'] == 2:
    flat[TYPES] = np.repeat(flat[TYPES], 2, axis=0)
    new[TYPES] = 'row 1, a copy of row 0, the only one'
  if TYPES in flat and not model['type_vocab_size']:
    if flat[TYPES].any():
      raise InputError('config.json says there are no token types, but their table is not zero.')
    left_out(TYPES, 'zeros: there are no token types')
  if description.ours.get('pooler') is False:  # to_huggingface added zeros for a missing one
    for path in [path for path in flat if path.startswith('pooler/') and not flat[path].any()]:
      left_out(path, 'zeros: there is no pooler')
  if positions and not tables:
    raise InputError('this model has no table of positions; leave out --positions.')
  for path in tables if positions else ():
    table = flat[path]
    if positions > len(table):
      new[path] = f'rows {len(table)} to {positions - 1}'
    if positions < len(table):
      cut = f'{sources[path][0]}, rows {offset + positions} to {offset + len(table) - 1}'
      ignored[cut] = f'cut: {positions} positions were asked for'
    shape = positions, table.shape[1]
    rows = np.random.default_rng(0).normal(0, model['initializer_range'], shape)
    rows[: len(table)] = table[:positions]
    flat[path], model['max_position_embeddings'] = rows.astype(np.float32), positions
  return weights._replace(description=description._replace(model=model))


def _check_shapes(flat, model, sources, description=None):
  """InputError unless every array has the shape that the fields of config.model ask for, which are
  of the config.json with this description, if any. sources: see Weights."""
  fields = FIELDS if model['embedding_size'] else FIELDS | {'E': 'hidden_size'}
  shapes, made = parameter_names.shapes(model), models.ModelConfig(**model)
  known, d = {'1': 1, '2': 2, 'R': made.distance_rows}, made.head_size
  known |= {'Q': made.num_attention_heads * d, 'G': made.key_value_heads * d}
  known |= {'J': made.projection_size or None}  # None: of weights whose projection is not taken
  for path, x in flat.items():
    letters = shapes[path]
    sizes = [model[fields[c]] if c in fields else known.get(c) for c in letters]
    if x.ndim == len(sizes) and all(m in (n, None) for n, m in zip(x.shape, sizes)):
      continue
    name = sources[path][0] if path in sources else path
    wrong = [(fields[c], n) for c, n, m in zip(letters, x.shape, sizes) if n != m and c in fields]
    if x.ndim != len(sizes) or len(wrong) != 1:
      raise InputError(f'{name} is {x.shape}, where the config asks for {tuple(sizes)} of {path}.')
    ((field, n),) = wrong
    fix, is_position = f'set model.{field}={n}', field == 'max_position_embeddings'
    if description:
      n += description.offset if is_position and description.family.counts_offset else 0
      fix = f'write "{description.family.key_of(field)}": {n} in its config.json'
    fix += ' or convert it with --positions' if is_position else ''
    raise InputError(f'{name} is {x.shape}, and {field} is {model[field]}; {fix}.')


def tree(flat: Arrays, model: models.ModelConfig, sources: Sources | None = None) -> dict[str, Any]:
  """Builds a model's tree of parameters from {path: array}."""
  _check_shapes(flat, vars(model), sources or {})
  flat, rows = dict(flat), model.padded_vocab_size
  for path in flat.keys() & set(VOCABULARY):
    x = flat[path]
    flat[path] = np.pad(x, [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1))
  params = traverse_util.unflatten_dict(flat, sep='/')
  return models.stack_layers(params) if model.stacks_layers else params


def flatten(params: Any, model: models.ModelConfig) -> dict[str, np.ndarray]:
  """Flattens a tree of parameters to {path: array}, layers apart, without padding rows."""
  flat = traverse_util.flatten_dict(models.unstack_layers(params), sep='/')
  words = lambda path, x: x[: model.vocab_size] if path in VOCABULARY else x
  return {path: words(path, np.asarray(x)) for path, x in flat.items()}
