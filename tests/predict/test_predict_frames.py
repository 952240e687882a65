"""A DataFrame is asked: the answers of the command line, beside its columns."""

import json
import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from test_predict import NER, as_lines

from bert_jax.errors import InputError
from bert_jax.predict import __main__

PLAIN = [{'text': 'old river'}, {'text': 'new garden bad'}, {'text': 'winter'}]
PAIRS = [{'text': 'old river', 'pair': 'new'}, {'text': 'good', 'pair': 'bad letter'}]
ASKED = [
  {'question': 'good market', 'context': 'the old river'},
  {'question': 'new', 'context': 'a'},
]
CHOICES = [{'context': 'old', 'question': 'new?', 'choices': ['good', 'bad', 'market']}] * 2
NAMES = {'text': 'old river and new river: good', 'pronoun': 'good', 'a': 'old river', 'b': 'river'}
PLACES = [NAMES | {'b-offset': 18}, NAMES | {'b-offset': 4}]
TOKENS = [{'tokens': ['old', 'river']}, {'tokens': ['new', 'garden', 'bad']}]
CASES = {  # {task: (how its model is made, records)}
  'classify': ('sst2', PLAIN),
  'pair': ('mrpc', PAIRS),
  'tag': ('ner', PLAIN),
  'find_answers': ('squad', ASKED),
  'choose': ('copa', CHOICES),
  'coreference': ('gap', PLACES),
  'fill_mask': ('', [{'text': 'old [MASK] new'}, {'text': '[MASK]'}]),
  'perplexity': ('', PLAIN),
  'next_sentence': ('', PAIRS),
  'embed': ('', PLAIN),
}
MORE = {'ner': (NER,), 'squad': ('--config.qa.max_query_length=8',)}


@pytest.fixture
def ask(make_model, pretrained_model):
  return lambda task: make_model(task, *MORE.get(task, ())) if task else pretrained_model


def plain(value):
  """A value of a cell as JSON has it."""
  return json.loads(json.dumps(value, default=np.ndarray.tolist))


def cells(answer):
  """The answer of a line as cells of a row: {'label': 'no', 'probabilities.no': 0.7}."""
  for name, value in plain(answer).items():
    inner = value if isinstance(value, dict) else {}
    yield from ((f'{name}.{key}', x) for key, x in inner.items()) if inner else [(name, value)]


@pytest.mark.parametrize('method', CASES)
def test_each_row_has_the_answer_of_a_line(method, ask):
  name, records = CASES[method]
  model = ask(name)
  frame = pd.DataFrame(
    [{'date': 7, **record} for record in records], index=[5, 3, 4][: len(records)]
  )
  found = getattr(model, method)(frame)
  task = {'find_answers': 'answer'}.get(method, method.replace('_', '-'))
  with_date = [json.dumps({'date': 7, **record}) for record in records]
  expected = as_lines(model.ask(task), with_date)
  assert list(found.index) == list(frame.index) and 'error' not in found
  rows = [plain(__main__._rounded(row)) for row in found.to_dict('records')]
  assert rows == [dict(cells(x)) for x in expected]
  values = [x['text'] if x.keys() == {'text'} else x for x in records]
  answers = [plain(__main__._rounded(answer)) for answer in model.answer(task, values)]
  assert answers == [{name: x[name] for name in x if name != 'date'} for x in expected]
  one, other = (getattr(model, method)(kind(values)) for kind in (iter, list))
  assert len(one) == len(records) and repr(one) == repr(other)


def test_predict_is_the_task_that_a_model_was_trained_for(ask):
  model, texts = ask('sst2'), [record['text'] for record in PLAIN]
  records = model.predict(PLAIN)
  assert records == model.classify(PLAIN)
  assert records == model.predict(x for x in texts) == model.predict(pd.Series(texts))
  assert [x['probabilities'] for x in records] == model.classify(texts)
  alone = model.predict(texts[0])
  assert alone['prediction'] == records[0]['prediction']
  assert alone['probability'] == pytest.approx(records[0]['probability'], abs=1e-6)
  pd.testing.assert_frame_equal(
    model.predict(pd.DataFrame(PLAIN)), model.classify(pd.DataFrame(PLAIN))
  )
  ((best,),) = ask('').fill_mask(['[MASK]'], top_k=1)
  ((mask,),) = [x['masks'] for x in ask('').predict(['[MASK]'], top_k=1)]
  assert mask == [dict(zip(('piece', 'probability'), best[0]))]


def test_what_is_cut_is_said_once_a_call(ask, caplog):
  """As `bert-jax predict` says it, by every method."""
  model, long = ask('sst2'), 'old ' * 600
  said = f'examples cut (longer than {model.limit} tokens): '
  for method in model.predict, model.classify:
    for values in long, [long], pd.DataFrame({'text': [long, 'new']}):
      caplog.clear()
      method(values)
      assert [x for x in caplog.messages if 'cut' in x] == [f'{said}1']
  caplog.clear()
  model.predict([long] * 300)
  model.classify(['old'])
  assert caplog.messages == [f'{said}300']
  caplog.clear()
  ask('').states([long, 'old', long])
  assert caplog.messages == ['texts cut (longer than 32 tokens): 2']


