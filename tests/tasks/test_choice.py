"""Multiple choice: public files read as they are, choices packed into rows, softmax within each."""

import json
import logging
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import config as c
from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.evaluate import evaluate
from bert_jax.tasks.choice import reading, task
from bert_jax.tasks.faulty_records import Problems
from bert_jax.train import train

SMALL = [
  '--config.model.vocab_size=120',
  '--config.model.hidden_size=32',
  '--config.model.intermediate_size=64',
  '--config.model.num_attention_heads=2',
  '--config.data.seq_length=128',
  '--config.data.examples_per_row=8',
  '--config.task.max_length=32',
  '--config.batch_size=2',
  '--config.steps=2',
  '--config.eval.every=0',
  '--config.checkpoint.every=0',
  '--config.log.tensorboard=false',
]

PASSAGE = {
  'id': 'high1.txt',
  'article': 'Ann met Eve in Rome.\nThey left late.',
  'questions': ['Who met Eve?', 'They _ in _ .'],
  'options': [['Ann', 'Al', 'Tom', 'Bob'], ['ate', 'met', 'sat', 'ran']],
  'answers': ['A', 'B'],
}
SWAG = ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3'
SWAG_ROW = '0,v,7,"She sits, then. She",She sits.,She,gold,"stands, and goes",eats,runs,flies'
DIALOGUE = [
  ['M: Did you see a film?', 'F: No, I read.'],
  [
    {'question': 'What did she do?', 'choice': ['Read.', 'Ran.', 'Sang.'], 'answer': 'Read.'},
    {'question': 'Who asks?', 'choice': ['M', 'F'], 'answer': 'M'},
  ],
  '12-497',
]
COPA = [
  {'premise': 'The man ran.', 'choice1': 'He was late.', 'choice2': 'He ate.', 'question': 'cause'},
  {
    'premise': 'It rained.',
    'choice1': 'It was dry.',
    'choice2': 'I got wet.',
    'question': 'effect',
  },
]
COPA = [row | {'idx': i, 'label': i} for i, row in enumerate(COPA)]


def race(folder, *passages, split='train', level='high'):
  below = folder / split / level
  below.mkdir(parents=True, exist_ok=True)
  for k, passage in enumerate(passages):
    (below / f'{k + 1}.txt').write_text(json.dumps(passage))
  return folder


def swag(path, *lines, label=True):
  path.write_text('\n'.join([SWAG + ',label' * label, *lines]) + '\n')
  return path


def dream(path, *dialogues):
  path.write_text(json.dumps(dialogues, ensure_ascii=False, indent=1))
  return path


def copa(path, *rows):
  path.write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows))
  return path


def config(train, eval='', *overrides, task='race', small=SMALL):
  return c.load(
    f'configs/finetune.py:task={task},runlocal',
    [*small, f'--config.data.train={train}', f'--config.data.eval={eval or train}', *overrides],
  )


def read(spec, task, split='train', skip=False):
  problems = Problems(split, skip)
  return reading.read(config(spec, task=task), split, problems), problems


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocab') / 'vocab.txt'
  letters = 'abcdefghijklmnopqrstuvwxyz'
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *letters, *'.,?:', 'ann', 'met']
  path.write_text('\n'.join([*words, *(f'##{x}' for x in letters)]) + '\n')
  return tokenizers.load(path)


# -- reading --------------------------------------------------------------------------------------


def test_race_as_published(tmp_path):
  race(tmp_path, PASSAGE)
  race(tmp_path, PASSAGE | {'id': 'middle1.txt'}, level='middle')
  race(tmp_path, PASSAGE | {'id': 'middle9.txt'}, split='dev', level='middle')
  questions, problems = read(tmp_path, 'race')
  assert [(q.id, q.gold, q.level) for q in questions] == [
    ('high1.txt-0', 0, 'high'),
    ('high1.txt-1', 1, 'high'),
    ('middle1.txt-0', 0, 'middle'),
    ('middle1.txt-1', 1, 'middle'),
  ]
  assert questions[1].where == 'high/1.txt:1' and questions[1].context == PASSAGE['article']
  assert questions[0].seconds[0] == 'Who met Eve? Ann'
  assert questions[1].seconds[2] == 'They sat in sat .', 'a blank is filled, as RoBERTa does'
  filled = {
    'We learn that_.': 'We learn thatate.',
    'We___': 'Weate',
    'Is my_id _?': 'Is my_id ate?',
  }
  for k, text in enumerate([*filled, 'Is it my_id?']):
    own = PASSAGE | {'questions': [text] * 2}
    (question, _), _ = read(
      race(tmp_path / f'blank{k}', own | {'options': [['ate', 'x']] * 2}), 'race'
    )
    assert question.seconds[0] == filled.get(text, f'{text} ate')
  assert [q.id for q in read(tmp_path, 'race', 'eval')[0]] == ['middle9.txt-0', 'middle9.txt-1']
  assert len(read(tmp_path / 'train' / 'high', 'race')[0]) == 2
  assert problems.counts['questions'] == 4 and not problems.places


