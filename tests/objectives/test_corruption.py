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


def run_lengths(chosen, words):
  """Lengths in words of the runs of chosen tokens: a span each, where few are chosen."""
  lengths = []
  for row, starts in zip(chosen, words, strict=True):
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row, [0]])))
    lengths += [starts[a:b].sum() for a, b in edges.reshape(-1, 2)]
  return np.array(lengths)


@pytest.fixture(scope='module')
def many():
  return rows_of_words(4096, 128, short=0.1)  # as in pre-training, where rows are filled


@pytest.fixture(scope='module', params=POLICIES)
def drawn(request, many):
  """(policy, new ids, chosen) for half a million tokens, with room for all predictions."""
  return request.param, *mask_by(request.param, *many, max_predictions=40)[:2]


@pytest.mark.parametrize('policy', POLICIES)
def test_counts_are_the_references_where_every_token_is_a_unit(policy):
  ids, segments, _ = rows_of_words(64, 128)
  _, _, weights = mask_by(policy, ids, segments, np.full_like(ids, 7), max_predictions=18)
  short = wanted(segments, 18) - weights.sum(1)
  if policy == 'span':  # of several words, so that now and then none is left that fits
    assert (short >= 0).all() and (short == 0).mean() > 0.8
  else:
    assert (short == 0).all()


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
  words = run_lengths(chosen, many[2] & WORD).mean()
  assert (words > 2.6) == (policy == 'span'), words  # a span is 3.8 words long but for its ends


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


@pytest.mark.parametrize('policy', ['token', 'phrase'])
def test_every_position_is_as_likely(policy):
  ids = np.full((4096, 128), 50, np.int32)
  ids[:, 0], ids[:, 15] = 2, 3
  # Seven units of two tokens, of which one is taken; then padding.
  starts = np.where(np.arange(128) % 2, 7, 0) * np.ones_like(ids)
  rows = ids, (np.arange(128) < 16) * np.ones_like(ids), starts
  draws = (mask_by(policy, *rows, max_predictions=40, seed=seed) for seed in range(4))
  chosen = np.concatenate([chosen for _, chosen, _ in draws])
  assert (chosen.sum(1) == 2).all() and not chosen[:, 16:].any()
  counts = chosen.sum(0)
  assert counts[0] == counts[15] == 0
  assert (np.abs(counts[1:15] / counts.sum() - 1 / 14) < 0.0065).all()  # 4.5 sigma
  if policy != 'token':
    assert (chosen[:, 1:15:2] == chosen[:, 2:15:2]).all()


def test_same_key_same_mask_other_key_other_mask():
  ids, segments, starts = rows_of_words(64, 128)
  for policy in POLICIES:
    first, again, other = (
      mask_by(policy, ids, segments, starts, seed=seed, max_predictions=18) for seed in (1, 1, 2)
    )
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert (first[1] != other[1]).any(1).mean() > 0.9


def test_stages_change_exactly_at_their_steps():
  ids, segments, starts = rows_of_words(16, 64)
  policies = ('token', 'entity')
  alone = [mask(ids, segments, starts, policies=(name,)) for name in policies]
  assert len({out[0].tobytes() for out in alone}) == 2
  changed = 'masking.policy=token,entity@1000 steps=4000'
  config = load('configs/pretrain.py:runlocal', changed)
  at = jax.jit(lambda step: config_lib.timeline_of(config).at(step).stage('masking.policy'))
  for step, i in ((0, 0), (999, 0), (1000, 1), (10**9, 1)):
    out = mask(ids, segments, starts, at(step), policies=policies)
    assert all((a == b).all() for a, b in zip(out, alone[i], strict=True)), step
  last = functools.partial(mask_tokens, **SETTINGS | {'policies': policies})
  last = functools.partial(last, stage=EVALUATION.stage('masking.policy'))
  out = jax.jit(last)(jax.random.key(0), ids, segments, starts)
  assert all((a == b).all() for a, b in zip(out, alone[1], strict=True))


def test_a_row_without_candidates_predicts_nothing():
  ids, segments, starts = rows_of_words(64, 128)
  ids[:32, 1:3], ids[:32, 3:], segments[:32, 3:] = 3, 0, 0
  ids[0], segments[0] = 0, 0
  for policy in POLICIES:
    new, _, weights = mask_by(policy, ids, segments, starts, max_predictions=18)
    assert weights[:32].sum() == 0 and (new[:32] == ids[:32]).all()
    assert weights[32:].any(1).all()
  ids = np.zeros((4, 12), np.int32)  # 0 is a word where it is no special id
  _, _, labels, weights = mask(ids, np.ones_like(ids), special_ids=(1, 2, 3, 4, 7))
  assert weights.sum() == 4 * 2 and (labels == 0).all()


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


def test_spans_mask_a_row_evenly():
  """The edges, where spans are cut and so fit more often, come up by half more; nothing less."""
  ids = np.full((4096, 128), 50, np.int32)
  starts = np.full_like(ids, WORD)
  _, chosen, _ = mask_by('span', ids, np.ones_like(ids), starts, max_predictions=40)
  rate = chosen.mean(0)
  middle = rate[16:112].mean()
  assert (np.abs(rate[16:112] - middle) < 0.028).all()  # 5 sigma
  assert (rate > middle - 0.028).all() and (rate < 1.6 * middle).all()


def test_a_span_has_one_action_and_its_tokens_pieces_of_their_own():
  """Two examples of one word each, 8 tokens long, all of them chosen."""
  ids = np.full((4000, 16), 50, np.int32)
  segments = 1 + (np.arange(16) >= 8) * np.ones_like(ids)
  settings = dict(masked_lm_prob=1.0, max_predictions=16, mask_share=0.5, random_share=0.5)
  settings |= dict(among=('whole_word', 'span'))
  new, chosen, _ = mask_by('span', ids, segments, np.zeros_like(ids), **settings)
  hidden = (new == MASK).reshape(4000, 2, 8)
  assert chosen.all() and (hidden == hidden[..., :1]).all()
  first, second = hidden[:, 0, 0], hidden[:, 1, 0]
  assert abs(first.mean() - 0.5) < 0.04 and abs((first == second).mean() - 0.5) < 0.04
  pieces = new[:, :8][~first]
  assert abs((pieces[:, 0] == pieces[:, 1]).mean() - 1 / len(ORDINARY)) < 0.02
  # A whole word has no action of its own.
  new, _, _ = mask_by('whole_word', ids, segments, np.zeros_like(ids), **settings)
  hidden = (new == MASK).reshape(4000, 2, 8)
  assert abs((hidden[..., 0] == hidden[..., 1]).mean() - 0.5) < 0.04


@pytest.mark.parametrize('policy', UNIT)
def test_no_unit_goes_on_in_another_example_or_behind_a_special_token(policy):
  """[A A A A | B B B B [UNK] B B B B], no start marked: three units of 4; 6 are wanted."""
  ids = np.full((300, 13), 50, np.int32)
  ids[:, 8] = 1
  segments = 1 + (np.arange(13) >= 4) * np.ones_like(ids)
  settings = dict(masked_lm_prob=6 / 13, max_predictions=6)
  _, chosen, _ = mask_by(policy, ids, segments, np.zeros_like(ids), **settings)
  parts = [chosen[:, :4], chosen[:, 4:8], chosen[:, 9:]]
  assert all((part == part[:, :1]).all() for part in parts)
  taken = np.stack([part[:, 0] for part in parts], 1)
  assert (taken.sum(1) == 1).all() and (taken.mean(0) > 0.2).all()
