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
from bert_jax.config.model import MINILM
from bert_jax.convert import config_json, fused_tensors, parameter_names, tensor_files
from bert_jax.convert import sentence_transformers as vectors
from bert_jax.convert.families import google
from bert_jax.convert.families.record import Description
from bert_jax.convert.parameter_names import FIELDS, part_of
from bert_jax.errors import InputError, log, quoted
from bert_jax.files import Path
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
  flat: dict[str, np.ndarray]  # {path: float32 array, layers apart, vocabulary not padded}
  ignored: dict[str, str]  # {source name, or rows of it: why no parameter here comes from it}
  unused: dict[str, str]  # {source name: why it could not be used}
  unread: str  # why the head that config.json names is not read, a sentence; '' if it is


def locate(path: str | Path) -> Path:
  """Resolves 'minilm', or a path, which may begin with the name of an installed Python package, to
  a folder."""
  folder = Path(path).expanduser()
  if files.exists(folder) or folder.is_absolute():
    return folder
  if str(path) == 'minilm':
    folder = Path(MINILM)
  package = folder.parts[0] if folder.parts else ''
  spec = importlib.util.find_spec(package) if package.isidentifier() else None
  return Path(spec.origin).parent.joinpath(*folder.parts[1:]) if spec and spec.origin else folder


is_model, describe = config_json.is_model, config_json.read


def read(folder: Path) -> Weights:
  """Reads the Weights of a folder; InputError if the encoder is incomplete, or a tensor's shape
  contradicts config.json."""
  description = describe(folder)
  tensors, file = tensor_files.read(folder)
  tensors |= vectors.tensors(folder)
  family, model = description.family, description.model
  if any('/' in name for name in tensors):
    family = google.GOOGLE
  else:
    family = family.named_as(description.architecture, tensors)
  source_names = parameter_names.names_in_file(tensors, family)
  places = parameter_names.table(family, model)
  for path in family.zeros:  # a missing one means zeros
    place = places[path]
    if place.name not in source_names:
      shape = [model[FIELDS[letter]] for letter in place.shape]
      source_names[place.name] = place.name
      tensors[place.name] = np.zeros([1, *shape] if place.is_row else shape, np.float32)
  other_head = family.other_head(description, source_names)
  places = {path: x for path, x in places.items() if part_of(path) not in other_head.parts}
  copies = parameter_names.copies(family, places)
  ignored, stand_ins = _not_parameters(source_names, tensors, copies, places)
  ignored |= _buffers(family.buffers(model), source_names, tensors)
  names, incomplete = {}, {}  # incomplete: {part of a model: the source names that it lacks}
  for path, place in places.items():
    if place.name in source_names:
      names[path] = source_names[place.name]
    else:
      incomplete.setdefault(part_of(path), []).append(place.name)
  for tower in ('encoder', 'decoder', 'projection'):
    if tower in incomplete:
      raise InputError(
        f'the {tower} of these weights is not whole: {len(incomplete[tower])} missing, for example '
        f'{min(incomplete[tower])}, and the file has {len(tensors)} tensors, for example '
        f'{quoted(min(tensors, default="none"))}; is config.json theirs?'
      )
  objective = _objective(description, set(map(part_of, names)) - incomplete.keys())
  unused, silent = _of_no_use(names, incomplete, objective, model['token_pooler'])
  ignored |= silent
  rest = tensors.keys() - {*names.values(), *ignored, *stand_ins}
  unused |= _without_place(rest, source_names, family)
  for name in unused:
    if name.startswith(other_head.names):
      unused[name] = other_head.why
  unread = _unread(folder, description.architecture, objective, unused)
  unused |= vectors.read(folder).unread
  flat, sources = {}, {}
  for path, name in sorted(names.items()):
    if name not in unused and name not in ignored:
      flat[path] = fused_tensors.cut(tensors[name], name, places[path])
      sources[path] = name
  _fit_tables(description, flat, sources, ignored)
  for path, x in flat.items():
    _check_shape(sources[path], x, places[path], model)
  if unused:
    log.info('%s: not used: %s', file, ', '.join(sorted(unused)))
  return Weights(description, objective, flat, ignored, unused, unread)


def _not_parameters(source_names, tensors, copies, paths):
  """({source name: why it is no parameter}, source names of the copies that stand in for an
  original which the file lacks or has no use for; source_names is changed to use them). paths: of
  the model's parameters."""
  ignored, stand_ins = {}, {}
  for copy, original in copies.items():
    if copy not in source_names:
      continue
    name = source_names[copy]
    if original not in source_names:
      stand_ins[original] = name
    elif np.array_equal(tensors[name], tensors[source_names[original]]):
      ignored[name] = f'a copy of {source_names[original]}'
    elif copy.endswith('.bias') and 'mlm/decoder' in paths:  # transformers 5 adds this one alone
      ignored[source_names[original]] = f'the decoder is not tied, and adds {name}'
      stand_ins[original] = name
    else:
      raise InputError(
        f'{name} differs from {source_names[original]}; say "tie_word_embeddings": false in '
        'config.json.'
      )
  source_names.update(stand_ins)
  for name in tensors:
    why = parameter_names.not_a_parameter(name)
    if why:
      ignored[name] = why
  return ignored, list(stand_ins.values())


def _buffers(expected, source_names, tensors):
  """{source name: why it is no parameter} of a family's buffers in a file. InputError for other
  numbers than are expected, but for the rounding of half precision."""
  out = {}
  for buffer in expected.keys() & source_names:
    name = source_names[buffer]
    x = np.asarray(tensors[name], np.float32)
    if x.shape != expected[buffer].shape or not np.allclose(x, expected[buffer], atol=0.01):
      raise InputError(
        f'{name} does not hold the numbers that follow from config.json, which are computed here, '
        'so it would not be the same model.'
      )
    out[name] = 'a buffer that follows from config.json'
  return out


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
        raise InputError(
          f'these weights are of a {architecture} and have no {lacks[0]}, which its {last} stands '
          'on; are they whole?'
        )
      if set(parts) >= set(head.parameters) and (is_named or not head.found_by_class_name):
        fitting.append(((is_labelled, is_named, len(head.parameters)), task.name))
  return max(fitting, key=lambda rank_and_name: rank_and_name[0])[1]


