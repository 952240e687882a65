"""Losses, per prediction in nats and as weighted means.

B batch, T tokens, D hidden size, C classes, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.metrics import Mean, mean

ALIKE = '_alike'  # how a term of share_equal_to_first ends
CHUNK = 64  # the most tokens of each row that have logits of all words at a time


def nats_in_chunks(
  model: models.ModelConfig,
  params: Mapping[str, Any],
  hidden_BTD: jax.Array,
  labels_BT: jax.Array,
  nats: Callable[..., tuple[jax.Array, ...]] | None = None,
) -> tuple[jax.Array, ...]:
  """(cross-entropy in nats [B, T], hits [B, T]) of labels under the MLM head, in chunks of tokens,
  to save memory; the logits are computed again for the gradient. nats: what takes the place of
  label_nats: a function of logits [B, t, V] and labels [B, t] that gives arrays [B, t]."""
  B, T = labels_BT.shape
  # Rows shorter than 4 * CHUNK are cut into 4, so that they save memory, too.
  wanted = max(4, math.ceil(T / CHUNK))
  size = math.ceil(T / wanted)  # tokens in a chunk
  number = math.ceil(T / size)  # chunks; at most `wanted`, since the size is rounded up
  padding = number * size - T

  def chunks(x):
    """[B, T, ..] -> [number, B, size, ..], padded at the end."""
    x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(B, number, size, *x.shape[2:]).swapaxes(0, 1)

  def rows(x):
    """[number, B, size] -> [B, T], the inverse of chunks."""
    return x.swapaxes(0, 1).reshape(B, number * size)[:, :T]

  @jax.checkpoint
  def in_chunk(chunk):
    hidden_BtD, labels_Bt = chunk
    logits_BtV = models.word_logits(model, params, hidden_BtD)
    return (nats or label_nats)(logits_BtV, labels_Bt)

  outputs = jax.lax.map(in_chunk, (chunks(hidden_BTD), chunks(labels_BT)))
  return tuple(rows(x) for x in outputs)


@jax.named_scope('loss')
def label_terms(
  name: str, logits: jax.Array, labels: jax.Array, weights: jax.Array, accuracy: str = ''
) -> dict[str, Mean]:
  """The Means {name: cross-entropy in nats, accuracy or name_accuracy} of logits [..., C]."""
  nats, hits = label_nats(logits, labels)
  return {name: mean(nats, weights), accuracy or f'{name}_accuracy': mean(hits, weights)}


def label_nats(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(cross-entropy in nats, 1.0 where the label is hit), each [...], of logits [..., C]. A label is
  hit if its logit is above all others (a tie is a miss). The largest of the others serves both
  terms: XLA computes it while it makes the logits."""
  gold = jnp.take_along_axis(logits, labels[..., None], axis=-1)
  is_gold = jnp.arange(logits.shape[-1]) == labels[..., None]
  others = jnp.max(jnp.where(is_gold, -jnp.inf, logits), axis=-1, keepdims=True)
  top = jax.lax.stop_gradient(jnp.maximum(gold, others))
  nats = jnp.log(jnp.sum(jnp.exp(logits - top), axis=-1)) + (top - gold)[..., 0]
  return nats, (gold > others)[..., 0].astype(jnp.float32)


def share_equal_to_first(name: str, answers: jax.Array, weights: jax.Array) -> dict[str, Mean]:
  """{name_alike: the share of the answers that equal the first answer of the batch}; the first one
  itself is not counted. If the share is 1 in all batches, a model gives the same answer everywhere,
  and an evaluation says so. answers, weights: [...]; weight 0: not an answer."""
  answers = answers.ravel()
  counts = weights.ravel() > 0
  first = jnp.argmax(counts)
  others = counts.at[first].set(False).astype(jnp.float32)
  return {f'{name}{ALIKE}': mean(answers == answers[first], others)}


def flat_nats(logits_BKV: jax.Array, words: int) -> jax.Array:
  """The mean of -log p over all words, [B, K]. Rows of the table without a word do not count."""
  is_word_V = jnp.arange(logits_BKV.shape[-1]) < words
  total_BK = jax.nn.logsumexp(logits_BKV, axis=-1)
  sum_BK = jnp.sum(jnp.where(is_word_V, logits_BKV, 0), axis=-1)
  return total_BK - sum_BK / words
