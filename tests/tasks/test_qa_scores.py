"""Scores of extractive QA: those of the official scripts, or worked out by hand."""

import json
import random

import numpy as np
import pytest

from bert_jax.tasks.qa import squad_scores as qa_scores


def test_golden_scores_of_a_leaderboard_system(shared):
  """The official evaluate-v1.1.py on the same predictions (official_scores_xquad_en.json)."""
  content = json.loads((shared / 'xquad/xquad.en.json').read_text())
  predictions = json.loads((shared / 'golden/squad/pred_dev1.1_bert_ensemble.json').read_text())
  official = json.loads((shared / 'golden/squad/official_scores_xquad_en.json').read_text())
  questions = [q for a in content['data'] for p in a['paragraphs'] for q in p['qas']]
  scores = qa_scores.squad(
    [predictions[q['id']] for q in questions],
    [[answer['text'] for answer in q['answers']] for q in questions],
  )
  assert scores['exact'] == pytest.approx(official['exact_match'], abs=1e-9)
  assert scores['f1'] == pytest.approx(official['f1'], abs=1e-9)
  assert (round(scores['exact'], 4), round(scores['f1'], 4)) == (74.8739, 86.3247)


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ('The  Cat\tand AN apple another', 'cat and apple another'),
    ('a.b. the-end', 'ab theend'),  # punctuation goes first, so this 'the' is no article
    ('“quoted” — dash', '“quoted” — dash'),  # only ASCII punctuation goes
    ('the.', ''),
    ('Ünï, THE\u00a0x', 'ünï x'),
  ],
)
def test_squad_normalisation(text, expected):
  assert qa_scores.normalised(text) == expected


def test_squad_takes_the_best_gold_and_counts_words():
  scores = qa_scores.squad(['the big cat'], [['dog', 'cat', 'a big big cat']])
  # big cat / big big cat: precision 1, recall 2/3; cat: precision 1/2, recall 1
  assert scores == pytest.approx({'exact': 0, 'f1': 80.0})
  assert qa_scores.squad(['', 'The'], [['an'], ['x']]) == {'exact': 50.0, 'f1': 0.0}


def test_squad2_by_hand():
  """Odds sorted: q2 -3, q1 -1, q3 0, q4 2. 'No answer' alone is right twice (q2, q4); no prefix of
  -1 (q2), +1 (q1), +0.8 (q3), -1 (q4) beats it but the first three in F1: 2 - 1 + 1 + 0.8."""
  golds = [['a cat'], [], ['big big dog'], []]
  answers, odds = ['cat', 'x', 'big dog', 'y'], [-1.0, -3.0, 0.0, 2.0]
  predictions = ['cat', 'x', '', '']
  names = [f'{of}{name}' for of in ('', 'HasAns_', 'NoAns_') for name in ('exact', 'f1')]
  assert qa_scores.squad2(predictions, golds) == dict.fromkeys(names, 50)
  best = qa_scores.best_thresholds(answers, golds, odds)
  assert best == pytest.approx(
    {'best_exact': 50, 'best_exact_thresh': 0.0, 'best_f1': 70, 'best_f1_thresh': 0.0}
  )
  assert qa_scores.squad2(['', 'the'], [['the'], []])['exact'] == 100  # nothing is nothing
  assert 'HasAns_f1' not in qa_scores.squad2([''], [[]])


def test_the_best_threshold_gives_the_best_score():
  rng = random.Random(0)
  texts = ['one', 'two', 'one two', 'two three four']
  golds = [[rng.choice(texts)] if rng.random() < 0.5 else [] for _ in range(300)]
  answers = [gold[0] if gold and rng.random() < 0.5 else rng.choice(texts) for gold in golds]
  odds = [rng.gauss(-1 if gold else 1, 2) for gold in golds]
  best = qa_scores.best_thresholds(answers, golds, odds)
  for name in ('exact', 'f1'):
    scores = [
      qa_scores.squad2([a if o <= t else '' for a, o in zip(answers, odds)], golds)[name]
      for t in [best[f'best_{name}_thresh'], -100, *odds]
    ]
    assert scores[0] == pytest.approx(best[f'best_{name}']) == pytest.approx(max(scores))


@pytest.mark.parametrize(
  ('text', 'expected'),  # of cmrc2018_evaluate.py with the word tokenizer of NLTK 3.9.1
  [
    (
      'iPhone 5s（2013年）的"测试" don\'t 3,000.5% U.S. end.',
      "iphone 5s2013 年 的 `` 测 试 `` do n't 3,000.5 % u.s. end .",
    ),
    ('约(a b) "c", d;e 100米', "约 ( a b ) `` c '' , d ; e 100 米"),
    ("they'll can't, 王's", "they 'll ca n't , 王 's"),
    (' 《红楼梦》：A-B ', '红 楼 梦 ab'),
    ('', ''),
  ],
)
def test_cmrc_segments(text, expected):
  assert qa_scores.segments(text) == expected.split()


def test_cmrc_scores_by_hand():
  # Longest common stretch 北京大学: precision 4/5, recall 1. 北 alone: precision 1/2, recall 1/4.
  assert qa_scores.cmrc(['北京大学校'], [['北京大学']])['f1'] == pytest.approx(800 / 9)
  assert qa_scores.cmrc(['北大'], [['北京大学', '清华']])['f1'] == pytest.approx(100 / 3)
  assert qa_scores.cmrc(['红楼梦。'], [['x', '《红楼梦》']]) == {'exact': 100, 'f1': 100}
  assert qa_scores.cmrc(['', '甲'], [['甲'], ['乙']]) == {'exact': 0, 'f1': 0}


def longest_common_run(one, two):
  """By the table of the lengths of the runs that end at each pair of places."""
  ends = np.zeros((len(one) + 1, len(two) + 1), int)
  for i, j in np.ndindex(len(one), len(two)):
    ends[i + 1, j + 1] = ends[i, j] + 1 if one[i] == two[j] else 0
  return ends.max()


@pytest.mark.parametrize('seed', [0, 1])
def test_the_common_run_of_long_texts_counts_frequent_characters(seed):
  """Of 200 segments and more, where difflib would leave out those that are more than 1 %."""
  rng = random.Random(seed)
  predicted, gold = (''.join(rng.choice('甲乙丙丁') for _ in range(n)) for n in (230, 300))
  run = longest_common_run(predicted, gold)
  assert 0 < run < 30 and qa_scores.segments(gold) == list(gold)
  expected = 2 * run / (len(predicted) + len(gold))
  assert qa_scores.segment_f1(predicted, gold) == pytest.approx(expected)
