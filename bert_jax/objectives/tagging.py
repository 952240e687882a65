"""A tag for each token of a row: one dense layer over the hidden states (BERT, 5.3; no CRF).

B batch, T tokens, N examples in a row, D hidden, C tags.
"""

import dataclasses

import jax.numpy as jnp

from bert_jax import models
from bert_jax.objectives import base


@dataclasses.dataclass(frozen=True)
class Tagging(base.Objective):
  """labels: the tags, in order. scores: metrics that the task's scorer computes.

  A row may hold several packed examples. `tags` [B, T] are 1 + the number of the tag to predict, or
  0 where there is none.
  """

  model: models.ModelConfig
  seq_length: int
  labels: tuple[str, ...]
  examples_per_row: int = 1
  scores: tuple[str, ...] = ()

  loss_weights = {'tagging': 1.0}

  @property
  def metrics(self):
    return 'tagging', 'token_accuracy', *self.scores

  def spec(self, batch_size):
    row = base.row_spec(batch_size, self.seq_length)
    slots = base.slot_spec(batch_size, self.examples_per_row, example_ids=jnp.int32)
    return row | slots | {'tags': row['input_ids']}

  def init(self, rng):
    return base.init_model(self.model, rng, classifier=self._head)

  @property
  def _head(self):
    return models.Classifier(self.model, len(self.labels))

  def logits(self, params, batch, rng=None):
    """[B, T, C]; rng turns dropout on."""
    hidden_key, head_key = base.two_keys(rng)
    hidden_BTD = base.encode(self.model, params['encoder'], batch, hidden_key)
    return base.apply(self._head, params['classifier'], hidden_BTD, rng=head_key)

  def terms(self, params, batch, rng, train, carry=None, given=None):
    logits_BTC = self.logits(params, batch, rng if train else None)
    tags_BT = batch['tags']
    weights_BT = (tags_BT > 0).astype(jnp.float32)
    out = base.label_terms('tagging', logits_BTC, jnp.maximum(tags_BT - 1, 0), weights_BT)
    return {'tagging': out['tagging'], 'token_accuracy': out['tagging_accuracy']}, carry

  def predict(self, params, batch, rng=None, carry=None, given=None):
    """logits [B, T, C], with the numbers of the examples and where they begin."""
    names = 'example_ids', 'cls_positions'
    return {'logits': self.logits(params, batch)} | {name: batch[name] for name in names}

  def flops(self, batch_size):
    encoder = models.encoder_flops(self.model, batch_size, self.seq_length)
    tokens = batch_size * self.seq_length
    return encoder + 2 * tokens * self.model.hidden_size * len(self.labels)