def test_swag_as_published(tmp_path):
  (question,), _ = read(swag(tmp_path / 'train.csv', f'{SWAG_ROW},2'), 'swag')
  assert (question.context, question.text, question.gold) == ('She sits.', 'She', 2)
  assert question.seconds[:2] == ['She stands, and goes', 'She eats']
  (question,), _ = read(swag(tmp_path / 'test.csv', SWAG_ROW, label=False), 'swag', 'eval')
  assert question.gold is None and question.id == '0'


def test_dream_as_published(tmp_path):
  questions, problems = read(dream(tmp_path / 'train.json', DIALOGUE, DIALOGUE), 'dream')
  assert questions[0].context == 'M: Did you see a film?\nF: No, I read.'
  assert [(q.where, q.id, q.gold, len(q.choices)) for q in questions[:2]] == [
    ('train.json[0]:0', '12-497-0', 0, 3),
    ('train.json[0]:1', '12-497-1', 0, 2),
  ]
  assert problems.places['ids that came before (kept)'] == ['train.json[1]:0', 'train.json[1]:1']
  blank = [DIALOGUE[0], [DIALOGUE[1][0] | {'question': 'A _ ?'}], 'x']
  (question,), _ = read(dream(tmp_path / 'b.json', blank), 'dream')
  assert question.seconds[0] == 'A _ ? Read.', 'only RACE has blanks'
  kind = 'questions of 2 choices, where most have 3 (kept)'
  assert problems.counts[kind] == 2 and problems.places[kind][0] == 'train.json[0]:1'


def test_copa_as_published(tmp_path):
  questions, _ = read(copa(tmp_path / 'a.jsonl', *COPA), 'copa')
  assert [q.gold for q in questions] == [0, 1]
  assert questions[0].context == 'The man ran.'
  assert questions[0].seconds[0] == 'What was the cause of this? He was late.'
  assert questions[1].seconds[1] == 'What happened as a result? I got wet.'
  unlabelled = {k: v for k, v in COPA[0].items() if k != 'label'}
  path = copa(tmp_path / 'b.jsonl', unlabelled)
  assert read(path, 'copa', 'eval')[0][0].gold is None
  with pytest.raises(InputError, match='b.jsonl:1: the answer is missing'):
    read(path, 'copa')
  path = copa(tmp_path / 'b.jsonl', COPA[0] | {'label': None})
  assert read(path, 'copa', 'eval')[0][0].gold is None
  with pytest.raises(InputError, match='b.jsonl:1: the answer is missing'):
    read(path, 'copa')


def test_harmless_faults_are_kept_and_named(tmp_path):
  turns, (first, second), name = DIALOGUE
  odd = [
    first | {'answer': ' Read. '},
    first | {'question': ' '},
    second | {'choice': ['M', '']},
    second | {'choice': ['M', 'M']},
  ]
  text = json.dumps([[[], odd, name]]).replace('Sang', '\\ud83d')
  path = tmp_path / 'train.json'
  path.write_bytes(b'\xef\xbb\xbf' + text.encode().replace(b'\n', b'\r\n'))
  questions, problems = read(path, 'dream')
  assert [q.gold for q in questions] == [0, 0, 0, 0]
  assert questions[0].choices[2] == '\ufffd.' and problems.counts['half_characters'] == 2
  found = {kind: problems.counts[kind] for kind in problems.places}
  assert found == {
    'answers with other blanks than their choice (mended)': 1,
    'empty contexts (kept)': 4,
    'empty questions (kept)': 1,
    'empty choices (kept)': 1,
    'questions with equal choices (kept)': 1,
    'questions of 2 choices, where most have 3 (kept)': 2,
  }


