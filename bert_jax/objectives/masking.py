"""Masking: chooses the tokens that a masked language model predicts, and hides them.

Pure functions that run on the device inside the training step. A policy says which tokens are
chosen together: single tokens (Devlin et al. 2018), whole words (google-research/bert), spans of
words (SpanBERT, Joshi et al. 2020), or phrases and entities that the data marks (ERNIE, Sun et al.
2019). B batch, T tokens, K predictions.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bert_jax.corpus.units import ENTITY, PHRASE, WORD

# {policy: the bit of its units in unit_starts_BT; 0: each token is a unit}
POLICIES = {
  'token': 0,
  'whole_word': WORD,
  'span': WORD,
  'phrase': PHRASE,
  'entity': ENTITY,
}

# The shares of SpanBERT's span lengths (1.. words): geometric, cut off at SPAN_MAX; mean 3.8.
SPAN_P, SPAN_MAX = 0.2, 10
SPAN_SHARES = SPAN_P * (1 - SPAN_P) ** np.arange(SPAN_MAX) / (1 - (1 - SPAN_P) ** SPAN_MAX)

UNROLL = 8  # tokens in one iteration of a device loop: an iteration costs more than a token


def mask_tokens(
  rng: jax.Array,
  input_ids_BT: jax.Array,
  segment_ids_BT: jax.Array,
  unit_starts_BT: jax.Array | None = None,
  stage: int | jax.Array = -1,
  *,
  policies: Sequence[str],
  special_ids: Sequence[int],
  mask_id: int,
  vocab_size: int,
  masked_lm_prob: float,
  max_predictions: int,
  mask_share: float,
  random_share: float,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Chooses tokens to predict and hides most of them: (corrupted ids [B, T], positions [B, K],
  labels [B, K], weights [B, K], 0.0 for a slot without a prediction), K = min(max_predictions, T).
  policies: one of POLICIES for each stage of masking.policy. stage: its number, if there are more
  than one. unit_starts_BT: as corpus.units.Record.starts; the policy token needs none.

  In each row min(max_predictions, max(1, round(masked_lm_prob * real tokens))) tokens are wanted,
  none of them special or padding. Of these, mask_share become [MASK], random_share a piece drawn
  uniformly from the vocabulary without special_ids, and the rest stay (as google-research/bert, but
  there [UNK] may be chosen). This is drawn for each token, or once for a span, as in SpanBERT.
  """
  choose_key, action_key, random_key, span_key = jax.random.split(rng, 4)
  B, T = input_ids_BT.shape
  K = min(max_predictions, T)
  candidate_BT = (segment_ids_BT > 0) & ~jnp.isin(input_ids_BT, jnp.asarray(special_ids))
  # A table by length, since rounding on the device in float32 may differ from Python's.
  wanted = jnp.array([min(K, max(1, round(masked_lm_prob * length))) for length in range(T + 1)])
  wanted_B = wanted[jnp.sum(segment_ids_BT > 0, axis=1)]
  draw_BT = jax.random.uniform(choose_key, (B, T))  # decides in which order tokens are chosen

  def scores_by(policy):
    def scores():
      return _scores(
        policy, draw_BT, candidate_BT, segment_ids_BT, unit_starts_BT, wanted_B, span_key
      )

    return scores

  stage = 0 if len(policies) == 1 else stage
  if isinstance(stage, int):
    score_BT, leads_BT = scores_by(policies[stage])()
  else:
    score_BT, leads_BT = lax.switch(stage, [scores_by(policy) for policy in policies])
  score_BK, positions_BK = lax.top_k(score_BT, K)
  chosen_BK = (jnp.arange(K) < wanted_B[:, None]) & (score_BK >= 0)

  labels_BK = jnp.take_along_axis(input_ids_BT, positions_BK, axis=1)
  # top_k keeps equal scores in order from left to right, so a span's tokens follow its lead.
  lead_BK = last_true(jnp.take_along_axis(leads_BT, positions_BK, axis=1))
  action_BK = jnp.take_along_axis(jax.random.uniform(action_key, (B, K)), lead_BK, axis=1)
  random_BK = _ordinary_ids(random_key, (B, K), vocab_size, special_ids)
  kept_BK = ~chosen_BK | (action_BK >= mask_share + random_share)
  new_BK = jnp.where(action_BK < mask_share, mask_id, random_BK)
  new_BK = jnp.where(kept_BK, labels_BK, new_BK).astype(input_ids_BT.dtype)
  return put_at(input_ids_BT, positions_BK, new_BK), positions_BK, labels_BK, chosen_BK.astype('f4')


def _scores(policy, draw_BT, candidate_BT, segment_ids_BT, unit_starts_BT, wanted_B, span_key):
  """Scores tokens by a policy -> (score_BT, leads_BT). The wanted_B tokens with the highest scores
  are chosen, none with a negative score. A token shares its draw of [MASK], random or unchanged
  with the last True of leads_BT at or before it."""
  leads_BT = jnp.ones(draw_BT.shape, bool)
  turns_BT = draw_BT
  if policy == 'token':
    return jnp.where(candidate_BT, draw_BT, -1.0), leads_BT
  breaks_BT = _breaks(candidate_BT, segment_ids_BT)
  starts_BT = candidate_BT & (breaks_BT | (unit_starts_BT & POLICIES[policy] > 0))
  if policy == 'span':
    length_draw_BT = jax.random.uniform(span_key, draw_BT.shape)
    leads_BT = tile_spans(length_draw_BT, starts_BT, breaks_BT)
    # All words of a span have the same turn; the last span is cut, as in SpanBERT.
    turns_BT = jnp.take_along_axis(draw_BT, last_true(leads_BT), axis=1)
  taken_BT = choose_units(turns_BT, starts_BT, candidate_BT, wanted_B)
  return jnp.where(taken_BT, 1.0, -1.0), leads_BT


