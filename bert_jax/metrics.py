"""Numbers of a run: the (total, weight) pair, its writers, the clock, the line a person reads."""

import dataclasses
import json
import logging
import math
import re
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from bert_jax import hosts
from bert_jax.whole_files import write_whole

log = logging.getLogger('bert_jax')

# Peak dense bfloat16 operations per second of one device, from the makers' data sheets, by a part
# of jax's device_kind. The peak of a CPU is what a large matmul reaches here and now.
PEAK_FLOPS = {
  'TPU v2': 23e12,
  'TPU v3': 61.5e12,
  'TPU v4': 275e12,
  'TPU v5 lite': 197e12,
  'TPU v5e': 197e12,
  'TPU v5': 459e12,
  'TPU v6': 918e12,
  'TPU7x': 1153.5e12,  # a device is half a chip
  'T4': 65e12,
  'L4': 121e12,
  'V100': 125e12,
  'A100': 312e12,
  'H100': 989e12,
  'H200': 989e12,
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mean:
  """A total and the weight it is to be divided by; the division happens once, when it is printed.

  That alone makes padding, gradient accumulation, several hosts and a ragged last batch exact.
  """

  total: jax.Array
  weight: jax.Array

  def __add__(self, other):
    return Mean(self.total + other.total, self.weight + other.weight)

  @property
  def value(self):
    """total / weight; NaN if nothing was counted."""
    return self.total / self.weight if self.weight else float('nan')


def mean(values, weights):
  """The Mean of an array under weights of the same shape."""
  return Mean(jnp.sum(values * weights, dtype=jnp.float32), jnp.sum(weights, dtype=jnp.float32))


def host_sum(tree):
  """{name: Mean or scalar} of device arrays -> the same of float64 numpy, to be summed on the
  host."""
  return jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(tree))


def add(a, b):
  """Sums {name: Mean}; scalars (loss, grad_norm) become Means of weight 1. a may be empty."""
  b = {k: v if isinstance(v, Mean) else Mean(v, 1.0) for k, v in b.items()}
  return {k: a[k] + v if k in a else v for k, v in b.items()}


def values(terms, baselines):
  """{name: Mean} -> {name: float}, plus NAME_below_BASELINE for losses that have a baseline."""
  out = {name: float(m.value) for name, m in terms.items() if m.weight}
  for name, (level, kind) in baselines.items():
    if name in out and not name.endswith('accuracy'):
      out[f'{name}_below_{kind}'] = level - out[name]
  return out


def to_json(metrics):
  """One line of valid JSON: what is not a number becomes null."""
  return json.dumps(
    {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
  )


def health(metrics, baselines):
  """The metrics as a line: 'mlm 4.102 (1.80 below unigram)  nsp_accuracy 0.71 (prior 0.53)'."""
  derived = {f'{name}_below_{kind}' for name, (_, kind) in baselines.items()}
  parts = []
  for name, value in metrics.items():
    if name in derived:
      continue
    text = f'{name} {value:.4g}'
    if name in baselines:
      level, kind = baselines[name]
      side = 'below' if value <= level else 'ABOVE'
      text += (
        f' ({kind} {level:.2f})'
        if name.endswith('accuracy')
        else f' ({abs(level - value):.2f} {side} {kind})'
      )
    parts.append(text)
  return '  '.join(parts)


class Writer:
  """metrics.jsonl and, if asked, TensorBoard files in the workdir, by the first process alone.
  Lines after `start` are dropped.

  A run that was killed had written lines past its last checkpoint; the resumed run writes them
  again.
  """

  def __init__(self, workdir, start, tensorboard):
    self.path = Path(workdir) / 'metrics.jsonl'
    self.file = self.board = None
    if not hosts.first():
      return
    if self.path.exists():
      kept = [line for line in self.path.read_text().splitlines() if _step(line) <= start]
      write_whole(self.path, ''.join(f'{line}\n' for line in kept))
    self.file = self.path.open('a')
    if tensorboard:
      import tensorboardX  # here: it is slow to import and not every run wants it

      self.board = tensorboardX.SummaryWriter(str(workdir), purge_step=start + 1)

  def write(self, step, split, metrics):
    if self.file is None:
      return
    self.file.write(to_json({'step': step, 'split': split} | metrics) + '\n')
    self.file.flush()
    if self.board:
      for name, value in metrics.items():
        self.board.add_scalar(f'{split}/{name}', value, step)

  def close(self):
    for file in filter(None, (self.file, self.board)):
      file.close()


def _step(line):
  try:
    return json.loads(line)['step']
  except (ValueError, KeyError):
    return math.inf  # a line cut short by a kill


class Clock:
  """Speed of training, without the time spent on anything else: call `pause` and `go` around
  that."""

  def __init__(self, flops_per_step):
    self.flops_per_step = flops_per_step
    self.peak = peak_flops()
    self.reset()

  def reset(self):
    self.spent, self.steps, self.started = 0.0, 0, time.perf_counter()

  def pause(self):
    self.spent += time.perf_counter() - self.started

  def go(self):
    self.started = time.perf_counter()

  def read(self, tokens):
    """{'steps_per_s', 'tokens_per_s' (real tokens), 'mfu'} since the last read, and starts anew."""
    self.pause()
    seconds = max(self.spent, 1e-9)
    out = {
      'steps': self.steps,
      'steps_per_s': self.steps / seconds,
      'tokens_per_s': tokens / seconds,
      'mfu': self.flops_per_step * self.steps / seconds / self.peak,
    }
    self.reset()
    return out


def peak_flops_of(device_kind):
  """bfloat16 operations per second of one such device at best; NaN if it is not in the table."""
  known = (peak for kind, peak in PEAK_FLOPS.items() if re.search(rf'{kind}\b', device_kind))
  return next(known, math.nan)


def peak_flops():
  """Operations per second all devices could do at best; NaN for an accelerator not in the table."""
  device = jax.devices()[0]
  known = peak_flops_of(device.device_kind)
  if known == known:
    return known * jax.device_count()
  if device.platform != 'cpu':
    return math.nan
  x = jnp.ones((1024, 1024))
  product = jax.jit(lambda x: x @ x)
  product(x).block_until_ready()
  best = min(_seconds(lambda: product(x).block_until_ready()) for _ in range(5))
  # Simulated CPU devices share the cores, so this is the peak of all of them together.
  return 2 * 1024**3 / best


def _seconds(function):
  start = time.perf_counter()
  function()
  return time.perf_counter() - start


class Progress:
  """A bar with loss, tokens/s, MFU and ETA on a terminal; plain lines in a log."""

  def __init__(self, steps, start):
    self.bar = tqdm.tqdm(
      total=steps, initial=start, unit='step', dynamic_ncols=True, leave=True,
      disable=None if hosts.first() else True,  # None: shown on a terminal only
    )  # fmt: skip

  def update(self, text):
    self.bar.update()
    if text:
      self.bar.set_postfix_str(text)

  def line(self, text):
    """A line of the log, above the bar if there is one."""
    if self.bar.disable:
      log.info(text)
    else:
      self.bar.write(text, file=sys.stderr)

  def close(self):
    self.bar.close()
