"""Trains the runs of a sweep in several processes, each of which trains one run after another.

Beside the workdirs lie logs/NAME.txt, what run NAME has printed, and logs/NAME.json, how it ended.
Whoever begins the sweep anew leaves out what is done; a run that was cut off continues.
"""

import collections
import contextlib
import json
import logging
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import tqdm

from bert_jax.files import write_whole
from bert_jax.tools.report.panels import LOGS

log = logging.getLogger('bert_jax')

PAUSED, SIGNALLED = 3, 130  # exit codes of a run that may go on later, and of one that was stopped
# A run whose workdir is held, perhaps by a worker of a sweep that was killed, which has PATIENCE to
# end: how often it is tried, and seconds between.
TRIES, PAUSE = 9, 10


class Job(NamedTuple):
  run: object  # a sweep_grid.Run, with the fields that all runs have
  fingerprint: str  # of its whole config: a run that was done with another one is not done
  metric: str  # that it is judged by


def state_of(root, job):
  """How a run has ended, {'state': 'done', 'failed' or 'stopped', 'seconds', ...}; {} if it has not
  been run, or with another config."""
  with contextlib.suppress(OSError, ValueError, AttributeError):
    ended = json.loads((root / LOGS / f'{job.run.folder}.json').read_text())
    if ended.get('config') == job.fingerprint and (root / job.run.folder).is_dir():
      return ended
  return {}


class Worker:
  """A process with a share of the cores, or a GPU of its own if there are several."""

  def __init__(self, number, count, answers):
    self.number, self.answers, self.job = number, answers, None
    env = dict(os.environ)
    paths = str(Path(__file__).parents[3]), env.get('PYTHONPATH', '')
    env['PYTHONPATH'] = os.pathsep.join(filter(None, paths))
    gpus = sorted(Path('/dev').glob('nvidia[0-9]*'))
    if len(gpus) > 1 and count > 1 and 'CUDA_VISIBLE_DEVICES' not in env:
      env['CUDA_VISIBLE_DEVICES'] = str(number % len(gpus))
    if count > 1 and len(gpus) < count and 'XLA_PYTHON_CLIENT_MEM_FRACTION' not in env:
      env['XLA_PYTHON_CLIENT_MEM_FRACTION'] = f'{0.9 / -(-count // max(1, len(gpus))):.2f}'
    self.process = subprocess.Popen(
      [sys.executable, '-m', 'bert_jax.tools.sweep.child', str(number), str(count)],
      env=env,
      text=True,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      start_new_session=True,
    )
    threading.Thread(target=self._listen, daemon=True).start()

  def _listen(self):
    for line in self.process.stdout:
      self.answers.put((self, json.loads(line)))
    self.answers.put((self, None))  # it has ended

  def give(self, job, root):
    self.job, self.started = job, time.monotonic()
    workdir, cache = root / job.run.folder, root / '.jax_cache'
    content = {
      'spec': job.run.spec,
      'fields': job.run.fields,
      'workdir': str(workdir),
      'log': str(root / LOGS / f'{job.run.folder}.txt'),
      'cache': str(cache),
    }
    with contextlib.suppress(OSError):  # if it has died, its listener says so
      print(json.dumps(content), file=self.process.stdin, flush=True)

  def end(self):
    with contextlib.suppress(OSError):
      self.process.stdin.close()


