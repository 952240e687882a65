"""A complete config for weights that come without one: the repository's own, with their sizes.

What a released model can be asked follows from its head; everything else (optimizer, batch) is what
`configs/` says, so a run that starts from it is one config away.
"""

import json
from pathlib import Path

import bert_jax
from bert_jax import config as config_lib
from bert_jax.config.fields import OBJECTIVE_BLOCKS
from bert_jax.errors import InputError

CONFIGS = Path(bert_jax.__file__).parents[1] / 'configs'
FILES = {
  'mlm_nsp': 'pretrain.py',
  'classification': 'finetune.py:task=table',
  'tagging': 'finetune.py:task=ner',
  'qa': 'finetune.py:task=squad',
  'choice': 'finetune.py:task=swag',
}
LONGEST = 512  # tokens of an example, if the positions allow it
CHOICES = 4  # of that length in a row


def config_of(weights, tokenizer=None, longest=0):
  """The config of a run that has these Weights and this tokenizer. longest: tokens of an example,
  if something says so."""
  config = config_lib.load(f'{CONFIGS}/{FILES[weights.objective]}')
  model = weights.description.model
  config.model.update(model)
  config.model.dtype = 'float32'
  config.tokenizer.do_lower_case = getattr(tokenizer, 'do_lower_case', True)
  limit = min(longest or LONGEST, model['max_position_embeddings'])
  config.data.seq_length = limit
  own = {'classification': _table, 'tagging': _tagging, 'choice': _choice, 'mlm_nsp': _pretraining}
  if weights.objective in own:
    own[weights.objective](config, weights, limit)
  return config_lib.check(_as_exported(config, weights, limit))


def _as_exported(config, weights, limit):
  """What our own export says of the task besides (pairs, windows, lengths), as it was."""
  ours = weights.description.ours
  if ours.get('objective') != weights.objective:
    return config
  fields = json.loads(config_lib.to_json(config))
  try:
    for block in OBJECTIVE_BLOCKS[weights.objective]:
      saved = ours.get(block, {})
      fields[block] |= {k: v for k, v in saved.items() if k in fields[block] and k != 'labels'}
    longest = config.data.seq_length
    fields['data']['seq_length'] = min(ours.get('seq_length', longest), longest)
    if 'task' in fields:
      fields['task']['max_length'] = min(fields['task']['max_length'], limit)
    return config_lib.from_json(json.dumps(fields))
  except (AttributeError, TypeError, ValueError) as error:
    raise InputError(f'config.json says under "bert_jax" what is not ours ({error}).') from None


def _labels(weights):
  """The labels of a classifier by id2label, or LABEL_0, LABEL_1... where nothing says."""
  count, found = len(weights.flat['classifier/dense/bias']), weights.description.labels
  if not found:
    found = tuple(f'LABEL_{i}' for i in range(count))
  if len(found) != count:
    raise InputError(
      f'config.json names {len(found)} labels (id2label) and the classifier has {count}; name all.'
    )
  if twice := [label for i, label in enumerate(found) if label in found[:i]]:
    raise InputError(f'config.json names the label {twice[0]!r} twice; rename one in id2label.')
  return found


def _table(config, weights, limit):
  labels, problem = _labels(weights), weights.description.problem
  if problem == 'regression' and len(labels) > 1:
    raise InputError(
      f'the regression has {len(labels)} outputs, and ours has one, so it cannot be read.'
    )
  config.table.multi_label = problem == 'multi_label_classification'
  config.table.regression = not config.table.multi_label and len(labels) == 1
  if odd := [label for label in labels if '|' in label]:
    raise InputError(
      f'the label {odd[0]!r} holds a |, which stands between two spellings here; rename it in '
      'id2label.'
    )
  if not config.table.regression:
    config.table.labels = labels


def _tagging(config, weights, limit):
  config.tagging.labels = _labels(weights)


def _choice(config, weights, limit):
  config.task.max_length, config.data.seq_length = limit, CHOICES * limit


def _pretraining(config, weights, limit):
  config.masking.max_predictions_per_seq = max(1, round(0.15 * limit))
  if not {'pooler', 'nsp'} & {path.partition('/')[0] for path in weights.flat}:
    config.loss.nsp_weight, config.corpus.rows = 0.0, 'full'
