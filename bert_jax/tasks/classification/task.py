"""The objective, rows and scores of the classification of texts and pairs of texts.

A text has one label of a set, several labels (multi_label), or a number (regression).

A text that is too long keeps its head, its tail, or both: a quarter of the tokens from its head and
the others from its tail (Sun et al. 2019, https://arxiv.org/abs/1905.05583, keep 128 and 382 of
510). Or it becomes windows, which share its weight in the loss and whose logits are averaged. A
pair that is too long loses tokens from the end of its longer text, as in run_classifier.py. What is
cut is counted.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy.special import expit

from bert_jax.errors import InputError, counted, listed, log, quoted
from bert_jax.objectives.classification import Classification
from bert_jax.rows import windows
from bert_jax.rows.examples import by_example
from bert_jax.tasks import labelled
from bert_jax.tasks.classification import label_sets, scores
from bert_jax.tasks.classification.encoded import encode
from bert_jax.tasks.classification.label_sets import names, values
from bert_jax.tasks.classification.reading import NO_LETTER, Example, label_type, read
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.scored import Scored, choice_of_label, log_labels
from bert_jax.tokenizers import Tokenizer


def resolve(config: ConfigDict) -> ConfigDict:
  """Fills in table.labels (the labels of the training data, sorted), their type and balanced class
  weights."""
  table, is_balanced = config.table, config.table.class_weights == ('balanced',)
  if not (table.ends or config.model.causal):  # which the model of init_from may say
    raise InputError('table.ends=false is for causal models; leave it.')
  if not config.data.train and (config.data.eval or table.labels or table.regression):
    raise InputError(
      'data.train is empty; name the training data (only task=docs, on the embedded documentation, '
      'has neither data.train nor data.eval).'
    )
  if table.regression:
    return config
  config = config.copy_and_resolve_references()
  if not table.labels or is_balanced:
    counts, number = _counted(config)
    if not table.labels:
      config.table.labels = label_sets.label_set(table, counts)
    if is_balanced:
      with config.ignore_type():
        weights = label_sets.balanced(config.table.labels, counts, number)
        config.table.class_weights = weights
  if table.label_type == 'data':
    config.table.label_type = label_type(config)
  return config


def _counted(config):
  """({name of a label: how often it is in the training data}, number of the examples)."""
  config = config.copy_and_resolve_references()
  config.table.label_type = 'text'
  if not config.data.train:
    log.info('data.train is empty: from which package is a docstring that is installed here?')
  problems, same = Problems.of(config, 'train'), {}
  # One object for equal labels, since there may be millions of them.
  labels = [same.setdefault(x.label, x.label) for x in read(config, 'train', problems, whole=True)]
  labels = problems.chosen(labels, config.task.train_examples)
  several = config.table.multi_label
  return Counter(itertools.chain.from_iterable(labels) if several else labels), len(labels)


def texts(config: ConfigDict) -> Iterator[str]:
  for example in read(config, 'train', Problems.of(config, 'train')):
    yield from example.texts


def objective(config: ConfigDict, tokenizer: Tokenizer, kind: type = Classification) -> Any:
  """The objective of a config, a `kind` of Classification."""
  table, labels = config.table, names(config.table.labels)
  for label, _ in table.class_weights:
    if label not in labels:
      raise InputError(
        f'table.class_weights names {quoted(label)}, which is not a label; there are '
        f'{listed(labels)}.'
      )
  return labelled.objective(
    kind,
    config,
    labels,
    multi_label=table.multi_label,
    pooling=table.pooling,
    sigmoid=table.sigmoid,
    prior=labelled.prior_of(table),
    class_weights=label_sets.class_weights(table),
  )


class CutTexts(Sequence):
  """The ids of the windows of texts, cut when they are asked for. text_of, window_of: [W] of each
  window the number of its text, and its number in that."""

  def __init__(
    self,
    tokenizer: Tokenizer,
    sides: Sequence[Sequence[np.ndarray]],
    room: int,
    keep: str,
    text_of: np.ndarray,
    window_of: np.ndarray,
  ):
    self.tokenizer, self.sides, self.room, self.keep = tokenizer, sides, room, keep
    self.text_of, self.window_of = text_of, window_of

  def __len__(self) -> int:
    return len(self.text_of)

  def __getitem__(self, e: Any) -> Any:
    ids = tuple(side[self.text_of[e]] for side in self.sides)
    if sum(map(len, ids)) > self.room:
      ids = windows.cut(ids, self.room, self.keep)[self.window_of[e]]
    return self.tokenizer.pair(*ids) if len(ids) == 2 else ids


class Texts(Scored):
  """The rows of labelled texts: [CLS] text [SEP] or [CLS] text [SEP] second text [SEP].
  Each window of a text is an example; text_of [E]: the number of its text. tokens: of each text.
  examples: of training data they are not kept, since they may be millions.
  cut: how many texts are not read whole."""

  for_missed = "table.class_weights=('balanced',) makes labels count alike, epochs train longer"

  def __init__(
    self,
    config: ConfigDict,
    tokenizer: Tokenizer,
    examples: Iterable[Example],
    problems: Problems,
  ):
    encoded = encode(config, tokenizer, examples, keep=problems.split != 'train')
    table, sides, labels = config.table, encoded.sides, encoded.labels
    self.examples, self.labels = encoded.examples, values(table)
    self.multi_label, self.regression = table.multi_label, table.regression
    self.tokens, self.size = encoded.sizes.sum(axis=0), len(labels)
    is_pair, limit = len(sides) == 2, labelled.limit(config)
    more = tokenizer.between - 1 if is_pair else 0  # further [SEP]s between the texts
    ends = table.ends or (bool(tokenizer.begin_ids), False)
    has_cls, has_sep = np.broadcast_to(ends, 2).astype(int)
    special = more + has_cls + has_sep * len(sides)
    room = limit - special
    counts = self._window_counts(config, room, is_pair, problems)
    self.text_of = np.repeat(np.arange(self.size), counts)
    window_of = np.arange(len(self.text_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    left = self.tokens[self.text_of] - window_of * windows.stride_of(room)
    lengths = np.minimum(left, room) + special
    if table.long_texts == 'windows' and not is_pair:
      self.read = list(sides[0])
    weights = (encoded.known / counts).astype(np.float32)
    super().__init__(
      tokenizer,
      CutTexts(tokenizer, sides, room, table.long_texts, self.text_of, window_of),
      per_example={'labels': labels[self.text_of], 'weights': weights[self.text_of]},
      ends=ends,
      lengths=lengths,
      **labelled.shape(config),
    )
    self.size, self.scored = len(labels), int(encoded.known.sum())
    self.label_counts = np.zeros(0, int)
    if self.scored:
      labels, by_class = labels[encoded.known], label_sets.class_weights(table)
      counts = self.label_counts = label_sets.counts_of(labels, len(self.labels))
      self.baselines |= label_sets.baselines_of(labels, counts, by_class)
      self.prior = label_sets.prior_of(labels, counts)
      if problems.split == 'train' and self.labels:
        log_labels('labels', self.labels, counts)
      # Of several labels counts has two rows.
      held = np.atleast_2d(counts)[-1]
      absent = [label for label, number in zip(self.labels, held) if not number]
      if absent:
        done = 'learned' if problems.split == 'train' else 'scored'
        log.warning(
          f'{problems.split}: no example has the label {listed(absent)}, of which nothing is {done}'
        )

  def _window_counts(self, config, room, is_pair, problems):
    """[E] into how many windows each text is cut; counts those that do not fit whole."""
    in_windows = config.table.long_texts == 'windows' and not is_pair
    counts = np.ones(self.size, int)
    over = self.tokens - room
    long = int((over > 0).sum())
    self.cut = 0 if in_windows else long
    if long:
      how = 'in windows' if in_windows else 'cut'
      limit = labelled.limit(config)
      problems.counts[f'examples {how} (longer than {limit} tokens)'] += long
    if in_windows:
      counts += np.maximum(0, -(-over // windows.stride_of(room)))
    return counts

  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    numbers, (logits,) = by_example(outputs, 'logits')
    counts = np.bincount(self.text_of)
    predicted = np.bincount(self.text_of[numbers], minlength=len(counts))
    total = np.zeros((len(counts), logits.shape[-1]))
    np.add.at(total, self.text_of[numbers], logits)
    whole = np.flatnonzero((predicted == counts) & (predicted > 0))
    return [self._answer(i, total[i] / counts[i]) for i in whole.tolist()]

  def _answer(self, i: int, logits: np.ndarray) -> dict[str, Any]:
    example, gold = self.examples[i], self.examples[i].label
    out: dict[str, Any] = {
      'id': example.id,
      'where': example.where,
      **dict(zip(('text', 'pair'), example.texts)),
      'length': int(self.tokens[i]),
    }
    if self.regression:
      out['prediction'] = float(logits[0])
      if gold is not None:
        out |= {'gold': gold, 'loss': float((logits[0] - gold) ** 2)}
      return out
    if not self.multi_label:
      number = None if gold is None else self.labels.index(gold)
      return out | choice_of_label(self.labels, logits, number)
    shares = expit(logits)
    out['prediction'] = [label for label, share in zip(self.labels, shares) if share > 0.5]
    out['probabilities'] = dict(zip(self.labels, map(float, shares)))
    if gold is not None:
      of_gold = np.where(np.isin(self.labels, gold), shares, 1 - shares)
      out |= {'gold': gold, 'loss': float(np.sum(-np.log(of_gold + 1e-12)))}
    return out

  def by_label(self, answers: list[dict]) -> list[dict]:
    return scores.by_label(answers, self.labels)

  def scores(self, answers: list[dict]) -> dict[str, float]:
    gold = [answer['gold'] for answer in answers]
    predicted = [answer['prediction'] for answer in answers]
    if self.regression:
      return scores.of_numbers(gold, predicted)
    if self.multi_label:
      return scores.of_several(gold, predicted, self.labels)
    return scores.of_labels(gold, predicted, self.labels)

  def files(self, answers: list[dict]) -> dict[str, str]:
    """predictions.tsv as GLUE's leaderboard reads it: columns index and prediction."""
    lines = ['index\tprediction\n']
    for answer in answers:
      prediction = answer['prediction']
      if self.regression:
        prediction = f'{prediction:.3f}'
      elif self.multi_label:
        prediction = ','.join(map(str, prediction))
      lines.append(f'{answer["id"]}\t{prediction}\n')
    return {'predictions.tsv': ''.join(lines)}


def rows(config: ConfigDict, tokenizer: Tokenizer, split: str, problems: Problems) -> Any:
  examples, few = read(config, split, problems), config.task.train_examples
  out = Texts(config, tokenizer, problems.chosen(examples, few), problems)
  if config.data[split] and not out.tokens.any():
    raise InputError(f'data.{split}: all texts are empty; is it the right table.text_column?')
  odd = problems.counts[NO_LETTER]
  if odd:
    log.warning(
      '%s: %s: empty, or numbers or signs alone; leave out the rows without a text, or name '
      'another table.text_column',
      split,
      counted(odd, NO_LETTER),
    )
  if split != 'train' and label_sets.positive(config.table):
    log.info('f1 is of %r, the second of table.labels', values(config.table)[1])
  return out


def has_eval(config: ConfigDict) -> bool:
  return config.data.eval or not config.data.train or config.table.eval_share > 0


sources = labelled.sources_of(rows, has_eval=has_eval)
