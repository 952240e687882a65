"""Runs of bert_jax in processes that are watched, stopped and killed.

A process of the campaign imports everything once and forks for each run, before JAX has started a
backend, so that a run costs no imports. The run is the real program: main() with a command line, in
a folder of its own, its output in files. Through a pipe it names the phases that it enters, the
step that it begins with and the checksum of its last state.
"""

import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import bert_jax
from bert_jax import evaluate, hosts, train
from bert_jax.corpus import shards
from bert_jax.predict import __main__ as predict
from bert_jax.run import evaluation, setup
from bert_jax.run.speed import MEASURED
from bert_jax.tools import convert
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.tools.report import __main__ as report
from bert_jax.tools.sweep import __main__ as sweep
from bert_jax.workdir import checkpoint

FORK = multiprocessing.get_context('fork')
SECONDS = 300  # after which a run counts as stuck, on a busy machine too
LONGEST = 1500  # characters of a sentence
LOST_SECONDS = 10  # after which a process of two counts as lost here
CHUNK = 128, 2, 0  # the least tokens and documents of a chunk, and of a corpus in chunks
PROGRAMS = {'train': train, 'evaluate': evaluate, 'predict': predict, 'convert': convert}
PROGRAMS |= {'prepare': prepare}
PROGRAMS |= {'report': report, 'sweep': sweep}
all_of = lambda state: (state.params, state.opt_state, state.carry)
# What a run does while each of these functions runs; the innermost counts.
PHASES = (
  ('reading', train, 'read_inputs'),
  ('compiling', setup, 'prepare'),
  ('reading', checkpoint.Checkpoints, 'restore'),
  ('claiming', setup, 'open_workdir'),
  ('training', train, 'loop'),
  ('saving', checkpoint.Checkpoints, 'save'),
  ('saving', checkpoint.Checkpoints, 'wait'),
  ('evaluating', evaluation, 'one_pass'),
  ('closing', checkpoint.Checkpoints, 'close'),
)


class Ended(NamedTuple):
  """A program that has ended.
  code: its exit status, or minus the signal that killed it; None: it was stuck."""

  code: int | None
  out: str
  log: str

  @property
  def refusal(self):
    """The one sentence with which it ended, if that is not too long, or ''."""
    sentences = [x for x in self.log.splitlines() if x.startswith(('error: ', 'stopped'))]
    one = self.code and len(sentences) == 1 and len(sentences[0]) <= LONGEST
    return sentences[0] if one else ''


class Run:
  """A program in a process: a command line, or a function.
  begin: the step that training began with, None before. state: the checksum of its last state.
  saved: [(step, checksums of the state and of the parameters)] of its checkpoints. phases: [(phase,
  when it was entered)]. code: what it has returned. most: bytes that it may write into one file; 0:
  any. name: of its files of output."""

  def __init__(self, folder, command, devices=1, most=0, name='run', **environment):
    self.output = [Path(folder) / f'{name}.{kind}' for kind in ('out', 'err')]
    self.begin = self.state = self.code = None
    self.phases, self.saved = [], []
    self.messages, there = FORK.Pipe(duplex=False)
    flags = f'{os.environ.get("XLA_FLAGS", "")} --xla_force_host_platform_device_count={devices}'
    settings = folder, command, self.output, there, most, {'XLA_FLAGS': flags} | environment
    self.process = FORK.Process(target=_program, args=settings)
    self.process.start()
    there.close()

  def _take(self, seconds):
    """Reads a message; False if none comes, or never again."""
    try:
      if not self.messages.poll(seconds):
        return False
      name, value = self.messages.recv()
    except (EOFError, OSError):
      return False
    if name in ('phases', 'saved'):
      getattr(self, name).append(value)
    else:
      setattr(self, name, value)
    return True

  def reach(self, phase, count=1):
    """Waits until a phase was entered for the count-th time; False if the run ends before."""
    while [name for name, _ in self.phases].count(phase) < count:
      if not self._take(SECONDS):
        return False
    return True

  def send(self, number):
    with contextlib.suppress(ProcessLookupError):
      os.kill(self.process.pid, number)

  def end(self, seconds=SECONDS):
    """Waits for the end, and kills what does not end -> Ended."""
    until = time.monotonic() + seconds
    while self._take(max(0, until - time.monotonic())):
      pass
    self.process.join(max(1, until - time.monotonic()))
    code = self.process.exitcode
    if code is None:
      self.process.kill()
      self.process.join()
    texts = (path.read_text(errors='replace') if path.exists() else '' for path in self.output)
    return Ended(code, *texts)


