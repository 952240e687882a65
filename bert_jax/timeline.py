"""What depends on the step of a run: its learning rate, the rows of its batches, and the fields
whose value changes by step.

A field with `by_step` (field.py) is a text such as token,phrase@1000,entity@2000: values, each with
the first step for which it holds. A share of the run's steps may replace the number of a step, as
in token,phrase@0.5.

With optimizer.batch_warmup batches grow. All have the same shape. In step n the first parts_at(n)
of their microbatches have rows, from one at step 0 to all from step `growing` on; one that stays
empty is not computed. No row of the data is left out.
"""

import bisect
import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bert_jax.errors import InputError
from bert_jax.field import Field

SHARE = re.compile(r'0?\.\d+')  # a share of the steps
GROWTH, RATE = 'optimizer.batch_warmup', 'optimizer.learning_rate'
Stages = tuple[tuple[int, Any], ...]  # (first step, value) of each value of a field, from step 0 on


def _over(x: jax.Array, number: float | jax.Array) -> jax.Array:
  """x / number, by a true division. XLA multiplies a vector by the inverse of a number, which
  rounds otherwise than the division of one rate in the compiled step; by a vector it divides."""
  return x / jnp.full_like(x, number)


def _linear(step, steps, warmup, decay):
  return 1 - _over(step, steps)


def _cosine(step, steps, warmup, decay):
  progress = jnp.clip(_over(step - warmup, steps - warmup), 0, 1)
  return 0.5 * (1 + jnp.cos(jnp.pi * progress))


def _constant(step, steps, warmup, decay):
  return jnp.ones_like(step)


def _inverse_sqrt(step, steps, warmup, decay):
  return jnp.sqrt(jnp.maximum(warmup, 1) / jnp.maximum(step, 1))


def _wsd(step, steps, warmup, decay):
  return jnp.clip(_over(steps - step, decay), 0, 1)


def _wsd_sqrt(step, steps, warmup, decay):
  return 1 - jnp.sqrt(jnp.clip(1 - _over(steps - step, decay), 0, 1))


# {value of optimizer.schedule: (step, steps, warm-up, decay) -> share of the peak after the
# warm-up}. steps: the length of the schedule.
SCHEDULES = {
  'linear': _linear,
  'cosine': _cosine,
  'constant': _constant,
  'inverse_sqrt': _inverse_sqrt,
  'wsd': _wsd,
  'wsd_sqrt': _wsd_sqrt,
}


class Moment(NamedTuple):
  """The fields that change by step, at one step. values: {field: its value, or, in a compiled step,
  the number of its stage}. train: False in an evaluation, where every field has its last value."""

  values: Mapping[str, Any] = {}
  train: bool = True

  def stage(self, field: str) -> int | jax.Array:
    """The number of a field's stage, counted from 0; -1, the last one, in an evaluation."""
    return self.values.get(field, -1)


EVALUATION = Moment(train=False)


class Change(NamedTuple):
  """A change of a field's value, from step `step` on."""

  step: int
  field: str
  before: Any
  after: Any

  def __str__(self) -> str:
    return f'{self.field} {self.before} -> {self.after} from step {self.step} on'


