"""Multiple choice: a logit for the pooled [CLS] of each choice, a softmax over each question's.

As Radford et al. 2018 and BERT (4.4, SWAG). Each choice of a question is an example with its own
segment, all in one row. A row may hold several questions: the choices of one have the same number
in `groups`. B batch, N examples (choices) in a row of T tokens.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.metrics import Mean, mean
from bert_jax.objectives.base import Batch, Key, Params
from bert_jax.objectives.examples import LabelledExamples


@dataclasses.dataclass(frozen=True)
class Choice(LabelledExamples):
  """Multiple choice; an example is a choice, not a question. labels of a batch: 1 for the right
  choice; 0 for the others, and for all if the answer is unknown."""

  outputs = 1
  kinds = {'groups': jnp.int32, 'labels': jnp.float32}

  def logits(self, params: Params, batch: Batch, rng: Key = None) -> jax.Array:
    return super().logits(params, batch, rng)[..., 0]

  def softmaxes(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """The logits [B, N, N] of each choice's softmax, which runs over all choices of its question,
    and weights [B, N]: a question counts at its right choice."""
    groups_BN = batch['groups']
    same_BNN = groups_BN[:, :, None] == groups_BN[:, None, :]
    others_BNN = jnp.where(same_BNN, logits[:, None, :], jnp.finfo(logits.dtype).min)
    return others_BNN, batch['labels'] * batch['weights']

  def logit_terms(self, logits: jax.Array, batch: Batch) -> dict[str, Mean]:
    others_BNN, gold_BN = self.softmaxes(logits, batch)
    nats_BN = jax.nn.logsumexp(others_BNN, axis=-1) - logits
    # A tie is a miss, as in label_terms.
    hits_BN = jnp.sum(others_BNN >= logits[:, :, None], axis=-1) == 1
    return {
      'cross_entropy': mean(nats_BN, gold_BN),
      'accuracy': mean(hits_BN.astype(jnp.float32), gold_BN),
    }
