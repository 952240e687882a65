"""Prepared corpora: the same however they are made, readable by TFDS, and nothing bad unnoticed."""

import contextlib
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from conftest import ROOT, run_module

from bert_jax import config as config_lib
from bert_jax import sharding, tokenizers
from bert_jax.config import InputError
from bert_jax.corpus import blocks, loading, prepared
from bert_jax.corpus.tokenized import Corpus, DamagedRecord
from bert_jax.rows import batches as batching
from bert_jax.tasks import TASKS
from bert_jax.tasks.pretraining import task
from bert_jax.text import documents as text
from bert_jax.tokenizers.sentencepiece_trainer import train_sentencepiece
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Maker, Settings
from bert_jax.train import train
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


@pytest.fixture(scope='module')
def big(tmp_path_factory):
  """2.9 MB in two files of BERT's format: three shards of about 1 MB."""
  folder = tmp_path_factory.mktemp('big')
  for name, first in (('a.txt', 0), ('b.txt', 1000)):
    documents = ('\n'.join(story(first + i, 5 + i % 60)) for i in range(850))
    (folder / name).write_text('\n\n'.join(documents) + '\n')
  return folder


@pytest.fixture(scope='module')
def made(big, vocab, tmp_path_factory):
  out = tmp_path_factory.mktemp('made') / 'D'
  run_module('bert_jax.tools.prepare', *command(big, vocab, out), '--processes', 1)
  return out


def command(source, vocab, out, *more):
  return ('--input', source, '--vocab', vocab, '--out', out, '--shard-mb', 1, *more)


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
  return config_lib.load(
    'configs/pretrain.py:runlocal',
    [f'--config.data.train={folder}', '--config.log.tensorboard=false', *overrides],
  )


def test_tfds_reads_the_tokens_of_every_document(made, big, vocab):
  found = documents(made)
  tokenizer = tokenizers.load_folder(vocab)
  expected = list(text.documents(str(big), counts=Counter()))
  assert len(found) == len(expected) == 1700
  for name, sentences in expected[::50]:
    ids = tokenizer.ids_batch(sentences)
    tokens, lengths, starts = found[name]
    assert (tokens == np.concatenate(ids)).all() and lengths.tolist() == [len(x) for x in ids]
    assert ((starts & 1) == [not tokenizer.pieces[i].startswith('##') for i in tokens]).all()
  meta = json.loads((made / 'corpus.json').read_text())
  tokens = np.concatenate([tokens for tokens, _, _ in found.values()])
  assert meta['kept'][''] == {
    'documents': 1700,
    'sentences': sum(len(d.sentences) for d in expected),
    'tokens': len(tokens),
    'bytes': sum(len('\n'.join(d.sentences).encode()) for d in expected),
  }
  assert meta['vocabulary'] == tokenizer.fingerprint and meta['shards'] == 3
  loaded = prepared.load(made, tokenizer)
  assert (loaded.unigrams[0] == np.bincount(tokens, minlength=tokenizer.vocab_size)).all()
  assert (loaded.corpus.piece(0, len(tokens))[0] == tokens).all()


def test_a_vocabulary_may_be_named_as_a_model_is(vocab, tmp_path, monkeypatch):
  (tmp_path / 'named_weights' / 'model').mkdir(parents=True)
  (tmp_path / 'named_weights' / '__init__.py').write_text('')
  tokenizer = tokenizers.load_folder(vocab)
  tokenizer.save(tmp_path / 'named_weights' / 'model')
  monkeypatch.syspath_prepend(tmp_path)
  args = SimpleNamespace(vocab='named_weights/model', cased=False)
  with prepare.vocabulary_folder(args) as folder:
    assert tokenizers.load_folder(folder).fingerprint == tokenizer.fingerprint
  args.vocab = 'no_such_weights/model'
  wrong = pytest.raises(InputError, match='no_such_weights/model does not exist')
  with wrong, prepare.vocabulary_folder(args):
    pass


