"""Extractive QA: read as published, windows as BERT's, answers as they stand, official scores."""

import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from bert_jax import config as c
from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.evaluate import evaluate
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.qa import reading, squad_scores
from bert_jax.tasks.qa import task as qa
from bert_jax.train import train

SMALL = [
  '--config.model.vocab_size=160',
  '--config.model.hidden_size=32',
  '--config.model.intermediate_size=64',
  '--config.model.num_attention_heads=2',
  '--config.data.seq_length=48',
  '--config.task.max_length=24',
  '--config.qa.max_query_length=8',
  '--config.qa.doc_stride=6',
  '--config.qa.max_answer_length=5',
  '--config.qa.n_best_size=4',
  '--config.batch_size=2',
  '--config.steps=2',
  '--config.eval.every=0',
  '--config.checkpoint.every=0',
  '--config.log.tensorboard=false',
]
CONTEXT = 'Élan  was born in (Rome), 12km from Ostia; he met 李白 there and left for Pisa in May.'


def record(question, *answers, id='q1', context=CONTEXT, **more):
  found = [{'text': text, 'answer_start': context.find(text)} for text in answers]
  return {'id': id, 'question': question, 'answers': found} | more


RECORDS = [
  record('He was born in?', 'Rome', id='a'),
  record('How far?', '12km', '12km from Ostia', id='b'),
  record('Who met him?', '李白', id='c'),
  record('Who left for Pisa in May and who did not leave at all?', 'Élan', id='d'),
]
NONE = record('Who is the king?', id='e', is_impossible=True)


def squad_file(path, *records, context=CONTEXT, head=b''):
  content = {'version': '1.1', 'data': [{'paragraphs': [{'context': context, 'qas': records}]}]}
  path.write_bytes(head + json.dumps(content, ensure_ascii=False).encode())
  return path


def config(train, eval='', *overrides, task='squad', small=SMALL):
  return c.load(
    f'configs/finetune.py:task={task},runlocal',
    [*small, f'--config.data.train={train}', f'--config.data.eval={eval or train}', *overrides],
  )


def read(path, split='train', task='squad', skip=False):
  problems = Problems(split, skip)
  return list(reading.questions(config(path, task=task), split, problems)), problems


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocab') / 'vocab.txt'
  letters = [*'abcdefghijklmnopqrstuvwxyz', *(f'##{x}' for x in 'abcdefghijklmnopqrstuvwxyz')]
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'rome', 'he', 'was', 'born', 'in', 'met']
  path.write_text('\n'.join([*words, *letters, *'0123456789().,;?李白', '##2', '##km']) + '\n')
  return tokenizers.load(path)


def rows_of(source):
  rows = [source[i] for i in range(len(source))]
  return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def random_outputs(source, seed=0, scale=3.0):
  rows, rng = rows_of(source), np.random.default_rng(seed)
  logits = rng.normal(0, scale, (2, *rows['input_ids'].shape)).astype(np.float32)
  out = {'start_logits': logits[0], 'end_logits': logits[1]}
  return out | {name: rows[name] for name in ('example_ids', 'cls_positions')}


# -- reading --------------------------------------------------------------------------------------


def test_squad_json_as_published(tmp_path):
  questions, problems = read(squad_file(tmp_path / 'a.json', *RECORDS))
  assert [question.id for question in questions] == list('abcd')
  assert questions[1].gold == ('12km', '12km from Ostia')
  assert all(CONTEXT[q.starts[0] :].startswith(q.gold[0]) for q in questions)
  assert questions[2].where == 'a.json:data[0].paragraphs[0].qas[2]'
  assert problems.counts['questions'] == 4 and not problems.places


def test_byte_order_mark_and_carriage_returns(tmp_path):
  context = 'one\r\ntwo three'
  file = squad_file(tmp_path / 'a.json', record('x', 'two', context=context), context=context)
  file.write_bytes(b'\xef\xbb\xbf' + file.read_bytes().replace(b', ', b',\r\n'))
  ((question,), problems) = read(file)
  assert question.context == context and question.starts == (5,) and not problems.places


def test_half_characters_are_repaired_wherever_they_are(tmp_path, tokenizer):
  """Else no file could be written: JSON can say what UTF-8 cannot."""
  file = squad_file(tmp_path / 'a.json', record('he? HALF', 'Rome', id='HALF', context='HALF Rome'))
  context = json.dumps(CONTEXT, ensure_ascii=False)
  content = file.read_text().replace(context, '"HALF Rome"').replace('HALF', r'\ud83d')
  file.write_text(content)
  ((question,), problems) = read(file)
  assert question[1:4] == ('\ufffd', 'he? \ufffd', '\ufffd Rome') and question.starts == (2,)
  assert problems.counts['half_characters'] == 3
  source = windows(file, tokenizer)
  for content in source.files(source.answers(random_outputs(source))).values():
    assert content.encode()


