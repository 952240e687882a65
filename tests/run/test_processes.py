"""Several processes on loopback are one run: the same numbers as one process, one log, one set of
checkpoints that any number of processes continues; and a lost one ends the others."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from conftest import ROOT, fields, small_overrides, small_pretrain
from running import Wide, lines, without_a_model

from bert_jax import config as config_lib
from bert_jax import errors, hosts, train
from bert_jax.corpus import shards
from bert_jax.corpus.store import Store
from bert_jax.errors import InputError
from bert_jax.run import speed
from bert_jax.text import documents
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.prepare.steps import Settings
from bert_jax.workdir import checkpoint, lock

CONFIG = '--config=configs/pretrain.py:runlocal'
STEPS = 12
CONFIG_OF = 'from bert_jax import config\nget_config = lambda _: config.from_json({!r})\n'


def started(command, **env):
  """A command in a process group of its own."""
  how = dict.fromkeys(('stdout', 'stderr'), subprocess.PIPE) | dict(text=True, cwd=ROOT)
  env = os.environ | {'PYTHON': sys.executable} | env
  return subprocess.Popen([*map(str, command)], env=env, start_new_session=True, **how)


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


def wait_for(workdir, step, process, timeout=300):
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


@pytest.fixture(scope='module')
def alone(corpus_file, tmp_path_factory):
  """(config, workdir) of a run of one process on a prepared corpus that is read by chunk."""
  folder = tmp_path_factory.mktemp('processes')
  words = sorted(set(corpus_file.read_text().split()))
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words, '']
  (folder / 'vocab.txt').write_text('\n'.join(pieces))
  files = tuple(('', file) for file in documents.sources(str(corpus_file)))
  with pytest.MonkeyPatch.context() as patch:
    for name, value in (('CHUNK_TOKENS', 400), ('CHUNK_DOCUMENTS', 3), ('WHOLE', 0)):
      patch.setattr(shards, name, value)
    prepare.prepare(Settings(files, str(folder)), folder / 'D')
  assert Store(folder / 'D').text(0, 1).units > 8
  often = 'corpus.window=4 log.every=1 checkpoint.every=4 checkpoint.keep_every=4 eval.every=0'
  config = small_pretrain(folder / 'D', often, f'steps={STEPS}')
  with without_a_model(Wide):
    train.train(config, folder / 'alone')
  return config, folder / 'alone'


def changed(folder, program, *arguments):
  """(exit code, stdout, stderr) of two processes that run a program."""
  index = "import os, sys\nindex = int(os.environ['JAX_PROCESS_ID'])\nfrom bert_jax import *\n"
  (folder / 'changed.py').write_text(index + program)
  process = local(2, 1, *arguments, module='changed', PYTHONPATH=f'{folder}:{ROOT}/tests')
  return done(process)


# While it begins, one file of each of the two newest checkpoints is gone for process 1, which gets
# a signal when it has made some steps.
STOPPED = """
import json, signal
from running import Wide, without_a_model
from bert_jax import train
from bert_jax.run.stopping import Watch
from bert_jax.text import files
from bert_jax.workdir import checkpoint

def failing(function, at, *place):
  def fail(*arguments, **options):
    if index == 1 and arguments[at].parts[-len(place) :] == place:
      raise OSError('a stale file handle')
    return function(*arguments, **options)
  return fail

def asking(self):
  asked.append(1)
  if index == 1 and len(asked) == 4:
    os.kill(os.getpid(), signal.SIGTERM)
  return ask(self)

handler = checkpoint.ocp.StandardCheckpointHandler
files.read_bytes = failing(files.read_bytes, 0, '12', 'meta', 'metadata')
handler.restore = failing(handler.restore, 1, '8', 'params')
ask, asked, Watch.ask = Watch.ask, [], asking
with without_a_model(Wide):
  train.main(json.loads(sys.argv[1]))
