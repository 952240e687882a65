"""Files that are not UTF-8 with LF: what Excel, old Macs and other languages write."""

import gzip
from collections import Counter

import pytest

from bert_jax.text import encodings, files

TEXTS = {
  'cp1252': 'Grüße aus Köln\nEs kostet 5 €, „wie immer“\nLe café fermé à Noël, où ça ?\nplain\n',
  'mac_roman': 'Grüße aus Köln\nÄrger über Öl – „so“\nplain\n',
  'cp1250': 'Zażółć gęślą jaźń\nplain\nŁódź się cieszy\n',
  'cp1254': 'Işık söndü, ağaç büyüdü\nplain\nŞehir çok güzel\n',
  'cp1251': 'Паром уходит в девять\nplain\nЧайки ждут на берегу\n',
  'cp1253': 'Το πλοίο φεύγει στις εννέα\nplain\n',
  'gb18030': '渡船九点开\n海鸥在岸上等\nplain\n',
  'cp932': 'フェリーは九時に出ます\nカモメは岸で待つ\nplain\n',
  'cp949': '배는 아홉 시에 떠난다\nplain\n갈매기가 기다린다\n',
  'utf-16': 'Grüße\nвсем\nplain\n',
  'utf-32': 'Grüße\nвсем\n',
  'utf-8-sig': 'Grüße\nвсем\n',
}


def lines_of(path):
  return [line for _, line in files.lines(path, Counter())]


@pytest.mark.parametrize('encoding', TEXTS)
@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_a_file_is_read_in_its_encoding_with_any_line_ends(tmp_path, caplog, encoding, end):
  """Also behind more ASCII than a reader looks ahead, and compressed."""
  lines = TEXTS[encoding].splitlines()
  data = end.join([*lines, '']).encode(encoding)
  (tmp_path / 'a.txt').write_bytes(data)
  assert lines_of(tmp_path / 'a.txt') == lines
  assert (encoding == 'utf-8-sig') == ('is not UTF-8' not in caplog.text)
  assert (end == '\r') <= ('CR alone' in caplog.text or encoding in ('utf-16', 'utf-32'))
  (tmp_path / 'b.csv.gz').write_bytes(gzip.compress(data))
  assert lines_of(tmp_path / 'b.csv.gz') == lines
  if encoding not in ('utf-16', 'utf-32', 'utf-8-sig'):
    before = ['x' * 99] * 1000
    (tmp_path / 'c.txt').write_bytes('\n'.join([*before, *lines]).encode(encoding))
    assert lines_of(tmp_path / 'c.txt') == [*before, *lines]


def test_a_few_bad_bytes_do_not_make_another_encoding(tmp_path, caplog):
  (tmp_path / 'a.txt').write_bytes('Grüße aus Köln\n'.encode() + b'caf\xff\n' + b'K\xc3\xb6ln\n')
  assert lines_of(tmp_path / 'a.txt') == ['Grüße aus Köln', 'caf\ufffd', 'Köln']
  assert 'is not valid UTF-8' in caplog.text and 'is read as' not in caplog.text


def test_what_is_read_does_not_depend_on_where_the_reader_looks(tmp_path):
  """The encoding is that of the file, whichever line shows it; each line is decoded alone."""
  text = TEXTS['cp1252'].encode('cp1252')
  recoded = encodings.recoder('x')
  parts = [recoded(line, lambda: text) for line in text.splitlines(keepends=True)]
  assert b''.join(parts).decode() == TEXTS['cp1252']