@pytest.mark.parametrize(
  ('task', 'make', 'sentence', 'kind'),
  [
    (
      'dream',
      lambda f: dream(f / 'a.json', [[], [DIALOGUE[1][0] | {'answer': 'Ate.'}], 'x'], DIALOGUE),
      r'a.json\[0\]:0: its answer is none of the 3 choices',
      'answers that are no choice',
    ),
    (
      'dream',
      lambda f: dream(f / 'a.json', [[], [{'question': '', 'choice': ['a', 'b']}], 'x'], DIALOGUE),
      r'a.json\[0\]:0: the answer is missing',
      'questions without an answer',
    ),
    (
      'dream',
      lambda f: dream(
        f / 'a.json', [[], [{'question': '', 'choice': [], 'answer': 'a'}], ''], DIALOGUE
      ),
      r'a.json\[0\]:0: there are 0 choices',
      'questions without a choice',
    ),
    (
      'dream',
      lambda f: dream(f / 'a.json', ['', [], 'x', 'y'], DIALOGUE),
      r'a.json\[0\]: not \[turns,',
      'dialogues without their fields',
    ),
    (
      'dream',
      lambda f: dream(f / 'a.json', ['a b', DIALOGUE[1], 'x'], DIALOGUE),
      "a.json.*'a b' is no list",
      'dialogues without their fields',
    ),
    (
      'race',
      lambda f: race(f, PASSAGE | {'answers': ['A', 'E']}),
      'high/1.txt:1: its answer is none of the 4 choices',
      'answers that are no choice',
    ),
    (
      'race',
      lambda f: race(f, PASSAGE | {'answers': ['A', 'ß']}),
      'high/1.txt:1: its answer is none of the 4 choices',
      'answers that are no choice',
    ),
    (
      'copa',
      lambda f: copa(f / 'a.jsonl', COPA[0] | {'choice1': None}, COPA[1]),
      "a.jsonl:1: no premise.*'choice1'",
      'records without their fields',
    ),
    (
      'race',
      lambda f: race(f, PASSAGE | {'answers': ['A']}, PASSAGE),
      'high/1.txt: no article.*2 questions, 2 options, 1 answers',
      'passages without their fields',
    ),
    (
      'race',
      lambda f: race(f, [PASSAGE], PASSAGE),
      'high/1.txt: no JSON object',
      'files without a passage',
    ),
    (
      'swag',
      lambda f: swag(f / 'a.csv', f'{SWAG_ROW},4', f'{SWAG_ROW},0'),
      'a.csv:2: its answer is none of the 4 choices',
      'answers that are no choice',
    ),
    (
      'swag',
      lambda f: copa(
        f / 'a.jsonl',
        {'sent2': 'b', 'ending0': 'c', 'ending1': 'd', 'label': 0},
        {'sent1': 'a', 'sent2': 'b', 'ending0': 'c', 'ending1': 'd', 'label': 0},
      ),
      "a.jsonl:1: has no column 'sent1'",
      'rows without a column',
    ),
    (
      'copa',
      lambda f: copa(f / 'a.jsonl', COPA[0] | {'question': 'why'}, COPA[1]),
      "a.jsonl:1: no premise, question .cause or effect.*'why'",
      'records without their fields',
    ),
  ],
)
def test_faulty_questions_stop_the_run_or_are_skipped_by_name(tmp_path, task, make, sentence, kind):
  spec = make(tmp_path)
  with pytest.raises(InputError, match=sentence) as error:
    read(spec, task)
  assert '\n' not in str(error.value)
  questions, problems = read(spec, task, skip=True)
  assert questions and problems.counts[f'{kind} (skipped)'] == 1


def test_a_file_that_is_no_json_is_named_with_its_line(tmp_path):
  (tmp_path / 'a.json').write_text('[\n["a"],\n')
  with pytest.raises(InputError, match='a.json:2: this is not JSON'):
    read(tmp_path / 'a.json', 'dream')


