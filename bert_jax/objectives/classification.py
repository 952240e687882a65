"""Labels or a number for each example of a row: a pooled [CLS] and one dense layer (BERT, 3.2)."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from bert_jax import models
from bert_jax.metrics import mean
from bert_jax.objectives import base


@dataclasses.dataclass(frozen=True)
class Classification(base.Objective):
  """labels: the label set in order; empty for regression. multi_label: any number of them holds.

  class_weights: one for each label, or (); a text counts in the loss as much as its label (with
  multi_label: each label as much as its weight). A row may hold several packed examples.
  """

  model: models.ModelConfig
  seq_length: int
  labels: tuple[str, ...]
  examples_per_row: int = 1
  multi_label: bool = False
  class_weights: tuple[float, ...] = ()

  @property
  def regression(self):
    return not self.labels

  @property
  def loss_weights(self):
    return {'classification': 1.0}

  @property
  def metrics(self):
    if self.regression:
      return 'classification', 'pearson', 'spearman'
    if self.multi_label:
      return 'classification', 'micro_f1', 'macro_f1', 'subset_accuracy'
    f1 = 'f1' if len(self.labels) == 2 else 'macro_f1'
    return 'classification', 'classification_accuracy', f1, 'matthews'

  def spec(self, batch_size):
    kind = jnp.float32 if self.regression or self.multi_label else jnp.int32
    out = base.row_spec(batch_size, self.seq_length) | base.slot_spec(
      batch_size, self.examples_per_row, example_ids=jnp.int32, labels=kind
    )
    if self.multi_label:
      shape = (*out['labels'].shape, len(self.labels))
      out['labels'] = jax.ShapeDtypeStruct(shape, kind)
    return out

  def init(self, rng):
    encoder_key, pooler_key, head_key = jax.random.split(rng, 3)
    x_BND = jnp.zeros((1, 1, self.model.hidden_size))
    return {
      'encoder': models.init_encoder(self.model, encoder_key),
      'pooler': models.Pooler(self.model).init(pooler_key, x_BND)['params'],
      'classifier': self._head.init(head_key, x_BND)['params'],
    }

  @property
  def _head(self):
    return models.Classifier(self.model, max(1, len(self.labels)))

  def logits(self, params, batch, rng=None):
    """[B, N, labels], or [B, N, 1] for regression; rng turns dropout on."""
    return base.pooled_logits(self.model, self._head, params, batch, rng)

  def terms(self, params, batch, rng, train, carry=None, given=None):
    logits = self.logits(params, batch, rng if train else None)
    labels, weights_BN = batch['labels'], batch['weights']
    if self.regression:
      return {'classification': mean(jnp.square(logits[..., 0] - labels), weights_BN)}, carry
    by_class = jnp.asarray(self.class_weights or (1.0,) * len(self.labels))
    if self.multi_label:
      nats = optax.sigmoid_binary_cross_entropy(logits, labels) * by_class
      return {'classification': mean(jnp.mean(nats, axis=-1), weights_BN)}, carry
    out = base.label_terms('classification', logits, labels, weights_BN)
    if self.class_weights:
      nats = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
      out['classification'] = mean(nats, weights_BN * by_class[labels])
    return out, carry

  def predict(self, params, batch, rng=None, carry=None, given=None):
    """logits [B, N, labels], with the numbers of the examples."""
    return {'logits': self.logits(params, batch), 'example_ids': batch['example_ids']}

  def flops(self, batch_size):
    return models.encoder_flops(self.model, batch_size, self.seq_length) + models.head_flops(
      self.model, batch_size * self.examples_per_row
    )