def test_two_processes_give_the_same_bytes(made, big, vocab, tmp_path):
  run_module('bert_jax.tools.prepare', *command(big, vocab, tmp_path / 'D', '--processes', 2))
  assert content(tmp_path / 'D') == content(made)


def test_killed_and_started_again_gives_the_same_bytes(made, big, vocab, tmp_path):
  out = tmp_path / 'D'
  arguments = [str(x) for x in command(big, vocab, out, '--processes', 2)]
  env = dict(os.environ, PYTHONPATH=str(ROOT))
  process = subprocess.Popen(
    [sys.executable, '-m', 'bert_jax.tools.prepare', *arguments],
    cwd=ROOT,
    env=env,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
  )
  while prepared.finished(out) < 1 and process.poll() is None:
    time.sleep(0.002)
  process.send_signal(signal.SIGKILL)
  process.wait()
  whole = prepared.finished(out)
  assert whole >= 1 and not (out / 'corpus.json').is_file()
  for _ in range(200):  # the workers notice and go
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, 0)
      time.sleep(0.1)
      continue
    break
  with pytest.raises(ProcessLookupError):
    os.killpg(process.pid, 0)
  before = {k: prepared.shard_paths(out, k)[0].stat().st_mtime_ns for k in range(whole)}
  with pytest.raises(InputError, match='is not finished'):
    task.resolve(pretrain_config(out))
  run = run_module('bert_jax.tools.prepare', *arguments)
  assert 'going on after' in run.stderr
  assert content(out) == content(made)
  for k, at in before.items():
    assert prepared.shard_paths(out, k)[0].stat().st_mtime_ns == at  # stayed
  again = run_module('bert_jax.tools.prepare', *arguments)
  assert 'is whole already' in again.stderr


def test_shards_without_documents_and_a_kill_before_the_end(vocab, tmp_path):
  """All but the first document are duplicates; then corpus.json is lost and written again."""
  block = '\n'.join(story(1, 24_000))
  (tmp_path / 'd.txt').write_text('\n\n'.join([block] * 3))
  out = tmp_path / 'D'
  meta = make(out, vocab, ('', tmp_path / 'd.txt'), duplicates='exact', shard_mb=1)
  assert meta['shards'] == 3 and meta['kept']['']['documents'] == 1
  assert meta['counts']['exact_duplicates'] == 2
  before = content(out)
  (out / 'corpus.json').unlink()
  assert make(out, vocab, ('', tmp_path / 'd.txt'), duplicates='exact', shard_mb=1) == meta
  assert content(out) == before
  loaded = prepared.load(out, tokenizers.load_folder(vocab))
  assert len(loaded.corpus) == meta['kept']['']['tokens'] == loaded.unigrams.sum()


def test_beam_gives_the_same_documents(made, big, vocab, tmp_path):
  pytest.importorskip('apache_beam')
  run_module('bert_jax.tools.prepare', *command(big, vocab, tmp_path / 'D', '--beam'))
  ours, theirs = documents(made), documents(tmp_path / 'D')
  assert ours.keys() == theirs.keys()
  for name, parts in ours.items():
    assert all((a == b).all() for a, b in zip(parts, theirs[name], strict=True))
  again = run_module('bert_jax.tools.prepare', *command(big, vocab, tmp_path / 'D'), check=False)
  assert 'begun with other settings (by)' in again.stderr  # the two do not mix in one folder
  a, b = (json.loads((d / 'corpus.json').read_text()) for d in (made, tmp_path / 'D'))
  assert a['counts'] == b['counts'] and a['kept'] == b['kept'] and a['records'] == b['records']


