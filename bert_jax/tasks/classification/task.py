"""The objective, rows and scores of the classification of texts and pairs of texts.

A text has one label of a set, several labels (multi_label), or a number (regression). The scores
are GLUE's (Wang et al. 2018): accuracy, Matthews correlation, and F1 of the second of two labels
(of more labels macro F1); for numbers Pearson and Spearman correlation.

A text that is too long keeps its head, its tail, or both: a quarter of the tokens from its head and
the others from its tail (Sun et al. 2019, https://arxiv.org/abs/1905.05583, keep 128 and 382 of
510). Or it becomes windows, which share its weight in the loss and whose logits are averaged;
hierarchical: the vectors of the windows in a row are classified together. A pair that is too long
loses tokens from the end of its longer text, as in BERT's run_classifier.py. Examples that are cut
are counted.
"""

from collections import Counter

import numpy as np
from scipy.special import expit, log_softmax

from bert_jax.errors import InputError, listed, quoted
from bert_jax.objectives.classification import Classification
from bert_jax.rows.examples import by_example
from bert_jax.rows.prepared_examples import Prepared, is_prepared
from bert_jax.rows.windows import cut
from bert_jax.tasks import labelled
from bert_jax.tasks.classification import label_remarks, prepared
from bert_jax.tasks.classification.baselines import baselines_of
from bert_jax.tasks.classification.reading import balanced, label_set, names, read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.scored import Scored


def resolve(config):
  """Fills in table.labels (the labels of the training data, sorted) and balanced class weights."""
  table = config.table
  if is_prepared(config.data.train):
    return prepared.resolve(config, Prepared(config.data.train))
  if not config.data.train and (config.data.eval or table.labels or table.regression):
    docs = 'only task=docs, on the embedded documentation, has neither data.train nor data.eval'
    raise InputError(f'data.train is empty; name the training data ({docs}).')
  if table.regression or (table.labels and table.class_weights != ('balanced',)):
    return config
  problems = Problems('train', config.data.skip_damaged)
  examples = list(read(config, 'train', problems, whole=True))
  examples = problems.chosen(examples, config.task.train_examples)
  read_labels = [label for e in examples for label in (e.label if table.multi_label else [e.label])]
  config = config.copy_and_resolve_references()
  if not table.labels:
    config.table.labels = label_set(table, set(read_labels))
  if table.class_weights == ('balanced',):
    with config.ignore_type():
      weights = balanced(config.table.labels, Counter(read_labels), len(examples))
      config.table.class_weights = weights
  return config


def texts(config):
  if is_prepared(config.data.train):
    return
  for example in read(config, 'train', Problems('train', config.data.skip_damaged)):
    yield from example.texts


def objective(config, tokenizer):
  class_weights, labels = config.table.class_weights, names(config.table.labels)
  if unknown := [label for label, _ in class_weights if label not in labels]:
    fault = f'table.class_weights names {quoted(unknown[0])}, which is not a label'
    raise InputError(f'{fault}; there are {listed(labels)}.')
  weights = (
    tuple(float(dict(class_weights).get(label, 1.0)) for label in labels) if class_weights else ()
  )
  table = config.table
  more = {'multi_label': table.multi_label, 'class_weights': weights, 'pooling': table.pooling}
  more['lm_weight'] = table.lm_weight
  more['hierarchical'] = table.long_texts == 'hierarchical'
  return labelled.objective(Classification, config, labels, **more)


