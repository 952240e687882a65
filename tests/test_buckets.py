"""Buckets as folders: what is on a disk is in a bucket as well, with the same bits."""

import contextlib
import dataclasses
import gzip
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import fake_bucket
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_pretrain
from running import same_bits, train_lines

from bert_jax import buckets, copies, files, step, tokenizers
from bert_jax.buckets import Bucket, Path
from bert_jax.corpus.store import Store
from bert_jax.errors import InputError, farewell
from bert_jax.run.inputs import read_inputs
from bert_jax.text import documents as text
from bert_jax.text import files as text_files
from bert_jax.tools import convert
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings
from bert_jax.train import train
from bert_jax.workdir import checkpoint, lock, records, saved_steps, trained


@pytest.fixture
def fake(tmp_path, monkeypatch):
  """A folder in a bucket of fake_bucket.py, which is empty."""
  fake_bucket.in_folder(tmp_path, monkeypatch)
  return Path('az://mine/D')


@pytest.fixture(scope='module')
def s3_server():
  """The address of a server on this machine that speaks S3's protocol."""
  pytest.importorskip('s3fs')
  server = pytest.importorskip('moto.server').ThreadedMotoServer('127.0.0.1', 0, verbose=False)
  server.start()
  yield f'http://127.0.0.1:{server.get_host_and_port()[1]}'
  server.stop()


@pytest.fixture
def s3(s3_server, fake, monkeypatch):
  """A folder in a bucket of that server, which is empty."""
  settings = {'ACCESS_KEY_ID': 'x', 'SECRET_ACCESS_KEY': 'x', 'DEFAULT_REGION': 'us-east-1'}
  for name, value in (settings | {'ENDPOINT_URL': s3_server}).items():
    monkeypatch.setenv(f'AWS_{name}', value)
  buckets._store.cache_clear()
  store = buckets._store('s3', os.getpid())
  if store.exists('mine'):
    store.rm('mine', recursive=True)
  store.mkdir('mine')
  return Path('s3://mine/D')


@pytest.fixture(params=['fake', pytest.param('s3', marks=pytest.mark.slow)])
def bucket(request):
  """A folder in a bucket, which is empty."""
  return request.getfixturevalue(request.param)


# ---- paths ---------------------------------------------------------------------------------------


def test_the_url_of_a_bucket_is_a_path(fake):
  assert isinstance(fake, Bucket) and str(fake) == f'{fake}' == os.fspath(fake) == 'az://mine/D'
  assert fake / 'a' / 'b.txt' == Path('az://mine', 'D', 'a', 'b.txt') == Path(fake, 'a/b.txt')
  assert pickle.loads(pickle.dumps(fake)) == fake == fake.absolute() == fake.expanduser()
  assert (fake / 'a' / 'b').relative_to(fake).parts == ('a', 'b') and fake.protocol == 'az'
  for local in ('a/b', '', '~/x', 'tfds:/data/x', 'data:/x', 'hf:/x', pathlib.Path('a')):
    assert type(Path(local)) is type(pathlib.Path('a')) and Path(local) == pathlib.Path(local)


def test_what_no_package_reads_is_refused():
  for spec in ('nowhere://a/b', 's3:///'):
    with pytest.raises(InputError, match=f'{spec}: nothing here reads that'):
      Path(spec)


def test_imports_stay_cheap():
  """Neither the package nor a training imports what reads buckets, or what makes pages."""
  program = """if True:
    import sys
    import bert_jax.train
    from bert_jax.buckets import Path
    Path('gs://b/x') / 'y'
    unwanted = {'fsspec', 'gcsfs', 's3fs', 'tensorflow', 'torch', 'pandas', 'jinja2'}
    print(sorted(unwanted & sys.modules.keys()))"""
  done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
  assert done.stdout == '[]\n', done.stderr[-500:]


