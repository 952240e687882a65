"""Multiple choice: public files read as they are, choices packed into rows, softmax within each."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import published as p
import pytest
from refusal import refused

from bert_jax.tasks.choice import reading, task
from bert_jax.tasks.faulty_records import Problems

read = p.reader('choice', reading.read)


def rows(tokenizer, path, *fields, task_name='dream', split='train'):
  config = p.config_of('choice', task_name, path, *fields)
  return config, task.sources(config, tokenizer, (split,))[split]


# -- reading --------------------------------------------------------------------------------------


def test_race_as_published(tmp_path):
  """Also in rows of Parquet, each of a passage (TFDS) or of a question (Hugging Face)."""
  p.race(tmp_path, p.PASSAGE)
  p.race(tmp_path, p.PASSAGE | {'id': 'middle1.txt'}, level='middle')
  p.race(tmp_path, p.PASSAGE | {'id': 'middle9.txt'}, split='dev', level='middle')
  questions, problems = read(tmp_path, 'race')
  each = [(f'{level}1.txt-{k}', k) for level in ('high', 'middle') for k in (0, 1)]
  assert [(q.id, q.gold) for q in questions] == each
  assert questions[1].where == 'high/1.txt:1' and questions[1].context == p.PASSAGE['article']
  assert questions[0].seconds[0] == 'Who met Eve? Ann'
  assert [q.id for q in read(tmp_path, 'race', 'eval')[0]] == ['middle9.txt-0', 'middle9.txt-1']
  assert problems.counts['questions'] == 4 and not problems.places
  singular = {'questions': 'question', 'options': 'options', 'answers': 'answer'}
  single = [
    {name: p.PASSAGE[several][k] for several, name in singular.items()}
    | {'article': p.PASSAGE['article']}
    for k in (0, 1)
  ]
  for rows in ([p.PASSAGE], single):
    pd.DataFrame(rows).to_parquet(tmp_path / 'rows.parquet')
    found, _ = read(tmp_path / 'rows.parquet', 'race')
    assert [q[2:] for q in found] == [q[2:] for q in questions[:2]]


def test_what_is_no_letter_is_no_answer_of_race(tmp_path):
  p.race(tmp_path, p.PASSAGE | {'answers': ['', 'D']}, split='dev')
  assert [q.gold for q in read(tmp_path, 'race', 'eval')[0]] == [None, 3]
  p.race(tmp_path, p.PASSAGE | {'answers': ['BC', 'E']})
  with refused("its answer 'BC' is none of the 4 choices"):
    read(tmp_path, 'race')


@pytest.mark.parametrize(
  'text, filled',
  [
    ('They _ in _ .', 'They ate in ate .'),
    ('We learn that_.', 'We learn thatate.'),
    ('We___', 'Weate'),
    ('Is my_id _?', 'Is my_id ate?'),
    ('Is it my_id?', 'Is it my_id? ate'),
  ],
)
def test_a_blank_is_filled_as_roberta_does(text, filled):
  question = reading.Question('', '', 'x', text, ('ate', 'x'), 0, fills=True)
  assert question.seconds[0] == filled
  assert question._replace(fills=False).seconds[0] == f'{text} ate', 'only RACE has blanks'


def test_swag_as_published(tmp_path):
  (question,), _ = read(p.swag(tmp_path / 'train.csv', f'{p.SWAG_ROW},2'), 'swag')
  assert (question.context, question.text, question.gold) == ('She sits.', 'She', 2)
  assert question.seconds[:2] == ['She stands, and goes', 'She eats']
  assert read(p.swag(tmp_path / 'train.csv', f'{p.SWAG_ROW},2.0'), 'swag')[0] == [question]
  (question,), _ = read(p.swag(tmp_path / 'test.csv', p.SWAG_ROW, label=False), 'swag', 'eval')
  assert question.gold is None and question.id == '0'
  fewer = f'{p.SWAG_ROW},1'.replace('runs,flies', ',')
  assert read(p.swag(tmp_path / 'train.csv', fewer), 'swag')[0][0].choices[1:] == ('eats',)


def test_dream_as_published(tmp_path):
  questions, _ = read(p.dream(tmp_path / 'train.json', p.DIALOGUE), 'dream')
  assert questions[0].context == 'M: Did you see a film?\nF: No, I read.'
  assert [(q.where, q.id, q.gold, len(q.choices)) for q in questions] == [
    ('train.json[0]:0', '12-497-0', 0, 3),
    ('train.json[0]:1', '12-497-1', 0, 2),
  ]


def test_copa_as_published(tmp_path):
  questions, _ = read(p.jsonl(tmp_path / 'a.jsonl', *p.COPA), 'copa')
  assert [(q.gold, q.id) for q in questions] == [(0, '0'), (1, '1')]
  assert questions[0].context == 'The man ran.'
  assert questions[0].seconds[0] == 'What was the cause of this? He was late.'
  assert questions[1].seconds[1] == 'What happened as a result? I got wet.'
  without = {k: v for k, v in p.COPA[0].items() if k != 'label'}
  for row in (without, without | {'label': None}, without | {'label': -1}):
    path = p.jsonl(tmp_path / 'b.jsonl', row, p.COPA[1])
    assert [q.gold for q in read(path, 'copa', 'eval')[0]] == [None, 1]
    questions, problems = read(path, 'copa')
    assert [q.id for q in questions] == ['1']
    assert problems.places == {'without an answer (left out of training)': ['b.jsonl:1']}


@pytest.mark.parametrize('labels, first, golds', [
  ('142', 1, [0, 3, 1]),
  ('3012', 0, [3, 0, 1, 2]),
  ('BDA', 0, [1, 3, 0]),
  ('DB', 0, [3, 1]),
])  # fmt: skip
def test_labels_count_from_1_if_0_never_comes_in_training(tmp_path, caplog, labels, first, golds):
  lines = [f'{p.SWAG_ROW},{label}' for label in labels]
  config = p.config_of('choice', 'swag', p.swag(tmp_path / 'train.csv', *lines))
  config.data.eval = str(p.swag(tmp_path / 'dev.csv', f'{p.SWAG_ROW},2', f'{p.SWAG_ROW},'))
  config = task.resolve(config)
  assert config.choice.first_label == first
  assert ('no label of data.train is 0, so 1 is the first choice' in caplog.text) == first
  found = {x: [q.gold for q in reading.read(config, x, Problems(x))] for x in ('train', 'eval')}
  assert found == {'train': golds, 'eval': [2 - first, None]}


# -- rows -----------------------------------------------------------------------------------------


def test_choices_share_a_row_in_segments_of_their_own(tmp_path, letters):
  path = p.dream(tmp_path / 'train.json', p.DIALOGUE)
  _, source = rows(letters, path, 'data.seq_length=160')
  assert len(source) == 1
  row = source[0]
  assert list(row['groups']) == [1, 1, 1, 2, 2, 0, 0, 0]
  assert list(row['labels']) == [1, 0, 0, 1, 0, 0, 0, 0]
  assert list(row['example_ids']) == [1, 2, 3, 4, 5, 0, 0, 0]
  at = row['cls_positions'][3]
  second = row['input_ids'][(row['segment_ids'] == 4) & (row['token_type_ids'] == 1)]
  assert row['input_ids'][at] == letters.cls_id and row['position_ids'][at] == 0
  assert letters.decode(second) == 'who asks ? m'
  assert source.baselines['accuracy'] == (1.0, 'majority')
  cut = rows(letters, path, 'task.max_length=8')[1].texts
  assert [len(context) + len(second) for context, second in cut] == [8 - 3] * 5


@pytest.mark.parametrize('limit', range(8, 17))
def test_a_context_gives_way_to_the_longest_choice_which_loses_its_beginning(letters, limit):
  """3 of `limit` tokens are special; the answer knows how long the question was before."""
  questions = [
    reading.Question('a:1', '1', 'a b c d e', 'x', ('y', 'y z a b', 'y z'), 0),  # up to 5 and 5
    reading.Question('a:2', '2', 'b', 'x y z', ('a', 'a b c d e'), 0),  # 1 and 8
  ]
  problems, room, ids = Problems('train'), limit - 3, lambda text: letters.ids_batch([text])[0]
  pairs, lengths = task._pairs(letters, questions, limit, problems)
  assert lengths == [5 + 5, 1 + 8]
  expected = []
  for question in questions:
    seconds = [ids(second)[-room:] for second in question.seconds]
    left = max(0, room - max(map(len, seconds)))
    expected += [(ids(question.context)[:left], second) for second in seconds]
  lists = lambda pairs: [[x.tolist() for x in pair] for pair in pairs]
  assert lists(pairs) == lists(expected)
  cut = problems.counts[f'questions with a cut context (longer than {limit} tokens)']
  assert cut == (room < 5 + 5) + (room < 1 + 8)
  assert problems.counts['questions whose choices lost their beginning'] == (room < 5) + (room < 8)


# -- the objective --------------------------------------------------------------------------------


def test_the_softmax_by_hand(tmp_path, letters, monkeypatch):
  objective = task.objective(p.config_of('choice', 'dream', tmp_path), letters)
  logits = jnp.array([[1.0, 3.0, 0.0, 2.0, 2.0, 7.0]])
  batch = {
    'groups': jnp.array([[1, 1, 2, 2, 2, 0]]),
    'labels': jnp.array([[0.0, 1, 0, 1, 0, 0]]),
    'weights': jnp.array([[1.0, 1, 1, 1, 1, 0]]),
  }
  monkeypatch.setattr(task.Choice, 'logits', lambda *_: logits)
  terms, _ = objective.terms({}, batch, None, False)
  first, second = np.log(1 + np.exp(-2)), np.log(2 + np.exp(-2))
  assert float(terms['cross_entropy'].total) == pytest.approx(first + second, abs=1e-6)
  assert float(terms['cross_entropy'].weight) == 2
  assert float(terms['accuracy'].total) == 1, 'the tie of the second question is a miss'


def test_answers_and_scores_by_hand(tmp_path, letters):
  """What was not predicted whole has no answer."""
  _, source = rows(letters, p.dream(tmp_path / 'train.json', p.DIALOGUE))
  out = {'logits': np.array([[1.0, 5, 2, 4]]), 'example_ids': np.array([[1, 2, 3, 4]])}
  (answer,) = source.answers(out)
  assert (answer['prediction'], answer['prediction_text'], answer['gold']) == (1, 'Ran.', 0)
  shares = np.exp([1.0, 5, 2]) / np.exp([1.0, 5, 2]).sum()
  assert answer['probabilities'] == pytest.approx(shares.tolist())
  assert answer['probability'] == pytest.approx(shares[1])
  assert answer['loss'] == pytest.approx(-np.log(shares[0]))
  assert source.score([answer]) == {'accuracy': 0.0}
  assert source.files([answer])['predictions.tsv'] == 'id\tprediction\n12-497-0\t1\n'
  assert source.score([answer | {'gold': x} for x in (1, 0, 1)]) == {'accuracy': 2 / 3}
  p.race(tmp_path, p.PASSAGE | {'answers': ['A', 'A']}, p.PASSAGE | {'answers': ['B', 'A']})
  race = rows(letters, tmp_path, task_name='race')[1]
  nats = pytest.approx(np.log(4))
  assert race.baselines == {'accuracy': (0.75, 'majority'), 'cross_entropy': (nats, 'uniform')}