class Texts(Scored):
  """The rows of labelled texts: [CLS] text [SEP] or [CLS] text [SEP] second text [SEP].
  Each window of a text is an example of its own; text_of [E]: the number of each example's text.
  gold: for each text the number of its label, or [numbers] (multi_label), or the value to predict
  (regression); None: not known."""

  def __init__(self, config, tokenizer, examples, problems):
    table, self.examples, self.labels = config.table, examples, names(config.table.labels)
    self.multi_label, self.regression = table.multi_label, table.regression
    limit = labelled.limit(config)
    sides = [tokenizer.ids_batch(texts) for texts in zip(*(e.texts for e in examples))]
    pairs, whole = len(sides) == 2, zip(*sides)
    room = limit - 2 - pairs * tokenizer.between
    together = table.long_texts == 'hierarchical'
    in_windows = together or table.long_texts == 'windows'
    if in_windows and len(sides) == 1:
      self.read = sides[0]
    parts, text_of, self.tokens = [], [], []
    for i, ids in enumerate(whole):
      kept = [ids]
      self.tokens.append(sum(map(len, ids)))
      if sum(map(len, ids)) > room:
        kept = cut(ids, room, table.long_texts)
        what = 'examples ' + ('in windows' if in_windows else 'cut')
        problems.counts[f'{what} (longer than {limit} tokens)'] += 1
        if together and len(kept) > (most := config.data.seq_length // limit):
          problems.counts[f'examples that lost their end (longer than {most} windows)'] += 1
          kept = kept[:most]
      parts += [tokenizer.pair(*two) for two in kept] if pairs else kept
      text_of += [i] * len(kept)
    self.text_of = np.array(text_of, np.int64)
    number = {label: i for i, label in enumerate(self.labels)}
    self.gold = [
      None
      if e.label is None
      else e.label
      if self.regression
      else [number[label] for label in e.label]
      if self.multi_label
      else number[e.label]
      for e in examples
    ]
    kind = np.float32 if self.regression or self.multi_label else np.int32
    if self.multi_label:
      labels = np.zeros((len(examples), len(self.labels)), kind)
      for row, numbers in zip(labels, self.gold):
        row[numbers or []] = 1
    else:
      labels = np.array([gold or 0 for gold in self.gold], kind)
    known = np.array([gold is not None for gold in self.gold], np.float32)
    weights = known / np.maximum(1, np.bincount(self.text_of, minlength=len(known)))
    of_text = {'labels': labels, 'weights': weights.astype(np.float32)}
    per_example = {name: values[self.text_of] for name, values in of_text.items()}
    items, shape = self.text_of if together else None, labelled.shape(config)
    super().__init__(tokenizer, parts, items=items, per_example=per_example, **shape)
    self.size = len(examples)
    if known.any():
      self.baselines |= baselines_of(labels[known > 0], len(self.labels))

  def answers(self, outputs):
    numbers, (logits,) = by_example(outputs, 'logits')
    windows = np.bincount(self.text_of)
    seen = np.bincount(self.text_of[numbers], minlength=len(windows))
    total = np.zeros((len(windows), logits.shape[-1]))
    np.add.at(total, self.text_of[numbers], logits)
    whole = np.flatnonzero((seen == windows) & (seen > 0))
    return [self._answer(i, total[i] / windows[i]) for i in whole]

  def _answer(self, i, logits):
    example, gold = self.examples[i], self.gold[i]
    out = {'id': example.id, 'where': example.where, 'texts': list(example.texts)}
    out['length'] = self.tokens[i]
    if self.regression:
      out['prediction'] = float(logits[0])
      if gold is not None:
        out |= {'gold': gold, 'loss': float((logits[0] - gold) ** 2)}
      return out
    if self.multi_label:
      shares = expit(logits)
      out['prediction'] = [label for label, share in zip(self.labels, shares) if share > 0.5]
      is_gold = np.isin(np.arange(len(shares)), gold or [])
      nats = -np.log(np.where(is_gold, shares, 1 - shares) + 1e-12)
    else:
      logs = log_softmax(logits)
      shares = np.exp(logs)
      out |= {'prediction': self.labels[int(np.argmax(logits))], 'probability': float(shares.max())}
      nats = -logs[gold or 0]
    out['probabilities'] = dict(zip(self.labels, map(float, shares)))
    if gold is not None:
      out |= {'gold': example.label, 'loss': float(np.sum(nats))}
    return out

  def scores(self, answers):
    # Imported here because they are slow to import and most runs do not need them.
    import scipy.stats
    from sklearn import metrics as sklearn_metrics

    def f1_score(*sides, **options):
      return float(sklearn_metrics.f1_score(*sides, zero_division=0, **options))

    gold, predicted = ([a[key] for a in answers] for key in ('gold', 'prediction'))
    if self.regression:
      if len(gold) < 2 or not np.std(gold) or not np.std(predicted):
        return {'pearson': float('nan'), 'spearman': float('nan')}
      tests = {'pearson': scipy.stats.pearsonr, 'spearman': scipy.stats.spearmanr}
      return {name: float(test(gold, predicted).statistic) for name, test in tests.items()}
    if self.multi_label:
      sides = ([[label in held for label in self.labels] for held in x] for x in (gold, predicted))
      gold, predicted = map(np.array, sides)
      f1 = {f'{kind}_f1': f1_score(gold, predicted, average=kind) for kind in ('micro', 'macro')}
      return f1 | {'subset_accuracy': float((gold == predicted).all(axis=1).mean())}
    out = {'classification_accuracy': float(np.mean(np.array(gold) == np.array(predicted)))}
    if len(self.labels) == 2:
      out['f1'] = f1_score(gold, predicted, pos_label=self.labels[1], average='binary')
    else:
      out['macro_f1'] = f1_score(gold, predicted, average='macro')  # over the labels that occur
    if len({*gold, *predicted}) == 1:  # scikit-learn would warn
      return out | {'matthews': 0.0}
    return out | {'matthews': float(sklearn_metrics.matthews_corrcoef(gold, predicted))}

  def constant(self, answers):
    if not self.regression:
      return super().constant(answers)
    gold, predicted = ([a[key] for a in answers if 'gold' in a] for key in ('gold', 'prediction'))
    collapsed = gold and np.std(predicted) < 1e-3 * np.std(gold)
    return f'{np.mean(predicted):.3f}' if collapsed else ''

  def files(self, answers):
    """predictions.tsv as GLUE's leaderboard reads it: columns index and prediction."""
    shown = (
      f'{a["prediction"]:.3f}'
      if self.regression
      else ','.join(a['prediction'])
      if self.multi_label
      else a['prediction']
      for a in answers
    )
    lines = (f'{a["id"]}\t{prediction}\n' for a, prediction in zip(answers, shown))
    return {'predictions.tsv': 'index\tprediction\n' + ''.join(lines)}


def sources(config, tokenizer, splits=('train', 'eval')):
  def rows_of(split, problems):
    if is_prepared(config.data[split]):
      if split == 'eval':
        fault = f'data.eval={config.data.eval} is prepared, and answers need the texts'
        raise InputError(f'{fault}; name the table.')
      return prepared.Texts(config, tokenizer, Prepared(config.data[split]), problems)
    examples = problems.chosen(list(read(config, split, problems)), config.task.train_examples)
    return Texts(config, tokenizer, examples, problems)

  has_eval = not config.data.train or config.table.eval_share > 0
  out = labelled.in_splits(config, splits, rows_of, has_eval)
  if 'train' in out:
    label_remarks.log_counts(config, out['train'])
  return out
