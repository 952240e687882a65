"""Segmenters and lexicons: where words begin, what is found, and that positions hold."""

import re
import tempfile

import numpy as np
import pytest
from refusal import refused

from bert_jax.corpus import lexicon as lexicon_module
from bert_jax.corpus.lexicon import Lexicon, Segmenter


@pytest.fixture
def lexicon(tmp_path):
  pytest.importorskip('ahocorasick_rs')

  def make(*entries, do_lower_case=True):
    path = tmp_path / 'lexicon.txt'
    path.write_text('\n'.join(entries), encoding='utf-8')
    return Lexicon(str(path), do_lower_case)

  return make


def found(lexicon, text):
  return [text[start:end] for start, end in lexicon.matches(text)]


def words(segmenter, text):
  begins = segmenter.boundaries(text)
  assert begins.dtype == bool and begins.shape == (len(text),)
  starts = np.flatnonzero(begins).tolist()
  return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)])]


def test_jieba_cuts_chinese_into_words(tmp_path, monkeypatch, capfd):
  """Quietly, and without a file."""
  pytest.importorskip('jieba')
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  lexicon_module._jieba.cache_clear()
  segmenter = Segmenter()
  # The example of jieba's own README, and a name that only its HMM knows.
  assert words(segmenter, '我来到北京清华大学') == ['我', '来到', '北京', '清华大学']
  assert words(segmenter, '他来到了网易杭研大厦') == ['他', '来到', '了', '网易', '杭研', '大厦']
  assert words(segmenter, ' 用BERT  模型。') == [' ', '用', 'BERT', ' ', ' ', '模型', '。']
  for text in ('', 'No Han at all.', 'ひらがな', 'ภาษาไทย', '한국어'):
    assert segmenter.boundaries(text) is None
  assert capfd.readouterr() == ('', '') and not list(tmp_path.iterdir())


def test_the_file(tmp_path):
  pytest.importorskip('ahocorasick_rs')
  path = tmp_path / 'l.txt'
  path.write_bytes(
    '\ufeff# a comment\r\nNew \t York\r\n\r\n  new york  \r\nC#\r\n#hash\r\n北京'.encode()
  )
  cased, uncased = Lexicon(str(path), False), Lexicon(str(path), True)
  text = 'New York, new york, NEW YORK, C# and c#.'
  assert found(cased, text) == ['New York', 'new york', 'C#']
  assert found(uncased, text) == ['New York', 'new york', 'NEW YORK', 'C#', 'c#']


def test_leftmost_longest_among_those_that_are_words(lexicon):
  names = lexicon('New York', 'New York City', 'York City Hall', 'art', 'part', 'a part of')
  assert found(names, 'New York City Hall') == ['New York City']
  art = found(names, 'a part of art, artful party; state-of-the-art')
  assert art == ['a part of', 'art', 'art']
  # The longest one ends inside a word, so a shorter one that was hidden by it is taken.
  assert found(names, 'New York Cityscape') == ['New York']
  assert found(lexicon('ab cd', 'b', 'cd'), 'xab cd') == ['cd']
  marks = lexicon('11', 'Apollo 11', "don't", '.NET')
  assert found(marks, "Apollo 117 11 don't don ASP.NET") == ['11', "don't", '.NET']


def test_scripts_without_blanks_need_no_ends_of_words(lexicon):
  chinese = lexicon('北京', '北京大学', '大学生', 'NBA', '打球')
  assert found(chinese, '在北京大学生活，看NBA打球。NBAs') == ['北京大学', 'NBA', '打球']
  assert found(lexicon('タワー', '東京'), '東京タワーへ') == ['東京', 'タワー']
  assert found(lexicon('ไทย'), 'ประเทศไทยรวม') == ['ไทย']
  # Scripts with blanks other than Latin: a name with a particle is another word.
  names = ['서울', 'мир', 'नम']
  assert found(lexicon(*names), '서울 서울은 мир миру नम नमस्ते') == names


def test_a_joiner_is_amid_a_word(lexicon):
  """Persian writes it between the parts of a word."""
  assert lexicon('می').matches('می\u200cروم می') == [(7, 9)]
  assert lexicon('می\u200cروم').matches('می\u200cروم می') == [(0, 6)]


def test_a_match_is_not_cut_from_its_combining_marks(lexicon):
  cafe, accented = 'cafe', 'cafe\u0301'
  assert found(lexicon(cafe), f'{accented} {cafe}') == [cafe]
  assert lexicon(accented).matches(f'{accented} {cafe} x{accented}') == [(0, 5)]
  assert found(lexicon('ท'), 'ที่ ท') == ['ท']
  # Forms are compared as they stand, in both.
  assert found(lexicon('caf\u00e9'), f'{accented} caf\u00e9') == ['caf\u00e9']


def test_lower_case_keeps_positions(lexicon):
  turkish = 'İİ İstanbul ISTANBUL İSTANBUL x'
  assert lexicon('İstanbul').matches(turkish) == [(3, 11), (21, 29)]
  assert lexicon('istanbul').matches(turkish) == [(12, 20)]
  assert lexicon('istanbul', do_lower_case=False).matches(turkish) == []
  # A capital sigma has two small forms, by its place; a Kelvin sign is a k.
  greek = found(lexicon('ΟΔΟΣ', '5 k'), 'οδος οδοσ Οδός Οδος 5 \u212a')
  assert greek == ['οδος', 'οδοσ', 'Οδος', '5 \u212a']
  streets = 'Straße STRASSE STRAẞE'
  assert found(lexicon('STRASSE', 'straße'), streets) == streets.split()
  assert lexicon('b').matches('𝔸𐐀 B') == [(3, 4)]  # beyond the basic plane a character is one too


def test_matches_are_those_of_a_plain_search(lexicon):
  rng = np.random.default_rng(0)
  drawn = (''.join(rng.choice(list('ab '), rng.integers(1, 6))) for _ in range(12))
  entries = {' '.join(entry.split()) for entry in drawn} - {''}
  names = lexicon(*entries)
  longest = '|'.join(sorted(map(re.escape, entries), key=len, reverse=True))
  plain, total = re.compile(rf'(?<!\w)(?:{longest})(?!\w)'), 0
  for _ in range(300):
    text = ' '.join(''.join(rng.choice(list('ab '), 30)).split())
    expected = [match.span() for match in plain.finditer(text)]
    assert names.matches(text) == expected
    total += len(expected)
  assert total > 300


@pytest.mark.parametrize(
  'content, said',
  [
    (b'', 'is empty'),
    (b'\n# only this\n  \n', 'has no entries'),
    ('北京大学'.encode() + b'\xff', 'is not UTF-8'),
  ],
)
def test_a_lexicon_that_cannot_be_read_is_named(content, said, tmp_path):
  path = tmp_path / 'l.txt'
  path.write_bytes(content)
  with refused(f'l.txt.*{said}'):
    Lexicon(str(path), True)


@pytest.mark.parametrize('encoding', ['gbk', 'utf-16'])
def test_a_lexicon_in_another_encoding(encoding, tmp_path):
  path = tmp_path / 'l.txt'
  path.write_text('北京大学\n上海交通大学\n中国科学院\n人工智能\n', encoding=encoding)
  assert Lexicon(str(path), True, encoding).matches('在中国科学院的') == [(1, 6)]
