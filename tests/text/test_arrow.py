"""Parquet, Arrow and sets of Hugging Face give what the same records give as lines of JSON, in
parts of bounded size; what is damaged, or of another type, is one sentence."""

import csv
import io
import json
from collections import Counter
from datetime import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather, parquet
from refusal import refusal
from test_round_trips import ROUNDS
from test_tables import read

from bert_jax.errors import InputError
from bert_jax.text import arrow, files, frames, record_sources, tables
from bert_jax.text.documents import documents, portions

KINDS = '.parquet', '.arrow', '.stream.arrow', '.feather', 'hf:'
# A CSV has no other line end in a cell, nor what JSON writes for itself only.
CHARACTERS = st.characters(exclude_categories=('Cs', 'Cc'))
TEXT = st.text(CHARACTERS | st.sampled_from('"\',;\t|\\\n €é北'), min_size=1)
LISTS = st.lists(TEXT, max_size=3)
ANSWERS = st.tuples(LISTS, st.lists(st.integers(0, 9), max_size=3))
RECORD = st.tuples(
  st.integers(-(2**63), 2**63 - 1),
  TEXT | st.none(),
  st.booleans() | st.none(),
  st.floats(allow_nan=False, allow_infinity=False),
  LISTS | st.none(),
  st.lists(st.integers(-9, 9), max_size=3),
  ANSWERS.map(lambda x: dict(zip(('text', 'answer_start'), x, strict=True))),
).map(lambda x: dict(zip(SCHEMA.names, x, strict=True)))


def texts(spec, **options):
  counts = Counter()
  return [document.sentences for document in documents(str(spec), counts=counts, **options)], counts


def ipc(path, table, is_file, rows=None):
  with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(str(path), table.schema) as writer:
    writer.write_table(table, rows)


def written(folder, kind, records, schema=None, rows=2):
  """The spec of some records in one of KINDS, with `rows` in a row group."""
  table = records if isinstance(records, pa.Table) else pa.Table.from_pylist(records, schema)
  if kind == 'hf:':
    datasets = pytest.importorskip('datasets')
    datasets.disable_progress_bar()
    made = datasets.Dataset(table)
    made.save_to_disk(str(folder / 'saved'))
    return f'hf:{folder}/saved'
  path = folder / f'a{kind}'
  if kind == '.parquet':
    parquet.write_table(table, path, row_group_size=rows, write_page_checksum=True)
  elif kind == '.feather':
    feather.write_feather(table, path, chunksize=rows)
  else:
    ipc(path, table, kind == '.arrow', rows)
  return str(path)


def json_lines(path, records):
  lines = (json.dumps(x, ensure_ascii=False) + '\n' for x in records)
  path.write_text(''.join(lines), encoding='utf-8', newline='')
  return path


SCHEMA = pa.schema(
  {
    'id': pa.int64(),
    'text': pa.string(),
    'flag': pa.bool_(),
    'score': pa.float64(),
    'words': pa.list_(pa.large_string()),
    'counts': pa.large_list(pa.int16()),
    'answers': pa.struct({'text': pa.list_(pa.string()), 'answer_start': pa.list_(pa.int32())}),
  }
)


@pytest.mark.parametrize('kind', KINDS)
@ROUNDS
@given(st.lists(RECORD, min_size=1, max_size=5))
def test_records_of_every_format_are_the_same_rows(tmp_path_factory, kind, records):
  folder = tmp_path_factory.mktemp('rows')
  of_json, _ = read(json_lines(folder / 'a.jsonl', records))
  found, counts = read(written(folder, kind, records, SCHEMA))
  for i, ((_, row), (where, other)) in enumerate(zip(of_json, found, strict=True)):
    assert dict(row) == dict(other) and row.no_text == other.no_text
    assert where.endswith(f':{i}')
  assert counts['records'] == len(records) and counts['files'] == (kind != 'hf:')
  cells = io.StringIO(newline='')
  table = csv.writer(cells)
  table.writerows([SCHEMA.names, *([row.get(x, '') for x in SCHEMA.names] for _, row in found)])
  (folder / 'a.csv').write_text(cells.getvalue(), encoding='utf-8', newline='')
  of_csv, _ = read(folder / 'a.csv')
  for (_, row), (_, other) in zip(of_csv, found, strict=True):
    assert dict(row) == {x: other.get(x, '') for x in SCHEMA.names}


