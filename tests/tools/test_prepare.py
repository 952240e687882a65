"""Prepared corpora: the same however they are made, read as arrays, and nothing bad unnoticed."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from conftest import ROOT
from pyarrow import parquet
from toys import load

from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.corpus import loading, store
from bert_jax.corpus.store import Store
from bert_jax.tasks.pretraining import resolution, task
from bert_jax.text import arrow
from bert_jax.text import documents as text
from bert_jax.tokenizers.byte_level import byte_tokenizer, train_byte_level
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Maker, Settings

STEMS = ('ka', 'lo', 'mi', 'ru', 'te', 'va', 'shi', 'no')
WORDS = [a + b for a in STEMS for b in ('la', 'ne', 'ti', 'so', 'ur', 'in')]


@pytest.fixture(scope='module')
def vocab(tmp_path_factory):
  folder = tmp_path_factory.mktemp('vocab')
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', ',', *WORDS]
  pieces += ['##' + w for w in ('s', 'ed')] + list('北京大学是好的地方我们在')
  (folder / 'vocab.txt').write_text('\n'.join(pieces) + '\n')
  return folder


def story(seed, sentences):
  rng = random.Random(seed)
  ending = lambda: rng.choice(['', '', 's', 'ed'])
  return [
    ' '.join(rng.choice(WORDS) + ending() for _ in range(rng.randrange(3, 15))) + ' .'
    for _ in range(sentences)
  ]


def write(path, *stories):
  """Writes documents, lists of sentences, in BERT's format."""
  path.write_text('\n\n'.join(map('\n'.join, stories)) + '\n')
  return path


@pytest.fixture(scope='module')
def big(tmp_path_factory):
  """2.3 MB in two files: three shards, of about 1 MB but for the last."""
  folder = tmp_path_factory.mktemp('big')
  for name, first in (('a.txt', 0), ('b.txt', 1000)):
    write(folder / name, *(story(first + i, 5 + i % 60) for i in range(680)))
  return folder


@pytest.fixture(scope='module')
def made(big, vocab, tmp_path_factory):
  out = tmp_path_factory.mktemp('made') / 'D'
  make(out, vocab, ('', big), shard_mb=1)
  return out


@pytest.fixture(scope='module')
def small(tmp_path_factory):
  return write(tmp_path_factory.mktemp('s') / 'small.txt', *(story(i, 8) for i in range(30)))


def command(source, vocab, out, *more):
  given = '--input', source, '--vocab', vocab, '--out', out, '--shard-mb', 1, *more
  return [str(x) for x in given]


def make(out, vocab, *inputs, **settings):
  """prepare() in this process."""
  files = tuple((k, f) for k, spec in inputs for f in text.sources(str(spec)))
  return prepare.prepare(Settings(files, str(vocab), **settings), out)