def test_answers_that_are_not_at_their_offset(tmp_path, caplog):
  caplog.set_level(logging.INFO, 'bert_jax')
  once = {'text': 'Rome', 'answer_start': 3}
  twice = {'text': 'in', 'answer_start': 3}
  nowhere = {'text': 'Paris', 'answer_start': 10_000}
  unknown = {'text': 'Ostia'}
  records = [
    {'id': str(i), 'question': 'x', 'answers': answers}
    for i, answers in enumerate(([once], [twice], [nowhere, unknown]))
  ]
  questions, problems = read(squad_file(tmp_path / 'a.json', *records))
  assert questions[0].starts == (CONTEXT.index('Rome'),)
  assert questions[1].starts == (-1,)
  assert questions[2].starts == (-1, CONTEXT.index('Ostia'))
  problems.log()
  at = 'a.json:data[0].paragraphs[0]'
  assert f'2 answers at another offset than theirs (mended) ({at}.qas[0], {at}.qas[2])' in (
    caplog.text
  )
  assert f'2 answers that are not at their offset (not learnt) ({at}.qas[1], ' in caplog.text


def test_harmless_faults_are_kept_counted_and_named(tmp_path):
  file = squad_file(tmp_path / 'a.json', RECORDS[0], RECORDS[0], record(' ', 'May', id='x'), NONE)
  questions, problems = read(file)
  assert len(questions) == 4
  assert problems.counts['ids that came before (scored, but not in predictions.json)'] == 1
  assert problems.counts['empty questions (kept)'] == 1
  assert problems.counts['questions without an answer (not learnt, not scored)'] == 1
  _, problems = read(file, task='squad2')
  assert not any('without an answer' in kind for kind in problems.counts)
  records = [{'id': 'x', 'question': 'x'}, NONE | {'is_impossible': False}]
  questions, problems = read(squad_file(tmp_path / 'd.json', *records), task='squad2')
  assert [question.gold for question in questions] == [None, ()]
  at = 'd.json:data[0].paragraphs[0].qas'
  assert dict(problems.places) == {
    'questions without an answer (not learnt, not scored)': [f'{at}[0]'],
    'questions without an answer that should have one': [f'{at}[1]'],
  }
  hidden = squad_file(tmp_path / 'c.json', record('x') | {'answers': [{'text': ''}]})
  ((question,), problems) = read(hidden)
  assert question.gold == () and problems.counts['empty answers (left out)'] == 1
  empty = squad_file(tmp_path / 'b.json', record('x', context=''), context='')
  assert read(empty)[1].counts['empty contexts (kept)'] == 1


@pytest.mark.parametrize(
  ('content', 'sentence'),
  [
    ([], "a.json: there is no list 'data'"),
    ({'data': {}}, "a.json: there is no list 'data'"),
    ({'data': [{}]}, r"a.json:data\[0\]: there is no list 'paragraphs'"),
    ({'data': [{'paragraphs': ['x']}]}, r"data\[0\].paragraphs\[0\]: there is no list 'qas'"),
    (
      {'data': [{'paragraphs': [{'qas': [{'id': '1', 'question': 'x'}]}]}]},
      r'data\[0\].paragraphs\[0\].qas\[0\]: the question has no context',
    ),
    (
      {'data': [{'paragraphs': [{'context': 'c', 'qas': [{'id': '1'}]}]}]},
      r"qas\[0\]: there is no 'question'",
    ),
    (
      {'data': [{'paragraphs': [{'context': 'c', 'qas': [{'question': 'x'}]}]}]},
      r"qas\[0\]: there is no 'id'",
    ),
    (
      {'data': [{'paragraphs': [{'context': 'c', 'qas': [record('x') | {'answers': ['c']}]}]}]},
      r"qas\[0\].answers\[0\]: there is no 'text'",
    ),
    (
      {'data': [{'paragraphs': [{'context': 'c', 'qas': [record('x') | {'answers': 'c'}]}]}]},
      r"qas\[0\]: 'answers' is not a list",
    ),
    ({'data': []}, 'holds no questions'),
  ],
)
def test_a_structure_that_is_wrong_is_one_sentence_with_its_place(tmp_path, content, sentence):
  (tmp_path / 'a.json').write_text(json.dumps(content))
  with pytest.raises(InputError, match=sentence) as caught:
    read(tmp_path / 'a.json')
  assert '\n' not in str(caught.value)


def test_skip_damaged_leaves_out_what_cannot_be_read_and_says_so(tmp_path):
  file = squad_file(tmp_path / 'a.json', RECORDS[0], {'id': 'x'}, RECORDS[1])
  with pytest.raises(InputError, match=r'qas\[1\]'):
    read(file)
  questions, problems = read(file, skip=True)
  assert [question.id for question in questions] == ['a', 'b']
  assert problems.counts['questions without question (skipped)'] == 1


