"""Trains one run of a sweep as bert_jax.train does, on a share of the cores.

    python -m bert_jax.tools.sweep.child NUMBER COUNT --config FILE --workdir W [...]

It is process NUMBER of COUNT. If its standard input is closed, the sweep is gone: the run saves
itself and ends.
"""

import os
import signal
import sys
import threading
import time

PATIENCE = 60  # seconds in which a run has to save itself


def main() -> None:
  number, count, *arguments = sys.argv[1:]
  take_cores(int(number), int(count))
  threading.Thread(target=_end_with_the_sweep, daemon=True).start()
  from bert_jax import train  # JAX counts the cores when it is imported

  # run.json records the command that trains this run alone.
  sys.argv = [train.__file__, *arguments]
  train.main(arguments)


def take_cores(number: int, count: int) -> None:
  """Limits this process, one of `count`, to its share of the cores: else they hinder each other."""
  if hasattr(os, 'sched_setaffinity'):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[number % len(cores) :: count])


def _end_with_the_sweep() -> None:
  sys.stdin.read()
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(PATIENCE)
  os._exit(1)


if __name__ == '__main__':
  main()