def content(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


def documents(folder, language=0):
  """[(tokens, sentences, starts)] of the documents of a language."""
  corpus, out = Store(folder).text(language, 1), []
  for d, (begin, end) in enumerate(zip(corpus.document_at, corpus.document_at[1:], strict=False)):
    sentences = np.diff(corpus.sentences)[corpus.documents[d] : corpus.documents[d + 1]]
    tokens, starts = corpus.piece(begin, end)
    out.append((tokens.tolist(), sentences.tolist(), starts.tolist()))
  return out


def pretrain_config(folder, *overrides):
  return load('configs/pretrain.py:runlocal', f'data.train={folder}', *overrides)


def test_the_tokens_of_every_document_are_there(made, big, vocab):
  """In files that numpy maps, beside facts about the text."""
  tokenizer = tokenizers.load_folder(vocab)
  expected = list(text.documents(str(big), counts=Counter()))
  found, opened = documents(made), Store(made, tokenizer)
  assert len(found) == len(expected) == 1360
  for (tokens, sentences, starts), document in zip(found[::50], expected[::50], strict=True):
    ids = tokenizer.ids_batch(document.sentences)
    assert tokens == np.concatenate(ids).tolist() and sentences == [len(x) for x in ids]
    begins = [not tokenizer.pieces[i].startswith('##') for i in tokens]
    assert [start & 1 for start in starts] == begins
  bytes_of = [len('\n'.join(document.sentences).encode()) for document in expected]
  corpus = opened.text(0, 1)
  assert opened.meta['kept'][''] == {
    'documents': 1360,
    'sentences': sum(len(document.sentences) for document in expected),
    'tokens': len(corpus),
    'bytes': sum(bytes_of),
  }
  assert corpus.sizes[:, 1].tolist() == bytes_of and corpus.tokens.dtype == np.uint16
  hashes = [text.text_hash(document.sentences) for document in expected]
  assert corpus.hashes.tolist() == hashes
  assert opened.meta['shards'] == 3 and set(opened.columns['shard']) == {0, 1, 2}
  assert (opened.unigrams[0] == corpus.unigrams(tokenizer.vocab_size)).all()


def test_killed_and_started_again_two_processes_give_the_bytes_of_one(made, big, vocab, tmp_path):
  out = tmp_path / 'D'
  arguments = command(big, vocab, out, '--processes', 2)
  process = subprocess.Popen(
    [sys.executable, '-m', 'bert_jax.tools.prepare', *arguments],
    env=dict(os.environ, PYTHONPATH=str(ROOT)),
    stderr=subprocess.DEVNULL,
    start_new_session=True,
  )
  while store.finished(out) < 1 and process.poll() is None:
    time.sleep(0.002)
  process.send_signal(signal.SIGKILL)
  process.wait()
  whole = store.finished(out)
  assert whole >= 1 and not (out / 'corpus.json').is_file()
  with pytest.raises(ProcessLookupError):  # the workers notice and go
    for _ in range(200):
      os.killpg(process.pid, 0)
      time.sleep(0.1)
  before = [(store.shard_path(out, k) / store.FACTS).stat().st_mtime_ns for k in range(whole)]
  with pytest.raises(InputError, match='is not finished'):
    resolution.resolve(pretrain_config(out))
  prepare.main(command(big, vocab, out, '--processes', 1))
  assert content(out) == content(made)
  after = [(store.shard_path(out, k) / store.FACTS).stat().st_mtime_ns for k in range(whole)]
  assert after == before


def test_changed_text_of_the_same_size_is_seen(big, vocab, tmp_path):
  source = tmp_path / 'a.txt'
  data = (big / 'a.txt').read_bytes() * 2
  source.write_bytes(data)
  out, settings = tmp_path / 'D', dict(shard_mb=1)
  whole = make(out, vocab, ('', source), **settings)
  before = content(out)
  (out / 'corpus.json').unlink()
  source.write_bytes(b'lo' + data[2:])  # in a shard that is not made again
  with pytest.raises(InputError, match='the text is not what it was .* choose another --out'):
    make(out, vocab, ('', source), **settings)
  source.write_bytes(data)
  assert make(out, vocab, ('', source), **settings) == whole and content(out) == before


def test_shards_of_several_portions_are_gone_on_behind(big, vocab, tmp_path, monkeypatch):
  """The last file has documents of the first one, which lie in a shard that is not made again; one
  that is damaged is."""
  monkeypatch.setattr(text, 'PORTION_BYTES', 250_000)
  more = write(tmp_path / 'more.txt', *(story(i, 5 + i % 60) for i in range(660, 860)))
  out, inputs = tmp_path / 'D', [('', big / 'a.txt'), ('', more)]
  settings = {'shard_mb': 1, 'duplicates': 'exact'}
  meta = make(out, vocab, *inputs, **settings)
  assert meta['shards'] == 2 and meta['kept']['']['documents'] == 680 + 180
  assert meta['counts']['exact_duplicates'] == 20
  before = content(out)
  for path in (out / 'corpus.json', store.shard_path(out, 1) / store.FACTS):
    path.unlink()
  assert make(out, vocab, *inputs, **settings) == meta and content(out) == before


def test_a_table_is_prepared_as_its_lines_of_json_are(vocab, tmp_path, monkeypatch):
  """On any number of processes."""
  rows = [{'n': i, 'text': '\n'.join(story(i, 1 + i % 7))} for i in range(90)]
  (tmp_path / 'rows.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  for name, part in (('a', rows[:50]), ('b', rows[50:])):
    parquet.write_table(pa.Table.from_pylist(part), tmp_path / f'{name}.parquet', row_group_size=11)
  monkeypatch.setattr(arrow, 'ROWS', 7)
  make(tmp_path / 'J', vocab, ('', tmp_path / 'rows.jsonl'))
  meta = make(tmp_path / 'P', vocab, ('', tmp_path / '*.parquet'))
  assert documents(tmp_path / 'J') == documents(tmp_path / 'P')
  assert meta['counts']['documents'] == 90
  settings = Settings(tuple(('', str(tmp_path / f'{x}.parquet')) for x in 'ab'), str(vocab))
  prepare.prepare(settings, tmp_path / 'Q', 2)
  assert content(tmp_path / 'Q') == content(tmp_path / 'P')


def test_beam_gives_the_same_documents(vocab, tmp_path):
  """And removes the same duplicates."""
  pytest.importorskip('apache_beam')
  pytest.importorskip('datasketch')
  rng = random.Random(0)
  texts = [story(i, 20) for i in range(30)]
  texts += [t[:-1] + story(99 + i, 1) for i, t in enumerate(rng.sample(texts, 10))]
  texts += rng.sample(texts, 10)
  path, (ours, theirs) = write(tmp_path / 'd.txt', *texts), (tmp_path / 'L', tmp_path / 'B')
  make(ours, vocab, ('', path), duplicates='near', shard_mb=1)
  prepare.main(command(path, vocab, theirs, '--duplicates', 'near', '--beam', '--shards', 2))
  assert 25 < len(documents(ours)) < 35
  assert sorted(documents(theirs)) == sorted(documents(ours))
  a, b = (store.read_meta(x) for x in (ours, theirs))
  assert all(a[name] == b[name] for name in ('counts', 'kept')) and b['shards'] == 2
  assert a['counts']['exact_duplicates'] == 10 and a['counts']['near_duplicates'] > 5


def test_a_shard_of_beam_is_that_of_one_process(vocab, tmp_path):
  """Whatever the order in which its documents come."""
  pytest.importorskip('apache_beam')
  from bert_jax.tools.prepare import beam as prepare_beam

  path = write(tmp_path / 'd.txt', *(story(i, 2) for i in range(12)))
  make(tmp_path / 'D', vocab, ('', path))
  settings = Settings((('', str(path)),), str(vocab))
  items, _ = Maker(settings)(0, next(text.portions(str(path))))
  pairs = [((0, 1, k), item) for k, item in enumerate(items)]
  random.Random(0).shuffle(pairs)
  size = tokenizers.load_folder(vocab).vocab_size
  prepare_beam._write(tmp_path, 0, pairs, size)
  ours, theirs = (content(store.shard_path(x, 0)) for x in (tmp_path / 'D', tmp_path))
  assert {name: theirs[name] for name in ours if name != store.FACTS} == {
    name: data for name, data in ours.items() if name != store.FACTS
  }


def test_duplicates_go_and_are_counted(vocab, tmp_path):
  pytest.importorskip('datasketch')
  first, second = story(1, 40), story(2, 40)
  near = first[:39] + ['kala loti .']
  spaced = [s.replace(' ', '  ') for s in second]
  inputs = '', write(tmp_path / 'd.txt', first, second, near, spaced, story(3, 30))
  for kind, left, gone in (
    ('keep', 5, {}),
    ('exact', 4, {'exact_duplicates': 1}),
    ('near', 3, {'exact_duplicates': 1, 'near_duplicates': 1}),
  ):
    meta = make(tmp_path / kind, vocab, inputs, duplicates=kind)
    counts = meta['counts']
    assert meta['kept']['']['documents'] == left and counts['documents'] == 5
    assert {name: n for name, n in counts.items() if 'duplicates' in name} == gone


def test_another_text_or_vocabulary_is_another_corpus(vocab, tmp_path):
  found = []
  for name, line in (('A', 'kala loti é .'), ('B', 'loti kala é .'), ('C', 'kala loti é .')):
    (tmp_path / 'd.txt').write_text(line)
    meta = make(tmp_path / name, vocab, ('', tmp_path / 'd.txt'))
    found.append(meta['fingerprint'])
    assert meta['kept']['']['bytes'] == 14  # of 13 characters
  assert found[0] == found[2] != found[1]
  pieces = (vocab / 'vocab.txt').read_text().split()
  other = tokenizers.wordpiece_tokenizer(pieces[:5] + pieces[:4:-1])  # the same pieces, other ids
  with pytest.raises(InputError, match='was prepared with another vocabulary than this run has'):
    Store(tmp_path / 'A', other)
  tokenizers.wordpiece_tokenizer([*pieces[:-1], 'other']).save(tmp_path / 'V')  # the same ids here
  meta = make(tmp_path / 'D', tmp_path / 'V', ('', tmp_path / 'd.txt'))
  assert meta['fingerprint'] != found[2] == store.read_meta(tmp_path / 'C')['fingerprint']
  tokens = (documents(tmp_path / name)[0] for name in 'CD')
  assert next(tokens) == next(tokens)


def test_a_corpus_brings_its_vocabulary_and_casing(tmp_path):
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'Kala', 'kala', '.']
  inputs = '', write(tmp_path / 'd.txt', ['Kala kala .'], ['kala Kala .'])
  for lower in (True, False):
    folder, out = tmp_path / f'V{lower}', tmp_path / f'D{lower}'
    tokenizers.wordpiece_tokenizer(pieces, tokenizers.Splitting(lower)).save(folder)
    make(out, folder, inputs)
    config = resolution.resolve(pretrain_config(out))
    assert config.tokenizer.do_lower_case is lower and config.model.vocab_size == 8
    assert config.tokenizer.path == str(out / 'vocab.txt')
    tokens, *_ = documents(out)[0]
    assert [pieces[i] for i in tokens] == [('Kala', 'kala')[lower], 'kala', '.']


def test_each_language_has_counts_of_its_own(vocab, tmp_path):
  """Also where a shard holds one of them only, as here, where each file is a shard."""
  texts = {'x': [['kala'] * 30, ['kane'] * 20], 'y': [['loti'] * 25 + ['kala'] * 5]}
  inputs = [(name, write(tmp_path / f'{name}.txt', *found)) for name, found in texts.items()]
  meta = make(tmp_path / 'D', vocab, *inputs, shard_mb=0)
  assert meta['shards'] == 2
  assert {name: kept['tokens'] for name, kept in meta['kept'].items()} == {'x': 50, 'y': 30}
  tokenizer = tokenizers.load_folder(vocab)
  config = resolution.resolve(pretrain_config(tmp_path / 'D'))
  parts = loading.load(config, str(tmp_path / 'D'), tokenizer, 'train')
  for name, counts in (('x', {'kala': 30, 'kane': 20}), ('y', {'loti': 25, 'kala': 5})):
    corpus, row = parts[name]
    assert {tokenizer.pieces[i]: int(row[i]) for i in row.nonzero()[0]} == counts
    assert len(corpus) == sum(counts.values())


@pytest.mark.parametrize('kind', ['full', 'nsp', 'lm'])
def test_a_small_corpus_gives_the_rows_of_its_text_in_memory(big, made, vocab, kind):
  """And holds out the same documents, though it has several shards."""
  tokenizer, found = tokenizers.load_folder(vocab), []
  changes = f'corpus.rows={kind}', 'corpus.eval_share=0.3', 'corpus.dupe_factor=2'
  changes += 'loss.nsp_weight=0', 'data.seq_length=50'
  for data in (f'{big} tokenizer.path={vocab}/vocab.txt', made):
    parts = task.sources(resolution.resolve(pretrain_config(data, *changes)), tokenizer)
    rows = {split: part.gather(np.arange(len(part))) for split, part in parts.items()}
    found.append((rows, {split: part.baselines['mlm'] for split, part in parts.items()}))
  np.testing.assert_equal(*found)
  held = [x for x in text.documents(str(big), counts=Counter()) if text.held_out(x.sentences, 0.3)]
  sizes = [len(x) for document in held for x in tokenizer.ids_batch(document.sentences)]
  assert parts['eval'].totals['text_tokens'] == sum(sizes)
  assert parts['eval'].totals['documents'] == len(held)


# ---- what is bad is named ------------------------------------------------------------------------


def test_bad_input_is_one_sentence(small, vocab, tmp_path):
  (tmp_path / 'cut.txt.gz').write_bytes(gzip.compress(small.read_bytes())[:-200])
  (tmp_path / 'blank.txt').write_text('\n \n')
  make(tmp_path / 'D', vocab, ('', small))

  def fails(named, out, *inputs, **settings):
    with pytest.raises(InputError, match=named):
      make(out, vocab, *inputs, **settings)

  fails('cut.txt.gz', tmp_path / 'D1', ('', tmp_path / 'cut.txt.gz'))
  fails("language 'x'", tmp_path / 'D2', ('y', small), ('x', tmp_path / 'blank.txt'))
  fails('duplicates', tmp_path / 'D', ('', small), duplicates='exact')
  fails('other files', tmp_path, ('', small))


def test_a_corpus_of_bytes_is_encoded_by_document(vocab, tmp_path):
  byte_tokenizer().save(tmp_path / 'V')
  (tmp_path / 'a.jsonl').write_text('{"text": "One. Two.\\nThree"}\n{"text": null}\n' * 2)
  out = tmp_path / 'D'
  meta = make(out, tmp_path / 'V', ('', tmp_path / 'a.jsonl'), skip_damaged=True)
  assert meta['counts']['left_out_records'] == 2
  assert meta['kept']['']['bytes'] == 2 * len('One. Two.\nThree')
  (whole,) = tokenizers.load_folder(out).ids_batch(['One. Two.\nThree'])
  tokens, sentences, _ = documents(out)[0]
  assert tokens == whole.tolist() and sentences == [6, 5, 5]
  train_byte_level(['Two. Two.'], vocab_size=262)[0].save(tmp_path / 'another')
  with pytest.raises(InputError, match=r'begun with other settings \(vocabulary\)'):
    make(out, tmp_path / 'another', ('', tmp_path / 'a.jsonl'), skip_damaged=True)


def test_a_lexicon_is_read_in_the_encoding_that_is_named(vocab, tmp_path):
  pytest.importorskip('ahocorasick_rs')
  source, names = tmp_path / 'a.txt', tmp_path / 'names.txt'
  for path, written in ((source, 'kala lone .\n'), (names, 'kala lone\n')):
    path.write_text(written, 'utf-16-le')
  how = {'entities': str(names), 'text_encoding': 'utf-16-le'}
  assert make(tmp_path / 'D', vocab, ('', source), **how)['counts']['entities_matched'] == 1
  names.write_text('kala lone\nloti\n', 'utf-16-le')
  with pytest.raises(InputError, match=r'begun with other settings \(lexicons\)'):
    make(tmp_path / 'D', vocab, ('', source), **how)