class Timeline:
  """What a run of a config does at each of its steps. steps: its length; 0: unknown, and nothing
  may be a share. fields: {name: Field} of the config. InputError if one does not fit the length."""

  def __init__(self, config: ConfigDict, steps: int, fields: Mapping[str, Field]):
    self.steps, self.optimizer, self.batch_size = steps, config.optimizer, config.batch_size
    self.horizon = round(config.optimizer.horizon * steps)
    self._stages: dict[str, Stages] = {}
    for name, field in fields.items():
      if field.by_step:
        text: Any = functools.reduce(operator.getitem, name.split('.'), config)
        self._stages[name] = parsed(name, field, text, steps)
    growth = config.optimizer.batch_warmup
    self.parts = config.optimizer.accumulation if growth else 1
    self.growing = max(1, steps_of(growth, self.horizon)) if growth else 0
    # The steps at which batches become larger, and how many rows are read before them.
    firsts = {0, *(-(-k * self.growing // (self.parts - 1)) for k in range(1, self.parts))}
    self._firsts, self._before = sorted(firsts), [0]
    for first, end in zip(self._firsts, self._firsts[1:]):
      self._before.append(self._before[-1] + (end - first) * self.rows_at(first))

  def at(self, step: int | jax.Array) -> Moment:
    """The Moment of a step; if it is traced, with the numbers of stages."""
    values = {}
    if isinstance(step, int):
      for field, stages in self._stages.items():
        if stages:
          values[field] = _latest(stages, step)
      return Moment(values)
    for field, stages in self._stages.items():
      if len(stages) > 1:
        values[field] = jnp.sum(step >= jnp.array([first for first, _ in stages])) - 1
      elif stages:
        values[field] = 0
    return Moment(values)

  def rates(self, steps: Any) -> np.ndarray:
    """Learning rates by the formula of the compiled step (NumPy's differ in the last bit)."""
    return np.asarray(make_schedule(self.optimizer, self.horizon)(np.asarray(steps)))

  def parts_at(self, step: Any) -> Any:
    """How many microbatches of a step have rows."""
    if self.parts == 1:
      return 1
    parts = 1 + step * (self.parts - 1) // self.growing
    return min(self.parts, parts) if isinstance(step, int) else jnp.minimum(self.parts, parts)

  def rows_at(self, step: Any) -> Any:
    return self.parts_at(step) * (self.batch_size // self.parts)

  def rows_before(self, step: int) -> int:
    k = bisect.bisect_right(self._firsts, step) - 1
    return self._before[k] + (step - self._firsts[k]) * self.rows_at(self._firsts[k])

  def position(self, step: int, i: int) -> int | None:
    """Which row of the run's, from 0, is row i of a step's batch; None: it is empty. Microbatch k
    has the rows k, k + parts.. (gradients.py)."""
    if self.parts == 1:
      return self.rows_before(step) + i
    used, part = self.parts_at(step), i % self.parts
    return None if part >= used else self.rows_before(step) + i // self.parts * used + part

  def changes(self) -> list[Change]:
    """What changes during the run: end of the warm-up, first full batch, values of fields."""
    optimizer, peak = self.optimizer, self.optimizer.learning_rate
    out = [Change(steps_of(optimizer.warmup, self.horizon), RATE, 0.0, peak)]
    if optimizer.schedule.startswith('wsd'):
      decay = max(1, steps_of(optimizer.decay, self.horizon))
      out.append(Change(self.horizon - decay, RATE, peak, optimizer.final_rate * peak))
    out = [x for x in out if 0 < x.step < self.steps]
    if self.parts > 1:
      before, after = f'{self.rows_at(0)} rows', f'{self.batch_size} rows'
      out.append(Change(self.growing, GROWTH, before, after))
    for field, stages in self._stages.items():
      for (_, before), (step, after) in zip(stages, stages[1:]):
        out.append(Change(step, field, before, after))
    return sorted(out, key=lambda change: change.step)

  def jumps(self) -> set[int]:
    """The steps at which a field gets another value, where the loss may jump."""
    return {step for stages in self._stages.values() for step, _ in stages[1:]}

  def changed_before(self, step: int, other: 'Timeline') -> list[str]:
    """The names of the fields by which the steps before `step` are others than in `other`."""
    fields = []
    for field, stages in self._stages.items():
      ours = [stage for stage in stages if stage[0] < step]
      theirs = [stage for stage in other._stages[field] if stage[0] < step]
      if ours != theirs:
        fields.append(field)
    firsts = [first for first in (*self._firsts, *other._firsts) if first < step]
    if any(self.rows_at(first) != other.rows_at(first) for first in firsts):
      fields.append(GROWTH)
    steps = np.arange(step)
    if (self.rates(steps) != other.rates(steps)).any():
      fields.append(RATE)
    return fields

  def check_stages(self) -> None:
    """InputError if a stage begins after the last step."""
    for field, stages in self._stages.items():
      step, value = stages[-1] if stages else (0, '')
      if step and step >= self.steps:
        raise InputError(
          f'{field}: {value} would begin at step {step}, and the run ends with step {self.steps}; '
          f'leave it out, begin it earlier ({value}@0.5 is half of the run), or raise steps.'
        )


def numbers(optimizer: ConfigDict, steps: int) -> dict[str, Any]:
  """The numbers of a schedule of `steps` steps, which a compiled step takes as arguments."""
  warmup = steps_of(optimizer.warmup, steps)
  decay = max(1, steps_of(optimizer.decay, steps))
  if warmup >= steps:
    raise InputError(
      f'optimizer.warmup of {warmup} steps leaves nothing of a run of {steps}; lower it (below 1 '
      'it is a share of the run).'
    )
  found = {'peak': optimizer.learning_rate, 'steps': steps, 'warmup': warmup, 'decay': decay}
  return {name: np.float32(x) for name, x in found.items()}


def make_schedule(
  optimizer: ConfigDict, steps: int, values: Mapping[str, Any] | None = None
) -> Callable[[Any], Any]:
  """Makes a function step -> learning rate. values: `numbers`, but traced. It first rises linearly
  from 0 over `warmup` steps. linear: peak * (1 - step / steps), counted from step 0 (BERT). cosine:
  falls to 0 over the rest. inverse_sqrt: peak * sqrt(warmup / step) (Vaswani et al. 2017). wsd:
  constant, then linear to 0 over the last `decay` steps; wsd_sqrt: as 1 - sqrt(share of them)
  (Hägele et al. 2024, https://arxiv.org/abs/2405.18392). They fall to final_rate * peak."""
  values = values or numbers(optimizer, steps)
  warmup = values['warmup']
  after = SCHEDULES[optimizer.schedule]

  def schedule(step):
    step = jnp.asarray(step, jnp.float32)
    share = jnp.maximum(after(step, values['steps'], warmup, values['decay']), 0.0)
    if optimizer.final_rate:
      share = optimizer.final_rate + (1 - optimizer.final_rate) * share
    rising = _over(step, jnp.maximum(warmup, 1))
    return values['peak'] * jnp.where(step < warmup, rising, share)

  return schedule


def steps_of(amount: float, steps: int) -> int:
  """A number of steps; an amount below 1 is a share of a run of `steps` steps."""
  return round(amount * steps) if amount < 1 else round(amount)


def values_of(text: str) -> tuple[str, ...]:
  """The values of a field that changes by step, without their steps: ('token', 'phrase')."""
  return tuple(part.partition('@')[0].strip() for part in text.split(',')) if text else ()


def parsed(name: str, field: Field, text: str, steps: int) -> Stages:
  """Parses the text of a field that changes by step; () if it is empty."""
  low = int(field.allowed[1:].partition(',')[0]) if isinstance(field.allowed, str) else None
  if not text and low is not None:
    return ()
  some: Any = field.allowed if low is None else (low, 2 * low)
  known = f'one of {", ".join(some)}' if low is None else f'whole numbers from {low} on'
  example = f'{some[0]},{some[1]}@1000'
  stages = []
  for part in text.split(','):
    value, at, step = part.strip().partition('@')
    is_known = value in some if low is None else value.isdecimal() and int(value) >= low
    if is_known and SHARE.fullmatch(step):
      if not steps:
        raise InputError(
          f'{name}={text} has a share of the steps, and steps is 0; set steps, and epochs=0, or '
          'write the number of a step.'
        )
      step = str(round(float(step) * steps))
    if not is_known or (at and not step.isdecimal()):
      raise InputError(
        f'{name}={text} is not understood at {part.strip()!r}; use {known}, or several with their '
        f'first steps: {example}.'
      )
    stages.append((int(step or 0), value if low is None else int(value)))
  firsts = [step for step, _ in stages]
  if firsts[0] or firsts != sorted({*firsts}):
    raise InputError(
      f'{name}={text} does not begin at step 0 and go up; write it like {example}, or '
      'train more steps.'
    )
  return tuple(stages)


def _latest(stages, step):
  """The value of a field at a step, from its stages."""
  return next(value for first, value in reversed(stages) if first <= step)
