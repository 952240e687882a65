"""Scores by the length of a text in scores.json; those of a report are in test_report.py."""

import json

import numpy as np

from bert_jax import metrics, tokenizers
from bert_jax.tasks.choice import reading, task
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.scored import Scored


class Right(Scored):
  """Answers that are right or wrong."""

  def answers(self, outputs):
    return outputs

  def scores(self, answers):
    return {'right': float(np.mean([a['gold'] == a['prediction'] for a in answers]))}


def test_each_answer_is_scored_among_those_of_its_length(vocab):
  source = Right(tokenizers.load(vocab), [(np.array([5], np.int32),)], seq_length=8)
  lengths = {0: 1, 64: 1, 65: 0, 100: 1, 128: 0, 129: 0, 3000: 1}
  times = {0: 11, 64: 10, 65: 8, 100: 7, 128: 6, 129: 20, 3000: 19}
  lengths = [(n, p) for n, p in lengths.items() for _ in range(times[n])]
  answers = [{'length': n, 'gold': 1, 'prediction': p} for n, p in lengths]
  answers.append({'length': 9, 'prediction': 0})  # nobody knows
  assert source.by_length(answers) == [
    {'tokens': '0-64', 'examples': 21, 'right': 1.0},
    {'tokens': '65-128', 'examples': 21, 'right': 1 / 3},
    {'tokens': '129-256', 'examples': 20, 'right': 0.0},
    {'tokens': '2049-4096', 'examples': 19, 'right': 1.0},
  ]


def test_the_length_of_a_question_is_that_of_all_of_it(vocab):
  """However much of it is cut."""
  tokenizer, problems = tokenizers.load(vocab), Problems('eval', False)
  question = reading.Question('here', 'q', 'a ' * 50, 'b b', ('a', 'b ' * 40), 0)
  for limit in (20, 400):
    _, lengths = task._pairs(tokenizer, [question], limit, problems)
    assert lengths == [50 + len(tokenizer.ids_batch([question.seconds[1]])[0])]


def test_a_table_within_metrics_is_valid_json():
  given = {'a': float('nan'), 'by_length': [{'f1': float('inf'), 'tokens': '0-64'}]}
  assert json.loads(metrics.to_json(given)) == {
    'a': None,
    'by_length': [{'f1': None, 'tokens': '0-64'}],
  }
  assert metrics.to_json({'f1_GERÄT': 1}) == '{"f1_GERÄT": 1}'
