"""The scores of a classifier that does not read its texts."""

import numpy as np

from bert_jax.tasks import labelled


def baselines_of(labels, number):
  """The scores of always answering the most frequent label (or every label that most texts have);
  for regression, of uncorrelated answers: {score: (value, 'majority' or 'chance')}.
  labels: [N] int; with several labels a text [N, number], 0 or 1; for regression [N] float.
  number: how many labels there are."""
  if labels.ndim == 2:
    gold = labels > 0
    shares = gold.mean(axis=0)
    common = np.flatnonzero(shares > 0.5)
    right, answered = shares[common].sum(), len(common) + shares.sum()
    out = {'micro_f1': 2 * right / answered if answered else 0}
    out['macro_f1'] = labelled.f1_of_all(shares[common]).sum() / number
    alike = gold == (shares > 0.5)
    return labelled.always('majority', out | {'subset_accuracy': alike.all(axis=1).mean()})
  if labels.dtype.kind == 'f':
    return labelled.always('chance', {'pearson': 0, 'spearman': 0})
  shares = np.bincount(labels, minlength=number) / len(labels)
  f1 = labelled.f1_of_all(shares.max())
  out = {'classification_accuracy': shares.max(), 'matthews': 0}
  if number == 2:
    out['f1'] = f1 if shares[1] > shares[0] else 0
  else:
    out['macro_f1'] = f1 / np.count_nonzero(shares)
  return labelled.always('majority', out)
