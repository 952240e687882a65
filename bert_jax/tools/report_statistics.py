"""What a few seeds say: intervals of means, differences to a baseline, corrected p values.

All of it is Student's t, as if the values of an arm were drawn from a normal distribution. With
three to ten seeds a bootstrap gives intervals that are too narrow.
"""

import statistics
from typing import NamedTuple

FEWEST = 3  # values of which an interval is given


class Difference(NamedTuple):
  """The mean of an arm minus that of the baseline over the seeds that both have.
  seeds: how many; interval: (low, high) of 95 %, or None; p: that of a two-sided paired t-test, or
  None; corrected: p after Holm's correction for all comparisons that are made together, or None."""

  seeds: int
  mean: float
  interval: tuple | None
  p: float | None
  corrected: float | None = None


def interval(values):
  """(low, high): the 95 % interval of the mean of some numbers; None of fewer than FEWEST."""
  n = len(values)
  if n < FEWEST:
    return None
  from scipy.special import stdtrit  # slow to import

  mean, half = statistics.fmean(values), stdtrit(n - 1, 0.975) * statistics.stdev(values) / n**0.5
  return float(mean - half), float(mean + half)


def difference(values, baseline):
  """The Difference of two {seed: value}; None if they share no seed."""
  shared = [values[seed] - baseline[seed] for seed in values if seed in baseline]
  if not shared:
    return None
  mean, n = statistics.fmean(shared), len(shared)
  if n < FEWEST:
    return Difference(n, mean, None, None)
  from scipy.special import stdtr

  error = statistics.stdev(shared) / n**0.5
  if error > 1e-12 * abs(mean):
    return Difference(n, mean, interval(shared), float(2 * stdtr(n - 1, -abs(mean) / error)))
  if mean:  # the same in all seeds, as happens with scores of few examples: no spread to judge by
    return Difference(n, mean, None, None)
  return Difference(n, mean, (0.0, 0.0), 1.0)


def holm(ps):
  """p values, each corrected for all of them (Holm 1979): if none of the differences is real, one
  of the results is below 0.05 in at most 5 % of such lists."""
  out, running = [0.0] * len(ps), 0.0
  for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
    running = max(running, min(1.0, (len(ps) - rank) * ps[i]))
    out[i] = running
  return out


def differences(arms, baseline):
  """{name: Difference or None} of {name: {seed: value}} to the arm named `baseline`, which is left
  out; p values are corrected for all of them."""
  differences = {
    name: difference(values, arms[baseline]) for name, values in arms.items() if name != baseline
  }
  tested = [name for name, x in differences.items() if x and x.p is not None]
  for name, p in zip(tested, holm([differences[name].p for name in tested])):
    differences[name] = differences[name]._replace(corrected=p)
  return differences