"""


@pytest.fixture(scope='module')
def together(alone, tmp_path_factory):
  """What two processes say and leave that go on with the run of `alone`, each parameter split
  between them, until one of them is asked to stop."""
  folder = tmp_path_factory.mktemp('together')
  (folder / 'config.py').write_text(CONFIG_OF.format(config_lib.to_json(alone[0])))
  workdir = shutil.copytree(alone[1], folder / 'run')
  words = [f'--config={folder}/config.py', '--workdir', str(workdir), '--config.mesh.fsdp=2']
  code, _, err = changed(folder, STOPPED, json.dumps(words))
  assert code == 130, err[-3000:]
  return SimpleNamespace(folder=folder, err=err)


def test_two_processes_go_on_with_what_both_can_read(together):
  err = together.err
  assert '(a stale file handle)' in err
  assert f'continuing at step 4 of {STEPS}' in err
  assert all((together.folder / f'run/damaged-checkpoint-{step}').is_dir() for step in (8, 12))


def test_two_processes_train_as_one_does_and_another_number_goes_on(alone, together, tmp_path):
  """The losses of all steps, and so their rows, are those of a run that nothing stopped."""
  assert f'stopped by a signal at step 9 of {STEPS}' in together.err
  workdir = shutil.copytree(together.folder / 'run', tmp_path / 'run')
  assert {path.name for path in (workdir / 'checkpoints').iterdir()} >= {'4', '8', '9'}
  with without_a_model(Wide):
    train.train(alone[0], workdir)
  ours, theirs = logged(workdir), logged(alone[1])
  assert len({metrics['mlm'] for metrics in theirs.values()}) >= STEPS, 'losses tell batches apart'
  same(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
  # The first of them is the coordinator. A device waits for the others of its process, and JAX's
  # client ends that after a minute.
  ('lost', 'devices'),
  [(0, 1), (-1, 2)],
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
  assert config_lib.from_json((workdir / 'config.json').read_text())  # what it wrote is whole


@pytest.mark.slow
def test_an_error_of_one_process_ends_both(corpus_file, tmp_path):
  """Process 0 alone finds the workdir in use: it says so, and process 1 does not wait for it."""
  begun, arguments = time.monotonic(), small_overrides(corpus_file)
  with lock.held(tmp_path / 'run'):
    code, _, err = done(local(2, 1, CONFIG, '--workdir', tmp_path / 'run', *arguments))
  assert code == lock.Busy.code and f'{tmp_path / "run"} is in use' in err
  assert time.monotonic() - begun < 150


@pytest.mark.slow
def test_two_processes_fine_tune_as_one_does(pretrained, tmp_path):
  """Every answer is written once."""
  rows = [f'the river number {i} .\t{i % 2}' for i in range(21)]
  (tmp_path / 'data.tsv').write_text('\n'.join(['sentence\tlabel', *rows]) + '\n')
  data = f'data.train={tmp_path}/data.tsv data.eval={tmp_path}/data.tsv init_from={pretrained[0]}'
  small = 'model.dtype=float32 data.seq_length=32 task.max_length=16 batch_size=2 epochs=1'
  tuned = 'configs/finetune.py:task=sst2', fields(data, small, 'log.tensorboard=false')
  arguments = f'--config={tuned[0]}', '--workdir', tmp_path / 'two' / 'tuned', *tuned[1]
  code, out, err = done(local(2, 1, *arguments))
  assert code == 0, err[-3000:]
  (said,) = (json.loads(line) for line in out.splitlines() if line.startswith('{'))
  _, one = train.train(config_lib.load(*tuned), tmp_path / 'one' / 'tuned')
  # (What a loss is below its baseline is a difference, which may be near 0.)
  one = {name: x for name, x in one.items() if '_below_' not in name}
  assert {name: said[name] for name in one} == pytest.approx(one, rel=1e-5)
  answers = []
  for folder in (tmp_path / 'one', tmp_path / 'two'):
    (path,) = folder.glob('tuned/eval/*/predictions.jsonl')
    answers.append([json.loads(line) for line in path.read_text().splitlines()])
  assert len(answers[0]) == 21
  for a, b in zip(*answers, strict=True):
    assert a['prediction'] == b['prediction']
    mine, theirs = (list(x['probabilities'].values()) for x in (a, b))
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_a_wrong_path_is_not_tried_again_and_a_failing_disk_is():
  assert errors.farewell(FileNotFoundError(2, 'No such file', 'x'))[1] == 2
  assert errors.farewell(OSError(errno.EROFS, 'Read-only file system', 'x'))[1] == 2
  assert errors.farewell(OSError(116, 'Stale file handle', 'x'))[1] == 3
  for number, code in ((errno.EROFS, 2), (errno.EACCES, 2), (errno.ENOSPC, 3)):
    with pytest.raises(InputError) as caught, errors.writing('x'):
      raise OSError(number, 'why')
    assert errors.farewell(caught.value)[1] == code


def test_what_not_all_processes_see_is_one_sentence(tmp_path, monkeypatch):
  monkeypatch.setattr(hosts, 'from_all', lambda number: [1, int(number), 1])
  with pytest.raises(InputError, match='process 1 does not see .*missing'):
    hosts.exists(tmp_path / 'missing')
  with pytest.raises(InputError, match='process 1 does not see .*checkpoints'):
    checkpoint.newest_meta(tmp_path / 'W')


def test_errors_between_processes_are_told_from_errors_of_the_work(monkeypatch):
  lost = ValueError('DEADLINE_EXCEEDED: Barrier timed out')
  assert not hosts.is_lost_connection(lost)  # of one process
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  for status in ('UNKNOWN', 'INTERNAL', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'ABORTED', 'CANCELLED'):
    assert hosts.is_lost_connection(ValueError(f'{status}: gone'))
  for error in (ValueError('it says INTERNAL: x'), KeyError('x')):
    assert not hosts.is_lost_connection(error)