def test_files_are_written_whole_and_appended_to_visibly(bucket, monkeypatch, caplog):
  files.write_whole(bucket / 'a.txt', 'one\ntwo')
  files.write_sealed(bucket / 'c' / 'd.json', {'n': 7})
  assert files.read_text(bucket / 'a.txt') == 'one\ntwo' == (bucket / 'a.txt').open().read()
  assert files.names(bucket) == ['a.txt', 'c'] and files.names(bucket / 'none') == []
  assert bucket.is_dir() and not bucket.is_file() and (bucket / 'a.txt').is_file()
  assert not files.exists(bucket / 'a') and files.read_bytes(bucket / 'a') is None
  before = (bucket / 'a.txt').stat()
  with files.append(bucket / 'a.txt') as file:
    file.write(' three')
    assert files.read_text(bucket / 'a.txt') == 'one\ntwo'
    file.flush()
    assert files.read_text(bucket / 'a.txt') == 'one\ntwo three'
    file.write('\n')
    file.due = 0
    with monkeypatch.context() as patch:

      def fails(*_, **__):
        raise OSError(5, 'no network')

      patch.setattr(Bucket, 'write_bytes', fails)
      file.flush()
      with pytest.raises(OSError, match='no network'):
        file.upload()
    assert 'cannot be uploaded now, and will be: no network' in caplog.text
  assert files.read_text(bucket / 'a.txt') == 'one\ntwo three\n'
  assert before.st_size == 7 and (bucket / 'a.txt').stat().st_mtime_ns != before.st_mtime_ns
  for mode, half in (('wb', b'half'), ('w', 'half'), ('a', 'half')):
    with pytest.raises(KeyError), (bucket / 'b').open(mode) as file:
      file.write(half)
      raise KeyError
    assert not files.exists(bucket / 'b')
  files.write_npy(bucket / 'x.npy', np.arange(5))
  assert np.load((bucket / 'x.npy').open('rb')).tolist() == [0, 1, 2, 3, 4]


def test_files_are_moved_found_and_removed(bucket):
  for name in ('a/1', 'a/b/2', 'run.json'):
    files.write_whole(bucket / name, name)
  (bucket / 'a').rename(bucket / 'away')
  found = [str(path.relative_to(bucket)) for path in bucket.rglob('*')]
  assert found == ['away/1', 'away/b/2', 'run.json']
  assert [path.name for path in bucket.rglob('2')] == ['2']
  for _ in range(2):
    buckets.remove_tree(bucket / 'away')
  assert files.names(bucket) == ['run.json']
  (bucket / 'none').unlink(missing_ok=True)


def test_errors_of_a_store_are_sentences(fake, monkeypatch):
  files.write_whole(fake / 'refused', 'x')
  with pytest.raises(PermissionError) as caught:
    (fake / 'refused').read_bytes()
  sentence, code = farewell(caught.value)
  assert (
    code == 2 and 'az://mine/D/refused: you may not read this, 403 (is there a login' in sentence
  )
  for look in (Bucket.read_bytes, Bucket.stat, Bucket.unlink):
    with pytest.raises(FileNotFoundError):
      look(fake / 'none')

  def gone(*_, **__):
    raise fake_bucket.Refused('the network is gone')

  monkeypatch.setattr(fake_bucket.FakeBucket, 'info', gone)
  with pytest.raises(OSError, match='the network is gone') as caught:  # and not: it is not there
    (fake / 'x').exists()
  assert farewell(caught.value)[1] == 3


def test_a_copy_on_the_disk_is_made_once_and_again_when_a_file_changes(bucket, tmp_path):
  files.write_whole(bucket / 'a' / 'x', 'old')
  files.write_whole(bucket / 'y', 'same')
  assert copies.fetched(tmp_path) == tmp_path
  copy = copies.fetched(bucket)
  assert copy == copies.fetched(bucket) and copy.name == 'D'
  assert [(copy / name).read_text() for name in ('a/x', 'y')] == ['old', 'same']
  files.write_whole(bucket / 'a' / 'x', 'new')
  assert (copies.fetched(bucket) / 'a' / 'x').read_text() == 'new'
  assert copies.fetched(bucket / 'y').read_text() == 'same'


# ---- data ----------------------------------------------------------------------------------------


