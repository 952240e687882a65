"""Trains the runs of a sweep, each in a process of its own, several at a time.

Beside the workdirs lie logs/NAME.txt, the output of run NAME, and logs/NAME.json, how it ended. A
sweep that is started again leaves out finished runs and continues interrupted ones.
"""

import collections
import contextlib
import hashlib
import json
import math
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

import tqdm
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files
from bert_jax.copies import place, staged
from bert_jax.errors import InputError, about, log
from bert_jax.files import Path
from bert_jax.metrics import to_json
from bert_jax.run import initialization
from bert_jax.tasks import TASKS
from bert_jax.text import files as text_files
from bert_jax.tokenizers import run_tokenizer
from bert_jax.tools.sweep import child
from bert_jax.tools.sweep.arms import Run
from bert_jax.workdir import recorded, records, saved_steps
from bert_jax.workdir.recorded import Outcome
from bert_jax.workdir.records import LOGS

TRIAL = 40  # seconds of steps by which --dry-run estimates
# The states of runs by their exit codes: 3: it may continue later; the others: it was stopped.
STATES = {0: 'done', 3: 'stopped', 130: 'stopped', -signal.SIGTERM: 'stopped'}


def state_of(root: Path, run: Run, faults: list[str] | None = None) -> Outcome:
  """How a run has ended; without a state if not run, or run with another config. Faults of the
  record of its end are added to `faults`."""
  ended = records.read_outcome(root, run.folder, faults)
  is_same = ended.config == fingerprint(run.config) and files.exists(root / run.folder)
  return ended if is_same else Outcome('')


def fingerprint(config: ConfigDict) -> str:
  """A short hash of all fields, including evaluation's."""
  fields = json.dumps(config_lib.flatten(config), sort_keys=True, default=str)
  return hashlib.sha256(fields.encode()).hexdigest()[:16]


def started(run: Run, root: Path, number: int, count: int) -> subprocess.Popen:
  """Starts the process that trains a run, `number` of `count`, on its share of cores and GPUs."""
  env = dict(os.environ)
  paths = str(Path(__file__).parents[3]), env.get('PYTHONPATH', '')
  env['PYTHONPATH'] = os.pathsep.join(filter(None, paths))
  env['JAX_COMPILATION_CACHE_DIR'] = str(staged(root / '.jax_cache'))
  env['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.5'
  gpus = len(list(Path('/dev').glob('nvidia[0-9]*')))
  if gpus > 1 and count > 1:
    env.setdefault('CUDA_VISIBLE_DEVICES', str(number % gpus))
  if count > max(1, gpus):
    env.setdefault('XLA_PYTHON_CLIENT_MEM_FRACTION', f'{0.9 / -(-count // max(1, gpus)):.2f}')
  words = '--config', run.spec, '--workdir', str(root / run.folder), *run.fields
  with files.append(staged(root / LOGS / f'{run.folder}.txt')) as file:
    print(time.strftime('==== %F %T'), run.folder, file=file, flush=True)
    command = [sys.executable, '-m', child.__name__, str(number), str(count), *words]
    streams: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT)
    return subprocess.Popen(command, env=env, start_new_session=True, **streams)


class Crew:
  """Trains runs below a folder, `count` at a time, and shows how far they are.
  `ended`: {folder: how a run ended}."""

  def __init__(self, runs: Sequence[Run], root: Path, count: int):
    self.root, self.count, self.total = root, count, len(runs)
    faults: list[str] = []
    states = {run.folder: state_of(root, run, faults) for run in runs}
    for fault in faults:
      log.warning('%s', fault)
    self.ended = {name: x for name, x in states.items() if x.state == 'done'}
    self.waiting = [run for run in runs if run.folder not in self.ended]
    self.processes, self.over, self.free = set(), threading.Event(), queue.SimpleQueue()
    for number in range(count):
      self.free.put(number)
    if done := len(self.ended):
      log.info('%d of %d runs are done already', done, self.total)
    looks: dict[str, Any] = {'unit': ' runs', 'disable': None, 'dynamic_ncols': True}
    self.bar = tqdm.tqdm(total=self.total, initial=done, **looks)

  def train(self, run: Run) -> None:
    """Trains a run to its end, unless all is over; records and says how it ended."""
    if self.over.is_set():
      return
    name, began, number = run.folder, time.monotonic(), self.free.get()
    log_file = self.root / LOGS / f'{name}.txt'
    if staged(log_file) != log_file:
      files.write_whole(staged(log_file), files.read_bytes(log_file) or b'')  # of earlier tries
    process = started(run, self.root, number, self.count)
    self.processes.add(process)
    if self.over.is_set():
      _ask_to_end(process)
    code, error = process.wait(), ''
    place(staged(log_file), log_file)
    self.processes.discard(process)
    self.free.put(number)
    _ask_to_end(process)
    if code:
      error = _last_words(self.root, name)
    if code < 0:  # perhaps for lack of memory
      error = f'its process was killed (status {code})'
    evaluations = records.read(self.root / name).evaluations if not code else ()
    metrics = evaluations[-1].values if evaluations else {}
    seconds = round(time.monotonic() - began, 2) + state_of(self.root, run).seconds
    outcome = Outcome(
      STATES.get(code, 'failed'), error, seconds, metrics, fingerprint(run.config), self.count
    )
    files.write_sealed(self.root / LOGS / f'{name}.json', json.loads(to_json(outcome._asdict())))
    self.ended[name] = outcome
    metric = TASKS[run.config.objective].judge(run.config).metric
    value = metrics.get(metric)
    what = f'{metric} {value:.4g}' if value is not None else error or outcome.state
    text = f'{len(self.ended)} of {self.total}  {name}: {what} ({duration(seconds)})'
    self.bar.update()
    log.info('%s', text) if self.bar.disable else self.bar.write(text, file=sys.stderr)

  def end(self) -> None:
    self.over.set()
    for process in list(self.processes):
      _ask_to_end(process)


