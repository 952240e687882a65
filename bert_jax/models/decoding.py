"""Text made token by token: greedily, by sampling, or by beam search.

Pure functions, to be jitted by the caller, which know a model only as a step function,

  step(cache, ids_B, places_B) -> (logits_BV, cache)

that reads one token of each sequence and gives the logits of the next one. A cache is any tree of
arrays with the sequences as their first axis. `of_encoder` makes such a step of a causal encoder,
whose cache holds the keys and values of the tokens before; it has a fixed length, so that all steps
are one compiled program. Every sequence has places of its own, so prompts may differ in length.

B sequences, K beams, N tokens to be made at most, V vocabulary, P tokens of the longest prompt.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, nn

from bert_jax.models.encoder import Encoder
from bert_jax.models.heads import MaskedLMHead

NONE = -1  # in place of an id: no token
LOWEST = -1e9  # the score of what is not to be chosen


@dataclasses.dataclass(frozen=True)
class Choice:
  """How the next token is chosen from its logits.
  temperature: the logits are divided by it, and a token is drawn from their softmax; with 0 the
  likeliest token is taken. top_k: only the k likeliest tokens can be drawn; 0: all can. top_p: only
  the fewest likeliest tokens whose probabilities add up to p can be drawn, at least one (Holtzman
  et al. 2019). repetition_penalty: the logits of tokens that the sequence already has are divided
  by it if positive, and multiplied by it if negative (CTRL, Keskar et al. 2019). As in Hugging
  Face's library, the penalty comes first, then temperature, top_k and top_p. stop_ids: tokens that
  end a sequence. never_ids: tokens that are not chosen."""

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  repetition_penalty: float = 1.0
  stop_ids: tuple[int, ...] = ()
  never_ids: tuple[int, ...] = ()

  def stops(self, ids):
    return jnp.isin(ids, jnp.array(self.stop_ids or (NONE,), ids.dtype))

  def penalised(self, logits_BV, seen_BV):
    logits_BV = logits_BV.at[:, jnp.array(self.never_ids, jnp.int32)].set(-jnp.inf)
    if self.repetition_penalty == 1:
      return logits_BV
    less = jnp.where(
      logits_BV > 0, logits_BV / self.repetition_penalty, logits_BV * self.repetition_penalty
    )
    return jnp.where(seen_BV, less, logits_BV)

  def kept(self, logits_BV):
    """The logits that a token is drawn from: others are -inf."""
    logits_BV = logits_BV / self.temperature
    if 0 < self.top_k < logits_BV.shape[-1]:
      least_B1 = lax.top_k(logits_BV, self.top_k)[0][:, -1:]
      logits_BV = jnp.where(logits_BV < least_B1, -jnp.inf, logits_BV)
    if self.top_p < 1:
      order_BV = jnp.argsort(-logits_BV, axis=-1)
      sorted_BV = jnp.take_along_axis(nn.softmax(logits_BV), order_BV, axis=-1)
      before_BV = jnp.cumsum(sorted_BV, axis=-1) - sorted_BV
      keep_BV = (before_BV < self.top_p) | (jnp.arange(sorted_BV.shape[-1]) == 0)
      keep_BV = jax.vmap(lambda keep, at: jnp.zeros_like(keep).at[at].set(keep))(keep_BV, order_BV)
      logits_BV = jnp.where(keep_BV, logits_BV, -jnp.inf)
    return logits_BV

  def choose(self, logits_BV, keys_B, number):
    """[B] ids. The draw of a sequence depends on its key and the number of the token alone."""
    if self.temperature == 0:
      return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, number)
    draw = jax.vmap(jax.random.categorical)
    return draw(keys_B, self.kept(logits_BV)).astype(jnp.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Drawn:
  """Sequences while they are made. ids [B, N]: the tokens so far, and NONE after them; a stop token
  is kept as the last. count: the number of tokens made. place [B]: of the last token. scores [B]:
  the sum of the log probabilities that the model gave to the tokens. done [B]: has the sequence
  ended? seen [B, V]: see begin."""

  cache: Any
  keys: jax.Array
  ids: jax.Array
  count: jax.Array
  place: jax.Array
  scores: jax.Array
  done: jax.Array
  seen: Any


def begin(cache, logits_BV, place_B, keys_B, choice, *, max_tokens, length, seen_BV=None):
  """The Drawn with the first token of each sequence. logits_BV, place_B: of that token. keys_B: a
  random key of each sequence. length: places that a model has; a token that can have none ends its
  sequence. seen_BV: the tokens in the prompts, for a repetition_penalty."""
  B = len(place_B)
  state = Drawn(
    cache,
    keys_B,
    jnp.full((B, max_tokens), NONE, jnp.int32),
    jnp.int32(0),
    place_B - 1,
    jnp.zeros(B),
    jnp.zeros(B, bool),
    () if choice.repetition_penalty == 1 else seen_BV,
  )
  return _with_next(state, logits_BV, choice, length)


def _with_next(state, logits_BV, choice, length):
  """The state with the next token of each sequence that is not done."""
  likely_BV = choice.penalised(logits_BV, state.seen)
  next_B = choice.choose(likely_BV, state.keys, state.count)
  logs_B = jnp.take_along_axis(nn.log_softmax(logits_BV), next_B[:, None], axis=-1)[:, 0]
  seen, rows = state.seen, jnp.arange(len(next_B))
  if choice.repetition_penalty != 1:
    seen = seen.at[rows, next_B].set(True)
  return dataclasses.replace(
    state,
    ids=state.ids.at[:, state.count].set(jnp.where(state.done, NONE, next_B)),
    count=state.count + 1,
    place=state.place + 1,
    scores=state.scores + jnp.where(state.done, 0, logs_B),
    done=state.done | choice.stops(next_B) | (state.place + 1 >= length),
    seen=seen,
  )


def advance(step, state, choice, *, length, upto):
  """The state with `upto` tokens of each sequence, or with fewer where all have ended."""

  def more(state):
    return (state.count < upto) & ~state.done.all()

  def body(state):
    last_B = lax.dynamic_index_in_dim(state.ids, state.count - 1, 1, keepdims=False)
    # Sequences that have ended are computed too, but _with_next adds no tokens to them.
    place_B = jnp.minimum(state.place, length - 1)
    logits_BV, cache = step(state.cache, jnp.maximum(last_B, 0), place_B)
    return _with_next(dataclasses.replace(state, cache=cache), logits_BV, choice, length)

  return lax.while_loop(more, body, state)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Beams:
  """The running beams of a search, best first, and the best sequences that have ended.
  scores, ended_scores [B, K]: the former are sums of log probabilities. open [B]: may a running
  beam still become better than the worst of those that have ended?"""

  cache: Any
  count: jax.Array
  place: jax.Array
  ids: jax.Array
  scores: jax.Array
  ended_ids: jax.Array
  ended_scores: jax.Array
  has_ended: jax.Array
  open: jax.Array
  seen: Any


def beam_search(
  step,
  cache,
  logits_BV,
  place_B,
  choice,
  *,
  beams,
  max_tokens,
  length,
  length_penalty=1.0,
  seen_BV=None,
):
  """(ids [B, N], scores [B]): the best sequence that a search with K beams comes to.
  The score of one with n tokens is the sum of its log probabilities / n^length_penalty, so higher
  penalties favour long ones. A search ends if its best running beam, ended now, would not be better
  than the worst of K ended sequences. All as Hugging Face's library does it, so that ids are the
  same. Of `choice`, only repetition_penalty, stop_ids and never_ids apply. Other arguments: see
  begin."""
  (B, V), K, N = logits_BV.shape, beams, max_tokens
  in_beams = lambda x: jnp.repeat(x, K, axis=0)
  more = max(2, 1 + len(choice.stop_ids)) * K  # among so many candidates, at least K do not end
  none_BKN = jnp.full((B, K, N), NONE, jnp.int32)
  lowest_BK, rows_B1 = jnp.full((B, K), LOWEST), jnp.arange(B)[:, None]

  def expand(state, logits_XV):
    logs_XV = choice.penalised(nn.log_softmax(logits_XV), state.seen)
    totals_BX = (logs_XV.reshape(B, K, V) + state.scores[..., None]).reshape(B, K * V)
    totals_BM, best_BM = lax.top_k(totals_BX, min(more, K * V))
    from_BM, next_BM = best_BM // V, (best_BM % V).astype(jnp.int32)
    ids_BMN = state.ids[rows_B1, from_BM].at[:, :, state.count].set(next_BM)
    count, place_B = state.count + 1, state.place + 1
    ends_BM = choice.stops(next_BM) | (count == N) | (place_B >= length)[:, None]
    # A sequence may end only among the best K candidates; the others replace those that end.
    just_BM = ends_BM & (jnp.arange(totals_BM.shape[1]) < K) & state.open[:, None]
    new_BM = jnp.where(just_BM, totals_BM / count**length_penalty, LOWEST)
    scores_BE = jnp.concatenate([state.ended_scores, new_BM], axis=1)
    ended_scores_BK, at_BK = lax.top_k(scores_BE, K)
    ended_BEN = jnp.concatenate([state.ended_ids, ids_BMN], axis=1)
    has_BK = jnp.concatenate([state.has_ended, just_BM], axis=1)[rows_B1, at_BK]
    scores_BK, on_BK = lax.top_k(jnp.where(ends_BM, totals_BM + LOWEST, totals_BM), K)
    worst_B = jnp.where(has_BK.all(axis=1), ended_scores_BK[:, -1], LOWEST)
    beam_X = (rows_B1 * K + from_BM[rows_B1, on_BK]).ravel()
    seen = state.seen
    if choice.repetition_penalty != 1:
      seen = seen[beam_X].at[jnp.arange(B * K), next_BM[rows_B1, on_BK].ravel()].set(True)
    return Beams(
      cache=jax.tree.map(lambda x: x[beam_X], state.cache),
      count=count,
      place=place_B,
      ids=ids_BMN[rows_B1, on_BK],
      scores=scores_BK,
      ended_ids=ended_BEN[rows_B1, at_BK],
      ended_scores=ended_scores_BK,
      has_ended=has_BK,
      open=state.open & (scores_BK[:, 0] / count**length_penalty > worst_B),
      seen=seen,
    )

  def body(state):
    last_X = lax.dynamic_index_in_dim(state.ids, state.count - 1, 2, keepdims=False).ravel()
    logits_XV, cache = step(state.cache, jnp.maximum(last_X, 0), in_beams(state.place))
    return expand(dataclasses.replace(state, cache=cache), logits_XV)

  state = Beams(
    cache=jax.tree.map(in_beams, cache),
    count=jnp.int32(0),
    place=place_B - 1,
    ids=none_BKN,
    scores=lowest_BK.at[:, 0].set(0),
    ended_ids=none_BKN,
    ended_scores=lowest_BK,
    has_ended=jnp.zeros((B, K), bool),
    open=jnp.ones(B, bool),
    seen=() if choice.repetition_penalty == 1 else in_beams(seen_BV),
  )
  state = expand(state, in_beams(logits_BV))
  state = lax.while_loop(lambda state: (state.count < N) & state.open.any(), body, state)
  return state.ended_ids[:, 0], state.ended_scores[:, 0]


def unmask(read, ids_BT, open_BN, keys_B, choice, *, surest=False, seen_BV=None):
  """(ids [B, N], scores [B]) of the tokens that a masked model puts at the positions open_BN.
  Each pass fills one of them, and the next pass reads it as a part of the text: from left to right
  or, if `surest`, the one at which a token has the highest probability. read(ids_BT) -> logits_BNV
  at these positions. scores: the sum of the log probabilities of the tokens when they were chosen.
  Other arguments: see begin."""
  (B, N), rows = open_BN.shape, jnp.arange(len(open_BN))

  def body(number, state):
    ids_BT, scores_B, filled_BN, seen = state
    logits_BNV = read(ids_BT)
    logs_BNV = nn.log_softmax(logits_BNV)
    best_BN = jnp.where(filled_BN, -jnp.inf, logs_BNV.max(axis=-1))
    at_B = jnp.argmax(best_BN, axis=1) if surest else jnp.full(B, number)
    next_B = choice.choose(choice.penalised(logits_BNV[rows, at_B], seen), keys_B, number)
    if choice.repetition_penalty != 1:
      seen = seen.at[rows, next_B].set(True)
    ids_BT = ids_BT.at[rows, open_BN[rows, at_B]].set(next_B)
    scores_B += logs_BNV[rows, at_B, next_B]
    return ids_BT, scores_B, filled_BN.at[rows, at_B].set(True), seen

  seen = () if choice.repetition_penalty == 1 else seen_BV
  state = ids_BT.astype(jnp.int32), jnp.zeros(B), jnp.zeros((B, N), bool), seen
  ids_BT, scores_B, *_ = lax.fori_loop(0, N, body, state)
  return ids_BT[rows[:, None], open_BN], scores_B


def of_encoder(config, params):
  """(prefill, step) of a causal encoder with its MLM head; params: those of 'encoder' and 'mlm'.
  prefill(ids_BP, lengths_B, length) -> (logits_BV, cache): reads the prompts, padded at the end,
  into a cache of `length` places; logits are those of the token after each."""
  # Steps of one token; and layers that share their weights have each a cache.
  scan = config.scan_layers or config.share_layers
  config = dataclasses.replace(
    config, attention_implementation='einsum', remat='none', scan_layers=scan
  )
  table_VE = params['encoder']['embeddings']['word_embeddings']['embedding']

  def logits(hidden_BTD):
    head = MaskedLMHead(config)
    return head.apply({'params': params.get('mlm', {})}, hidden_BTD, table_VE)[:, 0]

  def run(ids_BT, places_BT, segment_ids_BT, **cache):
    types_BT, variables = jnp.zeros_like(ids_BT), {'params': params['encoder']} | cache
    arrays = ids_BT, types_BT, places_BT, segment_ids_BT
    out, new = Encoder(config).apply(variables, *arrays, causal=True, mutable=['cache'])
    return out, new['cache']

  def prefill(ids_BP, lengths_B, length):
    places_BP = jnp.broadcast_to(jnp.arange(ids_BP.shape[1]), ids_BP.shape)
    real_BP = (places_BP < lengths_B[:, None]).astype(jnp.int32)
    hidden_BPD, cache = run(ids_BP, places_BP, real_BP)
    last_B11 = (lengths_B - 1)[:, None, None]
    return logits(jnp.take_along_axis(hidden_BPD, last_B11, axis=1)), grown(cache, length)

  def step(cache, ids_B, places_B):
    ids_B1 = ids_B[:, None]
    hidden_B1D, cache = run(ids_B1, places_B[:, None], jnp.ones_like(ids_B1), cache=cache)
    return logits(hidden_B1D), cache

  return prefill, step


def grown(cache, length):
  """A cache with `length` places for the keys and values of self-attention."""

  def grow(path, x):
    if path[-1].key not in ('key', 'value'):
      return x
    pads = [(0, 0)] * x.ndim
    pads[-3] = 0, length - x.shape[-3]
    return jnp.pad(x, pads)

  return jax.tree_util.tree_map_with_path(grow, cache)
