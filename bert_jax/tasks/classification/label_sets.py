"""The labels of a classification: their cells, the label set, baselines and priors."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.errors import InputError, listed, quoted
from bert_jax.metrics import Level, LossLevel
from bert_jax.tasks.faulty_records import SPACES, Problems, Unusable, is_empty, says_no_label
from bert_jax.tasks.scored import always, entropy, f1_of_all, label_shares
from bert_jax.text.values import NotJson, finite_number, printed_value

MOST_LABELS = 1000  # more are probably numbers or texts
UNKNOWN = 'rows with an unknown label'  # a kind of fault
TRUTH = {'true': True, 'false': False}
INTEGER = re.compile(r'[-+]?\d+')


class LabelReader:
  """Reads the labels in the cells of a table, whose fields are `table`."""

  def __init__(self, table: ConfigDict, problems: Problems):
    self.table, self.problems = table, problems
    self.names = {}  # {spelling of a label: what the label is in answers}
    for spellings, value in zip(table.labels, values(table)):
      self.names |= dict.fromkeys(spellings.split('|'), value)

  def label(self, cell: str, where: str) -> Any:
    """The label in a cell, as in an Example; None: it says that there is none. Unusable if it is no
    label."""
    bare = cell.strip()
    if cell not in self.names and cell != bare:
      if bare:
        self.problems.note(SPACES, where)
      cell = bare
    if self.table.multi_label:
      labels = self._several(cell)
      if labels and all(map(self._says_none, labels)):
        return None
      return tuple(map(self._checked, labels))
    if self._says_none(cell):
      return None
    if not self.table.regression:
      return self._checked(cell)
    number = finite_number(cell)
    if number is None:
      raise Unusable(
        f'label {quoted(cell)} is not a number; table.regression wants one, such as 3.5 '
        "(pandas reads commas: read_csv(.., decimal=','))",
        UNKNOWN,
      )
    if self.table.sigmoid and self.problems.split == 'train' and not 0 <= number <= 1:
      raise Unusable(
        f'label {quoted(cell)} is not from 0 to 1, as what table.sigmoid gives; scale the labels, '
        'or set table.sigmoid=false',
        UNKNOWN,
      )
    return number

  def _says_none(self, cell):
    """Whether a cell says that there is no label. Nothing and SNLI's dash do; beside a label set so
    do the -1 of test sets and what programs write for no value, unless they are labels."""
    if self.table.regression:
      return is_empty(cell)
    if self.names:
      return cell not in self.names and says_no_label(cell)
    return cell in ('', '-')

  def _checked(self, cell):
    """What a label is in answers; Unusable if it is not in the label set."""
    if cell in self.names:
      return self.names[cell]
    if self.names:
      raise Unusable(
        f'label {quoted(cell)} is not in the label set {listed(self.table.labels)}; mend the row, '
        'set table.labels or, if this column holds no labels, name another in table.label_column; '
        'for numbers set table.regression=true, for several labels in a cell table.label_separator',
        UNKNOWN,
      )
    if cell[0] + cell[-1] in ('[]', '{}'):
      raise Unusable(f'label {quoted(cell)} is a list; set table.multi_label=true', UNKNOWN)
    return cell

  def _several(self, cell):
    """The labels in a cell that may hold several, in a list or between separators."""
    separator = self.table.label_separator
    labels: Any = cell.split(separator)
    if cell[:1] in ('[', '{'):
      try:
        labels = printed_value(cell)
      except NotJson:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(x, str | int) for x in labels):
      raise Unusable(
        f'label {quoted(cell)} is no list of labels; write ["a", "b"] or a{separator}b', UNKNOWN
      )
    return tuple(str(x).strip() for x in labels if str(x).strip())


def names(labels: Iterable[str]) -> tuple[str, ...]:
  """The names of labels; a label with several spellings (a|b) has the first."""
  return tuple(label.split('|')[0] for label in labels)


def values(table: ConfigDict) -> tuple[Any, ...]:
  """What the labels are in answers: their names, or the values that these stand for."""
  if table.label_type != 'value' or not table.labels:
    return names(table.labels)
  out = values_of(table.labels)
  if not out:
    raise InputError(
      f'table.label_type=value is for labels that are different numbers, or true and false, and '
      f'not for {listed(table.labels)}; leave it.'
    )
  return out


def values_of(labels: Iterable[str]) -> tuple[int | float | bool, ...]:
  """The numbers, or True and False, that pandas reads in a column of the names of labels; (): it
  reads texts, or two labels are equal."""
  out = []
  for name in names(labels):
    number: Any = TRUTH.get(name.lower(), finite_number(name))
    if number is None or '_' in name:
      return ()
    if INTEGER.fullmatch(name):
      number = int(name)
    out.append(number)
  is_bool = {isinstance(x, bool) for x in out}
  return tuple(out) if len(is_bool) == 1 and len(set(out)) == len(out) else ()


def class_weights(table: ConfigDict) -> tuple[float, ...]:
  """The weight of each label in the loss; (): all count alike."""
  weights = dict(table.class_weights)
  return tuple(float(weights.get(x, 1.0)) for x in names(table.labels)) if weights else ()


def label_set(table: ConfigDict, labels: Collection[str]) -> tuple[str, ...]:
  """The label set of training data with these labels: sorted, numbers by size. InputError if it
  can be none."""
  if len(labels) < 2:
    raise InputError(
      f'the training data has the single label {listed(labels)}; classification needs two at least '
      '(for numbers set table.regression=true).'
    )
  if len(labels) > MOST_LABELS:
    raise InputError(
      f'column {table.label_column!r} holds {len(labels)} labels: {listed(sorted(labels), 3)}; '
      'name another table.label_column or set table.regression=true.'
    )
  for label in labels:
    if '|' in label:
      raise InputError(
        f'label {quoted(label)} has a | in it, which parts the spellings of a label; write it '
        'otherwise or, if these are several labels of a text, set table.multi_label=true and '
        "table.label_separator='|'."
      )
  in_order = sorted(zip(values_of(labels) or labels, labels))
  return tuple(label for _, label in in_order)


def balanced(
  labels: Sequence[str], counts: Mapping[str, int], number: int
) -> tuple[tuple[str, float], ...]:
  """Balanced class weights, ((label, 1 / its share in `number` examples), ...)."""
  known = dict.fromkeys(names(labels))
  return tuple((name, round(number / (len(known) * max(1, counts[name])), 6)) for name in known)


def label_array(labels: Sequence[Any], names: Sequence[str], table: ConfigDict) -> np.ndarray:
  """What is learned of labels as in Examples: [N] their numbers among `names`, or the quantities
  that they are, or [N, L] which of L a text has. 0 where a label is not known."""
  if table.regression:
    return np.array([label or 0 for label in labels], np.float32)
  number = {name: k for k, name in enumerate(names)}
  if not table.multi_label:
    return np.array([number.get(label, 0) for label in labels], np.int32)
  out = np.zeros((len(labels), len(names)), np.float32)
  for row, held in zip(out, labels):
    row[[number[name] for name in held or ()]] = 1
  return out


def counts_of(labels: np.ndarray, number: int) -> np.ndarray:
  """[L] how many of the texts with these labels have each one; []: they are numbers."""
  if labels.ndim == 2:
    return labels.sum(axis=0).astype(int)
  return np.bincount(labels, minlength=number) if number else np.array([], int)


def baselines_of(
  labels: np.ndarray, counts: np.ndarray, weights: Sequence[float] = ()
) -> dict[str, Level]:
  """The scores of always answering the most frequent label, and the loss of always answering the
  frequencies of labels. The F1 of one of two labels is the F1 of always answering it. Where a text
  has several, each score is of the constant answer that is best in it: for accuracy the most
  frequent set, for micro F1 the k most frequent labels with the best k, for macro F1 all labels
  (Lipton et al. 2014, https://arxiv.org/abs/1402.1892). For regression, the scores of uncorrelated
  answers, and the errors of always answering the mean:
  {score: (value, 'majority', 'constant', 'entropy', 'chance' or 'mean')}. labels: [N] int, or
  [N, L] 0 or 1; for regression [N] float. counts: see counts_of. weights: see class_weights."""
  if not len(counts):
    away = labels - labels.mean(dtype=float)
    errors = {'squared_error': np.square(away), 'mean_absolute_error': np.abs(away)}
    levels = {name: LossLevel(float(x.mean()), 'mean') for name, x in errors.items()}
    return always('chance', {'pearson': 0, 'spearman': 0}) | levels
  shares, number = counts / len(labels), len(counts)
  if labels.ndim == 2:
    held = np.cumsum(np.sort(shares)[::-1])  # a text, of the 1, 2, .. most frequent labels
    micro = 2 * held / (np.arange(1, number + 1) + shares.sum())
    best = {'micro_f1': micro.max(), 'macro_f1': f1_of_all(shares).mean()}
    alike = np.unique(labels, axis=0, return_counts=True)[1].max() / len(labels)
    level = entropy([1 - shares, shares], weights or 1.0)
    return level | always('constant', best) | always('majority', {'subset_accuracy': alike})
  macro_f1 = f1_of_all(shares.max()) / np.count_nonzero(shares)
  out = {'accuracy': shares.max(), 'matthews': 0, 'macro_f1': macro_f1}
  levels = entropy(shares, weights or 1.0) | always('majority', out)
  if number == 2:
    levels |= always('constant', {'f1': f1_of_all(shares[1])})
  return levels


def prior_of(labels: np.ndarray, counts: np.ndarray) -> tuple[float, ...]:
  """What a new head begins at, see objectives.classification. labels, counts: see baselines_of."""
  if not len(counts):
    mean, scale = float(labels.mean(dtype=float)), float(labels.std(dtype=float)) or 1.0
    digits = 4 - math.floor(math.log10(scale))
    return round(mean, digits), round(scale, digits)
  return label_shares(counts, len(labels) if labels.ndim == 2 else 0)


def positive(table: ConfigDict) -> str:
  """The label whose F1 is reported, the second of two; '' if there are more, or several a text."""
  labels = names(table.labels)
  return labels[1] if len(labels) == 2 and not table.multi_label else ''
