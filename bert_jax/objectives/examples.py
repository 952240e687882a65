"""Base classes for objectives of examples, of which a row may hold several."""

import abc
import dataclasses
import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import models
from bert_jax.metrics import Mean, mean
from bert_jax.objectives import encode as shared
from bert_jax.objectives.base import Batch, Key, Objective, Params, Spec, Terms
from bert_jax.objectives.distillation import soft_nats


@dataclasses.dataclass(frozen=True)
class ExampleRows(Objective):
  """An objective whose rows hold examples.

  scores: metrics that the task's scorer computes.
  kinds: {name: data type} of further numbers of an example, besides slot_spec's.
  prior: the share of each label, at which a new head begins; (): at zeros."""

  model: models.ModelConfig
  seq_length: int
  examples_per_row: int = dataclasses.field(default=1, kw_only=True)
  scores: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
  prior: tuple[float, ...] = dataclasses.field(default=(), kw_only=True)

  kinds: ClassVar[dict[str, Any]] = {}

  def spec(self, batch_size: int) -> Spec:
    kinds = {'example_ids': jnp.int32} | self.kinds
    slots = shared.slot_spec(batch_size, self.examples_per_row, **kinds)
    return shared.row_spec(batch_size, self.seq_length) | slots


class LabelledExamples(ExampleRows):
  """An objective of labelled examples, answered by `head` over an encoder.

  part: the name of the head's parameters.
  outputs: how many logits a classifier gives; 0: one for each label.
  beside: arrays of a batch that predict returns beside the logits."""

  part: ClassVar[str] = 'classifier'
  outputs: ClassVar[int] = 0
  of_tokens: ClassVar[bool] = False  # does the head answer for each token?
  beside: ClassVar[tuple[str, ...]] = ('example_ids',)

  @property
  def loss_weights(self) -> dict[str, float]:
    return {'cross_entropy': 1.0}

  @property
  def metrics(self) -> tuple[str, ...]:
    return *self.loss_weights, 'accuracy', *self.scores

  @property
  def head(self) -> nn.Module:
    """The module whose answers are learned. Default: a classifier, without labels of one number."""
    model = dataclasses.replace(self.model, hidden_dropout_prob=self.head_dropout)
    return models.Classifier(model, self.outputs or max(1, len(self.labels)))

  @property
  def head_dropout(self) -> float:
    """The probability of dropout on what the head reads."""
    model = self.model
    of_texts = 0.0 if self.of_tokens else model.classifier_dropout_prob
    return of_texts or model.hidden_dropout_prob

  def init(self, rng: jax.Array) -> Params:
    heads = {self.part: self.head}
    if self.has_pooler:
      heads = {'pooler': models.Pooler(self.model)} | heads
    return shared.init_model(self.model, rng, heads)

  def with_prior(self, params: Params) -> Params:
    if not self.first_logits:
      return params
    head = params[self.part]
    first = np.array(self.first_logits, np.float32)
    bias = jax.device_put(first, head['dense']['bias'].sharding)
    return params | {self.part: head | {'dense': head['dense'] | {'bias': bias}}}

  @property
  def first_logits(self) -> tuple[float, ...]:
    """The logits at which a new head begins, whatever it reads."""
    return tuple(map(math.log, self.prior))

  @property
  def has_pooler(self) -> bool:
    """Does the head read hidden states through a pooler?"""
    return not self.of_tokens or self.model.token_pooler

  def logits(self, params: Params, batch: Batch, rng: Key = None) -> jax.Array:
    """The answers of the model, in a form of its own; rng turns dropout on."""
    hidden_key, head_key = shared.two_keys(rng)
    hidden_BTD = shared.encode(self.model, params['encoder'], batch, hidden_key)
    inputs = self.inputs(params, batch, hidden_BTD)
    return shared.apply(self.head, params[self.part], inputs, rng=head_key)

  def inputs(self, params: Params, batch: Batch, hidden_BTD: jax.Array) -> jax.Array:
    """What the head reads. Default: the pooled [CLS] of each example (BERT, 3.2), or, if it answers
    for each token, all hidden states."""
    if not self.of_tokens:
      return shared.pooled(self.model, params, batch, hidden_BTD)
    if self.has_pooler:
      return shared.apply(models.Pooler(self.model), params['pooler'], hidden_BTD)
    return hidden_BTD

  @abc.abstractmethod
  def logit_terms(self, logits: jax.Array, batch: Batch) -> dict[str, Mean]:
    """The terms of a batch with these logits."""

  def terms(
    self, params: Any, batch: Batch, rng: Key, train: bool, carry: Any = None, constants: Any = None
  ) -> Terms:
    return self.logit_terms(self.logits(params, batch, rng if train else None), batch), carry

  def softmaxes(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """(logits [..., C], weights [...]) of the softmaxes in which a student and a teacher agree."""
    return logits, batch['weights']

  def soft(self, logits: jax.Array, theirs: jax.Array, batch: Batch, temperature: float) -> Mean:
    """The Mean of soft_nats between the logits of a batch and a teacher's logits."""
    mine, weights = self.softmaxes(logits, batch)
    theirs, _ = self.softmaxes(theirs, batch)
    return mean(soft_nats(mine, theirs, temperature), weights)

  def predict(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
    out = {name: batch[name] for name in self.beside}
    out['logits'] = self.logits(params, batch)
    return out
