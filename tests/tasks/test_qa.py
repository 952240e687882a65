"""Extractive QA: read as published, windows as BERT's, answers as they stand, official scores."""

import json

import jax
import numpy as np
import published as p
import pytest

from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.qa import reading, squad_scores
from bert_jax.tasks.qa import task as qa

of_task = p.reader('qa', reading.questions)
AT = 'a.json:data[0].paragraphs[0].qas'


def read(path, split='train', task='squad', skip=False):
  return of_task(path, task, split, skip)


def windows(path, letters, *fields, split='eval', task='squad'):
  return qa.sources(p.config_of('qa', task, path, *fields), letters, (split,))[split]


def random_outputs(source, seed=0, scale=3.0):
  rows, rng = p.stacked(source), np.random.default_rng(seed)
  logits = rng.normal(0, scale, (2, *rows['input_ids'].shape)).astype(np.float32)
  out = {'start_logits': logits[0], 'end_logits': logits[1]}
  return out | {name: rows[name] for name in ('example_ids', 'cls_positions')}


# -- reading --------------------------------------------------------------------------------------


def test_squad_json_as_published(tmp_path):
  questions, problems = read(p.squad(tmp_path / 'a.json', *p.RECORDS))
  assert [question.id for question in questions] == list('abcd')
  assert questions[1].gold == ('12km', '12km from Ostia')
  assert all(p.CONTEXT[q.starts[0] :].startswith(q.gold[0]) for q in questions)
  assert questions[2].where == f'{AT}[2]'
  assert problems.counts['questions'] == 4 and not problems.places


def test_answers_that_are_not_at_their_offset(tmp_path):
  answers = [{'text': 'Rome', 'answer_start': 3}, {'text': 'in', 'answer_start': 3}]
  answers += [{'text': 'Paris', 'answer_start': 10_000}, {'text': 'Ostia'}]
  records = [{'id': str(i), 'question': 'x', 'answers': [x]} for i, x in enumerate(answers)]
  questions, problems = read(p.squad(tmp_path / 'a.json', *records))
  known = [p.CONTEXT.index('Rome'), -1, -1, p.CONTEXT.index('Ostia')]
  assert [question.starts for question in questions] == [(start,) for start in known]
  assert dict(problems.places) == {
    'answers that are not at their offset (mended)': [f'{AT}[0]', f'{AT}[3]'],
    'answers whose place in the context is not known (not learnt)': [f'{AT}[1]', f'{AT}[2]'],
  }


# -- rows -----------------------------------------------------------------------------------------


def test_rows_hold_question_window_and_where_the_answer_is(tmp_path, letters):
  context = 'he was born in rome'
  file = p.squad(tmp_path / 'a.json', p.asked('he?', 'rome', context=context), context=context)
  row = windows(file, letters, 'data.examples_per_row=1')[0]
  tokens = ' '.join(letters.pieces[i] for i in row['input_ids'][:11])
  assert tokens == '[CLS] he ? [SEP] he was born in rome [SEP] [PAD]'
  assert list(row['token_type_ids'][:11]) == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0]
  assert row['start_positions'] == [8] == row['end_positions'] and row['weights'] == [1]
  # Who guesses has a chance of 1 in the tokens of each window, for either end of the answer.
  two = p.squad(tmp_path / 'b.json', p.asked('he?', id='a'), p.asked('he met?'), context=context)
  level, kind = windows(two, letters).baselines['cross_entropy']
  assert (level, kind) == (pytest.approx((np.log(10) + np.log(11)) / 2), 'uniform')


def test_an_answer_is_in_a_window_that_holds_it_whole():
  """Windows of tokens 0 to 4, 2 to 6 and 4 to 8, behind four others, and an answer of 3 to 5."""
  starts, ends = np.array([0, 2, 4]), np.array([5, 7, 9])
  found = qa.Windows._positions(None, [(3, 5)], starts, ends, 4, Problems('train'))
  assert found.tolist() == [[0, 0], [5, 7], [0, 0]]


HERE = 'The ferry leaves from Kiel to Kiel.'  # Kiel at 22 and 30


