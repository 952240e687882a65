"""Contrastive learning of sentence vectors: texts that belong together become similar.

in_batch   an item is an anchor, its positive and perhaps hard negatives. The loss is the
           cross-entropy of the positive among the positives and negatives of the global batch, by
           similarity / temperature (Henderson et al. 2017, https://arxiv.org/abs/1705.00652). Texts
           known to be no negatives of an anchor are masked
cosent     an item is a pair with a score. Of two pairs, the one with the higher score is to be more
           similar: log(1 + the sum of exp((similarity of the lower - of the higher) / temperature))
           over all two pairs of the batch with different scores (CoSENT, Su 2022)

If both sides of a pair are the same text, it is encoded twice, with two draws of dropout (SimCSE,
Gao et al. 2021, https://arxiv.org/abs/2104.08821). The losses of several widths, each of the first
numbers of the vectors, add up (Matryoshka, Kusupati et al. 2022,
https://arxiv.org/abs/2205.13147). With chunks, the batch is encoded chunk by chunk, and again for
the gradient, which is exact (GradCache, Gao et al. 2021, https://arxiv.org/abs/2101.06983).

B rows, T tokens, N texts in a row, K texts of an item, P items of the batch, D width, C candidates:
the positives of all items, and then their negatives.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.metrics import Mean, mean
from bert_jax.models.layers import EXACT
from bert_jax.objectives.base import Batch, Key, Params, Spec, Terms
from bert_jax.objectives.encode import encode, init_model, init_projection, text_vectors
from bert_jax.objectives.examples import ExampleRows
from bert_jax.objectives.losses import label_nats
from bert_jax.rows.row_arrays import TOKENS

LOSSES = 'in_batch', 'cosent'


@dataclasses.dataclass(frozen=True)
class Contrastive(ExampleRows):
  """Learns sentence vectors.

  loss: one of LOSSES.
  texts: K texts of an item, in neighbouring slots of a row: anchor, positive, negatives.
  widths: each has a loss of its own; (): the whole width.
  normalize: similarity is the cosine, else the product.
  chunks: parts in which a batch is encoded."""

  rows_meet: ClassVar[bool] = True
  loss: str
  texts: int
  temperature: float
  widths: tuple[int, ...]
  pooling: str
  normalize: bool
  chunks: int

  @property
  def losses_by_width(self) -> dict[int, str]:
    """{width: the name of its loss}, the widest last."""
    widths = sorted(self.widths)
    return {w: f'{self.loss}_{w}' for w in widths} or {self.model.vector_size: self.loss}

  @property
  def loss_weights(self) -> dict[str, float]:
    return dict.fromkeys(self.losses_by_width.values(), 1.0)

  @property
  def metrics(self) -> tuple[str, ...]:
    more = ()
    if self.loss == 'in_batch':
      more = 'in_batch_accuracy', 'in_batch_accuracy_chance', 'false_negatives'
    return *self.loss_weights, *more, *self.scores

  def spec(self, batch_size: int) -> Spec:
    out = super().spec(batch_size)
    slots = out['weights'].shape
    if self.loss == 'in_batch':
      return out | {'text_ids': jax.ShapeDtypeStruct(slots, jnp.int32)}
    return out | {'scores': jax.ShapeDtypeStruct(slots, jnp.float32)}

  def init(self, rng: jax.Array) -> Params:
    projection = init_projection(self.model, jax.random.fold_in(rng, 1))
    return init_model(self.model, rng, {}) | projection

  def vectors(self, params: Params, batch: Batch, rng: Key = None) -> jax.Array:
    """The vectors [B, N, D] float32 of texts, neither cut nor scaled; rng turns dropout on."""

    def vectors_of(rows, rng):
      hidden_BTD = encode(self.model, params['encoder'], rows, rng)
      return text_vectors(self.model, params, hidden_BTD, rows, self.pooling)

    if self.chunks == 1:
      return vectors_of(batch, rng)

    @jax.checkpoint
    def in_chunk(part):
      i, rows = part
      return vectors_of(rows, None if rng is None else jax.random.fold_in(rng, i))

    # Chunk i has the rows i, i + chunks, ..: interleaved, so that rows stay on their devices.
    rows = {}
    for name in (*TOKENS, 'cls_positions'):
      x = batch[name]
      rows[name] = x.reshape(-1, self.chunks, *x.shape[1:]).swapaxes(0, 1)
    vectors = jax.lax.map(in_chunk, (jnp.arange(self.chunks), rows))
    vectors = vectors.swapaxes(0, 1)
    return vectors.reshape(-1, *vectors.shape[2:])

  def predict(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
    return {'vectors': self.vectors(params, batch), 'example_ids': batch['example_ids']}

  def terms(
    self, params: Any, batch: Batch, rng: Key, train: bool, carry: Any = None, constants: Any = None
  ) -> Terms:

    def by_item(x):
      return x.reshape(-1, self.texts, *x.shape[2:])

    vectors_BND = self.vectors(params, batch, rng if train else None)
    vectors_PKD = by_item(vectors_BND)
    there_PK = by_item(batch['weights'])
    with jax.named_scope('loss'):
      if self.loss == 'cosent':
        scores_P = by_item(batch['scores'])[:, 0]

        def of_scores(part_PKD):
          return cosent(part_PKD, scores_P, there_PK, self.temperature)

        return self._by_width(vectors_PKD, of_scores), carry
      negative_PC, false_PC = negatives(by_item(batch['text_ids']), there_PK)

      def of_pairs(part_PKD):
        return in_batch(part_PKD, there_PK, negative_PC, self.temperature)

      out = self._by_width(vectors_PKD, of_pairs)
      is_pair_P = there_PK[:, 0] * there_PK[:, 1]
      candidates_PC = is_pair_P[:, None] * (negative_PC | false_PC)
      if not train:
        chance_P = 1 / (1 + jnp.sum(negative_PC, axis=1))
        out['in_batch_accuracy_chance'] = mean(chance_P, is_pair_P)
      out['false_negatives'] = mean(false_PC.astype(jnp.float32), candidates_PC)
      return out, carry

  def _by_width(self, vectors_PKD, terms_of):
    """The loss of each width, and the other terms of the widest: {name: Mean}. terms_of: a function
    of vectors [P, K, width]."""
    out = {}
    for width, name in self.losses_by_width.items():
      part_PKD = vectors_PKD[..., :width]
      if self.normalize:
        part_PKD = unit(part_PKD)
      terms = terms_of(part_PKD)
      out[name] = terms.pop(self.loss)
      out |= terms
    return out


def unit(x: jax.Array) -> jax.Array:
  """Scales vectors [..., D] to length 1; zeros stay zeros, with a finite gradient."""
  squares = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))


def negatives(ids_PK: jax.Array, there_PK: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(is it a negative, is it known to be none), each [P, C] bool: all candidates of each anchor but
  its own positive. The anchor itself is no negative, nor is a positive that any item has for it.

  ids: equal for equal texts.
  there: 0 where an item has no text."""
  P, _ = ids_PK.shape
  anchors_P, positives_P = ids_PK[:, 0], ids_PK[:, 1]
  ids_C = ids_PK[:, 1:].T.ravel()
  there_C = there_PK[:, 1:].T.ravel()
  own_PC = jnp.arange(P)[:, None] == jnp.arange(ids_C.size)
  # The batch knows all positives of an anchor that it has in several items. Items are sorted by
  # anchor, and each turn of the loop compares the next positive of every anchor: no array is P x P,
  # and the arrays [P, C] stay split by anchor.
  order_P = jnp.argsort(anchors_P)
  sorted_P = anchors_P[order_P]
  first_P = jnp.searchsorted(sorted_P, anchors_P, side='left')
  end_P = jnp.searchsorted(sorted_P, anchors_P, side='right')

  def compared(i, known_PC):
    has_more_P = first_P + i < end_P
    positive_P = positives_P[order_P[jnp.minimum(first_P + i, P - 1)]]
    is_known_PC = has_more_P[:, None] & (positive_P[:, None] == ids_C)
    return nn.with_logical_constraint(known_PC | is_known_PC, ('batch', None))

  is_item_P = (there_PK[:, 0] > 0) & (there_PK[:, 1] > 0)  # empty items are all alike
  most = jnp.max(jnp.where(is_item_P, end_P - first_P, 0))
  known_PC = jax.lax.fori_loop(0, most, compared, ids_C == anchors_P[:, None])
  others_PC = (there_C > 0) & ~own_PC
  return others_PC & ~known_PC, others_PC & known_PC


