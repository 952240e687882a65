"""BART's text infilling: spans of a text, each replaced by a single [MASK].

Lewis et al. 2019 (https://arxiv.org/abs/1910.13461), 2.2. The lengths of spans are Poisson's (mean
3); a span of length 0 is a [MASK] between two tokens. A fixed share of each text is hidden (30 %),
and the last span is cut to fit. A pure function that runs on the device inside the training step.
B batch, T tokens, A atoms.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.mixers import shifted
from bert_jax.objectives.masking import last_true

LONGEST = 24  # the longest span; 1 in 10^14 of Poisson's lengths with mean 3 is longer


def infill(
  rng: jax.Array,
  input_ids_BT: jax.Array,
  segment_ids_BT: jax.Array,
  *,
  rate: float,
  mean_span: float,
  mask_id: int,
) -> dict[str, jax.Array]:
  """Hides a share `rate` of the tokens of each segment, in spans of mean_span tokens on average.

  The first and the last token of a segment, [CLS] and [SEP], stay. The text between them is cut
  into atoms, each a span to be hidden or a single token to be kept. The order of spans and kept
  tokens is drawn at random; the tokens themselves stay in order. There are at least as many hidden
  tokens as spans, so no segment grows.

  Returns input_ids, segment_ids, position_ids [B, T] of the texts with masks; how many tokens are
  between [CLS] and [SEP] (`ordinary` [B]), and how many of them are `hidden` [B]."""
  length_key, order_key = jax.random.split(rng)
  B, T = input_ids_BT.shape
  real_BT = segment_ids_BT > 0
  first_BT = real_BT & (shifted(segment_ids_BT, -1) != segment_ids_BT)
  last_BT = real_BT & (shifted(segment_ids_BT, 1) != segment_ids_BT)
  ordinary_BT = real_BT & ~first_BT & ~last_BT
  begin_BT = last_true(first_BT)

  def before(x_BT):
    """[B, T]: the sum of x over the ordinary tokens before each token in its segment."""
    sums_BT = jnp.cumsum(x_BT * ordinary_BT, axis=1)  # the first token of a segment adds nothing
    return sums_BT - x_BT * ordinary_BT - jnp.take_along_axis(sums_BT, begin_BT, axis=1)

  rank_BT = before(jnp.ones_like(input_ids_BT))
  end_BT = T - 1 - last_true(last_BT[:, ::-1])[:, ::-1]
  size_BT = jnp.take_along_axis(rank_BT, end_BT, axis=1)  # of the segment
  # How many tokens are hidden of a segment, by its size.
  budgets = jnp.array([min(n, max(1, round(rate * n))) for n in range(T + 1)])
  budget_BT = budgets[size_BT]
  # The array of atoms has two places for each token of rank r in its segment: one for the r-th kept
  # token and one for the r-th span. Places beyond the numbers of both are not used.
  draws_BT = jax.random.uniform(length_key, (B, T))
  span_BT = jnp.sum(draws_BT[..., None] >= jnp.asarray(poisson(mean_span)), axis=-1)
  left_BT = budget_BT - before(span_BT)
  is_span_BT = ordinary_BT & (left_BT > 0) & (rank_BT < budget_BT)
  is_last_BT = rank_BT == budget_BT - 1
  span_BT = jnp.where(is_last_BT, left_BT, jnp.minimum(span_BT, left_BT))
  span_BT = span_BT * is_span_BT
  is_kept_BT = ordinary_BT & (rank_BT < size_BT - budget_BT)

  # In the new order a row has, for each of its segments, [CLS], the atoms, [SEP].
  place_BT = 8 * segment_ids_BT + jnp.where(first_BT, -2, jnp.where(last_BT, 2, 0))
  keys_BA = jnp.concatenate([place_BT, 8 * segment_ids_BT], axis=1)
  keys_BA += jax.random.uniform(order_key, (B, 2 * T))
  used_BA = jnp.concatenate([is_kept_BT | first_BT | last_BT, is_span_BT], axis=1)
  order_BA = jnp.argsort(jnp.where(used_BA, keys_BA, jnp.inf), axis=1)
  out = _atoms_in_order(order_BA, used_BA, span_BT, input_ids_BT, segment_ids_BT, mask_id)
  out['ordinary'] = jnp.sum(ordinary_BT, axis=1)
  out['hidden'] = jnp.sum(span_BT, axis=1)
  return out


def _atoms_in_order(order_BA, used_BA, span_BT, input_ids_BT, segment_ids_BT, mask_id):
  """Writes the atoms of rows in a new order: {input_ids, segment_ids, position_ids: [B, T]}."""
  T = input_ids_BT.shape[1]
  length_BA = jnp.concatenate([jnp.ones_like(span_BT), span_BT], axis=1)
  segments_BA = jnp.concatenate([segment_ids_BT, segment_ids_BT], axis=1)

  def in_order(x_BA):
    return jnp.take_along_axis(x_BA, order_BA, axis=1)[:, :T]  # the others are not used

  used_BT = in_order(used_BA)
  length_BT = in_order(length_BA)
  segments_BT = in_order(segments_BA)
  at_BT = jnp.cumsum(length_BT, axis=1) - length_BT  # where the atom stands in the text
  ids_BT = jnp.take_along_axis(input_ids_BT, jnp.minimum(at_BT, T - 1), axis=1)
  ids_BT = jnp.where(order_BA[:, :T] >= T, mask_id, ids_BT)
  segments_BT = jnp.where(used_BT, segments_BT, 0)
  starts_BT = last_true(shifted(segments_BT, -1) != segments_BT)
  return {
    'input_ids': jnp.where(used_BT, ids_BT, 0),
    'segment_ids': segments_BT,
    'position_ids': jnp.where(used_BT, jnp.arange(T) - starts_BT, 0),
  }


def poisson(mean: float) -> np.ndarray:
  """Poisson's cumulative distribution: P(length <= 0), P(length <= 1) .. P(<= LONGEST - 1)."""
  return np.cumsum([math.exp(-mean) * mean**k / math.factorial(k) for k in range(LONGEST)])
