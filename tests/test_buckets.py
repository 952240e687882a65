"""Buckets as folders: what is on a disk is in a bucket as well, with the same bits."""

import contextlib
import dataclasses
import gc
import gzip
import json
import os
import pathlib
import pickle
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import types
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import quote

import fake_bucket
import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_pretrain
from running import same_bits, train_lines

from bert_jax import buckets, copies, files, step, tokenizers
from bert_jax import config as config_lib
from bert_jax.buckets import Bucket, Path
from bert_jax.convert import hub
from bert_jax.corpus import blocks, prepared
from bert_jax.errors import InputError, farewell
from bert_jax.predict.__main__ import check_output
from bert_jax.run import setup, trackers
from bert_jax.run.inputs import read_inputs
from bert_jax.text import documents as text
from bert_jax.text import files as text_files
from bert_jax.tools import arguments, convert
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings
from bert_jax.tools.report import pages
from bert_jax.tools.sweep import jobs
from bert_jax.train import train
from bert_jax.workdir import checkpoint, lock, records, saved_steps, trained


@pytest.fixture
def fake(tmp_path, monkeypatch):
  """A folder in a bucket of fake_bucket.py, which is empty."""
  fake_bucket.in_folder(tmp_path, monkeypatch)
  return Path('fake://mine/D')


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
  store = buckets._store('s3', os.getpid())
  store.invalidate_cache()
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
  assert isinstance(fake, pathlib.Path) and str(fake) == f'{fake}' == 'fake://mine/D'
  assert str(fake / 'a' / 'b.txt') == str(Path('fake://mine', 'D', 'a', 'b.txt'))
  assert fake == Path(fake) == Path(pathlib.Path('fake://mine/D')) == Path('fake:/mine/D')
  assert fake == pickle.loads(pickle.dumps(fake)) == (fake / 'x').parent
  assert fake == fake.absolute() == fake.expanduser() == fake.resolve()
  assert (fake / 'a' / 'b').relative_to(fake).parts == ('a', 'b')
  for local in ('a/b', '', '~/x', 'tfds:/data/x', 'data:/x', 'hf:/x', 'gcs:/x', pathlib.Path('a')):
    assert type(Path(local)) is type(pathlib.Path('a')) and Path(local) == pathlib.Path(local)


def test_what_no_package_reads_is_refused(monkeypatch):
  for spec in ('nowhere://a/b', 'file:///a', 'gcs://b/W', 'GS://b/D', 'sftp://h/x', 'az://c/x'):
    with pytest.raises(InputError, match=f'{spec}: nothing here reads .* give a path, gs://BUCKET'):
      Path(spec)
  for spec in ('gs://', 's3:///k', 'gs://b//k', 'gs://b/D//'):  # of no bucket, or another key
    with pytest.raises(InputError, match=f'{spec}: nothing here reads that'):
      Path(spec)
  buckets._store.cache_clear()

  def missing(protocol, **_):
    raise ImportError(f'no {protocol}')

  monkeypatch.setattr(fsspec, 'filesystem', missing)
  for spec, said in (('gs://b/x', 'gs:// needs a package: no gs'), ('s3://b/x', 'no s3.$')):
    with pytest.raises(InputError, match=said):
      Path(spec).exists()
    with pytest.raises(InputError, match=said):  # and not: it is no prepared corpus
      prepared.is_prepared(spec)


def test_a_function_that_knows_only_disks_makes_no_folder(fake, tmp_path, monkeypatch):
  with pytest.raises(InputError, match='file gs://b/c.py:size=tiny does not .*; copy it to a'):
    config_lib.load('gs://b/c.py:size=tiny')
  monkeypatch.chdir(tmp_path)
  with pytest.raises(InputError, match='fake://mine/D is in a bucket, where this is not supported'):
    os.open(fake, os.O_WRONLY | os.O_CREAT)
  for know_disks in (os.makedirs, lambda path: path.glob('*')):
    with pytest.raises(InputError, match='use a path on a disk'):
      know_disks(fake)
  assert not (tmp_path / 'fake:').exists()


def test_no_module_makes_paths_that_know_only_disks():
  """Else the URL of a bucket becomes a folder of that name."""
  for path in pathlib.Path('bert_jax').rglob('*.py'):
    code = path.read_text()
    assert 'from pathlib import Path\n' not in code or path.name == 'buckets.py', path
    assert 'import pathlib' not in code or path.name in ('buckets.py', 'files.py'), path


