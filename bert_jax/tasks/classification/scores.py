"""The scores of classifiers, among them those of GLUE (Wang et al. 2018).

Where each text has one label: accuracy, Matthews correlation, macro F1 and, of two labels, F1 of
the second. Where it has several: micro and macro F1, and the share of texts whose labels are all
right. For numbers: their mean absolute error, and Pearson's and Spearman's correlations.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.tasks.scored import correlations


def of_labels(gold: list, predicted: list, labels: Sequence[Any]) -> dict[str, float]:
  """The scores where each text has one of some labels."""
  from sklearn.metrics import f1_score, matthews_corrcoef  # slow to import

  gold, predicted = list(map(str, gold)), list(map(str, predicted))  # scikit-learn knows no 0.5
  out = {'accuracy': float(np.mean(np.array(gold) == np.array(predicted)))}
  if len(labels) == 2:
    positive = str(labels[1])  # see label_sets.positive
    out['f1'] = float(f1_score(gold, predicted, pos_label=positive, zero_division=0))
  # Over the labels that occur.
  out['macro_f1'] = float(f1_score(gold, predicted, average='macro', zero_division=0))
  out['matthews'] = 0.0
  if len({*gold, *predicted}) > 1:  # else scikit-learn would warn
    out['matthews'] = float(matthews_corrcoef(gold, predicted))
  return out


def of_several(gold: list, predicted: list, labels: Sequence[Any]) -> dict[str, float]:
  """The scores where each text has a list of labels."""
  from sklearn.metrics import f1_score  # slow to import

  of_gold = np.array([np.isin(labels, several) for several in gold])
  of_predicted = np.array([np.isin(labels, several) for several in predicted])
  return {
    'micro_f1': float(f1_score(of_gold, of_predicted, average='micro', zero_division=0)),
    'macro_f1': float(f1_score(of_gold, of_predicted, average='macro', zero_division=0)),
    'subset_accuracy': float((of_gold == of_predicted).all(axis=1).mean()),
  }


def of_numbers(gold: list[float], predicted: list[float]) -> dict[str, float]:
  """The scores of a regression."""
  error = float(np.mean(np.abs(np.subtract(gold, predicted))))
  return {'mean_absolute_error': error} | correlations(gold, predicted)


def by_label(answers: list[dict], labels: Sequence[Any]) -> list[dict]:
  """How each label is answered, see scored.Scored."""
  held, given, right = Counter(), Counter(), Counter()
  for answer in answers:
    if 'gold' not in answer:
      continue
    gold, predicted = answer['gold'], answer['prediction']
    if not isinstance(predicted, list):
      gold, predicted = [gold], [predicted]
    held.update(gold)
    given.update(predicted)
    right.update({*gold} & {*predicted})
  out = []
  for label in labels:
    row = {'label': label, 'examples': held[label], 'answered': given[label]}
    number = held[label] + given[label]
    if number:
      out.append(row | {'right': right[label], 'f1': 2 * right[label] / number})
  return out
