"""Sequence to sequence: the target, token by token, from the source and the target so far.

Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762): cross-entropy of each target token, with
label smoothing. Denoising (BART, Lewis et al. 2019) does so with a corpus: the target is a text,
and the source is this text with spans replaced by masks (infilling.py). A row holds several pairs;
on both sides the tokens of a pair have the same segment id, which attention does not cross.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.metrics import Mean, mean
from bert_jax.models import encoder_decoder
from bert_jax.models.decoding.beam_search import beam_search
from bert_jax.models.tokens import Tokens
from bert_jax.objectives import infilling, losses
from bert_jax.objectives.base import Batch, Key, Params, Spec, Terms
from bert_jax.objectives.encode import apply, encode, init_words, next_tokens, row_spec, two_keys
from bert_jax.objectives.examples import ExampleRows
from bert_jax.timeline import Moment

# The arrays of the target side of a row.
TARGET = 'target_ids', 'target_labels', 'target_position_ids', 'target_segment_ids'
MORE = 50  # a target may have so many tokens more than its source
UNLIKELY = -1e4  # the logit of a word that may not follow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(ExampleRows):
  """Learns to write a target text for each source text.

  target_length: tokens of the target side of a row, whose arrays [B, target_length] are TARGET
  (labels: the token after each).
  smoothing: the share of the target distribution that is spread evenly over all words (Szegedy et
  al. 2015, https://arxiv.org/abs/1512.00567); the term `translation_nats` is the loss without it.
  beams: beams of the search in an evaluation, which writes a target for each source; 0: no search.
  length_penalty, early_stopping: see beam_search.py.
  longest: the most tokens that are written; begin_id stands before them, end_id ends them."""

  target_length: int
  smoothing: float = 0.0
  beams: int = 0
  length_penalty: float = 1.0
  early_stopping: bool = False
  longest: int = 0
  begin_id: int = 0
  end_id: int = 0

  name = 'translation'

  @property
  def loss_weights(self) -> dict[str, float]:
    return {self.name: 1.0}

  @property
  def metrics(self) -> tuple[str, ...]:
    return self.name, f'{self.name}_accuracy', f'{self.name}_nats', *self.scores

  def spec(self, batch_size: int) -> Spec:
    side = jax.ShapeDtypeStruct((batch_size, self.target_length), jnp.int32)
    return super().spec(batch_size) | dict.fromkeys(TARGET, side)

  def limits(self, vocab_size: int) -> dict[str, int]:
    limits = super().limits(vocab_size)
    limits['target_ids'] = limits['target_labels'] = limits['input_ids']
    if 'position_ids' in limits:
      limits['target_position_ids'] = limits['position_ids']
    return limits

  def counts(self, batch: Batch) -> dict[str, jax.Array]:
    target = jnp.sum(batch['target_segment_ids'] > 0, dtype=jnp.float32)
    return super().counts(batch) | {'seen_target_tokens': target}

  def init(self, rng: jax.Array) -> Params:
    towers_key, head_key = jax.random.split(rng)
    params = encoder_decoder.init(self.model, towers_key)
    return params | init_words(self.model, head_key, params['encoder'])

  def context(self, params: Params, batch: Batch, rng: Key = None) -> tuple[jax.Array, Tokens]:
    """The context of the decoder: the encoder's vectors [B, S, D], and their Tokens."""
    return encode(self.model, params['encoder'], batch, rng), Tokens(batch['segment_ids'])

  def hidden(self, params: Params, batch: Batch, rng: Key = None) -> jax.Array:
    """The decoder's hidden states [B, T, D]; rng turns dropout on."""
    encoder_key, decoder_key = two_keys(rng)
    return apply(
      encoder_decoder.Decoder(self.model),
      encoder_decoder.with_words(params),
      batch['target_ids'],
      batch['target_position_ids'],
      batch['target_segment_ids'],
      self.context(params, batch, encoder_key),
      rng=decoder_key,
    )

  def logits(self, params: Params, batch: Batch, rng: Key = None) -> jax.Array:
    """The logits [B, T, V] of the token after each target token."""
    return models.word_logits(self.model, params, self.hidden(params, batch, rng))

  def terms(
    self, params: Any, batch: Batch, rng: Key, train: bool, carry: Any = None, constants: Any = None
  ) -> Terms:
    hidden_BTD = self.hidden(params, batch, rng if train else None)
    weights_BT = (batch['target_segment_ids'] > 0).astype(jnp.float32)

    def nats(logits_BKV, labels_BK):
      flat_BK = losses.flat_nats(logits_BKV, self.model.vocab_size)
      return *losses.label_nats(logits_BKV, labels_BK), flat_BK

    nats_BT, hits_BT, flat_BT = losses.nats_in_chunks(
      self.model, params, hidden_BTD, batch['target_labels'], nats
    )
    loss_BT = (1 - self.smoothing) * nats_BT + self.smoothing * flat_BT
    terms = {
      self.name: mean(loss_BT, weights_BT),
      f'{self.name}_accuracy': mean(hits_BT, weights_BT),
      f'{self.name}_nats': mean(nats_BT, weights_BT),
    }
    return terms, carry

  def predict(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
    """The targets that a beam search writes: `written` [B, N, longest] ids, NONE after [SEP], and
    their `scores` [B, N]. The examples of a row are written one after the other."""
    if not self.beams:
      return {}
    hidden_BSD, _ = self.context(params, batch)
    ids_BN = batch['example_ids']

    def write_one(n):
      return self.written(params, hidden_BSD, batch['segment_ids'] == n + 1)

    written_NBT, scores_NB = jax.lax.map(write_one, jnp.arange(ids_BN.shape[1]))
    return {
      'written': written_NBT.swapaxes(0, 1),
      'scores': scores_NB.T,
      'example_ids': ids_BN,
    }

  def written(
    self, params: Params, hidden_BSD: jax.Array, is_source_BS: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Writes a target for one source a row: (ids [B, longest], scores [B]). A target has at most
    MORE tokens more than its source, as in Vaswani et al.; without a source it is empty."""
    begin_B1 = jnp.full((len(hidden_BSD), 1), self.begin_id)
    context = hidden_BSD, Tokens(is_source_BS.astype(jnp.int32))
    longest_B = jnp.sum(is_source_BS, axis=1)
    longest_B = jnp.where(longest_B > 0, longest_B + MORE, 0)
    logits_BV, cache, step = encoder_decoder.prefilled(
      self.model, params, context, begin_B1, length=self.longest, copies=self.beams
    )

    def ending(logits_XV, is_over_X):
      is_end_V = jnp.arange(logits_XV.shape[1]) == self.end_id
      return jnp.where(is_over_X[:, None] & ~is_end_V, UNLIKELY, logits_XV)

    def bounded(cache, ids_X, places_X):
      logits_XV, cache = step(cache, ids_X, places_X)
      return ending(logits_XV, places_X >= jnp.repeat(longest_B, self.beams)), cache

    return beam_search(
      bounded,
      cache,
      ending(logits_BV, longest_B == 0),
      jnp.ones(len(hidden_BSD), jnp.int32),
      end_id=self.end_id,
      beams=self.beams,
      max_tokens=self.longest,
      length=self.longest,
      length_penalty=self.length_penalty,
      early_stopping=self.early_stopping,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoising(Translation):
  """Learns to restore a text whose spans are masked. infilling: arguments of infilling.infill. The
  metric `masked` is the share of hidden tokens."""

  infilling: dict[str, Any]

  name = 'denoising'

  @property
  def metrics(self) -> tuple[str, ...]:
    return *super().metrics, 'masked'

  def spec(self, batch_size: int) -> Spec:
    return row_spec(batch_size, self.seq_length)

  def prepare(self, batch: Batch, rng: jax.Array, moment: Moment) -> Batch:
    ids_BT, segments_BT = batch['input_ids'], batch['segment_ids']
    labels_BT, weights_BT = next_tokens(batch)
    return {
      **batch,
      'target_ids': ids_BT,
      'target_labels': labels_BT,
      'target_position_ids': batch['position_ids'],
      'target_segment_ids': jnp.where(weights_BT > 0, segments_BT, 0),
      **infilling.infill(rng, ids_BT, segments_BT, **self.infilling),
    }

  def terms(
    self, params: Any, batch: Batch, rng: Key, train: bool, carry: Any = None, constants: Any = None
  ) -> Terms:
    terms, carry = super().terms(params, batch, rng, train, carry, constants)
    hidden = jnp.sum(batch['hidden'], dtype=jnp.float32)
    ordinary = jnp.sum(batch['ordinary'], dtype=jnp.float32)
    return terms | {'masked': Mean(hidden, ordinary)}, carry
