"""Knowledge distillation: a student learns its objective and, beside it, a teacher's answers.

The teacher reads the same batch, masks and all, without dropout, in the same step; its weights
never change (Objective.constants). For labelled examples the student learns the teacher's
probabilities (Hinton et al. 2015, https://arxiv.org/abs/1503.02531); in pre-training its
probabilities of masked words and the direction of its last hidden states (DistilBERT, Sanh et al.
2019, https://arxiv.org/abs/1910.01108). B batch, T tokens, D hidden, K predictions, V vocabulary.
"""

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.metrics import mean
from bert_jax.objectives.base import Batch, Key, Objective, Params, Terms
from bert_jax.objectives.encode import encode_mlm
from bert_jax.timeline import Moment


@jax.named_scope('loss')
def soft_nats(logits: jax.Array, theirs: jax.Array, temperature: float) -> jax.Array:
  """The Kullback-Leibler divergence [...] of a student from its teacher, by the logits [..., C] of
  both: the soft cross-entropy of Hinton et al. 2015 (https://arxiv.org/abs/1503.02531, section 2)
  at a temperature T, times T squared, which keeps its gradient as large at any T, minus the entropy
  of the teacher, so that agreement is 0. No gradient reaches the teacher."""
  theirs = jax.nn.log_softmax(jax.lax.stop_gradient(theirs) / temperature)
  mine = jax.nn.log_softmax(logits / temperature)
  return temperature**2 * jnp.sum(jnp.exp(theirs) * (theirs - mine), axis=-1)


def _of_student(name) -> Any:
  return property(operator.attrgetter(f'student.{name}'))


@dataclasses.dataclass(frozen=True)
class Distilled(Objective):
  """An objective of labelled examples, learned with a teacher. student: the objective without a
  teacher, whose parameters and batches this has. teacher: the objective of the teacher's model.
  weights: the teacher's parameters; fingerprint: a hash of them. The rest: config.distillation."""

  student: Any
  teacher: Any
  weights: Params = dataclasses.field(repr=False)
  fingerprint: str
  temperature: float
  soft_weight: float
  label_weight: float

  @property
  def loss_weights(self) -> dict[str, float]:
    own = {name: self.label_weight * x for name, x in self.student.loss_weights.items()}
    return own | {'soft': self.soft_weight}

  @property
  def metrics(self) -> tuple[str, ...]:
    return *self.student.metrics, 'soft'

  # The student's, as it would be without a teacher.
  labels = _of_student('labels')
  rows_meet = _of_student('rows_meet')
  spec = _of_student('spec')
  limits = _of_student('limits')
  init = _of_student('init')
  with_prior = _of_student('with_prior')
  adopted = _of_student('adopted')
  prepare = _of_student('prepare')
  counts = _of_student('counts')
  derived_metrics = _of_student('derived_metrics')
  predict = _of_student('predict')
  exported = _of_student('exported')

  def constants(self, config: Any) -> Any:
    return {'teacher': self.weights}

  def terms(
    self, params: Any, batch: Batch, rng: Key, train: bool, carry: Any = None, constants: Any = None
  ) -> Terms:
    logits = self.student.logits(params, batch, rng if train else None)
    theirs = self.teacher.logits(constants['teacher'], batch)
    soft = self.student.soft(logits, theirs, batch, self.temperature)
    return self.student.logit_terms(logits, batch) | {'soft': soft}, carry

  def flops(self, batch_size: int, moment: Moment | None = None) -> float:
    """The student's operations and a third of the teacher's: a step counts three forward passes,
    two of them for the backward pass, which a teacher does not have; an evaluation one of each."""
    student = self.student.flops(batch_size, moment)
    teacher = self.teacher.flops(batch_size, moment)
    is_step = moment is None or moment.train
    return student + (teacher / 3 if is_step else teacher)


@dataclasses.dataclass(frozen=True)
class DistilledLanguageModel(Distilled):
  """Masked language modelling with a teacher; both are MlmNsp, compared at masked words only."""

  hidden_weight: float = 1.0

  @property
  def loss_weights(self) -> dict[str, float]:
    weights = super().loss_weights
    if self.hidden_weight:
      weights['cosine'] = self.hidden_weight
    return weights

  @property
  def metrics(self) -> tuple[str, ...]:
    metrics = super().metrics
    return (*metrics, 'cosine') if self.hidden_weight else metrics

  def terms(
    self, params: Any, batch: Batch, rng: Key, train: bool, carry: Any = None, constants: Any = None
  ) -> Terms:
    hidden_BTD = encode_mlm(self.student.model, params, batch, rng if train else None)
    terms, mine_BKV = self.student.hidden_terms(params, batch, hidden_BTD, train)
    teacher = self.teacher.model
    weights = jax.lax.stop_gradient(constants['teacher'])
    theirs_BTD = encode_mlm(teacher, weights, batch)
    at_masks_BKD = models.gather_positions(theirs_BTD, batch['masked_positions'])
    theirs_BKV = models.word_logits(teacher, weights, at_masks_BKD)
    # Both tables may be padded to different numbers of rows.
    V = min(self.student.model.vocab_size, teacher.vocab_size)
    nats_BK = soft_nats(mine_BKV[..., :V], theirs_BKV[..., :V], self.temperature)
    terms['soft'] = mean(nats_BK, batch['masked_weights'])
    if self.hidden_weight:
      real_BT = (batch['segment_ids'] > 0).astype(jnp.float32)
      terms['cosine'] = mean(1 - cosine(hidden_BTD, theirs_BTD), real_BT)
    return terms, carry


@jax.named_scope('loss')
def cosine(x: jax.Array, y: jax.Array) -> jax.Array:
  """The cosine [...] of the angle between vectors [..., D], in float32; 0 for a zero vector."""
  x = x.astype(jnp.float32)
  y = y.astype(jnp.float32)
  squares = jnp.sum(x * x, axis=-1) * jnp.sum(y * y, axis=-1)
  product = jnp.sum(x * y, axis=-1)
  return product * jax.lax.rsqrt(squares + 1e-12)