def test_duplicates_and_short_documents_go_and_are_counted(vocab, tmp_path):
  first, second = story(1, 40), story(2, 40)
  near = first[:39] + ['kala loti .']
  spaced = [s.replace(' ', '  ') for s in second]
  texts = [first, second, near, spaced, ['kala .'], story(3, 30)]
  (tmp_path / 'd.txt').write_text('\n\n'.join('\n'.join(d) for d in texts))
  counts = {}
  for kind in ('keep', 'exact', 'near'):
    if kind == 'near':
      pytest.importorskip('datasketch')
    meta = make(
      tmp_path / kind, vocab, ('', tmp_path / 'd.txt'), duplicates=kind, min_characters=20
    )
    counts[kind] = meta['kept']['']['documents'], meta['counts']
    assert meta['counts']['short_documents'] == 1 and meta['counts']['documents'] == 6
  assert counts['keep'][0] == 5
  assert counts['exact'][0] == 4 and counts['exact'][1]['exact_duplicates'] == 1
  assert counts['near'][0] == 3 and counts['near'][1]['near_duplicates'] == 1


def test_beam_removes_the_same_duplicates(vocab, tmp_path):
  pytest.importorskip('apache_beam')
  pytest.importorskip('datasketch')
  rng = random.Random(0)
  texts = [story(i, 20) for i in range(30)]
  texts += [t[:-1] + story(99 + i, 1) for i, t in enumerate(rng.sample(texts, 10))]
  texts += rng.sample(texts, 10)
  (tmp_path / 'd.txt').write_text('\n\n'.join('\n'.join(d) for d in texts))
  outs = tmp_path / 'L', tmp_path / 'B'
  for out, more in zip(outs, ((), ('--beam',)), strict=True):
    run_module(
      'bert_jax.tools.prepare',
      *command(tmp_path / 'd.txt', vocab, out, '--duplicates', 'near', *more),
    )
  ours, theirs = map(documents, outs)
  assert ours.keys() == theirs.keys() and 25 < len(ours) < 35
  a, b = (json.loads((out / 'corpus.json').read_text())['counts'] for out in outs)
  assert a == b and a['exact_duplicates'] == 10 and a['near_duplicates'] > 5


def test_compressed_files_and_formats_are_read(vocab, tmp_path):
  lines = story(5, 12)
  plain = '\n'.join(lines) + '\n'
  (tmp_path / 'a.txt').write_text(plain)
  (tmp_path / 'b.txt.gz').write_bytes(gzip.compress(plain.encode()))
  (tmp_path / 'c.jsonl').write_text(json.dumps({'text': '\n'.join(lines)}) + '\n')
  (tmp_path / 'd.md').write_text('# ' + lines[0] + '\n\n' + '\n\n'.join(lines[1:]) + '\n')
  names = ['a.txt', 'b.txt.gz', 'c.jsonl', 'd.md']
  try:
    from backports import zstd

    (tmp_path / 'e.txt.zst').write_bytes(zstd.compress(plain.encode()))
    names.append('e.txt.zst')
  except ImportError:
    pass
  make(tmp_path / 'D', vocab, *(('', tmp_path / name) for name in names))
  found = list(documents(tmp_path / 'D').values())
  assert len(found) == len(names)
  for tokens, sentences, _ in found[1:]:
    assert (tokens == found[0][0]).all() and (sentences == found[0][1]).all()


def test_a_document_of_one_line_of_10_megabytes(vocab, tmp_path):
  line = ' '.join(story(7, 150_000)).replace(' .', '')
  (tmp_path / 'd.txt').write_text(line[: 10 << 20] + '\n\nkala loti .\n')
  meta = make(tmp_path / 'D', vocab, ('', tmp_path / 'd.txt'))
  assert meta['kept']['']['documents'] == 2 and meta['records'] > 50
  assert meta['counts']['cut_sentences'] > 700
  found = documents(tmp_path / 'D')
  assert len(found['d.txt:1'][0]) == meta['kept']['']['tokens'] - 3
  words = line[: 10 << 20].split()
  assert (found['d.txt:1'][2] & 1).sum() == pytest.approx(len(words), abs=2000)


