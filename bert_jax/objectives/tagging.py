"""A tag for each token of a row: one dense layer over the hidden states (BERT, 5.3; no CRF).

B batch, T tokens, N examples in a row, D hidden, C tags.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.metrics import Mean
from bert_jax.objectives.base import Batch, Spec
from bert_jax.objectives.examples import LabelledExamples
from bert_jax.objectives.losses import label_terms


@dataclasses.dataclass(frozen=True)
class Tagging(LabelledExamples):
  """Predicts a tag for tokens. labels: the tags, in order. `tags` [B, T] of a batch are 1 + the
  number of the tag to predict, or 0 where there is none."""

  labels: tuple[str, ...]  # pyrefly: ignore[bad-override] (it is never set)

  of_tokens = True
  beside = ('example_ids', 'cls_positions')

  @property
  def metrics(self) -> tuple[str, ...]:
    return 'cross_entropy', 'token_accuracy', *self.scores

  def spec(self, batch_size: int) -> Spec:
    out = super().spec(batch_size)
    return out | {'tags': out['input_ids']}

  def logit_terms(self, logits: jax.Array, batch: Batch) -> dict[str, Mean]:
    labels_BT = jnp.maximum(batch['tags'] - 1, 0)
    _, weights_BT = self.softmaxes(logits, batch)
    return label_terms('cross_entropy', logits, labels_BT, weights_BT, 'token_accuracy')

  def softmaxes(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    return logits, (batch['tags'] > 0).astype(jnp.float32)