# ---- files ---------------------------------------------------------------------------------------


def test_files_are_written_whole_and_appended_to_visibly(bucket):
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
  assert files.read_text(bucket / 'a.txt') == 'one\ntwo three\n'
  assert before.st_size == 7 and (bucket / 'a.txt').stat().st_mtime_ns != before.st_mtime_ns
  for mode, half in (('wb', b'half'), ('w', 'half'), ('a', 'half')):
    with pytest.raises(KeyError), (bucket / 'b').open(mode) as file:
      file.write(half)
      raise KeyError
    file = (bucket / 'b').open(mode)
    file.write(half)
    del file
    gc.collect()
    assert not files.exists(bucket / 'b')
  for content in ('', 'x', 'xy', 'ü\n'):
    (bucket / 'b').write_text(content, encoding='utf-8')
    assert (bucket / 'b').read_bytes() == content.encode()
  with files.append(bucket / 'b') as file:
    file.write('more')
    file.flush()
    (bucket / 'b').unlink()
  assert not files.exists(bucket / 'b')
  files.write_npy(bucket / 'x.npy', np.arange(5))
  assert np.load((bucket / 'x.npy').open('rb')).tolist() == [0, 1, 2, 3, 4]


def test_lines_are_uploaded_now_and_then_and_a_failure_is_mended(bucket, monkeypatch, caplog):
  path = bucket / 'metrics.jsonl'
  with files.append(path) as file:
    for line in ('a\n', 'b\n'):
      file.write(line)
      file.flush()
    assert files.read_text(path) == 'a\n'
    file.flush(ends=True)
    assert files.read_text(path) == 'a\nb\n'
    file.write('c\n')
    file.due = 0

    def fails(*_, **__):
      raise OSError(5, 'no network')

    with monkeypatch.context() as patch:
      patch.setattr(Bucket, 'write_bytes', fails)
      file.flush()
      with pytest.raises(OSError, match='no network'):
        file.flush(ends=True)
    assert f'{path} cannot be uploaded now, and will be: no network' in caplog.text
    assert files.read_text(path) == 'a\nb\n'
  assert files.read_text(path) == 'a\nb\nc\n'


def test_a_lock_whose_answer_was_lost_is_ones_own(fake, monkeypatch):
  whole = Bucket.write_bytes

  def written(path, data, mode='overwrite'):
    whole(path, data, mode)
    if mode == 'create':
      raise FileExistsError

  monkeypatch.setattr(Bucket, 'write_bytes', written)
  with lock.held(fake / 'W'), pytest.raises(lock.Busy), lock.held(fake / 'W'):
    pass
  assert json.loads(files.read_text(fake / 'W' / 'run.lock.1'))['ended']


def test_files_are_moved_found_and_removed(bucket):
  for name in ('a/1', 'a/b/2', 'run.json'):
    files.write_whole(bucket / name, name)
  assert files.set_aside(bucket / 'run.json') == 'run.json.damaged-1'
  (bucket / 'a').rename(bucket / 'away')
  found = [str(path.relative_to(bucket)) for path in bucket.rglob('*')]
  assert found == ['away/1', 'away/b/2', 'run.json.damaged-1']
  assert [path.name for path in bucket.rglob('2')] == ['2']
  buckets.remove_tree(bucket / 'away')
  buckets.remove_tree(bucket / 'away')
  assert files.names(bucket) == ['run.json.damaged-1']
  (bucket / 'none').unlink(missing_ok=True)


def test_folders_that_a_console_has_made_are_no_files(fake):
  files.write_whole(fake / 'x' / '1', 'one')
  for key in ('mine/D/', 'mine/D/x/', 'mine/D/empty/'):
    pathlib.Path(os.environ['FAKE_BUCKET'], quote(key, safe='')).touch()
  assert files.names(fake) == ['empty', 'x'] and files.names(fake / 'x') == ['1']
  assert [*fake.rglob('*')] == [fake / 'x' / '1'] == text_files.expand(str(fake))
  assert (copies.fetched(fake) / 'x' / '1').read_text() == 'one'