@pytest.mark.parametrize(
  ('task', 'name', 'number', 'choices'),
  [
    ('dream', 'dream/train.json', 6116, {3: 6116}),
    ('dream', 'dream/dev.json', 2040, {3: 2040}),
    ('c3', 'chinese/c3/c3-m-dev.json', 1991, {4: 1669, 2: 170, 3: 152}),
    ('copa', 'xcopa/copa.train-en.jsonl', 400, {2: 400}),
    ('copa', 'xcopa/copa.val-en.jsonl', 100, {2: 100}),
    ('xcopa', 'xcopa/test.zh.jsonl', 500, {2: 500}),
    ('xcopa', 'xcopa/val.sw.jsonl', 100, {2: 100}),
  ],
)
def test_published_data(shared, task, name, number, choices):
  questions, problems = read(shared / name, task)
  assert len(questions) == number and Counter(len(q.choices) for q in questions) == choices
  harmless = ('questions of ', 'questions with equal choices')
  assert all(kind.startswith(harmless) for kind in problems.places)
  content = (shared / name).read_text()
  if task != 'copa' and task != 'xcopa':
    answers = [q['answer'] for _, own, _ in json.loads(content) for q in own]
    assert [q.choices[q.gold] for q in questions] == answers
  else:
    assert [q.gold for q in questions] == [json.loads(x)['label'] for x in content.splitlines()]


# -- rows -----------------------------------------------------------------------------------------


def rows(config, tokenizer, split='train'):
  return task.sources(config, tokenizer, (split,))[split]


def test_choices_share_a_row_in_segments_of_their_own(tmp_path, tokenizer):
  path = dream(tmp_path / 'train.json', DIALOGUE)
  together = ('--config.data.seq_length=160', '--config.task.choices=0')
  source = rows(config(path, '', *together, task='dream'), tokenizer)
  assert len(source) == 1
  row = source[0]
  assert list(row['groups']) == [1, 1, 1, 2, 2, 0, 0, 0]
  assert list(row['labels']) == [1, 0, 0, 1, 0, 0, 0, 0]
  assert list(row['example_ids']) == [1, 2, 3, 4, 5, 0, 0, 0]
  at = row['cls_positions'][3]
  second = row['input_ids'][(row['segment_ids'] == 4) & (row['token_type_ids'] == 1)]
  assert row['input_ids'][at] == tokenizer.cls_id and row['position_ids'][at] == 0
  assert tokenizer.decode(second) == 'who asks ? m'
  assert source.baselines['choice_accuracy'] == (1.0, 'majority')


