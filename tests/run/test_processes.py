"""Several processes on loopback are one run: the same numbers as one process, one log, one set of
checkpoints that any number of processes continues; and a lost one ends the others."""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import ROOT, run_module, small_overrides

from bert_jax import config as config_lib
from bert_jax import errors, train
from bert_jax.corpus import blocks
from bert_jax.run import speed
from bert_jax.text import documents
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings

CONFIG = '--config=configs/pretrain.py:runlocal'
ENV = dict(os.environ, PYTHON=sys.executable)


def local(processes, devices, *arguments, module='bert_jax.train'):
  """launch/local, started."""
  return subprocess.Popen(
    [
      'launch/local',
      '--processes',
      str(processes),
      '--devices',
      str(devices),
      '--module',
      module,
      '--',
      *map(str, arguments),
    ],
    cwd=ROOT,
    env=ENV,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )


def done(process, timeout=300):
  """(exit code, stdout, stderr) of a started launch/local; kills what is left of it."""
  try:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err
  finally:
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)


def succeeded(process):
  code, out, err = done(process)
  assert code == 0, err[-3000:]
  return '\n'.join(line for line in out.splitlines() if line.startswith('{'))  # Gloo talks too


def logged(workdir):
  """{(step, split): metrics} of a run, without its speed."""
  lines = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  measured = ('steps', *speed.MEASURED)
  return {
    (line['step'], line['split']): {
      k: v for k, v in line.items() if isinstance(v, float) and k not in measured
    }
    for line in lines
  }


def same(a, b, tolerance=1e-5):
  assert a.keys() == b.keys()
  for key, metrics in a.items():
    assert metrics == pytest.approx(b[key], abs=tolerance, rel=tolerance), key


def wait_for(workdir, step, process, timeout=120):
  """Returns when the run has logged a step."""
  path, end = workdir / 'metrics.jsonl', time.monotonic() + timeout
  while not (path.exists() and f'"step": {step},' in path.read_text()):
    if process.poll() is not None or time.monotonic() > end:
      os.killpg(process.pid, signal.SIGKILL)  # else its stderr would never end
      raise AssertionError(process.stderr.read()[-3000:])
    time.sleep(0.1)


@pytest.fixture(scope='module')
def alone(corpus_file, tmp_path_factory):
  """The run of one process with four devices."""
  workdir = tmp_path_factory.mktemp('processes') / 'alone'
  run_module(
    'bert_jax.train', CONFIG, '--workdir', workdir, *small_overrides(corpus_file), devices=4
  )
  return workdir


@pytest.fixture(scope='module')
def together(corpus_file, tmp_path_factory):
  """The same run of two processes with two devices each: (workdir, stdout)."""
  workdir = tmp_path_factory.mktemp('processes') / 'together'
  process = local(2, 2, CONFIG, '--workdir', workdir, *small_overrides(corpus_file))
  return workdir, succeeded(process)


def test_two_processes_train_as_one_does(alone, together):
  workdir, out = together
  same(logged(workdir), logged(alone))
  (line,) = out.splitlines()  # one of them speaks
  assert json.loads(line)['workdir'] == str(workdir)
  for name in ('run.json', 'config.json', 'vocab.txt'):
    assert (workdir / name).is_file()


def test_two_processes_evaluate_as_one_does(alone, together):
  one = run_module('bert_jax.evaluate', '--workdir', together[0], devices=4).stdout
  two = succeeded(local(2, 2, '--workdir', together[0], module='bert_jax.evaluate'))
  one, two = json.loads(one), json.loads(two)
  assert one.pop('workdir') == two.pop('workdir')
  assert two == pytest.approx(one, rel=1e-6)