def test_text_is_read_from_a_bucket(bucket, tmp_path):
  content = 'the first one .\nand more .\n\nthe second ü .\n'
  packed = gzip.compress(content.encode())
  for folder in (bucket, tmp_path / 'disk'):
    files.make_folder(folder)
    files.write_whole(folder / 'a.txt', content)
    files.write_whole(folder / 'b' / 'c.txt.gz' if folder == bucket else folder / 'c.gz', packed)
    files.write_whole(folder / '_SUCCESS', '')
    files.write_whole(folder / '.hidden.txt', content)
  found = [str(path.relative_to(bucket)) for path in text_files.expand(str(bucket))]
  assert found == ['a.txt', 'b/c.txt.gz']
  for spec in (f'{bucket.parent}/*/*.txt', f'{bucket.parent}/**/a.txt', f'{bucket}/a.txt'):
    assert text_files.expand(spec) == [bucket / 'a.txt']
  read = lambda path: [tuple(x.sentences) for x in text.documents(str(path), counts=Counter())]
  assert read(bucket) == 2 * read(tmp_path / 'disk' / 'a.txt') and len(read(bucket)) == 4


@pytest.fixture(scope='module')
def words(tmp_path_factory):
  """A vocabulary, and a text of 40 documents in its words."""
  folder, rng = tmp_path_factory.mktemp('words'), random.Random(3)
  known = [a + b for a in ('ka', 'lo', 'mi', 'ru') for b in ('la', 'ne', 'ti')]
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.'] + known
  (folder / 'vocab.txt').write_text('\n'.join(pieces) + '\n')
  story = lambda n: '\n'.join(' '.join(rng.choices(known, k=3 + n % 5)) + ' .' for _ in range(n))
  (folder / 'text.txt').write_text('\n\n'.join(story(2 + n % 7) for n in range(40)) + '\n')
  return folder


def test_a_corpus_is_prepared_into_a_bucket_and_read_from_there(bucket, words, tmp_path):
  files.write_whole(bucket / 'in' / 'text.txt', (words / 'text.txt').read_bytes())
  files.write_whole(bucket / 'v' / 'vocab.txt', (words / 'vocab.txt').read_bytes())
  out = {}
  for at in (words, bucket):
    source, vocab = (words / 'text.txt', words) if at == words else (bucket / 'in', bucket / 'v')
    inputs = tuple(('', file) for file in text.sources(str(source)))
    folder = tmp_path / 'D' if at == words else bucket / 'out'
    meta = prepare.prepare(Settings(inputs, str(vocab)), folder)
    out[at] = folder, {k: x for k, x in meta.items() if k not in ('inputs', 'seal')}
  (disk, was), (there, now) = out.values()
  assert was == now
  (there / 'corpus.json').unlink()
  buckets.remove_tree(copies.staged(there))  # as in another process, after a stop
  again = prepare.prepare(Settings(inputs, str(bucket / 'v')), there)
  assert {k: x for k, x in again.items() if k in now} == now
  tokenizer = tokenizers.load_folder(there)
  here, far = (Store(folder, tokenizer).text(0, 1) for folder in (disk, there))
  assert here.fingerprint == far.fingerprint and (here.tokens == far.tokens).all()


def test_a_folder_becomes_whole_in_a_bucket(fake, tmp_path):
  uploaded = []
  with pytest.MonkeyPatch.context() as patch:
    note = lambda operation, key: uploaded.append(key) if lock.NAME not in key else None
    patch.setattr(fake_bucket.FakeBucket, 'before', staticmethod(note))
    with lock.whole_folder(fake) as partial:
      for name in ('config.json', 'model.bin', 'x/y.txt'):
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).write_text(name)
      assert not uploaded
  assert uploaded == ['mine/D/model.bin', 'mine/D/x/y.txt', 'mine/D/config.json']
  assert not partial.exists() and files.read_text(fake / 'x' / 'y.txt') == 'x/y.txt'
  with pytest.raises(KeyError), lock.whole_folder(fake / 'b') as partial:
    (partial / 'config.json').parent.mkdir()
    raise KeyError
  assert not files.exists(fake / 'b')


# ---- the lock ------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch):
  """Locks in buckets go stale soon."""
  monkeypatch.setattr(lock, 'BEAT_SECONDS', 0.05)
  monkeypatch.setattr(lock, 'STALE_SECONDS', 0.6)


def held_by(name, **more):
  return json.dumps({'host': name, 'pid': 7, 'since': 'today', 'id': name, **more})


def test_a_bucket_has_one_owner_at_a_time(bucket, soon):
  for _ in range(2):
    with lock.held(bucket):
      assert files.names(bucket) == ['run.lock']
      with pytest.raises(lock.Busy, match=f'{bucket} is in use: process {os.getpid()} of host'):
        lock.held(bucket).__enter__()
    assert not files.names(bucket)


