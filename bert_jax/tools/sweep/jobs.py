"""Trains the runs of a sweep, each in a process of its own, several at a time.

Beside the workdirs lie logs/NAME.txt, the output of run NAME, and logs/NAME.json, how it ended.
A sweep that is started again leaves out finished runs and continues interrupted ones.
"""

import contextlib
import logging
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import tqdm
from ml_collections import ConfigDict

from bert_jax import files
from bert_jax.metrics import to_json
from bert_jax.tools.sweep import arms, child
from bert_jax.workdir import records
from bert_jax.workdir.records import LOGS, Outcome

log = logging.getLogger('bert_jax')

PAUSED, SIGNALLED = 3, 130  # exit codes of a run that may continue later, and of a stopped one
STATES = {0: 'done', PAUSED: 'stopped', SIGNALLED: 'stopped', child.BUSY: 'stopped'}
# How often, and after how many seconds, a run is retried whose workdir is held, perhaps by a child
# of a killed sweep, which has child.PATIENCE to end.
TRIES, PAUSE = 9, 10


class Job(NamedTuple):
  """A run that is to be trained."""

  run: arms.Run  # including the fields that all runs share
  config: ConfigDict
  fingerprint: str  # of its whole config; a run finished with another config counts as not run
  metric: str  # by which it is judged


def state_of(root: Path, job: Job) -> Outcome:
  """How a run has ended; without a state if not run, or run with another config."""
  ended = records.read_outcome(root, job.run.folder)
  is_same = ended.config == job.fingerprint and files.exists(root / job.run.folder)
  return ended if is_same else Outcome('')


def started(job: Job, root: Path, number: int, count: int) -> subprocess.Popen:
  """Starts the process that trains a run, as process `number` of `count` at a time. It has its
  share of the cores and, if there are several GPUs, one of them."""
  env = dict(os.environ)
  paths = str(Path(__file__).parents[3]), env.get('PYTHONPATH', '')
  env['PYTHONPATH'] = os.pathsep.join(filter(None, paths))
  env['JAX_COMPILATION_CACHE_DIR'] = str(root / '.jax_cache')
  env['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.5'
  gpus = sorted(Path('/dev').glob('nvidia[0-9]*'))
  if len(gpus) > 1 and count > 1 and 'CUDA_VISIBLE_DEVICES' not in env:
    env['CUDA_VISIBLE_DEVICES'] = str(number % len(gpus))
  if count > 1 and len(gpus) < count and 'XLA_PYTHON_CLIENT_MEM_FRACTION' not in env:
    env['XLA_PYTHON_CLIENT_MEM_FRACTION'] = f'{0.9 / -(-count // max(1, len(gpus))):.2f}'
  run = job.run
  words = '--config', run.spec, '--workdir', str(root / run.folder), *run.fields
  with files.append(root / LOGS / f'{run.folder}.txt') as file:
    print(time.strftime('==== %F %T'), run.folder, file=file, flush=True)
    command = [sys.executable, '-m', child.__name__, str(number), str(count), *words]
    streams: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT)
    return subprocess.Popen(command, env=env, start_new_session=True, **streams)


class Crew:
  """Trains runs below a folder, `count` at a time."""

  def __init__(self, root: Path, count: int):
    self.root, self.count, self.since = root, count, {}  # since: {folder: when it was begun}
    self.places, self.running, self.over = queue.Queue(), set(), threading.Event()
    for number in range(count):
      self.places.put(number)

  def train(self, job: Job) -> Outcome:
    """Trains a run to its end, in one of `count` places; records and returns how it ended."""
    number, begun = self.places.get(), time.monotonic()
    self.since[job.run.folder] = begun
    try:
      for tried in range(1, TRIES + 1):
        code = self._wait_for(started(job, self.root, number, self.count))
        if code != child.BUSY or tried == TRIES or self.over.is_set():
          break
        if tried == 1:
          log.warning('%s; it is tried again for %d s', self._last_line(job), TRIES * PAUSE)
        self.over.wait(PAUSE)
      return self._written(job, code, time.monotonic() - begun)
    finally:
      del self.since[job.run.folder]
      self.places.put(number)

  def _wait_for(self, process: subprocess.Popen) -> int:
    self.running.add(process)
    if self.over.is_set():
      _ask_to_end(process)
    try:
      return process.wait()
    finally:
      self.running.discard(process)
      _ask_to_end(process)

  def _written(self, job: Job, code: int, seconds: float) -> Outcome:
    error = self._last_line(job) if code else ''
    if code < 0:  # killed by a signal, perhaps for lack of memory
      error = f'its process was killed (status {code})'
    evaluations = records.read(self.root / job.run.folder).evaluations if not code else ()
    metrics = evaluations[-1].values if evaluations else {}
    seconds = round(seconds, 2) + state_of(self.root, job).seconds
    outcome = Outcome(STATES.get(code, 'failed'), error, seconds, metrics, job.fingerprint)
    path = self.root / LOGS / f'{job.run.folder}.json'
    files.write_whole(path, to_json(outcome._asdict()) + '\n')
    return outcome

  def _last_line(self, job: Job) -> str:
    text = files.read_text(self.root / LOGS / f'{job.run.folder}.txt')
    lines = text.strip().splitlines()
    return lines[-1].removeprefix('error: ') if lines else ''

  def end(self) -> None:
    """Makes the runs save themselves and end."""
    self.over.set()
    for process in list(self.running):
      _ask_to_end(process)