@pytest.mark.parametrize('number', [1, pytest.param(4, marks=pytest.mark.slow)])
def test_another_number_of_processes_goes_on(number, alone, corpus_file, tmp_path):
  """Two of them are stopped by a signal to one; one or four finish the run."""
  workdir = tmp_path / 'run'
  arguments = [CONFIG, '--workdir', workdir, *small_overrides(corpus_file)]
  process = local(2, 2, *arguments)
  wait_for(workdir, 5, process)
  children = subprocess.run(
    ['pgrep', '-f', '-P', str(process.pid), 'bert_jax'], capture_output=True, text=True
  ).stdout.split()
  os.kill(int(children[-1]), signal.SIGTERM)
  code, _, err = done(process)
  step = int(re.search(r'stopped by a signal at step (\d+) of 20', err)[1])
  assert code == 130 and (workdir / 'checkpoints' / str(step)).is_dir()
  succeeded(local(number, 4 // number, *arguments))
  ours, theirs = logged(workdir), logged(alone)
  last = (20, 'eval')
  assert ours[last] == pytest.approx(theirs[last], abs=1e-5, rel=1e-5)


def test_a_killed_run_on_a_prepared_corpus_goes_on_in_two_processes(corpus_file, tmp_path):
  """kill -9 at any step; the losses of all steps, and so their rows, are those of a run of one
  process that nothing stopped."""
  (tmp_path / 'vocab.txt').write_text(
    '\n'.join(
      [
        '[PAD]',
        '[UNK]',
        '[CLS]',
        '[SEP]',
        '[MASK]',
        *sorted(set(corpus_file.read_text().split())),
        '',
      ]
    )
  )
  files = tuple(('', file) for file in documents.sources(str(corpus_file)))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(blocks, 'BLOCK_TOKENS', 400)
    patch.setattr(blocks, 'BLOCK_DOCUMENTS', 3)
    meta = prepare.prepare(Settings(files, str(tmp_path)), tmp_path / 'D')
  assert len(blocks.Index(tmp_path / 'D', meta)) > blocks.WHOLE  # read by block
  fields = [
    *small_overrides(tmp_path / 'D'),
    '--config.corpus.window=4',
    '--config.log.every=1',
    '--config.checkpoint.every=3',
  ]
  train.train(config_lib.load('configs/pretrain.py:runlocal', fields), tmp_path / 'alone')
  arguments = [CONFIG, *fields, '--workdir', tmp_path / 'killed']
  process = local(1, 2, *arguments)
  wait_for(tmp_path / 'killed', random.randint(1, 18), process)
  os.killpg(process.pid, signal.SIGKILL)
  assert done(process)[0] == -signal.SIGKILL
  succeeded(local(2, 1, *arguments))
  ours, theirs = logged(tmp_path / 'killed'), logged(tmp_path / 'alone')
  assert len({metrics['mlm'] for metrics in theirs.values()}) > 20, 'losses tell batches apart'
  same(ours, theirs)


def test_weights_and_answers_of_fine_tuning(together, tmp_path):
  """init_from a run of two processes, by two processes; every answer is written once."""
  rows = [f'the river number {i} .\t{i % 2}' for i in range(21)]
  (tmp_path / 'data.tsv').write_text('\n'.join(['sentence\tlabel', *rows]) + '\n')
  outs = []
  for processes in (1, 2):
    workdir = tmp_path / str(processes)
    process = local(
      processes,
      2 // processes,
      '--config=configs/finetune.py:task=sst2',
      '--workdir',
      workdir,
      f'--config.init_from={together[0]}',
      f'--config.data.train={tmp_path}/data.tsv',
      f'--config.data.eval={tmp_path}/data.tsv',
      '--config.model.dtype=float32',
      '--config.data.seq_length=32',
      '--config.task.max_length=16',
      '--config.batch_size=2',
      '--config.epochs=1',
      '--config.log.tensorboard=false',
    )
    outs.append(json.loads(succeeded(process)))
    (answers,) = workdir.glob('eval/*/predictions.jsonl')
    outs[-1]['answers'] = [json.loads(line) for line in answers.read_text().splitlines()]
  one, two = outs
  assert len(one['answers']) == len(two['answers']) == 21
  answers = [out.pop('answers') for out in outs]
  assert [out.pop('workdir') for out in outs] == [str(tmp_path / '1'), str(tmp_path / '2')]
  assert two == pytest.approx(one, rel=1e-5)
  for a, b in zip(*answers, strict=True):
    assert a['prediction'] == b['prediction']
    np.testing.assert_allclose(
      list(a['probabilities'].values()), list(b['probabilities'].values()), atol=1e-5
    )


@pytest.mark.parametrize(
  ('lost', 'devices'),
  # The first of them is the coordinator. A device waits for the others of its process, and JAX's
  # client ends that after a minute.
  [(-1, 1), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((0, 1), (-1, 2)))],
)
def test_a_lost_process_ends_the_others(lost, devices, corpus_file, tmp_path):
  workdir = tmp_path / 'run'
  arguments = [CONFIG, '--workdir', workdir, *small_overrides(corpus_file)]
  process = local(
    2,
    devices,
    *arguments,
    '--config.steps=100000',
    '--config.checkpoint.every=0',
    '--config.eval.every=0',
  )
  wait_for(workdir, 10, process)
  children = subprocess.run(
    ['pgrep', '-f', '-P', str(process.pid), 'bert_jax'], capture_output=True, text=True
  ).stdout.split()
  os.kill(int(children[lost]), signal.SIGKILL)
  started = time.monotonic()
  code, _, err = done(process, timeout=150)
  assert code != 0 and time.monotonic() - started < 120
  if (lost and devices == 1) or jax.__version_info__ >= (0, 8):  # older clients exit, unasked
    assert (
      'another one is gone or unreachable' in err and 'goes on from its newest checkpoint' in err
    )
  assert config_lib.from_json((workdir / 'config.json').read_text())  # what it wrote is whole


def changed(folder, change, *arguments):
  """(exit code, stderr, seconds) of a run of two processes, whose program is changed beforehand."""
  lines = [
    'import os, sys',
    "index = int(os.environ['JAX_PROCESS_ID'])",
    'from bert_jax import *',
    change,
    'module.main(sys.argv[1:])',
  ]
  (folder / 'changed.py').write_text('\n'.join(lines))
  started = time.monotonic()
  process = subprocess.Popen(
    ['launch/local', '--module', 'changed', '--', *map(str, arguments)],
    cwd=ROOT,
    env=ENV | {'PYTHONPATH': str(folder)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )
  code, _, err = done(process, timeout=200)
  return code, err, time.monotonic() - started


@pytest.mark.parametrize(
  ('kind', 'status', 'said'),
  [
    ('config.InputError', 2, 'error: the disk of process 0 is full'),
    pytest.param(
      *('RuntimeError', 1, 'RuntimeError: the disk of process 0 is full'), marks=pytest.mark.slow
    ),
  ],
)
def test_an_error_of_one_process_ends_both(kind, status, said, corpus_file, tmp_path):
  """Process 0 alone fails to write: it says so, and process 1 does not wait for minutes."""
  change = f"""
from bert_jax import config, train as module
from bert_jax.workdir import contents
def claim(*_):
  raise {kind}('the disk of process 0 is full')
contents.claim = claim
"""
  workdir = tmp_path / 'run'
  code, err, seconds = changed(
    tmp_path, change, CONFIG, '--workdir', workdir, *small_overrides(corpus_file)
  )
  assert code == status and said in err
  assert seconds < 150


@pytest.mark.parametrize('begun', [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_workdir_that_is_not_shared_is_one_sentence(begun, together, corpus_file, tmp_path):
  change = """
from bert_jax import hosts, train as module
hosts.VISIBLE_SECONDS = 1
if index == 1:
  sys.argv[sys.argv.index('--workdir') + 1] += '_of_1'
"""
  workdir = tmp_path / 'run'
  if begun:
    shutil.copytree(together[0], workdir)
  code, err, _ = changed(
    tmp_path, change, CONFIG, '--workdir', workdir, *small_overrides(corpus_file)
  )
  assert code == 2 and 'process 1 does not see ' in err
  assert 'use a folder that all processes see' in err


@pytest.mark.parametrize(
  ('kind', 'part', 'said'),
  [
    ('Json', 'meta', 'another process cannot read its metadata'),
    ('Standard', 'params', 'its arrays cannot be read (by another process)'),
  ],
)
def test_what_one_process_cannot_read_none_of_them_takes(kind, part, said, together, tmp_path):
  """The newest checkpoint, of which one file is gone for one: all go on to the one before it."""
  change = f"""
from bert_jax import evaluate as module
from bert_jax.workdir import checkpoint
handler = checkpoint.ocp.{kind}CheckpointHandler
restore = handler.restore
def fail(self, directory, *rest, **options):
  if index == 1 and directory.parts[-2:] == ('20', '{part}'):
    raise OSError('a stale file handle')
  return restore(self, directory, *rest, **options)
handler.restore = fail
"""
  code, err, _ = changed(tmp_path, change, '--workdir', together[0])
  assert code == 0, err[-3000:]
  assert '[1] ' in err and 'cannot be read (a stale file handle)' in err
  assert f'{said}; trying the one before it' in err


def test_a_process_that_is_left_alone_says_so(tmp_path):
  env = ENV | {
    'JAX_COORDINATOR_ADDRESS': '127.0.0.1:9731',
    'JAX_NUM_PROCESSES': '2',
    'JAX_PROCESS_ID': '0',
    'JAX_PLATFORMS': 'cpu',
    'PYTHONPATH': str(ROOT),
  }
  out = subprocess.run(
    [
      sys.executable,
      '-m',
      'bert_jax.train',
      CONFIG,
      '--workdir',
      str(tmp_path / 'w'),
      '--distributed',
      '2',
    ],
    env=env,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert out.returncode == 3 and 'the other processes of this run did not come' in out.stderr


def test_a_coordinator_that_is_not_there_is_one_sentence(tmp_path):
  env = ENV | {
    'JAX_COORDINATOR_ADDRESS': '127.0.0.1:9',
    'JAX_NUM_PROCESSES': '2',
    'JAX_PROCESS_ID': '1',
    'JAX_PLATFORMS': 'cpu',
    'PYTHONPATH': str(ROOT),
  }
  out = subprocess.run(
    [
      sys.executable,
      '-m',
      'bert_jax.train',
      CONFIG,
      '--workdir',
      str(tmp_path / 'w'),
      '--distributed',
      '1',
    ],
    env=env,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert out.returncode == 3 and 'cannot be reached within 1 seconds' in out.stderr
  said_by_us = [line for line in out.stderr.splitlines() if not line.startswith('WARNING:absl')]
  assert len(said_by_us) == 1 and not (tmp_path / 'w').exists()


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'JAX_NUM_PROCESSES': 'two'}, 'must be numbers too'),
    ({'JAX_PROCESS_ID': '2'}, 'does not say which process this is'),
  ],
)
def test_numbers_of_processes_that_make_no_sense(changes, said, tmp_path, monkeypatch, capsys):
  """Told before anything is asked of the others, so this process can play the part."""
  env = {'JAX_COORDINATOR_ADDRESS': '127.0.0.1:9', 'JAX_NUM_PROCESSES': '2', 'JAX_PROCESS_ID': '1'}
  for name, value in (env | changes).items():
    monkeypatch.setenv(name, value)
  with pytest.raises(SystemExit) as end:
    train.main([CONFIG, '--workdir', str(tmp_path / 'w'), '--distributed', '1'])
  (line,) = capsys.readouterr().err.splitlines()
  assert end.value.code == 2 and said in line and not (tmp_path / 'w').exists()


def test_a_wrong_path_is_not_tried_again_and_a_failing_disk_is():
  assert errors.farewell(FileNotFoundError(2, 'No such file', 'x'))[1] == 2
  assert errors.farewell(OSError(errno.EROFS, 'Read-only file system', 'x'))[1] == 2
  assert errors.farewell(OSError(116, 'Stale file handle', 'x'))[1] == 3
  assert errors.unwritten('x', OSError(errno.EROFS, 'Read-only file system')).code == 2