def test_a_document_of_several_records_comes_back_whole(vocab, tmp_path):
  """600 sentences of 8 tokens: records of 2,048 tokens, each of which ends with a sentence."""
  rng = random.Random(0)
  long = [' '.join(rng.choice(WORDS) for _ in range(7)) + ' .' for _ in range(600)]
  (tmp_path / 'd.txt').write_text('\n\n'.join('\n'.join(d) for d in (['kala .'], long, ['loti .'])))
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
  other = tokenizers.WordPiece(pieces[:5] + pieces[:4:-1])  # the same pieces, other ids
  with pytest.raises(InputError, match='was prepared with another vocabulary than this run has'):
    prepared.load(tmp_path / 'A', other)


def test_a_shard_of_beam_holds_its_documents_in_order(vocab, tmp_path):
  """Whatever the order in which they come."""
  pytest.importorskip('apache_beam')
  from bert_jax.tools.prepare import beam as prepare_beam

  path = tmp_path / 'd.txt'
  path.write_text('\n\n'.join(['kala loti .'] * 12))
  settings = Settings((('', str(path)),), str(vocab))
  items, _ = Maker(settings)(0, next(text.blocks(str(path))))
  pairs = [((0, 1, k), item) for k, item in enumerate(items)]
  random.Random(0).shuffle(pairs)
  prepare_beam._write(tmp_path, 0, pairs, 100)
  _, arrays = prepared.read_index(prepared.shard_paths(tmp_path, 0)[1])
  names = [f'd.txt:{line}' for line in range(1, 25, 2)]
  assert arrays['names'].tolist() == [zlib.crc32(name.encode()) for name in names]


def test_characters_and_bytes_of_a_text_are_counted(vocab, tmp_path, caplog):
  """As in memory; a corpus of an older version has no counts, and no metrics of them."""
  (tmp_path / 'd.txt').write_text('\n\n'.join(['kala loti .\n京 é', 'nene .'] * 9))
  make(tmp_path / 'D', vocab, ('', tmp_path / 'd.txt'))
  tokenizer = tokenizers.load_folder(vocab)
  found = prepared.load(tmp_path / 'D', tokenizer).corpus.sizes
  assert found.tolist() == [[15, 18], [6, 6]] * 9
  assert prepared.read_meta(tmp_path / 'D')['kept']['']['bytes'] == found[:, 1].sum()
  pieces = tokenizer.vocab_size
  arguments = [
    f'--config.data.train={tmp_path}/D',
    f'--config.model.vocab_size={pieces}',
    '--config.corpus.eval_share=0.4',
    '--config.data.seq_length=16',
  ]
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
  (tmp_path / 'd.txt').write_text('\n\n'.join('\n'.join(['kala loti .'] * 10) for _ in range(20)))
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
  for name, found in texts.items():
    (tmp_path / f'{name}.txt').write_text('\n\n'.join('\n'.join(d) for d in found))
  inputs = [(name, tmp_path / f'{name}.txt') for name in texts]
  meta = make(tmp_path / 'D', vocab, *inputs, shard_mb=0)
  assert meta['shards'] == 2
  assert {name: kept['tokens'] for name, kept in meta['kept'].items()} == {'x': 50, 'y': 30}
  tokenizer = tokenizers.load_folder(vocab)
  loaded = prepared.load(tmp_path / 'D', tokenizer)
  for k, counts in enumerate(({'kala': 30, 'kane': 20}, {'loti': 25, 'kala': 5})):
    found = {
      tokenizer.pieces[i]: int(loaded.unigrams[k][i]) for i in loaded.unigrams[k].nonzero()[0]
    }
    assert found == counts
  config = task.resolve(pretrain_config(tmp_path / 'D'))
  parts = loading.load(config, str(tmp_path / 'D'), tokenizer, 'train')
  assert [int(counts.sum()) for _, _, counts in parts.values()] == [50, 30]
  assert [len(whole) for whole, _, _ in parts.values()] == [50, 30]