def test_files_that_are_no_json_or_not_there(tmp_path):
  (tmp_path / 'a.json').write_text('{"data": [\n{"paragraphs": }]}')
  with pytest.raises(InputError, match='a.json:2: this is not JSON'):
    read(tmp_path / 'a.json')
  (tmp_path / 'deep.json').write_text('[' * 200_000)
  with pytest.raises(InputError, match='deep.json: this is JSON nested too deeply'):
    read(tmp_path / 'deep.json')
  good = squad_file(tmp_path / 'good.json', *RECORDS)
  questions, problems = read(f'a={tmp_path}/a.json,b={tmp_path}/deep.json,c={good}', skip=True)
  assert [question.id for question in questions] == list('abcd')
  assert problems.places == {'damaged files (skipped)': ['a.json:2', 'deep.json']}
  with pytest.raises(InputError, match='does not exist'):
    read(tmp_path / 'b.json')
  with pytest.raises(InputError, match='data.eval is empty'):
    given = config(tmp_path / 'a.json')
    given.data.eval = ''
    list(reading.questions(given, 'eval', Problems('eval')))


def test_several_sets_globs_and_folders(tmp_path):
  one = squad_file(tmp_path / 'train-a.json', *RECORDS[:2])
  two = squad_file(tmp_path / 'dev-b.json', *RECORDS[2:])
  assert [q.id for q in read(f'squad={one},tydi={two}')[0]] == list('abcd')
  assert [q.id for q in read(f'{tmp_path}/*.json')[0]] == list('cdab')
  assert [q.id for q in read(tmp_path)[0]] == list('ab')
  assert [q.id for q in read(tmp_path, 'eval')[0]] == list('cd')
  squad_file(tmp_path / 'train-c.json', *RECORDS)
  with pytest.raises(InputError, match='2 files for train, train-a.json and train-c.json'):
    read(tmp_path)


def test_tfds_squad(tmp_path):
  tfds = pytest.importorskip('tensorflow_datasets')
  tfds.disable_progress_bar()

  class Squad(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version('3.0.0')

    def _info(self):
      text = tfds.features.Text()
      answers = {'text': text, 'answer_start': np.int32}
      features = {name: text for name in ('id', 'title', 'context', 'question')}
      features['answers'] = tfds.features.Sequence(answers)
      features['is_impossible'] = np.bool_  # as squad/v2.0 has it
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
      return {
        'train': self._generate_examples(RECORDS),
        'validation': self._generate_examples([NONE, NONE | {'id': 'f', 'is_impossible': False}]),
      }

    def _generate_examples(self, records):
      for given in records:
        row = {name: given[name] for name in ('id', 'question', 'answers')}
        row['is_impossible'] = given.get('is_impossible', False)
        yield given['id'], row | {'title': 't', 'context': CONTEXT}

  Squad(data_dir=tmp_path, file_format='array_record').download_and_prepare()
  by_id = {q.id: q for q in read(f'tfds:{tmp_path}')[0]}
  expected = {q.id: q for q in read(squad_file(tmp_path / 'a.json', *RECORDS))[0]}
  assert set(by_id) == set(expected)
  for own, question in by_id.items():
    assert question[2:] == expected[own][2:] and question.where.startswith('squad/3.0.0:train:')
  questions, problems = read(f'tfds:{tmp_path}', 'eval', task='squad2')
  assert {question.id: question.gold for question in questions} == {'e': (), 'f': ()}
  assert problems.counts['questions without an answer that should have one'] == 1


# -- rows -----------------------------------------------------------------------------------------


def windows(path, tokenizer, *overrides, split='eval', task='squad'):
  return qa.sources(config(path, '', *overrides, task=task), tokenizer, (split,))[split]


def test_rows_hold_question_window_and_where_the_answer_is(tmp_path, tokenizer):
  context = 'he was born in rome'
  file = squad_file(tmp_path / 'a.json', record('he?', 'rome', context=context), context=context)
  row = windows(file, tokenizer, '--config.data.examples_per_row=1')[0]
  tokens = [tokenizer.pieces[i] for i in row['input_ids'][:11]]
  assert tokens == [
    '[CLS]',
    'he',
    '?',
    '[SEP]',
    'he',
    'was',
    'born',
    'in',
    'rome',
    '[SEP]',
    '[PAD]',
  ]
  assert list(row['token_type_ids'][:11]) == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0]
  assert row['start_positions'] == [8] == row['end_positions'] and row['weights'] == [1]
  # Who guesses has a chance of 1 in the tokens of each window, for either end of the answer.
  two = squad_file(tmp_path / 'b.json', record('he?', id='a'), record('he met?'), context=context)
  level, kind = windows(two, tokenizer).baselines['qa']
  assert (level, kind) == (pytest.approx((np.log(10) + np.log(11)) / 2), 'uniform')