STORIES = [{'text': f'Line {i} of one.\nAnd of {"two " * i}.', 'more': {'n': i}} for i in range(23)]


@pytest.mark.parametrize('kind', KINDS)
def test_texts_of_every_format_are_the_same_documents(tmp_path, kind):
  wanted, _ = texts(json_lines(tmp_path / 'a.jsonl', STORIES))
  spec = written(tmp_path, kind, STORIES, rows=5)
  found, counts = texts(spec)
  assert found == wanted and [x.text for x in found] == [x.text for x in wanted]
  assert counts['documents'] == 23 and counts['bytes'] > sum(len(x.text) for x in wanted)
  names = [x.name for x in documents(spec, counts=Counter())]
  assert [name.rpartition(':')[2] for name in names] == [str(i) for i in range(23)]


@pytest.mark.parametrize('coded', [False, True])
@pytest.mark.parametrize('kind', KINDS)
def test_parts_are_the_same_rows_whatever_the_groups_are(tmp_path, kind, coded):
  """coded: with a dictionary, of which no part holds more than its own."""
  rng = np.random.default_rng(0)
  words = [' '.join(map(str, rng.integers(0, 10**9, rng.integers(1, 40)))) for _ in range(1000)]
  column = pa.array(words).dictionary_encode() if coded else pa.array(words)
  wide = pa.table({'text': column, 'unread': ['x' * 500] * 1000})
  for rows in (1000, 700, 37):
    (folder := tmp_path / f'{rows}').mkdir()
    spec = written(folder, kind, wide if kind != 'hf:' else rechunked(wide, rows), rows=rows)
    parts, found = list(portions(spec, split='train')), []
    assert [x.position for x in parts] == sorted(x.position for x in parts)
    for part in parts:
      assert len(part.data) < 2 * arrow.ROWS / 1000 * sum(map(len, words)) + 4000
      assert part.first == len(found)
      found += [row for _, row in record_sources.rows(part, Counter())]
    assert found == [{'text': x} for x in words]


def rechunked(table, rows):
  return pa.concat_tables(table.slice(i, rows) for i in range(0, len(table), rows))


CLASSES = {'names': ['no', 'yes', 'two'], '_type': 'ClassLabel'}
FEATURES = {
  'label': CLASSES,
  'tags': {'feature': CLASSES, '_type': 'List'},
  'old': [CLASSES],
  'pairs': {'feature': {'tag': CLASSES, 'n': {'dtype': 'int64', '_type': 'Value'}}},
  'n': {'dtype': 'int64', '_type': 'Value'},
}


def labelled(features=FEATURES):
  about = json.dumps({'info': {'features': features}})
  row = {'label': 1, 'tags': [0, 2], 'old': [1], 'pairs': {'tag': [2, 0], 'n': [1, 0]}, 'n': 1}
  table = pa.Table.from_pylist([row, row | {'label': -1, 'tags': []}, row | {'label': None}])
  return table.replace_schema_metadata({'huggingface': about})


@pytest.mark.parametrize('kind', KINDS[:-1])
def test_numbers_of_classes_become_their_names(tmp_path, kind):
  (one, other, none), _ = read(written(tmp_path, kind, labelled()))
  assert one[1] == {
    'label': 'yes',
    'tags': '["no", "two"]',
    'old': '["yes"]',
    'pairs': '{"tag": ["two", "no"], "n": [1, 0]}',
    'n': '1',
    'pairs.tag': '["two", "no"]',
    'pairs.n': '[1, 0]',
  }
  assert other[1].no_text['label'] == none[1].no_text['label'] == 'null'
  assert other[1]['tags'] == '[]'


