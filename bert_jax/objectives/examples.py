"""Base classes for objectives of labelled examples. A row may hold several examples."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.metrics import Mean, mean
from bert_jax.objectives.base import Batch, Objective, Params, Spec
from bert_jax.objectives.encode import init_model, pooled_logits, row_spec, slot_spec
from bert_jax.objectives.losses import soft_nats


@dataclasses.dataclass(frozen=True)
class LabelledExamples(Objective):
  """What the objectives of labelled examples share. Subclasses have `logits`, and `logit_terms`:
  {name: Mean} of the terms of a batch with these logits.

  scores: metrics that the task's scorer computes. kinds: {name: data type} of further numbers of an
  example, besides slot_spec's. beside: arrays of a batch that predict returns beside the logits.
  reports: the names of its terms.
  """

  model: models.ModelConfig
  seq_length: int
  examples_per_row: int = dataclasses.field(default=1, kw_only=True)
  scores: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)

  kinds, beside, reports = {}, ('example_ids',), ()

  @property
  def metrics(self) -> tuple[str, ...]:
    return *self.reports, *self.scores

  def spec(self, batch_size: int) -> Spec:
    kinds = {'example_ids': jnp.int32} | self.kinds
    slots = slot_spec(batch_size, self.examples_per_row, **kinds)
    return row_spec(batch_size, self.seq_length) | slots

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    return self.logit_terms(self.logits(params, batch, rng if train else None), batch), carry

  def softmaxes(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """(logits [..., C], weights [...]): the softmaxes over the last axis in which a student is to
    agree with its teacher."""
    return logits, batch['weights']

  def soft(self, logits: jax.Array, theirs: jax.Array, batch: Batch, temperature: float) -> Mean:
    """The Mean of soft_nats between the logits of a batch and a teacher's logits."""
    (mine, weights), (theirs, _) = (self.softmaxes(x, batch) for x in (logits, theirs))
    return mean(soft_nats(mine, theirs, temperature), weights)

  def predict(self, params, batch, rng=None, carry=None, constants=None):
    return {'logits': self.logits(params, batch)} | {name: batch[name] for name in self.beside}


class Pooled(LabelledExamples):
  """Gives each example logits by `head`, a module, over its pooled [CLS] (BERT, 3.2)."""

  def init(self, rng: jax.Array) -> Params:
    return init_model(self.model, rng, pooler=models.Pooler(self.model), classifier=self.head)

  def logits(self, params: Params, batch: Batch, rng: jax.Array | None = None) -> jax.Array:
    """The logits [B, N, C] of examples; rng turns dropout on."""
    return pooled_logits(self.model, self.head, params, batch, rng)
