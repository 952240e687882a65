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
from collections import Counter

import jax
import numpy as np
import pytest
from conftest import ROOT, run_module

from bert_jax import config as config_lib
from bert_jax import sharding, tokenizers
from bert_jax.config import InputError
from bert_jax.corpus import prepared
from bert_jax.rows import batches as batching
from bert_jax.tasks.pretraining import task
from bert_jax.text import documents as text
from bert_jax.tokenizers.sentencepiece_trainer import train_sentencepiece
from bert_jax.tools import prepare
from bert_jax.tools.prepare_steps import Settings

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


def test_two_processes_give_the_same_bytes(made, big, vocab, tmp_path):
  run_module('bert_jax.tools.prepare', *command(big, vocab, tmp_path / 'D', '--processes', 2))
  assert content(tmp_path / 'D') == content(made)


def test_killed_and_started_again_gives_the_same_bytes(made, big, vocab, tmp_path):
  out = tmp_path / 'D'
  arguments = [str(x) for x in command(big, vocab, out, '--processes', 2)]
  env = dict(os.environ, PYTHONPATH=str(ROOT))
  process = subprocess.Popen(
    [sys.executable, '-m', 'bert_jax.tools.prepare', *arguments], cwd=ROOT, env=env,
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
  )  # fmt: skip
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
  assert 'begun with another by' in again.stderr  # the two do not mix in one folder
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
  with pytest.raises(InputError, match='begun with another min_characters'):
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
    'from bert_jax.tools import prepare; prepare.main(sys.argv[1:])'
  )
  arguments = [str(x) for x in command(big, vocab, tmp_path / 'D', '--processes', 1)]
  out = subprocess.run(
    [sys.executable, '-c', code, *arguments], cwd=ROOT, capture_output=True, text=True,
    env=dict(os.environ, PYTHONPATH=str(ROOT)),
  )  # fmt: skip
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


def test_a_damaged_index_or_a_missing_shard_is_named(small, vocab, tmp_path):
  out, tokenizer = tmp_path / 'D', tokenizers.load_folder(vocab)
  make(out, vocab, ('', small))
  records, index = prepared.shard_paths(out, 0)
  whole = index.read_bytes()
  for bad in (whole[: len(whole) // 2], whole[:300] + b'xxxx' + whole[304:], b''):
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
