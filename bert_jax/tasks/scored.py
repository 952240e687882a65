"""Rows of examples whose answers can be scored, as every family of labelled examples has."""

import abc
import json
from collections.abc import Iterable, Mapping

import numpy as np

from bert_jax.rows import examples


def json_lines(rows: Iterable[dict]) -> str:
  """Returns the content of a file with a JSON object in each line."""
  return ''.join(f'{json.dumps(row)}\n' for row in rows)


def number_or_name(identity: str) -> int | str:
  """Returns the id of an example as a number, if it is one: as leaderboards want it."""
  return int(identity) if identity.isdecimal() else identity


class Scored(examples.Examples, abc.ABC):
  """Examples that know what the outputs of a model mean, and how good its answers are."""

  @abc.abstractmethod
  def answers(self, outputs: Mapping[str, np.ndarray]) -> list[dict]:
    """Returns the model's answers: a JSON-ready dict for each example of which all was predicted.
    outputs: {name: [R, ...]}, what the objective's `predict` returned for R rows. Keys: id, where
    (file and line), length (tokens of its texts before any is cut), the question, gold (if known),
    prediction, probability, loss (-log of the probability of the gold answer)."""

  def score(self, answers: list[dict]) -> dict[str, float]:
    """{metric: number} as the task's official scorer computes it; {} if no answer has gold."""
    known = [answer for answer in answers if 'gold' in answer]
    return self.scores(known) if known else {}

  @abc.abstractmethod
  def scores(self, answers: list[dict]) -> dict[str, float]:
    """{metric: number} of answers that all have gold."""

  def by_length(self, answers: list[dict]) -> list[dict]:
    """The scores of the answers of each length: [{'tokens': '65-128', 'examples': number, metric:
    score, ..}, ..], shortest first. The bounds are powers of 2, from 64 on."""
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
    """{file name: content} in the formats that official scorers and leaderboards read."""
    del answers
    return {}

  def constant(self, answers: list[dict]) -> str:
    """The one prediction for all examples though their gold differs, else ''.
    A run whose answers are constant has collapsed."""
    predicted = {str(answer['prediction']) for answer in answers}
    gold = {str(answer.get('gold')) for answer in answers}
    return predicted.pop() if len(predicted) == 1 and len(gold) > 1 else ''
