"""A process that trains the runs of a sweep one after another, as the sweep tells it to.

It reads a JSON line for each run from its standard input, and answers with one on its standard
output: {'error', 'code', 'seconds', 'metrics', and 'busy' if another process holds the workdir}.
What a run prints goes to the run's log. If the sweep is gone, however it ended, the run saves
itself and the process ends.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from bert_jax.command_line import command_line
from bert_jax.errors import farewell

PATIENCE = 60  # seconds in which a run has to save itself


def main():
  take_cores(*map(int, sys.argv[1:3]))
  answers = os.fdopen(os.dup(1), 'w')
  jobs, busy = queue.Queue(), threading.Event()

  def listen():
    for line in sys.stdin:
      jobs.put(json.loads(line))
    jobs.put(None)
    if busy.is_set():
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(PATIENCE)
      os._exit(1)

  threading.Thread(target=listen, daemon=True).start()
  while job := jobs.get():
    busy.set()
    answer = outcome(job)
    busy.clear()
    with contextlib.suppress(BrokenPipeError):
      print(json.dumps(answer), file=answers, flush=True)


def take_cores(number, count):
  """Leaves this process, one of `count`, its share of the cores: several processes that all use
  every core hinder each other."""
  if count > 1 and hasattr(os, 'sched_setaffinity'):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[number % len(cores) :: count])


def outcome(job):
  """Trains a run -> the answer. job: {'spec', 'fields', 'workdir', 'log', 'cache'}."""
  with open(job['log'], 'a', buffering=1) as file:
    for number in (1, 2):
      os.dup2(file.fileno(), number)
  import jax  # here, so that what it prints is in the log

  from bert_jax import config as config_lib
  from bert_jax import train
  from bert_jax.metrics import to_json
  from bert_jax.workdir.lock import Busy

  jax.config.update('jax_compilation_cache_dir', job['cache'])
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)
  # What run.json keeps as the command: the one that trains this run alone.
  sys.argv = [train.__file__, '--config', job['spec'], '--workdir', job['workdir'], *job['fields']]
  started, answer = time.monotonic(), {'error': '', 'code': 0, 'metrics': {}}
  print(time.strftime('==== %F %T'), Path(job['workdir']).name, flush=True)
  try:
    with command_line():  # whose last words are written below
      config = config_lib.load(job['spec'], job['fields'])
      given = config_lib.names_of(job['fields'])
      try:
        _, metrics = train.train(config, job['workdir'], given)
      except Busy:
        answer['busy'] = True
        raise
      answer['metrics'] = json.loads(to_json(metrics))
  except SystemExit as error:
    answer |= {'error': last_line(job['log']), 'code': error.code or 1}
  except BaseException as error:  # a mistake of the program in one run does not stop the rest
    traceback.print_exc()
    answer |= {'error': farewell(error)[0], 'code': 1}
  jax.clear_caches()
  return answer | {'seconds': round(time.monotonic() - started, 2)}


def last_line(path):
  lines = Path(path).read_text(errors='replace').strip().splitlines()
  return lines[-1].removeprefix('error: ') if lines else ''


if __name__ == '__main__':
  main()
