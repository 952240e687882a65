"""Masking for masked-language-model training: chooses the tokens to predict and hides them.

Pure functions of (rng, batch, step) that run on the device inside the training step. A policy says
which tokens are chosen together: single tokens (Devlin et al. 2018), whole words
(google-research/bert, create_pretraining_data.py), spans of words (SpanBERT, Joshi et al. 2020), or
the phrases and entities that the data marks (ERNIE, Sun et al. 2019). All have the same steps:
where units begin, which units are taken, their positions, what replaces their tokens. B batch, T
tokens, K predictions.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bert_jax.corpus.units import ENTITY, PHRASE, WORD

UNIT_BIT = {'whole_word': WORD, 'span': WORD, 'phrase': PHRASE, 'entity': ENTITY}

# SpanBERT's lengths in words: geometric up to a maximum, scaled to add up to 1; mean 3.8.
SPAN_P, SPAN_MAX = 0.2, 10
SPAN_SHARES = SPAN_P * (1 - SPAN_P) ** np.arange(SPAN_MAX) / (1 - (1 - SPAN_P) ** SPAN_MAX)

UNROLL = 8  # tokens handled in one iteration of a device loop, whose overhead exceeds their cost


def mask_tokens(
  rng,
  input_ids_BT,
  segment_ids_BT,
  unit_starts_BT=None,
  step=None,
  *,
  stages,
  special_ids,
  mask_id,
  vocab_size,
  masked_lm_prob,
  max_predictions,
  mask_share,
  random_share,
):
  """Chooses tokens to predict and hides most of them.

  stages: ((first step, policy), ...), sorted, the first from step 0; a policy is token, whole_word,
  span, phrase or entity. step: int32 scalar, the step of the training; with None, as in
  evaluations, the last stage holds. unit_starts_BT: bits as in corpus.units.Record.starts; the
  policy token does not need it.

  In each row min(max_predictions, max(1, round(masked_lm_prob * real tokens))) tokens are wanted
  among those that are neither special nor padding. The policy token draws them uniformly, the
  others as choose_units says. Of the chosen, mask_share become [MASK], random_share a piece drawn
  uniformly from the vocabulary without special_ids, and the rest stay as they are
  (google-research/bert, which predicts [UNK] too; here it is special). Which of the three happens
  is drawn for each token, but for spans, as in SpanBERT, once for all tokens of a span.

  Returns (corrupted ids [B, T], positions [B, K], labels [B, K], weights [B, K] of 0.0 or 1.0) with
  K = min(max_predictions, T); a slot of weight 0 predicts nothing.
  """
  choose_key, action_key, random_key, span_key = jax.random.split(rng, 4)
  B, T = input_ids_BT.shape
  K = min(max_predictions, T)
  candidate_BT = (segment_ids_BT > 0) & ~jnp.isin(input_ids_BT, jnp.asarray(special_ids))
  # A table by length, since rounding on the device in float32 may differ from Python's.
  wanted = jnp.array([min(K, max(1, round(masked_lm_prob * length))) for length in range(T + 1)])
  wanted_B = wanted[jnp.sum(segment_ids_BT > 0, axis=1)]
  order_BT = jax.random.uniform(choose_key, (B, T))

  def choose(policy):
    """(score_BT, leads_BT): the wanted_B tokens with the best scores that are not negative are
    chosen; what happens to a token is drawn at the last True of leads_BT at or before it."""
    leads_BT, turns_BT = jnp.ones((B, T), bool), order_BT
    if policy == 'token':
      return jnp.where(candidate_BT, order_BT, -1.0), leads_BT
    breaks_BT = _breaks(candidate_BT, segment_ids_BT)
    starts_BT = candidate_BT & (breaks_BT | (unit_starts_BT & UNIT_BIT[policy] > 0))
    if policy == 'span':
      draws_BT = jax.random.uniform(span_key, (B, T))
      leads_BT = tile_spans(draws_BT, starts_BT, breaks_BT)
      # All words of a span have its number; the last span ends, as SpanBERT's, when enough is
      # chosen.
      turns_BT = jnp.take_along_axis(order_BT, _last_true(leads_BT), axis=1)
    taken_BT = choose_units(turns_BT, starts_BT, candidate_BT, wanted_B)
    return jnp.where(taken_BT, 1.0, -1.0), leads_BT

  branches = [lambda policy=policy: choose(policy) for _, policy in stages]
  if step is None or len(stages) == 1:
    score_BT, leads_BT = branches[-1]()
  else:
    first_steps = jnp.array([first for first, _ in stages])
    score_BT, leads_BT = lax.switch(jnp.sum(step >= first_steps) - 1, branches)
  score_BK, positions_BK = lax.top_k(score_BT, K)
  chosen_BK = (jnp.arange(K) < wanted_B[:, None]) & (score_BK >= 0)

  labels_BK = jnp.take_along_axis(input_ids_BT, positions_BK, axis=1)
  # top_k keeps equal scores from left to right, so the tokens of a span stand behind its lead.
  lead_BK = _last_true(jnp.take_along_axis(leads_BT, positions_BK, axis=1))
  action_BK = jnp.take_along_axis(jax.random.uniform(action_key, (B, K)), lead_BK, axis=1)
  random_BK = _ordinary_ids(random_key, (B, K), vocab_size, special_ids)
  kept_BK = ~chosen_BK | (action_BK >= mask_share + random_share)
  new_BK = jnp.where(action_BK < mask_share, mask_id, random_BK)
  new_BK = jnp.where(kept_BK, labels_BK, new_BK).astype(input_ids_BT.dtype)
  return _put(input_ids_BT, positions_BK, new_BK), positions_BK, labels_BK, chosen_BK.astype('f4')


def tile_spans(draws_BT, words_BT, breaks_BT):
  """Cuts each row into spans of words: [B, T] bool, True where a span begins.

  draws_BT: uniform in [0, 1), from which the length of a span that begins there follows. words_BT:
  where words begin. breaks_BT: where a span must end, see _breaks; a new span begins there. Since a
  geometric length has no memory, a word near a break is in the middle of a span as often as any
  other, but for the maximal length (measured: spans that begin at a random place before the break
  make the positions no more even and cut one span more).
  """
  ends = jnp.cumsum(SPAN_SHARES)[:-1]
  length_BT = 1 + jnp.sum(draws_BT[..., None] >= ends, axis=-1)

  def at_token(left_B, token):
    word_B, break_B, length_B = token
    begins_B = word_B & (break_B | (left_B == 0))
    return jnp.where(begins_B, length_B, left_B) - word_B, begins_B

  left_B = jnp.zeros_like(length_BT[:, 0])
  _, starts_TB = lax.scan(at_token, left_B, (words_BT.T, breaks_BT.T, length_BT.T), unroll=UNROLL)
  return starts_TB.T


def choose_units(order_BT, starts_BT, candidate_BT, wanted_B):
  """The reference's choice of whole words: [B, T] bool, True on the tokens of the units taken.

  A unit goes from its start to the next one or to a token that is no candidate. Units are taken in
  rising order_BT of their starts, equal ones from left to right, while they fit: a unit larger than
  what is still wanted is left out, and so are all behind it with the same order. So a row never has
  more than wanted_B tokens, but at times a few less. The words of a span are units with the same
  order, which cuts the last span where enough is chosen.
  """
  T = order_BT.shape[1]
  at_T = jnp.arange(T)
  ends_BT = jnp.where(starts_BT | ~candidate_BT, at_T, T)
  ends_BT = lax.cummin(ends_BT, axis=1, reverse=True)
  ends_BT = jnp.pad(ends_BT[:, 1:], ((0, 0), (0, 1)), constant_values=T)
  # A token that begins no unit is sorted last and never fits.
  size_BT = jnp.where(starts_BT, ends_BT - at_T, T + 1)
  turn_BT = jnp.argsort(jnp.where(starts_BT, order_BT, 2.0), axis=1)

  def at_turn(carry, unit):
    left_B, ended_B = carry
    size_B, order_B = unit
    fits_B = (size_B <= left_B) & (order_B != ended_B)
    ended_B = jnp.where(size_B > left_B, order_B, ended_B)
    return (left_B - fits_B * size_B, ended_B), fits_B

  units = [jnp.take_along_axis(x_BT, turn_BT, axis=1).T for x_BT in (size_BT, order_BT)]
  _, fits_TB = lax.scan(
    at_turn, (wanted_B, jnp.full_like(order_BT[:, 0], -1.0)), tuple(units), unroll=UNROLL
  )
  taken_BT = _put(jnp.zeros_like(starts_BT), turn_BT, fits_TB.T)
  return candidate_BT & jnp.take_along_axis(taken_BT, _last_true(starts_BT), axis=1)


def _breaks(candidate_BT, segment_ids_BT):
  """[B, T] bool: the token before is no candidate or of another example, so no unit spans both."""
  before = lambda x_BT: jnp.pad(x_BT[:, :-1], ((0, 0), (1, 0)))
  return ~before(candidate_BT) | (before(segment_ids_BT) != segment_ids_BT)


def _last_true(x_BT):
  """[B, T] index of the last True at or before each place; 0 where there is none."""
  return lax.cummax(jnp.where(x_BT, jnp.arange(x_BT.shape[1]), 0), axis=1)


def _ordinary_ids(key, shape, vocab_size, special_ids):
  """Uniform draws of ids that are not special: a draw is raised by the special ids up to it."""
  draws = jax.random.randint(key, shape, 0, vocab_size - len(special_ids))
  steps = jnp.sort(jnp.asarray(special_ids)) - jnp.arange(len(special_ids))
  return draws + jnp.sum(steps <= draws[..., None], axis=-1)


def _put(x_BT, index_BK, new_BK):
  """x_BT with new_BK put at the positions index_BK of each row."""
  return jax.vmap(lambda x, index, new: x.at[index].set(new))(x_BT, index_BK, new_BK)