def test_windows_without_the_answer_point_at_cls(tmp_path, tokenizer):
  long = record('He?', 'in (Rome), 12km', id='f')  # some windows hold a part of it
  source = windows(
    squad_file(tmp_path / 'a.json', *RECORDS, long), tokenizer, '--config.data.examples_per_row=3'
  )
  rows, parts = rows_of(source), 0
  seen = {question.id: 0 for question in source.questions}
  for r, k in zip(*np.nonzero(rows['example_ids'])):
    e = rows['example_ids'][r, k] - 1
    i = int(np.searchsorted(source.first, e, side='right')) - 1
    question, (starts, _, begin) = source.questions[i], source.plans[i]
    offsets, at = source.offsets[question.context], starts[e - source.first[i]]
    cls = rows['cls_positions'][r, k]
    start, end = rows['start_positions'][r, k] - cls, rows['end_positions'][r, k] - cls
    if start == 0:
      first, last = source.spans[i][0]
      window_end = at + source.lengths[e] - begin - 1
      assert end == 0 and (first < at or last >= window_end)
      parts += last >= at and first < window_end
      continue
    seen[question.id] += 1
    text = CONTEXT[offsets[start - begin + at, 0] : offsets[end - begin + at, 1]]
    assert text == question.gold[0]
  assert all(seen.values()) and parts


def test_questions_in_tables(tmp_path):
  context = 'Ada wrote it in 1843, and Ada knew.'
  csv, jsonl = tmp_path / 'a.csv', tmp_path / 'a.jsonl'
  csv.write_text(f'id,question,context,answer\nq1,When?,"{context}",1843\nq2,Why?,"{context}",\n')
  first, second = read(csv)[0]
  assert first == ('a.csv:2', 'q1', 'When?', context, ('1843',), (16,))
  assert (second.id, second.gold) == ('q2', ())
  answers = {'text': ['Ada'], 'answer_start': [26]}
  jsonl.write_text(json.dumps({'question': 'Who?', 'context': context, 'answers': answers}))
  (only,) = read(jsonl)[0]
  assert only == ('a.jsonl:1', 'a.jsonl:1', 'Who?', context, ('Ada',), (26,))
  csv.write_text('text,label\nx,y\n')
  with pytest.raises(InputError, match="a.csv:1: .* columns question, context, answer, not 'text'"):
    read(csv)


def test_what_cannot_be_learnt_is_left_out_of_training_and_still_predicted(tmp_path, tokenizer):
  nowhere = {'id': 'x', 'question': 'x', 'answers': [{'text': 'Paris', 'answer_start': 0}]}
  file = squad_file(tmp_path / 'a.json', RECORDS[0], nowhere, NONE)
  learnt = windows(file, tokenizer, split='train')
  assert rows_of(learnt)['weights'].sum() == len(learnt.texts) == learnt.first[1]
  source = windows(file, tokenizer)
  answers = source.answers(random_outputs(source))
  assert [answer['id'] for answer in answers] == ['a', 'x', 'e']
  assert 'loss' not in answers[1] and 'gold' not in answers[2]
  scored = [answers[0]['prediction'], answers[1]['prediction']], [['Rome'], ['Paris']]
  assert source.score(answers) == squad_scores.squad(*scored)
  with pytest.raises(InputError, match='to learn; none has an answer. If .* qa.unanswerable=true'):
    windows(squad_file(tmp_path / 'b.json', NONE), tokenizer, split='train')
  with pytest.raises(InputError, match="no answer stands once in its context, such as 'Paris' at"):
    windows(squad_file(tmp_path / 'c.json', nowhere), tokenizer, split='train')
  assert windows(tmp_path / 'b.json', tokenizer, split='train', task='squad2')
  unknown = {'id': 'u', 'question': 'he?'}  # nobody says that it has no answer
  learnt = windows(
    squad_file(tmp_path / 'c.json', NONE, unknown), tokenizer, split='train', task='squad2'
  )
  assert learnt.first[0] < learnt.first[1] == learnt.first[2] == len(learnt.texts)


def test_what_is_cut_and_what_is_no_token_is_counted(tmp_path, tokenizer, caplog):
  caplog.set_level(logging.INFO, 'bert_jax')
  file = squad_file(
    tmp_path / 'a.json', *RECORDS, record('o', 'orn', id='p'), record('y', CONTEXT, id='q')
  )
  source = windows(file, tokenizer)
  pieces = [tokenizer.pieces[i] for i in source.texts[source.first[3]][0]]
  assert ' '.join(pieces) == 'w ##h ##o l ##e ##f ##t f'  # the beginning of the question
  assert (
    '1 questions cut (longer than 8 tokens) (a.json:data[0].paragraphs[0].qas[3])' in caplog.text
  )
  assert '1 answers not on token borders (whole tokens learnt)' in caplog.text
  assert '1 answers that no window holds whole' in caplog.text
  caplog.clear()
  windows(squad_file(tmp_path / 'b.json', record('w', ' met ', 'left ', id='w')), tokenizer)
  assert 'token borders' not in caplog.text  # blanks at the ends of an answer are no part of it


