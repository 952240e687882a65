"""Coreference of a pronoun: which of C candidates it stands for, if any.

As in Lee et al. 2017 (https://arxiv.org/abs/1707.07045) and Joshi et al. 2019
(https://arxiv.org/abs/1908.09091), without their features of head word, width and distance: a span
is represented by the hidden vectors of its first and its last token, and the score of a candidate c
for the pronoun p is FFNN([p; c; p * c]). "None of them" has the score 0. The softmax goes over all
these scores; with C = 1 it is a sigmoid.

B batch, N examples in a row, C candidates, S spans (pronoun, then candidates), D hidden.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.metrics import Mean
from bert_jax.models import layers
from bert_jax.models.dropout import Dropout
from bert_jax.objectives.base import Batch, Params, Spec
from bert_jax.objectives.examples import LabelledExamples
from bert_jax.objectives.losses import label_terms


@dataclasses.dataclass(frozen=True)
class Coreference(LabelledExamples):
  """Says which candidate a pronoun stands for. candidates: C. `spans` [B, N, S, 2] of a batch: the
  first and the last token of the pronoun and of each candidate; labels: the number of the right
  one, or C if there is none."""

  candidates: int

  part = 'scorer'
  answer_fields = ('candidates',)
  kinds = {'labels': jnp.int32}

  def spec(self, batch_size: int) -> Spec:
    shape = (batch_size, self.examples_per_row, 1 + self.candidates, 2)
    return super().spec(batch_size) | {'spans': jax.ShapeDtypeStruct(shape, jnp.int32)}

  def init(self, rng: jax.Array) -> Params:
    encoder_key, head_key = jax.random.split(rng)
    spans = jnp.zeros((1, 1, 1 + self.candidates, 2 * self.model.hidden_size))
    scorer = self.head.init(head_key, spans)
    return {
      'encoder': models.init_encoder(self.model, encoder_key),
      'scorer': scorer['params'],
    }

  @property
  def head(self) -> 'Scorer':
    """Gives the logits [B, N, C + 1], the last one for no candidate."""
    return Scorer(self.model)

  def inputs(self, params: Params, batch: Batch, hidden_BTD: jax.Array) -> jax.Array:
    B, N, S, _ = batch['spans'].shape
    ends = models.gather_positions(hidden_BTD, batch['spans'].reshape(B, -1))
    return ends.reshape(B, N, S, -1)

  def logit_terms(self, logits: jax.Array, batch: Batch) -> dict[str, Mean]:
    return label_terms('cross_entropy', logits, batch['labels'], batch['weights'], 'accuracy')


class Scorer(nn.Module):
  """Scores candidates: spans [B, N, S, 2 D], the pronoun first -> float32 [B, N, C + 1]."""

  config: models.ModelConfig

  @nn.compact
  def __call__(self, spans: jax.Array, deterministic: bool = True) -> jax.Array:
    config = self.config
    candidates = spans[:, :, 1:].astype(jnp.float32)  # [B, N, C, 2 D]
    pronoun = jnp.broadcast_to(spans[:, :, :1], candidates.shape).astype(jnp.float32)
    pairs = jnp.concatenate([pronoun, candidates, pronoun * candidates], axis=-1)
    pairs = Dropout(config.hidden_dropout_prob, deterministic)(pairs)
    hidden_BNCD = nn.relu(layers.exact_dense(config, config.hidden_size, 'hidden')(pairs))
    hidden_BNCD = Dropout(config.hidden_dropout_prob, deterministic)(hidden_BNCD)
    scores_BNC = layers.exact_dense(config, 1, 'score')(hidden_BNCD)[..., 0]
    none_of_them = (0, 0), (0, 0), (0, 1)
    return jnp.pad(scores_BNC, none_of_them)
