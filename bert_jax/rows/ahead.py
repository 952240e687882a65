"""Makes batches in the background, before the step that needs them."""

import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

from bert_jax import hosts
from bert_jax.errors import log

AHEAD = 2  # batches that are made in advance
STALLED = 60  # seconds without a batch after which a run says so


class Ahead:
  """Makes the next batches in a thread, while a step is computed: batch_of(step), until `end`."""

  def __init__(self, batch_of: Callable[[int], Any], end: int):
    self.batch_of, self.end = batch_of, end
    self._thread = futures.ThreadPoolExecutor(1, 'batches')
    self._made = {}  # {step: future}

  def take(self, step: int) -> tuple[Any, float]:
    """(the batch of a step, the seconds spent waiting for it)."""
    earlier, self._made = self._made, {}
    for number in (step, *range(step + 1, min(step + 1 + AHEAD, self.end))):
      made = earlier.get(number)
      self._made[number] = made or self._thread.submit(self.batch_of, number)
    batch = self._made.pop(step)
    started = time.perf_counter()
    while not futures.wait([batch], STALLED).done:
      log.warning(
        '%s has waited %.0f s for its rows of step %d: is the disk of the data reachable?',
        hosts.who(),
        time.perf_counter() - started,
        step + 1,
      )
    return batch.result(), time.perf_counter() - started

  def close(self) -> None:
    """Ends the thread, without the batches that nobody took."""
    self._thread.shutdown(wait=False, cancel_futures=True)