def _ask_to_end(process: subprocess.Popen) -> None:
  """Closes the standard input of a run, which then saves itself and ends."""
  if process.stdin:
    with contextlib.suppress(OSError):
      process.stdin.close()


def run_all(jobs: Sequence[Job], root: Path, processes: int) -> dict[str, Outcome]:
  """Trains all unfinished Jobs below a folder: {folder: how it ended}. A run that fails does not
  stop the rest."""
  files.make_folder(root / LOGS)
  ended = {job.run.folder: state_of(root, job) for job in jobs}
  ended = {name: x if x.state == 'done' else Outcome('') for name, x in ended.items()}
  crew, shown = Crew(root, processes), Grid(jobs, ended)
  threads = futures.ThreadPoolExecutor(processes)
  left = [job for job in jobs if not ended[job.run.folder].state]
  try:
    waiting = {threads.submit(crew.train, job): job for job in left}
    while waiting:
      done, _ = futures.wait(waiting, 1.0, futures.FIRST_COMPLETED)
      for future in done:
        job = waiting.pop(future)
        ended[job.run.folder] = future.result()
        shown.ended(job, crew.since, waiting.values())
      shown.tick(crew.since, waiting.values())
  finally:
    shown.bar.close()
    threads.shutdown(wait=False, cancel_futures=True)
    crew.end()
    threads.shutdown()
  return ended


def expected(jobs: Sequence[Job], ended: Mapping[str, Outcome]) -> dict[str, float]:
  """The expected {folder: seconds} of runs, from finished runs of their arm, else from all finished
  runs; {} if there is none."""
  done = [(job.run.arm, ended[job.run.folder]) for job in jobs]
  done = [(arm, x.seconds) for arm, x in done if x.state == 'done']
  if not done:
    return {}
  mean = statistics.fmean(seconds for _, seconds in done)
  by_arm = lambda arm: statistics.fmean([s for a, s in done if a == arm] or [mean])
  return {job.run.folder: by_arm(job.run.arm) for job in jobs}


class Grid:
  """The progress of a sweep: a bar on a terminal, elsewhere a line for each run that has ended.
  states: {folder: Outcome}, filled by the sweep."""

  def __init__(self, jobs: Sequence[Job], states: Mapping[str, Outcome]):
    self.jobs, self.states = jobs, states
    begun = sum(x.state == 'done' for x in states.values())
    if begun:
      log.info('%d of %d runs are done already', begun, len(jobs))
    form = '{l_bar}{bar}| {n_fmt}/{total_fmt} runs{postfix}'
    count = dict(total=len(jobs), initial=begun, unit='run', bar_format=form)
    self.bar = tqdm.tqdm(disable=None, dynamic_ncols=True, **count)

  def left(self, since: Mapping[str, float], waiting: Collection[Job]) -> str:
    """The time left, as a text. since: {folder: when it was begun} of the running runs; waiting:
    these and all others that have not ended."""
    seconds = expected(self.jobs, self.states)
    if not seconds:
      return 'ETA once a run is done'
    now, since = time.monotonic(), dict(since)
    loads = sorted([max(0, seconds[name] - (now - begun)) for name, begun in since.items()] or [0])
    for job in waiting:
      if job.run.folder not in since:
        loads = sorted([loads[0] + seconds[job.run.folder], *loads[1:]])
    return f'ETA {duration(loads[-1])}'

  def tick(self, since: Mapping[str, float], waiting: Collection[Job]) -> None:
    if not self.bar.disable:
      self.bar.set_postfix_str(self.left(since, waiting))

  def ended(self, job: Job, since: Mapping[str, float], waiting: Collection[Job]) -> None:
    """Reports how a run has ended."""
    self.bar.update()
    ended, done = self.states[job.run.folder], sum(bool(x.state) for x in self.states.values())
    value = ended.metrics.get(job.metric)
    what = f'{job.metric} {value:.4g}' if value is not None else ended.error or ended.state
    text = f'{done} of {len(self.jobs)}  {job.run.folder}: {what} ({duration(ended.seconds)})'
    if waiting:
      text += f'  {self.left(since, waiting)}'
    self.bar.write(text, file=sys.stderr) if not self.bar.disable else log.info('%s', text)


def duration(seconds: float) -> str:
  """Formats seconds as '45 s', '12 min' or '3.4 h'."""
  if seconds < 120:
    return f'{seconds:.0f} s'
  return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'