def test_a_prepared_corpus_holds_out_what_its_text_does(small, vocab, tmp_path):
  make(tmp_path / 'D', vocab, ('', small))
  tokenizer = tokenizers.load_folder(vocab)
  changes = ('--config.corpus.eval_share=0.4', '--config.loss.nsp_weight=0')
  found = []
  for data in (small, tmp_path / 'D'):
    config = task.resolve(pretrain_config(data, '--config.corpus.rows=full', *changes))
    parts = task.sources(config, tokenizer)
    found.append({k: p.corpus.piece(0, len(p.corpus))[0].tolist() for k, p in parts.items()})
    found[-1] |= {f'{k} line': p.baselines['mlm'][0] for k, p in parts.items()}
  assert found[0] == found[1]
  held = [
    d.sentences
    for d in text.documents(str(small), counts=Counter())
    if zlib.crc32(d.name.encode()) < 0.4 * 2**32
  ]
  ids = [tokenizer.ids_batch(sentences) for sentences in held]
  assert found[0]['eval'] == np.concatenate([x for one in ids for x in one]).tolist()


def test_two_do_not_write_one_folder(vocab, tmp_path):
  text, out = tmp_path / 'a.txt', tmp_path / 'D'
  text.write_text('Some words.\nMore words.\n')
  settings = prepare.Settings(inputs=(('', str(text)),), vocab=str(vocab))
  with lock.held(out), pytest.raises(InputError, match='in use: .* writes into it'):
    prepare.prepare(settings, out)
  assert not out.exists()
  whole = prepare.prepare(settings, out)
  with lock.held(out):
    assert prepare.prepare(settings, out) == whole  # nothing is written


def test_what_was_begun_goes_on_behind_its_last_shard(vocab, tmp_path):
  """Five files, a shard each, every one with a document of the first: after the loss of the last
  two shards they are made again, and the others are not."""
  for i in range(5):
    both = story(i, 6), story(99, 6)
    (tmp_path / f'{i}.txt').write_text('\n\n'.join('\n'.join(d) for d in both))
  inputs = [('', tmp_path / f'{i}.txt') for i in range(5)]
  meta = make(tmp_path / 'D', vocab, *inputs, shard_mb=0, duplicates='exact')
  assert meta['kept']['']['documents'] == 6 and meta['counts']['exact_duplicates'] == 4
  before = content(tmp_path / 'D')
  assert list(documents(tmp_path / 'D')) == [
    '0.txt:1',
    '0.txt:8',
    '1.txt:1',
    '2.txt:1',
    '3.txt:1',
    '4.txt:1',
  ]
  (tmp_path / 'D' / 'corpus.json').unlink()
  for shard in (3, 4):
    for path in prepared.shard_paths(tmp_path / 'D', shard):
      path.unlink()
  with pytest.raises(InputError, match='is not finished; run the bert_jax.tools.prepare that made'):
    task.resolve(pretrain_config(tmp_path / 'D'))
  assert make(tmp_path / 'D', vocab, *inputs, shard_mb=0, duplicates='exact') == meta
  assert content(tmp_path / 'D') == before


def test_shards_of_several_blocks_are_gone_on_behind(big, vocab, tmp_path, monkeypatch):
  monkeypatch.setattr(text, 'BLOCK_BYTES', 250_000)
  meta = make(tmp_path / 'D', vocab, ('', big / 'a.txt'), shard_mb=1)
  assert meta['shards'] == 2 and meta['kept']['']['documents'] == 850
  before = content(tmp_path / 'D')
  (tmp_path / 'D' / 'corpus.json').unlink()
  prepared.shard_paths(tmp_path / 'D', 1)[0].unlink()
  assert make(tmp_path / 'D', vocab, ('', big / 'a.txt'), shard_mb=1) == meta
  assert content(tmp_path / 'D') == before


def test_the_shortest_document_that_stays(vocab, tmp_path):
  (tmp_path / 'd.txt').write_text('kala .\n\nkala\nti .\n\nkalati\n')  # 6, 8 and 6 characters
  for least, left in ((6, 3), (7, 1), (8, 1)):
    meta = make(tmp_path / f'{least}', vocab, ('', tmp_path / 'd.txt'), min_characters=least)
    assert meta['kept']['']['documents'] == left
    assert meta['counts'].get('short_documents', 0) == 3 - left


