"""The labels of a classification: their cells, the label set, remarks on them, and baselines."""

import contextlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.errors import InputError, listed, quoted
from bert_jax.metrics import Level, LossLevel
from bert_jax.tasks.faulty_records import NO_LABEL, NULLS, Unusable, is_empty
from bert_jax.tasks.labelled import NAMED, always, entropy, f1_of_all, log_labels, shares
from bert_jax.text.values import decimal_number, finite_number, printed_value

MOST_LABELS = 1000  # more are probably numbers or texts
MOST_ONCE = 0.8  # share of the labels given; if more occur once, so are these
UNKNOWN = 'rows with an unknown label'  # a kind of fault
SEPARATORS = ',;|'  # what may stand between the labels of a text
WHOLE = re.compile(r'^(-?\d+)\.0$')
MIDNIGHT = ' 00:00:00'
MAY_DIFFER = re.compile(  # in how pandas writes it
  rf'(true|false|-?\d+(\.0)?|\d+-\d\d-\d\d({MIDNIGHT})?)$', re.IGNORECASE
)
NUMBERS = 5  # if at least so many labels are all numbers, they may be quantities


def label_of(cell: str, table: ConfigDict, delimiter: str = '', commas: bool = False) -> Any:
  """The label in a cell, as in an Example; None for nothing, SNLI's `-` or the -1 of test sets, if
  these are no labels. Unusable if it can be none. delimiter, commas: see values.decimal_number."""
  known = {s: name.split('|')[0] for name in table.labels for s in name.split('|')}
  cell = _spelt(cell if cell in known else cell.strip(), known)
  none = {*NO_LABEL, *[cell] * (cell.lower() in NULLS)} - known.keys() if known else {'', '-'}
  if table.multi_label:
    labels = [_spelt(x, known) for x in _labels_of(cell, table.label_separator or ',')]
    if labels and none.issuperset(labels):
      return None
    return tuple(_checked(name, known, table) for name in labels)
  if cell in none or (table.regression and is_empty(cell)):
    return None
  if table.regression:
    if (number := decimal_number(cell, delimiter, commas)[0]) is None:
      raise Unusable(f'label {quoted(cell)} is not a number; table.regression wants one', UNKNOWN)
    return number
  if not known and (what := {'[]': 'a list', '{}': 'an object'}.get(cell[0] + cell[-1])):
    raise Unusable(f'label {quoted(cell)} is {what}; set table.multi_label=true', UNKNOWN)
  return _checked(cell, known, table)


def _spelt(label, known):
  """A label as the label set spells it. Into CSV pandas writes True where JSON and our tables in
  memory have true, 1.0 for 1 in a column with empty cells, and a midnight beside other times."""
  if label in known or not MAY_DIFFER.match(label):
    return label
  bare = lambda x: WHOLE.sub(r'\1', x.removesuffix(MIDNIGHT))
  plain = lambda x: x.lower() if x.lower() in ('true', 'false') else bare(x)
  alike = [x for x in known if plain(x) == plain(label)]
  return alike[0] if len(alike) == 1 else label


def _checked(label, known, table):
  """The first spelling of a label; Unusable if it is not in the label set."""
  if known and label not in known:
    fault, advice = f'label {quoted(label)} is not in the label set {listed(table.labels)}', ''
    if table.multi_label and (mark := next((x for x in SEPARATORS if x in label), '')):
      advice = f', or table.label_separator={mark!r} if it is several'
    raise Unusable(f'{fault}; mend the row or set table.labels{advice}', UNKNOWN)
  return known.get(label, label)


def _labels_of(cell, separator):
  """The labels of a text that may have several, from a list or between separators."""
  with contextlib.suppress(ValueError):
    labels = printed_value(cell) if cell[:1] in ('[', '{') else cell.split(separator)
    if isinstance(labels, list) and all(isinstance(part, str | int) for part in labels):
      return tuple(name for part in labels if (name := str(part).strip()))
  fault = f'label {quoted(cell)} is no list of labels; write ["a", "b"] or a{separator}b'
  raise Unusable(fault, UNKNOWN)


def no_labels(found: Collection[str]) -> set[str]:
  """Which of the labels found in training data say that there is none: -1 beside 0, 1, 2, .., as
  data sets of Hugging Face write it. Beside 0 and 1 alone it may be a sentiment."""
  others = {finite_number(label) for label in found} - {-1.0}
  if len(others) < 3 or others != {*range(len(others))}:
    return set()
  return {label for label in found if finite_number(label) == -1}


