"""Prepared corpora: the same however they are made, readable by TFDS, and nothing bad unnoticed."""

import gzip
import json
import os
import random
import shutil
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
from running import files_up_to

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.corpus import blocks, loading, prepared
from bert_jax.tasks import TASKS
from bert_jax.tasks.pretraining import task
from bert_jax.text import arrow, tfds
from bert_jax.text import documents as text
from bert_jax.tokenizers.byte_level import byte_tokenizer
from bert_jax.tokenizers.sentence_piece import train_sentencepiece
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Maker, Settings
from bert_jax.workdir import lock

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


@pytest.fixture(scope='module')
def small_corpus(small, vocab, tmp_path_factory):
  """The small text, prepared. Do not write into it."""
  out = tmp_path_factory.mktemp('small') / 'D'
  make(out, vocab, ('', small))
  return out


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


def documents(folder):
  """{name: (tokens, sentences, starts)} as TFDS gives them, records of a document joined."""
  import tensorflow_datasets as tfds

  out = {}
  for row in tfds.data_source('corpus', data_dir=str(folder), split='train'):
    parts = out.setdefault(row['name'].decode(), [[], [], []])
    for part, name in zip(parts, ('tokens', 'sentences', 'starts'), strict=True):
      part.append(row[name])
  return {name: [np.concatenate(x) for x in parts] for name, parts in out.items()}


def pretrain_config(folder, *overrides):
  small = 'model.num_hidden_layers=1', 'model.hidden_size=16', 'model.intermediate_size=16'
  small += 'model.num_attention_heads=2', 'log.tensorboard=false', f'data.train={folder}'
  fields = [f'--config.{x}' for x in (*small, *overrides)]
  return config_lib.load('configs/pretrain.py:runlocal', fields)


def test_tfds_reads_the_tokens_of_every_document(made, big, vocab):
  found = documents(made)
  tokenizer = tokenizers.load_folder(vocab)
  expected = list(text.documents(str(big), counts=Counter()))
  assert len(found) == len(expected) == 1360
  for name, sentences in expected[::50]:
    ids = tokenizer.ids_batch(sentences)
    tokens, lengths, starts = found[name]
    assert (tokens == np.concatenate(ids)).all() and lengths.tolist() == [len(x) for x in ids]
    assert ((starts & 1) == [not tokenizer.pieces[i].startswith('##') for i in tokens]).all()
  meta = prepared.read_meta(made, tokenizer)
  tokens = np.concatenate([tokens for tokens, _, _ in found.values()])
  assert meta['kept'][''] == {
    'documents': 1360,
    'sentences': sum(len(d.sentences) for d in expected),
    'tokens': len(tokens),
    'bytes': sum(len('\n'.join(d.sentences).encode()) for d in expected),
  }
  assert meta['shards'] == 3
  loaded = prepared.load(made, tokenizer)
  assert (loaded.unigrams[0] == np.bincount(tokens, minlength=tokenizer.vocab_size)).all()
  assert (loaded.corpus.piece(0, len(tokens))[0] == tokens).all()


def vocabulary(name, *flags):
  given = ['--input', 'x', '--out', 'y', '--vocab', str(name), *flags]
  return prepare.vocabulary_folder(prepare.parser().parse_args(given))


def test_a_vocabulary_may_be_named_as_a_model_is_and_a_file_is_cased_if_said_so(
  vocab, tmp_path, monkeypatch
):
  model, tokenizer = tmp_path / 'named_weights' / 'model', tokenizers.load_folder(vocab)
  model.mkdir(parents=True)
  (model.parent / '__init__.py').write_text('')
  tokenizer.save(model)
  monkeypatch.syspath_prepend(tmp_path)
  with vocabulary('named_weights/model') as folder:
    assert tokenizers.load_folder(folder).fingerprint == tokenizer.fingerprint
  wrong = pytest.raises(InputError, match='no_such_weights/model holds no run and no model')
  with wrong, vocabulary('no_such_weights/model'):
    pass
  for flags, lower in (((), True), (('--cased',), False)):
    with vocabulary(vocab / 'vocab.txt', *flags) as folder:
      assert tokenizers.load_folder(folder).do_lower_case is lower