def tile_spans(draws_BT: jax.Array, words_BT: jax.Array, breaks_BT: jax.Array) -> jax.Array:
  """Cuts each row into spans of words: [B, T] bool, True where a span begins.

  draws_BT: uniform in [0, 1), sets the length of a span that begins there. words_BT: where words
  begin. breaks_BT: see _breaks; a span never crosses a break, and a new one begins there. A
  geometric length has no memory, so this favours no position in a span but for SPAN_MAX."""
  ends = jnp.cumsum(SPAN_SHARES)[:-1]
  length_BT = 1 + jnp.sum(draws_BT[..., None] >= ends, axis=-1)

  def at_token(left_B, token):
    word_B, break_B, length_B = token
    begins_B = word_B & (break_B | (left_B == 0))
    return jnp.where(begins_B, length_B, left_B) - word_B, begins_B

  left_B = jnp.zeros_like(length_BT[:, 0])
  tokens = words_BT.T, breaks_BT.T, length_BT.T
  _, starts_TB = lax.scan(at_token, left_B, tokens, unroll=UNROLL)
  return starts_TB.T


def choose_units(
  order_BT: jax.Array, starts_BT: jax.Array, candidate_BT: jax.Array, wanted_B: jax.Array
) -> jax.Array:
  """Chooses whole units, as BERT's released code does: [B, T] bool, True on their tokens.

  A unit reaches from its start to the next start or to a token that is no candidate. Units are
  taken in rising order_BT of their starts, equal ones (the words of a span) from left to right. A
  unit with more tokens than are still wanted is left out, and so are later ones of the same order:
  a row never has more than wanted_B tokens, but sometimes a few less."""
  T = order_BT.shape[1]
  at_T = jnp.arange(T)
  ends_BT = jnp.where(starts_BT | ~candidate_BT, at_T, T)
  ends_BT = lax.cummin(ends_BT, axis=1, reverse=True)
  ends_BT = jnp.pad(ends_BT[:, 1:], ((0, 0), (0, 1)), constant_values=T)
  # A token that starts no unit is sorted last and never fits.
  size_BT = jnp.where(starts_BT, ends_BT - at_T, T + 1)
  turn_BT = jnp.argsort(jnp.where(starts_BT, order_BT, 2.0), axis=1)

  def at_turn(carry, unit):
    left_B, ended_B = carry
    size_B, order_B = unit
    fits_B = (size_B <= left_B) & (order_B != ended_B)
    ended_B = jnp.where(fits_B, ended_B, order_B)
    return (left_B - fits_B * size_B, ended_B), fits_B

  sizes_TB = jnp.take_along_axis(size_BT, turn_BT, axis=1).T
  orders_TB = jnp.take_along_axis(order_BT, turn_BT, axis=1).T
  first = wanted_B, jnp.full_like(order_BT[:, 0], -1.0)
  _, fits_TB = lax.scan(at_turn, first, (sizes_TB, orders_TB), unroll=UNROLL)
  taken_BT = put_at(jnp.zeros_like(starts_BT), turn_BT, fits_TB.T)
  return candidate_BT & jnp.take_along_axis(taken_BT, last_true(starts_BT), axis=1)


def _breaks(candidate_BT, segment_ids_BT):
  """[B, T] bool: is the token before no candidate, or in another example, so that units end?"""
  one_before = (0, 0), (1, 0)
  segment_before_BT = jnp.pad(segment_ids_BT[:, :-1], one_before)
  candidate_before_BT = jnp.pad(candidate_BT[:, :-1], one_before)
  return ~candidate_before_BT | (segment_before_BT != segment_ids_BT)


def last_true(x_BT: jax.Array) -> jax.Array:
  """[B, T]: the index of the last True at or before each position; 0 where there is none."""
  return lax.cummax(jnp.where(x_BT, jnp.arange(x_BT.shape[1]), 0), axis=1)


def _ordinary_ids(key, shape, vocab_size, special_ids):
  """Draws ids uniformly among those that are not special: a draw n gives the n-th of them."""
  draws = jax.random.randint(key, shape, 0, vocab_size - len(special_ids))
  steps = jnp.sort(jnp.asarray(special_ids)) - jnp.arange(len(special_ids))
  return draws + jnp.sum(steps <= draws[..., None], axis=-1)


def put_at(x_BT: jax.Array, index_BK: jax.Array, new_BK: jax.Array) -> jax.Array:
  """Puts new_BK at the positions index_BK of each row of x_BT."""

  def put(x_T, index_K, new_K):
    return x_T.at[index_K].set(new_K)

  return jax.vmap(put)(x_BT, index_BK, new_BK)