def names(labels: Sequence[str]) -> tuple[str, ...]:
  """The names of labels; a label with several spellings (a|b) has the first."""
  return tuple(label.split('|')[0] for label in labels)


def class_weights(table: ConfigDict) -> tuple[float, ...]:
  """The weight of each label in the loss; (): all count alike."""
  weights = dict(table.class_weights)
  return tuple(float(weights.get(x, 1.0)) for x in names(table.labels)) if weights else ()


def numbers_whole(found: Mapping[str, int]) -> Mapping[str, int]:
  """The labels found in training data, {label: how often}; if all are like 1.0, as pandas holds a
  column of whole numbers that has gaps, without the .0."""
  if not all(map(WHOLE.match, found)):
    return found
  return {WHOLE.sub(r'\1', label): number for label, number in found.items()}


def label_set(table: ConfigDict, found: Mapping[str, int]) -> tuple[str, ...]:
  """The label set of training data: the labels found in it, sorted. found: how often each is."""
  labels = tuple(sorted(found))
  if len(labels) < 2:
    needs = 'classification needs two at least (for numbers set table.regression=true)'
    raise InputError(f'the training data has the single label {listed(labels)}; {needs}.')
  if len(labels) > MOST_LABELS:
    fault = f'column {table.label_column!r} holds {len(labels)} labels: {listed(labels, 3)}'
    raise InputError(f'{fault}; name another table.label_column or set table.regression=true.')
  once, given = sum(number == 1 for number in found.values()), sum(found.values())
  if len(labels) > NAMED and once > MOST_ONCE * given:
    fault = f'column {table.label_column!r}: {once:,} of the labels of {given:,} texts occur once'
    fix = 'name another table.label_column, set table.regression=true for numbers'
    fix += ', or table.labels to the classes'
    raise InputError(f'{fault} ({listed(labels, 3)}); {fix}.')
  if odd := [label for label in labels if '|' in label]:
    fault = f'label {quoted(odd[0])} has a | in it, which parts the spellings of a label'
    several = 'if these are several labels of a text, set table.multi_label=true'
    raise InputError(f'{fault}; write it otherwise or, {several}.')
  return labels


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


def baselines_of(
  labels: np.ndarray, number: int, weights: Sequence[float] = ()
) -> dict[str, Level]:
  """The scores of always answering the most frequent label, and the loss of always answering the
  frequencies of labels. The F1 of one of two labels is that of always answering it. Where a text
  has several, each score is of the constant answer that is best in it: for accuracy the most
  frequent set, for micro F1 the k most frequent labels with the best k, for macro F1 all labels
  (Lipton et al. 2014, https://arxiv.org/abs/1402.1892). For regression, the scores of uncorrelated
  answers, and the errors of always answering the mean:
  {score: (value, 'majority', 'constant', 'entropy', 'chance' or 'mean')}. labels: [N] int, or
  [N, number of labels] 0 or 1; for regression [N] float. weights: see class_weights."""
  if labels.dtype.kind == 'f' and labels.ndim == 1:
    away = labels - labels.mean(dtype=float)
    errors = {'squared_error': np.square(away), 'mean_absolute_error': np.abs(away)}
    levels = {name: LossLevel(float(x.mean()), 'mean') for name, x in errors.items()}
    return always('chance', {'pearson': 0, 'spearman': 0}) | levels
  if labels.ndim == 2:
    gold = labels > 0
    shares = gold.mean(axis=0)
    held = np.cumsum(np.sort(shares)[::-1])  # a text, of the 1, 2, .. most frequent labels
    micro = 2 * held / (np.arange(1, number + 1) + shares.sum())
    best = {'micro_f1': micro.max(), 'macro_f1': f1_of_all(shares).mean()}
    alike = np.unique(gold, axis=0, return_counts=True)[1].max() / len(gold)
    level = entropy('classification', [1 - shares, shares], weights or 1.0)
    return level | always('constant', best) | always('majority', {'subset_accuracy': alike})
  shares = np.bincount(labels, minlength=number) / len(labels)
  out = {'classification_accuracy': shares.max(), 'matthews': 0}
  level = entropy('classification', shares, weights or 1.0)
  if number == 2:
    return level | always('majority', out) | always('constant', {'f1': f1_of_all(shares[1])})
  macro_f1 = f1_of_all(shares.max()) / np.count_nonzero(shares)
  return level | always('majority', out | {'macro_f1': macro_f1})