@pytest.mark.parametrize(
  'answers, gold, starts',
  [
    ({'text': ['Kiel'], 'answer_start': [30.0]}, ('Kiel',), (30,)),
    ({'text': ['Kiel', 'ferry'], 'answer_start': [30]}, ('Kiel', 'ferry'), (30, 4)),
    ({'text': ['Kiel'], 'answer_start': [None]}, ('Kiel',), (-1,)),
    ({'text': ['ferry']}, ('ferry',), (4,)),
    ({'text': [], 'answer_start': []}, (), ()),
    ([{'text': 'Kiel', 'answer_start': 22}], ('Kiel',), (22,)),
    ([], (), ()),
    (None, None, ()),
  ],
)
def test_answers_in_the_forms_of_squad_and_of_hugging_face(tmp_path, answers, gold, starts):
  row = {'id': '0', 'question': 'Where?', 'context': HERE, 'answers': answers}
  for path in (p.jsonl(tmp_path / 'a.jsonl', row), p.squad(tmp_path / 'a.json', row, context=HERE)):
    ((question,), _) = read(path, task='squad2')
    assert (question.gold, question.starts) == (gold, starts)


def test_what_cannot_be_learnt_is_left_out_of_training_and_still_predicted(tmp_path, letters):
  nowhere = {'id': 'x', 'question': 'x', 'answers': [{'text': 'Paris', 'answer_start': 0}]}
  file = p.squad(tmp_path / 'a.json', p.RECORDS[0], nowhere, p.NONE)
  learnt = windows(file, letters, split='train')
  assert p.stacked(learnt)['weights'].sum() == len(learnt.texts) == learnt.first[1]
  source = windows(file, letters)
  answers = source.answers(random_outputs(source))
  assert [answer['id'] for answer in answers] == ['a', 'x', 'e']
  assert answers[1]['loss'] > 27 and 'gold' not in answers[2]
  scored = [answers[0]['prediction'], answers[1]['prediction']], [['Rome'], ['Paris']]
  assert source.score(answers) == squad_scores.squad(*scored)
  unknown = {'id': 'u', 'question': 'he?'}  # nobody says that it has no answer
  file = p.squad(tmp_path / 'c.json', p.NONE, unknown)
  learnt = windows(file, letters, split='train', task='squad2')
  assert learnt.first[0] < learnt.first[1] == learnt.first[2] == len(learnt.texts)


@pytest.mark.parametrize('context', ['\u200bhe met', 'he \u200b met', 'he met\u200b'])
def test_an_answer_without_a_token_is_not_learnt(tmp_path, letters, context):
  file = p.squad(tmp_path / 'a.json', p.asked('he?', '\u200b', context=context), context=context)
  assert windows(file, letters).spans == [[]]


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
def test_predictions_are_stretches_of_the_text(tmp_path, letters, task):
  contexts = [p.CONTEXT, '李白met  Élan,Rome\u00a0(born\tin ROME). ' * 3, 'x', ' \n ']
  files = (
    p.squad(tmp_path / f'{k}', *(p.asked('he?', id=f'{k}-{n}') for n in range(8)), context=text)
    for k, text in enumerate(contexts)
  )
  source = windows(','.join(f'{path.name}={path}' for path in files), letters, task=task)
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
    best = dict(sorted(every.items(), key=lambda item: -item[1])[:20])
    assert list(found) == list(best) and found == pytest.approx(best, abs=1e-5)
    texts = [entry['text'] for entry in answer['nbest']]
    assert len(texts) == len(set(texts)) <= 20 + (task == 'squad2')
    for entry in answer['nbest']:
      assert entry['text'] == question.context[entry['start'] : entry['end']]
      offsets = source.offsets[question.context]
      length = sum(entry['start'] <= a and b <= entry['end'] for a, b in offsets)
      assert length <= 5 and entry['text'].strip() == entry['text']
    if not question.context.strip():
      assert answer['prediction'] == ''


