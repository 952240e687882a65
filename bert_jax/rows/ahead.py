"""Makes batches in the background, before the step that needs them."""

import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

AHEAD = 2  # batches


class Ahead:
  """Makes the next batches in a thread, while a step is computed: batch_of(step), until `end`."""

  def __init__(self, batch_of: Callable[[int], Any], end: int):
    self.batch_of, self.end = batch_of, end
    self._thread = futures.ThreadPoolExecutor(1, 'batches')
    self._made = {}  # {step: future}

  def take(self, step: int) -> tuple[Any, float]:
    """(the batch of a step, the seconds spent waiting for it)."""
    wanted = [step, *range(step + 1, min(step + 1 + AHEAD, self.end))]
    self._made = {n: self._made.get(n) or self._thread.submit(self.batch_of, n) for n in wanted}
    started = time.perf_counter()
    return self._made.pop(step).result(), time.perf_counter() - started

  def forget(self) -> None:
    """Drops the batches made ahead, because later steps will now use others."""
    for made in self._made.values():
      made.cancel()
    self._made = {}

  def close(self) -> None:
    self._thread.shutdown(wait=False, cancel_futures=True)