def test_a_lock_that_stands_still_is_taken_over_and_no_other(bucket, soon):
  files.write_whole(bucket / 'run.lock', held_by('elsewhere'))
  started = time.monotonic()
  with lock.held(bucket):
    assert time.monotonic() - started >= 0.6
  files.write_whole(bucket / 'run.lock', held_by('elsewhere', beat=1))
  beats = threading.Timer(0.3, files.write_whole, (bucket / 'run.lock', held_by('x', beat=2)))
  beats.start()
  with pytest.raises(lock.Busy), lock.held(bucket):
    pass


def test_of_many_that_take_over_one_wins(bucket, soon, monkeypatch):
  """Though all of them find the lock stale."""
  files.write_whole(bucket / 'run.lock', held_by('elsewhere'))
  owners = []

  def run(number):
    monkeypatch.setattr(lock.os, '_exit', lambda code: None)
    with contextlib.suppress(lock.Busy), lock.held(bucket):
      owners.append(number)
      time.sleep(1)

  with ThreadPoolExecutor(8) as pool:
    [*pool.map(run, range(8))]
  assert len(owners) == 1


def test_a_lock_whose_answer_was_lost_is_ones_own(fake, soon, monkeypatch):
  whole = Bucket.write_bytes

  def written(path, data, mode='overwrite'):
    whole(path, data, mode)
    if mode == 'create':
      raise FileExistsError

  monkeypatch.setattr(Bucket, 'write_bytes', written)
  with lock.held(fake / 'W'), pytest.raises(lock.Busy), lock.held(fake / 'W'):
    pass


def test_who_was_taken_over_ends_before_it_writes(bucket, soon, monkeypatch, capfd):
  def end(code):
    raise SystemExit(code)

  monkeypatch.setattr(lock.os, '_exit', end)
  monkeypatch.setattr(lock, 'BEAT_SECONDS', 60)
  with lock.held(bucket):
    files.write_whole(bucket / 'run.lock', held_by('another'))
    files.write_whole(bucket / 'a', 'it did not stand still')
    time.sleep(0.4)
    for change, *given in (
      (files.write_whole, bucket / 'a', 'it did'),
      (Bucket.unlink, bucket / 'a'),
      (Bucket.rename, bucket / 'a', bucket / 'b'),
      (buckets.remove_tree, bucket),
      (copies.place, pathlib.Path(__file__), bucket / 'a'),
    ):
      with pytest.raises(SystemExit, match='3'):
        change(*given)
    assert files.read_text(bucket / 'a') == 'it did not stand still'
    assert 'D was taken over while this process stood still' in capfd.readouterr().err
  assert not buckets.GUARDS and json.loads(files.read_text(bucket / 'run.lock'))['id'] == 'another'


def test_a_beat_that_finds_another_ends_the_process(fake, tmp_path):
  program = """if True:
    import time
    import fake_bucket
    from bert_jax import files
    from bert_jax.buckets import Path
    from bert_jax.workdir import lock
    lock.BEAT_SECONDS = 0.05
    with lock.held('az://mine/D'):
      files.write_whole(Path('az://mine/D/run.lock'), '{"id": "another"}')
      time.sleep(30)"""
  env = os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)}
  done = subprocess.run([sys.executable, '-c', program], env=env, capture_output=True, timeout=30)
  assert done.returncode == 3 and b'was taken over' in done.stderr


# ---- runs ----------------------------------------------------------------------------------------


class Killed(BaseException):
  pass


def test_a_checkpoint_counts_unless_its_upload_was_cut_off(fake):
  """However Orbax writes JSON: else all would be removed."""
  at, notes = '"commit_timestamp_nsecs"', {20: '{%s:17}', 21: '{"done": true}', 22: '{\n%s : null}'}
  for number, note in notes.items():
    files.write_whole(fake / str(number) / saved_steps.NOTE, note.replace('%s', at))
  files.write_whole(fake / '24' / 'params' / 'd' / 'x', 'an array')
  assert [*saved_steps.newest_first(fake)] == [21, 20]