def test_values_that_json_does_not_have(tmp_path):
  """Narrow numbers, bytes, dates, dictionaries: alone and inside others."""
  narrow = pa.array([3.8, 1e-5, None, 0.1], pa.float32())
  columns = {
    'narrow': narrow,
    'bytes': pa.array(['é'.encode(), b'caf\xe9', b'', b'\xff']),
    'coded': pa.array(['a', 'b', None, 'c']).dictionary_encode(),
    'day': pa.array([0, 1, 400, None], pa.date32()),
    'narrows': pa.ListArray.from_arrays([0, 0, 1, 3, 4], narrow),
    'more': pa.array([{'en': b'one'}, {'en': None}, {'en': b'three'}, None]),
  }
  for kind in ('.parquet', '.arrow'):
    rows, counts = read(written(tmp_path, kind, pa.table(columns)))
    column = lambda name, rows=rows: [row.get(name) for _, row in rows]
    assert column('narrow') == ['3.8', '1e-05', None, '0.1']
    assert column('bytes') == ['é', 'caf\ufffd', '', '\ufffd']
    assert column('coded') == ['a', 'b', None, 'c']
    assert column('day') == ['1970-01-01', '1970-01-02', '1971-02-05', None]
    assert column('narrows') == ['[]', '[3.8]', '[1e-05, null]', '[0.1]']
    assert column('more.en') == ['one', None, 'three', None]
    assert counts['invalid_utf8_lines'] == 2


TYPED = {  # {type: (values, the text of each)}
  pa.bool_(): ([True, None, False], ['true', None, 'false']),
  pa.decimal128(7, 2): ([Decimal('1.50'), Decimal('-2.00'), None], ['1.50', '-2.00', None]),
  pa.timestamp('us'): (
    [datetime(2020, 1, 2, 1), datetime(2021, 3, 4, 5, 6, 7, 8), None],
    ['2020-01-02 01:00:00', '2021-03-04 05:06:07.000008', None],
  ),
  pa.uint64(): ([2**64 - 1, 0, 7], [str(2**64 - 1), '0', '7']),
}


@pytest.mark.parametrize('kind', TYPED, ids=str)
def test_labels_of_every_type_are_the_same_text_in_files_and_in_memory(tmp_path, kind):
  values, wanted = TYPED[kind]
  table = pa.table({'text': ['x', 'y', 'z'], 'a.label': pa.array(values, kind)})
  lines = (json.dumps({'a.label': x}, default=str) + '\n' for x in values)
  (tmp_path / 'a.jsonl').write_text(''.join(lines))
  found = [read(written(tmp_path, x, table))[0] for x in ('.arrow', '.stream.arrow')]
  if kind != pa.string_view():  # which Parquet has not
    found.append(read(written(tmp_path, '.parquet', table))[0])
  found += [[('', tables.row_of(row)) for row in frames.records(table, 'train')]]
  for rows in (read(tmp_path / 'a.jsonl')[0], *found):
    assert [row.get('a.label') for _, row in rows] == wanted


def test_a_value_that_python_has_no_form_for_is_one_sentence(tmp_path):
  when = pa.array([7, 2**60]).cast(pa.timestamp('us'), safe=False)
  table = pa.table({'text': ['a', 'b'], 'when': when})
  assert 'a.arrow holds a value' in refusal(read, written(tmp_path, '.arrow', table))


@pytest.mark.parametrize('kind', KINDS[:-1])
@pytest.mark.parametrize('share', [0.0, 0.3, 0.6, 0.97, 1])
def test_a_file_that_is_cut_short(tmp_path, kind, share):
  path = written(tmp_path, kind, STORIES, rows=3)
  with open(path, 'rb+') as file:
    size = file.seek(0, 2)
    file.truncate(int(share * size) - (share == 1))
  for function in (read, texts, lambda path: next(record_sources.portions(path, 'train'))):
    said = refusal(function, path)
    assert 'is broken or truncated' in said and said.endswith('fetch it again'), said


def test_a_stream_that_is_cut_between_its_messages_loses_nothing_unsaid(tmp_path):
  path = tmp_path / 'a.arrow'
  ipc(path, pa.Table.from_pylist(STORIES), False, 3)
  data = path.read_bytes()
  path.write_bytes(data[: -len(arrow.END)])
  assert pa.ipc.open_stream(path.read_bytes()).read_all().num_rows == 23  # pyarrow is content
  assert 'its end is missing' in refusal(read, path)


def test_a_flipped_bit_in_a_page(tmp_path):
  path, table = tmp_path / 'a.parquet', pa.Table.from_pylist(STORIES)
  parquet.write_table(table, path, write_page_checksum=True, compression='none')
  data = bytearray(path.read_bytes())
  data[data.index(b'Line 7')] ^= 1
  path.write_bytes(data)
  assert 'broken' in refusal(read, path)