def test_killed_and_started_again_two_processes_give_the_bytes_of_one(
  made, big, vocab, tmp_path, capsys
):
  out = tmp_path / 'D'
  arguments = command(big, vocab, out, '--processes', 2)
  process = subprocess.Popen(
    [sys.executable, '-m', 'bert_jax.tools.prepare', *arguments],
    env=dict(os.environ, PYTHONPATH=str(ROOT)),
    stderr=subprocess.DEVNULL,
    start_new_session=True,
  )
  while prepared.finished(out) < 1 and process.poll() is None:
    time.sleep(0.002)
  process.send_signal(signal.SIGKILL)
  process.wait()
  whole = prepared.finished(out)
  assert whole >= 1 and not (out / 'corpus.json').is_file()
  with pytest.raises(ProcessLookupError):  # the workers notice and go
    for _ in range(200):
      os.killpg(process.pid, 0)
      time.sleep(0.1)
  before = {k: prepared.shard_paths(out, k)[0].stat().st_mtime_ns for k in range(whole)}
  with pytest.raises(InputError, match='is not finished'):
    task.resolve(pretrain_config(out))
  prepare.main(command(big, vocab, out, '--processes', 1))
  assert 'going on after' in capsys.readouterr().err and content(out) == content(made)
  for k, at in before.items():
    assert prepared.shard_paths(out, k)[0].stat().st_mtime_ns == at  # stayed
  assert make(out, vocab, ('', big), shard_mb=1) == prepared.read_meta(made)  # whole already