def test_errors_of_a_store_are_sentences(fake, monkeypatch):
  """They are of any type, and may come when a part of a file is read."""
  files.write_whole(fake / 'refused', 'x')
  with pytest.raises(PermissionError) as caught:
    (fake / 'refused').read_bytes()
  said, code = farewell(caught.value)
  refusal = 'you may not read this, 403 (is there a login that may do so: FAKE_LOGIN, or the '
  refusal += 'service account of the machine?)'
  assert code == 2 and f'error: fake://mine/D/refused: {refusal}; check' in said
  for look in (Bucket.read_bytes, Bucket.stat, Bucket.unlink):
    with pytest.raises(FileNotFoundError) as caught:
      look(fake / 'none')
    assert farewell(caught.value)[0].startswith('error: fake://mine/D/none: No such file or dir')
  with monkeypatch.context() as patch:
    patch.setenv('FAKE_BUCKET', '/nowhere')
    with pytest.raises(FileNotFoundError, match='No such bucket'):
      fake.check_writable()
  files.write_whole(fake / 'x', bytes(range(9)))
  with (fake / 'x').open('rb') as file:
    assert file.read(3) == bytes(range(3)) and file.tell() == 3 and file.seekable()
    assert file.seek(-2, os.SEEK_END) == 7 and file.read() == bytes((7, 8)) and not file.read()

  monkeypatch.setattr(buckets, 'PART', 4)
  with (fake / 'x').open('rb') as file:
    assert file.read(2) + file.read(3) == bytes(range(5))

    def gone(*_, **__):
      raise fake_bucket.Refused('the network is gone')

    monkeypatch.setattr(fake_bucket.FakeBucket, '_open', gone)
    with pytest.raises(OSError, match='the network is gone') as caught:
      file.read()
  assert farewell(caught.value)[1] == 3
  monkeypatch.setattr(fake_bucket.FakeBucket, 'info', gone)
  with pytest.raises(OSError, match='the network is gone'):  # and not: there is no such folder
    hub.folder(str(fake))
  assert not text_files.exists('x' * 5000) and not text_files.exists('\0')


def test_a_network_that_fails_is_no_damaged_record(fake):
  files.write_whole(fake / 'refused', 'x')
  index, reader = object.__new__(blocks.Index), object.__new__(prepared.Reader)
  index.parts = fake / 'refused'
  with pytest.raises(PermissionError):
    index.part(3)
  reader.cache, reader.ends, reader.paths = {}, np.array([0, 5]), [fake / 'refused']
  reader._opened, reader.copies = reader._open, {}
  for _ in range(2):
    with pytest.raises(PermissionError):
      reader._read(3)
    reader.expect(0)  # the same in the thread that copies it beforehand


def test_a_shard_that_is_expected_is_copied_meanwhile(fake, tmp_path, monkeypatch):
  files.write_whole(fake / 'x', 'one')
  files.write_whole(fake / 'y', 'two')
  reader, read = object.__new__(prepared.Reader), []
  reader.paths, reader.copies = [fake / 'x', fake / 'y', tmp_path / 'z'], {}
  for shard in (0, 2, 0):
    reader.expect(shard)
  assert reader.copies.keys() == {0}  # what is on a disk stays there
  assert reader.copies[0].result(timeout=60).read_text() == 'one'
  (fake / 'x').unlink()  # it is here already, and the other one is not
  opened = lambda path, **_: read.append(pathlib.Path(path).read_text())
  module = types.SimpleNamespace(ArrayRecordReader=opened)
  monkeypatch.setitem(sys.modules, 'array_record.python.array_record_module', module)
  for shard in (0, 1):
    reader._open(shard)
  assert read == ['one', 'two'] and not reader.copies


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


FETCHES = """
import sys, time
import fake_bucket
from bert_jax import buckets, copies
gets, call = [], buckets.Bucket.call
def slowly(self, operation, *rest, **options):
  if operation == 'get':
    gets.append(self)
    time.sleep(0.5)
  return call(self, operation, *rest, **options)
buckets.Bucket.call = slowly
print('ready', flush=True)
sys.stdin.readline()
print(copies.fetched(buckets.Path('fake://mine/D/x')).read_text(), len(gets))
"""


def test_processes_of_a_host_copy_a_file_once(fake, tmp_path):
  files.write_whole(fake / 'x', 'whole')
  here = os.environ | {'PYTHONPATH': os.pathsep.join(('tests', '.'))}
  command, pipe = [sys.executable, '-c', FETCHES], subprocess.PIPE
  start = lambda: subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=here)
  with start() as one, start() as two:
    assert [x.stdout.readline() for x in (one, two)] == ['ready\n'] * 2
    for process in (one, two):
      process.stdin.write('\n')
      process.stdin.flush()
    said = sorted(process.communicate(timeout=60)[0] for process in (one, two))
  assert said == ['whole 0\n', 'whole 1\n']
  assert [x.suffix for x in (tmp_path / 'cache' / 'bert_jax' / 'buckets').iterdir()] == ['']


