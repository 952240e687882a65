"""Labelled records: the public formats read as they are, and every error a line can cause."""

import csv
import functools
import gzip
from collections import Counter

import pytest
from refusal import refusal, refused

from bert_jax.files import Path
from bert_jax.text import delimited, files, tables
from bert_jax.text.tables import Row, column, records


def read(spec, **options):
  counts = Counter()
  return list(records(str(spec), counts=counts, **options)), counts


fails = functools.partial(refusal, read)


INDEXED = 'index', 'sentence', 'label'
GLUE = '\ufeffsentence\tlabel\r\nhe said "no\t1\r\n\r\n a \t\r\n"q"\t0'
RFC = 'sentence,label\r\n"a, ""b""\r\nc",1\r\n\r\nd,2\r\n'
JSONL = '{"sentence": "é", "label": 3.8, "z": null}\n\n{"sentence": ["é"], "label": true}\n'
LONG = 'word ' * 40_000


@pytest.mark.parametrize(
  'name, columns, content, expected',
  [
    ('a.tsv', (), GLUE, {2: 'he said "no|1', 4: ' a |', 5: '"q"|0'}),
    ('a.tsv', INDEXED, '0\tThe sailors.\t1\n', {1: 'The sailors.|1'}),
    ('a.tsv', INDEXED, '0\tThe sailors.\n1\tThe\n', {1: 'The sailors.', 2: 'The'}),
    ('a.tsv', INDEXED, 'label\tindex\tsentence\n1\t0\tThe\n', {2: 'The|1'}),
    ('a.csv', (), RFC, {2: 'a, "b"\nc|1', 5: 'd|2'}),
    ('a.jsonl', (), JSONL, {1: 'é|3.8', 3: '["é"]|true'}),
    ('a.ndjson', (), JSONL, {1: 'é|3.8', 3: '["é"]|true'}),
    ('a.csv', (), f'sentence,label\n"{LONG}",1\n', {2: f'{LONG}|1'}),
  ],
)
def test_formats(tmp_path, name, columns, content, expected):
  """expected: {line: 'sentence|label'}; without a header a test set may lack its label."""
  (tmp_path / name).write_bytes(content.encode())
  rows, counts = read(tmp_path / name, columns=columns)
  shown = lambda row: '|'.join(row[x] for x in ('sentence', 'label') if x in row)
  expected = {f'{name}:{line}': cells for line, cells in expected.items()}
  assert {where: shown(row) for where, row in rows} == expected
  assert 'z' not in rows[0][1] and (counts['records'], counts['files']) == (len(rows), 1)
  assert counts['blank_lines'] == (content in (GLUE, RFC, JSONL))


def test_a_folder_gives_each_split_its_files_and_several_specs_follow_one_another(tmp_path):
  names = 'interval.tsv', 'training.tsv', 'x-val-de.tsv', 'x-val-fr.tsv', 'x_TRAIN.tsv'
  for name in names:
    (tmp_path / name).write_text('x\n1\n')
  places = lambda *given, **own: [where for where, _ in read(*given, **own)[0]]
  assert places(tmp_path) == ['x_TRAIN.tsv:2']
  said = fails(tmp_path, split='validation')
  assert 'holds 2 files for val, x-val-de.tsv and x-val-fr.tsv' in said
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


def test_folders_with_an_equals_sign_are_no_languages(tmp_path, monkeypatch):
  """As Hive and Spark partition tables; but what names no file is a language and its spec."""
  monkeypatch.chdir(tmp_path)
  for year in (2020, 2021):
    (tmp_path / f'year={year}').mkdir()
    (tmp_path / f'year={year}' / 'a.txt').write_text('x\n')
  for spec in ('year=2020/*.txt', 'year=*/a.txt', 'year=2020', 'year=2020/a.txt', 'year=20*/**'):
    assert files.parts(spec) == [('', spec)]
  assert files.parts('year=2020/*.md') == [('', 'year=2020/*.md')]
  assert files.parts('year=*.txt') == [('year', '*.txt')]
  assert files.parts('a=x/*.txt,b-c=y') == [('a', 'x/*.txt'), ('b-c', 'y')]


def test_a_folder_that_exists_is_no_pattern(tmp_path):
  for folder in ('my [v2]', 'my v', '*'):
    (tmp_path / folder / 'b').mkdir(parents=True)
    for name in ('b/a.txt', 'c.md'):
      (tmp_path / folder / name).write_text('x\n')
  for folder in ('my [v2]', '*'):
    for pattern, name in {'*/*.txt': 'b/a.txt', '**/*.txt': 'b/a.txt', '[c].md': 'c.md'}.items():
      spec = f'{tmp_path}/{folder}/{pattern}'
      assert files.expand(spec) == [tmp_path / folder / name]
  assert len(files.expand(f'{tmp_path}/my*/*.md')) == 2


