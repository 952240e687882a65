"""What objectives share: arrays of a batch, hidden states of an encoder, pooling, parameters.

B batch, T tokens, N examples in a row, D hidden size, C classes.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax import models
from bert_jax.models import ModelConfig, heads, layers, pooling
from bert_jax.objectives import mask_decoder
from bert_jax.objectives.base import Batch, Key, Params, Spec
from bert_jax.rows.row_arrays import TOKENS


def row_spec(batch_size: int, seq_length: int) -> Spec:
  """The four arrays that describe the tokens of a batch, each [B, T] int32."""
  return dict.fromkeys(TOKENS, jax.ShapeDtypeStruct((batch_size, seq_length), jnp.int32))


def cut_rows(batch: Batch, length: int | jax.Array) -> Batch:
  """Cuts the examples of a batch at multiples of `length`, an int or an int32 scalar: no token sees
  beyond a cut, and positions begin anew. Parts get segment ids from 1 on, as examples do."""
  position_BT = batch['position_ids'] % length
  real_BT = batch['segment_ids'] > 0
  segment_BT = jnp.cumsum(real_BT & (position_BT == 0), axis=1, dtype=jnp.int32)
  segment_BT = jnp.where(real_BT, segment_BT, 0)
  return {**batch, 'segment_ids': segment_BT, 'position_ids': position_BT}


def slot_spec(batch_size: int, slots: int, **kinds: Any) -> Spec:
  """Arrays [B, N] with a number for each example of each row: where it starts, its weight (1, or 0
  for an empty slot), and further arrays `kinds`: {name: data type}."""
  kinds = {'cls_positions': jnp.int32, 'weights': jnp.float32} | kinds
  return {name: jax.ShapeDtypeStruct((batch_size, slots), kind) for name, kind in kinds.items()}


def encode(
  model: ModelConfig, params: Params, batch: Batch, rng: Key = None, causal: models.Causal = False
) -> jax.Array:
  """Hidden states [B, T, D] of the encoder; rng turns dropout on."""
  return apply(
    models.Encoder(model),
    params,
    batch['input_ids'],
    batch['token_type_ids'],
    batch['position_ids'],
    batch['segment_ids'],
    rng=rng,
    causal=causal,
  )


def encode_mlm(model: ModelConfig, params: Params, batch: Batch, rng: Key = None) -> jax.Array:
  """Hidden states [B, T, D] from which masked words are predicted: of the encoder, or, if the model
  has one, of its mask decoder. params: {'encoder', 'mlm': parameters}; rng turns dropout on."""
  if not model.mask_decoder:
    return encode(model, params['encoder'], batch, rng)
  return mask_decoder.encode(model, params, batch, rng)


def pooled(model: ModelConfig, params: Params, batch: Batch, x_BTD: jax.Array) -> jax.Array:
  """The pooled [CLS] of each example, [B, N, D]; of its last token if the model is causal
  (GPT), since no other token sees the whole example."""
  positions_BN = batch['cls_positions']
  if model.causal:
    positions_BN = pooling.last_positions(batch['segment_ids'], positions_BN)
  at_cls_BND = models.gather_positions(x_BTD, positions_BN)
  return apply(models.Pooler(model), params.get('pooler', {}), at_cls_BND)


def text_vectors(
  model: ModelConfig, params: Params, x_BTD: jax.Array, batch: Batch, kind: str, skipped: int = 0
) -> jax.Array:
  """The vectors [B, N, vector_size] float32 of the texts of each row: pooled hidden states (see
  pooling.text_vectors) and, if the model has one, its projection of them."""
  x_BND = pooling.text_vectors(x_BTD, batch, kind, skipped)
  if not model.projection_size:
    return x_BND
  return apply(heads.Projection(model), params['projection'], x_BND)


def init_projection(model: ModelConfig, rng: jax.Array) -> dict[str, Any]:
  """Initial {'projection': parameters} of a model; {} if it has none."""
  if not model.projection_size:
    return {}
  x_BND = jnp.zeros((1, 1, model.hidden_size))
  return {'projection': heads.Projection(model).init(rng, x_BND)['params']}


def next_tokens(batch: Batch) -> tuple[jax.Array, jax.Array]:
  """(labels [B, T], weights [B, T]): the token after each, and 1 if it is in the same example."""
  segments_BT = batch['segment_ids']
  one_later = (0, 0), (0, 1)
  labels_BT = jnp.pad(batch['input_ids'][:, 1:], one_later)
  next_BT = jnp.pad(segments_BT[:, 1:], one_later)
  counts_BT = (segments_BT > 0) & (next_BT == segments_BT)
  return labels_BT, counts_BT.astype(jnp.float32)


def init_words(model: ModelConfig, rng: jax.Array, encoder: Params) -> dict[str, Any]:
  """Initial {'mlm': parameters} of the MLM head over an encoder, and of a mask decoder between
  them; {} if there are none."""
  x_BKD = jnp.zeros((1, 1, model.hidden_size))
  variables: Any = models.MaskedLMHead(model).init(rng, x_BKD, models.word_table(encoder))
  params = dict(variables.get('params', {}))
  if model.mask_decoder:
    key = jax.random.fold_in(rng, 0)
    shape = model.max_position_embeddings, model.hidden_size
    params[mask_decoder.TABLE] = {'embedding': layers.initializer(model)(key, shape)}
  return {'mlm': params} if params else {}


def init_model(
  model: ModelConfig, rng: jax.Array, heads: Mapping[str, nn.Module]
) -> dict[str, Any]:
  """Initial parameters of an encoder and of the heads, {name: module}, which read its vectors."""
  encoder_key, *keys = jax.random.split(rng, 1 + len(heads))
  x_BND = jnp.zeros((1, 1, model.hidden_size))
  params = {'encoder': models.init_encoder(model, encoder_key)}
  for key, (name, head) in zip(keys, heads.items()):
    variables = head.init(key, x_BND)
    if variables:
      params[name] = variables['params']
  return params


def two_keys(rng: Key) -> tuple[Key, Key]:
  """Independent keys for dropout in the encoder and in the head; (None, None) from None."""
  if rng is None:
    return None, None
  encoder, head = jax.random.split(rng)
  return encoder, head


def apply(module: nn.Module, params: Params, *arrays: Any, rng: Key = None, **options: Any) -> Any:
  """Applies a module to arrays; rng turns its dropout on."""
  if rng is not None:
    options |= {'deterministic': False, 'rngs': {'dropout': rng}}
  return module.apply({'params': params}, *arrays, **options)
