"""The right one of several choices: a pooled [CLS] and one number for each, softmax over them.

As Radford et al. 2018 and BERT (4.4, SWAG). The choices of a question are examples of one row, each
in a segment of its own; a row may hold several questions, told apart by `groups`.

B batch, N examples (choices) in a row.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.metrics import mean
from bert_jax.objectives import base


@dataclasses.dataclass(frozen=True)
class Choice(base.Objective):
  """examples_per_row: choices, not questions. scores: added to the metrics by the task's scorer."""

  model: models.ModelConfig
  seq_length: int
  examples_per_row: int
  scores: tuple[str, ...] = ()

  @property
  def loss_weights(self):
    return {'choice': 1.0}

  @property
  def metrics(self):
    return 'choice', 'choice_accuracy', *self.scores

  def spec(self, batch_size):
    """labels: 1 for the choice that is right, 0 for the others and where none is known."""
    return base.row_spec(batch_size, self.seq_length) | base.slot_spec(
      batch_size,
      self.examples_per_row,
      example_ids=jnp.int32,
      groups=jnp.int32,
      labels=jnp.float32,
    )

  def init(self, rng):
    encoder_key, pooler_key, head_key = jax.random.split(rng, 3)
    x_BND = jnp.zeros((1, 1, self.model.hidden_size))
    return {
      'encoder': models.init_encoder(self.model, encoder_key),
      'pooler': models.Pooler(self.model).init(pooler_key, x_BND)['params'],
      'classifier': models.Classifier(self.model, 1).init(head_key, x_BND)['params'],
    }

  def logits(self, params, batch, rng=None):
    """[B, N]; rng turns dropout on."""
    head = models.Classifier(self.model, 1)
    return base.pooled_logits(self.model, head, params, batch, rng)[..., 0]

  def terms(self, params, batch, rng, train, carry=None, given=None):
    logits_BN = self.logits(params, batch, rng if train else None)
    groups_BN, gold_BN = batch['groups'], batch['labels'] * batch['weights']
    # Choices of other questions take no part; each choice sees itself, so nothing is infinite.
    same_BNN = groups_BN[:, :, None] == groups_BN[:, None, :]
    others_BNN = jnp.where(same_BNN, logits_BN[:, None, :], jnp.finfo(logits_BN.dtype).min)
    nats_BN = jax.nn.logsumexp(others_BNN, axis=-1) - logits_BN
    # A tie is a miss, as in base.label_terms.
    hits_BN = jnp.sum(others_BNN >= logits_BN[:, :, None], axis=-1) == 1
    terms = {
      'choice': mean(nats_BN, gold_BN),
      'choice_accuracy': mean(hits_BN.astype(jnp.float32), gold_BN),
    }
    return terms, carry

  def predict(self, params, batch, rng=None, carry=None, given=None):
    """logits [B, N], with the numbers of the examples."""
    return {'logits': self.logits(params, batch), 'example_ids': batch['example_ids']}

  def flops(self, batch_size):
    return models.encoder_flops(self.model, batch_size, self.seq_length) + models.head_flops(
      self.model, batch_size * self.examples_per_row
    )
