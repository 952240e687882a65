"""Rows that are scored: how answers become scores, and what a guess without the input scores."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import entr, log_softmax

from bert_jax.errors import log, quoted
from bert_jax.metrics import Level, LossLevel
from bert_jax.rows.examples import Examples

NAMED = 20  # labels that are named, each with its F1


def log_labels(what: str, labels: Sequence[str], counts: Sequence[int] | np.ndarray) -> None:
  """Logs labels with their counts in the training data, the most frequent first. what: they are."""
  order = np.argsort(-np.asarray(counts), kind='stable')
  shown = [f'{quoted(labels[i])} {counts[i]:,}' for i in order[:NAMED]]
  if len(labels) > NAMED:
    shown.append(f'and {len(labels) - NAMED:,} more')
  log.info('%s: %s', what, ', '.join(shown))


def always(kind: str, scores: Mapping[str, Any]) -> dict[str, Level]:
  """Baselines of a kind, from the {metric: score} of one constant answer."""
  return {name: Level(float(score), kind) for name, score in scores.items()}


def entropy(counts: Any, weights: Any = 1.0) -> dict[str, LossLevel]:
  """{'cross_entropy': its baseline in nats}: the least that one answer for all examples can have,
  the entropy of their labels; {} if it is 0, below which nothing is. counts: [L] of each label,
  or [2, L] of the examples without and with each of several: then the mean of all labels. weights:
  [L] in the loss."""
  counts = np.asarray(counts, float)
  if counts.ndim == 1:
    counts, weights = (counts * weights)[:, None], 1.0
  nats = float(np.mean(weights * entr(counts / counts.sum(0)).sum(0)))
  return {'cross_entropy': LossLevel(nats, 'entropy')} if nats > 0 else {}


def label_shares(counts: Any, number: int = 0) -> tuple[float, ...]:
  """The share of each label by their counts among `number` examples; 0: each has one label. One
  that none or all have counts as half an example less or more, so that its logit is finite."""
  number = number or sum(counts)
  if not number:
    return ()
  exact = np.clip(counts, 0.5, number - 0.5) / number
  # What would be rounded to 1 is not rounded.
  return tuple(float(f'{x:.5g}') % 1 or float(x) for x in exact)


def f1_of_all(share: Any) -> Any:
  """The F1 of giving one label to every example, when it is right for this share of them."""
  return 2 * share / (1 + share)


def choice_of_label(labels: Sequence[Any], logits: np.ndarray, gold: int | None) -> dict[str, Any]:
  """The parts of an answer that say which of some labels is right: prediction, its probability,
  all probabilities and, if the number of the right label is known, gold and loss."""
  logs, best = log_softmax(logits), int(np.argmax(logits))
  probabilities = np.exp(logs).tolist()
  out = {
    'prediction': labels[best],
    'probability': probabilities[best],
    'probabilities': dict(zip(labels, probabilities)),
  }
  if gold is not None:
    out |= {'gold': labels[gold], 'loss': float(-logs[gold])}
  return out


def correlations(gold: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
  """Pearson's and Spearman's correlation; NaN where one side does not vary."""
  import scipy.stats  # slow to import

  if len(gold) < 2 or not np.std(gold) or not np.std(predicted):
    return {'pearson': float('nan'), 'spearman': float('nan')}
  return {
    'pearson': float(scipy.stats.pearsonr(gold, predicted).statistic),
    'spearman': float(scipy.stats.spearmanr(gold, predicted).statistic),
  }


class Scored(Examples, abc.ABC):
  """Examples that turn a model's outputs into answers, and score the answers.
  scored: how many examples have gold, and so are scored; None: all. unscored: why the first
  one that is not scored is not, or a guess.
  for_missed: what to do about labels that are never answered."""

  scored: int | None = None
  unscored = 'is there the column of labels, called as in the training data?'
  for_missed = ''

  @abc.abstractmethod
  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    """The model's answers: a JSON-ready dict for each example that was predicted completely.
    outputs: {name: [R, ...]}, what the objective's `predict` returned for R rows. Keys: id, where
    (file and line), length (tokens of its texts before any is cut), the question, gold (if known),
    prediction, probability, loss (-log of the probability of the gold answer)."""

  def score(self, answers: list[dict]) -> dict[str, float]:
    """Scores answers as the task's official scorer does, {metric: number}; {} without gold."""
    known = [answer for answer in answers if 'gold' in answer]
    return self.scores(known) if known else {}

  @abc.abstractmethod
  def scores(self, answers: list[dict]) -> dict[str, float]:
    """Scores answers that all have gold, {metric: number}."""

  def by_length(self, answers: list[dict]) -> list[dict]:
    """Scores by length: [{'tokens': '65-128', 'examples': number, metric: score, ..}, ..]."""
    groups = {}
    for answer in answers:
      if 'gold' in answer:
        longest = max(64, 1 << (answer['length'] - 1).bit_length())
        groups.setdefault(longest, []).append(answer)
    out = []
    for longest, part in sorted(groups.items()):
      shortest = 0 if longest == 64 else longest // 2 + 1
      row = {'tokens': f'{shortest}-{longest}', 'examples': len(part)}
      out.append(row | self.scores(part))
    return out

  def by_label(self, answers: list[dict]) -> list[dict]:
    """How labels are answered: [{'label', 'examples': with it, 'answered': how often, 'right',
    'f1'}, ..], without those that neither are nor are answered."""
    del answers
    return []

  def files(self, answers: list[dict]) -> dict[str, str]:
    """Files for official scorers and leaderboards, {file name: content}."""
    del answers
    return {}

  def constant(self, answers: list[dict]) -> str:
    """The prediction, or about which number, if all are alike though their gold is not, else ''."""
    predicted = [answer['prediction'] for answer in answers if 'prediction' in answer]
    gold = [answer['gold'] for answer in answers if 'gold' in answer]
    if not predicted or not gold:
      return ''
    if isinstance(predicted[0], float):
      is_constant = np.std(predicted) < 1e-3 * np.std(gold)
      return f'about {np.mean(predicted):.3f}' if is_constant else ''
    is_constant = len(set(map(str, predicted))) == 1 and len(set(map(str, gold))) > 1
    return str(predicted[0]) if is_constant else ''
