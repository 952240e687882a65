"""Files that are not UTF-8 with LF: what Excel, old Macs and other languages write."""

import gzip
import io
from collections import Counter

import pytest
from refusal import refused

from bert_jax.predict import lines as predict_lines
from bert_jax.text import encodings, files

TEXTS = {
  'cp1252': """Grüße aus Köln|Es kostet 5 €, „wie immer“|Le café fermé à Noël, où ça ? « Là »|3 ± 4
10 m² flat, 20 m³|½ cup of sugar|3 × 4|20 °C ± 3 µm|¥ 200 or £30|Þetta er góð|São Paulo, ação|café
Ångström Ñandú Øresund|Straße naïve|¿Qué? ¡Sí!""",
  'iso8859_15': 'œuvre cœur 10 €',
  'cp850': 'Mädchen|Das Mädchen läuft über die Brücke',
  'mac_roman': 'Ärger über Öl – „so“|L’été à la mer, où ça ?',
  'cp1250': 'Zażółć gęślą jaźń|Łódź się cieszy|Příliš žluťoučký kůň|Árvíztűrő tükörfúrógép',
  'iso8859_2': 'Árvíztűrő tükörfúrógép',
  'cp1254': 'Işık söndü, ağaç büyüdü|Şehir çok güzel',
  'cp1257': 'Prāmis atiet deviņos, kaijas gaida krastā',
  'cp1251': 'Паром уходит в девять|Чайки ждут на берегу|Київ зустрічає паром',
  'koi8_r': 'Паром уходит в девять',
  'cp866': 'Паром уходит в девять',
  'cp1253': 'Το πλοίο φεύγει στις εννέα',
  'cp1255': 'המעבורת יוצאת בתשע והשחפים מחכים',
  'cp1256': 'تغادر العبارة في الساعة التاسعة والنوارس تنتظر',
  'tis_620': 'เรือออกเวลาเก้าโมง นกนางนวลรออยู่',
  'gb18030': '渡船九点开|海鸥在岸上等|上海交通大学|海边的狼跟狐狸跑过草地',
  'big5': '渡船九點開，海鷗在岸上等',
  'cp932': 'フェリーは九時に出ます|カモメは岸で待つ|価格は三千円です',
  'euc_jp': 'フェリーは九時に出ます',
  'cp949': '배는 아홉 시에 떠난다|갈매기가 기다린다',
  'utf-16': 'Grüße|всем',
  'utf-32': 'Grüße|всем',
  'utf-8-sig': 'Grüße|всем',
}
TEXTS = {encoding: text.replace('|', '\n').split('\n') for encoding, text in TEXTS.items()}


def lines_of(path, counts=None):
  return [line for _, line in files.lines(path, Counter() if counts is None else counts)]


@pytest.mark.parametrize('encoding', TEXTS)
@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_a_file_is_read_in_its_encoding_with_any_line_ends(tmp_path, caplog, encoding, end):
  """Each sentence alone; and behind more ASCII than a reader looks ahead, and compressed."""
  many, lines = ['plain', *TEXTS[encoding], 'plain'], TEXTS[encoding]
  for i, line in enumerate(lines):
    (tmp_path / f'{i}.txt').write_bytes(f'a{end}{line}{end}'.encode(encoding))
    assert lines_of(tmp_path / f'{i}.txt') == ['a', line]
  assert (encoding == 'utf-8-sig') == ('is not UTF-8' not in caplog.text)
  assert caplog.text.count('is read as') == (encoding != 'utf-8-sig')  # once a folder
  assert (end == '\r') <= ('CR alone' in caplog.text or encoding in ('utf-16', 'utf-32'))
  (tmp_path / 'b.csv.gz').write_bytes(gzip.compress(end.join([*many, '']).encode(encoding)))
  assert lines_of(tmp_path / 'b.csv.gz') == many
  if encoding not in ('utf-16', 'utf-32', 'utf-8-sig'):
    before = ['x' * 99] * 1000
    (tmp_path / 'c.txt').write_bytes('\n'.join([*before, *many]).encode(encoding))
    assert lines_of(tmp_path / 'c.txt') == [*before, *many]


@pytest.mark.parametrize('encoding', ['cp1252', 'utf-8-sig', 'utf-16'])
def test_lines_inside_quoted_cells_may_end_in_lf_where_rows_end_in_cr(tmp_path, encoding):
  """Excel for Macs writes so."""
  rows = 'Größe;b', 'x;"eins', 'zwei ""ö""', 'drei"', 'y;"' + 'lang\n' * 4000 + '"'
  (tmp_path / 'a.csv').write_bytes('{}\r{}\n{}\n{}\r{}\r'.format(*rows).encode(encoding))
  assert lines_of(tmp_path / 'a.csv') == '\n'.join(rows).split('\n')
  (tmp_path / 'b.txt').write_bytes(b'50 %\r"100" %\nb\n')  # of a progress bar, say
  assert lines_of(tmp_path / 'b.txt') == ['50 %\r"100" %', 'b']
  (tmp_path / 'c.txt').write_bytes(b'"a quote\rwithout an end')
  assert lines_of(tmp_path / 'c.txt') == ['"a quote', 'without an end']