def run_all(jobs, root, processes):
  """Trains all Jobs below a folder that are not done -> {folder: how it ended}. One that fails does
  not stop the rest."""
  (root / LOGS).mkdir(parents=True, exist_ok=True)
  ended = {job.run.folder: state_of(root, job) for job in jobs}
  ended = {name: x if x.get('state') == 'done' else {} for name, x in ended.items()}
  waiting = collections.deque(job for job in jobs if not ended[job.run.folder])
  tries, shown, answers, workers = collections.Counter(), Grid(jobs, ended), queue.Queue(), []
  try:
    workers += [Worker(i, processes, answers) for i in range(min(processes, len(waiting)))]
    for worker in workers:
      worker.give(waiting.popleft(), root)
    while any(worker.job for worker in workers):
      try:
        worker, answer = answers.get(timeout=1.0)
      except queue.Empty:
        shown.tick(workers, waiting)
        continue
      if answer is None:  # killed, perhaps by the system for its memory
        code = worker.process.wait()
        answer = {
          'error': f'its process was killed (status {code})',
          'code': 1,
          'seconds': 0,
          'metrics': {},
        }
        if not worker.job:
          continue
        workers[workers.index(worker)] = successor = Worker(worker.number, processes, answers)
      else:
        successor = worker
      job, worker.job = worker.job, None
      tries[job.run.folder] += 1
      if answer.get('busy') and tries[job.run.folder] < TRIES:
        if tries[job.run.folder] == 1:
          log.warning('%s; it is tried again for %d s', answer['error'], TRIES * PAUSE)
        waiting.append(job)
      else:
        ended[job.run.folder] = written(root, job, answer)
        shown.ended(job, ended[job.run.folder], workers, waiting)
      if waiting:
        following = waiting.popleft()
        if tries[following.run.folder]:
          time.sleep(PAUSE)
        successor.give(following, root)
  finally:
    shown.close()
    for worker in workers:
      worker.end()
    for worker in workers:
      with contextlib.suppress(subprocess.TimeoutExpired):
        worker.process.wait(70)
  return ended


def written(root, job, answer):
  """Writes how a run has ended; returns that."""
  state = {0: 'done', PAUSED: 'stopped', SIGNALLED: 'stopped'}.get(answer['code'], 'failed')
  earlier = state_of(root, job).get('seconds', 0)
  ended = {
    'state': state,
    'config': job.fingerprint,
    'error': answer['error'],
    'seconds': answer['seconds'] + earlier,
    'metrics': answer['metrics'],
  }
  write_whole(root / LOGS / f'{job.run.folder}.json', json.dumps(ended, indent=2) + '\n')
  return ended


def expected(jobs, ended):
  """{folder: seconds} that runs take, by those of their arm that are done, else by all that are;
  {} if none is."""
  done = [
    (job.run.arm, ended[job.run.folder]['seconds'])
    for job in jobs
    if ended[job.run.folder].get('state') == 'done'
  ]
  if not done:
    return {}
  mean = statistics.fmean(seconds for _, seconds in done)
  of_arm = lambda arm: statistics.fmean([s for a, s in done if a == arm] or [mean])
  return {job.run.folder: of_arm(job.run.arm) for job in jobs}


class Grid:
  """The progress of a sweep: a bar on a terminal, elsewhere a line for each run that has ended."""

  def __init__(self, jobs, ended):
    self.jobs, self.states = jobs, ended
    begun = sum(x.get('state') == 'done' for x in ended.values())
    if begun:
      log.info('%d of %d runs are done already', begun, len(jobs))
    self.bar = tqdm.tqdm(
      total=len(jobs),
      initial=begun,
      unit='run',
      disable=None,
      dynamic_ncols=True,
      bar_format='{l_bar}{bar}| {n_fmt}/{total_fmt} runs{postfix}',
    )

  def left(self, workers, waiting):
    """The seconds that are left, as a text."""
    seconds = expected(self.jobs, self.states)
    if not seconds:
      return 'ETA once a run is done'
    going = [
      max(0, seconds[w.job.run.folder] - (time.monotonic() - w.started)) for w in workers if w.job
    ]
    loads = sorted(going or [0])
    for job in waiting:
      loads = sorted([loads[0] + seconds[job.run.folder], *loads[1:]])
    return f'ETA {duration(loads[-1])}'

  def tick(self, workers, waiting):
    if not self.bar.disable:
      self.bar.set_postfix_str(self.left(workers, waiting))

  def ended(self, job, ended, workers, waiting):
    self.bar.update()
    done = sum(bool(x) for x in self.states.values())
    value = ended['metrics'].get(job.metric)
    what = f'{job.metric} {value:.4g}' if value is not None else ended['error'] or ended['state']
    text = f'{done} of {len(self.jobs)}  {job.run.folder}: {what} ({duration(ended["seconds"])})'
    if waiting or any(w.job for w in workers):
      text += f'  {self.left(workers, waiting)}'
    self.bar.write(text, file=sys.stderr) if not self.bar.disable else log.info('%s', text)

  def close(self):
    self.bar.close()


def duration(seconds):
  """'45 s', '12 min' or '3.4 h'."""
  if seconds < 120:
    return f'{seconds:.0f} s'
  return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'