def test_two_copies_of_a_file_on_a_disk_without_locks(fake, monkeypatch):
  files.write_whole(fake / 'x', 'whole')
  both, call = threading.Barrier(2), buckets.Bucket.call

  def together(self, operation, *rest, **options):
    if operation == 'get':
      both.wait(30)
    return call(self, operation, *rest, **options)

  monkeypatch.setattr(buckets.Bucket, 'call', together)
  monkeypatch.setattr(copies, '_alone', contextlib.nullcontext)
  with ThreadPoolExecutor(2) as pool:
    one, two = pool.map(copies.fetched, [fake / 'x'] * 2)
  assert one == two and one.read_text() == 'whole'


def test_threads_of_a_process_have_one_scratch_folder(fake, tmp_path, monkeypatch):
  made, make = [], copies.tempfile.TemporaryDirectory

  def slowly(*given, **options):
    made.append(make(*given, **options))
    time.sleep(0.1)
    return made[-1]

  monkeypatch.setattr(copies.tempfile, 'TemporaryDirectory', slowly)
  monkeypatch.setattr(copies.tempfile, 'tempdir', str(tmp_path))
  copies._scratch.cache_clear()
  with ThreadPoolExecutor(3) as pool:
    [*pool.map(copies.staged, [fake / x for x in 'abc'])]
  assert len(made) == 1
  copies._scratch.cache_clear()


def test_what_killed_processes_have_staged_is_removed(fake, tmp_path, monkeypatch):
  """But not what a process that lives has."""
  monkeypatch.setattr(copies.tempfile, 'tempdir', str(tmp_path))
  copies._scratch.cache_clear()
  mine = copies.staged(fake / 'a')
  for name in ('dead/.lock', 'new/.tmp'):
    (tmp_path / f'bert_jax-{name}').parent.mkdir()
    (tmp_path / f'bert_jax-{name}').touch()
  code = 'from bert_jax import copies; print(copies._scratch(0).name)'
  here = os.environ | {'TMPDIR': str(tmp_path)}
  out = subprocess.run([sys.executable, '-c', code], env=here, capture_output=True, text=True)
  assert pathlib.Path(out.stdout.strip()).parent == tmp_path, out.stderr
  assert {*tmp_path.glob('bert_jax-*')} == {mine.parents[3], tmp_path / 'bert_jax-new'}
  # Nor halves of copies, which are in the cache.
  home = tmp_path / 'cache' / 'bert_jax' / 'buckets'
  (home / 'bert_jax-dead').mkdir(parents=True)
  for name in ('.lock', 'half of a shard'):
    (home / 'bert_jax-dead' / name).touch()
  files.write_whole(fake / 'b', 'whole')
  copy = copies.fetched(fake / 'b')
  assert copy.read_text() == 'whole' and not (home / 'bert_jax-dead').exists()
  for path in home.iterdir():  # which anybody may do at any time
    shutil.rmtree(path)
  assert copies.fetched(fake / 'b').read_text() == 'whole'
  copies._scratch.cache_clear()
  assert {*home.iterdir()} == {copy.parent}


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
  with pytest.raises(InputError, match=r'no file matches .*/D/\*.md'):
    text_files.expand(f'{bucket}/*.md')
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
  shutil.rmtree(copies.staged(there))  # as in another process, after a stop
  for _ in range(2):  # the second time it is whole
    again = prepare.prepare(Settings(inputs, str(bucket / 'v')), there)
    assert {k: x for k, x in again.items() if k in now} == now
  names = {str(x.relative_to(disk)) for x in disk.rglob('*') if x.is_file()}
  locks = {f'{lock.NAME}.{k}' for k in (1, 2)}
  assert {str(x.relative_to(there)) for x in there.rglob('*')} - locks == names
  for name in names - {'corpus.json', 'plan.json', 'corpus/1.0.0/dataset_info.json'}:
    assert (disk / name).read_bytes() == (there / name).read_bytes(), name
  tokenizer = tokenizers.load_folder(there)
  read = [prepare.prepared.load(folder, tokenizer) for folder in (disk, there)]
  same = [[piece[0].tolist() for piece in map(x.corpus.read, range(9))] for x in read]
  assert same[0] == same[1] and read[0].corpus.fingerprint == read[1].corpus.fingerprint


