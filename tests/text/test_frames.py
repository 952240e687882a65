"""Rows in memory become the rows of a table, whichever library holds them, or one sentence."""

import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from refusal import refused

from bert_jax.text import frames

ROWS = [{'text': 'a b', 'n': 3}, {'text': None, 'n': 4, 'tags': ['x', 'y']}, {'text': 'c'}]
WHOLE = [{'text': None, 'n': None, 'tags': None} | row for row in ROWS]


class Frame:
  """A DataFrame of a library that nobody knows."""

  def __init__(self, columns):
    self.table = pa.table(columns)
    self.columns = self.table.column_names

  def __getitem__(self, name):
    return self.table[name]

  def __arrow_c_stream__(self, requested_schema=None):
    return self.table.__arrow_c_stream__(requested_schema)


def test_rows_keep_every_column_of_every_row():
  table = frames.table_of((row for row in ROWS), 'train')
  assert table.to_pylist() == WHOLE and table.column_names == ['text', 'n', 'tags']
  texts = frames.table_of(['a b', {'text': 'c', 'n': 1}], 'train')
  assert texts.to_pylist() == [{'text': 'a b', 'n': None}, {'text': 'c', 'n': 1}]


def test_a_frame_of_any_library_is_read_and_made_again(monkeypatch):
  monkeypatch.setitem(sys.modules, 'pandas', None)  # as where it is not installed
  frame = Frame({'text': ['a', None], 'n': [1, 2]})
  assert frames.is_frame(frame) and not frames.is_frame(ROWS)
  assert frames.records(frame, 'x') == [{'text': 'a', 'n': 1}, {'text': None, 'n': 2}]
  made = frames.beside(frame, [{'label': 'y'}, {'error': 'empty'}])
  wanted = {'text': ['a', None], 'n': [1, 2], 'label': ['y', None], 'error': [None, 'empty']}
  assert type(made) is Frame and made.table.to_pydict() == wanted
  table = frames.beside(frame.table, [{'label': 'y'}] * 2)
  assert isinstance(table, pa.Table) and table['n'].to_pylist() == [1, 2]


def test_categories_are_their_names():
  names = pa.DictionaryArray.from_arrays([1, None, 0], pa.array(['u', 'v'], pa.string_view()))
  polars, pandas = Frame({'kind': names}), pd.DataFrame({'kind': pd.Categorical([4, None, 3])})
  for frame, kinds in (polars, ['v', None, 'u']), (pandas, [4, None, 3]):
    assert [row['kind'] for row in frames.records(frame, 'x')] == kinds
    assert frames.parquet(frames.table_of(frame, 'x'))


def test_a_frame_of_pandas_is_read_as_it_is_meant_and_keeps_its_index():
  frame = pd.DataFrame(WHOLE, index=[7, 3, 5])
  frame['kind'] = pd.Categorical(['u', 'v', 'u'])
  frame['score'] = np.array([0.5, np.nan, 3.8], np.float32)
  first, second, third = frames.records(frame, 'x')
  assert (first['kind'], first['score'], first['text']) == ('u', 0.5, 'a b')
  assert second['text'] is None and second['score'] is None and second['tags'] == ['x', 'y']
  assert third['score'] == 3.8
  made = frames.beside(frame, [{'vector': np.ones(2)}] * 3)
  assert list(made.index) == [7, 3, 5] and made['vector'][3].tolist() == [1, 1]
  table = frames.table_of(frame, 'x')
  assert 'pandas' not in str(table.schema.metadata)
  assert table.column_names == list(frame.columns)  # without the index


def test_classes_of_a_data_set_keep_their_names():
  datasets = pytest.importorskip('datasets')
  names = datasets.ClassLabel(names=['neg', 'pos'])
  about = datasets.Features({'text': datasets.Value('string'), 'label': names})
  held = datasets.Dataset.from_dict({'text': ['a', 'b', 'c'], 'label': [0, 1, -1]}, features=about)
  chosen = frames.table_of(held.select([2, 0]), 'train')
  read = pa.parquet.read_table(pa.BufferReader(frames.parquet(chosen)))
  rows = frames.records(read, 'x')
  assert rows == [{'text': 'c', 'label': None}, {'text': 'a', 'label': 'neg'}]


def test_what_is_missing_in_a_list_is_null():
  rows = [{'text': 'a', 'n': float('nan')}, {'text': 'b', 'n': 'w'}, {'text': None, 'n': pd.NA}]
  assert [x['n'] for x in frames.records(frames.table_of(rows, 'x'), 'x')] == [None, 'w', None]


@pytest.mark.parametrize('values, texts', [
  (['a', 3, None, 'b'], ['a', '3', None, 'b']),
  ([1, 2, 'x', pd.NA, 4.0], ['1', '2', 'x', None, '4']),
  ([1, float('nan'), 3.5, 'x', np.int64(7)], ['1', None, '3.5', 'x', '7']),
  ([True, 'no', pd.Timestamp('2026-11-30')], ['true', 'no', '2026-11-30']),
])  # fmt: skip
def test_values_of_several_types_are_texts(values, texts):
  frame = pd.DataFrame({'n': range(len(values)), 7: values})
  assert [row['7'] for row in frames.records(frame, 'x')] == texts
  table = frames.table_of([{'7': x} for x in values], 'train')
  assert table.to_pydict() == {'7': texts}


@pytest.mark.parametrize('odd', [['x'], {'x': 1}, b'x'])
def test_what_is_no_cell_of_a_table_is_no_text(odd):
  with refused('train cannot be a table'):
    frames.table_of([{'t': 'a'}, {'t': odd}, {'t': 4}], 'train')


def test_a_checksum_is_that_of_the_rows():
  """Of what they say, not of the library or of how the columns are held."""
  of = lambda rows: frames.digest(frames.table_of(rows, 'x'))
  rows = [{'text': 'a', 'n': 1.5}, {'text': 'b', 'n': float('nan')}]
  parts = pa.concat_tables(pa.table({'text': [x], 'n': [y]}) for x, y in (('a', 1.5), ('b', 2.5)))
  plain = pa.table({'text': pa.array(['a', 'b'], pa.large_string()), 'n': [1.5, 2.5]})
  assert of(parts) == of(plain) == of(pd.DataFrame({'text': ['a', 'b'], 'n': [1.5, 2.5]}))
  assert of(rows) == of(rows) and of(plain.to_pydict()) == of(plain)
  others = rows[::-1], rows[:1], [rows[0], {'text': 'b', 'n': 0.5}]
  assert len({of(x) for x in (rows, plain, *others, parts.rename_columns(['t', 'n']))}) == 6


@pytest.mark.parametrize('make', [
  lambda: [7],
  lambda: [{'n': 1}, {'n': ['x']}],
  lambda: [('a', 'x')],
  lambda: {'n': 7},
  lambda: 7,
  lambda: [{'n': 'a\ud800'}],
  lambda: pd.DataFrame({'n': ['a', {'b': 3}]}),
  lambda: pd.DataFrame([[1, 2]], columns=['n', 'n']),
])  # fmt: skip
def test_what_is_no_table_is_one_sentence(make):
  with refused('train cannot be a table .*give a DataFrame, .* a list of texts or of dicts'):
    frames.table_of(make(), 'train')