def prior_of(labels: np.ndarray, number: int) -> tuple[float, ...]:
  """What a new head begins at, see objectives.classification. labels: as in baselines_of."""
  if labels.dtype.kind == 'f' and labels.ndim == 1:
    mean, scale = float(labels.mean(dtype=float)), float(labels.std(dtype=float)) or 1.0
    digits = 4 - math.floor(math.log10(scale))
    return round(mean, digits), round(scale, digits)
  if labels.ndim == 2:
    return shares(labels.sum(axis=0), len(labels))
  return shares(np.bincount(labels, minlength=number))


def counted(source: Any, number: int) -> np.ndarray:
  """Counts the texts that have each of `number` labels, [L]. source: the Examples."""
  labels, weights = source.per_example['labels'], source.per_example['weights']
  # The windows of a text share its weight, 1; a text without a label has weight 0.
  total = weights @ labels if labels.ndim == 2 else np.bincount(labels, weights, number)
  return np.rint(total).astype(int)


def log_counts(config: ConfigDict, source: Any) -> None:
  """Logs the labels of the training data with their counts."""
  if not config.table.regression:
    labels = names(config.table.labels)
    log_labels('labels', labels, counted(source, len(labels)))


def positive(table: ConfigDict) -> str:
  """The label whose F1 is reported, the second of two; '' if there are more, or several a text."""
  labels = names(table.labels)
  return labels[1] if len(labels) == 2 and not table.multi_label else ''


def remarks(config: ConfigDict, sources: Mapping[str, Any]) -> list[str]:
  """Warnings about labels that are rare, or that may be quantities."""
  table, labels, out = config.table, names(config.table.labels), []
  if table.regression:
    return out
  if not table.multi_label:
    out += _other_kinds(labels)
  train = counted(sources['train'], len(labels))
  rare = [label for label, number in zip(labels, train) if number < 2]
  most_are_rare = not table.multi_label and len(rare) > max(NAMED, len(labels) // 2)
  if most_are_rare and all(decimal_number(x)[0] is not None for x in labels):
    return out  # quantities, and not the numbers of classes
  if rare:
    fix = 'give more examples, or put them under another label'
    out.append(f'labels with one example or none in training: {listed(rare, NAMED)}; {fix}.')
  if 'eval' in sources:
    held = counted(sources['eval'], len(labels))
    least = 0 if config.data.eval else 1  # the only one of a label is not held out
    missing = [label for label, n, m in zip(labels, train, held) if n > least and not m]
    if missing and held.any():
      fix = 'name more in data.eval' if config.data.eval else 'raise table.eval_share'
      fault = f'labels that no example of the held-out data has: {listed(missing, NAMED)}'
      out.append(f'{fault}; {fix}.')
  has_sign = not table.multi_label and [*map(finite_number, labels)] == [-1, 0, 1]
  if odd := tuple(x for x in labels if x.lower() in NULLS) or labels[:has_sign]:
    others = ','.join(x for x in labels if x not in odd)
    out.append(f'a class of its own: {" and ".join(odd)}; if it is none, table.labels={others}.')
  several = [x for x in labels if len(x.split()) > 1 and {*x.split()} <= {*labels}]
  if table.multi_label and several:
    fix = 'table.label_separator=" " parts them at blanks'
    out.append(f'labels that are several in one: {listed(several, NAMED)}; {fix}.')
  if table.multi_label and set(labels) <= {'0', '1'}:
    fix = 'of a vector such as [0, 1, 1] write the names that hold, as in ["b", "c"]'
    out.append(f'the labels are {" and ".join(labels)} alone; {fix}.')
  return out


def _other_kinds(labels):
  """Remarks on labels that may be quantities, or several labels of a text."""
  if all(decimal_number(label)[0] is not None for label in labels):
    fault = f'all {len(labels)} labels are numbers and are taken as classes'
    many = len(labels) >= NUMBERS
    return [f'{fault}; table.regression=true learns them as numbers.'] if many else []
  parts = lambda label: [{x.strip() for x in label.split(mark)} for mark in SEPARATORS]
  several = [x for x in labels if any(len(p) > 1 and p <= {*labels} for p in parts(x))]
  fix = 'table.multi_label=true learns each by itself'
  fault = f'classes that are several labels in one: {listed(several, NAMED)}'
  return [f'{fault}; {fix}.'] if several else []
