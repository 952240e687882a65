"""Vocabularies that are trained here: the same everywhere, of the exact size, fair to languages."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from refusal import refusal, refused

from bert_jax import tokenizers
from bert_jax.tokenizers import RESERVED, language_weights, run_tokenizer, wordpiece_trainer

CORPUS = [
  'The quick brown fox jumps over the lazy dog; the dog sleeps, the fox jumped twice.',
  'Café owners in Zürich jump at the chance: 120 quicker foxes, 3 lazier dogs!',
  'A [MASK] typed in the text, [CLS] and [SEP] too, and <s> or </s>, are plain words.',
  '快速的棕色狐狸跳过了懒狗。',
] * 20
KINDS = 'wordpiece', 'unigram', 'bpe', 'byte_bpe'
SIZES = dict(wordpiece=300, unigram=78, bpe=78, byte_bpe=300)


def train(kind, texts=CORPUS, size=None, cased=False, coverage=0.99999, sampling=1.0):
  """(the tokenizer, what was counted)"""
  splitting = tokenizers.Splitting(not cased)
  common = dict(character_coverage=coverage, sampling=sampling)
  size = size or SIZES[kind]
  return run_tokenizer.train(kind, texts, vocab_size=size, splitting=splitting, **common)


@pytest.fixture(scope='module')
def texts():
  """Lines of two languages: `big` has 30 times the words of `small`."""
  rng, out = np.random.default_rng(0), {}
  for name, alphabet, lines in (('big', 'abcdefghij', 1500), ('small', 'klmnopqrst', 50)):
    known = [''.join(rng.choice(list(alphabet), rng.integers(2, 9))) for _ in range(300)]
    out[name] = [' '.join(rng.choice(known, 12)) for _ in range(lines)]
  return out


def fingerprints():
  both = CORPUS, {'a': CORPUS[::2], 'b': CORPUS[1::2]}
  return [train(kind, texts, sampling=0.7)[0].fingerprint for kind in SIZES for texts in both]


def test_vocabularies_are_the_same_bytes_in_every_process():
  folders = ROOT, ROOT / 'tests', Path(__file__).parent
  env = os.environ | {'PYTHONPATH': ':'.join(map(str, folders))}
  env |= {'PYTHONHASHSEED': '1', 'RAYON_NUM_THREADS': '8'}
  command = [sys.executable, '-c', 'import test_training as t; print(*t.fingerprints())']
  out = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env, text=True).stdout
  assert out.split() == fingerprints() and len(set(out.split())) == 8


def test_trained_wordpiece_has_googles_layout_and_the_exact_size():
  tokenizer, counts = train('wordpiece', size=200)
  lines, kept = tokenizer.pieces, counts['characters_kept']
  assert len(lines) == len(set(lines)) == 200 and tuple(lines[:5]) == RESERVED
  alphabet = lines[5 : 5 + kept]
  assert 'é' not in alphabet and {'f', '狐', '['} <= set(alphabet)
  # Chinese characters and punctuation always stand alone.
  inside = [c for c in alphabet if c.isalnum() and not '\u4e00' <= c <= '\u9fff']
  assert lines[5 + kept : 5 + kept + len(inside)] == ['##' + c for c in inside]
  assert not {'##狐', '##,', '##['} & set(lines)
  assert all(len(p.removeprefix('##')) > 1 for p in lines[5 + 2 * kept :])
  assert counts['unused'] == 0 and counts['pieces'] == 200
  assert all(tokenizer.unk_id not in ids for ids in tokenizer.ids_batch(CORPUS))
  assert [tokenizer.pieces[i] for i in tokenizer.ids_batch(['the dog'])[0]] == ['the', 'dog']


def test_a_small_corpus_is_filled_up():
  tokenizer, counts = train('wordpiece', ['ab ab b'], 16)
  merged = [*RESERVED, 'a', 'b', '##a', '##b', 'ab']
  assert tokenizer.pieces == merged + [f'[unused{i}]' for i in range(6)]
  assert (counts['words'], counts['distinct_words']) == (3, 2)
  assert (counts['pieces'], counts['unused']) == (10, 6)
  assert tokenizer.special_ids == (0, 1, 2, 3, 4), '[unused0] is a piece like others'


def test_rare_characters_are_dropped_and_counted():
  tokenizer, counts = train('wordpiece', ['ab ' * 500 + 'axb'], 12, coverage=0.999)
  assert (counts['characters_kept'], counts['characters_dropped']) == (2, 1)
  assert [tokenizer.pieces[i] for i in tokenizer.ids_batch(['axb ab'])[0]] == ['[UNK]', 'ab']


def test_no_more_characters_are_kept_than_cover_the_text():
  """Of equally frequent ones, those that come first in the alphabet."""
  kept = lambda coverage: wordpiece_trainer._cover(Counter('dcbaabcda'), coverage)
  assert [len(kept(n / 9)) for n in (3, 3.5, 5, 7, 8.5)] == [1, 2, 2, 3, 4]
  assert kept(5 / 9) == ['a', 'b'] and kept(1.0) == [*'abcd'] and kept(0.0) == []


def test_long_words_and_words_of_many_letters_become_pieces():
  """A piece may join any characters of an alphabet of hundreds."""
  long = ''.join(map(chr, range(0x3B1, 0x3C9)))  # 24 letters
  mixed = ['a1b', '1я2', 'ħя', 'яħ']
  many = ' '.join(map(chr, range(0x100, 0x100 + 300)))
  texts = [' '.join([long, *mixed])] * 9 + [many, 'x' * 101]
  pieces = train('wordpiece', texts, 800, cased=True)[0].pieces
  assert {long, *mixed} < set(pieces) and not any(len(x) > 24 for x in pieces)


def test_the_order_of_texts_does_not_matter():
  """Nor which of equally frequent words comes first."""
  rng = np.random.default_rng(4)
  words = [''.join(rng.choice([*'abcde'], size)) for size in rng.integers(2, 9, 300)]
  one, two = (train('wordpiece', texts, 120)[0] for texts in (words, words[::-1]))
  assert one.pieces == two.pieces


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram', 'bpe'])
def test_casing(kind):
  for cased in (True, False):
    size = 20 if kind == 'wordpiece' else 12 if cased else 9
    first, second = train(kind, ['Ab aB AB ab'] * 30, size, cased)[0].ids_batch(['Ab', 'ab'])
    assert (first.tolist() != second.tolist()) is cased
  cased = train('wordpiece', cased=True)[0].pieces
  assert {'C', 'é'} <= set(cased) and 'e\u0301' not in ''.join(cased)


def test_a_byte_level_vocabulary_is_robertas_and_nothing_is_lost():
  trained, counts = train('byte_bpe', cased=True)
  assert trained.vocab_size == 300 and counts['pieces'] + counts['unused'] == 300
  assert trained.pieces[:4] == ['<s>', '<pad>', '</s>', '<unk>'] and trained.pieces[-1] == '<mask>'
  assert (trained.cls_id, trained.pad_id, trained.sep_id, trained.mask_id) == (0, 1, 2, 299)
  assert {'Ġthe', 'Ġfox'} <= set(trained.pieces)
  for text in (*CORPUS[:4], 'unseen ☃ words'):
    assert trained.decode(trained.ids_batch([text])[0]) == text
  same = [trained.ids_batch([text])[0].tolist() for text in ('fox', 'a fox')]
  assert same[1][-len(same[0]) :] == same[0]  # a blank before each text


def test_pairs_of_bytes_that_occur_once_are_not_merged():
  tokenizer, counts = train('byte_bpe', ['ab', 'cd', 'xyz'], 270, cased=True)
  assert (counts['pieces'], counts['unused']) == (261, 9)
  assert tokenizer.pieces[260:269] == [f'<unused{i}>' for i in range(9)]
  assert train('byte_bpe', ['xab', 'yab'], 270, cased=True)[1]['pieces'] == 262  # ab, twice


def test_sentencepiece_leaves_no_text_out():
  """The library skips lines that are long or hold characters it uses itself."""
  texts = ['abc ' * 10, 'x' * 50_000, 'q\u2585z \0 j'] * 3
  tokenizer, counts = train('bpe', texts, 30, coverage=1.0)
  assert counts['characters'] >= 3 * 50_000
  assert set('abcxqzj') <= set(''.join(tokenizer.pieces))


def test_sentencepiece_offsets_and_words():
  spm = train('unigram')[0]
  assert tuple(spm.pieces[:5]) == RESERVED and spm.special_ids == (0, 1, 2, 3, 4)
  text = '  Café  owners 狐狸 \U0001f4a9 the dog '
  _, offsets, words = spm.encode_batch([text])[0]
  starts = ['Café', 'owners', '狐', '狸', '\U0001f4a9', 'the', 'dog']  # Han characters are words
  assert offsets[words, 0].tolist() == [text.index(w) for w in starts]
  assert ''.join(text[a:b] for a, b in offsets) == ''.join(text.split())


def test_words_of_scripts_without_blanks():
  """Without a segmenter a piece of such a script is a word; letters after it begin one."""
  texts = [
    '今天天气很好。ABC公司 made it x',
    'これは日本語です。カタカナ',
    'ภาษาไทย abc',
    'the fox x',
  ]
  tokenizer = train('unigram', texts * 50, 47, cased=True, coverage=1.0)[0]

  def words(text):
    e = tokenizer.encode_batch([text])[0]
    ends = np.append(np.flatnonzero(e.word_starts)[1:], len(e.ids))
    return [text[a:b] for a, b in zip(e.offsets[e.word_starts, 0], e.offsets[ends - 1, 1])]

  assert words('made 今天x the fox') == ['made', '今', '天', 'x', 'the', 'fox']
  assert words('x。ABC公司 made') == ['x', '。', 'ABC', '公', '司', 'made']
  assert words('日本カナ abc') == ['日', '本', 'カ', 'ナ', 'abc']
  assert ' '.join(words('ไทยx')) == 'ไ ท ย x'
  batch = [*texts, '', 'x', ' ', '今x', 'fox']
  ids, full = tokenizer.ids_batch(batch), tokenizer.encode_batch(batch)
  lengths = np.array([len(row) for row in ids])
  starts = tokenizer.word_starts(np.concatenate(ids), (np.cumsum(lengths) - lengths)[lengths > 0])
  assert (starts == np.concatenate([e.word_starts for e in full])).all()


@pytest.mark.parametrize('kind', KINDS)
def test_training_that_cannot_work_is_refused_in_one_sentence(kind):
  assert 'the corpus holds no words' in refusal(train, kind, ['', ' \n '], 270)
  empty = {'x': ['ab cd'], 'y': ['\n ']}
  assert "language 'y' holds no words" in refusal(train, kind, empty, 270, sampling=0.7)
  if kind == 'wordpiece':
    smallest = int(refusal(train, kind, size=20).split('use ')[1].split()[0])
    assert train(kind, size=smallest)[0].vocab_size == smallest
  elif kind != 'byte_bpe':
    for size in (20, 9999):
      assert f'(--size) {size} pieces on this corpus: ' in refusal(train, kind, size=size)


# ------------------------------------------------------------------------------ languages


def test_sampling_counts_as_m_bert():
  weights = language_weights.weights({'en': 1_000_000, 'is': 1_000}, 0.7)
  share = (1_000_000 * weights['en']) / (1_000 * weights['is'])
  assert share == pytest.approx(1000**0.7, rel=0.01)  # 126, not 1,000
  assert language_weights.weights({'en': 5, 'is': 3}, 1.0) == {'en': 1, 'is': 1}
  assert language_weights.weights({'': 5}, 0.7) == {'': 1}


@pytest.mark.parametrize('kind', KINDS)
def test_a_language_counts_as_much_as_asked(texts, kind):
  size = 500 if kind == 'byte_bpe' else 300
  found = []
  for sampling in (1.0, 0.3):
    tokenizer, counts = train(kind, texts, size, sampling=sampling, coverage=1.0)
    shown = [piece.strip('▁#Ġ') for piece in tokenizer.pieces]
    pieces = sum(set(piece) <= set('klmnopqrst') for piece in shown if piece)
    found.append((pieces, counts['shares']['small']))
    assert sum(counts['shares'].values()) == pytest.approx(1, abs=1e-5)
  (few, one), (many, other) = found
  assert many > 1.2 * few and one == pytest.approx(1 / 31, rel=0.2)
  assert other / (1 - other) == pytest.approx((one / (1 - one)) ** 0.3, rel=0.02)


def test_a_weight_is_as_good_as_so_many_copies(texts):
  own, counts = train('wordpiece', texts, 150, coverage=1.0, sampling=0.5)
  big, small = texts.values()
  b, s = (len(re.findall(r'\w+|[^\w\s]', '\n'.join(lines))) for lines in (big, small))
  assert counts['words'] == b + s, 'words are counted once, whatever they weigh'
  assert counts['shares']['small'] == pytest.approx(s**0.5 / (b**0.5 + s**0.5), abs=1e-3)
  copies = big * 100 + small * round(100 * (b / s) ** 0.5)
  assert train('wordpiece', copies, 150, coverage=1.0)[0].fingerprint == own.fingerprint


# ------------------------------------------------------------------------------ of a run


def test_a_run_trains_one(corpus_file):
  from bert_jax import config as config_lib  # slow, and a process above imports this file
  from bert_jax.tasks.pretraining import resolution

  size = '--config.model.vocab_size=300'
  spec = 'configs/pretrain.py:arch=roberta,runlocal'
  config = config_lib.load(spec, [f'--config.data.train={corpus_file}', size])
  made = lambda: run_tokenizer.load_or_train(config, None, lambda: resolution.texts(config))
  ours = made()
  assert ours.blank_is_of_word and ours.vocab_size == 300
  config.tokenizer.do_lower_case = True
  with refused('byte_bpe keeps capitals; set tokenizer.do_lower_case'):
    made()
  config.tokenizer.update(kind='wordpiece', do_lower_case=False)
  assert made().splitting == tokenizers.Splitting(do_lower_case=False)
  config.model.vocab_size = 20
  with refused('^model.vocab_size .* 20 cannot .*character_coverage'):
    made()