def test_settings_that_do_not_fit_are_one_sentence(tmp_path, tokenizer):
  file = squad_file(tmp_path / 'a.json', *RECORDS)
  with pytest.raises(InputError, match='no room for a context beside a question'):
    windows(file, tokenizer, '--config.qa.max_query_length=21')
  with pytest.raises(InputError, match='every question has an answer'):
    windows(file, tokenizer, '--config.qa.answer_units=characters', task='squad2')


def test_without_data_to_evaluate_on_there_is_no_such_split(tmp_path, tokenizer):
  given = config(squad_file(tmp_path / 'a.json', *RECORDS))
  given.data.eval = ''
  assert set(qa.sources(given, tokenizer)) == {'train'}
  given.data.train = ''
  assert qa.sources(given, tokenizer, ('eval',)) == {}


def test_featurisation_of_xquad_with_googles_vocabulary(shared, caplog):
  """Every token of a context is in a window; each answer comes back as it was, but one of 1,190:
  '(2,70' of '2,700', whose end is inside a token."""
  caplog.set_level(logging.INFO, 'bert_jax')
  tokenizer = tokenizers.load(shared / 'vocab/bert-base-uncased.txt')
  given = config(shared / 'xquad/xquad.en.json', small=[])
  source = qa.sources(given, tokenizer, ('eval',))['eval']
  off = []
  for i, question in enumerate(source.questions):
    starts, bounds, _ = source.plans[i]
    ids = [source.texts[e][1] for e in range(source.first[i], source.first[i + 1])]
    covered = set().union(*(range(a, a + len(part)) for a, part in zip(starts, ids)))
    offsets = source.offsets[question.context]
    assert covered == set(range(len(offsets))) == set(range(bounds[-1]))
    ((first, last),) = source.spans[i]
    text = question.context[offsets[first, 0] : offsets[last, 1]]
    off += [(question.gold[0], text)] * (text != question.gold[0])
  assert len(source.questions) == 1190 and len(source.texts) == 1232
  assert [b[len(a) :] for a, b in off] == ['0'] and off[0][0].endswith('(2,70')
  assert '1 answers not on token borders (whole tokens learnt) (xquad.en.json:' in caplog.text
  assert max(source.lengths) == 384


@pytest.mark.parametrize(
  ('file', 'number', 'kinds'),
  [
    (
      'squad/dev-v1.1.2articles.json',
      359,
      {'answers that are not at their offset (not learnt)': 3},
    ),
    (
      'squad/dev-v2.0.5articles.json',
      1407,
      {'questions without an answer (not learnt, not scored)': 702},
    ),
    (
      'tydiqa/tydiqa.goldp.en.train.json',
      3696,
      {'ids that came before (scored, but not in predictions.json)': 3607},
    ),
    (
      'chinese/cmrc2018/cmrc2018_dev.json',
      3219,
      {
        'answers that are not at their offset (not learnt)': 193,
        'answers at another offset than theirs (mended)': 7,
      },
    ),
    ('xquad/xquad.zh.json', 1190, {}),
  ],
)
def test_faults_of_real_data_are_counted(shared, file, number, kinds):
  questions, problems = read(shared / file, 'eval')
  assert len(questions) == number
  assert {kind: problems.counts[kind] for kind in problems.places} == kinds


# -- answers --------------------------------------------------------------------------------------


def sums_of_all_spans(source, outputs, i, longest):
  """{text: the best sum of logits} of all spans of question i, from the rows."""
  question, (starts, bounds, begin) = source.questions[i], source.plans[i]
  offsets, sums = source.offsets[question.context], {}
  for w, at in enumerate(starts):
    e = source.first[i] + w
    (row, slot) = np.argwhere(outputs['example_ids'] == e + 1)[0]
    zero = outputs['cls_positions'][row, slot] + begin - at  # where token 0 of the context would be
    for first in range(bounds[w], bounds[w + 1]):
      window_end = at + source.lengths[e] - 1 - begin
      for last in range(first, min(first + longest, window_end)):
        text = question.context[offsets[first][0] : offsets[last][1]]
        total = outputs['start_logits'][row, zero + first] + outputs['end_logits'][row, zero + last]
        sums[text] = max(total, sums.get(text, -np.inf))
  return sums


