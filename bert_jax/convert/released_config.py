"""Makes a config for released weights: their sizes, their head's objective, and defaults."""

import json

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.convert.from_huggingface import Weights
from bert_jax.convert.parameter_names import part_of
from bert_jax.errors import InputError, log
from bert_jax.tasks import TASKS
from bert_jax.tasks.record import Released
from bert_jax.tokenizers import Tokenizer

LONGEST = 512  # tokens of an example, if the positions allow it


def config_of(
  weights: Weights,
  tokenizer: Tokenizer | None = None,
  longest: int = 0,
  makes_vectors: bool = False,
) -> ConfigDict:
  """A complete config. longest: tokens of an example; 0: unknown. makes_vectors: do its files say
  how a vector is made of a text?"""
  config, description = config_lib.defaults(weights.objective), weights.description
  model = description.model
  config.model.update(model)
  config.tokenizer.do_lower_case = tokenizer is None or tokenizer.do_lower_case
  limit = min(longest or LONGEST, model['max_position_embeddings'])
  config.data.seq_length = limit
  if config.model.mixer == 'fourier':  # it mixes all tokens of a row
    config.data.examples_per_row = 1
  released = Released(
    parts=tuple(dict.fromkeys(map(part_of, weights.flat))),
    labels=lambda: _labels(weights),
    problem=description.problem,
    limit=limit,
    makes_vectors=makes_vectors,
    pairs=description.family.pairs,
    begin=description.begin,
    pooling=description.pooling,
    activation=description.activation,
    writing=description.writing,
    cut_side=description.cut_side,
  )
  task = TASKS[weights.objective]
  if task.prior:
    config_lib.set_field(config, task.prior, ())  # the weights are in units
  task.from_released(config, released)
  if description.unread_writing and (task.writing or task.begin):
    log.warning(
      'transformers would write other texts, by what is not read: %s', description.unread_writing
    )
  if description.cut_side != task.as_released(config).cut_side:
    log.warning('a long text is cut at its end here, though truncation_side is left')
  return config_lib.check(_as_exported(config, weights))


def _as_exported(config, weights):
  """Sets the fields of the task (pairs, windows, lengths) that an export of ours recorded."""
  ours, task = weights.description.ours, TASKS[weights.objective]
  if ours.get('objective') != weights.objective:
    return config
  fields = json.loads(config_lib.to_json(config))
  for block in task.blocks:
    for field, value in ours.get(block, {}).items():
      if field in fields[block] and field != 'labels':
        fields[block][field] = value
  longest = config.data.seq_length
  fields['data']['seq_length'] = min(ours.get('seq_length', longest), longest)
  return config_lib.from_json(json.dumps(fields))


def _labels(weights):
  """The labels of a classifier by id2label, or LABEL_0, LABEL_1... without one."""
  labels, (_, count) = weights.description.labels, weights.flat['classifier/dense/kernel'].shape
  if not labels:
    labels = tuple(f'LABEL_{i}' for i in range(count))
  if len(labels) != count:
    raise InputError(
      f'id2label of config.json names {len(labels)} labels, and the classifier has {count}; '
      'name all.'
    )
  return labels