def test_each_choice_of_a_question_has_a_part_of_the_row(tmp_path, tokenizer):
  path = dream(tmp_path / 'train.json', DIALOGUE)
  source = rows(config(path, '', '--config.data.seq_length=192', task='dream'), tokenizer)
  assert len(source) == 1 and source[0]['input_ids'].shape == (3, 64)
  row = source[0]
  assert list(row['example_ids']) == [1, 4, 2, 5, 3, 0, 0, 0], 'part by part'
  assert list(row['groups']) == [1, 2, 1, 2, 1, 0, 0, 0]
  assert list(row['labels']) == [1, 1, 0, 0, 0, 0, 0, 0]
  assert list(row['cls_positions'][:5] // 64) == [0, 0, 1, 1, 2]
  assert (row['input_ids'].reshape(-1)[row['cls_positions'][:5]] == tokenizer.cls_id).all()
  segments = [set(part) - {0} for part in row['segment_ids'].tolist()]
  assert segments == [{1, 2}, {3, 4}, {5}]
  own = {'question': 'a', 'choice': ['b', 'b c d e', 'e'], 'answer': 'e'}
  uneven = rows(
    config(dream(tmp_path / 'a.json', [['x'], [own], 'i']), '', task='dream'), tokenizer
  )
  assert list(uneven.room_of([range(3)])) == [3 * uneven.lengths[1]] > [3 * uneven.lengths[0]]
  with pytest.raises(InputError, match='has 3 choices and task.choices is 2; set task.choices=3'):
    rows(config(path, '', '--config.task.choices=2', task='dream'), tokenizer)


def test_choices_apart_cost_a_part_of_the_attention_and_change_no_number(tmp_path, tokenizer):
  path = dream(tmp_path / 'train.json', DIALOGUE, [['F: Hi.'], DIALOGUE[1][::-1], 'b'])
  params, out = None, []
  for choices in (0, 3):
    one = config(
      path, '', '--config.data.seq_length=192', f'--config.task.choices={choices}', task='dream'
    )
    objective, source = task.objective(one, tokenizer), rows(one, tokenizer)
    params = params or telling(objective)
    (logits, batch) = outputs(objective, params, source)
    spec = objective.spec(1)
    assert {k: source[0][k].shape for k in spec} == {k: x.shape[1:] for k, x in spec.items()}
    out.append(([a['probabilities'] for a in source.answers(logits)], objective.flops(1)))
    program = jax.jit(objective.predict).lower(params, batch).as_text()
    assert ('x192x192x' in program) == (choices == 0), 'nothing is there for all pairs of tokens'
  for a, b in zip(out[0][0], out[1][0], strict=True):
    np.testing.assert_allclose(a, b, atol=1e-4)
  model = one.model
  scores = 4 * 192**2 * model.hidden_size * model.num_hidden_layers  # of all tokens with all
  assert out[0][1] - out[1][1] == scores - 3 * scores // 9


def test_the_context_is_cut_alike_for_all_choices_and_counted(tmp_path, tokenizer, caplog):
  caplog.set_level(logging.INFO, 'bert_jax')
  own = {'question': 'a', 'choice': ['b', 'b c d', 'e'], 'answer': 'e'}
  path = dream(tmp_path / 'train.json', [['a b c d e ' + 'x ' * 40], [own], 'i'])
  source = rows(config(path, '', '--config.task.max_length=12', task='dream'), tokenizer)
  assert [tuple(map(len, pair)) for pair in source.texts] == [(5, 2), (5, 4), (5, 2)]
  assert {tokenizer.decode(context) for context, _ in source.texts} == {'a b c d e'}
  assert '1 questions with a cut context (longer than 12 tokens)' in caplog.text
  path = dream(tmp_path / 'long.json', [['x'], [own | {'question': 'y ' * 30}], 'i'])
  source = rows(config(path, '', '--config.task.max_length=12', task='dream'), tokenizer)
  assert (
    tokenizer.decode(source.texts[1][1]) == 'y y y y y y b c d' and source.texts[1][0].size == 0
  )
  assert '1 questions whose choices lost their beginning (long.json[0]:0)' in caplog.text


def test_a_row_that_cannot_hold_a_question_says_what_to_set(tmp_path, tokenizer):
  path = race(tmp_path, PASSAGE)
  with pytest.raises(InputError, match='4 choices takes 4 times task.max_length=64') as error:
    rows(config(path, '', '--config.task.max_length=64'), tokenizer)
  assert 'set data.seq_length=256 or task.max_length=32' in str(error.value)
  with pytest.raises(InputError, match='set data.examples_per_row=4'):
    rows(config(path, '', '--config.data.examples_per_row=3'), tokenizer)
  with pytest.raises(InputError, match='task.max_length is 0; set it to the tokens of one choice'):
    config(path, '', '--config.task.max_length=0')
  with pytest.raises(InputError, match='task=dream is always packed'):
    c.load('configs/finetune.py:task=dream,unpacked')


# -- the objective --------------------------------------------------------------------------------


def outputs(objective, params, source):
  batch = {
    name: jnp.asarray(np.stack([source[i][name] for i in range(len(source))]))
    for name in objective.spec(1)
  }
  return jax.tree.map(np.asarray, jax.jit(objective.predict)(params, batch)), batch


def telling(objective):
  """Parameters large enough that what is read shows in the numbers."""
  params = objective.init(jax.random.key(0))
  return jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, params)


