"""What an objective is: data contract, parameters, corruption, loss terms. One file for each."""

import abc

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.metrics import mean


class Objective(abc.ABC):
  """One way to train. Subclasses are frozen dataclasses; all methods are pure functions."""

  loss_weights: dict  # {term: weight}: the loss is the sum of weight * term's mean
  metrics: tuple  # names of everything an evaluation gives: terms and scores
  labels: tuple = ()  # what its classifier tells apart, in order

  @abc.abstractmethod
  def spec(self, batch_size):
    """The batch contract: {name: ShapeDtypeStruct}."""

  @abc.abstractmethod
  def init(self, rng):
    """Parameters, a plain nested dict."""

  def carry(self, batch_size):
    """What goes from each step to the next (Transformer-XL's memory), {name: ShapeDtypeStruct}.

    The leading axis is the batch: row b of step n + 1 continues row b of step n, and starts from
    zeros. Default: nothing.
    """
    del batch_size
    return {}

  def given(self, config):
    """A tree of fixed weights (a teacher), read before the run. Default: nothing."""
    del config
    return {}

  def prepare(self, batch, rng, step=None):
    """Corrupts a full batch on the device, before it is split for accumulation. Default: the batch
    as it is. step: the step of training; None in an evaluation."""
    del rng, step
    return batch

  def seen(self, batch):
    """{name: number}: counts of a batch that are added up over the run. Default: tokens."""
    return {'seen_tokens': jnp.sum(batch['segment_ids'] > 0, dtype=jnp.float32)}

  @abc.abstractmethod
  def terms(self, params, batch, rng, train, carry=None, given=None):
    """({name: Mean} of a prepared batch, the next carry).

    Means named in loss_weights are the loss, the others are metrics. Their weights may depend on
    the batch only, never on params: the step computes them ahead of the forward pass. Dropout is on
    with `train` alone; an evaluation has an rng too, to sample with.
    """

  def predict(self, params, batch, rng=None, carry=None, given=None):
    """{name: array [B, ...]} from which a task's Examples make answers. Default: nothing."""
    del params, batch, rng, carry, given
    return {}

  @abc.abstractmethod
  def flops(self, batch_size):
    """Floating-point operations of one forward pass of a full batch, matrix products only."""


def row_spec(batch_size, seq_length):
  """The four arrays every batch of rows has, [B, T] int32."""
  row = jax.ShapeDtypeStruct((batch_size, seq_length), jnp.int32)
  return dict.fromkeys(('input_ids', 'token_type_ids', 'position_ids', 'segment_ids'), row)


def slot_spec(batch_size, slots, **kinds):
  """Where the examples of each row start, and whatever else each has, [B, N]: {name: its type}.

  weights are 1 for an example and 0 for an empty slot.
  """
  kinds = {'cls_positions': jnp.int32, 'weights': jnp.float32} | kinds
  return {name: jax.ShapeDtypeStruct((batch_size, slots), kind) for name, kind in kinds.items()}


def encode(model, params, batch, rng=None, causal=False):
  """Hidden states [B, T, D] of the encoder; rng turns dropout on. causal: True, or [B] bool by row,
  if no token may see a later one."""
  return models.Encoder(model).apply(
    {'params': params},
    batch['input_ids'],
    batch['token_type_ids'],
    batch['position_ids'],
    batch['segment_ids'],
    deterministic=rng is None,
    causal=causal,
    rngs={} if rng is None else {'dropout': rng},
  )


def pooled_logits(model, head, params, batch, rng=None):
  """head over the pooled [CLS] of each example, [B, N, outputs]; rng turns dropout on."""
  hidden_key, head_key = (None, None) if rng is None else jax.random.split(rng)
  hidden_BTD = encode(model, params['encoder'], batch, hidden_key)
  pooled_BND = models.Pooler(model).apply(
    {'params': params['pooler']}, models.gather_positions(hidden_BTD, batch['cls_positions'])
  )
  return head.apply(
    {'params': params['classifier']},
    pooled_BND,
    rng is None,
    rngs={} if rng is None else {'dropout': head_key},
  )


@jax.named_scope('loss')
def label_terms(name, logits, labels, weights):
  """{name: cross-entropy in nats, name_accuracy}: logits [..., C], labels and weights [...].

  A hit is a label whose logit no other reaches (a tie is a miss). The largest of the others serves
  both: XLA takes it where logits are made, and no pass over them is left but the exponentials'.
  """
  gold = jnp.take_along_axis(logits, labels[..., None], axis=-1)
  is_gold = jnp.arange(logits.shape[-1]) == labels[..., None]
  others = jnp.max(jnp.where(is_gold, -jnp.inf, logits), axis=-1, keepdims=True)
  top = jax.lax.stop_gradient(jnp.maximum(gold, others))
  nats = jnp.log(jnp.sum(jnp.exp(logits - top), axis=-1)) + (top - gold)[..., 0]
  hits = (gold > others)[..., 0].astype(jnp.float32)
  return {name: mean(nats, weights), f'{name}_accuracy': mean(hits, weights)}