@pytest.fixture(scope='module')
def rows_of_text(tmp_path_factory):
  """A folder of the same rows as rows.jsonl and as two tables of Parquet."""
  folder = tmp_path_factory.mktemp('rows')
  rows = [{'n': i, 'text': '\n'.join(story(i, 1 + i % 7))} for i in range(90)]
  (folder / 'rows.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  for name, part in (('a', rows[:50]), ('b', rows[50:])):
    parquet.write_table(pa.Table.from_pylist(part), folder / f'{name}.parquet', row_group_size=11)
  return folder


def test_a_table_is_prepared_as_its_lines_of_json_are(rows_of_text, vocab, tmp_path, monkeypatch):
  monkeypatch.setattr(arrow, 'ROWS', 7)
  make(tmp_path / 'J', vocab, ('', rows_of_text / 'rows.jsonl'))
  meta = make(tmp_path / 'P', vocab, ('', rows_of_text / '*.parquet'))
  wanted, found = (documents(tmp_path / x) for x in 'JP')
  number = lambda name, i: int(name.rpartition(':')[2]) + (i and name.startswith('b.') and 50)
  wanted = {number(name, 0) - 1: parts for name, parts in wanted.items()}
  found = {number(name, 1): parts for name, parts in found.items()}
  assert wanted.keys() == found.keys() == {*range(90)}
  for i, parts in found.items():
    assert [x.tolist() for x in parts] == [x.tolist() for x in wanted[i]]
  assert meta['counts']['documents'] == 90
  settings = Settings(tuple(('', str(rows_of_text / f'{x}.parquet')) for x in 'ab'), str(vocab))
  prepare.prepare(settings, tmp_path / 'Q', 2)
  assert content(tmp_path / 'Q') == content(tmp_path / 'P')
  monkeypatch.setattr(arrow, 'ROWS', 8)  # its blocks would begin at other rows
  again = lambda: make(tmp_path / 'P', vocab, ('', rows_of_text / '*.parquet'))
  with pytest.raises(InputError, match=r'begun with other settings \(block_rows\)'):
    again()
  plan = json.loads((tmp_path / 'P' / 'plan.json').read_text())
  del plan['block_rows']
  (tmp_path / 'P' / 'plan.json').write_text(json.dumps(plan))
  with pytest.raises(InputError, match='begun by an earlier version, .*train on it if it is whole'):
    again()


def test_a_table_that_is_cut_short_is_named_before_anything_is_prepared(
  rows_of_text, vocab, tmp_path
):
  shutil.copytree(rows_of_text, tmp_path / 'rows')
  last = tmp_path / 'rows' / 'b.parquet'
  last.write_bytes(last.read_bytes()[:-20])
  with pytest.raises(InputError, match='b.parquet is broken or truncated'):
    make(tmp_path / 'D', vocab, ('', tmp_path / 'rows' / '*.parquet'))
  assert not prepared.finished(tmp_path / 'D')
  shutil.copy(rows_of_text / 'b.parquet', last)
  assert make(tmp_path / 'D', vocab, ('', tmp_path / 'rows'))['counts']['documents'] == 90


def test_shards_without_documents_and_a_kill_before_the_end(vocab, tmp_path, monkeypatch):
  """All but the first document are duplicates; then corpus.json is lost and written again."""
  monkeypatch.setattr(text, 'BLOCK_BYTES', 20_000)
  inputs = '', write(tmp_path / 'd.txt', *[story(1, 500)] * 3)
  out, settings = tmp_path / 'D', {'duplicates': 'exact', 'shard_mb': 0}
  meta = make(out, vocab, inputs, **settings)
  assert meta['shards'] == 3 and meta['kept']['']['documents'] == 1
  assert meta['counts']['exact_duplicates'] == 2
  before = content(out)
  (out / 'corpus.json').unlink()
  assert make(out, vocab, inputs, **settings) == meta and content(out) == before
  loaded = prepared.load(out, tokenizers.load_folder(vocab))
  assert len(loaded.corpus) == meta['kept']['']['tokens'] == loaded.unigrams.sum()


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
  prepare.main(command(path, vocab, theirs, '--duplicates', 'near', '--beam'))
  found, expected = documents(theirs), documents(ours)
  assert found.keys() == expected.keys() and 25 < len(found) < 35
  for name, parts in expected.items():
    assert all((a == b).all() for a, b in zip(parts, found[name], strict=True))
  a, b = (prepared.read_meta(x) for x in (ours, theirs))
  assert all(a[name] == b[name] for name in ('counts', 'kept', 'records'))
  assert a['counts']['exact_duplicates'] == 10 and a['counts']['near_duplicates'] > 5
  with pytest.raises(InputError, match=r'begun with other settings \(by\)'):
    make(theirs, vocab, ('', path), duplicates='near', shard_mb=1)


def test_duplicates_and_short_documents_go_and_are_counted(vocab, tmp_path):
  pytest.importorskip('datasketch')
  first, second = story(1, 40), story(2, 40)
  near = first[:39] + ['kala loti .']
  spaced = [s.replace(' ', '  ') for s in second]
  inputs = '', write(tmp_path / 'd.txt', first, second, near, spaced, ['kala .'], story(3, 30))
  for kind, left, gone in (
    ('keep', 5, {}),
    ('exact', 4, {'exact_duplicates': 1}),
    ('near', 3, {'exact_duplicates': 1, 'near_duplicates': 1}),
  ):
    meta = make(tmp_path / kind, vocab, inputs, duplicates=kind, min_characters=20)
    counts = meta['counts']
    assert meta['kept']['']['documents'] == left and counts['documents'] == 6
    assert counts['short_documents'] == 1
    assert {name: n for name, n in counts.items() if 'duplicates' in name} == gone
  inputs = (
    '',
    write(tmp_path / 's.txt', ['kala .'], ['kala', 'ti .'], ['kalati']),
  )  # 6, 8, 6 letters
  for least, left in ((6, 3), (7, 1), (8, 1)):
    meta = make(tmp_path / f'{least}', vocab, inputs, min_characters=least)
    assert meta['kept']['']['documents'] == left
    assert meta['counts'].get('short_documents', 0) == 3 - left


def test_a_document_of_several_records_comes_back_whole(vocab, tmp_path):
  """600 sentences of 8 tokens: records of 2,048 tokens, each of which ends with a sentence."""
  rng = random.Random(0)
  long = [' '.join(rng.choice(WORDS) for _ in range(7)) + ' .' for _ in range(600)]
  write(tmp_path / 'd.txt', ['kala .'], long, ['loti .'])
  meta = make(tmp_path / 'D', vocab, ('', tmp_path / 'd.txt'))
  assert meta['records'] == 5
  tokenizer = tokenizers.load_folder(vocab)
  expected = [tokenizer.pieces.index(word) for sentence in long for word in sentence.split()]
  tokens, sentences, starts = documents(tmp_path / 'D')['d.txt:3']
  assert tokens.tolist() == expected and sentences.tolist() == [8] * 600 and (starts & 1).all()
  loaded = prepared.load(tmp_path / 'D', tokenizer)
  assert np.diff(loaded.corpus.document_at).tolist() == [2, 4800, 2]
  assert np.diff(loaded.corpus.sentences).tolist() == [2, *[8] * 600, 2]
  middle = loaded.corpus.select(np.array([False, True, False]))
  assert middle.piece(0, 4800)[0].tolist() == expected
  assert middle.piece(2040, 4100)[0].tolist() == expected[2040:4100]


def test_another_text_is_another_corpus(vocab, tmp_path):
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
    prepared.load(tmp_path / 'A', other)
  (tmp_path / 'other.txt').write_text('\n'.join([*pieces, 'zebra']))
  with pytest.raises(InputError, match='other.txt is not the vocabulary that .* was prepared with'):
    task.resolve(pretrain_config(tmp_path / 'A', f'tokenizer.path={tmp_path}/other.txt'))


def test_a_shard_of_beam_holds_its_documents_in_order(vocab, tmp_path):
  """Whatever the order in which they come."""
  pytest.importorskip('apache_beam')
  from bert_jax.tools.prepare import beam as prepare_beam

  path = write(tmp_path / 'd.txt', *[['kala loti . ' * k] for k in range(1, 13)])
  settings = Settings((('', str(path)),), str(vocab))
  items, _ = Maker(settings)(0, next(text.blocks(str(path))))
  pairs = [((0, 1, k), item) for k, item in enumerate(items)]
  random.Random(0).shuffle(pairs)
  prepare_beam._write(tmp_path, 0, pairs, 100)
  _, arrays = prepared.read_index(prepared.shard_paths(tmp_path, 0)[1])
  hashes = [
    text.text_hash(document.sentences) for document in text.documents(str(path), counts=Counter())
  ]
  assert len(set(hashes)) == 12 and arrays['hashes'].view(np.uint32).tolist() == hashes


def test_characters_and_bytes_of_a_text_are_counted(vocab, tmp_path, caplog):
  """As in memory; a corpus of an older version has no counts, and no metrics of them."""
  write(tmp_path / 'd.txt', *[['kala loti .', '京 é'], ['nene .']] * 9)
  make(tmp_path / 'D', vocab, ('', tmp_path / 'd.txt'))
  tokenizer = tokenizers.load_folder(vocab)
  found = prepared.load(tmp_path / 'D', tokenizer).corpus.sizes
  assert found.tolist() == [[15, 18], [6, 6]] * 9
  assert prepared.read_meta(tmp_path / 'D')['kept']['']['bytes'] == found[:, 1].sum()
  fields = f'data.train={tmp_path}/D', f'model.vocab_size={tokenizer.vocab_size}'
  fields += 'corpus.eval_share=0.4', 'data.seq_length=16'
  arguments = [f'--config.{x}' for x in fields]
  config = config_lib.load('configs/pretrain.py:runlocal,objective=causal', arguments)
  sources = lambda: TASKS['language_model'].sources(config, tokenizer)
  scales = [source.scales for source in sources().values()]
  assert [set(x) for x in scales] == [{'bits_per_character', 'bits_per_byte'}] * 2
  path = prepared.shard_paths(tmp_path / 'D', 0)[1]
  with np.load(path) as file:
    older = {name: file[name] for name in file.files if name not in prepared.SIZES}
  np.savez_compressed(path, **older)
  caplog.set_level('INFO', 'bert_jax')
  assert [source.scales for source in sources().values()] == [{}, {}]
  assert 'no bits per character and byte: the corpus was prepared without' in caplog.text


def test_what_was_read_lately_is_kept_up_to_a_limit(vocab, tmp_path, monkeypatch):
  write(tmp_path / 'd.txt', *[['kala loti .'] * 10] * 20)
  make(tmp_path / 'D', vocab, ('', tmp_path / 'd.txt'))
  limit = 3 * (30 + prepared.RECORD_TOKENS) + 10
  monkeypatch.setattr(prepared, 'CACHE_TOKENS', limit)
  corpus = prepared.load(tmp_path / 'D', tokenizers.load_folder(vocab)).corpus
  for record in (*range(20), 17, 3):
    tokens, _ = corpus.read(record)
    assert len(tokens) == 30 and list(corpus.read.cache)[-1] == record
    kept = corpus.read.cache.values()
    assert sum(len(tokens) + prepared.RECORD_TOKENS for tokens, _ in kept) <= limit
  assert list(corpus.read.cache) == [19, 17, 3]


def test_each_language_has_counts_of_its_own(vocab, tmp_path):
  """Also where a shard holds one of them only, as here, where each file is a shard."""
  texts = {'x': [['kala'] * 30, ['kane'] * 20], 'y': [['loti'] * 25 + ['kala'] * 5]}
  inputs = [(name, write(tmp_path / f'{name}.txt', *found)) for name, found in texts.items()]
  meta = make(tmp_path / 'D', vocab, *inputs, shard_mb=0)
  assert meta['shards'] == 2
  assert {name: kept['tokens'] for name, kept in meta['kept'].items()} == {'x': 50, 'y': 30}
  tokenizer = tokenizers.load_folder(vocab)
  loaded = prepared.load(tmp_path / 'D', tokenizer)
  for k, counts in enumerate(({'kala': 30, 'kane': 20}, {'loti': 25, 'kala': 5})):
    row = loaded.unigrams[k]
    assert {tokenizer.pieces[i]: int(row[i]) for i in row.nonzero()[0]} == counts
  config = task.resolve(pretrain_config(tmp_path / 'D'))
  parts = loading.load(config, str(tmp_path / 'D'), tokenizer, 'train')
  assert [int(counts.sum()) for _, counts in parts.values()] == [50, 30]
  assert [len(whole) for whole, _ in parts.values()] == [50, 30]


def test_a_prepared_corpus_holds_out_what_its_text_does(small, small_corpus, vocab):
  tokenizer = tokenizers.load_folder(vocab)
  changes = 'corpus.rows=full', 'corpus.eval_share=0.4', 'loss.nsp_weight=0'
  found = []
  for data in (small, small_corpus):
    config = task.resolve(pretrain_config(data, *changes))
    parts = task.sources(config, tokenizer)
    found.append({k: p.corpus.piece(0, len(p.corpus))[0].tolist() for k, p in parts.items()})
    found[-1] |= {f'{k} line': p.baselines['mlm'][0] for k, p in parts.items()}
  assert found[0] == found[1]
  read = text.documents(str(small), counts=Counter())
  held = [document for document in read if text.held_out(document.sentences, 0.4)]
  ids = tokenizer.ids_batch([sentence for document in held for sentence in document.sentences])
  assert found[0]['eval'] == np.concatenate(ids).tolist()


def test_two_do_not_write_one_folder(vocab, tmp_path):
  inputs, out = ('', write(tmp_path / 'a.txt', ['Some words.'])), tmp_path / 'D'
  with lock.held(out), pytest.raises(InputError, match='in use: .* writes into it'):
    make(out, vocab, inputs)
  assert not out.exists()
  whole = make(out, vocab, inputs)
  with lock.held(out):
    assert make(out, vocab, inputs) == whole  # nothing is written


def test_shards_of_several_blocks_are_gone_on_behind(big, vocab, tmp_path, monkeypatch):
  """The last file has documents of the first one, which lie in a shard that is not made again."""
  monkeypatch.setattr(text, 'BLOCK_BYTES', 250_000)
  more = write(tmp_path / 'more.txt', *(story(i, 5 + i % 60) for i in range(660, 860)))
  out, inputs = tmp_path / 'D', [('', big / 'a.txt'), ('', more)]
  settings = {'shard_mb': 1, 'duplicates': 'exact'}
  meta = make(out, vocab, *inputs, **settings)
  assert meta['shards'] == 2 and meta['kept']['']['documents'] == 680 + 180
  assert meta['counts']['exact_duplicates'] == 20
  before = content(out)
  for path in (out / 'corpus.json', *prepared.shard_paths(out, 1)):
    path.unlink()
  assert make(out, vocab, *inputs, **settings) == meta and content(out) == before


def test_a_prepared_corpus_brings_its_vocabulary_and_casing(tmp_path):
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'Kala', 'kala', '.']
  inputs = '', write(tmp_path / 'd.txt', ['Kala kala .'], ['kala Kala .'])
  for lower in (True, False):
    folder, out = tmp_path / f'V{lower}', tmp_path / f'D{lower}'
    tokenizers.wordpiece_tokenizer(pieces, tokenizers.Splitting(lower)).save(folder)
    make(out, folder, inputs)
    config = task.resolve(pretrain_config(out))
    assert config.tokenizer.do_lower_case is lower and config.model.vocab_size == 8
    assert config.tokenizer.path == str(out / 'vocab.txt')
    first = documents(out)['d.txt:1'][0]
    assert [pieces[i] for i in first] == [('Kala', 'kala')[lower], 'kala', '.']


