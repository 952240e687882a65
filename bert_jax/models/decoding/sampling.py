"""Generates text token by token, greedily or by sampling.

Pure functions, to be jitted by the caller, which know a model only as a function

  step(cache, ids_B, places_B) -> (logits_BV, cache)

that reads one token of each sequence and gives the logits of the next one (see
cache.one_token_steps). A cache is any tree of arrays [B, ...]. Prompts may differ in length.

B sequences, N tokens to be made at most, V vocabulary, T tokens of a row.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, nn

NONE = -1  # the id that means: no token

Step = Callable[[Any, Array, Array], tuple[Array, Any]]


@dataclasses.dataclass(frozen=True)
class Choice:
  """How the next token is chosen from its logits.
  temperature: the logits are divided by it, and a token is drawn from their softmax; 0: the
  likeliest token is taken. top_k: only the k likeliest tokens can be drawn; 0: all can. top_p: only
  the fewest likeliest tokens whose probabilities add up to p can be drawn, at least one (Holtzman
  et al. 2019). They are applied in this order, as in Hugging Face's library. stop_ids end a
  sequence; never_ids are not chosen."""

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  stop_ids: tuple[int, ...] = ()
  never_ids: tuple[int, ...] = ()

  def stops(self, ids: Array) -> Array:
    """Which of these tokens end their sequences."""
    return jnp.isin(ids, jnp.array(self.stop_ids or (NONE,), ids.dtype))

  def kept(self, logits_BV: Array) -> Array:
    """The logits after temperature, top_k and top_p; tokens that cannot be drawn have -inf."""
    logits_BV = logits_BV / self.temperature
    if 0 < self.top_k < logits_BV.shape[-1]:
      least_B1 = lax.top_k(logits_BV, self.top_k)[0][:, -1:]
      logits_BV = jnp.where(logits_BV < least_B1, -jnp.inf, logits_BV)
    if self.top_p < 1:
      order_BV = jnp.argsort(-logits_BV)
      sorted_BV = jnp.take_along_axis(nn.softmax(logits_BV), order_BV, axis=-1)
      before_BV = jnp.cumsum(sorted_BV, axis=-1) - sorted_BV
      keep_BV = (before_BV < self.top_p) | (jnp.arange(sorted_BV.shape[-1]) == 0)
      keep_BV = jnp.take_along_axis(keep_BV, jnp.argsort(order_BV), axis=-1)
      logits_BV = jnp.where(keep_BV, logits_BV, -jnp.inf)
    return logits_BV

  def choose(self, logits_BV: Array, keys_B: Array, number: int | Array) -> Array:
    """The next ids [B]. A draw depends only on the key of its sequence and the token's number."""
    logits_BV = logits_BV.at[:, jnp.array(self.never_ids, jnp.int32)].set(-jnp.inf)
    if self.temperature == 0:
      return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, number)
    draw = jax.vmap(jax.random.categorical)
    return draw(keys_B, self.kept(logits_BV)).astype(jnp.int32)


class Drawn(NamedTuple):
  """The state of a generation. ids [B, N]: the tokens so far, with a stop token as the last, and
  NONE after them. count: the number of tokens made. place [B]: place of the last token. scores [B]:
  the sum of the tokens' log probabilities. done [B]: has it ended?"""

  cache: Any
  keys: Array
  ids: Array
  count: Array
  place: Array
  scores: Array
  done: Array


def begin(
  cache: Any,
  logits_BV: Array,
  place_B: Array,
  keys_B: Array,
  choice: Choice,
  *,
  max_tokens: int,
  length: int,
) -> Drawn:
  """The Drawn with the first token of each sequence. logits_BV, place_B: for the first token.
  keys_B: a random key of each sequence. length: places that the model has; a sequence ends at the
  last one."""
  B = len(place_B)
  state = Drawn(
    cache,
    keys_B,
    ids=jnp.full((B, max_tokens), NONE, jnp.int32),
    count=jnp.int32(0),
    place=place_B - 1,
    scores=jnp.zeros(B),
    done=jnp.zeros(B, bool),
  )
  return _with_next(state, logits_BV, choice, length)


def _with_next(state, logits_BV, choice, length):
  """The Drawn with the next token of each sequence that is not done."""
  next_B = choice.choose(logits_BV, state.keys, state.count)
  logs_B = jnp.take_along_axis(nn.log_softmax(logits_BV), next_B[:, None], axis=-1)[:, 0]
  return state._replace(
    ids=state.ids.at[:, state.count].set(jnp.where(state.done, NONE, next_B)),
    count=state.count + 1,
    place=state.place + 1,
    scores=state.scores + jnp.where(state.done, 0, logs_B),
    done=state.done | choice.stops(next_B) | (state.place + 1 >= length),
  )


def advance(step: Step, state: Drawn, choice: Choice, *, length: int, upto: Any) -> Drawn:
  """The Drawn with `upto` tokens of each sequence, or with fewer if all have ended."""

  def body(state):
    last_B = lax.dynamic_index_in_dim(state.ids, state.count - 1, 1, keepdims=False)
    # Sequences that have ended are computed too, but _with_next adds no tokens to them.
    place_B = jnp.minimum(state.place, length - 1)
    logits_BV, cache = step(state.cache, jnp.maximum(last_B, 0), place_B)
    return _with_next(state._replace(cache=cache), logits_BV, choice, length)

  return lax.while_loop(lambda state: (state.count < upto) & ~state.done.all(), body, state)


def unmask(
  read: Callable[[Array], Array],
  ids_BT: Array,
  open_BN: Array,
  keys_B: Array,
  choice: Choice,
) -> tuple[Array, Array]:
  """Fills the masked positions open_BN with a masked model from left to right, one at a pass: (ids
  [B, N], scores [B]). read(ids_BT) -> logits_BNV at these positions. scores: the sum of the tokens'
  log probabilities when they were chosen. Other arguments: see begin."""
  B, N = open_BN.shape
  rows_B = jnp.arange(B)

  def body(number, state):
    ids_BT, scores_B = state
    logits_BV = read(ids_BT)[:, number]
    next_B = choice.choose(logits_BV, keys_B, number)
    ids_BT = ids_BT.at[rows_B, open_BN[:, number]].set(next_B)
    scores_B += nn.log_softmax(logits_BV)[rows_B, next_B]
    return ids_BT, scores_B

  ids_BT, scores_B = lax.fori_loop(0, N, body, (ids_BT.astype(jnp.int32), jnp.zeros(B)))
  return ids_BT[rows_B[:, None], open_BN], scores_B