def test_answers_go_to_another_file_that_can_be_written(fake, monkeypatch):
  """Which shows before the first is asked for."""
  files.write_whole(fake / 'x', 'a question')
  with pytest.raises(InputError, match='--output fake://mine/D/x is --input too'):
    check_output(f'{fake}/x', f'{fake}/x')
  check_output(f'{fake}/x', f'{fake}/y')
  assert files.names(fake) == ['x']

  def before(operation, key):
    raise fake_bucket.Refused('you may not write this, 403')

  monkeypatch.setattr(fake_bucket.FakeBucket, 'before', staticmethod(before))
  with pytest.raises(PermissionError):
    check_output('', f'{fake}/y')
  with pytest.raises(PermissionError):
    arguments.check_writable(fake)


def test_a_report_is_written_into_a_bucket(fake, monkeypatch):
  monkeypatch.setattr(pages, 'sections', lambda _: [])
  monkeypatch.setattr(pages.panels, 'results_csv', lambda _: 'new')
  for earlier in ((), ('mlm-loss-curves.svg', 'mine.txt')):
    for name in earlier:
      files.write_whole(fake / name, 'old')
    pages.write(pages.panels.Report([], None), str(fake), 'a title')
    assert files.read_text(fake / 'report.md').startswith('# a title')
  names = ['mine.txt', 'mlm-loss-curves.svg', 'report.html', 'report.md', 'results.csv']
  assert files.names(fake) == [*names, 'table.tex', 'written.txt']


def test_what_wandb_writes_offline_goes_into_the_bucket(fake, monkeypatch):
  def init(**about):
    folder = pathlib.Path(about['dir'], 'wandb', 'offline-run-7')
    folder.mkdir(parents=True)
    finish = lambda: (folder / 'run.wandb').write_text('points')
    return SimpleNamespace(finish=finish, define_metric=lambda *_, **__: None)

  package = SimpleNamespace(init=init, Error=KeyError)
  monkeypatch.setattr(trackers, '_package', lambda name: package)
  trackers.WeightsAndBiases(fake, small_pretrain('x', 'log.wandb=offline')).close()
  assert files.read_text(fake / 'wandb' / 'offline-run-7' / 'run.wandb') == 'points'
  assert files.names(fake / 'wandb') == ['id.txt', 'offline-run-7']


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


def test_a_folder_in_a_bucket_becomes_whole_once(fake, soon):
  """Of two processes, whose temporary folders differ, one is refused; nothing is written over."""
  said = pytest.raises(InputError, match='mine/D is not empty any more')
  with said, lock.whole_folder(fake) as one:
    mine = copies._scratch(os.getpid())
    copies._scratch.cache_clear()
    with pytest.raises(lock.Busy), lock.whole_folder(fake):
      pass
    assert one.is_relative_to(mine.name)
    one.mkdir(parents=True, exist_ok=True)
    (one / 'config.json').write_text('mine')
    files.write_whole(fake / 'config.json', 'of another')
  assert files.read_text(fake / 'config.json') == 'of another'


# ---- the lock ------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch):
  """Locks in buckets go stale soon."""
  monkeypatch.setattr(lock, 'BUCKET_BEAT_SECONDS', 0.05)
  monkeypatch.setattr(lock, 'BUCKET_SECONDS', 0.6)
  sleep = time.sleep
  faster = SimpleNamespace(**vars(time) | {'sleep': lambda x: sleep(x / 20)})
  monkeypatch.setattr(lock, 'time', faster)


def held_by(pid, **more):
  return json.dumps({'host': 'here', 'pid': pid, 'since': 'today', **more})


def test_a_bucket_has_one_owner_at_a_time(bucket, soon, caplog):
  caplog.set_level('INFO', 'bert_jax')
  with lock.held(bucket):
    assert lock.is_held(bucket) and files.names(bucket) == ['run.lock.1']
    with pytest.raises(lock.Busy, match=f'{bucket} is in use: process {os.getpid()} of host'):
      lock.held(bucket).__enter__()
  assert not lock.is_held(bucket)
  caplog.clear()
  with lock.held(bucket):
    assert files.names(bucket) == ['run.lock.2'] and 'waiting' not in caplog.text
  assert not lock.is_held(bucket.parent)


