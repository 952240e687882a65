"""The scores of a classifier that does not read its texts."""

import numpy as np

from bert_jax.metrics import Level
from bert_jax.tasks.labelled import always, f1_of_all


def baselines_of(labels: np.ndarray, number: int) -> dict[str, Level]:
  """The scores of always answering the most frequent label (or every label that most texts have);
  for regression, of uncorrelated answers: {score: (value, 'majority' or 'chance')}.
  labels: [N] int; with several labels a text [N, number], 0 or 1; for regression [N] float.
  number: how many labels there are."""
  if labels.dtype.kind == 'f' and labels.ndim == 1:
    return always('chance', {'pearson': 0, 'spearman': 0})
  if labels.ndim == 2:
    gold = labels > 0
    shares = gold.mean(axis=0)
    common = shares[shares > 0.5]
    answered = len(common) + shares.sum()
    out = {'micro_f1': 2 * common.sum() / answered if answered else 0}
    out['macro_f1'] = f1_of_all(common).sum() / number
    out['subset_accuracy'] = (gold == (shares > 0.5)).all(axis=1).mean()
    return always('majority', out)
  shares = np.bincount(labels, minlength=number) / len(labels)
  f1 = f1_of_all(shares.max())
  of_label = {'macro_f1': f1 / np.count_nonzero(shares)}
  if number == 2:
    of_label = {'f1': f1 if shares[1] > shares[0] else 0}
  out = {'classification_accuracy': shares.max(), 'matthews': 0}
  return always('majority', out | of_label)
