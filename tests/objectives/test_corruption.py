"""Masking, by its statistics and by the rules of the references: create_pretraining_data.py for
tokens and whole words, SpanBERT (Joshi et al. 2020) for spans, ERNIE (Sun et al. 2019) for stages.
"""

import functools

import jax
import numpy as np
import pytest
from toys import load

from bert_jax import config as config_lib
from bert_jax.objectives import masking
from bert_jax.objectives.masking import ENTITY, PHRASE, WORD, mask_tokens
from bert_jax.timeline import EVALUATION

SPECIAL, MASK, V = (0, 1, 2, 3, 7), 7, 97
ORDINARY = [i for i in range(V) if i not in SPECIAL]
# What a policy must not tear: spans are made of words, the others are units themselves.
UNIT = {'whole_word': WORD, 'span': WORD, 'phrase': PHRASE, 'entity': ENTITY}
POLICIES = ('token', *UNIT)
# One compilation serves all policies of a shape: policy i is the one of step i.


def rows(B, T, seed=0, short=0.7):
  """Rows of ordinary ids with [CLS] 2, [SEP] 3 and padding 0, label id 0 unused; a share of them
  of any length from 5 on."""
  rng = np.random.RandomState(seed)
  ids = rng.choice(ORDINARY, (B, T)).astype(np.int32)
  segments = np.ones((B, T), np.int32)
  for i in range(B):
    length = rng.randint(5, T + 1) if rng.rand() < short else T
    ids[i, 0], ids[i, length - 1], ids[i, length:] = 2, 3, 0
    segments[i, length:] = 0
  return ids, segments