def test_a_prepared_corpus_brings_its_vocabulary_and_casing(tmp_path):
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'Kala', 'kala', '.']
  (tmp_path / 'd.txt').write_text('Kala kala .\n\nkala Kala .\n')
  for lower in (True, False):
    tokenizers.WordPiece(pieces, tokenizers.Splitting(lower)).save(tmp_path / f'V{lower}')
    make(tmp_path / f'D{lower}', tmp_path / f'V{lower}', ('', tmp_path / 'd.txt'))
    config = task.resolve(pretrain_config(tmp_path / f'D{lower}'))
    assert config.tokenizer.do_lower_case is lower and config.model.vocab_size == 8
    assert config.tokenizer.path == str(tmp_path / f'D{lower}' / 'vocab.txt')
    first = documents(tmp_path / f'D{lower}')['d.txt:1'][0]
    assert [pieces[i] for i in first] == [('Kala', 'kala')[lower], 'kala', '.']


def test_a_vocabulary_file_is_cased_if_said_so(vocab, tmp_path):
  for flags, lower in (((), True), (('--cased',), False)):
    arguments = ['--input', 'x', '--out', 'y', '--vocab', str(vocab / 'vocab.txt'), *flags]
    with prepare.vocabulary_folder(prepare.parser().parse_args(arguments)) as folder:
      assert tokenizers.load_folder(folder).do_lower_case is lower


# ---- what is bad is named ------------------------------------------------------------------------


def refused(*arguments):
  out = run_module('bert_jax.tools.prepare', *arguments, check=False)
  assert out.returncode == 2 and 'Traceback' not in out.stderr, out.stderr[-2000:]
  return out.stderr


@pytest.fixture
def small(tmp_path):
  path = tmp_path / 'small.txt'
  path.write_text('\n\n'.join('\n'.join(story(i, 8)) for i in range(30)))
  return path


def test_command_line_errors(small, vocab, tmp_path):
  out = tmp_path / 'D'
  assert 'does not exist' in refused(*command(tmp_path / 'no.txt', vocab, out))
  assert 'holds no vocabulary' in refused(*command(small, tmp_path, out))
  assert '--procces is not known' in refused(*command(small, vocab, out), '--procces', 2).replace(
    "'", ''
  )
  assert "did you mean '--duplicates'" in refused(
    *command(small, vocab, out), '--beam', '--duplicats', 'exact'
  )
  assert 'fills in {language}' in refused(*command(small, vocab, out), '--languages', 'de')
  assert not out.exists()


def test_bad_input_is_one_sentence(small, vocab, tmp_path):
  out = tmp_path / 'D'
  (tmp_path / 'cut.txt.gz').write_bytes(gzip.compress(small.read_bytes())[:-200])
  with pytest.raises(InputError, match='broken or truncated .gz file .after line'):
    make(out, vocab, ('', tmp_path / 'cut.txt.gz'))
  (tmp_path / 'blank.txt').write_text('\n \n')
  with pytest.raises(InputError, match="nothing is left of language 'x'"):
    make(tmp_path / 'D2', vocab, ('y', small), ('x', tmp_path / 'blank.txt'))
  make(out, vocab, ('', small))  # the failed first try binds nobody
  with pytest.raises(InputError, match='begun with other settings .min_characters'):
    make(out, vocab, ('', small), min_characters=5)
  (tmp_path / 'empty.txt').write_text('')
  with pytest.raises(InputError, match='empty.txt is empty'):
    make(tmp_path / 'D3', vocab, ('', small), ('', tmp_path / 'empty.txt'))
  assert not (tmp_path / 'D3').exists()
  with pytest.raises(InputError, match='holds other files'):
    make(tmp_path, vocab, ('', small))
  with pytest.raises(InputError, match='is a file'):
    make(small, vocab, ('', small))