@pytest.mark.parametrize('task', ['squad', 'squad2'])
def test_predictions_are_stretches_of_the_text(tmp_path, tokenizer, task):
  contexts = [CONTEXT, '李白met  Élan,Rome\u00a0(born\tin ROME). ' * 3, 'x', ' \n ']
  content = [
    {'context': text, 'qas': [record('he?', id=f'{k}-{n}', context=text) for n in range(8)]}
    for k, text in enumerate(contexts)
  ]
  (tmp_path / 'a.json').write_text(json.dumps({'data': [{'paragraphs': content}]}))
  source = windows(tmp_path / 'a.json', tokenizer, task=task)
  outputs = random_outputs(source)
  answers = source.answers(outputs)
  assert len(answers) == len(source.questions) == 32
  for i, (answer, question) in enumerate(zip(answers, source.questions, strict=True)):
    assert answer['prediction'] == question.context[slice(*answer['span'])]
    assert sum(entry['probability'] for entry in answer['nbest']) == pytest.approx(1)
    sums = [entry['start_logit'] + entry['end_logit'] for entry in answer['nbest']]
    assert sums == sorted(sums, reverse=True)
    every = sums_of_all_spans(source, outputs, i, longest=5)
    found = {entry['text']: s for entry, s in zip(answer['nbest'], sums) if entry['text']}
    best = dict(sorted(every.items(), key=lambda item: -item[1])[:4])
    assert list(found) == list(best) and found == pytest.approx(best, abs=1e-5)
    texts = [entry['text'] for entry in answer['nbest']]
    assert len(texts) == len(set(texts)) <= 4 + (task == 'squad2')
    for entry in answer['nbest']:
      assert entry['text'] == question.context[entry['start'] : entry['end']]
      length = sum(
        entry['start'] <= a and b <= entry['end'] for a, b in source.offsets[question.context]
      )
      assert length <= 5 and entry['text'].strip() == entry['text']
    if not question.context.strip():
      assert answer['prediction'] == ''


def test_a_text_that_comes_twice_has_the_logits_of_its_best_place(tmp_path, tokenizer):
  context = 'Rome met Rome.'
  (tmp_path / 'a.json').write_text(
    json.dumps({'data': [{'paragraphs': [{'context': context, 'qas': [record('he?')]}]}]})
  )
  source = windows(tmp_path / 'a.json', tokenizer)
  outputs = random_outputs(source)
  _, _, begin = source.plans[0]
  (row, slot) = np.argwhere(outputs['example_ids'] == 1)[0]
  at = outputs['cls_positions'][row, slot] + begin
  first, _, third = np.flatnonzero(
    [context[a:b] in ('Rome', 'met') for a, b in source.offsets[context]]
  )
  for name in ('start_logits', 'end_logits'):
    outputs[name][:] = -9.0
    outputs[name][row, at + first], outputs[name][row, at + third] = 2.0, 3.0
  entry = next(e for e in source.answers(outputs)[0]['nbest'] if e['text'] == 'Rome')
  assert (entry['start'], entry['start_logit'], entry['end_logit']) == (9, 3.0, 3.0)


def test_a_text_that_comes_often_leaves_room_for_others(tmp_path, tokenizer):
  context = 'Rome Rome Rome Rome he met in'
  file = squad_file(tmp_path / 'a.json', record('he?'), context=context)
  source = windows(file, tokenizer, '--config.qa.max_answer_length=1')
  outputs, begin = random_outputs(source), source.plans[0][2]
  for name in ('start_logits', 'end_logits'):
    outputs[name][0, begin : begin + 7] = [6, 8, 7, 9, 3, 5, 4]
  (answer,) = source.answers(outputs)
  assert [entry['text'] for entry in answer['nbest']] == ['Rome', 'met', 'in', 'he']


def test_the_threshold_decides_between_an_answer_and_none(tmp_path, tokenizer):
  file = squad_file(tmp_path / 'a.json', *RECORDS, NONE)
  source = windows(file, tokenizer, task='squad2')
  outputs = random_outputs(source)
  answers = source.answers(outputs)
  for i, answer in enumerate(answers):
    own = range(source.first[i], source.first[i + 1])
    at = [np.argwhere(outputs['example_ids'] == e + 1)[0] for e in own]
    cls = [(r, outputs['cls_positions'][r, k]) for r, k in at]
    null = min(outputs['start_logits'][p] + outputs['end_logits'][p] for p in cls)
    best = next(entry for entry in answer['nbest'] if entry['text'])
    assert answer['answer'] == best['text']
    odds = null - best['start_logit'] - best['end_logit']
    assert answer['null_odds'] == pytest.approx(odds, abs=1e-4)
    assert answer['prediction'] == ('' if odds > 0 else best['text'])
  middle = sorted(answer['null_odds'] for answer in answers)[2]
  overrides = [f'--config.qa.null_threshold={middle}']
  moved = windows(file, tokenizer, *overrides, task='squad2').answers(outputs)
  assert sum(answer['prediction'] == '' for answer in moved) == 2
  scores = source.score(answers)
  assert scores['best_f1'] >= scores['f1']
  assert set(scores) | {'qa'} == set(qa.objective(config(file, task='squad2'), None).metrics)
  collapsed = [answer | {'prediction': ''} for answer in answers]
  assert source.constant(collapsed) == 'no answer' and not source.constant(answers)