# ---- what is bad is named ------------------------------------------------------------------------


@pytest.mark.parametrize(
  'given, sentence',
  [
    (('--input', 'no.txt'), 'does not exist'),
    (('--vocab', 'configs'), 'holds no vocabulary'),
    (('--procces', '2'), "'--procces' is not known"),
    (('--beam', '--duplicats', 'exact'), "did you mean '--duplicates'"),
    (('--languages', 'de'), 'fills in {language}'),
    (('--shard-mb', '0'), '--shard-mb is 0; use 1 or more'),
  ],
)
def test_command_line_errors(small, vocab, tmp_path, capsys, given, sentence):
  out = tmp_path / 'D'
  source = [] if '--input' in given else ['--input', str(small)]
  with pytest.raises(SystemExit) as end:
    prepare.main([*source, '--vocab', str(vocab), '--out', str(out), *given])
  assert end.value.code == 2 and sentence in capsys.readouterr().err and not out.exists()


def test_bad_input_is_one_sentence(small, vocab, tmp_path):
  out = tmp_path / 'D'
  (tmp_path / 'cut.txt.gz').write_bytes(gzip.compress(small.read_bytes())[:-200])
  (tmp_path / 'blank.txt').write_text('\n \n')
  (tmp_path / 'empty.txt').write_text('')

  def fails(match, *arguments, **settings):
    with pytest.raises(InputError, match=match):
      make(*arguments, **settings)

  fails('broken or truncated .gz file .after line', out, vocab, ('', tmp_path / 'cut.txt.gz'))
  both = ('y', small), ('x', tmp_path / 'blank.txt')
  fails("nothing is left of language 'x'", tmp_path / 'D2', vocab, *both)
  make(out, vocab, ('', small))  # the failed first try binds nobody
  fails('begun with other settings .min_characters', out, vocab, ('', small), min_characters=5)
  fails('empty.txt is empty', tmp_path / 'D3', vocab, ('', small), ('', tmp_path / 'empty.txt'))
  assert not (tmp_path / 'D3').exists()
  (tmp_path / 'D4').mkdir()  # by a process that was killed while it wrote its first file
  (tmp_path / 'D4' / f'.plan.json.{"0" * 32}.tmp').write_text('{')
  make(tmp_path / 'D4', vocab, ('', small))
  fails('holds other files', tmp_path, vocab, ('', small))
  fails('is a file', small, vocab, ('', small))


