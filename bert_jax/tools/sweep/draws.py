"""The numbers of a sweep: its seeds, how many runs, and what a random search draws from --vary."""

import math
import random
import re
from collections.abc import Sequence

from bert_jax.errors import InputError, quoted

MOST_RUNS = 10_000  # of a sweep

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


def check_number(runs: int, of: str) -> None:
  """InputError if a sweep has no room for so many runs."""
  if runs > MOST_RUNS:
    raise InputError(f'{of}: these are {runs:,} runs, and a sweep has {MOST_RUNS:,}; give fewer.')


def seeds_of(text: str) -> tuple[int, ...]:
  """Parses seeds: '3' is 0, 1, 2; '5,6,9' and '5-7' name the seeds themselves."""
  seeds = []
  if match := re.fullmatch(r'\s*(?:(\d{1,18})-)?(\d{1,18})\s*', text, re.ASCII):
    seeds = range(int(match[2])) if match[1] is None else range(int(match[1]), int(match[2]) + 1)
  elif re.fullmatch(r'[\d\s,]*', text, re.ASCII) and not re.search(r'\d{19}', text):
    seeds = [int(part) for part in re.findall(r'\d+', text)]
  check_number(len(seeds), f'--seeds {quoted(text)} (how many; one seed is named by a comma: 42,)')
  if not seeds or len(set(seeds)) < len(seeds):
    raise InputError(f'--seeds is {quoted(text)}; give how many, or a list such as 5,6,9 or 5-9.')
  return tuple(seeds)
