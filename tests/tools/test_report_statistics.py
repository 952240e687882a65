"""The statistics of a report, against simulation and scipy's tests."""

import numpy as np
import pytest

from bert_jax.tools.report import statistics as stats


def test_intervals_cover_what_they_say():
  """Of 3 or 12 seeds, normal or uniform, 93 to 97 of 100 intervals hold the mean."""
  rng = np.random.default_rng(0)
  for n in (3, 12):
    for draw in (rng.normal, lambda size: rng.uniform(-1, 1, size)):
      found = [stats.interval(list(values)) for values in draw(size=(1500, n))]
      assert 0.93 <= np.mean([low <= 0 <= high for low, high in found]) <= 0.97, (n, draw)


def test_false_alarms_of_a_whole_table_are_rare():
  """Six arms that do not differ, with five seeds, whose effects they share: at most one table of
  20 has a corrected p below 0.05; without the correction many have."""
  rng, wrong, uncorrected = np.random.default_rng(1), 0, 0
  for _ in range(400):
    shared = rng.normal(size=5)
    arms = {k: dict(enumerate(shared + rng.normal(size=5))) for k in range(7)}
    found = stats.differences(arms, 0).values()
    wrong += any(x.corrected < 0.05 for x in found)
    uncorrected += any(x.p < 0.05 for x in found)
  assert 0.02 < wrong / 400 <= 0.05 and uncorrected / 400 > 0.1


def test_false_alarms_with_few_examples_are_rare():
  """Six arms that do not differ, with three seeds and 100 examples, whose answers differ between
  seeds in one or two: Matthews' correlation is then nearly the same in all seeds by chance."""
  rng, size, wrong, unrounded = np.random.default_rng(2), 100, 0, 0
  for _ in range(250):
    right, false = (
      np.round(x + rng.normal(0, 0.5, (7, 3))) for x in rng.uniform((35, 15), (36, 16))
    )
    missed, rejected = 50 - right, 50 - false
    scores = (right * rejected - false * missed) / np.sqrt(
      (right + false) * (right + missed) * (rejected + false) * (rejected + missed)
    )
    arms = {k: dict(enumerate(values.tolist())) for k, values in enumerate(scores)}
    for step in (0, 1 / size):
      alarm = any((x.corrected or 1) < 0.05 for x in stats.differences(arms, 0, step).values())
      wrong, unrounded = wrong + alarm * (step > 0), unrounded + alarm * (step == 0)
  assert wrong / 250 <= 0.05 and unrounded / 250 > 0.1
  # What differs by more is still seen, also where all seeds agree; so is nothing where nothing is.
  for more, low, high in ((0.05, 0, 0.01), (0.01, 0.05, 1), (0.0, 1, 1)):
    by_seed = {0: 0.70, 1: 0.73, 2: 0.71}
    other = {seed: round(value + more, 2) for seed, value in by_seed.items()}
    found = stats.difference(other, by_seed, 1 / size)
    assert low <= found.p <= high and found.interval[0] < more < found.interval[1]


def test_a_difference_is_of_the_seeds_of_both():
  """Without three of them, or without a spread to judge by, it has no p."""
  some, other = {0: 1.0, 1: 2.5, 2: 2.0, 9: 7.0}, {1: 2.0, 0: 1.2, 2: 1.7, 8: 0.0}
  found = stats.difference(some, other)
  assert found.seeds == 3 and found.mean == pytest.approx((-0.2 + 0.5 + 0.3) / 3)
  assert found.interval[0] < found.mean < found.interval[1] and 0 < found.p < 1
  assert stats.difference(some, {8: 1.0}) is None
  assert stats.difference({0: 2.0, 1: 3.0}, {0: 1.0, 1: 1.0}) == (2, 1.5, None, None, None)
  more = {seed: value + 0.01 for seed, value in other.items()}
  assert stats.difference(more, other)[2:4] == (None, None)


def test_holm():
  # The example of Wikipedia's article on the method: 0.01, 0.04, 0.03, 0.005.
  assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
  assert stats.holm([0.9, 0.8]) == [1.0, 1.0] and stats.holm([]) == []


@pytest.mark.parametrize(
  'metric, values, bottom, top',
  [
    ('accuracy', [0.9, 0.97, 1.0], 0, 1),
    ('f1', [3.0, 1.0, 0.0], 0, 100),  # percent
    ('best_f1', [30.0, 99.0, 97.0], 0, 100),
    ('matthews', [-0.5, 0.1, 0.9], -1, 1),
    ('bleu', [0.9, 0.5, 0.1], 0, 100),  # always in percent
    ('mlm', [0.9, 0.97, 1.0], -np.inf, np.inf),
  ],
)
def test_no_interval_is_beyond_what_a_score_can_be(metric, values, bottom, top):
  low, high = stats.interval(values)
  assert stats.interval(values, 0, metric) == (max(low, bottom), min(high, top))


def test_a_step_is_what_an_example_adds():
  assert stats.step_of(50, stats.top_of('f1', [31.0, 0.5])) == 2  # percent
  assert stats.step_of(50, stats.top_of('f1', [0.31, 0.5])) == 0.02
  assert stats.step_of(50, stats.top_of('mean_absolute_error', [31.0, 0.5])) == 0
