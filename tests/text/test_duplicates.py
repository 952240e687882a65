"""Duplicates: what counts as one, that the order of work does not matter, what a restart keeps."""

import hashlib
import pickle
import random
import sys
import zlib
from collections import defaultdict

import numpy as np
import pytest
from refusal import refused

from bert_jax.text.duplicates import Seen, Signer, exact_key, near_of_band

WORDS = [f'w{i}' for i in range(5000)]


@pytest.fixture(scope='module')
def signer():
  pytest.importorskip('datasketch')
  return Signer()


def sentences(rng, count, words=12):
  return [' '.join(rng.choices(WORDS, k=words)) + '.' for _ in range(count)]


def collection(signer, count=300):
  """Texts with planted copies, near copies of every degree, and near copies of those."""
  rng = random.Random(5)
  texts = [' '.join(sentences(rng, 25)) for _ in range(count // 3)]
  while len(texts) < count:
    words = rng.choice(texts).split()
    for _ in range(rng.choice([0, 0, 1, 2, 4, 6, 8, 12])):
      words[rng.randrange(len(words))] = rng.choice(WORDS)
    texts.append(rng.choice([' ', '\n', '  ']).join(words))
  rng.shuffle(texts)
  return [(exact_key(text), signer.signature(text)) for text in texts]


def test_exact_key_is_blake2b_of_the_text_whatever_its_blanks():
  expected = hashlib.blake2b('Ein Satz. 中文'.encode(), digest_size=8).digest()
  assert exact_key(' Ein  Satz.\n\t中文\u3000\n') == int.from_bytes(expected, 'little')
  assert exact_key('ein Satz. 中文') != exact_key('Ein Satz. 中文')


def test_one_sentence_of_thirty_changed_is_near_and_ten_are_not(signer):
  rng = random.Random(0)
  seen = Seen('near')
  answers = []
  for _ in range(50):
    document = sentences(rng, 30)
    one, ten = list(document), list(document)
    one[rng.randrange(30)] = sentences(rng, 1)[0]
    ten[10:20] = sentences(rng, 10)
    for text in (' '.join(document), '\n'.join(document), ' '.join(one), ' '.join(ten)):
      answers.append(seen.is_duplicate(exact_key(text), signer.signature(text)))
  assert answers == ['', 'exact', 'near', ''] * 50 and len(seen) == 150


CHINESE = '红楼梦第一回甄士隐梦幻识通灵贾雨村风尘怀闺秀'


@pytest.mark.parametrize('text', [CHINESE, 'ประเทศไทยรวมเลือดเนื้อชาติเชื้อไทย'])
def test_scripts_without_blanks_are_compared_by_characters(signer, text):
  text = ''.join(random.Random(0).choices(text, k=600))
  changed = text[:300] + 'x' + text[301:]
  share = (signer.signature(text) == signer.signature(changed)).mean()
  assert share > 0.93  # 5 of 600 shingles differ
  other = ''.join(random.Random(1).choices(text, k=600))
  assert (signer.signature(text) == signer.signature(other)).mean() < 0.1


def test_signature_is_datasketch_on_the_runs_of_five_words(signer):
  import datasketch

  for text in ('One', 'one two Three four', ' '.join(WORDS[:3000])):
    minhash = datasketch.MinHash(128, 1, hashfunc=zlib.crc32)
    words = text.lower().split()
    for i in range(max(1, len(words) - 4)):
      minhash.update(' '.join(words[i : i + 5]).encode())
    signature = signer.signature(text)
    assert signature.dtype == np.uint16
    np.testing.assert_array_equal(signature, minhash.hashvalues & 0xFFFF)


def test_bands_find_similar_pairs_as_often_as_they_should(signer):
  count, rows = 14, 9
  rng = np.random.default_rng(0)
  for similarity in (0.5, 0.7, 0.85):
    a, other = rng.integers(0, 2**16, (2, 4000, 128)).astype(np.uint16)
    b = np.where(rng.random(a.shape) < similarity, a, other)
    found = (signer.bands_of(a) == signer.bands_of(b)).any(1).mean()
    assert found == pytest.approx(1 - (1 - similarity**rows) ** count, abs=0.03)
  assert signer.bands(a[7]) == signer.bands_of(a)[7].tolist()
  assert len(set(signer.bands(np.zeros(128, np.uint16) + 5))) == count  # each band has its own keys


def test_the_same_in_every_process_and_release(signer):
  text = 'The quick brown fox jumps over the lazy dog. 天地玄黄宇宙洪荒'
  here, copy = signer.signature(text), pickle.loads(pickle.dumps(signer))
  assert copy.signature(text).tolist() == here.tolist() and copy.bands(here) == signer.bands(here)
  hint = 'signatures are not what they were: a preparation cannot go on with an older state'
  assert zlib.crc32(here.astype('<u2').tobytes()) == 3180886244, hint
  assert signer.bands(here)[0] == 12251721493741368158, hint


def test_bands_in_any_order_remove_what_one_after_another_does(signer):
  documents = collection(signer)
  seen = Seen('near')
  answers = [seen.is_duplicate(*document) for document in documents]
  assert answers.count('') > 80 and answers.count('exact') > 30 and answers.count('near') > 60
  by_band = defaultdict(list)
  for order, (_, signature) in enumerate(documents):
    for band in signer.bands(signature):
      by_band[band].append((order, signature))
  removed = set()
  for members in by_band.values():
    random.Random(0).shuffle(members)
    removed.update(near_of_band(members))
  assert removed == {i for i, answer in enumerate(answers) if answer}


def test_the_rule_counts_documents_that_were_removed_themselves(signer):
  # b is near a and c near b, but c not near a: c goes, as it would if a had never been there.
  a = np.arange(128, dtype=np.uint16)
  b, c = a.copy(), a.copy()
  b[106:] += 1000
  c[88:106] += 2000
  c[106:] += 1000
  seen = Seen('near')
  assert [seen.is_duplicate(i << 60, x) for i, x in enumerate((a, b, c))] == ['', 'near', 'near']
  assert list(near_of_band([(2, c), (0, a), (1, b)])) == [1, 2]
  assert list(near_of_band([(2, c), (0, a)])) == []


def test_a_near_one_is_found_behind_many_that_are_not(signer):
  rng = np.random.default_rng(0)
  signatures = rng.integers(0, 2**16, (160, 128)).astype(np.uint16)
  signatures[:, :9] = 7  # the first band
  signatures[-1, :103] = signatures[0, :103]
  seen = Seen('near')
  answers = [seen.is_duplicate(exact_key(str(i)), x) for i, x in enumerate(signatures)]
  assert answers == [''] * 159 + ['near']
  assert list(near_of_band(enumerate(signatures))) == [159]


@pytest.mark.parametrize('equal, answer', [(103, 'near'), (102, '')])
def test_a_similarity_of_four_fifths_is_near(equal, answer):
  pytest.importorskip('datasketch')
  a = np.arange(128, dtype=np.uint16)
  b = np.where(a < equal, a, a + 1000).astype(np.uint16)
  seen = Seen('near')
  assert [seen.is_duplicate(1, a), seen.is_duplicate(2, b)] == ['', answer]
  assert list(near_of_band([('a', a), ('b', b)])) == ['b'] * bool(answer)


def test_a_restart_decides_the_same(signer):
  documents = collection(signer)
  whole = Seen('near')
  expected = [whole.is_duplicate(*document) for document in documents]
  first, states = Seen('near'), []
  for begin, end in ((0, 0), (0, 70), (70, 71), (71, 200)):
    answers = [first.is_duplicate(*document) for document in documents[begin:end]]
    assert answers == expected[begin:end]
    states.append(first.state())
  assert sum(len(state['keys']) for state in states) == len(first) < 200
  second = Seen('near')
  for state in reversed(states):
    second.add(state)
  assert len(second.state()['keys']) == 0
  assert [second.is_duplicate(*document) for document in documents[200:]] == expected[200:]
  last = second.state()
  assert (last['keys'].dtype, last['signatures'].dtype) == (np.uint64, np.uint16)
  assert last['signatures'].shape == (len(last['keys']), 128)


def test_exact_state_needs_no_library(monkeypatch):
  monkeypatch.setitem(sys.modules, 'datasketch', None)
  seen, again = Seen('exact'), Seen('exact')
  keys = [exact_key(str(i % 50)) for i in range(70)]
  assert [seen.is_duplicate(key) for key in keys] == [''] * 50 + ['exact'] * 20
  again.add(seen.state())
  assert {again.is_duplicate(key) for key in keys} == {'exact'}
  with refused('needs datasketch; run: pip install'):
    Signer()
