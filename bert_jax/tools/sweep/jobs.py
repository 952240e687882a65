"""Trains the runs of a sweep, each in a process of its own, several at a time.

Beside the workdirs lie logs/NAME.txt, the output of run NAME, and logs/NAME.json, how it ended. A
sweep that is started again leaves out finished runs and continues interrupted ones.
"""

import contextlib
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent import futures

import tqdm
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files
from bert_jax.command_line import WARNING_PREFIX
from bert_jax.copies import place, staged
from bert_jax.files import Path
from bert_jax.tools.sweep import child
from bert_jax.tools.sweep.arms import PlannedRun
from bert_jax.workdir import records
from bert_jax.workdir.recorded import Outcome
from bert_jax.workdir.records import LOGS

BEGINS = '==== '  # how a try begins in the output of a run
# The states of runs by their exit codes: 3: it may continue later; the others: it was stopped.
STATES = {0: 'done', 3: 'stopped', 130: 'stopped', -signal.SIGTERM: 'stopped'}


def state_of(root: Path, run: PlannedRun) -> str:
  """How a run has ended: done, failed, stopped; '' if not run, or run with another config."""
  ended = records.read_outcome(root, run.folder)
  is_same = ended.config == fingerprint(run.config) and files.exists(root / run.folder)
  return ended.state if is_same else ''


def fingerprint(config: ConfigDict) -> str:
  """A short hash of all fields, including evaluation's."""
  fields = json.dumps(config_lib.flatten(config), sort_keys=True, default=str)
  return hashlib.sha256(fields.encode()).hexdigest()[:16]


def gpus() -> list[str]:
  """The GPUs that runs may use: those of CUDA_VISIBLE_DEVICES, else all of the machine."""
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  if visible is not None:
    return [name for name in visible.split(',') if name]
  return [str(number) for number in range(len(list(Path('/dev').glob('nvidia[0-9]*'))))]


def started(run: PlannedRun, root: Path, number: int, count: int) -> subprocess.Popen:
  """Starts the process that trains a run, `number` of `count`, on its share of cores and GPUs."""
  env = dict(os.environ)
  env['JAX_COMPILATION_CACHE_DIR'] = str(staged(root / '.jax_cache'))
  env['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.5'
  devices = gpus()
  if devices and count > 1:
    env['CUDA_VISIBLE_DEVICES'] = devices[number % len(devices)]
    sharing = -(-count // len(devices))
    if sharing > 1:
      env.setdefault('XLA_PYTHON_CLIENT_MEM_FRACTION', f'{0.9 / sharing:.2f}')
  command = [sys.executable, '-m', child.__name__, str(number), str(count), '--config', run.spec]
  command += ['--workdir', str(root / run.folder), *run.fields]
  with files.append(staged(root / LOGS / f'{run.folder}.txt')) as file:
    print(BEGINS + time.strftime('%F %T'), run.folder, file=file, flush=True)
    return subprocess.Popen(
      command,
      env=env,
      start_new_session=True,
      stdin=subprocess.PIPE,
      stdout=file,
      stderr=subprocess.STDOUT,
    )


class Crew:
  """Trains runs below a folder, `count` at a time. `states`: {folder: how a run ended}. Says the
  warnings of runs, each of them once."""

  def __init__(self, runs: Sequence[PlannedRun], root: Path, count: int):
    self.root, self.count = root, count
    self.states = {run.folder: state_of(root, run) for run in runs}
    self.waiting = [run for run in runs if self.states[run.folder] != 'done']
    self.processes = set()
    self.said = set()  # the lines of warnings that were shown
    self.over = threading.Event()
    self.free = queue.SimpleQueue()  # the numbers of the shares of cores that no run has
    for number in range(count):
      self.free.put(number)
    done = len(runs) - len(self.waiting)
    self.bar = tqdm.tqdm(total=len(runs), initial=done, unit=' runs', disable=None)

  def train(self, run: PlannedRun) -> None:
    """Trains a run to its end, unless all is over; records and says how it ended."""
    if self.over.is_set():
      return
    number = self.free.get()
    log_file = self.root / LOGS / f'{run.folder}.txt'
    if staged(log_file) != log_file:
      files.write_whole(staged(log_file), files.read_bytes(log_file) or b'')  # of earlier tries
    process = started(run, self.root, number, self.count)
    self.processes.add(process)
    if self.over.is_set():
      ask_to_end(process)
    code = process.wait()
    place(staged(log_file), log_file)
    self.processes.discard(process)
    self.free.put(number)
    ask_to_end(process)
    error = ''
    if code < 0:  # perhaps for lack of memory
      error = f'its process was killed (status {code})'
    elif code:
      error = last_words(log_file)
    outcome = Outcome(STATES.get(code, 'failed'), error, config=fingerprint(run.config))
    files.write_sealed(self.root / LOGS / f'{run.folder}.json', outcome.to_json())
    self.states[run.folder] = outcome.state
    told = error or outcome.state
    if not code:
      there = records.read(self.root / run.folder)
      value = there.final(there.judge)
      told = told if value is None else f'{there.judge} {value:.4g}'
    self.bar.update()
    of_this_try = files.read_text(log_file).rpartition(BEGINS)[2]
    warnings = {x for x in of_this_try.splitlines() if x.startswith(WARNING_PREFIX)}
    for line in sorted(warnings - self.said):
      self.bar.write(f'{run.folder}: {line}', file=sys.stderr)
    self.said |= warnings
    self.bar.write(f'{run.folder}: {told}', file=sys.stderr)

  def end(self) -> None:
    self.over.set()
    for process in list(self.processes):
      ask_to_end(process)


def last_words(log_file: Path) -> str:
  """The last line of a run's output, which says why it failed."""
  lines = files.read_text(log_file).strip().splitlines() or ['']
  return lines[-1].removeprefix('error: ')


def ask_to_end(process: subprocess.Popen) -> None:
  """Closes the standard input of a run, which then saves itself and ends."""
  if process.stdin:
    with contextlib.suppress(OSError):
      process.stdin.close()


def run_all(runs: Sequence[PlannedRun], root: Path, processes: int) -> dict[str, str]:
  """Trains all unfinished runs below a folder, even if some fail: {folder: how it ended}."""
  files.make_folder(root / LOGS)
  crew = Crew(runs, root, processes)
  threads = futures.ThreadPoolExecutor(processes)
  try:
    working = {threads.submit(crew.train, run) for run in crew.waiting}
    while working:
      done, working = futures.wait(working, 1.0, futures.FIRST_COMPLETED)
      for future in done:
        future.result()
      crew.bar.refresh()
  finally:
    crew.bar.close()
    crew.end()
    threads.shutdown()
  return crew.states