def test_a_failed_first_try_leaves_no_vocabulary_behind(small, vocab, tmp_path):
  """A try with another kind of vocabulary, whose file would otherwise stand beside the new one."""
  other, texts = tmp_path / 'V', {'': small.read_text().splitlines()}
  options = dict(model_type='unigram', do_lower_case=False, character_coverage=1.0, sampling=1.0)
  train_sentencepiece(texts, vocab_size=60, **options)[0].save(other)
  (tmp_path / 'cut.txt.gz').write_bytes(gzip.compress(small.read_bytes())[:-200])
  for name, failed, used in (('D', vocab, other), ('E', other, vocab)):
    with pytest.raises(InputError, match='broken or truncated'):
      make(tmp_path / name, failed, ('', tmp_path / 'cut.txt.gz'))
    make(tmp_path / name, used, ('', small))
    make(tmp_path / f'{name}2', used, ('', small))
    assert content(tmp_path / name) == content(tmp_path / f'{name}2')


def test_a_full_disk_says_so_and_loses_no_shard(big, vocab, tmp_path, capsys, monkeypatch):
  """A limit on the size of files stands in for the disk."""
  monkeypatch.setenv('TOKENIZERS_PARALLELISM', 'true')
  with files_up_to(400_000), pytest.raises(SystemExit) as end:
    prepare.main(command(big, vocab, tmp_path / 'D', '--processes', 1))
  said = capsys.readouterr().err
  assert end.value.code == 3 and 'could not be written' in said and 'finished shards stay' in said
  assert os.environ['TOKENIZERS_PARALLELISM'] == 'false'  # each process uses one core