def test_a_bucket_is_taken_over_from_the_dead_alone(bucket, soon, caplog):
  """At once from a process of this machine that is gone, else when nothing has changed for long."""
  place = lock._holder()['place']
  assert place and caplog.set_level('INFO', 'bert_jax') is None
  for pid, more, least in ((2**30, {'place': place}, 0), (2**30, {'place': 'elsewhere'}, 0.5)):
    files.write_whole(bucket / 'run.lock.7', held_by(pid, **more))
    started = time.monotonic()
    assert lock.is_held(bucket) == bool(least)
    with lock.held(bucket):
      assert time.monotonic() - started >= least
      assert ('waiting for a sign of the run' in caplog.text) == bool(least)
      assert files.names(bucket) == ['run.lock.8']
    (bucket / 'run.lock.8').unlink()
  files.write_whole(bucket / 'run.lock.7', held_by(2**30, place='elsewhere', count=1))
  beats = threading.Timer(0.3, files.write_whole, (bucket / 'run.lock.7', held_by(2**30, count=2)))
  beats.start()
  with pytest.raises(lock.Busy), lock.held(bucket):
    pass


def test_a_run_that_ends_while_another_waits_makes_room_for_it(bucket, soon, monkeypatch):
  path, sleep = bucket / 'run.lock.1', lock.time.sleep
  files.write_whole(path, held_by(2**30, place='elsewhere', count=1))

  def ends(seconds):
    if path.exists():
      files.write_whole(path, '{"ended": true}')
    sleep(seconds)

  monkeypatch.setattr(lock.time, 'sleep', ends)
  with lock.held(bucket):
    assert files.names(bucket) == ['run.lock.2']


def test_of_many_that_take_over_one_wins(bucket, soon, monkeypatch):
  """Though all of them find the number free, and write at once."""
  files.write_whole(bucket / 'run.lock.4', held_by(2**30, place='elsewhere'))
  monkeypatch.setattr(lock, '_lives', lambda holder: True)  # all are of this process
  together, writes, owners = threading.Barrier(8), Counter(), []

  def before(operation, key):
    writes[key] += 1
    if key.endswith('run.lock.5') and writes[key] <= 8:
      together.wait(9)

  def run(_):
    with contextlib.suppress(lock.Busy), lock.held(bucket):
      owners.append(files.names(bucket))
      time.sleep(0.5)

  monkeypatch.setattr(fake_bucket.FakeBucket, 'before', staticmethod(before))
  with ThreadPoolExecutor(8) as pool:
    [*pool.map(run, range(8))]
  assert [names[-1:] for names in owners] == [['run.lock.5']]


@pytest.fixture
def ends(monkeypatch):
  """A process that would end at once raises SystemExit."""

  def end(code):
    raise SystemExit(code)

  monkeypatch.setattr(lock.os, '_exit', end)


@pytest.mark.parametrize(
  'taken, ends_by',
  [('run.lock.2', SystemExit), ('run.lock.1', SystemExit), ('run.lock.2', lock.Busy)],
)
def test_who_was_taken_over_ends_before_it_writes(
  taken, ends_by, bucket, soon, ends, monkeypatch, capfd
):
  """By a newer lock; or by another holder in its own, if the store creates a file for several. The
  kernel of a notebook stays alive."""
  monkeypatch.setattr(lock, 'BUCKET_BEAT_SECONDS', 60)
  monkeypatch.setattr(lock, 'in_notebook', lambda: ends_by is lock.Busy)
  with contextlib.suppress(ends_by), lock.held(bucket):
    files.write_whole(bucket / taken, held_by(1, id='another'))
    files.write_whole(bucket / 'a', 'it did not stand still')
    (bucket.parent / 'b').write_bytes(b'beside it')
    time.sleep(0.4)
    path = bucket / 'a'
    for change, *given in (
      (files.write_whole, path, 'it did'),
      (Bucket.unlink, path),
      (Bucket.rename, path, bucket / 'b'),
      (buckets.remove_tree, bucket),
      (copies.place, pathlib.Path(__file__), path),
    ):
      with pytest.raises(ends_by, match='D was taken over|^3$'):
        change(*given)
    assert files.read_text(bucket / 'a') == 'it did not stand still'
    said = 'D was taken over while this process stood still' in capfd.readouterr().err
    assert said == (ends_by is SystemExit)
    files.write_whole(bucket.parent / 'b', 'it may, elsewhere')
  assert not buckets.GUARDS


