"""A label or a number for each example of a row: a pooled [CLS] and one dense layer (BERT, 3.2)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from bert_jax import models
from bert_jax.objectives import base


@dataclasses.dataclass(frozen=True)
class Classification(base.Objective):
  """labels: the label set in order; empty for regression. A row may hold several packed
  examples."""

  model: models.ModelConfig
  seq_length: int
  labels: tuple[str, ...]
  examples_per_row: int = 1

  @property
  def regression(self):
    return not self.labels

  @property
  def loss_weights(self):
    return {'classification': 1.0}

  @property
  def metrics(self):
    scores = ('pearson', 'spearman') if self.regression else ('classification_accuracy',)
    return ('classification', *scores)

  def spec(self, batch_size):
    label_type = jnp.float32 if self.regression else jnp.int32
    return base.row_spec(batch_size, self.seq_length) | base.example_spec(
      batch_size, self.examples_per_row, label_type
    )

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
    hidden_key, head_key = (None, None) if rng is None else jax.random.split(rng)
    hidden_BTD = base.encode(self.model, params['encoder'], batch, hidden_key)
    pooled_BND = models.Pooler(self.model).apply(
      {'params': params['pooler']}, models.gather_positions(hidden_BTD, batch['cls_positions'])
    )
    return self._head.apply(
      {'params': params['classifier']},
      pooled_BND,
      rng is None,
      rngs={} if rng is None else {'dropout': head_key},
    )

  def terms(self, params, batch, rng, train):
    logits = self.logits(params, batch, rng if train else None)
    if self.regression:
      error_BN = jnp.square(logits[..., 0] - batch['labels'])
      return {'classification': base.mean(error_BN, batch['weights'])}
    return base.label_terms('classification', logits, batch['labels'], batch['weights'])

  def predict(self, params, batch):
    """probabilities [B, N, labels], or values [B, N] for regression, with labels and weights."""
    logits = self.logits(params, batch)
    out = {k: batch[k] for k in ('labels', 'weights') if k in batch}
    if self.regression:
      return out | {'values': logits[..., 0]}
    return out | {'probabilities': jax.nn.softmax(logits)}

  def score(self, outputs):
    """Accuracy is a term already; regression adds Pearson and Spearman correlation (STS-B's)."""
    if not self.regression:
      return {}
    real = outputs['weights'] > 0
    gold, values = outputs['labels'][real], outputs['values'][real]
    if len(gold) < 2 or not np.std(gold) or not np.std(values):
      return {'pearson': float('nan'), 'spearman': float('nan')}
    return {
      'pearson': float(scipy.stats.pearsonr(gold, values).statistic),
      'spearman': float(scipy.stats.spearmanr(gold, values).statistic),
    }

  def flops(self, batch_size):
    return models.encoder_flops(self.model, batch_size, self.seq_length) + models.head_flops(
      self.model, batch_size * self.examples_per_row
    )