def test_a_failed_first_try_leaves_no_vocabulary_behind(small, vocab, tmp_path):
  """A try with another kind of vocabulary, whose file would otherwise stand beside the new one."""
  other = tmp_path / 'V'
  train_sentencepiece({'': small.read_text().splitlines()}, tmp_path / 'spm.model', vocab_size=60)
  tokenizers.load(tmp_path / 'spm.model').save(other)
  (tmp_path / 'cut.txt.gz').write_bytes(gzip.compress(small.read_bytes())[:-200])
  for name, failed, used in (('D', vocab, other), ('E', other, vocab)):
    with pytest.raises(InputError, match='broken or truncated'):
      make(tmp_path / name, failed, ('', tmp_path / 'cut.txt.gz'))
    make(tmp_path / name, used, ('', small))
    make(tmp_path / f'{name}2', used, ('', small))
    assert content(tmp_path / name) == content(tmp_path / f'{name}2')


def test_a_lexicon_must_match_something(small, vocab, tmp_path):
  pytest.importorskip('ahocorasick_rs')
  (tmp_path / 'lexicon.txt').write_text('Timbuktu\n')
  with pytest.raises(InputError, match='no line of .*lexicon.txt occurs in the text'):
    make(tmp_path / 'D', vocab, ('', small), entities=str(tmp_path / 'lexicon.txt'))


