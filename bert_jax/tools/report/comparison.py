"""Compares the arms of a long table, as a DataFrame: index arm, and the columns

| column | |
|---|---|
| seeds, mean, sd | of the values that count; runs of one seed are averaged first |
| low, high | 95 % interval of the mean over other seeds (Student's t, from 3 seeds on) |
| examples_low, examples_high | of a share of right answers: the same over other examples (Wilson) |
| shared, difference, difference_low, difference_high | to the baseline, over the seeds of both |
| p, p_corrected | of a paired t-test, NaN if it or the baseline collapsed; for all arms (Holm) |
| p_examples_low, p_examples_high | McNemar's test over examples, lowest and highest of the seeds |
| collapsed | runs with one answer for all, which are in the mean |
"""

import collections
import itertools
import json
import statistics
from typing import Any

import numpy as np
import pandas as pd

from bert_jax.errors import InputError, listed, quoted
from bert_jax.files import Path
from bert_jax.tools.report.statistics import (
  Difference,
  difference,
  differences,
  interval,
  mcnemar,
  step_of,
  top_of,
  wilson,
)

NONE = (np.nan, np.nan)
COLUMNS = ['seeds', 'mean', 'sd', 'low', 'high', 'examples_low', 'examples_high', 'shared']
COLUMNS += ['difference', 'difference_low', 'difference_high', 'p', 'p_corrected']
COLUMNS += ['p_examples_low', 'p_examples_high', 'collapsed']


def compare(df: pd.DataFrame, metric: str, baseline: str = '') -> pd.DataFrame:
  """Compares the arms of one task, evaluated in one way (columns `task` and `under`), by a metric:
  a row for each arm, the baseline first."""
  final = df[df.final]
  if final.groupby(['task', 'under']).ngroups > 1:
    raise InputError('the table has several tasks or evaluations; compare df[df.under == ...].')
  arms = list(dict.fromkeys(final.arm))
  if baseline and baseline not in arms:
    raise InputError(f'there is no arm {quoted(baseline)}, only {listed(arms)}.')
  if metric not in set(final.metric):
    raise InputError(
      f'there is no metric {quoted(metric)}, only {listed(sorted(set(final.metric)))}.'
    )
  arms.sort(key=lambda arm: arm != baseline)
  chosen = final[(final.metric == metric) & final.value.notna()]
  step = rounding(chosen, metric)
  parts = {arm: chosen[chosen.arm == arm] for arm in arms}
  values = {arm: by_seed(part) for arm, part in parts.items()}
  found = {}
  if baseline:
    gone = []
    for arm, part in parts.items():
      if len(part) and (part.status == 'collapsed').all():
        gone.append(arm)
    found = differences(values, baseline, step, gone)
  rows = {}
  for arm, part in parts.items():
    row = alone(part, metric, step)
    if step and ('accuracy' in metric or 'exact' in metric):  # a share of right answers
      top = top_of(metric, list(chosen.value))
      examples = part.groupby('eval_rows').examples.max().sum()  # folds have rows of their own
      low, high = wilson(row['mean'] / top, examples or chosen.examples.max())
      row['examples_low'] = low * top
      row['examples_high'] = high * top
    if arm in found:
      row |= as_row(found[arm])
      row['shared'] = found[arm].seeds
      row['p_corrected'] = found[arm].corrected
      if step:
        ps = mcnemar_by_seed(part, parts[baseline])
        row['p_examples_low'] = min(ps, default=None)
        row['p_examples_high'] = max(ps, default=None)
    rows[arm] = row
  table = pd.DataFrame.from_dict(rows, orient='index').reindex(columns=COLUMNS)
  return table.rename_axis('arm').astype(float)


def alone(part: pd.DataFrame, metric: str, step: float) -> dict[str, Any]:
  """What the values of an arm say by themselves. step: their rounding."""
  numbers = list(by_seed(part).values())
  low, high = interval(numbers, step, metric) or NONE
  return {
    'seeds': len(numbers),
    'mean': statistics.fmean(numbers) if numbers else np.nan,
    'sd': statistics.stdev(numbers) if len(numbers) > 1 else np.nan,
    'low': low,
    'high': high,
    'collapsed': (part.status == 'collapsed').sum(),
  }


