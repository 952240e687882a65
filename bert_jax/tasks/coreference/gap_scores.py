"""GAP's scores, as the official gap_scorer.py computes them (Webster et al. 2018).

Whether A is meant and whether B is meant are two decisions. F1 is taken over all decisions, and
separately for masculine and feminine pronouns.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

SCORES = ('gap_f1', 'gap_f1_masculine', 'gap_f1_feminine', 'gap_bias')
GENDERS = dict.fromkeys(('he', 'his', 'him'), 'masculine')
GENDERS |= dict.fromkeys(('she', 'her', 'hers'), 'feminine')


def gap_scores(answers: Sequence[dict]) -> dict[str, float]:
  """The SCORES, {name: score}; F1 from 0 to 100. gap_bias is the feminine F1 over the masculine
  one; NaN if one of them is 0, where the official scorer prints '-'. answers: dicts with id,
  pronoun, gold and prediction (A, B or neither). Of answers with one id the first counts."""
  by_id = {answer['id']: answer for answer in reversed(answers)}
  gold, predicted = _decisions(by_id.values(), 'gold'), _decisions(by_id.values(), 'prediction')
  gender = np.array([GENDERS.get(answer['pronoun'].lower(), '') for answer in by_id.values()])

  def f1(which: Any) -> float:
    right = np.sum(gold[which] & predicted[which])
    wrong = np.sum(gold[which] ^ predicted[which])
    return float(200 * right / (2 * right + wrong)) if right else 0.0

  masculine, feminine = f1(gender == 'masculine'), f1(gender == 'feminine')
  bias = feminine / masculine if masculine and feminine else float('nan')
  return dict(zip(SCORES, (f1(slice(None)), masculine, feminine, bias)))


def _decisions(answers, key):
  """Is A meant, and is B meant? [answers, 2]"""
  return np.array([[answer[key] == 'A', answer[key] == 'B'] for answer in answers])
