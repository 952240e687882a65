"""Batches that grow in the first steps of a run (optimizer.batch_warmup).

All batches have the same shape, of `parts` microbatches. In step n the first parts_at(n) of them
have rows, from one at step 0 to all of them from step `steps` on; those of the others are empty,
and the step computes nothing for them. No row of the data is passed over: a step begins at the row
after the last one of the step before, which is the sum of the sizes up to there, so that a batch
stays a function of the step.
"""

import numpy as np


class Growth:
  """batch_size: rows of a full batch. parts: its microbatches; microbatch i has the rows i,
  i + parts, i + 2 * parts.. of the batch. steps: how many there are before the first full batch."""

  def __init__(self, batch_size, parts, steps):
    self.batch_size, self.parts, self.steps = batch_size, parts, steps
    used = [self.parts_at(step) for step in range(steps)]
    self._before = batch_size // parts * np.cumsum([0, *used], dtype=np.int64)

  def parts_at(self, step):
    """How many microbatches of this step have rows."""
    return min(self.parts, 1 + step * (self.parts - 1) // max(1, self.steps))

  def place(self, step, i):
    """Which of all the rows of a run, counted from 0, is row i of the batch of a step; None if that
    row is empty."""
    used, (j, part) = self.parts_at(step), divmod(i, self.parts)
    if part >= used:
      return None
    full = max(0, step - self.steps) * self.batch_size
    return int(self._before[min(step, self.steps)]) + full + j * used + part
