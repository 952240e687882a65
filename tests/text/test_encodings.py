"""Files that are not UTF-8 with LF: what is read, what is refused, and where the line is drawn."""

import gzip
import re
from collections import Counter

import pytest
from refusal import refusal, refused

from bert_jax.text import files

TEXTS = {
  'cp1252': ['Grüße aus Köln', 'Es kostet 5 €, „wie immer“', 'Le café fermé à Noël'],
  'cp437': ['Größe', 'ñandú'],
  'cp1251': ['Паром уходит в девять'],
  'gb18030': ['毛猫', '没帽'],  # whose bytes are valid UTF-8
  'cp932': ['フェリーは九時に出ます'],
  'iso2022_jp': ['フェリーは', '九時に出ます'],  # whose bytes are ASCII
  'utf-16-le': ['Паром', 'Ċittà'],  # whose first letter has the byte of a line end
  'cp037': ['plain', 'déjà'],
  'utf-16': ['Grüße', 'всем'],
  'utf-32': ['Grüße', 'всем'],
  'utf-8-sig': ['Grüße', 'всем'],
  'utf-8': ['Grüße', 'всем'],
}
MARKED = 'utf-16', 'utf-32', 'utf-8-sig', 'utf-8'  # which need no name


def lines_of(path, encoding='', counts=None):
  read = files.lines(path, Counter() if counts is None else counts, encoding)
  return [line for _, line in read]


@pytest.mark.parametrize('encoding', TEXTS)
@pytest.mark.parametrize('end', ['\n', '\r\n'])
def test_a_file_is_read_in_its_encoding(tmp_path, encoding, end):
  """The one of its mark or that is named; and behind more ASCII than is looked at, compressed."""
  name, counts = '' if encoding in MARKED else encoding, Counter()
  for lines in TEXTS[encoding], ['x' * 99] * 1000 + TEXTS[encoding]:
    data = end.join([*lines, '']).encode(encoding)
    (tmp_path / 'a.txt').write_bytes(data)
    (tmp_path / 'b.csv.gz').write_bytes(gzip.compress(data))
    for file in 'a.txt', 'b.csv.gz':
      assert lines_of(tmp_path / file, name, counts) == lines
  assert not counts['invalid_utf8_lines']


def test_a_file_that_is_no_utf8_is_refused_with_a_proposal(tmp_path):
  for encoding, text, proposed in (
    ('cp1252', 'Grüße aus Köln\n' * 9, 'cp1252'),  # cp1250 has the same letters there
    ('cp1252', "L'été où j'ai reçu la leçon\n" * 9, 'cp1252'),
    ('cp1251', 'Паром уходит в девять\n' * 9, 'cp1251'),
  ):
    (tmp_path / 'a.txt').write_bytes(text.encode(encoding))
    said = refusal(lines_of, tmp_path / 'a.txt')
    assert (
      re.search(f'perhaps {proposed},', said) and 'data.text_encoding (--text-encoding)' in said
    )
    assert 'a.txt is not UTF-8 (line 1)' in said
    counts = Counter()
    lines_of(tmp_path / 'a.txt', 'utf-8', counts)  # named so, it is read with U+FFFD
    assert counts['invalid_utf8_lines'] == 9


@pytest.mark.parametrize('bad', [1, 2, 7, 8])
def test_up_to_one_bad_byte_in_a_thousand_is_replaced_and_counted(tmp_path, bad):
  """And one in any file: a stray byte does not end the reading of a large corpus."""
  line = ('ä' * 499 + 'y\n').encode()  # 1,000 bytes
  (tmp_path / 'a.txt').write_bytes(line * 7 + b'caf\xe9\n' * bad + line)
  if bad > 7:
    with refused(r'is not UTF-8 \(line 15\)'):
      lines_of(tmp_path / 'a.txt')
    return
  counts = Counter()
  assert lines_of(tmp_path / 'a.txt', '', counts)[7:-1] == ['caf\ufffd'] * bad
  assert counts['invalid_utf8_lines'] == bad
  (tmp_path / 'b.txt').write_bytes(b'caf\xff\n')
  assert lines_of(tmp_path / 'b.txt') == ['caf\ufffd']


def test_bytes_that_are_no_character_are_counted(tmp_path):
  (tmp_path / 'a.txt').write_bytes('Straße über Köln\n'.encode('cp1252') * 20 + b'plain \x81\n')
  (tmp_path / 'b.txt').write_bytes('Straße\nüber'.encode('utf-16')[:-1])
  for name, encoding, last in ('a', 'cp1252', 'plain \ufffd'), ('b', '', 'übe\ufffd'):
    counts = Counter()
    assert lines_of(tmp_path / f'{name}.txt', encoding, counts)[-1] == last
    assert counts['invalid_utf8_lines'] == 1


@pytest.mark.parametrize('name', ['cp12511', 'idna', 'rot13', 'undefined', 'a\0b', 'x' * 9999])
def test_a_wrong_name_of_an_encoding_is_refused(tmp_path, name):
  (tmp_path / 'a.txt').write_text('plain')
  with refused('is no encoding; use one such as cp1251'):
    lines_of(tmp_path / 'a.txt', name)