def test_columns_are_found_as_in_training(ask):
  """By the name that the training data had, else by the field's; GAP writes capitals."""
  both = pd.DataFrame({'sentence': ['old river'], 'text': ['new']})
  (shares,) = ask('sst2').classify(['old river'])
  assert ask('sst2').classify(both)['probability'][0] == max(shares.values())
  capitals = {'Text': 'text', 'Pronoun': 'pronoun', 'A': 'a', 'B': 'b', 'B-offset': 'b-offset'}
  frame = pd.DataFrame(PLACES).rename(columns={ours: theirs for theirs, ours in capitals.items()})
  expected = ask('gap').coreference(pd.DataFrame(PLACES))
  found = ask('gap').coreference(frame)
  assert list(found)[: len(capitals)] == list(frame)
  pd.testing.assert_frame_equal(found.drop(columns=list(frame)), expected.drop(columns=PLACES[0]))
  pd.testing.assert_frame_equal(
    ask('ner').tag(pd.DataFrame(TOKENS)).drop(columns='tokens'),
    pd.DataFrame(ask('ner').tag([x['tokens'] for x in TOKENS])),
  )


def test_the_columns_of_the_input_stay_and_keep_their_names(ask):
  frame = pd.DataFrame({'text': ['old', 'new'], 'label': [1, 0], 'n': [2.5, None]}, index=[4, 4])
  found = ask('sst2').classify(frame)
  pd.testing.assert_frame_equal(found[list(frame)], frame)
  assert list(found)[3:5] == ['prediction', 'probability']
  with pytest.raises(InputError, match='called as the answer beside it') as refused:
    ask('sst2').classify(found)
  again = eval(str(refused.value).rpartition(': ')[2], {'df': found})  # what it advises
  pd.testing.assert_frame_equal(ask('sst2').classify(again), found)
  first, empty = ask('sst2').classify([{'text': 'old', 'label': 1}, {'text': '', 'label': 0}])
  assert first['label'] == 1 and first['prediction'] == found['prediction'].iloc[0]
  assert empty == {'text': '', 'label': 0, 'error': 'empty text'}
  assert ask('sst2').classify('old') == ask('sst2').classify(['old'])[0]
  (alone,) = ask('').embed([{'text': 'old'}])
  np.testing.assert_array_equal(alone['embedding'], ask('').embed('old'))


def test_a_row_without_an_answer_says_why_in_its_place(ask, caplog):
  rows = {'sentence': ['old river', None, ' ', 'new'], 'label': [1, 0, 1, 0]}
  with caplog.at_level(logging.WARNING, 'bert_jax'):
    found = ask('sst2').classify(pd.DataFrame(rows, index=list('abcd')))
  assert found['error'].isna().tolist() == [True, False, False, True]
  assert found['error'][['b', 'c']].tolist() == ['the sentence of this row is empty'] * 2
  assert found['prediction'].isna().tolist() == [False, True, True, False]
  assert '2 of 4 rows have no answer; the first is row 1: the sentence of this row' in caplog.text
  numbers, texts = (
    ask('sst2').classify(pd.DataFrame({'sentence': x})) for x in ([3, 4], ['3', '4'])
  )
  assert numbers['probability'].equals(texts['probability'])  # as a table of them is read


def test_a_number_among_texts_is_a_text(ask, caplog):
  texts = ['old river', 7, None, 'new']
  with caplog.at_level(logging.INFO, 'bert_jax'):
    found = ask('sst2').classify(pd.DataFrame({'text': texts, 'kind': [1, 'b', 2, 'c']}))
    written = ask('sst2').classify(pd.DataFrame({'text': ['old river', '7', None, 'new']}))
  assert found['probability'].equals(written['probability'])
  assert found['prediction'].isna().tolist() == [False, False, True, False]
  assert "column 'text' has values of several types, which are read as texts" in caplog.text
  assert caplog.text.count("classify reads the columns 'text'") == 1


def test_an_element_without_an_answer_keeps_its_place(ask, caplog):
  with caplog.at_level(logging.WARNING, 'bert_jax'):
    first, none, last = ask('sst2').classify(['old river', '', 'new'])
    vectors = ask('').embed(['old river', 3, 'new'])
  assert none is None and [first, last] == ask('sst2').classify(['old river', 'new'])
  assert 'classify: 1 of 3 elements have no answer; the first is element 1: empty' in caplog.text
  assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False]
  np.testing.assert_allclose(vectors[::2], ask('').embed(['old river', 'new']), atol=1e-6)


def test_a_frame_without_rows_has_no_answers(ask):
  frame, counts = pd.DataFrame({'text': ['a']}), ask('sst2').counts.copy()
  none = ask('sst2').classify(frame[:0])
  assert len(none) == 0 and ask('sst2').counts == counts
  assert none.index.equals(frame[:0].index)
  assert list(ask('sst2').classify(pd.DataFrame())) == []
  table = ask('sst2').classify(pa.table({'text': ['old', 'new']}))
  assert isinstance(table, pa.Table) and table.num_rows == 2 and 'prediction' in table.column_names