def test_a_bucket_keeps_the_checkpoints_that_a_disk_does(fake, tmp_path):
  state = step.State(jnp.int32(0), {'x': jnp.arange(3.0)}, {}, {})
  settings = small_pretrain('x', 'checkpoint.keep_latest=2').checkpoint
  files.write_whole(fake / 'checkpoints' / '9' / 'params' / 'x', 'an upload that was cut off')
  for folder in (tmp_path, fake):
    with contextlib.closing(checkpoint.Checkpoints(folder, settings)) as checkpoints:
      for number in (3, 5, 8):
        checkpoints.save(dataclasses.replace(state, step=jnp.int32(number)), {}, {})
        checkpoints.wait()
    assert [x for x in files.names(folder / 'checkpoints') if x.isdecimal()] == ['5', '8']


# The thread of the lock is killed, too.
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_a_run_in_a_bucket_that_is_killed_has_the_bits_of_one_on_a_disk(
  fake, corpus_file, pretrained, soon, monkeypatch, steps_once
):
  """Killed where it writes: from then on nothing is written or removed."""
  config = small_pretrain(corpus_file, 'log.tensorboard=true')

  def kill_at(pattern, number):
    count = Counter()

    def before(operation, key):
      count[operation] += pattern in key
      if count['write'] >= number:
        raise Killed

    monkeypatch.setattr(fake_bucket.FakeBucket, 'before', staticmethod(before))

  for pattern, number in (('metrics.jsonl', 2), ('checkpoints/20/', 3)):
    kill_at(pattern, number)
    with pytest.raises(Killed):
      train(config, fake)
    buckets.GUARDS.clear()
  kill_at('nothing', 1)
  is_as_on_a_disk(train(config, fake), fake, pretrained)
  assert records.read(fake).checkpoints == records.read(pretrained[0]).checkpoints


def is_as_on_a_disk(result, folder, on_disk):
  """Whether a run in a bucket, train's result, is the run (workdir, *train's result) on a disk."""
  workdir, state, results = on_disk
  assert result[1] == results
  same_bits(result[0], state)
  run, other = records.read(folder), records.read(workdir)
  assert run.newest['arrays'] == other.newest['arrays'] and run.faults == ()
  assert train_lines(folder) == train_lines(workdir) and run.summary.has_ended
  events = [name for name in files.names(folder) if 'tfevents' in name]
  assert events and all((folder / name).stat().st_size > 100 for name in events)


@pytest.mark.slow
def test_a_run_in_a_bucket_of_s3(s3, corpus_file, pretrained, steps_once, tmp_path):
  """And who reads it: the same command again, a model, a report, an export into another."""
  config = small_pretrain(corpus_file, 'log.tensorboard=true')
  is_as_on_a_disk(train(config, s3), s3, pretrained)
  assert train(config, s3)[1] == pretrained[2]
  assert trained.load(str(s3)).step == 20 and lock.NAME not in files.names(s3)
  assert [run.path for run in records.below(s3.parent)[0]] == [s3]
  convert.convert(str(s3), f'hf:{s3}-hf')
  on_disk = tmp_path / 'hf'
  convert.convert(str(pretrained[0]), f'hf:{on_disk}')
  for name in ('model.safetensors', 'vocab.txt', 'tokenizer.json'):
    assert (s3.with_name('D-hf') / name).read_bytes() == (on_disk / name).read_bytes()
  again = trained.load(f'{s3}-hf')
  assert again.tokenizer.fingerprint == trained.load(pretrained[0]).tokenizer.fingerprint


def test_checkpoints_go_where_orbax_can_write(fake, corpus_file, monkeypatch):
  """To gs:// by itself; by several processes to no other bucket, which is said before anything is
  compiled."""
  opened = []
  monkeypatch.setattr(checkpoint.ocp, 'CheckpointManager', lambda path, **_: opened.append(path))
  monkeypatch.setattr(Bucket, 'is_dir', lambda self: True)
  checkpoint.Checkpoints('gs://mine/W')
  checkpoint.Checkpoints(fake)
  assert opened[0] == 'gs://mine/W/checkpoints' and pathlib.Path(opened[1]).is_dir()
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with pytest.raises(InputError, match='only one process writes to az://.*; use gs://'):
    read_inputs(small_pretrain(corpus_file), fake / 'W')
