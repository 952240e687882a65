"""Counts the labels of a classification and warns of odd ones before the first step."""

import logging

import numpy as np

from bert_jax.tasks.classification.reading import names

log = logging.getLogger('bert_jax')

NAMED = 10  # labels that are named
NUMBERS = 5  # if at least so many labels are all numbers, they may be quantities


def counted(source, number):
  """Counts the texts that have each of `number` labels, [L]. source: the Examples."""
  labels, weights = source.per_example['labels'], source.per_example['weights']
  # The windows of a text share its weight, 1; a text without a label has weight 0.
  if labels.ndim == 2:
    return np.rint(weights @ labels).astype(int)
  return np.rint(np.bincount(labels, weights, number)).astype(int)


def log_counts(config, source):
  """Logs the labels of the training data with their counts, the most frequent first."""
  if config.table.regression:
    return
  labels = names(config.table.labels)
  counts = counted(source, len(labels))
  order = np.argsort(-counts, kind='stable')
  log.info('labels: %s', _some([f'{labels[i]} {counts[i]:,}' for i in order]))


def remarks(config, sources):
  """Warnings about labels that are rare, or that may be quantities."""
  table, labels, out = config.table, names(config.table.labels), []
  if table.regression:
    return out
  train = counted(sources['train'], len(labels))
  if rare := [label for label, number in zip(labels, train) if number < 2]:
    fix = 'give more examples, or put them under another label'
    out.append(f'labels with one example or none in training: {_some(rare)}; {fix}.')
  if 'eval' in sources:
    held = counted(sources['eval'], len(labels))
    missing = [label for label, n, m in zip(labels, train, held) if n and not m]
    if missing and held.any():
      fix = 'name more in data.eval' if config.data.eval else 'raise table.eval_share'
      out.append(f'labels that no example of the held-out data has: {_some(missing)}; {fix}.')
  if not table.multi_label and len(labels) >= NUMBERS and all(map(_is_number, labels)):
    quantity = 'table.regression=true learns them as numbers'
    out.append(f'all {len(labels)} labels are numbers and are taken as classes; {quantity}.')
  return out


def _is_number(label):
  try:
    return np.isfinite(float(label))
  except ValueError:
    return False


def _some(shown):
  """Joins some names: 'a, b, c and 3 more'."""
  more = f' and {len(shown) - NAMED} more' if len(shown) > NAMED else ''
  return ', '.join(shown[:NAMED]) + more