def test_packed_rows_predict_what_single_questions_do(tmp_path, tokenizer):
  """Several questions of 2 and 3 choices in a row, or one: the same probabilities; the loss and the
  accuracy of the objective are those of the answers."""
  path = dream(tmp_path / 'train.json', DIALOGUE, [['F: Hi.'], DIALOGUE[1][::-1], 'b'])
  packed = config(path, '', '--config.data.seq_length=256', task='dream')
  single = config(path, '', '--config.data.examples_per_row=3', task='dream')
  params, found = None, []
  for one in (packed, single):
    objective = task.objective(one, tokenizer)
    params = params or telling(objective)
    source = rows(one, tokenizer)
    out, batch = outputs(objective, params, source)
    answers = source.answers(out)
    found.append(answers)
    terms = jax.jit(lambda p, b, o=objective: o.terms(p, b, jax.random.key(0), False)[0])(
      params, batch
    )
    loss, hits = (float(terms[k].total / terms[k].weight) for k in ('choice', 'choice_accuracy'))
    assert float(terms['choice'].weight) == 4
    assert loss == pytest.approx(np.mean([a['loss'] for a in answers]), abs=1e-5)
    assert hits == source.score(answers)['choice_accuracy']
  assert len(rows(packed, tokenizer)) < 4 == len(rows(single, tokenizer))
  for a, b in zip(*found, strict=True):
    assert a['id'] == b['id'] and sum(a['probabilities']) == pytest.approx(1)
    np.testing.assert_allclose(a['probabilities'], b['probabilities'], atol=1e-4)


def test_the_softmax_by_hand_and_empty_rows(tmp_path, tokenizer, monkeypatch):
  one = config(race(tmp_path, PASSAGE))
  objective = task.objective(one, tokenizer)
  logits = jnp.array([[1.0, 3.0, 0.0, 2.0, 2.0, 7.0]])
  batch = {
    'groups': jnp.array([[1, 1, 2, 2, 2, 0]]),
    'labels': jnp.array([[0.0, 1, 0, 1, 0, 0]]),
    'weights': jnp.array([[1.0, 1, 1, 1, 1, 0]]),
  }
  monkeypatch.setattr(task.Choice, 'logits', lambda *_: logits)
  terms, _ = objective.terms({}, batch, None, False)
  first, second = np.log(1 + np.exp(-2)), np.log(2 + np.exp(-2))
  assert float(terms['choice'].total) == pytest.approx(first + second, abs=1e-6)
  assert float(terms['choice'].weight) == 2
  assert float(terms['choice_accuracy'].total) == 1, 'the tie of the second question is a miss'
  monkeypatch.undo()
  empty = {name: jnp.zeros((1, *s.shape[1:]), s.dtype) for name, s in objective.spec(1).items()}

  @jax.jit
  @jax.grad
  def gradient(params):
    return objective.terms(params, empty, jax.random.key(1), True)[0]['choice'].total

  grads = gradient(objective.init(jax.random.key(0)))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))


def test_answers_leave_out_what_was_not_predicted_whole(tmp_path, tokenizer):
  source = rows(config(dream(tmp_path / 'train.json', DIALOGUE), task='dream'), tokenizer)
  out = {'logits': np.array([[1.0, 5, 2, 4]]), 'example_ids': np.array([[1, 2, 3, 4]])}
  (answer,) = source.answers(out)
  assert (answer['prediction'], answer['prediction_text'], answer['gold']) == (1, 'Ran.', 0)
  shares = np.exp([1.0, 5, 2]) / np.exp([1.0, 5, 2]).sum()
  assert answer['probabilities'] == pytest.approx(shares.tolist())
  assert answer['probability'] == pytest.approx(shares[1])
  assert answer['loss'] == pytest.approx(-np.log(shares[0]))
  assert source.score([answer]) == {'choice_accuracy': 0.0}
  race(tmp_path, PASSAGE | {'answers': ['A', 'A']})
  race(tmp_path, PASSAGE | {'id': 'm.txt', 'answers': ['B', 'A']}, level='middle')
  levels = rows(config(tmp_path), tokenizer).baselines
  assert {name: x for name, (x, _) in levels.items()} == {
    'choice_accuracy': 0.75,
    'high_accuracy': 1.0,
    'middle_accuracy': 0.5,
  }
  of_race = ((0, 'middle'), (1, 'high'), (0, 'high'), (1, 'high'))
  answers = [{'gold': 0, 'prediction': own, 'level': level} for own, level in of_race]
  assert source.score(answers) == pytest.approx(
    {'choice_accuracy': 1 / 2, 'middle_accuracy': 1, 'high_accuracy': 1 / 3}
  )
  assert source.files([answer])['predictions.tsv'] == 'id\tprediction\n12-497-0\t1\n'


