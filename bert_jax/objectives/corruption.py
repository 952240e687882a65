"""Masking: pure functions of (rng, batch) that run on the device inside the step."""

import jax
import jax.numpy as jnp


def mask_tokens(
  rng,
  input_ids_BT,
  segment_ids_BT,
  *,
  special_ids,
  mask_id,
  vocab_size,
  masked_lm_prob,
  max_predictions,
  mask_share,
  random_share,
):
  """BERT's masking: chooses tokens to predict and hides most of them.

  In each row min(max_predictions, max(1, round(masked_lm_prob * real tokens))) tokens are chosen,
  uniformly among those that are neither special nor padding; of the chosen, mask_share become
  [MASK], random_share a piece drawn uniformly from the vocabulary without special_ids, the rest
  stay (google-research/bert, create_pretraining_data.py; there [UNK] is predicted too, here it is
  special like the others).

  Returns (corrupted ids [B, T], positions [B, K], labels [B, K], weights [B, K] of 0.0 or 1.0) with
  K = max_predictions; a slot of weight 0 predicts nothing.
  """
  pick_key, action_key, random_key = jax.random.split(rng, 3)
  special = jnp.asarray(special_ids)
  candidate_BT = (segment_ids_BT > 0) & ~jnp.isin(input_ids_BT, special)

  K = min(max_predictions, input_ids_BT.shape[1])
  order_BT = jnp.where(candidate_BT, jax.random.uniform(pick_key, input_ids_BT.shape), -1.0)
  score_BK, positions_BK = jax.lax.top_k(order_BT, K)
  # The number for each length comes from a table, since Python's round is not float32's.
  lengths = range(input_ids_BT.shape[1] + 1)
  wanted = jnp.array([min(K, max(1, round(masked_lm_prob * length))) for length in lengths])
  wanted_B = wanted[jnp.sum(segment_ids_BT > 0, axis=1)]
  chosen_BK = (jnp.arange(K) < wanted_B[:, None]) & (score_BK >= 0)

  labels_BK = jnp.take_along_axis(input_ids_BT, positions_BK, axis=1)
  action_BK = jax.random.uniform(action_key, labels_BK.shape)
  # A draw among the ordinary pieces, then stepped over every special id at or below it.
  random_BK = jax.random.randint(random_key, labels_BK.shape, 0, vocab_size - len(special_ids))
  steps = jnp.sort(special) - jnp.arange(len(special_ids))
  random_BK += jnp.sum(steps <= random_BK[..., None], axis=-1)
  new_BK = jnp.where(
    action_BK < mask_share,
    mask_id,
    jnp.where(action_BK < mask_share + random_share, random_BK, labels_BK),
  )
  new_BK = jnp.where(chosen_BK, new_BK, labels_BK)
  rows = jnp.arange(input_ids_BT.shape[0])[:, None]
  corrupted_BT = input_ids_BT.at[rows, positions_BK].set(new_BK.astype(input_ids_BT.dtype))
  return corrupted_BT, positions_BK, labels_BK, chosen_BK.astype(jnp.float32)