def test_the_loss_of_an_answer_is_that_of_the_likeliest_window(tmp_path, tokenizer):
  file = squad_file(tmp_path / 'a.json', RECORDS[0], NONE)
  source = windows(file, tokenizer, task='squad2')
  outputs = random_outputs(source)
  flat = outputs | {name: np.zeros_like(outputs[name]) for name in ('start_logits', 'end_logits')}
  own = [source.lengths[source.first[i] : source.first[i + 1]] for i in range(2)]
  answers = source.answers(flat)
  (first, last), (starts, _, begin) = source.spans[0][0], source.plans[0]
  holds = (starts <= first) & (last < starts + own[0] - begin - 1)
  assert answers[0]['loss'] == pytest.approx(2 * np.log(own[0][holds].min()), abs=1e-5)
  assert answers[1]['loss'] == pytest.approx(2 * np.log(own[1].max()), abs=1e-5)
  nats = []
  for w in np.flatnonzero(holds):
    row, slot = np.argwhere(outputs['example_ids'] == 1 + w)[0]
    cls = outputs['cls_positions'][row, slot]
    sides = (outputs[f'{side}_logits'][row, cls : cls + own[0][w]] for side in ('start', 'end'))
    at = (begin + place - starts[w] for place in (first, last))
    nats.append(-sum(log_softmax(logits)[i] for logits, i in zip(sides, at)))
  assert len(nats) > 1
  assert source.answers(outputs)[0]['loss'] == pytest.approx(min(nats), abs=1e-5)


def test_files_for_the_official_scripts(tmp_path, tokenizer):
  file = squad_file(tmp_path / 'a.json', *RECORDS, NONE, RECORDS[0])
  source = windows(file, tokenizer, task='squad2')
  answers = source.answers(random_outputs(source))
  files = {name: json.loads(content) for name, content in source.files(answers).items()}
  assert set(files) == {
    'predictions.json',
    'nbest_predictions.json',
    'null_odds.json',
    'answers.json',
  }
  assert all(list(content) == list('abcde') for content in files.values())
  assert files['predictions.json']['a'] == answers[0]['prediction']  # the first of an id
  assert len(source.score(answers)) == 10
  assert set(files['nbest_predictions.json']['a'][0]) >= {
    'text',
    'probability',
    'start_logit',
    'end_logit',
  }


def test_a_partial_evaluation_answers_what_it_saw_whole(tmp_path, tokenizer):
  source = windows(squad_file(tmp_path / 'a.json', *RECORDS), tokenizer)
  outputs = random_outputs(source)
  every = {answer['id']: answer for answer in source.answers(outputs)}
  some = source.answers({name: x[: len(source) - 1] for name, x in outputs.items()})
  assert 0 < len(some) < len(every) and all(answer == every[answer['id']] for answer in some)
  assert source.score([]) == {}


# -- the objective --------------------------------------------------------------------------------


def predicted(given, tokenizer, params=None):
  task = qa.objective(given, tokenizer)
  source = qa.sources(given, tokenizer, ('eval',))['eval']
  params = params or task.init(jax.random.key(0))
  batch = {name: jnp.asarray(x) for name, x in rows_of(source).items() if name in task.spec(1)}
  run = jax.jit(lambda p, b: (task.predict(p, b), task.terms(p, b, None, False)[0]['qa']))
  outputs, loss = jax.device_get(run(params, batch))
  return params, source.answers(outputs), loss


def test_packed_and_unpacked_predictions_agree(tmp_path, tokenizer):
  file = squad_file(tmp_path / 'a.json', *RECORDS, NONE)
  unpacked = ['--config.data.examples_per_row=1', '--config.data.seq_length=24']
  params, alone, loss = predicted(config(file, '', *unpacked, task='squad2'), tokenizer)
  # Weights large enough that the logits are far apart.
  params = jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, params)
  _, alone, loss = predicted(config(file, '', *unpacked, task='squad2'), tokenizer, params)
  packed = config(file, '', '--config.data.examples_per_row=4', task='squad2')
  _, together, packed_loss = predicted(packed, tokenizer, params)
  assert len(alone) == len(together) == 5
  for one, other in zip(alone, together, strict=True):
    assert (one['id'], one['prediction'], one['span']) == (
      other['id'],
      other['prediction'],
      other['span'],
    )
    for name in ('probability', 'null_odds', 'loss'):
      assert one[name] == pytest.approx(other[name], abs=1e-4)
    assert [entry['text'] for entry in one['nbest']] == [entry['text'] for entry in other['nbest']]
  assert float(loss.value) == pytest.approx(float(packed_loss.value), abs=1e-4)
  assert np.std([answer['null_odds'] for answer in alone]) > 0.01