def by_seed(rows: pd.DataFrame) -> dict[int, float]:
  """{seed: value}; runs of one seed are averaged."""
  values = collections.defaultdict(list)
  for seed, value in zip(rows.seed, rows.value):
    values[int(seed)].append(value)
  return {seed: statistics.fmean(values[seed]) for seed in sorted(values)}


def rounding(rows: pd.DataFrame, metric: str) -> float:
  """What one of the examples adds to a score; 0 if it counts none."""
  examples = int(rows.examples.max()) if len(rows) else 0
  return step_of(examples, top_of(metric, list(rows.value)))


def as_row(found: Difference) -> dict[str, Any]:
  low, high = found.interval or NONE
  return {'difference': found.mean, 'difference_low': low, 'difference_high': high, 'p': found.p}


def mcnemar_by_seed(arm: pd.DataFrame, baseline: pd.DataFrame) -> list[float]:
  """The p values of McNemar's tests of two arms, one for each seed whose answers are at hand."""
  of_baseline = {row.seed: right_answers(row) for row in baseline.itertuples()}
  ps = []
  for row in arm.itertuples():
    mine = right_answers(row)
    theirs = of_baseline.get(row.seed, {})
    if mine and mine.keys() == theirs.keys():
      ps.append(mcnemar(list(mine.values()), [theirs[name] for name in mine]))
  return ps


def right_answers(row: Any) -> dict[str, bool]:
  """{id of an example: whether its answer is right}; {} if the metric is not the share of these."""
  right = {}
  if row.answers:
    lines = (Path(row.answers) / 'predictions.jsonl').read_bytes()
    for number, line in enumerate(lines.splitlines()):
      answer = json.loads(line)
      if 'gold' in answer:
        right[str(answer.get('id', number))] = answer['prediction'] == answer['gold']
  share = statistics.fmean(right.values()) if right else np.nan
  is_the_value = min(abs(share - row.value), abs(100 * share - row.value)) < 1e-6
  return right if is_the_value else {}


# ---- Effects of factors -------------------------------------------------------------------------


def crossed(factors: pd.DataFrame) -> pd.DataFrame:
  """The factors (index arm) of arms that are all combinations of two or more of them, else none;
  fields that move together are one factor."""
  codes = {}  # {the number of each arm's value: field}
  for name in factors:
    numbers, _ = pd.factorize(factors[name])
    codes.setdefault(tuple(numbers), name)
  names = list(codes.values())
  combinations = len(factors[names].drop_duplicates())
  possible = factors[names].nunique(dropna=False).prod()
  is_grid = len(names) > 1 and combinations == possible == len(factors)
  return factors[names if is_grid else []]


def effects(df: pd.DataFrame, metric: str, factors: pd.DataFrame, baseline: str) -> pd.DataFrame:
  """The main effects of crossed factors against the baseline's values, means over the values of the
  others, and the interactions: by how much two changes together do more than each alone. Over the
  seeds that all arms have: index effect, columns difference, difference_low, difference_high, p."""
  final = df[df.final & (df.metric == metric) & df.value.notna()]
  by_arm = final.groupby(['seed', 'arm']).value.mean().unstack('arm')
  by_arm = by_arm.reindex(columns=factors.index).dropna()  # [seeds, arms]
  base = factors.loc[baseline].to_dict()
  others = {}  # {field: its values but the baseline's}
  for name in factors:
    others[name] = [value for value in factors[name].unique() if value != base[name]]
  pairs = {}  # {effect: two columns, the difference of which it is}
  for name, values in others.items():
    means = by_arm.T.groupby(factors[name]).mean().T
    for value in values:
      pairs[f'{name}={value}'] = means[value], means[base[name]]
  for one, two in itertools.combinations(others, 2):
    means = by_arm.T.groupby([factors[one], factors[two]]).mean().T
    for a, b in itertools.product(others[one], others[two]):
      together = means[a, b] - means[base[one], b]
      apart = means[a, base[two]] - means[base[one], base[two]]
      pairs[f'{one}={a} x {two}={b}'] = together, apart
  step = rounding(final, metric)
  rows = {}
  for effect, (first, second) in pairs.items():
    found = difference(first.to_dict(), second.to_dict(), step)
    if found:
      rows[effect] = as_row(found)
  return pd.DataFrame.from_dict(rows, orient='index').rename_axis('effect').astype(float)
