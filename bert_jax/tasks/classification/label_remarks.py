"""Counts the labels of a classification and warns of odd ones before the first step."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.tasks.classification.reading import names
from bert_jax.text.values import finite_number

log = logging.getLogger('bert_jax')

NAMED = 10  # labels that are named
NUMBERS = 5  # if at least so many labels are all numbers, they may be quantities


def counted(source: Any, number: int) -> np.ndarray:
  """Counts the texts that have each of `number` labels, [L]. source: the Examples."""
  labels, weights = source.per_example['labels'], source.per_example['weights']
  # The windows of a text share its weight, 1; a text without a label has weight 0.
  total = weights @ labels if labels.ndim == 2 else np.bincount(labels, weights, number)
  return np.rint(total).astype(int)


def log_counts(config: ConfigDict, source: Any) -> None:
  """Logs the labels of the training data with their counts, the most frequent first."""
  if not config.table.regression:
    labels = names(config.table.labels)
    counts = counted(source, len(labels))
    order = np.argsort(-counts, kind='stable')
    log.info('labels: %s', _some([f'{labels[i]} {counts[i]:,}' for i in order]))


def remarks(config: ConfigDict, sources: Mapping[str, Any]) -> list[str]:
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
  numbers = not table.multi_label and all(finite_number(label) is not None for label in labels)
  if numbers and len(labels) >= NUMBERS:
    quantity = 'table.regression=true learns them as numbers'
    out.append(f'all {len(labels)} labels are numbers and are taken as classes; {quantity}.')
  return out


def _some(shown: list[str]) -> str:
  """Joins some names: 'a, b, c and 3 more'."""
  more = f' and {len(shown) - NAMED} more' if len(shown) > NAMED else ''
  return ', '.join(shown[:NAMED]) + more
