"""A small model that reads on: the first piece of a row, from the rest and from the row before."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.objectives import base
from bert_jax.objectives.encode import encode, row_spec
from bert_jax.objectives.losses import label_terms


@dataclasses.dataclass(frozen=True)
class FirstPiece(base.Objective):
  """Two towers read a row, whose vectors are added to what the wide one made of the row before.
  reader: the narrow tower. mask_id: the piece that stands where the first one is to be guessed."""

  model: models.ModelConfig
  reader: models.ModelConfig
  seq_length: int
  mask_id: int

  loss_weights = {'first': 1.0}
  metrics = 'first', 'first_accuracy'

  def spec(self, batch_size):
    return row_spec(batch_size, self.seq_length)

  def carry(self, batch_size):
    return {'before': jax.ShapeDtypeStruct((batch_size, self.model.hidden_size), jnp.float32)}

  def init(self, rng):
    encoder_key, reader_key, head_key = jax.random.split(rng, 3)
    encoder = models.init_encoder(self.model, encoder_key)
    table_VD = models.word_table(encoder)
    x_BKD = jnp.zeros((1, 1, self.model.hidden_size))
    head = models.MaskedLMHead(self.model).init(head_key, x_BKD, table_VD)['params']
    reader = {'encoder': models.init_encoder(self.reader, reader_key)}
    return {'encoder': encoder, 'reader': reader, 'first': head}

  def prepare(self, batch, rng, moment):
    ids_BT = batch['input_ids']
    is_first_BT = (jnp.arange(self.seq_length) == 1) & (batch['segment_ids'] > 0)
    return batch | {
      'input_ids': jnp.where(is_first_BT, self.mask_id, ids_BT),
      'first_positions': jnp.ones_like(ids_BT[:, :1]),
      'first_labels': ids_BT[:, 1:2],
      'first_weights': (batch['segment_ids'][:, 1:2] > 0).astype(jnp.float32),
    }

  def logits(self, params, batch, before_B1D=0.0, rng=None):
    """([B, N, V] at first_positions [B, N], [B, D] what the wide tower makes of the row)."""
    keys = (None, None) if rng is None else jax.random.split(rng)
    wide_BTD = encode(self.model, params['encoder'], batch, keys[0])
    narrow_BTD = encode(self.reader, params['reader']['encoder'], batch, keys[1])
    first_BND = models.gather_positions(wide_BTD + narrow_BTD, batch['first_positions'])
    first_BND = first_BND.astype(jnp.float32) + before_B1D
    table_VD = models.word_table(params['encoder'])
    head = models.MaskedLMHead(self.model)
    logits_BNV = head.apply({'params': params['first']}, first_BND, table_VD)
    return logits_BNV, wide_BTD[:, 0].astype(jnp.float32)

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    before_B1D = jax.lax.stop_gradient(carry['before'])[:, None]
    logits_B1V, row_BD = self.logits(params, batch, before_B1D, rng if train else None)
    labels, weights = batch['first_labels'], batch['first_weights']
    return label_terms('first', logits_B1V, labels, weights), {'before': row_BD}