def test_who_cannot_write_its_beat_looks_before_it_writes(fake, soon, ends, monkeypatch):
  """Though the beat has looked just now."""
  monkeypatch.setattr(lock, 'BUCKET_BEAT_SECONDS', 0.2)

  def before(operation, key):
    if key.endswith('run.lock.1'):
      raise fake_bucket.Refused('the network is gone')

  with contextlib.suppress(SystemExit), lock.held(fake):
    monkeypatch.setattr(fake_bucket.FakeBucket, 'before', staticmethod(before))
    time.sleep(0.5)
    files.write_whole(fake / 'a', 'nobody took over')
    (fake_bucket.FakeBucket()).pipe_file(str(fake / 'run.lock.2'), held_by(1).encode())
    with pytest.raises(SystemExit):
      files.write_whole(fake / 'a', 'another did')
  assert files.read_text(fake / 'a') == 'nobody took over'


def test_a_lock_is_looked_at_again_when_its_beat_is_old(fake, monkeypatch):
  now, looks, read = [1000.0], [], lock.read_bytes
  clock = SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic, sleep=time.sleep)
  monkeypatch.setattr(lock, 'time', clock)
  write, release = lock._taken_in_bucket(fake, {'id': 'mine'})
  monkeypatch.setattr(lock, 'read_bytes', lambda path: looks.append(now[0]) or read(path))
  for seconds in (0, lock.BUCKET_SECONDS / 2 - 1, lock.BUCKET_SECONDS / 2, -1):
    now[0] = 1000.0 + seconds
    buckets.GUARDS[fake]()
  assert looks == [1000 + lock.BUCKET_SECONDS / 2, 999]  # or the clock was put back
  write({'id': 'mine'})
  del looks[:]
  buckets.GUARDS[fake]()
  assert not looks
  release()
  assert fake not in buckets.GUARDS and lock._is_over(files.read_bytes(fake / 'run.lock.1'))


def test_of_two_that_created_one_file_one_goes_on(fake, soon, ends, monkeypatch):
  """In a store that creates a file for several."""
  write = Bucket.write_bytes

  def overwritten(path, data, mode='overwrite'):
    write(path, data, mode)
    if mode == 'create':
      write(path, held_by(1, id='another').encode())

  monkeypatch.setattr(Bucket, 'write_bytes', overwritten)
  with pytest.raises(SystemExit), lock.held(fake):
    pytest.fail('it has the lock')
  buckets.GUARDS.clear()


def test_a_machine_that_is_not_known_is_no_other(monkeypatch):
  """In two containers whose boot_id cannot be read, process 7 is not the same."""
  monkeypatch.setattr(lock, 'read_text', lambda path: '')
  assert lock._holder()['place'] == ''
  assert not lock._is_over(held_by(2**30, place=''))


def test_a_bucket_that_gcsfuse_has_mounted_is_named_by_its_url(tmp_path, monkeypatch, caplog):
  (tmp_path / 'mine' / 'deep' / 'disk').mkdir(parents=True)
  lines = f"""
    disk / ext4 rw 0 0
    a-bucket {tmp_path}/mine fuse.gcsfuse rw,nosuid 0 0
    /dev/x {tmp_path}/mine/deep/disk ext4 rw 0 0
    other {tmp_path}/min fuse.gcsfuse rw 0 0"""
  (tmp_path / 'mounts').write_text('\n'.join(x.strip() for x in lines.strip().splitlines()))
  monkeypatch.setattr(buckets, 'MOUNTS', str(tmp_path / 'mounts'))
  for free in (tmp_path / 'mine' / 'deep' / 'disk' / 'W', tmp_path / 'W'):
    with lock.held(free):
      assert not caplog.messages
  with lock.held(tmp_path / 'mine' / 'deep' / 'W'):
    (said,) = caplog.messages
  assert 'gcsfuse shows no lock' in said and said.endswith('; write gs://a-bucket/deep/W')


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
        checkpoints.save(dataclasses.replace(state, step=jnp.int32(number)), {}, {}, {})
        checkpoints.wait()
    assert [x for x in files.names(folder / 'checkpoints') if x.isdecimal()] == ['5', '8']


