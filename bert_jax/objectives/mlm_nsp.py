"""BERT's pre-training: masked language model + lambda * next-sentence prediction.

Devlin et al. 2018 (lambda 1). lambda 0 on rows without pairs is RoBERTa's setting (Liu et al.
2019): then there is no pooler and no NSP head at all.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.objectives import base, corruption


@dataclasses.dataclass(frozen=True)
class MlmNsp(base.Objective):
  """model: ModelConfig; masking: keyword arguments of corruption.mask_tokens."""

  model: models.ModelConfig
  seq_length: int
  nsp_weight: float
  masking: dict[str, Any]

  @property
  def loss_weights(self):
    return {'mlm': 1.0} | ({'nsp': self.nsp_weight} if self.nsp_weight else {})

  @property
  def metrics(self):
    return tuple(n for term in self.loss_weights for n in (term, f'{term}_accuracy'))

  def spec(self, batch_size):
    return base.row_spec(batch_size, self.seq_length) | (
      base.example_spec(batch_size, 1, jnp.int32) if self.nsp_weight else {}
    )

  def init(self, rng):
    encoder_key, mlm_key, pooler_key, nsp_key = jax.random.split(rng, 4)
    x_BKD = jnp.zeros((1, 1, self.model.hidden_size))
    encoder = models.init_encoder(self.model, encoder_key)
    table_VD = encoder['embeddings']['word_embeddings']['embedding']
    params = {
      'encoder': encoder,
      'mlm': models.MaskedLMHead(self.model).init(mlm_key, x_BKD, table_VD)['params'],
    }
    if self.nsp_weight:
      params['pooler'] = models.Pooler(self.model).init(pooler_key, x_BKD)['params']
      params['nsp'] = models.Classifier(self.model, 2).init(nsp_key, x_BKD)['params']
    return params

  def prepare(self, batch, rng):
    ids, positions, labels, weights = corruption.mask_tokens(
      rng,
      batch['input_ids'],
      batch['segment_ids'],
      vocab_size=self.model.vocab_size,
      **self.masking,
    )
    return batch | {
      'input_ids': ids,
      'masked_positions': positions,
      'masked_labels': labels,
      'masked_weights': weights,
    }

  def logits(self, params, batch, rng=None):
    """(MLM logits [B, K, V] at masked_positions, NSP logits [B, N, 2] or None); rng turns dropout
    on."""
    hidden_BTD = base.encode(self.model, params['encoder'], batch, rng)
    at_masks_BKD = models.gather_positions(hidden_BTD, batch['masked_positions'])
    mlm_BKV = models.MaskedLMHead(self.model).apply(
      {'params': params['mlm']},
      at_masks_BKD,
      params['encoder']['embeddings']['word_embeddings']['embedding'],
    )
    if not self.nsp_weight:
      return mlm_BKV, None
    pooled_BND = models.Pooler(self.model).apply(
      {'params': params['pooler']}, models.gather_positions(hidden_BTD, batch['cls_positions'])
    )
    # BERT's NSP head has no dropout of its own, unlike a fine-tuned classifier.
    return mlm_BKV, models.Classifier(self.model, 2).apply({'params': params['nsp']}, pooled_BND)

  def terms(self, params, batch, rng, train):
    mlm_BKV, nsp_BN2 = self.logits(params, batch, rng if train else None)
    terms = base.label_terms('mlm', mlm_BKV, batch['masked_labels'], batch['masked_weights'])
    if self.nsp_weight:
      terms |= base.label_terms('nsp', nsp_BN2, batch['labels'], batch['weights'])
    return terms

  def flops(self, batch_size):
    K = min(self.masking['max_predictions'], self.seq_length)
    return (
      models.encoder_flops(self.model, batch_size, self.seq_length)
      + models.head_flops(self.model, batch_size * K, vocabulary=True)
      + (models.head_flops(self.model, batch_size) if self.nsp_weight else 0)
    )
