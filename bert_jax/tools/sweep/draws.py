"""Draws the arms of a random search from the values of --vary, and numbers from ranges."""

import math
import random
import re
from collections.abc import Sequence

from bert_jax.errors import InputError

# The ranges of a random search: {how it is written: a number drawn by u from [0, 1)}.
RANGES = {
  'uniform': lambda low, high, u: float(f'{low + (high - low) * u:.3g}'),
  'log': lambda low, high, u: float(f'{low * (high / low) ** u:.3g}'),
  'integers': lambda low, high, u: math.floor(low + (high + 1 - low) * u),
}
RANGE = re.compile(rf'({"|".join(RANGES)})\(([^,()]+),([^,()]+)\)')


def drawn(axes: Sequence[Sequence[dict[str, str]]], count: int, seed: int) -> list[dict[str, str]]:
  """Draws `count` arms of a random search; arm i depends on the seed and i alone."""
  return [
    {name: number_of(value, rng) for axis in axes for name, value in rng.choice(axis).items()}
    for rng in (random.Random(f'{seed} {i}') for i in range(count))
  ]


def number_of(value: str, rng: random.Random) -> str:
  """Draws a number if a value is a range."""
  if not (match := RANGE.fullmatch(value)):
    return value
  try:
    return str(RANGES[match[1]](float(match[2]), float(match[3]), rng.random()))
  except (ValueError, ZeroDivisionError, TypeError, OverflowError):
    raise InputError(f'{value} is no range of numbers; write log(1e-4,1e-2).') from None
