"""A small language model: the last piece of each row from the pieces before it."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.objectives import base
from bert_jax.objectives.encode import encode, row_spec
from bert_jax.objectives.losses import label_terms


@dataclasses.dataclass(frozen=True)
class LastPiece(base.Objective):
  """mask_id: the piece that stands where the last one is to be guessed."""

  model: models.ModelConfig
  seq_length: int
  mask_id: int

  loss_weights = {'last': 1.0}
  metrics = 'last', 'last_accuracy'

  def spec(self, batch_size):
    return row_spec(batch_size, self.seq_length)

  def init(self, rng):
    encoder_key, head_key = jax.random.split(rng)
    encoder = models.init_encoder(self.model, encoder_key)
    x_BKD = jnp.zeros((1, 1, self.model.hidden_size))
    head = models.MaskedLMHead(self.model).init(head_key, x_BKD, models.word_table(encoder))
    return {'encoder': encoder, 'last': head['params']}

  def prepare(self, batch, rng, moment):
    ids_BT, length_B = batch['input_ids'], jnp.sum(batch['segment_ids'] > 0, axis=1)
    at_B1 = jnp.maximum(0, length_B - 2)[:, None]  # before [SEP]
    is_last_BT = jnp.arange(self.seq_length) == at_B1
    return batch | {
      'input_ids': jnp.where(is_last_BT, self.mask_id, ids_BT),
      'last_positions': at_B1,
      'last_labels': jnp.take_along_axis(ids_BT, at_B1, axis=1),
      'last_weights': (length_B > 0).astype(jnp.float32)[:, None],
    }

  def logits(self, params, batch, rng=None):
    """[B, 1, V] at last_positions."""
    hidden_BTD = encode(self.model, params['encoder'], batch, rng)
    last_B1D = models.gather_positions(hidden_BTD, batch['last_positions'])
    table_VD = models.word_table(params['encoder'])
    return models.MaskedLMHead(self.model).apply({'params': params['last']}, last_B1D, table_VD)

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    logits_B1V = self.logits(params, batch, rng if train else None)
    labels, weights = batch['last_labels'], batch['last_weights']
    return label_terms('last', logits_B1V, labels, weights), carry