def in_batch(
  vectors_PKD: jax.Array, there_PK: jax.Array, negative_PC: jax.Array, temperature: float
) -> dict[str, Mean]:
  """The loss in_batch: {'in_batch': cross-entropy in nats, 'in_batch_accuracy'}, Means."""
  P, _, D = vectors_PKD.shape
  anchors_PD = vectors_PKD[:, 0]
  candidates_CD = vectors_PKD[:, 1:].swapaxes(0, 1).reshape(-1, D)
  similar_PC = jnp.einsum('pd,cd->pc', anchors_PD, candidates_CD, precision=EXACT)
  logits_PC = temperature**-1 * similar_PC
  own_PC = jnp.arange(P)[:, None] == jnp.arange(len(candidates_CD))
  logits_PC = jnp.where(own_PC | negative_PC, logits_PC, -jnp.inf)
  nats_P, hits_P = label_nats(logits_PC, jnp.arange(P))
  weights_P = there_PK[:, 0] * there_PK[:, 1]
  return {
    'in_batch': mean(nats_P, weights_P),
    'in_batch_accuracy': mean(hits_P, weights_P),
  }


def cosent(
  vectors_PKD: jax.Array, scores_P: jax.Array, there_PK: jax.Array, temperature: float
) -> dict[str, Mean]:
  """The loss {'cosent': Mean}; its weight is 1, or 0 if no two pairs have different scores."""
  similar_P = jnp.sum(vectors_PKD[:, 0] * vectors_PKD[:, 1], axis=-1) / temperature
  there_P = there_PK[:, 0] * there_PK[:, 1] > 0
  # Row: the pair whose score is higher; column: the one that should be less similar.
  higher_PP = (scores_P[:, None] > scores_P) & there_P[:, None] & there_P
  excess_PP = jnp.where(higher_PP, similar_P - similar_P[:, None], -jnp.inf)
  total = jax.nn.logsumexp(jnp.append(excess_PP.ravel(), 0.0))
  weight = jnp.any(higher_PP).astype(jnp.float32)
  return {'cosent': Mean(total * weight, weight)}
