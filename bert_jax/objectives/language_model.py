"""Language modelling of four kinds with one model: masked, causal, hybrid, or by diffusion.

  masked     the masked tokens of a text are predicted from both sides (BERT; see mlm_nsp.py)
  causal     each token is predicted from those before it (GPT, Radford et al. 2018)
  hybrid     some rows of a batch are causal, the others masked (GPT-BERT, Charpentier & Samuel
             2024, https://arxiv.org/abs/2410.24159)
  diffusion  a rate t is drawn for each row, uniformly from 0 to 1, each token masked with that
             probability, and the loss of the masked ones divided by t. That bounds the nats per
             token from above (MDLM, Sahoo et al. 2024, https://arxiv.org/abs/2406.07524; LLaDA, Nie
             et al. 2025, https://arxiv.org/abs/2502.09992)

All have the same parameters, so that the kind may change by step.

With model.memory_length a causal model is a Transformer-XL (Dai et al. 2019,
https://arxiv.org/abs/1901.02860): row b of a batch continues row b of the batch before, whose
vectors it sees in each layer. As there, the memory goes on where a document ends.

B batch, T tokens, K predictions, D hidden size, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import gradients, models
from bert_jax.metrics import Mean, mean
from bert_jax.objectives.base import Batch, Key, Terms
from bert_jax.objectives.encode import encode, next_tokens
from bert_jax.objectives.losses import label_nats, nats_in_chunks, share_equal_to_first
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.timeline import Moment

# {kind: the name of its loss, in nats per token}
TERMS = {'masked': 'mlm', 'causal': 'lm', 'diffusion': 'bound'}
KINDS = (*TERMS, 'hybrid')
IDS = {'masked': 'masked_ids', 'causal': 'input_ids', 'diffusion': 'noised_ids'}  # inputs
LEAST_RATE = 1e-3  # t is at least this, so that no weight is above its inverse


@dataclasses.dataclass(frozen=True)
class LanguageModel(MlmNsp):
  """Language modelling, whose kind may change by step.

  stages: the kind of each stage of language_model.kind; a hybrid must be the only stage.
  causal_share: the share of a hybrid's rows that are causal.
  eval_memory: the memory's length in evaluations; 0: as in training.

  Evaluations report the loss of every kind, each on all rows, with diffusion's rates spread evenly
  over them."""

  stages: tuple[str, ...] = ('causal',)
  causal_share: float = 0.5
  eval_memory: int = 0

  @property
  def kinds(self) -> tuple[str, ...]:
    """The kinds of all stages, each once; a hybrid counts as the kinds that its rows have."""
    out = []
    for stage in self.stages:
      if stage != 'hybrid':
        out.append(stage)
        continue
      if self.causal_share > 0:
        out.append('causal')
      if self.causal_share < 1:
        out.append('masked')
    return tuple(dict.fromkeys(out))

  @property
  def writes(self) -> bool:
    """Can the model generate text: is it causal at the end of training, at least in some rows?"""
    last = self.stages[-1]
    return last == 'causal' or (last == 'hybrid' and self.causal_share > 0)

  @property
  def loss_weights(self) -> dict[str, float]:
    if self.kinds == ('causal', 'masked') and len(self.stages) == 1:  # a hybrid
      return {'lm': self.causal_share, 'mlm': 1 - self.causal_share}
    return {TERMS[kind]: 1.0 for kind in self.kinds}

  @property
  def metrics(self) -> tuple[str, ...]:
    out = []
    if 'masked' in self.kinds:
      out.append('masked')
    for kind in self.kinds:
      name = TERMS[kind]
      out += [name, f'{name}_accuracy']
      out += [f'{name}_{language}' for language in self.languages]
    if 'causal' in self.kinds:
      out.append('perplexity')
    return tuple(out)

  def carry(self, batch_size: int, length: int = 0) -> Any:
    length = length or self.model.memory_length
    return models.recurrence.empty(self.model, batch_size, length) if length else {}

  def eval_carry(self, batch_size: int) -> Any:
    return self.carry(batch_size, self.eval_memory)

  def derived_metrics(self, sums: Mapping[str, Mean]) -> dict[str, Mean]:
    out = super().derived_metrics(sums) if 'mlm' in sums else {}
    if 'lm' in sums:
      weight = sums['lm'].weight
      perplexity = np.exp(np.minimum(sums['lm'].value, 700.0))
      out['perplexity'] = Mean(perplexity * weight, weight)
    return out

  def prepare(self, batch: Batch, rng: jax.Array, moment: Moment) -> Batch:
    """Adds the targets of each kind to a batch, and the ids that it reads: masked_ids, noised_ids
    or, if causal, input_ids. In training, `kind` [B] is the kind of each row."""
    batch = self.cut(batch, moment)
    if self.kinds == ('masked',):
      return super().prepare(batch, rng, moment)
    out = dict(batch)
    if 'masked' in self.kinds:
      masked = super().prepare(batch, rng, moment)
      out |= masked
      out['input_ids'] = batch['input_ids']
      out['masked_ids'] = masked['input_ids']
    if 'diffusion' in self.kinds:
      out |= self._noised(batch, jax.random.fold_in(rng, 1), not moment.train)
    if moment.train and len(self.kinds) > 1:
      rows = len(batch['input_ids'])
      out['kind'] = self._kind_of_rows(jax.random.fold_in(rng, 2), rows, moment)
    return out

  def _kind_of_rows(self, rng, B, moment):
    """The index [B] of each row's kind in `kinds`, at a step."""
    if self.stages == ('hybrid',):  # its kinds are causal and masked
      is_masked_B = jax.random.uniform(rng, (B,)) >= self.causal_share
      return is_masked_B.astype(jnp.int32)
    numbers = jnp.array([self.kinds.index(name) for name in self.stages])
    return jnp.full(B, numbers[moment.stage('language_model.kind')])

  def _noised(self, batch, rng, evenly):
    """noised_ids [B, T], and noise [B, T]: 1 / rate where a token is masked, else 0."""
    ids_BT = batch['input_ids']
    rate_key, mask_key = jax.random.split(rng)
    draws_B = jax.random.uniform(rate_key, (len(ids_BT),))
    if evenly:  # over the rows that have tokens, since the last batch may have empty rows
      real_B = (batch['segment_ids'] > 0).any(axis=1)
      draws_B = (jnp.cumsum(real_B) - 1 + draws_B[0]) / jnp.maximum(1, jnp.sum(real_B))
    rates_B1 = (LEAST_RATE + (1 - LEAST_RATE) * draws_B)[:, None]
    is_drawn_BT = jax.random.uniform(mask_key, ids_BT.shape) < rates_B1
    hidden_BT = self._ordinary(batch) & is_drawn_BT
    return {
      'noised_ids': jnp.where(hidden_BT, self.masking['mask_id'], ids_BT),
      'noise': jnp.where(hidden_BT, 1 / rates_B1, 0),
    }

  def _ordinary(self, batch):
    """[B, T] bool: is the token neither padding nor a special piece?"""
    special = jnp.asarray(self.masking['special_ids'])
    return (batch['segment_ids'] > 0) & ~jnp.isin(batch['input_ids'], special)

  def terms(
    self, params: Any, batch: Batch, rng: Key, train: bool, carry: Any = None, constants: Any = None
  ) -> Terms:
    if self.kinds == ('masked',):
      return super().terms(params, batch, rng, train, carry, constants)
    rng = rng if train else None
    if carry:
      hidden_BTD, carry = self._read_on(params, batch, rng, carry)
      return self._terms_of('causal', params, batch, hidden_BTD, train), carry
    terms = {}
    if 'kind' not in batch:
      for kind in self.kinds:
        hidden_BTD = self._hidden(params, batch, batch[IDS[kind]], kind == 'causal', rng)
        terms |= self._terms_of(kind, params, batch, hidden_BTD, train)
      return terms, carry
    # One pass over rows of all kinds, each with the ids that its kind reads.
    is_kind_B = {kind: batch['kind'] == k for k, kind in enumerate(self.kinds)}
    ids_BT = batch['input_ids']
    for kind, is_B in is_kind_B.items():
      ids_BT = jnp.where(is_B[:, None], batch[IDS[kind]], ids_BT)
    causal_B = is_kind_B.get('causal', False)
    hidden_BTD = self._hidden(params, batch, ids_BT, causal_B, rng)
    for kind, is_B in is_kind_B.items():
      terms |= self._terms_of(kind, params, batch, hidden_BTD, train, is_B)
    return terms, carry

  def _read_on(self, params, batch, rng, memory):
    """Encodes rows with a memory: (hidden states [B, T, D], the memory after them). The last token
    of a row does not enter the memory, since it is also the first of the next row."""
    tokens_B = jnp.sum(batch['segment_ids'] > 0, axis=1, dtype=jnp.int32)
    taken_B = jnp.maximum(tokens_B - 1, 0)
    return models.recurrence.encode(
      self.model, params['encoder'], batch, memory, taken_B, rng, causal=True
    )

  def _hidden(self, params, batch, ids_BT, causal, rng):
    model = dataclasses.replace(self.model, causal=False)  # `causal` holds by row instead
    return encode(model, params['encoder'], batch | {'input_ids': ids_BT}, rng, causal)

  def _terms_of(self, kind, params, batch, hidden_BTD, train, rows_B=None):
    """The terms of one kind over the rows that are True in rows_B; None: over all rows."""
    name = TERMS[kind]
    labels, counted, weights = self._targets(kind, batch)

    def nats_of(logits, labels):
      """(nats, hits) of labels and, in an evaluation, the answers."""
      nats, hits = label_nats(logits, labels)
      if train:
        return nats, hits
      return nats, hits, jnp.argmax(logits, axis=-1).astype(jnp.float32)

    def head(hidden_BTD):
      if kind == 'masked':
        return nats_of(self._heads(params, batch, hidden_BTD)[0], labels)
      return nats_in_chunks(self.model, params, hidden_BTD, labels, nats_of)

    def no_rows(_):
      return (jnp.zeros(labels.shape),) * (2 if train else 3)

    if rows_B is None:
      nats, hits, *answers = head(hidden_BTD)
    else:  # skip the head if there is no row of this kind
      nats, hits, *answers = jax.lax.cond(gradients.anywhere(rows_B), head, no_rows, hidden_BTD)
      counted = counted * rows_B[:, None]
      weights = weights * rows_B[:, None]
    with jax.named_scope('loss'):
      terms = {f'{name}_accuracy': mean(hits, (weights > 0).astype(jnp.float32))}
      for answer in answers:
        terms |= share_equal_to_first(name, answer, weights)
      rows_of_terms = {name: 1.0}
      if not train:
        for k, language in enumerate(self.languages):
          rows_of_terms[f'{name}_{language}'] = (batch['language'] == k)[:, None]
      for term, rows in rows_of_terms.items():
        total = jnp.sum(nats * weights * rows)
        terms[term] = Mean(total, jnp.sum(counted * rows))
    return terms

  def _targets(self, kind, batch):
    """(labels, 1.0 where one counts, weights of the loss), each [B, T] or, if masked, [B, K]."""
    if kind == 'masked':
      return batch['masked_labels'], batch['masked_weights'], batch['masked_weights']
    if kind == 'diffusion':
      return batch['input_ids'], self._ordinary(batch).astype(jnp.float32), batch['noise']
    labels_BT, counted_BT = next_tokens(batch)
    return labels_BT, counted_BT, counted_BT

  @functools.cached_property
  def _alone(self):
    """This objective with one kind only: {kind: LanguageModel}."""
    return {kind: dataclasses.replace(self, stages=(kind,)) for kind in self.kinds}

  def flops(self, batch_size: int, moment: Moment | None = None) -> float:
    """Operations of a forward pass, in which each kind counts by its share of the rows."""
    kind = self.stages[-1]
    if moment:
      kind = moment.values.get('language_model.kind', kind)
    if kind != 'hybrid':
      return super(LanguageModel, self._alone[kind]).flops(batch_size, moment)
    total = 0.0
    for kind, share in (('causal', self.causal_share), ('masked', 1 - self.causal_share)):
      if share:
        total += share * super(LanguageModel, self._alone[kind]).flops(batch_size, moment)
    return total