@pytest.mark.parametrize('kind', ['.arrow', '.feather'])
def test_a_flipped_bit_of_an_arrow_file_does_not_end_the_process(tmp_path, kind):
  """Of values it cannot be seen; of offsets and lengths it is a sentence."""
  table = pa.Table.from_pylist([x | {'tags': ['a', x['text']]} for x in STORIES])
  table = table.append_column('kind', pa.array(['u', 'v'] * 11 + ['u']).dictionary_encode())
  path, rng, told = tmp_path / f'a{kind}', np.random.default_rng(2), 0
  if kind == '.feather':
    feather.write_feather(table, path, compression='uncompressed')
  else:
    ipc(path, table, True, 10)
  whole = path.read_bytes()
  for place, bit in zip(rng.integers(0, len(whole), 300), rng.integers(0, 8, 300)):
    data = bytearray(whole)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    try:
      assert len(read(path)[0]) <= len(STORIES)
    except InputError:
      told += 1
  assert told > 20


def test_what_is_no_table_of_texts_is_one_sentence(tmp_path):
  path = tmp_path / 'a.parquet'
  parquet.write_table(pa.table({'n': [1, 2], 'text': [7, 8]}), path)
  assert "a.parquet:0: field 'text' holds 7, not text" in refusal(texts, path)
  parquet.write_table(pa.table({'text': ['a', None, 'b', None]}), path)
  found, counts = texts(path, skip=True)
  assert (len(found), counts['left_out_records']) == (2, 2)
  parquet.write_table(pa.table([['a'], ['b']], names=['text', 'text']), path)
  assert "several columns 'text'" in refusal(read, path)
  parquet.write_table(pa.table({'text': pa.array([], pa.string())}), path)
  assert 'has no rows' in refusal(read, path)
  assert 'is a table, and lines are' in refusal(lambda: next(files.raw_lines(path)))


def test_a_folder_with_tables_is_its_tables(tmp_path, caplog):
  (tmp_path / 'README.md').write_text('# A data set\n')
  for name in ('train-00000-of-00002', 'train-00001-of-00002', 'validation-00000-of-00002'):
    parquet.write_table(pa.table({'text': [name]}), tmp_path / f'{name}.parquet')
  assert len(texts(tmp_path)[0]) == 3
  assert [row['text'][:5] for _, row in read(tmp_path)[0]] == ['train', 'train']
  second = tmp_path / 'validation-00001-of-00002.parquet'
  parquet.write_table(pa.table({'text': ['x']}), second)
  assert len(read(tmp_path, split='validation')[0]) == 2  # shards of one set
  (tmp_path / 'more.txt').write_text('one\n')
  assert 'holds texts beside ' in refusal(texts, tmp_path) and texts(f'{tmp_path}/*.txt')[0]


SAVED = {'train': [{'text': 'a', 'n': 1}, {'text': 'b', 'n': 2}], 'dev': [{'text': 'c', 'n': 3}]}


def test_a_set_of_hugging_face_by_name(tmp_path):
  datasets = pytest.importorskip('datasets')
  datasets.disable_progress_bar()
  of = {name: datasets.Dataset.from_list(rows) for name, rows in SAVED.items()}
  saved = tmp_path / 'saved'
  datasets.DatasetDict(of).save_to_disk(str(saved))
  spec = f'hf:{saved}'
  assert [where for where, _ in read(spec)[0]] == ['saved:train:0', 'saved:train:1']
  assert [dict(row) for _, row in read(spec, split='validation')[0]] == [{'text': 'c', 'n': '3'}]
  assert texts(f'{spec}:dev')[0] == [['c']] and texts(spec)[0] == [['a'], ['b']]
  assert "has no split test, only 'train', 'dev'" in refusal(read, f'{spec}:test')
  assert f'write hf:{saved}' in refusal(read, saved)
  assert 'cannot be opened' in refusal(read, f'hf:{tmp_path}/none')
  before = arrow.hf_set(spec, 'train')[2]
  datasets.Dataset.from_list(SAVED['dev']).save_to_disk(str(saved / 'train'))
  assert [dict(row) for _, row in read(spec)[0]] == [{'text': 'c', 'n': '3'}], 'not the old ones'
  assert arrow.hf_set(spec, 'train')[2] != before


@pytest.mark.parametrize('entry', ['{"info": ', '{"info": 3}'])
def test_a_damaged_entry_of_a_schema_is_a_sentence(entry):
  schema = pa.schema([('text', pa.string())], metadata={'huggingface': entry})
  with pytest.raises(InputError, match='huggingface entry'):
    arrow._features(schema)