def test_the_loss_is_the_mean_over_start_and_end_within_each_example(tmp_path, tokenizer):
  given = config(squad_file(tmp_path / 'a.json', *RECORDS), '', '--config.data.examples_per_row=3')
  task = qa.objective(given, tokenizer)
  source = qa.sources(given, tokenizer, ('eval',))['eval']
  batch = rows_of(source)
  params = task.init(jax.random.key(0))
  logits = np.asarray(task.logits(params, batch), np.float64)
  nats = []
  for r, k in zip(*np.nonzero(batch['example_ids'])):
    own = batch['segment_ids'][r] == k + 1
    for side, name in enumerate(('start_positions', 'end_positions')):
      x = logits[r, :, side]
      nats.append(np.log(np.exp(x[own]).sum()) - x[batch[name][r, k]])
  loss = task.terms(params, batch, None, False)[0]['qa']
  assert float(loss.value) == pytest.approx(np.mean(nats), abs=1e-5)
  assert float(loss.weight) == len(nats) / 2 == len(source.texts)


def test_an_empty_row_gives_finite_numbers(tmp_path, tokenizer):
  file = squad_file(tmp_path / 'a.json', *RECORDS)
  given = config(file, '', '--config.data.examples_per_row=3')
  task = qa.objective(given, tokenizer)
  params = task.init(jax.random.key(0))
  empty = {name: jnp.zeros(x.shape, x.dtype) for name, x in task.spec(2).items()}

  def loss(params, batch):
    return task.terms(params, batch, None, False)[0]['qa'].total

  loss_and_gradient = jax.jit(jax.value_and_grad(loss))
  total, gradient = loss_and_gradient(params, empty)
  assert total == 0 and all(np.all(x == 0) for x in jax.tree.leaves(gradient))
  real = rows_of(qa.sources(given, tokenizer, ('eval',))['eval'])
  both = {name: jnp.concatenate([jnp.asarray(real[name]), empty[name]]) for name in empty}
  total, gradient = loss_and_gradient(params, both)
  assert float(total) == pytest.approx(float(jax.jit(loss)(params, real)), rel=1e-6)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_flops_by_hand(tmp_path):
  """2 rows of 48 tokens, 2 layers, 32 wide: two operations for each product of a token and a
  weight, of two tokens' vectors (scores, then the mix of values), and of the two logits."""
  task = qa.objective(config(squad_file(tmp_path / 'a.json', *RECORDS)), None)
  layer = 4 * 32 * 32 + 2 * 32 * 64 + 2 * 48 * 32
  assert task.flops(2) == 2 * 2 * 48 * (2 * layer + 2 * 32) == 4_337_664


# -- the run --------------------------------------------------------------------------------------


@pytest.mark.parametrize('task', ['squad', 'squad2', 'cmrc'])
def test_a_run_trains_and_evaluates(tmp_path, task):
  records, context = [*RECORDS, *[NONE] * (task == 'squad2')], CONTEXT
  if task == 'cmrc':
    context = '他在北京。后去长安。'
    records = [record('他在哪里？', '北京', context=context, id=str(i)) for i in range(4)]
  file = squad_file(tmp_path / 'a.json', *records, context=context)
  given = config(f'one={file},two={file}', file, task=task)
  _, results = train(given, tmp_path / 'w')
  assert set(qa.objective(given, None).metrics) <= set(results) and np.isfinite(results['qa'])
  again, step = evaluate(tmp_path / 'w')
  assert step == 2 and again == pytest.approx(results)
  (folder,) = (tmp_path / 'w' / 'eval').iterdir()
  predictions = json.loads((folder / 'predictions.json').read_text())
  assert list(predictions) == [given['id'] for given in records]
  assert all(text in context for text in predictions.values())
  lines = (folder / 'predictions.jsonl').read_text().splitlines()
  assert [json.loads(line)['prediction'] for line in lines] == list(predictions.values())


def test_what_is_learnt_is_what_is_answered(tmp_path):
  """A model that has learnt its few questions by heart answers them all, and a threshold tells the
  one without an answer: labels, windows, logits and offsets agree."""
  file = squad_file(tmp_path / 'a.json', *RECORDS, NONE)
  overrides = ['--config.steps=300', '--config.optimizer.learning_rate=2e-3']
  overrides += [f'--config.model.{kind}_dropout_prob=0.0' for kind in ('hidden', 'attention_probs')]
  _, results = train(config(file, '', *overrides, task='squad2'), tmp_path / 'w')
  assert results['HasAns_exact'] == results['best_exact'] == results['best_f1'] == 100
  assert results['qa'] < 0.5


def test_the_recipe_is_berts():
  """google-research/bert, README: SQuAD with 384, 128, 64, 30, 20, rate 3e-5, two epochs."""
  for task in ('squad', 'squad2', 'tydiqa', 'xquad', 'cmrc'):
    given = c.load(f'configs/finetune.py:task={task}')
    assert (given.objective, given.task.format) == ('qa', 'squad')
    assert (given.data.seq_length, given.qa.doc_stride, given.qa.max_query_length) == (384, 128, 64)
    assert (given.qa.max_answer_length, given.qa.n_best_size) == (30, 20)
    assert (given.optimizer.learning_rate, given.epochs) == (3e-5, 2)
    assert given.qa.unanswerable == (task == 'squad2')
    assert given.qa.answer_units == ('characters' if task == 'cmrc' else 'words')
