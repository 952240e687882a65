"""Decides when a run saves by the clock and when it ends: signals, checkpoint.minutes, max_hours.
Every process looks at its own clock and signals; a hosts.Vote makes one decision of these, so that
all save, or end, after the same step."""

import contextlib
import enum
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator

import jax
from ml_collections import ConfigDict

from bert_jax import hosts

FIRST_SAVE = 0.1  # the first checkpoint by the clock comes after this share of checkpoint.minutes


class Decision(enum.IntEnum):
  """What a run is to do after a step. If processes or reasons differ, the highest counts."""

  GO_ON = 0
  SAVE = 1  # checkpoint.minutes
  TIME_IS_UP = 2  # max_hours
  STOP = 3  # a signal
  EARLY = 4  # eval.patience

  @property
  def ends(self) -> bool:
    return self >= Decision.TIME_IS_UP


class Watch:
  """Says after each step, and between the batches of an evaluation, what the run is to do. started:
  time.monotonic() when the run began. All processes call `ask` and `saved` equally often."""

  def __init__(
    self, config: ConfigDict, mesh: jax.sharding.Mesh, started: float, signalled: Callable[[], bool]
  ):
    self.started, self.signalled = started, signalled
    self.deadline = started + 3600 * config.max_hours if config.max_hours else math.inf
    self.pause = 60 * config.checkpoint.minutes or math.inf
    self.save_at = time.monotonic() + FIRST_SAVE * self.pause
    self.fresh = False  # has nothing been asked since the last save?
    self.vote = hosts.Vote(mesh)

  def ask(self) -> Decision:
    now, own = time.monotonic(), Decision.GO_ON
    if self.signalled():
      own = Decision.STOP
    elif now > self.deadline:
      own = Decision.TIME_IS_UP
    elif now > self.save_at:
      own = Decision.SAVE
    decision = Decision(self.vote.cast(own))
    # A vote is counted a step later: after a save it may still ask for the same save.
    if self.fresh and decision == Decision.SAVE:
      decision = Decision.GO_ON
    self.fresh = False
    return decision

  def saved(self) -> None:
    self.save_at, self.fresh = time.monotonic() + self.pause, True


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
  """Yields a function: was the run asked to stop? SIGTERM, a closed terminal (SIGHUP, unless it is
  ignored) and the first Ctrl-C save and end it; the second Ctrl-C ends it at once."""
  asked, old = threading.Event(), {}
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
