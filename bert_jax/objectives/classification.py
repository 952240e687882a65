"""Classification or regression of whole texts: one dense layer over a pooled [CLS] (BERT, 3.2), or
over the mean of all tokens."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax

from bert_jax import models
from bert_jax.metrics import Mean, mean
from bert_jax.models import pooling
from bert_jax.objectives import encode as shared
from bert_jax.objectives.base import Batch, Key, Params, Spec
from bert_jax.objectives.examples import LabelledExamples
from bert_jax.objectives.losses import label_terms


@dataclasses.dataclass(frozen=True)
class Classification(LabelledExamples):
  """Classifies texts, or regresses a number.

  labels: the classes in order; empty for regression.
  multi_label: a text may have any number of them.
  class_weights: of each label, or (): factors of the loss of a text with this label; with
  multi_label, of the loss of this label.
  pooling: 'cls', 'mean': the mean of the hidden states of a text, without a pooler, 'pooled_mean':
  their mean through the pooler (ModernBERT), or 'late_mean': the mean of each through it
  (EuroBERT).
  sigmoid: numbers are the sigmoid of what the head gives.
  prior: of numbers their mean and scale: the head predicts standardized numbers, and so they are in
  the loss; in answers and in the metric they have their units. With sigmoid there are no units."""

  labels: tuple[str, ...]  # pyrefly: ignore[bad-override] (it is never set)
  multi_label: bool = False
  class_weights: tuple[float, ...] = ()
  pooling: str = 'cls'
  sigmoid: bool = False

  answer_fields = ('multi_label',)

  @property
  def term(self) -> str:
    """The name of the loss of labels."""
    return 'squared_error' if self.regression else 'cross_entropy'

  @property
  def loss_weights(self) -> dict[str, float]:
    return {self.term: 1 / self.units[1] ** 2}

  @property
  def units(self) -> tuple[float, ...]:
    """(mean, scale) of numbers, with which those that the head predicts become answers."""
    has_units = self.regression and self.prior and not self.sigmoid
    return self.prior if has_units else (0.0, 1.0)

  @property
  def first_logits(self) -> tuple[float, ...]:
    """The logits of the shares of the labels, if texts count by their class weights."""
    if self.regression:
      return ()
    if self.multi_label:
      return tuple(math.log(share / (1 - share)) for share in self.prior)
    weights = self.class_weights or (1.0,) * len(self.prior)
    return tuple(math.log(share * weight) for share, weight in zip(self.prior, weights))

  def exported(self, params: Params) -> Params:
    return self._rescaled(params, *self.units)

  def adopted(self, params: Params) -> Params:
    mean, scale = self.units
    return self._rescaled(params, -mean / scale, 1 / scale)

  def _rescaled(self, params, mean, scale):
    """Parameters whose head gives x * scale + mean where it gave x."""
    if (mean, scale) == (0, 1) or self.part not in params:
      return params
    dense = params[self.part]['dense']
    rescaled = {
      'kernel': dense['kernel'] * scale,
      'bias': dense['bias'] * scale + mean,
    }
    return params | {self.part: {'dense': rescaled}}

  @property
  def regression(self) -> bool:
    return not self.labels

  @property
  def metrics(self) -> tuple[str, ...]:
    terms = tuple(self.loss_weights)
    if self.regression:
      return *terms, 'mean_absolute_error', 'pearson', 'spearman'
    if self.multi_label:
      return *terms, 'micro_f1', 'macro_f1', 'subset_accuracy'
    f1 = ('f1',) if len(self.labels) == 2 else ()
    return *terms, 'accuracy', *f1, 'macro_f1', 'matthews'

  def spec(self, batch_size: int) -> Spec:
    out = super().spec(batch_size)
    slots = out['example_ids']
    if self.multi_label:
      out['labels'] = jax.ShapeDtypeStruct((*slots.shape, len(self.labels)), jnp.float32)
    elif self.regression:
      out['labels'] = jax.ShapeDtypeStruct(slots.shape, jnp.float32)
    else:
      out['labels'] = slots
    return out

  @property
  def has_pooler(self) -> bool:
    return self.pooling != 'mean'

  def inputs(self, params: Params, batch: Batch, hidden_BTD: jax.Array) -> jax.Array:
    if self.pooling == 'cls':
      return super().inputs(params, batch, hidden_BTD)
    is_in_BNT = pooling.tokens_of_examples(batch['segment_ids'], batch['cls_positions'])

    def pooled(x):
      return shared.apply(models.Pooler(self.model), params.get('pooler', {}), x)

    if self.pooling == 'late_mean':
      return pooling.means(pooled(hidden_BTD), is_in_BNT)
    x_BND = pooling.means(hidden_BTD, is_in_BNT)
    return pooled(x_BND) if self.pooling == 'pooled_mean' else x_BND

  def logits(self, params: Params, batch: Batch, rng: Key = None) -> jax.Array:
    """The logits [B, N, C]; of regression the numbers [B, N, 1], in their units."""
    logits = super().logits(params, batch, rng)
    mean, scale = self.units
    if self.sigmoid:
      return jax.nn.sigmoid(logits)
    if (mean, scale) == (0, 1):
      return logits
    return logits * scale + mean

  def logit_terms(self, logits: jax.Array, batch: Batch) -> dict[str, Mean]:
    labels = batch['labels']
    weights_BN = batch['weights']
    if self.regression:
      squares_BN = jnp.square(logits[..., 0] - labels)
      return {self.term: mean(squares_BN, weights_BN)}
    weights_C = jnp.asarray(self.class_weights or (1.0,) * len(self.labels))
    if self.multi_label:
      nats_BNC = optax.sigmoid_binary_cross_entropy(logits, labels) * weights_C
      return {self.term: mean(jnp.mean(nats_BNC, axis=-1), weights_BN)}
    out = label_terms(self.term, logits, labels, weights_BN, 'accuracy')
    if self.class_weights:
      nats_BN = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
      out[self.term] = mean(nats_BN, weights_BN * weights_C[labels])
    return out

  def softmaxes(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """As in the base class; with multi_label a softmax over no and yes for each label."""
    if not self.multi_label:
      return super().softmaxes(logits, batch)
    both = jnp.stack([jnp.zeros_like(logits), logits], axis=-1)
    return both, jnp.broadcast_to(batch['weights'][..., None], logits.shape)

  def soft(self, logits: jax.Array, theirs: jax.Array, batch: Batch, temperature: float) -> Mean:
    """As in the base class; in regression the squared difference from the teacher's number."""
    if not self.regression:
      return super().soft(logits, theirs, batch, temperature)
    _, scale = self.units
    difference_BN1 = logits - jax.lax.stop_gradient(theirs)
    squares_BN = jnp.square(difference_BN1 / scale)[..., 0]
    return mean(squares_BN, batch['weights'])