def test_gzip_globs_and_invalid_utf8(tmp_path):
  (tmp_path / 'b.tsv.gz').write_bytes(gzip.compress(b'x\ty\n1\tcaf\xc3\xa9 caf\xe9\n'))
  (tmp_path / 'a.jsonl').write_text('{"x": "0"}\n')
  rows, counts = read(f'{tmp_path}/*')
  assert rows == [('a.jsonl:1', {'x': '0'}), ('b.tsv.gz:2', {'x': '1', 'y': 'café caf\ufffd'})]
  assert (counts['files'], counts['records'], counts['invalid_utf8_lines']) == (2, 2, 1)


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    ('a.tsv', b'x\ty\n1\t2\n1\t2\t3\n', "a.tsv:3: 3 columns where 2 are expected ('x', 'y')"),
    ('a.csv', b'x,y\n1,2\n3,"4\n5,6\n', 'a.csv:3 is not CSV'),
    ('a.jsonl', b'{"x": 1}\n{"x": \n', 'a.jsonl:2: not JSON'),
    ('a.jsonl', b'{"x": ' + b'[' * 200_000, 'a.jsonl:1: not JSON'),
    ('a.jsonl', b'{"x": ' + b'1' * 5_000 + b'}', 'a.jsonl:1: not JSON'),
    ('a.jsonl', b'[1, 2]\n', 'a.jsonl:1: a JSON list; write one JSON object per line'),
    ('a.tsv', b'y\tx\tx\n1\t2\t3\n', "no header, since 'x' stands there twice: 'y', 'x', 'x'; ren"),
    ('a.tsv', b'x\ty\n', 'holds no records, at most a header'),
    ('a.tsv', b'', 'a.tsv is empty; remove it'),
    ('a.xlsx', b'PK', 'a.xlsx is no table by its name; save a sheet as CSV'),
    ('a.csv', b'x\ty\0', 'a.csv is not text: line 1 has a NUL byte'),
    ('a.csv', b'PK\3\4\x14\0\6', 'a.csv is packed, as .zip'),
  ],
)
def test_errors_name_the_file_and_the_line(tmp_path, name, content, message):
  (tmp_path / name).write_bytes(content)
  assert message in fails(tmp_path / name)
  assert 'does not exist' in fails(tmp_path / 'missing.tsv')


def test_a_missing_column_names_those_there_are():
  row = Row(sentence='a', gold_label='1', __index_level_0__='7')  # as pandas writes an index
  assert column(row, 'sentence', 'a.tsv:2') == 'a'
  assert column(row, 'label|gold_label', 'a.tsv:2') == '1'
  assert column(row, 'gold_label|sentence', 'a.tsv:2') == '1'  # the first that is there
  said = refusal(column, row, 'sentense', 'a.tsv:2')
  known = "only 'sentence', 'gold_label' (did you mean 'sentence'?); name one of these"
  assert said == f"a.tsv:2 has no column 'sentense', {known}"


QUOTED = [['text', 'label'], ['a "b"\tc\nd', 'x'], ['plain', 'y "z"'], ['"', '']]


