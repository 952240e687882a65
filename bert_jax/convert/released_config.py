"""Makes a config for released weights: their sizes, their head's objective, and defaults."""

import json

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.convert.from_huggingface import Weights
from bert_jax.convert.parameter_names import part_of
from bert_jax.errors import InputError, quoted
from bert_jax.tasks import TASKS
from bert_jax.tasks.record import Released
from bert_jax.tokenizers import Tokenizer

LONGEST = 512  # tokens of an example, if the positions allow it


def config_of(weights: Weights, tokenizer: Tokenizer | None = None, longest: int = 0) -> ConfigDict:
  """A complete config. longest: tokens of an example; 0: unknown."""
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
    pairs=description.family.pairs,
    begin=description.begin,
    pooling=description.pooling,
    writing=description.writing,
  )
  task = TASKS[weights.objective]
  if task.prior:
    config_lib.set_field(config, task.prior, ())  # the weights are in units
  task.from_released(config, released)
  return config_lib.check(_as_exported(config, weights, limit))


def _as_exported(config, weights, limit):
  """Sets the fields of the task (pairs, windows, lengths) that an export of ours recorded."""
  ours, task = weights.description.ours, TASKS[weights.objective]
  if ours.get('objective') != weights.objective:
    return config
  fields = json.loads(config_lib.to_json(config))
  try:
    saved = {}
    for block in task.blocks:
      for field, value in ours.get(block, {}).items():
        saved[f'{block}.{field}'] = value
    if saved:  # an export that lacks a field is older than it
      saved = config_lib.pasts(task.fields) | saved
    for name, value in saved.items():
      block, _, field = name.partition('.')
      is_there = field and field in fields[block] and field != 'labels'
      if is_there and name not in task.training_fields:
        fields[block][field] = value
    longest = config.data.seq_length
    fields['data']['seq_length'] = min(ours.get('seq_length', longest), longest)
    if task.limit_field:
      block, _, field = task.limit_field.partition('.')
      fields[block][field] = min(fields[block][field], limit)
    return config_lib.from_json(json.dumps(fields))
  except (AttributeError, TypeError, ValueError) as error:
    raise InputError(f'config.json says under "bert_jax" what is not ours ({error}).') from None


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
  for i, label in enumerate(labels):
    if label in labels[:i]:
      raise InputError(f'id2label of config.json names {quoted(label)} twice; rename one.')
  return labels
