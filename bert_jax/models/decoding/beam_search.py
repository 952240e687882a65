"""Beam search, as in Hugging Face's library, so that ids are the same.

B sequences, K beams of each, X beams in all, M candidates of each, N tokens at most, V vocabulary.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, nn

from bert_jax.models.decoding.sampling import NONE, Step

LOWEST = -1e9  # the score of a sequence that must not be chosen


class Beams(NamedTuple):
  """The running beams of a search, best first, and the best sequences that have ended.
  scores, ended_scores [B, K]: scores are sums of log probabilities. open [B]: may a running beam
  still become better than the worst ended sequence?"""

  cache: Any
  count: Array
  place: Array
  ids: Array
  scores: Array
  ended_ids: Array
  ended_scores: Array
  has_ended: Array
  open: Array


def beam_search(
  step: Step,
  cache: Any,
  logits_BV: Array,
  place_B: Array,
  *,
  end_id: int,
  beams: int,
  max_tokens: int,
  length: int,
  length_penalty: float = 1.0,
  early_stopping: bool = False,
) -> tuple[Array, Array]:
  """The best sequence that a search with K beams finds: (ids [B, N], scores [B]).
  The score of n tokens is the sum of their log probabilities / n^length_penalty. A search ends if
  its best running beam, ended now, would not be better than the worst of K ended sequences; with
  early_stopping, if there are K. end_id: ends a sequence. Other arguments: see sampling.begin."""
  B, K, N = len(logits_BV), beams, max_tokens

  def in_beams(x):
    return jnp.repeat(x, K, axis=0)

  none_BKN = jnp.full((B, K, N), NONE, jnp.int32)
  lowest_BK = jnp.full((B, K), LOWEST)
  expand = functools.partial(
    expanded,
    end_id=end_id,
    length=length,
    penalty=length_penalty,
    early_stopping=early_stopping,
  )

  def body(state):
    last_X = lax.dynamic_index_in_dim(state.ids, state.count - 1, 2, keepdims=False).ravel()
    logits_XV, cache = step(state.cache, jnp.maximum(last_X, 0), in_beams(state.place))
    return expand(state._replace(cache=cache), logits_XV)

  start = Beams(
    jax.tree.map(in_beams, cache),
    count=jnp.int32(0),
    place=place_B - 1,
    ids=none_BKN,
    scores=lowest_BK.at[:, 0].set(0),
    ended_ids=none_BKN,
    ended_scores=lowest_BK,
    has_ended=jnp.zeros((B, K), bool),
    open=jnp.ones(B, bool),
  )
  state = expand(start, in_beams(logits_BV))
  state = lax.while_loop(lambda state: (state.count < N) & state.open.any(), body, state)
  return state.ended_ids[:, 0], state.ended_scores[:, 0]


def expanded(
  state: Beams,
  logits_XV: Array,
  end_id: int,
  length: int,
  penalty: float,
  early_stopping: bool,
) -> Beams:
  """The Beams after one more token. penalty: length_penalty of beam_search."""
  B, K, N = state.ids.shape
  V = logits_XV.shape[-1]
  rows_B1 = jnp.arange(B)[:, None]
  # The best continuations: among 2 K candidates at least K do not end.
  totals_BKV = nn.log_softmax(logits_XV).reshape(B, K, V) + state.scores[..., None]
  totals_BM, best_BM = lax.top_k(totals_BKV.reshape(B, K * V), 2 * K)
  from_BM = best_BM // V
  next_BM = (best_BM % V).astype(jnp.int32)
  ids_BMN = state.ids[rows_B1, from_BM].at[:, :, state.count].set(next_BM)
  count = state.count + 1
  place_B = state.place + 1
  ends_BM = (next_BM == end_id) | (count == N) | (place_B >= length)[:, None]
  # A sequence may end only among the best K candidates; the others replace those that end.
  just_BM = ends_BM & (jnp.arange(totals_BM.shape[1]) < K) & state.open[:, None]
  new_BM = jnp.where(just_BM, totals_BM / count**penalty, LOWEST)
  scores_BE = jnp.concatenate([state.ended_scores, new_BM], axis=1)
  ended_scores_BK, at_BK = lax.top_k(scores_BE, K)
  ended_BEN = jnp.concatenate([state.ended_ids, ids_BMN], axis=1)
  has_BE = jnp.concatenate([state.has_ended, just_BM], axis=1)
  has_BK = has_BE[rows_B1, at_BK]
  # The beams that go on: the best K that do not end.
  scores_BK, on_BK = lax.top_k(jnp.where(ends_BM, totals_BM + LOWEST, totals_BM), K)
  beam_X = (rows_B1 * K + from_BM[rows_B1, on_BK]).ravel()
  enough_B = has_BK.all(axis=1)
  worst_B = jnp.where(enough_B, ended_scores_BK[:, -1], LOWEST)
  open_B = state.open & ~(enough_B & early_stopping)
  return Beams(
    cache=jax.tree.map(lambda x: x[beam_X], state.cache),
    count=count,
    place=place_B,
    ids=ids_BMN[rows_B1, on_BK],
    scores=scores_BK,
    ended_ids=ended_BEN[rows_B1, at_BK],
    ended_scores=ended_scores_BK,
    has_ended=has_BK,
    open=open_B & (scores_BK[:, 0] / count**penalty > worst_B),
  )
