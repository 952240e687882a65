"""BERT's pre-training: masked language model + nsp_weight * next-sentence prediction.

Devlin et al. 2018 (weight 1). If the pairs of the data are about sentence order, the second term is
ALBERT's SOP (Lan et al. 2019) and has that name. Weight 0 on rows without pairs is RoBERTa's
setting (Liu et al. 2019): then the model has neither a pooler nor an NSP head. With sbo_weight the
loss has SpanBERT's term as well (span_boundary.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.metrics import Mean, mean
from bert_jax.objectives import masking, span_boundary
from bert_jax.objectives.base import Batch, Key, Objective, Params, Spec, Terms
from bert_jax.objectives.encode import apply, cut_rows, encode_mlm, init_words, row_spec, slot_spec
from bert_jax.objectives.losses import label_nats, label_terms, share_equal_to_first
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.timeline import Moment


@dataclasses.dataclass(frozen=True)
class MlmNsp(Objective):
  """BERT's pre-training.

  masking: keyword arguments of masking.mask_tokens.
  pairs: one of sentence_pairs.PAIRS, the meaning of a pair's label.
  languages: names of the rows' languages, in the order of their numbers.
  eval_masking: arguments of masking.mask_tokens that differ in an evaluation.
  lengths: the length to which training rows are cut in each stage of corpus.lengths; (): they are
  not cut."""

  model: models.ModelConfig
  seq_length: int
  nsp_weight: float
  masking: dict[str, Any]
  pairs: str = 'nsp'
  examples_per_row: int = 1
  languages: tuple[str, ...] = ()
  eval_masking: dict[str, Any] = dataclasses.field(default_factory=dict)
  sbo_weight: float = 0.0
  lengths: tuple[int, ...] = ()

  @property
  def loss_weights(self) -> dict[str, float]:
    weights = {'mlm': 1.0}
    if self.nsp_weight:
      weights[self.pairs] = self.nsp_weight
    if self.sbo_weight:
      weights['sbo'] = self.sbo_weight
    return weights

  @property
  def metrics(self) -> tuple[str, ...]:
    out = []
    for term in self.loss_weights:
      out += [term, f'{term}_accuracy']
    return (*out, 'masked', *(f'mlm_{language}' for language in self.languages))

  def spec(self, batch_size: int) -> Spec:
    out = row_spec(batch_size, self.seq_length)
    if {*self.masking['policies'], *self.eval_masking.get('policies', ())} != {'token'}:
      out['unit_starts'] = out['input_ids']
    if self.nsp_weight:
      out |= slot_spec(batch_size, self.examples_per_row, labels=jnp.int32)
    if self.languages:
      out['language'] = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    return out

  def init(self, rng: jax.Array) -> Params:
    encoder_key, mlm_key, pooler_key, nsp_key = jax.random.split(rng, 4)
    x_BKD = jnp.zeros((1, 1, self.model.hidden_size))
    encoder = models.init_encoder(self.model, encoder_key)
    params = {'encoder': encoder} | init_words(self.model, mlm_key, encoder)
    if self.nsp_weight:
      if self.model.pooler != 'none':
        params['pooler'] = models.Pooler(self.model).init(pooler_key, x_BKD)['params']
      params['nsp'] = self._pair_head.init(nsp_key, x_BKD)['params']
    if self.sbo_weight:
      params['sbo'] = span_boundary.init(self.model, jax.random.fold_in(rng, 0), encoder)
    return params

  @property
  def _pair_head(self) -> models.Classifier:
    return models.Classifier(self.model, len(PAIRS[self.pairs].labels))

  def cut(self, batch: Batch, moment: Moment) -> Batch:
    """Cuts the rows of a training step to the length of its stage (corpus.lengths)."""
    if not self.lengths or not moment.train:
      return batch
    return cut_rows(batch, jnp.array(self.lengths)[moment.stage('corpus.lengths')])

  def prepare(self, batch: Batch, rng: jax.Array, moment: Moment) -> Batch:
    batch = self.cut(batch, moment)
    settings: dict[str, Any] = {'vocab_size': self.model.vocab_size} | self.masking
    if not moment.train:
      settings |= self.eval_masking
    ids_BT, positions_BK, labels_BK, weights_BK = masking.mask_tokens(
      rng,
      batch['input_ids'],
      batch['segment_ids'],
      batch.get('unit_starts'),
      moment.stage('masking.policy'),
      **settings,
    )
    return {
      **batch,
      'input_ids': ids_BT,
      'masked_positions': positions_BK,
      'masked_labels': labels_BK,
      'masked_weights': weights_BK,
    }

  def logits(
    self, params: Params, batch: Batch, rng: Key = None
  ) -> tuple[jax.Array, jax.Array | None]:
    """MLM logits [B, K, V] at masked_positions, and NSP logits [B, N, 2] or None; rng: dropout."""
    return self._heads(params, batch, encode_mlm(self.model, params, batch, rng))

  def _heads(self, params, batch, hidden_BTD):
    at_masks_BKD = models.gather_positions(hidden_BTD, batch['masked_positions'])
    mlm_BKV = models.word_logits(self.model, params, at_masks_BKD)
    if not self.nsp_weight:
      return mlm_BKV, None
    at_cls_BND = models.gather_positions(hidden_BTD, batch['cls_positions'])
    pooled_BND = apply(models.Pooler(self.model), params.get('pooler', {}), at_cls_BND)
    # BERT's NSP head has no dropout, unlike a fine-tuned classifier.
    return mlm_BKV, apply(self._pair_head, params['nsp'], pooled_BND)

  def terms(
    self, params: Any, batch: Batch, rng: Key, train: bool, carry: Any = None, constants: Any = None
  ) -> Terms:
    hidden_BTD = encode_mlm(self.model, params, batch, rng if train else None)
    return self.hidden_terms(params, batch, hidden_BTD, train)[0], carry

  def hidden_terms(
    self, params: Params, batch: Batch, hidden_BTD: jax.Array, train: bool
  ) -> tuple[dict[str, Mean], jax.Array]:
    """The terms of hidden states, {name: Mean}, and the MLM logits [B, K, V]."""
    mlm_BKV, nsp_BN2 = self._heads(params, batch, hidden_BTD)
    terms = label_terms('mlm', mlm_BKV, batch['masked_labels'], batch['masked_weights'])
    if nsp_BN2 is not None:
      terms |= label_terms(self.pairs, nsp_BN2, batch['labels'], batch['weights'])
    if self.sbo_weight:
      sbo_BKV, weights_BK = span_boundary.logits(self.model, params, hidden_BTD, batch)
      terms |= label_terms('sbo', sbo_BKV, batch['masked_labels'], weights_BK)
    if not train:
      terms |= self.by_language(batch, mlm_BKV)
      terms |= share_equal_to_first('mlm', jnp.argmax(mlm_BKV, axis=-1), batch['masked_weights'])
    return terms, mlm_BKV

  def by_language(self, batch: Batch, mlm_BKV: jax.Array) -> dict[str, Mean]:
    """The MLM loss of the rows of each language, {mlm_NAME: Mean}."""
    nats_BK, _ = label_nats(mlm_BKV, batch['masked_labels'])
    terms = {}
    for k, name in enumerate(self.languages):
      is_language_B1 = (batch['language'] == k)[:, None]
      terms[f'mlm_{name}'] = mean(nats_BK, batch['masked_weights'] * is_language_B1)
    return terms

  def counts(self, batch: Batch) -> dict[str, jax.Array]:
    tokens_B = jnp.sum(batch['segment_ids'] > 0, axis=1, dtype=jnp.float32)
    counts = super().counts(batch)
    for k, name in enumerate(self.languages):
      counts[f'seen_tokens_{name}'] = jnp.sum(tokens_B * (batch['language'] == k))
    return counts

  def derived_metrics(self, sums: Mapping[str, Mean]) -> dict[str, Mean]:
    # The share of all tokens, [CLS] and [SEP] too, as masking.masked_lm_prob is.
    return {'masked': Mean(sums['mlm'].weight, sums['tokens'].total)}
