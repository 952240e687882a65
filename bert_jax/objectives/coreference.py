"""Which of C candidates a pronoun stands for, or none of them.

A span is its first and its last hidden vector, and a candidate's score is FFNN([p; c; p * c]), as
in Lee et al. 2017 (https://arxiv.org/abs/1707.07045) and Joshi et al. 2019
(https://arxiv.org/abs/1908.09091), without their head word, width and distance. None of them has
the score 0, theirs too; the softmax goes over the candidates and it. With C = 1 that is a sigmoid.

B batch, N examples in a row, C candidates, S spans (pronoun, then candidates), D hidden.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.models import common
from bert_jax.models.dropout import Dropout
from bert_jax.objectives import base


@dataclasses.dataclass(frozen=True)
class Coreference(base.Objective):
  """scores: what the task's scorer adds to the metrics. A row may hold several packed examples."""

  model: models.ModelConfig
  seq_length: int
  candidates: int
  examples_per_row: int = 1
  scores: tuple[str, ...] = ()

  @property
  def loss_weights(self):
    return {'coreference': 1.0}

  @property
  def metrics(self):
    return 'coreference', 'coreference_accuracy', *self.scores

  def spec(self, batch_size):
    out = base.row_spec(batch_size, self.seq_length) | base.slot_spec(
      batch_size, self.examples_per_row, example_ids=jnp.int32, labels=jnp.int32
    )
    shape = (batch_size, self.examples_per_row, 1 + self.candidates, 2)
    return out | {'spans': jax.ShapeDtypeStruct(shape, jnp.int32)}

  def init(self, rng):
    encoder_key, head_key = jax.random.split(rng)
    spans = jnp.zeros((1, 1, 1 + self.candidates, 2 * self.model.hidden_size))
    return {
      'encoder': models.init_encoder(self.model, encoder_key),
      'scorer': Scorer(self.model).init(head_key, spans)['params'],
    }

  def logits(self, params, batch, rng=None):
    """[B, N, C + 1], the last one of no candidate; rng turns dropout on."""
    hidden_key, head_key = (None, None) if rng is None else jax.random.split(rng)
    hidden_BTD = base.encode(self.model, params['encoder'], batch, hidden_key)
    B, N, S, _ = batch['spans'].shape
    ends = models.gather_positions(hidden_BTD, batch['spans'].reshape(B, N * S * 2))
    return Scorer(self.model).apply(
      {'params': params['scorer']},
      ends.reshape(B, N, S, -1),
      rng is None,
      rngs={} if rng is None else {'dropout': head_key},
    )

  def terms(self, params, batch, rng, train, carry=None, given=None):
    logits = self.logits(params, batch, rng if train else None)
    return base.label_terms('coreference', logits, batch['labels'], batch['weights']), carry

  def predict(self, params, batch, rng=None, carry=None, given=None):
    """logits [B, N, C + 1], with the numbers of the examples."""
    return {'logits': self.logits(params, batch), 'example_ids': batch['example_ids']}

  def flops(self, batch_size):
    D, pairs = self.model.hidden_size, batch_size * self.examples_per_row * self.candidates
    encoder = models.encoder_flops(self.model, batch_size, self.seq_length)
    return encoder + 2 * pairs * (6 * D * D + D)


class Scorer(nn.Module):
  """Spans [B, N, S, 2 D], the pronoun first -> scores [B, N, C + 1], the last one 0; in float32."""

  config: common.ModelConfig

  @nn.compact
  def __call__(self, spans, deterministic=True):
    config = self.config
    candidates = spans[:, :, 1:].astype(jnp.float32)
    pronoun = jnp.broadcast_to(spans[:, :, :1], candidates.shape).astype(jnp.float32)
    x = jnp.concatenate([pronoun, candidates, pronoun * candidates], axis=-1)
    x = Dropout(config.hidden_dropout_prob, deterministic)(x)
    x = nn.Dense(config.hidden_size, kernel_init=common.initializer(config), name='hidden')(x)
    x = Dropout(config.hidden_dropout_prob, deterministic)(nn.relu(x))
    scores_BNC = nn.Dense(1, kernel_init=common.initializer(config), name='score')(x)[..., 0]
    return jnp.pad(scores_BNC, ((0, 0), (0, 0), (0, 1)))