@pytest.mark.parametrize('task', ['race', 'swag', 'dream', 'copa'])
def test_two_steps_and_an_evaluation(tmp_path, task):
  if task == 'race':
    spec = race(tmp_path / 'race', PASSAGE)
    race(spec, PASSAGE, split='dev')
    race(spec, PASSAGE | {'id': 'middle1.txt'}, split='dev', level='middle')
  elif task == 'swag':
    spec = swag(tmp_path / 'train.csv', f'{SWAG_ROW},2', f'1{SWAG_ROW[1:]},0')
  elif task == 'dream':
    spec = dream(tmp_path / 'train.json', DIALOGUE)
  else:
    spec = copa(tmp_path / 'train.jsonl', *COPA)
  state, metrics = train(config(spec, task=task), tmp_path / 'run')
  assert int(state.step) == 2
  result, _ = evaluate(tmp_path / 'run', out=tmp_path / 'out')
  assert result['choice'] == pytest.approx(metrics['choice'], abs=1e-5)
  assert ({'high_accuracy', 'middle_accuracy'} <= set(result)) == (task == 'race')
  lines = (tmp_path / 'out/predictions.tsv').read_text().splitlines()
  answers = [json.loads(x) for x in (tmp_path / 'out/predictions.jsonl').read_text().splitlines()]
  assert [line.split('\t') for line in lines[1:]] == [
    [a['id'], str(a['prediction'])] for a in answers
  ]
  hits = [a['prediction_text'] == a['gold_text'] for a in answers]
  assert result['choice_accuracy'] == np.mean(hits)
  nats = [-np.log(a['probabilities'][a['gold']]) for a in answers]
  assert result['choice'] == pytest.approx(np.mean(nats), abs=1e-5)
  assert len(answers) == {'race': 4, 'swag': 2, 'dream': 2, 'copa': 2}[task]
  if task == 'copa':
    official = (tmp_path / 'out/COPA.jsonl').read_text().splitlines()
    assert [json.loads(line)['idx'] for line in official] == [0, 1]


def test_tfds(tmp_path, monkeypatch):
  tfds = pytest.importorskip('tensorflow_datasets')
  tfds.disable_progress_bar()
  # Lists of lists are read without TensorFlow, but TFDS writes them with its types.
  kind = property(lambda info: info.np_dtype)
  monkeypatch.setattr('tensorflow_datasets.core.features.feature.TensorInfo.dtype', kind)
  text = tfds.features.Text()
  several = tfds.features.Sequence(text)

  def builder(name, config, features, splits, rows):
    class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
      VERSION = tfds.core.Version('1.0.0')
      BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)]

      def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

      def _split_generators(self, dl_manager):
        return {split: self._generate_examples() for split in splits}

      def _generate_examples(self):
        yield from enumerate(rows)

    Tiny.name = name
    folder = tmp_path / f'{name}-{config}'
    Tiny(data_dir=folder, file_format='array_record').download_and_prepare()
    return f'tfds:{folder}'

  features = {'article': text, 'example_id': text, 'questions': several, 'answers': several}
  features['options'] = tfds.features.Sequence(several)
  passage = {k: v for k, v in PASSAGE.items() if k != 'id'} | {'example_id': 'high1.txt'}
  high, middle = (
    builder('race', level, features, ('train', 'dev', 'test'), [passage])
    for level in ('high', 'middle')
  )
  questions, _ = read(f'high={high},middle={middle}', 'race')
  assert [q.level for q in questions] == ['high', 'high', 'middle', 'middle']
  published = read(race(tmp_path / 'race', PASSAGE), 'race')[0]
  assert [q._replace(where='') for q in questions[:2]] == [q._replace(where='') for q in published]
  _, metrics = train(config(high), tmp_path / 'run')
  assert metrics['high_accuracy'] == metrics['choice_accuracy']

  features = dict.fromkeys(('premise', 'choice1', 'choice2', 'question'), text)
  features |= {'idx': np.int32, 'label': tfds.features.ClassLabel(names=['choice1', 'choice2'])}
  spec = builder('super_glue', 'copa', features, ('train', 'validation'), COPA)
  found, _ = read(spec, 'copa')
  want, _ = read(copa(tmp_path / 'a.jsonl', *COPA), 'copa')
  key = lambda q: q.id
  assert sorted([q._replace(where='') for q in found], key=key) == [
    q._replace(where='') for q in want
  ]