def _unread(folder, architecture, objective, unused):
  """Why the head of a class is not read, a sentence; '' if models for the objective have it, or if
  all there is makes vectors. A class may be called otherwise than those known here, such as
  Contriever and BertForMultiLabelClassification: then what the weights hold decides."""
  suffixes = {name: [head.class_suffix for head in x.heads] for name, x in TASKS.items()}
  is_known = architecture.endswith(tuple(sum(suffixes.values(), [])))
  of_vectors = vectors.read(folder)
  makes_vectors = of_vectors.vector.pooling or of_vectors.unread
  if not unused and (makes_vectors or not is_known):
    return ''
  if not architecture or architecture.endswith(('Model', *suffixes[objective])):
    return ''
  name, why = min(unused.items(), default=('its weights', 'none of them is of such a head'))
  return (
    f'config.json says {architecture}, whose head is not read ({name}: {why}); ask for vectors '
    '(task embed), or fine-tune a head (configs/finetune.py).'
  )


def _of_no_use(names, incomplete, objective, pools_tokens):
  """({source name: why it cannot be used}, {source name: why that needs no word}) for tensors of
  parts that are incomplete or that the objective's models have not. names: {path: source name}.
  pools_tokens: do labelled tokens go through the pooler?"""
  unused, silent, task = {}, {}, TASKS[objective]
  parts = set(map(part_of, names)) - incomplete.keys()
  known = {*task.parts, 'projection'}
  if pools_tokens:
    known.add('pooler')
  if task.reads_corpus and 'mlm' in parts and 'nsp' not in parts:
    known.discard('pooler')  # there is no head for pairs, which would stand on it
  for path, name in names.items():
    part = part_of(path)
    if part in incomplete:
      unused[name] = f'its {part} is not whole: {min(incomplete[part])} is missing'
    elif part not in known:
      reasons = silent if part == 'pooler' else unused
      reasons[name] = f'a model for {objective} has no {part}'
  return unused, silent


def _without_place(rest, source_names, family):
  """{source name: why it is not used} for tensors without a parameter; InputError for encoders'."""
  shorter = {name: short for short, name in source_names.items()}
  inner = [name for name in rest if shorter.get(name, name).startswith(family.prefix)]
  if inner:
    raise InputError(
      f'the encoder of these weights has tensors that ours has not ({len(inner)}, for example '
      f'{quoted(min(inner))}); is config.json theirs?'
    )
  return dict.fromkeys(rest, 'no model here has such a tensor')


def _fit_tables(description, flat, sources, ignored):
  """Fits the embedding tables to ours: drops RoBERTa's rows before position 0, and makes token
  types two or none where an export of ours says so."""
  type_count, offset = description.model['type_vocab_size'], description.offset

  def leave_out(path, why):
    ignored[sources.pop(path)] = why
    del flat[path]

  for path in ALL_POSITIONS:
    if path in flat:
      flat[path] = flat[path][offset:]
  if TYPES in flat and len(flat[TYPES]) == 1 and type_count == 2:
    flat[TYPES] = np.repeat(flat[TYPES], 2, axis=0)
  if TYPES in flat and not type_count:
    if flat[TYPES].any():
      raise InputError('config.json says there are no token types, but their table is not zero.')
    leave_out(TYPES, 'zeros: there are no token types')
  if description.ours.get('pooler') is False:  # to_huggingface added zeros for a missing one
    for path in list(flat):
      if part_of(path) == 'pooler' and not flat[path].any():
        leave_out(path, 'zeros: there is no pooler')


def _check_shape(name, x, place, model):
  """InputError unless a parameter has the shape that the fields of config.model ask for."""
  made = models.ModelConfig(**model)
  size_of = {letter: model[field] for letter, field in FIELDS.items()}
  size_of |= {
    '1': 1,
    '2': 2,
    'C': None,  # any number of labels
    'E': made.embedding_width,
    'R': made.distance_rows,
    'Q': made.num_attention_heads * made.head_size,
    'G': made.key_value_heads * made.head_size,
    'J': made.projection_size,
  }
  sizes = tuple(size_of[letter] for letter in place.shape)
  fits = [expected in (size, None) for size, expected in zip(x.shape, sizes)]
  if x.ndim != len(sizes) or not all(fits):
    raise InputError(f'{name} is {x.shape}, where config.json asks for {sizes}; correct it.')


def tree(flat: Mapping[str, np.ndarray], model: models.ModelConfig) -> dict[str, Any]:
  """Builds a model's tree of parameters from {path: array}."""
  flat, rows = dict(flat), model.padded_vocab_size
  for path in flat.keys() & set(VOCABULARY):
    x = flat[path]
    flat[path] = np.pad(x, [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1))
  params = traverse_util.unflatten_dict(flat, sep='/')
  return models.stack_layers(params) if model.stacks_layers else params


def flatten(params: Any, model: models.ModelConfig) -> dict[str, np.ndarray]:
  """Flattens a tree of parameters to {path: array}, layers apart, without padding rows."""
  flat = traverse_util.flatten_dict(models.unstack_layers(params), sep='/')
  flat = {path: np.asarray(x) for path, x in flat.items()}
  for path in VOCABULARY:
    if path in flat:
      flat[path] = flat[path][: model.vocab_size]
  return flat
