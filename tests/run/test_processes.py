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
from conftest import ROOT, fields, small_overrides
from running import lines

from bert_jax import config as config_lib
from bert_jax import errors, evaluate, train
from bert_jax.corpus import blocks
from bert_jax.run import speed
from bert_jax.text import documents
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings

CONFIG = '--config=configs/pretrain.py:runlocal'


def started(command, **env):
  """A command in a process group of its own."""
  return subprocess.Popen(
    [*map(str, command)],
    cwd=ROOT,
    env=os.environ | {'PYTHON': sys.executable} | env,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )


def local(processes, devices, *arguments, module='bert_jax.train', **env):
  """launch/local, started."""
  sizes = '--processes', processes, '--devices', devices
  return started(['launch/local', *sizes, '--module', module, '--', *arguments], **env)


def done(process, timeout=300):
  """(exit code, stdout, stderr) of a started launch/local; kills what is left of it."""
  try:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err
  finally:
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)


def spoken(out):
  """The lines of JSON in what processes print; Gloo talks too."""
  return '\n'.join(line for line in out.splitlines() if line.startswith('{'))


def succeeded(process):
  code, out, err = done(process)
  assert code == 0, err[-3000:]
  return spoken(out)


def logged(workdir):
  """{(step, split): metrics} of a run, without its speed."""
  is_metric = lambda k, v: isinstance(v, float) and k not in speed.MEASURED
  return {
    (line['step'], line['split']): {k: v for k, v in line.items() if is_metric(k, v)}
    for line in lines(workdir)
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


def stop_one(process, workdir, step, number=signal.SIGTERM, which=-1):
  """Sends a signal to one process of a run that has come to a step."""
  wait_for(workdir, step, process)
  listed = ['pgrep', '-f', '-P', str(process.pid), 'bert_jax']
  children = subprocess.run(listed, capture_output=True, text=True).stdout.split()
  os.kill(int(children[which]), number)


def stopped_and_finished(corpus_file, workdir, number):
  """Two processes with two devices each are stopped by a signal to one of them; others finish the
  run: as many processes as `number`, with four devices together. Returns the workdir."""
  arguments = [CONFIG, '--workdir', workdir, *small_overrides(corpus_file)]
  arguments += fields('checkpoint.every=5 checkpoint.keep_every=5')
  process = local(2, 2, *arguments)
  stop_one(process, workdir, 5)
  code, _, err = done(process)
  step = int(re.search(r'stopped by a signal at step (\d+) of 20', err)[1])
  assert code == 130 and (workdir / 'checkpoints' / str(step)).is_dir()
  out = succeeded(local(number, 4 // number, *arguments))
  assert json.loads(out)['workdir'] == str(workdir)  # one of them speaks
  return workdir


@pytest.fixture(scope='module')
def together(corpus_file, tmp_path_factory):
  return stopped_and_finished(corpus_file, tmp_path_factory.mktemp('processes') / 'together', 1)


def test_two_processes_train_as_one_does_and_another_number_goes_on(together, pretrained):
  same(logged(together), logged(pretrained[0]))
  for name in ('run.json', 'config.json', 'vocab.txt'):
    assert (together / name).is_file()


@pytest.mark.slow
def test_four_processes_go_on(corpus_file, pretrained, tmp_path):
  workdir = stopped_and_finished(corpus_file, tmp_path / 'run', 4)
  same(logged(workdir), logged(pretrained[0]))


def test_a_killed_run_on_a_prepared_corpus_goes_on_in_two_processes(corpus_file, tmp_path):
  """kill -9 at any step; the losses of all steps, and so their rows, are those of a run of one
  process that nothing stopped."""
  words = sorted(set(corpus_file.read_text().split()))
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words, '']
  (tmp_path / 'vocab.txt').write_text('\n'.join(pieces))
  files = tuple(('', file) for file in documents.sources(str(corpus_file)))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(blocks, 'BLOCK_TOKENS', 400)
    patch.setattr(blocks, 'BLOCK_DOCUMENTS', 3)
    meta = prepare.prepare(Settings(files, str(tmp_path)), tmp_path / 'D')
  assert len(blocks.Index(tmp_path / 'D', meta)) > blocks.WHOLE  # read by block
  given = fields('corpus.window=4 log.every=1 checkpoint.every=3')
  given = [*small_overrides(tmp_path / 'D'), *given]
  train.train(config_lib.load('configs/pretrain.py:runlocal', given), tmp_path / 'alone')
  arguments = [CONFIG, *given, '--workdir', tmp_path / 'killed']
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
  data = f'data.train={tmp_path}/data.tsv data.eval={tmp_path}/data.tsv init_from={together}'
  small = 'model.dtype=float32 data.seq_length=32 task.max_length=16 batch_size=2 epochs=1'
  given = fields(data, small, 'log.tensorboard=false')
  config = config_lib.load('configs/finetune.py:task=sst2', given)
  _, one = train.train(config, tmp_path / '1')
  command = '--config=configs/finetune.py:task=sst2', '--workdir', tmp_path / '2', *given
  two = json.loads(succeeded(local(2, 1, *command)))
  assert {name: two[name] for name in one} == pytest.approx(one, rel=1e-5)
  answers = []
  for name in ('1', '2'):
    (path,) = (tmp_path / name).glob('eval/*/predictions.jsonl')
    answers.append([json.loads(line) for line in path.read_text().splitlines()])
  assert len(answers[0]) == 21
  for a, b in zip(*answers, strict=True):
    assert a['prediction'] == b['prediction']
    mine, theirs = (list(x['probabilities'].values()) for x in (a, b))
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize(
  ('lost', 'devices'),
  # The first of them is the coordinator. A device waits for the others of its process, and JAX's
  # client ends that after a minute.
  [(-1, 1), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((0, 1), (-1, 2)))],
)
def test_a_lost_process_ends_the_others(lost, devices, corpus_file, tmp_path):
  workdir = tmp_path / 'run'
  endless = fields('steps=100000 checkpoint.every=0 eval.every=0')
  arguments = [CONFIG, '--workdir', workdir, *small_overrides(corpus_file), *endless]
  process = local(2, devices, *arguments)
  stop_one(process, workdir, 10, signal.SIGKILL, lost)
  begun = time.monotonic()
  code, _, err = done(process, timeout=150)
  assert code != 0 and time.monotonic() - begun < 120
  if (lost and devices == 1) or jax.__version_info__ >= (0, 8):  # older clients exit, unasked
    assert 'another one is gone or unreachable' in err
    assert 'goes on from its newest checkpoint' in err
  assert config_lib.from_json((workdir / 'config.json').read_text())  # what it wrote is whole


def changed(folder, change, *arguments):
  """(exit code, stdout, stderr) of a run of two processes, whose program is changed beforehand."""
  index = "import os, sys\nindex = int(os.environ['JAX_PROCESS_ID'])\nfrom bert_jax import *\n"
  (folder / 'changed.py').write_text(f'{index}{change}\nmodule.main(sys.argv[1:])')
  process = local(2, 1, *arguments, module='changed', PYTHONPATH=str(folder))
  return done(process, timeout=200)


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
  begun, arguments = time.monotonic(), small_overrides(corpus_file)
  code, _, err = changed(tmp_path, change, CONFIG, '--workdir', tmp_path / 'run', *arguments)
  assert code == status and said in err
  assert time.monotonic() - begun < 150


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
    shutil.copytree(together, workdir)
  arguments = small_overrides(corpus_file)
  code, _, err = changed(tmp_path, change, CONFIG, '--workdir', workdir, *arguments)
  assert code == 2 and 'process 1 does not see ' in err
  assert 'use a folder that all processes see' in err


def test_two_processes_evaluate_as_one_does_and_take_what_all_can_read(together, tmp_path):
  """One file of each of the two newest checkpoints is gone for one process: all go on to the
  checkpoint before them."""
  change = """
from bert_jax import evaluate as module
from bert_jax.workdir import checkpoint
def failing(handler, *place):
  restore = handler.restore
  def fail(self, directory, *rest, **options):
    if index == 1 and directory.parts[-2:] == place:
      raise OSError('a stale file handle')
    return restore(self, directory, *rest, **options)
  handler.restore = fail
failing(checkpoint.ocp.JsonCheckpointHandler, '20', 'meta')
failing(checkpoint.ocp.StandardCheckpointHandler, '15', 'params')
"""
  code, out, err = changed(tmp_path, change, '--workdir', together)
  assert code == 0, err[-3000:]
  assert err.count('cannot be read (a stale file handle)') == 2 and '[1] ' in err
  for said in ('cannot read its metadata', 'its arrays cannot be read (by another process)'):
    assert f'{said}; trying the one before it' in err
  metrics, step = evaluate.evaluate(together, which=10)
  found = json.loads(spoken(out))
  assert step == found['step'] == 10
  assert {name: found[name] for name in metrics} == pytest.approx(metrics, rel=1e-5)


@pytest.mark.parametrize(
  ('address', 'index', 'seconds', 'said'),
  [
    ('127.0.0.1:9731', 0, 2, 'the other processes of this run did not come'),
    ('127.0.0.1:9', 1, 1, 'cannot be reached within 1 seconds'),
  ],
)
def test_a_process_that_is_left_alone_says_so(address, index, seconds, said, tmp_path):
  workdir = tmp_path / 'w'
  options = [CONFIG, '--workdir', workdir, '--distributed', seconds]
  env = {'JAX_COORDINATOR_ADDRESS': address, 'JAX_NUM_PROCESSES': '2', 'JAX_PROCESS_ID': str(index)}
  command = [sys.executable, '-m', 'bert_jax.train', *options]
  code, _, err = done(started(command, JAX_PLATFORMS='cpu', **env), timeout=60)
  assert code == 3 and said in err and not workdir.exists()
  told = [x for x in err.splitlines() if not x.startswith('WARNING:absl')]
  assert index == 0 or len(told) == 1  # process 0 also has a word from JAX's own server


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'JAX_NUM_PROCESSES': 'two'}, 'does not say which process this is'),
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
