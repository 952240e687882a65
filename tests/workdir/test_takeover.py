"""Machines that share a bucket, and stand still, wake up or die while one takes over from another.

Each is a process that sends itself a signal at a writing, so that a kill has a place."""

import itertools
import os
import random
import signal
import subprocess
import sys

import fake_bucket
import pytest
from conftest import ROOT, small_overrides
from running import train_lines

from bert_jax import buckets
from bert_jax.buckets import Path
from bert_jax.workdir import lock, records

# Writes the steps that are missing, each as a file.
WORK = """
import sys, time
import fake_bucket
from bert_jax import files
from bert_jax.buckets import Path
from bert_jax.workdir import lock

fake_bucket.on_machine(sys.argv[1], beat=0.05, stale=0.5)
folder, last = Path('az://mine/W'), int(sys.argv[2])
try:
  with lock.held(folder):
    for step in range(len(files.names(folder / 'steps')), last):
      files.write_whole(folder / 'steps' / f'{step:04}', sys.argv[1])
except lock.Busy as busy:
  sys.exit(busy.code)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
  """The folder of a bucket on the disk, which is empty."""
  monkeypatch.setenv('PYTHONPATH', f'{ROOT}:{ROOT}/tests')
  assert fake_bucket.FakeBucket.protocol in buckets.PROTOCOLS
  return fake_bucket.in_folder(tmp_path, monkeypatch)


@pytest.fixture
def start():
  """Starts a process that ends with the test."""
  begun = []

  def started(*command, **options):
    begun.append(subprocess.Popen([sys.executable, *map(str, command)], **options))
    return begun[-1]

  yield started
  for process in begun:
    process.kill()
    process.wait()


def until_signal(process):
  """Waits until a process stands still or has ended: its signal, or minus its exit code."""
  _, status = os.waitpid(process.pid, os.WUNTRACED)
  if os.WIFSTOPPED(status):
    return os.WSTOPSIG(status)
  process.returncode = os.waitstatus_to_exitcode(status)
  return -process.returncode


def wakes(process):
  """Lets a process that stands still go on, and waits for its exit code."""
  process.send_signal(signal.SIGCONT)
  return process.wait(60)


def written(store, part):
  """[(machine, key)] of what was written, in order, without locks."""
  pairs = (line.split() for line in (store / '.written').read_text().splitlines())
  return [(name, key) for name, key in pairs if part in key and lock.NAME not in key]


@pytest.mark.parametrize('turns', [5, pytest.param(100, marks=pytest.mark.slow)])
def test_each_step_is_written_once_by_the_owner(turns, fake, start):
  """Whoever is killed or stands still, in the middle of taking over too, and wakes up later. Two
  machines begin at once, again and again; the last one is alone and finishes. The last file
  of a machine, which it was just writing when it was stopped, may arrive late, and no other."""
  rng, asleep, last = random.Random(3), [], 20 * turns
  for turn in range(turns + 1):
    places = ['-1:run.lock', '1:run.lock', '2:run.lock', *(f'{rng.randint(1, 9)}:steps/',) * 4]
    kind = 'SIGKILL' if turn % 2 else 'SIGSTOP'
    specs = [f'{turn}-{name}:{kind}:{rng.choice(places)}' for name in 'ab']
    specs = specs if turn < turns else ['last:SIGKILL:0:-']
    crew = [start('-c', WORK, spec, last) for spec in specs]
    ends = [until_signal(process) for process in crew]
    assert {*ends} <= {signal.SIGKILL, signal.SIGSTOP, -lock.Busy.code, 0}
    for process in asleep:  # the owner as before if nobody has come as far as to take over
      assert wakes(process) in (lock.Busy.code, 0)
    asleep = [process for process, end in zip(crew, ends) if end == signal.SIGSTOP]
  assert ends == [0]
  assert len([*Path('az://mine/W/steps').iterdir()]) == last
  steps = written(fake, 'steps/')  # without those whose writer ended before it noted them
  last_of = {name: i for i, (name, _) in enumerate(steps)}
  in_time = [(name, key) for i, (name, key) in enumerate(steps) if i != last_of[name]]
  keys = [key for _, key in in_time]
  assert keys == sorted({*keys}) and len(keys) > 0.85 * last
  owners = [name for name, _ in itertools.groupby(name for name, _ in in_time)]
  assert len(owners) == len({*owners}) > turns / 2


@pytest.mark.slow
def test_a_run_that_two_machines_leave_in_the_middle_has_the_bits_of_one_on_a_disk(
  fake, corpus_file, pretrained, start
):
  """The first stands still while it uploads a checkpoint, and wakes up once the second, which took
  over, was killed while it uploaded another; the third finishes."""
  config = ['--config', 'configs/pretrain.py:runlocal', *small_overrides(corpus_file)]
  options = [*config, '--config.checkpoint.every=5', '--workdir', 'az://mine/W']
  run = lambda spec: start('tests/fake_bucket.py', spec, 'bert_jax.train', *options, cwd=ROOT)
  first = run('a:SIGSTOP:2:checkpoints/10/')
  assert until_signal(first) == signal.SIGSTOP
  assert until_signal(run('b:SIGKILL:2:checkpoints/15/')) == signal.SIGKILL
  before = written(fake, '')
  assert wakes(first) == lock.Busy.code and written(fake, '') == before
  assert run('c:SIGKILL:0:-').wait() == 0
  owners = [name for name, _ in itertools.groupby(name for name, _ in written(fake, ''))]
  assert owners == ['a', 'b', 'c']
  done, other = records.read(Path('az://mine/W')), records.read(pretrained[0])
  assert done.faults == () and done.summary.has_ended
  assert done.newest['arrays'] == other.newest['arrays']
  assert train_lines(done.path) == train_lines(other.path)