def legacy(written):
  """A features.json as old versions of TFDS wrote it, with a text of JSON inside."""
  return {
    'type': 'tensorflow_datasets.core.features.features_dict.FeaturesDict',
    'proto_cls': 'tensorflow_datasets.FeaturesDict',
    'content': json.dumps(written['featuresDict']),
  }


def snake_case(written):
  return json.loads(json.dumps(written).replace('pythonClassName', 'python_class_name'))


@pytest.mark.parametrize('rewritten', (dict, snake_case, legacy))
def test_a_corpus_runs_no_code(small_corpus, vocab, tmp_path, monkeypatch, rewritten):
  """TFDS imports the module of a class that features.json names."""
  out = shutil.copytree(small_corpus, tmp_path / 'D')
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / 'stranger.py').write_text('raise SystemExit("it ran")')
  path = prepared.data_folder(out) / 'features.json'
  written = json.loads(path.read_text())
  for field in written['featuresDict']['features'].values():
    field['pythonClassName'] = 'stranger.Tensor'
  path.write_text(json.dumps(rewritten(written)))
  named = r"names the class 'stranger\.\w+.*would run that code"
  with pytest.raises(InputError, match=named):
    prepared.load(out, tokenizers.load_folder(vocab))
  with pytest.raises(InputError, match=named):
    tfds.source(f'tfds:{out}')
  monkeypatch.setattr('tensorflow_datasets.core.constants.DATA_DIR', str(out))
  with pytest.raises(InputError, match="names the class 'stranger"):
    tfds.source('tfds:corpus')


