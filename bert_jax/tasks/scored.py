"""The base class of a labelled family's rows: examples whose answers can be scored."""

import abc
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax

from bert_jax.rows import examples


def json_lines(rows: Iterable[dict]) -> str:
  """The content of a file with a JSON object on each line."""
  return ''.join(f'{json.dumps(row)}\n' for row in rows)


def number_or_name(identity: str) -> int | str:
  """An example's id, converted to a number if it is one, as leaderboards expect."""
  return int(identity) if identity.isdecimal() else identity


def choice_of_label(labels: Sequence[Any], logits: np.ndarray, gold: int | None) -> dict[str, Any]:
  """The parts of an answer that say which of some labels is right: prediction, its probability,
  all probabilities and, if the number of the right label is known, gold and loss."""
  logs, best = log_softmax(logits), int(np.argmax(logits))
  shares = np.exp(logs).tolist()
  out = {'prediction': labels[best], 'probability': shares[best]}
  out['probabilities'] = dict(zip(labels, shares))
  return out | ({} if gold is None else {'gold': labels[gold], 'loss': float(-logs[gold])})


def correlations(gold: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
  """Pearson's and Spearman's correlation; NaN where one side does not vary."""
  import scipy.stats  # slow to import

  varied = len(gold) > 1 and np.std(gold) > 0 and np.std(predicted) > 0
  tests = {'pearson': scipy.stats.pearsonr, 'spearman': scipy.stats.spearmanr}
  of = lambda test: float(test(gold, predicted).statistic) if varied else float('nan')
  return {name: of(test) for name, test in tests.items()}


class Scored(examples.Examples, abc.ABC):
  """Examples that turn a model's outputs into answers, and score the answers."""

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
    """Scores by length: [{'tokens': '65-128', 'examples': number, metric: score, ..}, ..], shortest
    first. The bounds are powers of 2, from 64 on."""
    groups = {}
    for answer in answers:
      if 'gold' in answer:
        groups.setdefault(max(64, 1 << (answer['length'] - 1).bit_length()), []).append(answer)
    return [
      {'tokens': f'{0 if longest == 64 else longest // 2 + 1}-{longest}', 'examples': len(part)}
      | self.scores(part)
      for longest, part in sorted(groups.items())
    ]

  def files(self, answers: list[dict]) -> dict[str, str]:
    """Files for official scorers and leaderboards, {file name: content}."""
    del answers
    return {}

  def constant(self, answers: list[dict]) -> str:
    """The prediction, if it is the same for all examples though their gold differs (the run has
    collapsed), else ''. Of numbers: their mean, if they hardly differ."""
    predicted, gold = ([a[key] for a in answers if key in a] for key in ('prediction', 'gold'))
    if predicted and isinstance(predicted[0], float):
      collapsed = gold and np.std(predicted) < 1e-3 * np.std(gold)
      return f'{np.mean(predicted):.3f}' if collapsed else ''
    alike = len(set(map(str, predicted))) == 1 and len(set(map(str, gold))) > 1
    return str(predicted[0]) if alike else ''