def _last_words(root, name):
  """The last line of a run's output, which says why it failed."""
  lines = files.read_text(root / LOGS / f'{name}.txt').strip().splitlines() or ['']
  return lines[-1].removeprefix('error: ')


def _ask_to_end(process: subprocess.Popen) -> None:
  """Closes the standard input of a run, which then saves itself and ends."""
  if process.stdin:
    with contextlib.suppress(OSError):
      process.stdin.close()


def check_files(runs: Sequence[Run], root: Path) -> None:
  """InputError if the data, the vocabulary, or the weights are not there that a run in its folder
  below root needs; else each would find that at its start."""
  known: set[Any] = set()
  for run in runs:
    config, task = run.config, TASKS[run.config.objective]
    languages = task.card(config).languages
    for name in ('train', 'eval'):
      if (key := (spec := config.data[name], languages)) in known:
        continue
      if '{language}' in spec and not (languages or task.reads_corpus):
        continue  # only the family knows which
      known.add(key)
      with about(f'{run.folder}: data.{name}'):
        for _, part in text_files.parts(spec, languages):
          if part and not text_files.is_named(part):
            text_files.expand(part)
    with about(run.folder):
      run_tokenizer.check_path(config)
      begins = next(saved_steps.newest_first(root / run.folder / 'checkpoints'), None) is None
      named = config.init_from, config.resume_from, config.get('teacher'), begins
      if named not in known:
        initialization.check_sources(config, begins)
      known.add(named)


def run_all(runs: Sequence[Run], root: Path, processes: int) -> dict[str, Outcome]:
  """Trains all unfinished runs below a folder, even if some fail: {folder: how it ended}."""
  files.make_folder(root / LOGS)
  crew, threads = Crew(runs, root, processes), futures.ThreadPoolExecutor(processes)
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
  return {run.folder: crew.ended[run.folder] for run in runs}


def tried(run: Run, count: int) -> tuple[recorded.Run, float, float]:
  """Trains a run for TRIAL seconds from its first step on, as one of `count` at once, in a folder
  of its own: (what it has recorded, seconds of its steps, seconds beside these and evaluations).
  InputError if it fails."""
  run = run._replace(fields=[*run.fields, '--config.log.every=1'])
  with tempfile.TemporaryDirectory() as folder:
    root, began = Path(folder), time.monotonic()
    files.make_folder(root / LOGS)
    process = started(run, root, 0, count)
    try:
      # A summary is written, first by a teacher, when the data is read and the steps are compiled.
      while process.poll() is None and not any(root.glob(f'*/{records.SUMMARY}')):
        time.sleep(0.2)
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(TRIAL)
    finally:
      _ask_to_end(process)
      process.wait()
    there, steps, spent = so_far(root / run.folder)
    if not there.training:
      raise InputError(f'the trial of {run.folder} has failed: {_last_words(root, run.folder)}')
    return there, steps, time.monotonic() - began - steps - spent['eval']


def so_far(folder: Path) -> tuple[recorded.Run, float, Mapping[str, float]]:
  """(what a run has recorded until now, seconds of its steps, where else its time has gone)."""
  there, names = records.read(folder), ('step_seconds', 'data_seconds')
  steps = sum(point.values.get(name) or 0.0 for point in there.training for name in names)
  return there, steps, text_files.json_of(folder / records.SUMMARY).get('seconds', {})


def steps_of(there: recorded.Run) -> int:
  """The number of steps whose seconds a run has recorded; a stop may have lost some."""
  return int(sum(point.values.get('steps') or 0 for point in there.training))


def expected(root: Path, runs: Sequence[Run], ended: Mapping[str, Outcome]) -> dict[str, float]:
  """{arm: seconds of a run}, the median of its finished runs, for arms that have some: one that
  was stopped has begun more than once. Compiling counts with its fewest seconds, since the next run
  finds the program."""
  by_arm = collections.defaultdict(list)
  for run in runs:
    if (outcome := ended.get(run.folder, Outcome())).state == 'done':
      compiling = records.read_facts(root / run.folder, []).compile_seconds or 0.0
      by_arm[run.arm].append((outcome.seconds - compiling, compiling))
  split = {arm: [*zip(*some)] for arm, some in by_arm.items()}
  return {arm: statistics.median(rest) + min(compiling) for arm, (rest, compiling) in split.items()}


def duration(seconds: float) -> str:
  """Formats seconds as '45 s', '12 min' or '3.4 h'; NaN as '?'."""
  if math.isnan(seconds):
    return '?'
  if seconds < 120:
    return f'{seconds:.0f} s'
  return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'