@pytest.fixture
def damaged(small_corpus, tmp_path):
  """A corpus with a flipped bit in the middle of its only shard."""
  out = shutil.copytree(small_corpus, tmp_path / 'D')
  path, _ = prepared.shard_paths(out, 0)
  data = bytearray(path.read_bytes())
  used = [i for i, byte in enumerate(data[:65_000]) if byte]  # blocks are padded with zeros
  data[used[len(used) // 2]] ^= 16
  path.write_bytes(data)
  return out


def test_a_flipped_bit_is_named(damaged):
  config = task.resolve(pretrain_config(damaged, 'corpus.eval_share=0.3'))
  tokenizer = tokenizers.load_folder(damaged)
  with pytest.raises(InputError, match=r'train-00000.array_record: record \d+ is damaged'):
    for source in task.sources(config, tokenizer).values():
      source.gather(range(len(source)))


@pytest.mark.parametrize('lost', [0, 1], ids=['the table', 'its parts'])
def test_a_lost_index_of_blocks_is_written_again(
  lost, small, small_corpus, vocab, tmp_path, monkeypatch, caplog
):
  """The shards are whole, so the text is not read."""
  out = shutil.copytree(small_corpus, tmp_path / 'D')
  meta = make(out, vocab, ('', small))  # which it is already
  files = [*blocks.paths(out), out / 'corpus.json']
  before = [path.read_bytes() for path in files]
  files[lost].unlink()
  monkeypatch.setattr(prepare, 'results', None)
  assert make(out, vocab, ('', small)) == meta
  assert f'the index of blocks of {out} is missing or damaged' in caplog.text
  assert [path.read_bytes() for path in files] == before
  files[0].write_bytes(b'other')
  assert make(out, vocab, ('', small)) == meta and files[0].read_bytes() == before[0]


def test_a_shard_that_is_cut_off_is_an_error_not_empty_rows(vocab, tmp_path):
  """Cut at a block of 64 KB it opens, and gives records without anything in them."""
  path = write(tmp_path / 'd.txt', *(story(i, 30) for i in range(400)))
  make(tmp_path / 'D', vocab, ('', path))
  path, _ = prepared.shard_paths(tmp_path / 'D', 0)
  assert path.stat().st_size > 3 * 65_536
  os.truncate(path, path.stat().st_size // 65_536 // 2 * 65_536)
  with pytest.raises(InputError, match='prepare .*again'):
    corpus = prepared.load(tmp_path / 'D', tokenizers.load_folder(vocab)).corpus
    for record in range(400):
      corpus.read(record)


def test_a_damaged_index_or_a_missing_shard_is_named(small_corpus, vocab, tmp_path):
  out, tokenizer = shutil.copytree(small_corpus, tmp_path / 'D'), tokenizers.load_folder(vocab)
  records, index = prepared.shard_paths(out, 0)
  whole = index.read_bytes()
  method = whole.index(b'PK\x01\x02') + 10  # how the first array is compressed
  unusual = whole[:method] + b'\xff' + whole[method + 1 :]
  for bad in (whole[: len(whole) // 2], whole[:300] + b'xxxx' + whole[304:], b'', unusual):
    index.write_bytes(bad)
    with pytest.raises(InputError, match='00000.npz is damaged'):
      prepared.load(out, tokenizer)
  index.write_bytes(whole)
  records.unlink()
  with pytest.raises(InputError, match='train-00000.array_record is missing'):
    prepared.load(out, tokenizer)


def test_a_corpus_of_bytes_says_that_documents_are_encoded_whole(small, vocab, tmp_path, caplog):
  """One of an earlier version, which does not say so, is used as it is, with a warning."""
  byte_tokenizer().save(tmp_path / 'V')
  (tmp_path / 'a.jsonl').write_text('{"text": "One. Two.\\nThree"}\n{"text": null}\n' * 2)
  with pytest.raises(InputError, match="field 'text' is null.*--skip-damaged"):
    make(tmp_path / 'no', tmp_path / 'V', ('', tmp_path / 'a.jsonl'))
  out = tmp_path / 'D'
  meta = make(out, tmp_path / 'V', ('', tmp_path / 'a.jsonl'), skip_damaged=True)
  assert meta['encoding'] == 'document' and meta['counts']['left_out_records'] == 2
  assert meta['kept']['']['bytes'] == 2 * len('One. Two.\nThree')
  tokenizer = tokenizers.load_folder(out)
  (whole,) = tokenizer.ids_batch(['One. Two.\nThree'])
  tokens, sentences, _ = documents(out)['a.jsonl:1']
  assert tokens.tolist() == whole.tolist() and sentences.tolist() == [6, 5, 5]
  old = {name: x for name, x in meta.items() if name != 'encoding'}
  assert prepared.fingerprint(old, []) != prepared.fingerprint(meta, [])
  config = pretrain_config(out)
  assert 'encoded by' not in caplog.text
  loading.load(config, str(out), tokenizer, 'train')
  config.corpus.encoding = 'sentence'
  loading.load(config, str(out), tokenizer, 'train')
  assert 'is encoded by document, and corpus.encoding=sentence: there are other' in caplog.text
  plain = make(tmp_path / 'W', vocab, ('', small))
  assert not {'encoding', 'skip_damaged'} & plain.keys()  # the bytes of earlier versions


def test_text_is_read_in_the_encoding_that_is_named(vocab, tmp_path, capsys):
  """Also by the remarks before; a plan without one is as plans of earlier versions are."""
  found = []
  for form in ('', 'utf-16-le'):
    path = tmp_path / f'{form}.txt'
    path.write_text('kala lone .\n北京 大学 .\n', form or 'utf-8')
    named = ('--text-encoding', form) * bool(form)
    prepare.main(command(path, vocab, tmp_path / f'D{form}', '--processes', 1, *named))
    found.append(list(documents(tmp_path / f'D{form}').values()))
    plan = json.loads((tmp_path / f'D{form}' / prepared.PLAN).read_text())
    assert plan.get('text_encoding', '') == form
  np.testing.assert_equal(*found)
  assert len(found[0][0][0]) > 5


def test_a_lexicon_is_read_in_the_encoding_that_is_named_and_must_match(small, vocab, tmp_path):
  pytest.importorskip('ahocorasick_rs')
  source, names = tmp_path / 'a.txt', tmp_path / 'names.txt'
  for path, content in ((source, 'kala lone .\n'), (names, 'kala lone\n')):
    path.write_text(content, 'utf-16-le')
  how = {'entities': str(names), 'text_encoding': 'utf-16-le'}
  assert make(tmp_path / 'D', vocab, ('', source), **how)['counts']['entities_matched'] == 1
  (tmp_path / 'other.txt').write_text('Timbuktu\n')
  with pytest.raises(InputError, match='no line of .*other.txt occurs in the text'):
    make(tmp_path / 'E', vocab, ('', small), entities=str(tmp_path / 'other.txt'))
  config = pretrain_config(source, f'corpus.entities={names}', 'data.text_encoding=utf-16-le')
  ((whole, _),) = loading.load(config, str(source), tokenizers.load_folder(vocab), 'train').values()
  assert len(whole) == 3  # tokens