def test_a_run_in_a_bucket_may_begin(fake):
  """What is checked of its folder between the lock and the first step."""
  inputs = SimpleNamespace(workdir=fake, in_workdir=False, beginning=None)
  with lock.held(fake):
    setup.check_newest(inputs)
    checkpoints = checkpoint.Checkpoints(fake, small_pretrain('x').checkpoint)
    with contextlib.closing(checkpoints):
      checkpoints.save(step.State(jnp.int32(3), {'x': jnp.arange(3.0)}, {}, {}), {}, {}, {})
      checkpoints.wait()
    with pytest.raises(lock.Busy, match='another run has trained in fake://mine/D meanwhile'):
      setup.check_newest(inputs)


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
  assert trained.load(str(s3)).step == 20 and not lock.is_held(s3)
  assert [run.path for run in records.below(s3.parent)[0]] == [s3]
  convert.convert(str(s3), f'hf:{s3}-hf')
  on_disk = tmp_path / 'hf'
  convert.convert(str(pretrained[0]), f'hf:{on_disk}')
  for name in ('model.safetensors', 'vocab.txt', 'tokenizer.json'):
    assert (s3.with_name('D-hf') / name).read_bytes() == (on_disk / name).read_bytes()
  again = trained.load(f'{s3}-hf')
  assert again.tokenizer.fingerprint == trained.load(pretrained[0]).tokenizer.fingerprint


@pytest.mark.slow
def test_what_was_copied_into_a_bucket_counts_and_what_was_cut_off_does_not(fake, pretrained):
  """A copied checkpoint has no mark of Orbax that it is whole; one that was cut off is removed."""
  folder = fake / 'checkpoints'
  copies.place(pretrained[0], fake)
  whole = records.read(fake).checkpoints
  assert whole and whole == records.read(pretrained[0]).checkpoints
  copies.place(pretrained[0] / 'checkpoints' / '20', folder / '23')
  note = folder / '23' / saved_steps.NOTE
  began = re.sub('(?<="commit_timestamp_nsecs": )[0-9]+', 'null', files.read_text(note))
  files.write_whole(note, began)
  files.write_whole(folder / '24' / 'params' / 'd' / 'x', 'an array')
  assert [*saved_steps.newest_first(folder)] == sorted(whole)[::-1]
  assert trained.load(fake).step == 20
  opened = checkpoint.Checkpoints(fake, small_pretrain('x').checkpoint)
  opened.close()
  assert files.names(folder) == sorted(map(str, whole))


def test_a_sweep_in_a_bucket_keeps_its_logs_there(fake, monkeypatch):
  files.write_whole(fake / 'logs' / 'seed=3.txt', 'an earlier try\n')
  seen = []

  def started(command, env, stdout, **_):
    seen.append((command[command.index('--workdir') + 1], env['JAX_COMPILATION_CACHE_DIR']))
    os.write(stdout.fileno(), b'error: it has failed\n')
    return type('Process', (), {'wait': lambda self: 2, 'stdin': None})()

  monkeypatch.setattr(jobs.subprocess, 'Popen', started)
  run = SimpleNamespace(folder='seed=3', spec='x', fields=[], config=small_pretrain('x'))
  crew = jobs.Crew([run], fake, 1)
  crew.train(run)
  ((workdir, cache),) = seen
  assert workdir == 'fake://mine/D/seed=3' and pathlib.Path(cache).is_absolute()
  assert records.read_outcome(fake, 'seed=3').error == 'it has failed'
  log = files.read_text(fake / 'logs' / 'seed=3.txt')
  assert log.startswith('an earlier try\n==== ') and log.endswith('error: it has failed\n')
  assert files.names(fake / 'logs') == ['seed=3.json', 'seed=3.txt']


def test_checkpoints_go_where_orbax_can_write(fake, corpus_file, monkeypatch):
  """To gs:// by itself; by several processes to no other bucket, which is said before anything is
  compiled."""
  opened = []
  buckets._store('fake', os.getpid())  # and lists anew each time
  assert fsspec.filesystem('fake').storage_options == {'use_listings_cache': False}
  monkeypatch.setattr(checkpoint.ocp, 'CheckpointManager', lambda path, **_: opened.append(path))
  monkeypatch.setattr(Bucket, 'is_dir', lambda self: True)
  checkpoint.Checkpoints('gs://mine/W')
  checkpoint.Checkpoints(fake)
  assert opened[0] == 'gs://mine/W/checkpoints' and pathlib.Path(opened[1]).is_dir()
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with pytest.raises(InputError, match='only one process writes to fake://.*; use gs://'):
    read_inputs(small_pretrain(corpus_file), fake / 'W')
