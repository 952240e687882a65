"""When a run saves by the clock and when it ends before its end: signals, checkpoint.minutes,
max_hours.

Every process looks at its own clock and its own signals. A hosts.Vote makes one decision of them,
so that all processes save, or end, after the same step.
"""

import contextlib
import math
import signal
import threading
import time

from bert_jax import hosts

# What a run is to do. Where processes differ, the highest counts.
GO_ON, SAVE, TIME_IS_UP, STOP = range(4)
FIRST_SAVE = 0.1  # the first checkpoint by the clock comes after this share of checkpoint.minutes


class Watch:
  """Says after each step, and between the batches of an evaluation, what the run is to do.
  started: time.monotonic() when the run began. signalled: a function, was this process asked to
  stop? All processes call `ask` and `saved` equally often."""

  def __init__(self, config, mesh, started, signalled):
    self.started, self.signalled = started, signalled
    self.deadline = started + 3600 * config.max_hours if config.max_hours else math.inf
    self.pause = 60 * config.checkpoint.minutes or math.inf
    self.save_at = time.monotonic() + FIRST_SAVE * self.pause
    self.fresh = False  # has nothing been asked since the last save?
    self.vote = hosts.Vote(mesh)

  def ask(self):
    """GO_ON, SAVE, TIME_IS_UP or STOP, the same in all processes."""
    now = time.monotonic()
    wish = SAVE if now > self.save_at else GO_ON
    wish = STOP if self.signalled() else TIME_IS_UP if now > self.deadline else wish
    decision = self.vote.cast(wish)
    # A vote is counted a step later: after a save it may still be about that one.
    fresh, self.fresh = self.fresh, False
    return GO_ON if fresh and decision == SAVE else decision

  def ends(self):
    """Is the run to end now?"""
    return self.ask() >= TIME_IS_UP

  def saved(self):
    """The run was saved."""
    self.save_at, self.fresh = time.monotonic() + self.pause, True


@contextlib.contextmanager
def stop_signals():
  """Yields a function: was the run asked to stop? SIGTERM, a closed terminal (SIGHUP, unless it
  is ignored, as nohup has it) and the first Ctrl-C save and end it; the second Ctrl-C ends it at
  once."""
  asked = threading.Event()
  old = {}
  if threading.current_thread() is threading.main_thread():

    def ask(number, frame):
      if asked.is_set() and number == signal.SIGINT:
        signal.default_int_handler(number, frame)
      asked.set()

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
      numbers.append(signal.SIGHUP)
    old = {number: signal.signal(number, ask) for number in numbers}
  try:
    yield asked.is_set
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)