def test_the_threshold_decides_between_an_answer_and_none(tmp_path, letters):
  file = p.squad(tmp_path / 'a.json', *p.RECORDS, p.NONE)
  source = windows(file, letters, task='squad2')
  outputs = random_outputs(source)
  answers = source.answers(outputs)
  for i, answer in enumerate(answers):
    own = range(source.first[i], source.first[i + 1])
    at = [np.argwhere(outputs['example_ids'] == e + 1)[0] for e in own]
    cls = [(r, outputs['cls_positions'][r, k]) for r, k in at]
    null = min(outputs['start_logits'][x] + outputs['end_logits'][x] for x in cls)
    best = next(entry for entry in answer['nbest'] if entry['text'])
    assert answer['answer'] == best['text']
    odds = null - best['start_logit'] - best['end_logit']
    assert answer['null_odds'] == pytest.approx(odds, abs=1e-4)
    assert answer['prediction'] == ('' if odds > 0 else best['text'])
  middle = sorted(answer['null_odds'] for answer in answers)[2]
  moved = windows(file, letters, f'qa.null_threshold={middle}', task='squad2').answers(outputs)
  assert sum(answer['prediction'] == '' for answer in moved) == 2
  scores = source.score(answers)
  assert scores['best_f1'] >= scores['f1']
  for answer in answers:
    gold = answer['gold'] or ['']
    share = sum(entry['probability'] for entry in answer['nbest'] if entry['text'] in gold)
    assert answer['loss'] == pytest.approx(-np.log(share + 1e-12), abs=1e-6)
  assert answers[-1]['gold'] == [] and answers[-1]['loss'] < 20
  collapsed = [answer | {'prediction': ''} for answer in answers]
  assert source.constant(collapsed) == 'no answer' and not source.constant(answers)


def test_files_for_the_official_scripts(tmp_path, letters):
  file = p.squad(tmp_path / 'a.json', *p.RECORDS, p.NONE, p.RECORDS[0])
  source = windows(file, letters, task='squad2')
  answers = source.answers(random_outputs(source))
  files = {name: json.loads(content) for name, content in source.files(answers).items()}
  names = 'predictions', 'nbest_predictions', 'null_odds', 'answers'
  assert set(files) == {f'{name}.json' for name in names}
  assert all(list(content) == list('abcde') for content in files.values())
  assert files['predictions.json']['a'] == answers[0]['prediction']  # the first of an id
  assert len(source.score(answers)) == 10


# -- the objective and a run ----------------------------------------------------------------------


def test_the_loss_is_the_mean_over_start_and_end_within_each_example(tmp_path, letters):
  file = p.squad(tmp_path / 'a.json', *p.RECORDS)
  objective = qa.objective(p.config_of('qa', 'squad', file, 'data.examples_per_row=3'), letters)
  source = windows(file, letters, 'data.examples_per_row=3')
  batch, params = p.stacked(source), p.telling(objective)
  _, terms = p.predicted(objective, params, source)
  logits = np.asarray(jax.jit(objective.logits)(params, batch), np.float64)
  nats = []
  for r, k in zip(*np.nonzero(batch['example_ids'])):
    own = batch['segment_ids'][r] == k + 1
    for side, name in enumerate(('start_positions', 'end_positions')):
      x = logits[r, :, side]
      nats.append(np.log(np.exp(x[own]).sum()) - x[batch[name][r, k]])
  assert float(terms['cross_entropy'].value) == pytest.approx(np.mean(nats), abs=1e-4)
  assert float(terms['cross_entropy'].weight) == len(nats) / 2 == len(source.texts)


def test_what_is_learnt_is_what_is_answered(tmp_path, letters):
  """Logits that say the labels of each window answer all questions, and nothing the one without an
  answer: labels, windows, logits and offsets agree."""
  file = p.squad(tmp_path / 'a.json', *p.RECORDS, p.NONE)
  source = windows(file, letters, task='squad2')
  batch, outputs = p.stacked(source), random_outputs(source)
  rows, slots = np.nonzero(batch['example_ids'])
  for side in ('start', 'end'):
    outputs[f'{side}_logits'] = np.zeros(batch['input_ids'].shape, np.float32)
    outputs[f'{side}_logits'][rows, batch[f'{side}_positions'][rows, slots]] = 9
  scores = source.score(source.answers(outputs))
  assert scores['HasAns_exact'] == scores['NoAns_exact'] == scores['best_exact'] == 100
  assert scores['f1'] == scores['best_f1'] == 100
