"""Labels keep the type of their column, from the data to every answer, whatever the data lie in."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score
from small_tables import WORDS, fields, finetune, sentence
from test_classification import outputs_of

import bert_jax
from bert_jax import config as c
from bert_jax.config import InputError
from bert_jax.predict import __main__ as predict
from bert_jax.run import initialization
from bert_jax.tasks.classification import label_sets, linear, reading, task
from bert_jax.tasks.faulty_records import Problems
from bert_jax.text import frames
from bert_jax.tools import convert

MULTI = 'table.multi_label=true'
COLUMNS = {  # {kind of a column: its labels in their order}
  'int': [1, 2, 10],
  'numpy': [np.int64(-1), np.int64(3)],
  'bool': [False, True],
  'float': [0.5, 1.5],
  'digits': ['0', '1'],
  'words': ['1st', 'b'],
}


def rows_of(labels, number=40, seed=0):
  rng = np.random.default_rng(seed)
  drawn = rng.integers(len(labels), size=number)
  texts = [f'{sentence(rng, most=4)} {WORDS[k]} {WORDS[k]}' for k in drawn]
  return [
    {'sentence': text, 'label': labels[k], 'n': i} for i, (text, k) in enumerate(zip(texts, drawn))
  ]


def written(path, rows):
  """A file of rows, in the format that its name says."""
  frame = pd.DataFrame(rows)
  if path.suffix == '.csv':
    frame.to_csv(path, index=False)
  elif path.suffix == '.jsonl':
    frame.to_json(path, orient='records', lines=True)
  else:
    path.write_bytes(frames.parquet(frames.table_of(frame, 'rows')))
  return path


def resolved(path, *more):
  loaded = c.load('configs/finetune.py:task=table', fields(f'data.train={path}', *more))
  return task.resolve(loaded)


@pytest.mark.parametrize('suffix', ['parquet', 'jsonl', 'csv'])
@pytest.mark.parametrize('kind', COLUMNS)
def test_labels_are_as_pandas_has_them(kind, suffix, tmp_path):
  """Of a CSV as it reads them, so its digits are numbers; the order is that of numbers."""
  labels = COLUMNS[kind]
  path = written(tmp_path / f't.{suffix}', rows_of(labels))
  config = resolved(path)
  if (kind, suffix) == ('digits', 'csv'):
    labels = [0, 1]
  found = label_sets.values(config.table)
  assert found == tuple(labels)
  assert [type(x) for x in found] == [type(x) for x in np.array(labels).tolist()]
  read = [x.label for x in reading.read(config, 'train', Problems('train'))]
  if suffix == 'csv':
    assert read == pd.read_csv(path)['label'].tolist()
  given = resolved(path, f'table.labels={",".join(config.table.labels[::-1])}')
  assert label_sets.values(given.table) == found[::-1]  # a set that is given has the column's type
  as_text = resolved(path, 'table.label_type=text')
  assert label_sets.values(as_text.table) == config.table.labels


@pytest.mark.parametrize('cells', [
  'TRUE FALSE', 'true false', '01 02', '+1 -1', '1e3 2', '.5 1.5',
  '1_000 2', '0x1 2', 'True 2', 'tRue fAlse', '1 01', 'inf 1', '1 b',
])  # fmt: skip
def test_cells_are_what_pandas_reads(cells, tmp_path):
  """Or texts, where two would be equal or one is not finite."""
  cells = cells.split()
  path = tmp_path / 't.csv'
  path.write_text('sentence,label\n' + ''.join(f'old {x},{x}\n' for x in cells * 3))
  config = resolved(path)
  read = [x.label for x in reading.read(config, 'train', Problems('train'))]
  expected = pd.read_csv(path)['label'].tolist()
  if len(set(expected)) < 2 or float('inf') in expected:
    expected = cells * 3
  assert read == expected and type(read[0]) is type(expected[0])


def test_labels_inside_of_objects_are_texts(tmp_path):
  path = tmp_path / 't.jsonl'
  path.write_text(''.join(f'{{"sentence": "old", "m": {{"y": "{k % 2}"}}}}\n' for k in range(4)))
  assert label_sets.values(resolved(path, 'table.label_column=m.y').table) == ('0', '1')


@pytest.mark.parametrize('make, ids', [
  (lambda df: df.iloc[[2, 0, 1]], ['2', '0', '1']),
  (lambda df: df.iloc[1:].set_axis(['x', 'y']), ['x', 'y']),
  (lambda df: df.set_axis([4, 4, 5]), ['0', '1', '2']),  # which tells no rows apart
  (lambda df: df.assign(idx=[7, 9, 8]).iloc[1:], ['9', '8']),
  (lambda df: df.to_dict('records'), ['0', '1', '2']),
])  # fmt: skip
def test_rows_in_memory_are_named_by_their_index(make, ids, tmp_path):
  held = make(pd.DataFrame(rows_of(['a', 'b'], number=3)))
  table, path = frames.table_of(held, 'rows'), tmp_path / 't.parquet'
  path.write_bytes(frames.parquet(frames.with_index(table, held)))
  config = resolved(path, 'table.labels=a,b')
  read = list(reading.read(config, 'train', Problems('train')))
  assert [x.id for x in read] == ids
  assert [x.texts[0] for x in read] == table.column('sentence').to_pylist()


@pytest.mark.parametrize('suffix', ['parquet', 'jsonl'])
def test_integers_beside_a_null_are_integers(suffix, tmp_path):
  """Of which pandas makes floats."""
  rows = rows_of([1, 2, None])
  assert pd.DataFrame(rows).label.dtype == float
  config = resolved(written(tmp_path / f't.{suffix}', rows))
  found = label_sets.values(config.table)
  assert found == (1, 2) and config.table.labels == ('1', '2') and type(found[0]) is int


def test_several_labels_and_their_weights_keep_the_type(tmp_path, vocab, tokenizer):
  several = [{'sentence': 'old', 'label': x} for x in ([3], [], [10, 3], [10])]
  config = resolved(written(tmp_path / 't.jsonl', several), MULTI)
  assert label_sets.values(config.table) == (3, 10)
  read = [x.label for x in reading.read(config, 'train', Problems('train'))]
  assert read == [(3,), (), (10, 3), (10,)]
  source, outputs = outputs_of(finetune(vocab, tmp_path / 't.jsonl', MULTI), tokenizer)
  answers = source.answers(outputs)
  assert {x for answer in answers for x in answer['prediction']} == {3, 10}
  lines = [','.join(map(str, answer['prediction'])) for answer in answers]
  table = source.files(answers)['predictions.tsv'].splitlines()
  assert [line.split('\t')[1] for line in table[1:]] == lines
  rows = rows_of([0, 1], 9)
  path = written(tmp_path / 't.parquet', rows)
  weighed = resolved(path, "table.class_weights=('balanced',)", 'table.labels=0,1')
  ones = sum(row['label'] for row in rows)
  expected = pytest.approx([9 / (2 * (9 - ones)), 9 / (2 * ones)], abs=1e-5)
  assert [weight for _, weight in weighed.table.class_weights] == expected


def test_the_svm_beside_a_run_knows_labels_of_any_type(tmp_path, tokenizer, vocab):
  found = []
  for labels in ['a', 'b'], [0, 1], [0.5, 1.5], [False, True]:
    paths = [written(tmp_path / f'{k}.parquet', rows_of(labels, seed=k)) for k in (0, 1)]
    names = label_sets.names(resolved(paths[0]).table.labels)
    weights = f"table.class_weights=(('{names[0]}',3.0),('{names[1]}',1.0))"
    config = resolved(paths[0], f'data.eval={paths[1]} tokenizer.path={vocab}', weights)
    found.append(linear.metrics(config, tokenizer))
  assert found == [found[0]] * 4 and found[0]['f1'] > 0


@pytest.fixture(scope='module')
def run(tmp_path_factory, vocab):
  """A finished run on whole numbers. Do not write into its workdir."""
  small = """model.hidden_size=16 model.intermediate_size=32 model.num_hidden_layers=1
    model.num_attention_heads=2 log.tensorboard=false epochs=0 steps=8 data.seq_length=32
    eval.every=8 optimizer.learning_rate=0.05 optimizer.warmup=0"""
  given = dict(field.split('=') for field in small.split())
  given |= {'model': 'tiny', 'tokenizer.path': vocab, 'model.vocab_size': len(WORDS) + 5}
  train, held_out = pd.DataFrame(rows_of([0, 1, 2])), pd.DataFrame(rows_of([0, 1, 2], 12, 1))
  return bert_jax.finetune(train, tmp_path_factory.mktemp('own') / 'W', eval=held_out, **given)


def test_answers_can_be_compared_with_the_column(run, tmp_path):
  """In memory and in files of the command; the files of an evaluation have the type, too."""
  frame = pd.DataFrame(rows_of([0, 1, 2], 12, 1), index=range(5, 17))
  found = run.model.predict(frame)
  share = (found['prediction'] == found['label']).mean()
  assert (
    share
    == run.metrics['accuracy']
    == accuracy_score(
      frame['label'], [max(x, key=x.get) for x in run.model.classify(list(frame['sentence']))]
    )
  )
  assert share > 0.4 and found['prediction'].dtype == frame['label'].dtype
  pd.testing.assert_frame_equal(found[list(frame)], frame)
  records = run.model.predict(frame.to_dict('records'))
  assert [x['prediction'] for x in records] == found['prediction'].tolist()
  for suffix in 'parquet', 'jsonl', 'csv':
    path, out = written(tmp_path / f't.{suffix}', frame), tmp_path / 'out.jsonl'
    predict.main(['--model', str(run.workdir), '--input', str(path), '--output', str(out)])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line['prediction'] for line in lines] == found['prediction'].tolist()
    assert [line['label'] for line in lines] == frame['label'].tolist()
    assert [int(line['n']) for line in lines] == list(range(12))
  (answers,) = (run.workdir / 'eval').rglob('predictions.jsonl')
  for line in map(json.loads, answers.read_text().splitlines()):
    row = found.iloc[int(line['id'])]
    assert (line['prediction'], line['gold']) == (row['prediction'], row['label'])
  _, first, *_ = (answers.parent / 'predictions.tsv').read_text().splitlines()
  assert first == f'0\t{found["prediction"].iloc[0]}'


def test_an_export_has_names_of_labels(run, tmp_path):
  convert.main(['--from', str(run.workdir), '--to', f'hf:{tmp_path / "OUT"}'])
  content = json.loads((tmp_path / 'OUT' / 'config.json').read_text())
  assert content['id2label'] == {'0': '0', '1': '1', '2': '2'}
  (shares,) = bert_jax.load(tmp_path / 'OUT').classify(['old river'])
  (expected,) = run.model.classify(['old river'])
  assert {str(label): x for label, x in expected.items()} == pytest.approx(
    {str(label): x for label, x in shares.items()}, abs=1e-5
  )


@pytest.mark.parametrize('given, said', [
  ({'table.columns': ('sentence', 'label')}, 'table.columns is for a CSV or TSV without a header'),
  ({'table.label_separator': ';'}, 'set table.multi_label=true, or leave it'),
  ({'table.label_type': 'value'}, "for labels that are different numbers.* not for 'a', 'b'"),
  ({'table.text_column': 'body'}, "data.train: table of train has no column 'body'"),
  ({'table.labels': ('a', 'c')}, "table of train:5: label 'b' is not in the label set"),
])  # fmt: skip
def test_what_cannot_apply_to_rows_in_memory_is_told(given, said, tmp_path):
  with pytest.raises(InputError, match=said) as told:
    bert_jax.finetune(
      pd.DataFrame(rows_of(['a', 'b']), range(5, 45)), tmp_path / 'W', model='tiny', **given
    )
  assert '.parquet' not in str(told.value)


@pytest.mark.parametrize('is_given', [True, False])
def test_a_share_beside_rows_to_evaluate_on_is_told(is_given, tmp_path, caplog):
  data = {'data.train': written(tmp_path / 't.parquet', rows_of(['a', 'b'] * 3))}
  if is_given:
    data['data.eval'] = written(tmp_path / 'e.parquet', rows_of(['a', 'b']))
  fields = [f'--config.{name}={x}' for name, x in (data | {'table.eval_share': 0.5}).items()]
  config = c.load('configs/finetune.py:task=table,size=tiny', fields)
  initialization.config_of(initialization.Start(), config, tmp_path / 'W', c.names_of(fields))
  assert ("this run does not read 'table.eval_share'; leave" in caplog.text) == is_given


def test_spaces_around_labels_are_counted(tmp_path):
  rows = rows_of(['up ', 'down', ' down'] * 2)
  path = written(tmp_path / 't.parquet', rows)
  config, problems = resolved(path), Problems('train')
  assert label_sets.values(config.table) == ('down', 'up')
  assert {x.label for x in reading.read(config, 'train', problems)} == {'down', 'up'}
  spaced = sum(row['label'] != row['label'].strip() for row in rows)
  assert problems.counts['labels with spaces around them (read without)'] == spaced > 0
