"""BERT's masking, by its statistics and by the rules of create_pretraining_data.py."""

import jax
import numpy as np
import pytest

from bert_jax.objectives.corruption import mask_tokens

SPECIAL, MASK, V = (0, 1, 2, 3, 7), 7, 97


def rows(B, T, seed=0):
  """Rows of ordinary ids with [CLS] 2, [SEP] 3 and padding 0 of several lengths, label id 0
  unused."""
  rng = np.random.RandomState(seed)
  ids = rng.choice([i for i in range(V) if i not in SPECIAL], (B, T)).astype(np.int32)
  segments = np.ones((B, T), np.int32)
  for i in range(B):
    length = T if i % 3 == 0 else rng.randint(5, T + 1)
    ids[i, 0], ids[i, length - 1], ids[i, length:] = 2, 3, 0
    segments[i, length:] = 0
  return ids, segments


def mask(ids, segments, seed=0, **changes):
  settings = (
    dict(
      special_ids=SPECIAL,
      mask_id=MASK,
      vocab_size=V,
      masked_lm_prob=0.15,
      max_predictions=20,
      mask_share=0.8,
      random_share=0.1,
    )
    | changes
  )
  return [
    np.asarray(x)
    for x in jax.jit(lambda key, *a: mask_tokens(key, *a, **settings))(
      jax.random.key(seed), ids, segments
    )
  ]


def test_counts_are_the_references():
  ids, segments = rows(64, 128)
  _, positions, labels, weights = mask(ids, segments)
  for i in range(64):
    length = (segments[i] > 0).sum()
    assert weights[i].sum() == min(20, max(1, int(round(length * 0.15))))
    chosen = positions[i][weights[i] > 0]
    assert len(set(chosen)) == len(chosen)
    assert (labels[i][weights[i] > 0] == ids[i, chosen]).all()


def test_specials_and_padding_are_never_touched_and_nothing_else_changes():
  ids, segments = rows(64, 128)
  new, positions, _, weights = mask(ids, segments)
  untouchable = np.isin(ids, SPECIAL) | (segments == 0)
  assert (new[untouchable] == ids[untouchable]).all()
  chosen = np.zeros(ids.shape, bool)
  for i in range(64):
    chosen[i, positions[i][weights[i] > 0]] = True
  assert (new[~chosen] == ids[~chosen]).all()


def test_shares_over_a_million_tokens():
  ids, segments = rows(8192, 128)
  new, positions, labels, weights = mask(ids, segments, max_predictions=20)
  real = weights > 0
  now = np.take_along_axis(new, positions, 1)[real]
  labels = labels[real]
  n = real.sum()
  masked, kept = (now == MASK).mean(), (now == labels).mean()
  drawn = now[(now != MASK) & (now != labels)]
  assert abs(masked - 0.8) < 0.005
  # A random draw hits the label itself once in len(ordinary ids).
  ordinary = V - len(SPECIAL)
  assert abs(kept - (0.1 + 0.1 / ordinary)) < 0.004
  assert abs(len(drawn) / n - 0.1 * (1 - 1 / ordinary)) < 0.004
  # Replacements are uniform over all ordinary pieces, and never special.
  counts = np.bincount(drawn, minlength=V)
  assert counts[list(SPECIAL)].sum() == 0
  expected = len(drawn) / ordinary
  chi2 = ((np.delete(counts, SPECIAL) - expected) ** 2 / expected).sum()
  assert chi2 < ordinary + 5 * np.sqrt(2 * ordinary)


def test_every_position_is_as_likely():
  ids = np.full((20000, 16), 50, np.int32)
  ids[:, 0], ids[:, -1] = 2, 3
  _, positions, _, weights = mask(ids, np.ones_like(ids), max_predictions=2)
  counts = np.bincount(positions[weights > 0], minlength=16)
  assert counts[0] == counts[15] == 0
  assert (np.abs(counts[1:15] / counts.sum() - 1 / 14) < 0.004).all()


def test_same_key_same_mask_other_key_other_mask():
  ids, segments = rows(8, 64)
  first, again, other = mask(ids, segments, 1), mask(ids, segments, 1), mask(ids, segments, 2)
  assert all((a == b).all() for a, b in zip(first, again))
  assert (first[1] != other[1]).any()


def test_a_row_without_candidates_predicts_nothing():
  ids = np.array([[2, 3, 0, 0], [0, 0, 0, 0]], np.int32)
  new, _, _, weights = mask(ids, (ids > 0).astype(np.int32), max_predictions=3)
  assert weights.sum() == 0 and (new == ids).all()


def test_label_zero_is_an_ordinary_id():
  ids = np.zeros((4, 12), np.int32)
  _, _, labels, weights = mask(ids, np.ones_like(ids), special_ids=(1, 2, 3, 4, 7))
  assert weights.sum() == 4 * 2 and (labels == 0).all()


@pytest.mark.parametrize('length, expected', [(10, 2), (30, 4), (3, 1)])
def test_rounds_half_to_even_as_the_reference(length, expected):
  ids = np.full((1, 40), 50, np.int32)
  segments = (np.arange(40) < length).astype(np.int32)[None]
  _, _, _, weights = mask(ids, segments)
  assert weights.sum() == expected == max(1, int(round(length * 0.15)))
