"""tools.vocab: the same bytes every time, fair to small languages, loaded by others."""

import json
import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT

from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.text import documents
from bert_jax.tokenizers import language_weights
from bert_jax.tokenizers.sentencepiece_trainer import train_sentencepiece
from bert_jax.tokenizers.wordpiece_trainer import train_wordpiece
from bert_jax.tools import vocab


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Two languages: `big` has 30 times the words of `small`."""
  folder = tmp_path_factory.mktemp('texts')
  rng = np.random.default_rng(0)

  def words(alphabet):
    return [''.join(rng.choice(list(alphabet), rng.integers(2, 9))) for _ in range(300)]

  for name, alphabet, lines in (('big', 'abcdefghij', 1500), ('small', 'klmnopqrst', 50)):
    known = words(alphabet)
    found = (' '.join(rng.choice(known, 12)) for _ in range(lines))
    (folder / f'{name}.txt').write_text('\n'.join(found) + '\n[MASK] <unk> [unused1] ab [SEP]\n')
  return folder


def run(*arguments, seed='0', check=True):
  out = subprocess.run(
    [sys.executable, '-m', 'bert_jax.tools.vocab', *map(str, arguments)],
    cwd=ROOT,
    capture_output=True,
    text=True,
    env=dict(os.environ, PYTHONPATH=str(ROOT), PYTHONHASHSEED=seed),
  )
  assert not check or out.returncode == 0, out.stderr[-2000:]
  return out


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram', 'bpe'])
@pytest.mark.parametrize('sampling', [1.0, 0.7])
def test_the_same_text_gives_the_same_bytes(folder, tmp_path, kind, sampling):
  files = []
  for seed in ('1', '2'):
    out = run(
      '--input',
      f'a={folder / "big.txt"}',
      '--input',
      f'b={folder / "small.txt"}',
      '--kind',
      kind,
      '--size',
      300,
      '--sampling',
      sampling,
      '--out',
      tmp_path / seed,
      seed=seed,
    )
    told = json.loads(out.stdout)
    assert told['pieces'] == 300 and told['files'] == 2 and told['documents'] == 2
    files.append({p.name: p.read_bytes() for p in (tmp_path / seed).iterdir()})
  assert files[0] == files[1]


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram', 'bpe'])
def test_reserved_tokens_in_text_stay_text(folder, tmp_path, kind):
  run('--input', folder / 'big.txt', '--kind', kind, '--size', 200, '--out', tmp_path / 'V')
  tokenizer = tokenizers.load_folder(tmp_path / 'V')
  for typed in ('[MASK]', '[SEP]', '[CLS] [PAD]'):
    found = set(tokenizer.ids_batch([typed])[0].tolist())
    assert found.isdisjoint({tokenizer.mask_id, tokenizer.sep_id, tokenizer.cls_id, 0})
  for name in tokenizers.RESERVED:
    assert tokenizer.pieces.count(name) == 1
  assert tokenizer.encode_with_masks('ab [MASK]').tolist()[-1] == tokenizer.mask_id  # asked for


def test_sampling_counts_as_m_bert():
  weights = language_weights.weights({'en': 1_000_000, 'is': 1_000}, 0.7)
  share = (1_000_000 * weights['en']) / (1_000 * weights['is'])
  assert share == pytest.approx(1000**0.7, rel=0.01)  # 126, not 1,000
  assert language_weights.weights({'en': 5, 'is': 3}, 1.0) == {'en': 1, 'is': 1}
  assert language_weights.weights({'': 5}, 0.7) == {'': 1}


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram', 'bpe'])
def test_sampling_gives_a_small_language_more_pieces(folder, tmp_path, kind):
  pieces = []
  for sampling in (1.0, 0.3):
    run(
      '--input',
      str(folder / '{language}.txt'),
      '--languages',
      'big,small',
      '--kind',
      kind,
      '--size',
      300,
      '--sampling',
      sampling,
      '--out',
      tmp_path / f'{sampling}',
    )
    found = tokenizers.load_folder(tmp_path / f'{sampling}').pieces
    pieces.append(sum(set(p.strip('▁#')) <= set('klmnopqrst') for p in found if p.strip('▁#')))
  assert pieces[1] > 1.2 * pieces[0]


def trained(kind, texts, path, **settings):
  """(bytes of the file, what was counted) of 150 pieces."""
  settings = {'vocab_size': 150, 'character_coverage': 1.0} | settings
  if kind == 'wordpiece':
    counts = train_wordpiece(texts, path, **settings)
  else:
    counts = train_sentencepiece(texts, path, model_type=kind, **settings)
  return path.read_bytes(), counts


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram', 'bpe'])
def test_languages_that_are_not_weighed_change_nothing(folder, tmp_path, kind):
  big, small = ((folder / f'{name}.txt').read_text().splitlines() for name in ('big', 'small'))
  path = tmp_path / 'one'
  plain, counts = trained(kind, big + small, path)
  assert counts['shares'] == {'': 1}
  named, counts = trained(kind, {'big': big, 'small': small}, path)
  assert named == plain and sum(counts['shares'].values()) == pytest.approx(1)
  assert counts['shares']['small'] == pytest.approx(1 / 30, rel=0.2)
  assert trained(kind, {'xx': big + small}, path, sampling=0.3)[0] == plain


def test_a_weight_is_as_good_as_so_many_copies(folder, tmp_path):
  big, small = ((folder / f'{name}.txt').read_text().splitlines() for name in ('big', 'small'))
  own, counts = trained('wordpiece', {'b': big, 's': small}, tmp_path / 'own', sampling=0.5)
  b, s = (len(re.findall(r'\w+|[^\w\s]', '\n'.join(lines))) for lines in (big, small))
  assert counts['words'] == b + s, 'words are counted once, whatever they weigh'
  assert counts['shares']['s'] == pytest.approx(s**0.5 / (b**0.5 + s**0.5), abs=1e-3)
  copies = big * 100 + small * round(100 * (b / s) ** 0.5)
  assert trained('wordpiece', copies, tmp_path / 'copies')[0] == own


def test_lines_of_a_weighed_language_come_as_often_as_it_weighs(folder, tmp_path):
  """At S = 0.5 a language with a fifth of the characters of the largest counts 5 ** 0.5 times, not
  twice. The pieces of a unigram model have probabilities, so its bytes tell."""
  big = (folder / 'big.txt').read_text().splitlines()[:300]
  line = 'klmnop qrst klm mnop'
  long = sum(map(len, big)) / 5 / len(line)  # lines of a fifth of the characters
  small = [line] * round(long)
  texts = {'b': big, 's': small}
  own, counts = trained('unigram', texts, tmp_path / 'own', sampling=0.5, vocab_size=60)
  times = (sum(map(len, big)) / (len(small) * len(line))) ** 0.5
  assert 2.2 < times < 2.3
  copies = big + [line] * int(len(small) * round(times, 2))
  assert trained('unigram', copies, tmp_path / 'copies', vocab_size=60)[0] == own


def test_others_read_the_wordpiece_vocabulary(folder, tmp_path):
  from tokenizers import BertWordPieceTokenizer

  texts = (folder / 'big.txt').read_text().splitlines()[:200] + ['Ünïcode 北京 x', 'a' * 150]
  for flags in ((), ('--cased',), ('--no-cjk-spaces',)):
    out = tmp_path / '-'.join(('V', *flags))
    run('--input', folder / 'big.txt', '--size', 300, '--out', out, *flags)
    lower, spaces = '--cased' not in flags, '--no-cjk-spaces' not in flags
    theirs = BertWordPieceTokenizer(
      str(out / 'vocab.txt'), lowercase=lower, strip_accents=lower, handle_chinese_chars=spaces
    )
    ours = tokenizers.load_folder(out)
    for line, ids in zip(texts, ours.ids_batch(texts), strict=True):
      assert ids.tolist() == theirs.encode(line, add_special_tokens=False).ids
  lengths = [
    len(tokenizers.load_folder(tmp_path / name).ids_batch(['北京'])[0])
    for name in ('V', 'V---no-cjk-spaces')
  ]
  assert lengths == [2, 1]


@pytest.mark.slow
def test_hugging_face_agrees_on_wikitext(shared, tmp_path):
  transformers = pytest.importorskip('transformers')
  run('--input', shared / 'text_en/books/A*.md', '--size', 8000, '--out', tmp_path / 'V')
  theirs = transformers.BertTokenizerFast.from_pretrained(tmp_path / 'V')
  ours = tokenizers.load_folder(tmp_path / 'V')
  lines = (shared / 'text_en' / 'wikitext-2' / 'valid.txt').read_text().splitlines()
  expected = theirs(lines, add_special_tokens=False)['input_ids']
  assert [ids.tolist() for ids in ours.ids_batch(lines)] == expected


def test_ids_are_the_same_with_and_without_the_cache(shared):
  """Runs between blanks are encoded once and remembered; encode_batch looks at whole texts."""
  tricky = [
    'a\u00a0b',
    'a\u200bb c',
    'a\x1cb\x1dc d',
    'e\u0301 e \u0301x',
    '北京 大学x',
    '😀a b😀',
    'a\u2028b c',
    'x' * 300 + ' y',
    '',
    '  ',
    ' a ',
    '[MASK] a',
    'İstanbul ẞ',
    '\ufeffa',
    'a\tb\r\nc',
  ]
  for name, lower in (('uncased', True), ('multilingual-cased', False), ('chinese', True)):
    own = tokenizers.load(shared / 'vocab' / f'bert-base-{name}.txt', do_lower_case=lower)
    lines = [
      s
      for d in documents.documents(str(shared / 'ntrex' / '*.txt'), counts=Counter())
      for s in d.sentences[:100]
    ]
    for texts in (tricky, lines, tricky):
      encodings = own.encode_batch(texts)
      ids = own.ids_batch(texts)
      assert [x.tolist() for x in ids] == [e.ids.tolist() for e in encodings]
      starts = own.word_starts(np.concatenate(ids), np.zeros(0, int))
      assert (starts == np.concatenate([e.word_starts for e in encodings])).all()


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram'])
def test_casing_of_each_kind(tmp_path, kind, capsys):
  (tmp_path / 'a.txt').write_text('Ab aB AB ab\n' * 30)
  for flags, cased in (((), False), (('--cased',), True)):
    out = tmp_path / f'V{cased}'
    size = {'wordpiece': 20, 'unigram': 12 if cased else 9}[kind]
    vocab.main(
      [
        '--input',
        str(tmp_path / 'a.txt'),
        '--kind',
        kind,
        '--size',
        str(size),
        '--out',
        str(out),
        *flags,
      ]
    )
    first, second = tokenizers.load_folder(out).ids_batch(['Ab', 'ab'])
    assert (first.tolist() != second.tolist()) is cased


def test_any_files_make_the_languages(folder, tmp_path):
  (tmp_path / 'a=b.jsonl').write_text(
    ''.join(json.dumps({'body': f'ab abc {i} \u2028 x\u0085y'}) + '\n' for i in range(20))
  )
  (tmp_path / 'latin1.txt').write_bytes('Köln und Öl\n'.encode('latin-1') * 3)
  out = run(
    '--input',
    f'x={folder / "big.txt"}',
    '--input',
    f'x={tmp_path / "a=b.jsonl"}',
    '--input',
    tmp_path / 'a=b.jsonl',
    '--input',
    f'z-z={tmp_path}/lat*.txt',
    '--text-field',
    'body',
    '--size',
    300,
    '--out',
    tmp_path / 'new' / 'V',
  )
  told = json.loads(out.stdout)
  languages = told.pop('languages')
  assert {name: own['documents'] for name, own in languages.items()} == {'x': 21, '': 20, 'z-z': 1}
  assert sum(own['share'] for own in languages.values()) == pytest.approx(1, abs=1e-5)
  assert (told['files'], told['documents'], told['invalid_utf8_lines']) == (4, 42, 3)
  assert told['pieces'] + told['unused'] == 300 == tokenizers.load_folder(told['out']).vocab_size


def test_mistakes_are_one_sentence(folder, tmp_path):
  def refused(*arguments):
    out = run(*arguments, check=False)
    assert out.returncode == 2 and 'Traceback' not in out.stderr
    return out.stderr

  source = ('--input', folder / 'big.txt')
  assert 'does not exist' in refused('--input', folder / 'no.txt', '--out', tmp_path / 'V')
  assert '--sampling is 2.0; use 0 to 1' in refused(
    *source, '--sampling', 2, '--out', tmp_path / 'V'
  )
  assert 'cannot hold the' in refused(*source, '--size', 20, '--out', tmp_path / 'V')
  assert 'is for --kind wordpiece' in refused(
    *source, '--kind', 'bpe', '--no-cjk-spaces', '--out', tmp_path / 'V'
  )
  assert not (tmp_path / 'V').exists()
  run(*source, '--size', 100, '--out', tmp_path / 'V')
  assert 'already' in run(*source, '--size', 100, '--out', tmp_path / 'V').stderr
  assert 'holds another vocabulary' in refused(*source, '--size', 120, '--out', tmp_path / 'V')
  for other in (('--size', 120), ('--size', 100, '--kind', 'bpe')):  # before anything is read
    said = refused('--input', folder / 'no.txt', *other, '--out', tmp_path / 'V')
    assert 'holds another vocabulary' in said
  assert 'holds another vocabulary' in refused(
    *source, '--size', 100, '--cased', '--out', tmp_path / 'V'
  )
  file = tmp_path / 'V' / 'vocab.txt'
  for inside in (file, file / 'W'):
    assert f'{file} is a file' in refused(*source, '--size', 100, '--out', inside)


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram', 'bpe'])
def test_a_language_without_words_is_named(tmp_path, kind):
  for texts, says in (({'x': ['ab cd'], 'y': ['\n ']}, "language 'y'"), ({}, 'the corpus')):
    for sampling in (0.7, 1.0):
      with pytest.raises(InputError, match=f'{says} holds no words'):
        trained(kind, texts, tmp_path / 'v', sampling=sampling)
  with pytest.raises(InputError, match="language 'y' holds no words"):
    train_wordpiece({'x': ['ab cd'], 'y': ['\u200b']}, tmp_path / 'v', vocab_size=50, sampling=0.7)