def test_a_full_disk_says_so_and_loses_no_shard(big, vocab, tmp_path):
  """A limit on the size of files stands in for the disk."""
  code = (
    'import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); '
    'resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)); '
    'from bert_jax.tools.prepare import __main__ as prepare; prepare.main(sys.argv[1:])'
  )
  arguments = [str(x) for x in command(big, vocab, tmp_path / 'D', '--processes', 1)]
  out = subprocess.run(
    [sys.executable, '-c', code, *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
    env=dict(os.environ, PYTHONPATH=str(ROOT)),
  )
  assert out.returncode == 2 and 'could not be written' in out.stderr, out.stderr[-2000:]
  assert 'Traceback' not in out.stderr and 'finished shards stay' in out.stderr


@pytest.fixture
def damaged(small, vocab, tmp_path):
  """A corpus with a flipped bit in the middle of its only shard."""
  out = tmp_path / 'D'
  make(out, vocab, ('', small))
  path, _ = prepared.shard_paths(out, 0)
  data = bytearray(path.read_bytes())
  used = [i for i, byte in enumerate(data[:65_000]) if byte]  # blocks are padded with zeros
  data[used[len(used) // 2]] ^= 16
  path.write_bytes(data)
  return out


def test_a_flipped_bit_is_named_or_skipped_and_counted(damaged):
  def batches(skip):
    changes = [f'--config.data.skip_damaged={skip}', '--config.corpus.eval_share=0.3']
    config = task.resolve(pretrain_config(damaged, *changes))
    tokenizer = tokenizers.load_folder(damaged)
    found = task.sources(config, tokenizer)
    spec = task.objective(config, tokenizer).spec(4)
    where = sharding.batch_sharding(sharding.make_mesh(1, 1, 1, jax.devices()[:1]))
    return [
      batching.Batches(source, spec, where, limits={}, skip_damaged=skip)
      for source in found.values()
    ]

  with pytest.raises(InputError, match=r'train-00000.array_record: record \d+ is damaged'):
    for whole in batches(False):
      for step in range(len(whole)):
        whole[step]
  empty = counted = 0
  for part in batches(True):
    for step in range(len(part)):
      rows = min(4, len(part.source) - 4 * step)
      empty += sum(not row.any() for row in np.asarray(part[step]['segment_ids'])[:rows])
    counted += part.damaged_rows
  assert counted == empty > 0


def test_damaged_rows_are_counted_once_whether_a_run_stops_or_not(damaged, tmp_path):
  def last(name, *lengths):
    for steps in lengths:
      changes = [f'--config.steps={steps}', '--config.data.skip_damaged=true']
      changes += ['--config.eval.every=0', '--config.data.eval=', '--config.corpus.eval_share=0']
      train(pretrain_config(damaged, *changes), tmp_path / name)
    return json.loads((tmp_path / name / 'metrics.jsonl').read_text().splitlines()[-1])

  whole, stopped = last('whole', 6), last('stopped', 3, 6)
  assert whole['damaged_rows'] == stopped['damaged_rows'] > 0


def test_a_flipped_bit_in_a_held_out_document_is_named_or_skipped(damaged):
  def make(skip):
    changes = ['corpus.eval_share=0.9', 'corpus.rows=full', 'loss.nsp_weight=0']
    changes = [f'--config.{x}' for x in (f'data.skip_damaged={skip}', *changes)]
    config = task.resolve(pretrain_config(damaged, *changes))
    return task.sources(config, tokenizers.load_folder(damaged))['eval']

  with pytest.raises(InputError, match=r'train-00000.array_record: record \d+ is damaged'):
    make(False)
  assert make(True).baselines['mlm'][0] > 0


def test_damaged_records_are_not_counted_and_named_in_one_line(caplog):
  def read(record):
    if record in (1, 3):
      raise DamagedRecord(f'record {record} is damaged')
    return np.array([record]), np.zeros(1, np.uint8)

  corpus = Corpus(read, range(4), range(5), range(5), range(5), '')
  assert corpus.unigrams(5, skip_damaged=True).tolist() == [1, 0, 1, 0, 0]
  (line,) = caplog.messages
  assert line == 'record 1 is damaged (its tokens are not counted, nor those of 1 more)'
  with pytest.raises(DamagedRecord):
    corpus.unigrams(5)


@pytest.mark.parametrize('lost', [0, 1], ids=['the table', 'its parts'])
def test_a_lost_index_of_blocks_is_written_again(lost, small, vocab, tmp_path):
  out = tmp_path / 'D'
  meta = make(out, vocab, ('', small))
  files = [*blocks.paths(out), out / 'corpus.json']
  before = [path.read_bytes() for path in files]
  files[lost].unlink()
  assert make(out, vocab, ('', small)) == meta
  assert [path.read_bytes() for path in files] == before
  files[0].write_bytes(b'other')
  assert make(out, vocab, ('', small)) == meta and files[0].read_bytes() == before[0]


def test_a_shard_that_is_cut_off_is_an_error_not_empty_rows(vocab, tmp_path):
  """Cut at a block of 64 KB it opens, and gives records without anything in them."""
  (tmp_path / 'd.txt').write_text('\n\n'.join('\n'.join(story(i, 30)) for i in range(400)))
  make(tmp_path / 'D', vocab, ('', tmp_path / 'd.txt'))
  path, _ = prepared.shard_paths(tmp_path / 'D', 0)
  assert path.stat().st_size > 3 * 65_536
  os.truncate(path, path.stat().st_size // 65_536 // 2 * 65_536)
  with pytest.raises(InputError, match='prepare (the corpus|it) again'):
    corpus = prepared.load(tmp_path / 'D', tokenizers.load_folder(vocab)).corpus
    for record in range(400):
      corpus.read(record)


def test_a_damaged_index_or_a_missing_shard_is_named(small, vocab, tmp_path):
  out, tokenizer = tmp_path / 'D', tokenizers.load_folder(vocab)
  make(out, vocab, ('', small))
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


def test_another_vocabulary_is_refused(small, vocab, tmp_path):
  from bert_jax.train import train

  make(tmp_path / 'D', vocab, ('', small))
  other = tmp_path / 'other.txt'
  other.write_text((vocab / 'vocab.txt').read_text() + 'zebra\n')
  config = pretrain_config(tmp_path / 'D', f'--config.tokenizer.path={other}')
  with pytest.raises(InputError, match='vocabulary'):
    train(config, tmp_path / 'W')
  assert not (tmp_path / 'W').exists()