def run(folder, command, **settings):
  """(Run, Ended) after its end."""
  started = Run(folder, command, **settings)
  return started, started.end()


def _program(folder, command, output, there, most, environment):
  """Runs a program, in a process that was forked."""
  os.environ.update(environment)
  os.chdir(folder)
  for number in (signal.SIGINT, signal.SIGTERM):  # as in `python -m bert_jax.train`
    signal.signal(number, bert_jax.stopped)
  signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored
  if most:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
  hosts.LOST_SECONDS = LOST_SECONDS
  shards.CHUNK_TOKENS, shards.CHUNK_DOCUMENTS, shards.WHOLE = CHUNK  # else it is planned whole
  _tell_phases(there)
  for number, name in enumerate((os.devnull, *output)):
    sys.stdout.flush()
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666), number)
  there.send(('code', code := command() if callable(command) else program(*command)))
  there.send(('phases', ('ended', time.monotonic())))
  if jax.distributed.is_initialized():
    jax.distributed.shutdown()
  sys.exit(code)


def program(name, *arguments):
  """The exit status of a program with these arguments, run in this process."""
  sys.argv = [name, *map(str, arguments)]
  try:
    PROGRAMS[name].main(sys.argv[1:])
  except SystemExit as end:
    return end.code or 0
  except BaseException:
    traceback.print_exc()
    return 1
  return 0


def _tell_phases(there):
  """Lets the functions of PHASES, and the end of training, send messages."""
  entered = []
  enter = lambda phase: there.send(('phases', (phase, time.monotonic())))

  def watched(phase, function):
    @functools.wraps(function)
    def call(*arguments, **options):
      if phase == 'training':
        there.send(('begin', int(arguments[1].step)))
      if function.__name__ == 'save':
        state = arguments[1]
        there.send(('saved', (int(state.step), digest(all_of(state)), digest(state.params))))
      entered.append(phase)
      enter(phase)
      try:
        out = function(*arguments, **options)
      finally:
        entered.pop()
        if entered:
          enter(entered[-1])
      if phase == 'training':
        there.send(('state', digest(all_of(out[0]))))
      return out

    return call

  for phase, owner, name in PHASES:
    setattr(owner, name, watched(phase, getattr(owner, name)))

  def ended(inputs, of_inputs=setup.ended):
    if out := of_inputs(inputs):  # there is nothing to train
      there.send(('begin', int(out[0].step)))
      there.send(('state', digest(all_of(out[0]))))
    return out

  setup.ended = ended


def digest(tree):
  """A hash of all bits of the arrays of a tree."""
  out = hashlib.sha256()
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    is_key = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    x = jax.random.key_data(x) if is_key else x
    array = np.asarray(x.addressable_data(0) if isinstance(x, jax.Array) else x)
    out.update(f'{path} {array.dtype} {array.shape}'.encode() + array.tobytes())
  return out.hexdigest()[:16]


def lines(workdir, after=0):
  """{(step, split): metrics without speed} of metrics.jsonl, of the steps after one; {} if there
  is none. RuntimeError if a step is there twice."""
  path, out = Path(workdir) / 'metrics.jsonl', {}
  for text in path.read_text(errors='replace').splitlines() if path.exists() else ():
    with contextlib.suppress(ValueError, KeyError, TypeError):
      line = json.loads(text)
      key = line['step'], line['split']
      if line['step'] > after:
        if key in out:
          raise RuntimeError(f'metrics.jsonl has step {key} twice')
        out[key] = {name: x for name, x in line.items() if name not in MEASURED}
  return out


def steps(workdir):
  """The steps of the checkpoints in a workdir."""
  folder = Path(workdir) / 'checkpoints'
  return sorted(int(path.name) for path in folder.glob('*') if path.name.isdigit())
