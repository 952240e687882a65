"""Labelled records: the public formats read as they are, and every error a line can cause."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from bert_jax.config import InputError
from bert_jax.text.tables import column, records

SHARED = Path(__file__).parents[3] / 'shared' / 'data'
shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f'needs the data of {SHARED}')


def read(spec, **options):
  counts = Counter()
  return list(records(str(spec), counts=counts, **options)), counts


def fails(spec, **options):
  with pytest.raises(InputError) as error:
    read(spec, **options)
  assert '\n' not in str(error.value)
  return str(error.value)


def test_tsv_as_glue_writes_it(tmp_path):
  (tmp_path / 'dev.tsv').write_bytes(
    '\ufeffsentence\tlabel\r\nhe said "no\t1\r\n\r\n a \t\r\n"q"\t0'.encode()
  )
  rows, counts = read(tmp_path / 'dev.tsv')
  assert rows == [
    ('dev.tsv:2', {'sentence': 'he said "no', 'label': '1'}),
    ('dev.tsv:4', {'sentence': ' a ', 'label': ''}),
    ('dev.tsv:5', {'sentence': '"q"', 'label': '0'}),
  ]
  assert (counts['records'], counts['blank_lines'], counts['files']) == (3, 1, 1)


def test_tsv_without_a_header_as_cola(tmp_path):
  (tmp_path / 'a.tsv').write_text('gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tThe\n')
  rows, _ = read(tmp_path / 'a.tsv', columns=('source', 'label', 'mark', 'sentence'))
  assert [row['label'] for _, row in rows] == ['1', '0'] and rows[0][0] == 'a.tsv:1'
  assert 'has empty or repeated names; if the file has no header line' in fails(tmp_path / 'a.tsv')


def test_a_test_set_without_a_header_may_lack_its_label(tmp_path):
  columns = 'index', 'sentence', 'label'
  (tmp_path / 'test.tsv').write_text('0\tThe sailors rode.\n1\tThe\n')
  rows, _ = read(tmp_path / 'test.tsv', columns=columns)
  assert [row for _, row in rows] == [
    {'index': '0', 'sentence': 'The sailors rode.'},
    {'index': '1', 'sentence': 'The'},
  ]
  (tmp_path / 'dev.tsv').write_text('label\tindex\tsentence\n1\t0\tThe\n')  # a header wins
  assert read(tmp_path / 'dev.tsv', columns=columns)[0] == [
    ('dev.tsv:2', {'label': '1', 'index': '0', 'sentence': 'The'})
  ]


def test_csv_quotes_commas_and_line_breaks(tmp_path):
  (tmp_path / 'a.csv').write_bytes(b'text,label\r\n"a, ""b""\r\nc",1\r\n\r\nd,2\r\n')
  rows, counts = read(tmp_path / 'a.csv')
  assert rows == [
    ('a.csv:2', {'text': 'a, "b"\nc', 'label': '1'}),
    ('a.csv:5', {'text': 'd', 'label': '2'}),
  ]
  assert counts['blank_lines'] == 1


def test_jsonl_values_become_strings(tmp_path):
  (tmp_path / 'a.jsonl').write_text(
    '{"a": "é", "n": 3, "s": 3.8, "t": ["é"], "b": true, "z": null}\n\n'
  )
  rows, counts = read(tmp_path / 'a.jsonl')
  assert rows == [('a.jsonl:1', {'a': 'é', 'n': '3', 's': '3.8', 't': '["é"]', 'b': 'true'})]
  assert counts['blank_lines'] == 1


def test_a_folder_gives_each_split_its_files_and_several_specs_follow_one_another(tmp_path):
  names = 'interval.tsv', 'training.tsv', 'x-val-de.tsv', 'x-val-fr.tsv', 'x_TRAIN.tsv'
  for name in names:
    (tmp_path / name).write_text('x\n1\n')
  places = lambda *given, **own: [where for where, _ in read(*given, **own)[0]]
  assert places(tmp_path) == ['x_TRAIN.tsv:2']
  assert 'holds 2 files for val, x-val-de.tsv and x-val-fr.tsv' in fails(
    tmp_path, split='validation'
  )
  (tmp_path / 'dev.tsv').write_text('x\n1\n')
  assert places(tmp_path, split='validation') == ['dev.tsv:2'], 'the whole name comes first'
  assert places(f'b={tmp_path}/dev.tsv,a={tmp_path}') == ['dev.tsv:2', 'x_TRAIN.tsv:2']
  (tmp_path / 'X_train.csv').write_text('x\n1\n')
  assert len(places(tmp_path)) == 2  # may well be two parts
  (tmp_path / 'x_TRAIN.csv').write_text('x\n1\n')
  assert 'holds 3 files for train' in fails(tmp_path)
  for name in (*names[2:], 'X_train.csv', 'x_TRAIN.csv'):
    (tmp_path / name).unlink()
  assert 'holds no train file but dev.tsv, interval.tsv, training.tsv' in fails(tmp_path)


def test_a_document_in_a_csv_may_be_long(tmp_path):
  (tmp_path / 'a.csv').write_text(f'x,y\n"{"word " * 40_000}",1\n')
  ((_, row),), _ = read(tmp_path / 'a.csv')
  assert len(row['x']) == 200_000


def test_gzip_globs_and_invalid_utf8(tmp_path):
  (tmp_path / 'b.tsv.gz').write_bytes(gzip.compress(b'x\ty\n1\tcaf\xe9\n'))
  (tmp_path / 'a.jsonl').write_text('{"x": "0"}\n')
  rows, counts = read(f'{tmp_path}/*')
  assert rows == [('a.jsonl:1', {'x': '0'}), ('b.tsv.gz:2', {'x': '1', 'y': 'caf\ufffd'})]
  assert (counts['files'], counts['records'], counts['invalid_utf8_lines']) == (2, 2, 1)


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    (
      'a.tsv',
      b'x\ty\n1\t2\n1\t2\t3\n',
      "a.tsv:3: 3 columns where 2 are expected ('x', 'y'); repair",
    ),
    ('a.csv', b'x,y\n1\n', 'a.csv:2: 1 columns where 2 are expected'),
    ('a.csv', b'x,y\n1,2\n3,"4\n5,6\n', 'a.csv:3 is not CSV'),
    ('a.jsonl', b'{"x": 1}\n{"x": \n', 'a.jsonl:2: not JSON'),
    ('a.jsonl', b'{"x": ' + b'[' * 200_000, 'a.jsonl:1: JSON nested too deeply'),
    ('a.jsonl', b'{"x": ' + b'1' * 5_000 + b'}', 'a.jsonl:1: JSON with a number of more than 4,3'),
    ('a.jsonl', b'[1, 2]\n', 'a.jsonl:1: a JSON list; write one JSON object per line'),
    ('a.tsv', b'x\tx\n1\t2\n', "a.tsv:1 is no header: 'x', 'x' has empty or repeated names"),
    ('a.tsv', b'x\ty\n', 'holds no records, at most a header'),
    ('a.tsv', b'', 'a.tsv is empty; remove it'),
    ('a.tsv', b'x\ty\n1\t\0\n', 'a.tsv is not text: line 2 has a NUL byte'),
    ('a.tsv.gz', b'x\ty\n1\t2\n', 'broken or truncated .gz file'),
    ('a.xlsx', b'PK', 'a.xlsx is not a table by its name; use .tsv, .csv, .jsonl, .json'),
  ],
)
def test_errors_name_the_file_and_the_line(tmp_path, name, content, message):
  (tmp_path / name).write_bytes(content)
  assert message in fails(tmp_path / name)
  assert 'does not exist' in fails(tmp_path / 'missing.tsv')


def test_a_missing_column_names_those_there_are():
  row = {'sentence': 'a', 'gold_label': '1'}
  assert column(row, 'sentence', 'a.tsv:2') == 'a'
  assert column(row, 'label|gold_label', 'a.tsv:2') == '1'
  assert column(row, 'gold_label|sentence', 'a.tsv:2') == '1'  # the first that is there
  with pytest.raises(InputError) as error:
    column(row, 'sentense', 'a.tsv:2')
  assert str(error.value) == (
    "a.tsv:2 has no column 'sentense', only 'sentence', 'gold_label' (did you mean 'sentence'?); "
    'name one of these'
  )


@pytest.mark.parametrize('first', ['sep=;\r\n', '\ufeffsep=;\r\n', '"SEP=;"\n'])
def test_the_first_line_of_excel_names_the_delimiter(tmp_path, first):
  (tmp_path / 'a.csv').write_bytes(f'{first}text,x;label\r\n"a;\r\nb";1\r\n\r\nc;2'.encode())
  rows, counts = read(tmp_path / 'a.csv')
  assert rows == [
    ('a.csv:3', {'text,x': 'a;\nb', 'label': '1'}),
    ('a.csv:6', {'text,x': 'c', 'label': '2'}),
  ]
  assert rows[0][1].header == 'a.csv:2' and counts["tables with ';' between their cells"] == 1
  (tmp_path / 'a.csv').write_text('sep=|\na;b|1\n')
  assert read(tmp_path / 'a.csv', columns=('x', 'y'))[0] == [('a.csv:2', {'x': 'a;b', 'y': '1'})]


def test_tfds_values_are_decoded_and_labels_named(tmp_path):
  tfds = pytest.importorskip('tensorflow_datasets')
  import numpy as np

  tfds.disable_progress_bar()

  class TinyPairs(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version('1.0.0')

    def _info(self):
      features = {
        'text': tfds.features.Text(),
        'label': tfds.features.ClassLabel(names=['no', 'yes']),
        'score': np.float32,
        'idx': np.int32,
        'tags': tfds.features.Sequence(tfds.features.Text()),
      }
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
      return {'train': self._generate_examples([1]), 'test': self._generate_examples([-1])}

    def _generate_examples(self, labels):
      for label in labels:
        yield label, {'text': 'é', 'label': label, 'score': 3.8, 'idx': 7, 'tags': ['ü', 'b']}

  TinyPairs(data_dir=tmp_path, file_format='array_record').download_and_prepare()
  rest = {'text': 'é', 'score': '3.8', 'idx': '7', 'tags': '["ü", "b"]'}
  rows, counts = read(f'tfds:{tmp_path}')
  assert rows == [('tiny_pairs/1.0.0:train:0', {'label': 'yes', **rest})]
  assert counts['records'] == 1
  assert read(f'tfds:{tmp_path}', split='test')[0][0][1] == {'label': '-1', **rest}
  assert read(f'tfds:{tmp_path}:test', split='train')[0] == read(f'tfds:{tmp_path}:test')[0]


@shared
@pytest.mark.parametrize(
  ('name', 'number', 'labels'),
  [
    ('SST-2/train.tsv', 67_349, {'0', '1'}),
    ('SST-2/dev.tsv', 872, {'0', '1'}),
    ('SST-2/test-labeled.tsv', 1_821, {'0', '1'}),
    ('RTE/dev.tsv', 277, {'entailment', 'not_entailment'}),
    ('RTE/train.tsv', 2_127, {'entailment', 'not_entailment'}),
    ('STS-B/train.tsv', 5_749, None),
    ('STS-B/dev.tsv', 1_500, None),
  ],
)
def test_published_numbers_of_rows(name, number, labels):
  rows, counts = read(SHARED / 'glue' / name)
  assert len(rows) == counts['records'] == number
  if labels:
    assert {column(row, 'label', where) for where, row in rows} == labels
  else:
    assert all(0 <= float(column(row, 'score', where)) <= 5 for where, row in rows)


@shared
def test_files_without_a_header_give_the_published_numbers():
  cola = ('source', 'label', 'mark', 'sentence')
  rte = ('index', 'sentence1', 'sentence2', 'label')
  train, _ = read(SHARED / 'glue/CoLA/train.tsv', columns=cola)
  validation, _ = read(SHARED / 'glue/CoLA/val.tsv', columns=cola)
  assert len(train) + len(validation) == 8_551
  assert len(read(SHARED / 'glue/RTE/val.tsv', columns=rte)[0]) + 2_127 == 2_490


@shared
def test_xcopa_jsonl():
  rows, _ = read(SHARED / 'xcopa/val.zh.jsonl')
  assert len(rows) == 100 and {row['label'] for _, row in rows} == {'0', '1'}
  assert (
    json.loads((SHARED / 'xcopa/val.zh.jsonl').read_text().splitlines()[0])['premise']
    == (rows[0][1]['premise'])
  )