@pytest.mark.parametrize('shift', [0, 1])
@pytest.mark.parametrize('encoding', ['gb18030', 'cp932', 'cp1252'])
def test_a_long_file_is_recognised_wherever_the_sample_ends(tmp_path, encoding, shift):
  lines = ['x' * shift, *TEXTS[encoding] * 2000, ''.join(TEXTS[encoding]) * 9000]
  (tmp_path / 'a.txt').write_bytes('\n'.join(lines).encode(encoding))
  assert lines_of(tmp_path / 'a.txt') == lines
  parts = [raw for _, raw, _ in files.raw_lines(tmp_path / 'a.txt', 1 << 16)]
  assert b''.join(parts).decode() == '\n'.join(lines)


def test_the_frequent_characters_of_an_encoding_are_its_first_level():
  """Its first, its last, and one behind it."""
  for encoding, text in {'big5': '一籲д', 'gb18030': '啊座亍', 'cp949': '가힝伽'}.items():
    first = encodings.FIRST_BYTES[encoding]
    assert [encodings._frequent([x], encoding, first) for x in text] == [1, 1, 0]


def test_a_few_bad_bytes_do_not_make_another_encoding(tmp_path, caplog):
  """Wherever they stand, and whatever the reader has read ahead."""
  (tmp_path / 'a.txt').write_bytes('Grüße aus Köln\n'.encode() + b'caf\xff\n' + b'K\xc3\xb6ln\n')
  assert lines_of(tmp_path / 'a.txt') == ['Grüße aus Köln', 'caf\ufffd', 'Köln']
  assert 'has bytes that are no characters' in caplog.text and 'is read as' not in caplog.text
  for ascii_lines in (0, 1, 65_531, 100_000):
    counts, after = Counter(), ['naïve café déjà'] * 50
    plain = 'x\n' * (ascii_lines // 2)
    data = f'{plain}caf'.encode() + b'\xe9\n' + '\n'.join(after).encode()
    (tmp_path / 'b.txt').write_bytes(data)
    assert lines_of(tmp_path / 'b.txt', counts)[-51:] == ['caf\ufffd', *after]
    assert counts['invalid_utf8_lines'] == 1


def test_a_script_is_recognised_by_ten_letters(tmp_path):
  for text, read in ('Она, рай\nчас', 'utf-8'), ('Она, рай\nчаса', 'cp1251'):
    data = text.encode('cp1251')
    (tmp_path / f'{read}.txt').write_bytes(data)
    assert '\n'.join(lines_of(tmp_path / f'{read}.txt')) == data.decode(read, 'replace')


def test_lines_of_utf8_in_a_file_of_another_encoding_stay(tmp_path):
  lines = ['Straße über Köln'] * 30
  data = b'\n'.join([line.encode('cp1252') for line in lines] + ['Größe'.encode()])
  (tmp_path / 'a.txt').write_bytes(data)
  assert lines_of(tmp_path / 'a.txt') == [*lines, 'Größe']


def test_bytes_that_are_no_character_are_counted(tmp_path):
  (tmp_path / 'a.txt').write_bytes('Straße über Köln\n'.encode('cp1252') * 20 + b'plain \x81\n')
  (tmp_path / 'b.txt').write_bytes('Straße\nüber'.encode('utf-16')[:-1])
  for name, last in (('a', 'plain \ufffd'), ('b', 'übe\ufffd')):
    counts = Counter()
    assert lines_of(tmp_path / f'{name}.txt', counts)[-1] == last
    assert counts['invalid_utf8_lines'] == 1


@pytest.mark.parametrize(
  'text, said', [(b'one\r1\ntwo\n', 1), (b'1\r2\r\n', 1), (b'a\r\r\nb\r\r\n', 0), (b'x\r', 0)]
)
def test_a_cr_inside_lines_that_end_in_lf_ends_none(tmp_path, caplog, text, said):
  (tmp_path / 'a.txt').write_bytes(text)
  expected = [line.rstrip('\r') for line in text.decode().rstrip('\n').split('\n')]
  assert lines_of(tmp_path / 'a.txt') == expected
  assert caplog.text.count('a.txt:1 has a CR inside') == said


def test_lines_that_come_one_by_one_are_read_in_their_encoding(monkeypatch):
  text = '\n'.join(['plain', *TEXTS['cp1251'], 'plain', ''])
  stdin = io.TextIOWrapper(io.BytesIO(text.encode('cp1251')))
  monkeypatch.setattr(predict_lines.sys, 'stdin', stdin)
  found = [line for chunk in predict_lines.chunks_of('', (), Counter()) for line in chunk]
  assert b''.join(found).decode() == text


def test_an_encoding_is_not_looked_for_in_ascii_or_utf8(tmp_path, monkeypatch):
  monkeypatch.setattr(encodings, 'ENCODINGS', ())
  (tmp_path / 'a.txt').write_bytes('plain\nGrüße\n'.encode())
  assert lines_of(tmp_path / 'a.txt') == ['plain', 'Grüße']


# {an encoding that letters do not tell: lines}; in ISO-2022-JP and UTF-7 all bytes are ASCII, in
# cp037 (EBCDIC) none is what it seems.
NAMED = {
  'cp437': ['Größe', 'ñandú'],
  'cp852': ['Łódź', 'žluťoučký'],
  'mac_cyrillic': ['Паром уходит', 'в девять'],
  'iso2022_jp': ['フェリーは', '九時に出ます'],
  'utf-7': ['Größe', 'Паром'],
  'utf-16-le': ['Паром', 'Ċittà'],  # whose first letter has the byte of a line end
  'utf-16-be': ['九時', 'plain'],
  'cp037': ['plain', 'déjà'],
  'gb18030': ['毛猫', '没帽'],  # whose bytes are valid UTF-8
}


@pytest.mark.parametrize('encoding', NAMED)
@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_a_named_encoding_is_used_where_letters_do_not_tell(tmp_path, encoding, end):
  lines = NAMED[encoding]
  data = end.join([*lines, '']).encode(encoding)
  (tmp_path / 'a.txt').write_bytes(data)
  (tmp_path / 'a.gz').write_bytes(gzip.compress(data))
  for name in ('a.txt', 'a.gz'):
    read = files.lines(tmp_path / name, counts := Counter(), encoding)
    assert list(read) == [*enumerate(lines, 1)] and not counts['invalid_utf8_lines']
  with open(tmp_path / 'a.txt', 'rb') as stream:
    opened, form = encodings.opened('stdin', stream, encoding, lambda line: [line])
    assert (opened.read1(9999).decode().rstrip('\r\n'), form) == (lines[0], 'utf-8')


def test_what_is_plainly_utf8_or_has_a_mark_is_not_read_in_a_named_encoding(tmp_path, caplog):
  """As an evaluation set may be beside training data in cp1251."""
  lines = ['plain', 'Паром уходит в девять']
  for form in ('utf-8', 'utf-8-sig', 'utf-16', 'cp1251'):
    (tmp_path / 'a.txt').write_text('\n'.join(lines), form)
    assert [x for _, x in files.lines(tmp_path / 'a.txt', Counter(), 'cp1251')] == lines
    assert caplog.text.count('is UTF-8 by its bytes, read as utf-8') == 1
  (tmp_path / 'b.txt').write_text('\n'.join(lines), 'cp1251')
  counts = Counter()
  list(files.lines(tmp_path / 'b.txt', counts, 'utf-8'))
  assert counts['invalid_utf8_lines'] == 1  # named so, it is not recognised


@pytest.mark.parametrize(
  'encoding, text, read, said',
  [
    ('cp1251', 'Ад, рай\nчёт', 'Ад, рай\nчёт', 'utf-8'),
    ('cp1252', '3 € for tea\n5 € for more', '3 € for tea\n5 € for more', 'utf-8'),
    ('cp1252', 'café\nand tea', 'cafÃ©\nand tea', 'cp1252'),
    ('gb18030', 'Größe é', 'Größe é'.encode().decode('gb18030'), 'gb18030'),
    ('cp1252', 'plain\nlines', 'plain\nlines', ''),
  ],
)
def test_of_few_letters_of_utf8_it_is_said_how_they_are_read(
  tmp_path, caplog, encoding, text, read, said
):
  """Two of them are hardly ever an encoding of one byte; one may be, and two words of Chinese."""
  (tmp_path / 'a.txt').write_bytes(text.encode())
  found = [line for _, line in files.lines(tmp_path / 'a.txt', Counter(), encoding)]
  assert '\n'.join(found) == read
  fact = f'a.txt is UTF-8 by its bytes, read as {said}'
  assert (fact in caplog.text) == bool(said) == bool(caplog.text)


def test_a_named_encoding_that_does_not_fit_is_not_called_utf8(tmp_path, caplog):
  (tmp_path / 'a.txt').write_bytes('Größe über\n'.encode('cp1252') + b'\x81\n')
  assert [*files.lines(tmp_path / 'a.txt', Counter(), 'cp1252')][1] == (2, '\ufffd')
  assert 'a.txt:2 has bytes that are no characters' in caplog.text
  assert 'name another encoding in data.text_encoding (--text' in caplog.text


@pytest.mark.parametrize('name', ['cp12511', 'idna', 'rot13', 'undefined', 'a\0b', 'x' * 9999])
def test_a_wrong_name_of_an_encoding_is_refused(tmp_path, name):
  (tmp_path / 'a.txt').write_text('plain')
  with refused('is no encoding; use one such as cp1251'):
    list(files.lines(tmp_path / 'a.txt', Counter(), name))
