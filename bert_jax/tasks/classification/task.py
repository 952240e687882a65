"""The objective, rows and scores of the classification of texts and pairs of texts.

A text has one label of a set, several labels (multi_label), or a number (regression). The scores
are GLUE's (Wang et al. 2018): accuracy, Matthews correlation, and F1 of the second of two labels
(of more labels macro F1); for numbers their mean absolute error and two correlations, Pearson's
and Spearman's.

A text that is too long keeps its head, its tail, or both: a quarter of the tokens from its head and
the others from its tail (Sun et al. 2019, https://arxiv.org/abs/1905.05583, keep 128 and 382 of
510). Or it becomes windows, which share its weight in the loss and whose logits are averaged;
hierarchical: the vectors of the windows in a row are classified together. A pair that is too long
loses tokens from the end of its longer text, as in run_classifier.py. What is cut is counted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy.special import expit

from bert_jax.errors import InputError, listed, log, quoted
from bert_jax.objectives.classification import Classification
from bert_jax.rows.examples import by_example
from bert_jax.rows.windows import cut
from bert_jax.tasks import labelled
from bert_jax.tasks.classification import label_sets
from bert_jax.tasks.classification.label_sets import names
from bert_jax.tasks.classification.reading import Example, read, with_separator
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.labelled import Scored, choice_of_label, correlations
from bert_jax.tokenizers import Tokenizer


def resolve(config: ConfigDict) -> ConfigDict:
  """Fills in table.labels (the labels of the training data, sorted) and balanced class weights."""
  config = with_separator(config).copy_and_resolve_references()
  table = config.table
  if not config.data.train and (config.data.eval or table.labels or table.regression):
    docs = 'only task=docs, on the embedded documentation, has neither data.train nor data.eval'
    raise InputError(f'data.train is empty; name the training data ({docs}).')
  if table.regression or (table.labels and table.class_weights != ('balanced',)):
    return config
  problems = Problems.of(config, 'train')
  examples = list(read(config, 'train', problems, whole=True))
  labels_of = lambda example: example.label if table.multi_label else (example.label,)
  if not table.labels:
    none = label_sets.no_labels({label for x in examples for label in labels_of(x)})
    examples = [x for x in examples if not none.intersection(labels_of(x))]
  examples = problems.chosen(examples, config.task.train_examples)
  counts = Counter(label for x in examples for label in labels_of(x))
  if not table.labels:
    counts = Counter(label_sets.numbers_whole(counts))
    table.labels = label_sets.label_set(table, counts)
  if table.class_weights == ('balanced',):
    with config.ignore_type():
      table.class_weights = label_sets.balanced(table.labels, counts, len(examples))
  return config


def texts(config: ConfigDict) -> Iterator[str]:
  for example in read(config, 'train', Problems.of(config, 'train')):
    yield from example.texts


def objective(config: ConfigDict, tokenizer: Tokenizer, kind: type = Classification) -> Any:
  """The objective of a config, a `kind` of Classification."""
  table, labels = config.table, names(config.table.labels)
  if unknown := [label for label, _ in table.class_weights if label not in labels]:
    fault = f'table.class_weights names {quoted(unknown[0])}, which is not a label'
    raise InputError(f'{fault}; there are {listed(labels)}.')
  options = {name: table[name] for name in ('multi_label', 'pooling', 'lm_weight')}
  options['prior'] = labelled.prior_of(table, labels)
  options['hierarchical'] = table.long_texts == 'hierarchical'
  options['class_weights'] = label_sets.class_weights(table)
  return labelled.objective(kind, config, labels, **options)


class Texts(Scored):
  """The rows of labelled texts: [CLS] text [SEP] or [CLS] text [SEP] second text [SEP].
  Each window of a text is an example; text_of [E]: the number of its text. tokens: of each text.
  cut: how many texts are not read whole."""

  def __init__(
    self, config: ConfigDict, tokenizer: Tokenizer, examples: Sequence[Example], problems: Problems
  ):
    table, self.examples, self.labels = config.table, examples, names(config.table.labels)
    self.multi_label, self.regression = table.multi_label, table.regression
    sides = [tokenizer.ids_batch(texts) for texts in zip(*(e.texts for e in examples))]
    together = table.long_texts == 'hierarchical'
    if len(sides) == 1 and (together or table.long_texts == 'windows'):
      self.read = sides[0]
    parts = self._parts(config, tokenizer, sides, problems)
    known = np.array([example.label is not None for example in examples], np.float32)
    weights = known / np.maximum(1, np.bincount(self.text_of, minlength=len(known)))
    labels = label_sets.label_array([example.label for example in examples], self.labels, table)
    of_text = {'labels': labels, 'weights': weights.astype(np.float32)}
    per_example = {name: values[self.text_of] for name, values in of_text.items()}
    options = labelled.shape(config) | {'per_example': per_example, 'ends': table.ends}
    options['items'] = self.text_of if together else None
    super().__init__(tokenizer, parts, **options)
    self.size, self.scored = len(examples), int(known.sum())
    if known.any():
      weights, labels = label_sets.class_weights(table), labels[known > 0]
      self.baselines |= label_sets.baselines_of(labels, len(self.labels), weights)
      self.prior = label_sets.prior_of(labels, len(self.labels))

  def _parts(self, config, tokenizer, sides, problems):
    """The token arrays of all windows of all texts."""
    limit, keep, parts, text_of = labelled.limit(config), config.table.long_texts, [], []
    pairs, most = len(sides) == 2, config.data.seq_length // limit
    room = limit - 2 - pairs * tokenizer.between
    self.tokens, self.cut = [sum(map(len, ids)) for ids in zip(*sides)], 0
    for i, ids in enumerate(zip(*sides)):
      kept = [ids]
      if self.tokens[i] > room:
        kept = cut(ids, room, keep)
        whole = keep in ('windows', 'hierarchical')
        what, self.cut = 'in windows' if whole else 'cut', self.cut + (not whole)
        problems.counts[f'examples {what} (longer than {limit} tokens)'] += 1
        if keep == 'hierarchical' and len(kept) > most:
          problems.counts[f'examples that lost their end (longer than {most} windows)'] += 1
          kept = kept[:most]
      parts += [tokenizer.pair(*two) for two in kept] if pairs else kept
      text_of += [i] * len(kept)
    self.text_of = np.array(text_of, np.int64)
    return parts

  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    numbers, (logits,) = by_example(outputs, 'logits')
    windows = np.bincount(self.text_of)
    seen = np.bincount(self.text_of[numbers], minlength=len(windows))
    total = np.zeros((len(windows), logits.shape[-1]))
    np.add.at(total, self.text_of[numbers], logits)
    whole = np.flatnonzero((seen == windows) & (seen > 0))
    return [self._answer(i, total[i] / windows[i]) for i in whole.tolist()]

  def _answer(self, i: int, logits: np.ndarray) -> dict[str, Any]:
    example, gold, loss = self.examples[i], self.examples[i].label, None
    out: dict[str, Any] = {'id': example.id, 'where': example.where, 'texts': [*example.texts]}
    out['length'] = self.tokens[i]
    if self.regression:
      out['prediction'] = float(logits[0])
      loss = None if gold is None else float((logits[0] - gold) ** 2)
    elif self.multi_label:
      shares = expit(logits)
      out['prediction'] = [label for label, share in zip(self.labels, shares) if share > 0.5]
      out['probabilities'] = dict(zip(self.labels, map(float, shares)))
      is_gold = np.isin(self.labels, gold or ())
      loss = float(np.sum(-np.log(np.where(is_gold, shares, 1 - shares) + 1e-12)))
    else:
      number = None if gold is None else self.labels.index(gold)
      return out | choice_of_label(self.labels, logits, number)
    return out if gold is None else out | {'gold': gold, 'loss': loss}

  def scores(self, answers: list[dict]) -> dict[str, float]:
    from sklearn.metrics import f1_score, matthews_corrcoef  # slow to import

    gold, predicted = ([a[key] for a in answers] for key in ('gold', 'prediction'))
    if self.regression:
      error = float(np.mean(np.abs(np.subtract(gold, predicted))))
      return {'mean_absolute_error': error} | correlations(gold, predicted)

    def f1(average, **options):
      return float(f1_score(gold, predicted, average=average, zero_division=0, **options))

    if self.multi_label:
      sides = ([[label in held for label in self.labels] for held in x] for x in (gold, predicted))
      gold, predicted = map(np.array, sides)
      alike = float((gold == predicted).all(axis=1).mean())
      return {'micro_f1': f1('micro'), 'macro_f1': f1('macro'), 'subset_accuracy': alike}
    out = {'classification_accuracy': float(np.mean(np.array(gold) == np.array(predicted)))}
    if len(self.labels) == 2:
      out['f1'] = f1('binary', pos_label=self.labels[1])  # see label_sets.positive
    else:
      out['macro_f1'] = f1('macro')  # over the labels that occur
    alone = len({*gold, *predicted}) == 1  # scikit-learn would warn
    return out | {'matthews': 0.0 if alone else float(matthews_corrcoef(gold, predicted))}

  def files(self, answers: list[dict]) -> dict[str, str]:
    """predictions.tsv as GLUE's leaderboard reads it: columns index and prediction."""
    shown = '{:.3f}'.format if self.regression else ','.join if self.multi_label else str
    lines = (f'{a["id"]}\t{shown(a["prediction"])}\n' for a in answers)
    return {'predictions.tsv': 'index\tprediction\n' + ''.join(lines)}


def rows(config: ConfigDict, tokenizer: Tokenizer, split: str, problems: Problems) -> Any:
  examples = problems.chosen(list(read(config, split, problems)), config.task.train_examples)
  out = Texts(config, tokenizer, examples, problems)
  if split == 'train':
    label_sets.log_counts(config, out)
  elif positive := label_sets.positive(config.table):
    log.info('f1 is of %r, the second of table.labels', positive)
  return out


def has_eval(config: ConfigDict) -> bool:
  return config.data.eval or not config.data.train or config.table.eval_share > 0


sources = labelled.sources_of(rows, has_eval=has_eval)