@pytest.mark.parametrize('quoting', [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_a_tsv_of_pandas_or_excel_has_quotes_and_glues_has_none(tmp_path, quoting):
  with open(tmp_path / 'a.tsv', 'w', newline='') as file:
    csv.writer(file, delimiter='\t', quoting=quoting).writerows(QUOTED)
  rows, _ = read(tmp_path / 'a.tsv')
  assert [list(row.values()) for _, row in rows] == QUOTED[1:]
  # A quote that is a word of its own, twice; sentences in quotes; one that is opened only.
  for text in '"\tO\nd\tO\n"\tO', '"one."\t1\n"two"\t0', '"one\t1\n"a" b\t0':
    (tmp_path / 'b.tsv').write_text(f'text\tlabel\n{text}\n')
    rows, _ = read(tmp_path / 'b.tsv')
    assert ['\t'.join(row.values()) for _, row in rows] == text.split('\n')


@pytest.mark.parametrize('lines', [0, 1500])
def test_the_first_quote_of_a_tsv_may_come_late(tmp_path, lines):
  path, plain = tmp_path / 'a.tsv', ''.join(f'text {i}\t0\n' for i in range(lines))
  path.write_text(f'text\tlabel\n{plain}"a ""b"" c"\t1\n"c\nd"\t0\n')
  rows, _ = read(path)
  assert [row['text'] for _, row in rows[lines:]] == ['a "b" c', 'c\nd']
  assert rows[-1][0] == f'a.tsv:{lines + 3}'
  path.write_text(f'one\ttwo\n{plain}"a."\t"b."\n')  # two sentences in quotes
  assert list(read(path)[0][-1][1].values()) == ['"a."', '"b."']


@pytest.mark.parametrize('lines', [700, 701])
def test_a_quoted_cell_may_go_on_behind_the_first_lines_of_a_tsv(tmp_path, lines):
  (tmp_path / 'a.tsv').write_text(
    'text\tlabel\n' + 'no\t1\n' * (lines % 2) + '"one\ntwo"\t0\n' * lines
  )
  rows, _ = read(tmp_path / 'a.tsv')
  assert len(rows) == lines + lines % 2 and rows[-1][1]['text'] == 'one\ntwo'
  (tmp_path / 'b.tsv').write_text('text\tlabel\n"one\t1\n' + 'two\t0\n' * 1500)  # never ends
  assert read(tmp_path / 'b.tsv')[0][0][1] == {'text': '"one', 'label': '1'}


def test_excel_quotes_cells_with_a_comma(tmp_path):
  path = tmp_path / 'a.tsv'
  path.write_text('text\tlabel\n"Hello, world"\t1\nplain\t0\n"one, two"\t1\n')
  assert [row['text'] for _, row in read(path)[0]] == ['Hello, world', 'plain', 'one, two']
  path.write_text('text\tlabel\n"Hello, world"\t1\nno, not so\t0\n')
  assert [row['text'] for _, row in read(path)[0]] == ['"Hello, world"', 'no, not so']


def test_empty_rows_and_columns_without_a_name_are_left_out(tmp_path):
  """As Excel adds them; a row of values must not be wider than the header."""
  path = tmp_path / 'a.csv'
  path.write_text('text;;label;;\none;7;x;;\n;;;\n ; ;;\ntwo;;\n')
  rows, counts = read(path)
  said = {'a.csv:2': {'text': 'one', 'label': 'x'}, 'a.csv:5': {'text': 'two', 'label': ''}}
  assert dict(rows) == said
  assert counts['blank_lines'] == 2 and counts['columns without a name (left out)'] == 3
  path.write_text('text;label;;\none;x;;\ntwo;y;;z\n')
  assert 'a.csv:3: 4 columns where 2 are expected' in fails(path)
  path.write_text('one,x,,\n')  # no header, and cells behind it
  assert read(path, columns=('text', 'label'))[0] == [('a.csv:1', {'text': 'one', 'label': 'x'})]


def test_what_is_no_text_in_json_is_named(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"a": null, "b": ["x"], "c": {"d": 1}, "e": 2}\n')
  ((where, row),) = read(path)[0]
  for name, what in {'b': 'a list', 'c': 'an object', 'z|b': 'a list'}.items():
    with refused(f'a.jsonl:1 has {what} in column'):
      column(row, name, where)
  assert column(row, 'e', where) == '2' and row['b'] == '["x"]'
  assert column(row, 'a', where) == ''  # as of an empty cell
  assert column(row, 'a|e', where) == '2'  # a null in the first spelling


@pytest.mark.parametrize(
  'name, columns, header, delimiter',
  [
    ('a.csv', (), 'text;label', ';'),
    ('a.csv', (), 'id;place, date;text;team', ';'),
    ('a.csv', (), 'text,"one of (a; b; c)"', ','),
    ('a.csv', ('text', 'mark'), '"text";label', ';'),
    ('a.csv', ('words', 'mark'), 'text;label', ','),
    ('a.csv', ('words',), 'The crew; all, of; them', ','),
    ('a.csv', (), 'text', ','),
    ('a.tsv', (), 'text,label|more,than', ','),
    ('a.tsv', (), 'first, second\tlabel', '\t'),
  ],
)
def test_the_first_line_shows_the_delimiter(name, columns, header, delimiter):
  """The mark that it has most of, unless columns are named and none of them stands there."""
  lines, counts = iter([(1, ' '), (2, header), (3, 'x')]), Counter()
  usual = tables._DELIMITERS[name[1:]]
  found, _ = delimited.cells(Path(name), usual, lines, columns, counts)
  assert found == delimiter and bool(counts) == (found != usual)