def rows_of_words(B, T, seed=0, short=0.7):
  """The same with a second example from the middle on, some [UNK] 1, and unit starts: words of 1 to
  4 pieces, phrases of 1.7 words and entities of 1.4 on average."""
  rng = np.random.RandomState(seed)
  ids, segments = rows(B, T, seed, short)
  ids[rng.rand(B, T) < 0.02] = 1
  ids[:, T // 2 - 1], ids[:, T // 2] = 3, 2
  segments[:, T // 2 :] *= 2
  ids[segments == 0] = 0
  pieces = rng.choice([1, 2, 3, 4], B * T, p=[0.75, 0.13, 0.08, 0.04])
  starts = np.zeros(B * T, np.int32)
  ends = np.cumsum(pieces)
  starts[ends[ends < B * T]] = WORD
  starts += PHRASE * (starts & WORD) * (rng.rand(B * T) < 0.6)
  starts += ENTITY * (starts & WORD) * (rng.rand(B * T) < 0.7)
  return ids, segments, starts.reshape(B, T)


SETTINGS = {'special_ids': SPECIAL, 'mask_id': MASK, 'vocab_size': V, 'max_predictions': 20}
SETTINGS |= {'policies': ('token',), 'masked_lm_prob': 0.15, 'mask_share': 0.8, 'random_share': 0.1}


@functools.lru_cache
def compiled(**changes):
  return jax.jit(functools.partial(mask_tokens, **SETTINGS | changes))


def mask(ids, segments, starts=None, stage=0, *, seed=0, **changes):
  out = compiled(**changes)(jax.random.key(seed), ids, segments, starts, stage)
  return [np.asarray(x) for x in out]


def mask_by(policy, ids, segments, starts, among=POLICIES, **changes):
  """(new ids, chosen [B, T] bool, weights)"""
  stage, changes = among.index(policy), changes | {'policies': among}
  new, positions, labels, weights = mask(ids, segments, starts, stage, **changes)
  assert (labels == np.take_along_axis(ids, positions, 1)).all()
  chosen = np.zeros(ids.shape, bool)
  np.put_along_axis(chosen, positions, weights > 0, 1)
  assert chosen.sum() == weights.sum()  # no position twice
  return new, chosen, weights


def wanted(segments, K, share=0.15):
  lengths = (segments > 0).sum(1)
  return np.array([min(K, max(1, int(round(int(n) * share)))) for n in lengths])


def units_of(ids, segments, starts, bit):
  """One row's units, each a list of positions."""
  units, previous = [], None
  for t in range(len(ids)):
    if ids[t] in SPECIAL or segments[t] == 0:
      previous = None
      continue
    if previous != segments[t] or starts[t] & bit:
      units.append([])
    units[-1].append(t)
    previous = segments[t]
  return units


def assert_whole(chosen, ids, segments, starts, bit):
  taken = 0
  for row in zip(chosen, ids, segments, starts, strict=True):
    for unit in units_of(*row[1:], bit):
      assert row[0][unit].all() or not row[0][unit].any()
      taken += row[0][unit[0]]
  return taken


@pytest.fixture(scope='module')
def many():
  return rows_of_words(4096, 128, short=0.1)  # as in pre-training, where rows are filled


@pytest.fixture(scope='module', params=POLICIES)
def drawn(request, many):
  """(policy, new ids, chosen) for half a million tokens, with room for all predictions."""
  return request.param, *mask_by(request.param, *many, max_predictions=40)[:2]


def test_a_row_wants_a_rounded_share_and_one_at_least():
  lengths = np.array([3, 10, 30, 50])  # 0.45, 1.5, 4.5 and 7.5 tokens: half goes to even
  segments = np.tile((np.arange(128) < lengths[:, None]).astype(np.int32), (16, 1))
  rows = np.full((64, 128), 50, np.int32), segments, 0 * segments
  weights = mask_by('token', *rows, max_predictions=18)[2]
  assert weights.sum(1).tolist() == [1, 2, 4, 8] * 16


def test_rate_over_many_tokens_of_which_nothing_else_changes(drawn, many):
  policy, new, chosen = drawn
  ids, segments, _ = many
  assert (chosen.sum(1) <= wanted(segments, 40)).all()
  assert abs(chosen.sum() / (segments > 0).sum() - 0.15) < 0.003, policy
  # Specials and padding are never touched.
  assert not (chosen & (np.isin(ids, SPECIAL) | (segments == 0))).any()
  assert (new[~chosen] == ids[~chosen]).all()


def test_units_are_chosen_whole_or_not_at_all(drawn, many):
  policy, _, chosen = drawn
  some = [x[:200] for x in (chosen, *many)]
  if policy == 'token':
    with pytest.raises(AssertionError):
      assert_whole(*some, WORD)
  else:
    assert assert_whole(*some, UNIT[policy]) > 500
  # Of chosen tokens the next one is chosen, too, most often in spans of 3.8 words.
  assert ((chosen[:, 1:] & chosen[:, :-1]).sum() / chosen.sum() > 0.6) == (policy == 'span')


def test_shares_over_many_tokens(drawn, many):
  policy, new, chosen = drawn
  now, labels = new[chosen], many[0][chosen]
  masked, kept = (now == MASK).mean(), (now == labels).mean()
  random = now[(now != MASK) & (now != labels)]
  near = 0.014 if policy == 'span' else 0.005  # one draw for all tokens of a span
  assert abs(masked - 0.8) < near
  # A random draw hits the label itself once in len(ORDINARY).
  assert abs(kept - (0.1 + 0.1 / len(ORDINARY))) < near
  assert abs(len(random) / len(now) - 0.1 * (1 - 1 / len(ORDINARY))) < near
  # Replacements are uniform over all ordinary pieces, and never special.
  counts = np.bincount(random, minlength=V)
  assert counts[list(SPECIAL)].sum() == 0
  expected = len(random) / len(ORDINARY)
  chi2 = ((counts[ORDINARY] - expected) ** 2 / expected).sum()
  assert chi2 < len(ORDINARY) + 5 * np.sqrt(2 * len(ORDINARY))


@pytest.mark.parametrize('policy', POLICIES)
def test_same_key_same_mask_other_key_other_mask(policy):
  rows = rows_of_words(64, 128)
  first, again, other = (mask_by(policy, *rows, seed=seed)[1] for seed in (1, 1, 2))
  assert (first == again).all() and (first != other).any(1).mean() > 0.9


def test_stages_change_exactly_at_their_steps():
  rows, policies = rows_of_words(16, 64), ('token', 'entity')
  token, entity = (mask(*rows, policies=(name,))[0] for name in policies)
  assert (token != entity).any()
  changed = 'masking.policy=token,entity@1000 steps=4000'
  timeline = config_lib.timeline_of(load('configs/pretrain.py:runlocal', changed))
  at = jax.jit(lambda step: timeline.at(step).stage('masking.policy'))
  for step, expected in ((0, token), (999, token), (1000, entity), (10**9, entity)):
    np.testing.assert_array_equal(mask(*rows, at(step), policies=policies)[0], expected)
  last = EVALUATION.stage('masking.policy')
  evaluated = mask_tokens(jax.random.key(0), *rows, last, **SETTINGS | {'policies': policies})
  np.testing.assert_array_equal(evaluated[0], entity)


@pytest.mark.parametrize('policy', POLICIES)
def test_a_row_without_candidates_predicts_nothing(policy):
  ids, segments, starts = rows_of_words(64, 128)
  ids[:32, 1:3], ids[:32, 3:], segments[:32, 3:] = 3, 0, 0
  ids[0], segments[0] = 0, 0
  new, _, weights = mask_by(policy, ids, segments, starts, max_predictions=18)
  assert weights[:32].sum() == 0 and (new[:32] == ids[:32]).all()
  assert weights[32:].any(1).all()


def test_units_are_chosen_as_the_reference_does():
  """create_masked_lm_predictions with whole words, in plain Python, given the same order; and where
  units have one order, as the words of a span, the first of them: those that do not fit are cut."""
  rng = np.random.RandomState(1)
  ids, segments, starts = rows_of_words(100, 64, seed=1)
  order = rng.rand(*ids.shape).astype(np.float32)
  order[50:] = np.repeat(order[50:, ::8], 8, axis=1)
  want = rng.randint(1, 40, 100)
  expected, begins = np.zeros(ids.shape, bool), np.zeros(ids.shape, bool)
  for i, row in enumerate(zip(ids, segments, starts, strict=True)):
    units, covered, cut = units_of(*row, PHRASE), 0, None
    begins[i, [unit[0] for unit in units]] = True
    for unit in sorted(units, key=lambda unit: order[i, unit[0]]):
      turn, fits = order[i, unit[0]], covered + len(unit) <= want[i]
      if fits and turn != cut:
        expected[i, unit] = True
        covered += len(unit)
      cut = cut if fits else turn
  candidates = (segments > 0) & ~np.isin(ids, SPECIAL)
  taken = jax.jit(masking.choose_units)(order, begins, candidates, want)
  assert (np.asarray(taken) == expected).all()
  assert (expected.sum(1) == want).any() and (expected.sum(1) < want).any()


def test_spans_are_laid_one_after_the_other_and_end_at_breaks():
  rng = np.random.RandomState(2)
  words, breaks = rng.rand(2, 50, 200) < np.array([0.7, 0.05])[:, None, None]
  words |= breaks
  draws = rng.rand(50, 200).astype(np.float32)
  shares = 0.2 * 0.8 ** np.arange(10)
  ends = np.cumsum(shares / shares.sum())
  expected = np.zeros_like(words)
  for i in range(50):
    left = 0
    for t in np.flatnonzero(words[i]):
      if breaks[i, t] or left == 0:
        expected[i, t] = True
        left = 1 + np.searchsorted(ends, draws[i, t], side='right')
      left -= 1
  assert (np.asarray(jax.jit(masking.tile_spans)(draws, words, breaks)) == expected).all()


@pytest.mark.parametrize('policy', ['whole_word', 'span'])
def test_a_span_has_one_action_and_its_tokens_pieces_of_their_own(policy):
  """A whole word has no action of its own. One word of 8 tokens, all of them chosen."""
  ids = np.full((8000, 8), 50, np.int32)
  settings = dict(masked_lm_prob=1.0, max_predictions=8, mask_share=0.5, random_share=0.5)
  rows = ids, np.ones_like(ids), np.zeros_like(ids)
  new, chosen, _ = mask_by(policy, *rows, among=('whole_word', 'span'), **settings)
  hidden = new == MASK
  assert chosen.all() and abs(hidden[:, 0].mean() - 0.5) < 0.04
  alike = (hidden[:, 0] == hidden[:, 1]).mean()
  if policy == 'whole_word':
    assert abs(alike - 0.5) < 0.04
  else:
    assert (hidden == hidden[:, :1]).all()
    pieces = new[~hidden[:, 0]]
    assert abs((pieces[:, 0] == pieces[:, 1]).mean() - 1 / len(ORDINARY)) < 0.02
