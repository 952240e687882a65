"""The speed of a run: steps and tokens a second, and the share of the devices' peak (MFU)."""

import contextlib
import math
import re
import time
from collections.abc import Iterator
from typing import Any

import jax

from bert_jax import hosts

# {regex in jax's device_kind: peak dense bfloat16 operations per second of one device},
# from the makers' data sheets. A CPU has none.
PEAK_FLOPS = {
  'TPU v2': 23e12,
  'TPU v3': 61.5e12,
  'TPU v4 lite': 138e12,
  'TPU v4': 275e12,
  'TPU v5( lite|e)': 197e12,
  'TPU v5p?': 459e12,
  'TPU v6( lite|e)': 918e12,
  'TPU7x?': 1153.5e12,  # a device is half a chip
  'T4': 65e12,
  'L4': 121e12,
  'V100': 125e12,
  'A100': 312e12,
  'H[12]00': 989e12,
}
# The metrics that a Clock measures, which differ each time the same steps are run.
MEASURED = 'steps_per_s', 'tokens_per_s', 'data_wait', 'mfu', 'goodput'
MEASURED += 'step_seconds', 'data_seconds', 'eval_seconds', 'save_seconds'


class Clock:
  """Measures the speed of training, apart from evaluating and saving (`doing`). Since the last
  read: steps, full batches, seconds of waiting for a batch (waited)."""

  def __init__(self, flops_per_step: float):
    self.flops_per_step = flops_per_step
    self.peak = peak_flops()
    self.begun, self.done = time.perf_counter(), 0.0  # batches until the last read
    self.reset()

  def reset(self) -> None:
    self.spent = dict.fromkeys(('train', 'eval', 'save'), 0.0)
    self.steps, self.batches, self.waited = 0, 0.0, 0.0
    self.started, self.now = time.perf_counter(), 'train'

  def _change(self, now):
    moment = time.perf_counter()
    self.spent[self.now] += moment - self.started
    self.started, self.now = moment, now

  @contextlib.contextmanager
  def doing(self, what: str) -> Iterator[None]:
    """A context whose time counts as 'eval' or 'save', not as training; the innermost counts."""
    before = self.now
    self._change(what)
    try:
      yield
    finally:
      self._change(before)

  def seconds_per_batch(self) -> float:
    """The seconds of a full batch until the last read, with evaluations and saves."""
    return (time.perf_counter() - self.begun) / self.done

  def read(self, tokens: float) -> dict[str, Any]:
    """Returns 'steps' and the metrics MEASURED since the last read; then starts anew.
    tokens: how many were trained on, without padding. data_wait: the share of the training in which
    a step waited for its batch, of several processes the longest. goodput: the share of all time in
    which steps were computed. No mfu if the peak is not known."""
    self._change(self.now)
    seconds = max(self.spent['train'], 1e-9)
    computing = max(self.spent['train'] - self.waited, 0.0)
    out: dict[str, Any] = {
      'steps': self.steps,
      'steps_per_s': self.steps / seconds,
      'tokens_per_s': tokens / seconds,
      'data_wait': max(hosts.from_all(self.waited / seconds)),
      'step_seconds': computing,
      'data_seconds': self.waited,
      'eval_seconds': self.spent['eval'],
      'save_seconds': self.spent['save'],
      'goodput': computing / max(sum(self.spent.values()), 1e-9),
    }
    achieved = self.flops_per_step * self.batches / seconds
    if achieved <= self.peak:
      out['mfu'] = achieved / self.peak
    self.done += self.batches
    self.reset()
    return out


def peak_flops_of(device_kind: str) -> float:
  """Peak bfloat16 operations per second of a kind of device; NaN if not in PEAK_FLOPS."""
  known = (peak for kind, peak in PEAK_FLOPS.items() if re.search(rf'{kind}\b', device_kind))
  return next(known, math.nan)


def peak_flops() -> float:
  """Peak operations per second of all devices; NaN for a device not in PEAK_FLOPS."""
  return peak_flops_of(jax.devices()[0].device_kind) * jax.device_count()
