"""Extractive question answering: where in a text the answer begins and ends (BERT, 4.2).

Each token has two logits, for the start and for the end. Each softmax runs over the tokens of one
example, question and text, of the N in a row of T tokens. B batch.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.metrics import Mean, mean
from bert_jax.models import pooling
from bert_jax.objectives.base import Batch, Key, Params
from bert_jax.objectives.encode import apply, encode
from bert_jax.objectives.examples import LabelledExamples

# Further scores where questions may have no answer.
UNANSWERABLE = (
  'HasAns_exact',
  'HasAns_f1',
  'NoAns_exact',
  'NoAns_f1',
  'best_exact',
  'best_exact_thresh',
  'best_f1',
  'best_f1_thresh',
)
OUTSIDE = -1e9  # the logit of a token outside of an example; an empty slot stays finite


@dataclasses.dataclass(frozen=True)
class QuestionAnswering(LabelledExamples):
  """Predicts where answers begin and end. unanswerable: questions may have no answer (SQuAD 2.0),
  which then begins and ends at [CLS]; there are more scores."""

  unanswerable: bool = False

  part, of_tokens, outputs = 'span', True, 2
  kinds = {'start_positions': jnp.int32, 'end_positions': jnp.int32}
  beside = ('example_ids', 'cls_positions')

  @property
  def metrics(self) -> tuple[str, ...]:
    usual = 'cross_entropy', 'exact', 'f1'
    return usual + UNANSWERABLE if self.unanswerable else usual

  @property
  def head_dropout(self) -> float:
    return self.model.span_dropout_prob

  def logits(self, params: Params, batch: Batch, rng: Key = None) -> jax.Array:
    """Logits [B, T, 2] float32 of start and end; rng turns dropout on."""
    if self.head_dropout:
      return super().logits(params, batch, rng)
    hidden_BTD = encode(self.model, params['encoder'], batch, rng)
    return apply(self.head, params['span'], self.inputs(params, batch, hidden_BTD))

  def logit_terms(self, logits: jax.Array, batch: Batch) -> dict[str, Mean]:
    inside_BNT = self._inside(batch)

    def nats(logits_BT, positions_BN):
      """Of each example's position among its tokens, [B, N]."""
      logits_BNT = jnp.where(inside_BNT, logits_BT[:, None], OUTSIDE)
      gold_BN = jnp.take_along_axis(logits_BT, positions_BN, axis=1)
      return jax.nn.logsumexp(logits_BNT, axis=-1) - gold_BN

    start_BN = nats(logits[..., 0], batch['start_positions'])
    end_BN = nats(logits[..., 1], batch['end_positions'])
    return {'cross_entropy': mean((start_BN + end_BN) / 2, batch['weights'])}

  def softmaxes(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Logits [B, N, 2, T] of the start and the end of each example over its tokens, and weights."""
    logits_B12T = jnp.moveaxis(logits, -1, 1)[:, None]
    logits_BN2T = jnp.where(self._inside(batch)[:, :, None], logits_B12T, OUTSIDE)
    return logits_BN2T, jnp.broadcast_to(batch['weights'][..., None], logits_BN2T.shape[:-1])

  def _inside(self, batch):
    """[B, N, T] bool: is the token in the example?"""
    return pooling.tokens_of_slots(batch['segment_ids'], self.examples_per_row)

  def predict(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
    """start_logits and end_logits [B, T], example_ids and cls_positions."""
    out = super().predict(params, batch)
    logits_BT2 = out.pop('logits')
    return out | {'start_logits': logits_BT2[..., 0], 'end_logits': logits_BT2[..., 1]}
