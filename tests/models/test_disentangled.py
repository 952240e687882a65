"""Disentangled attention and the enhanced mask decoder, against loops over (query, key)."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from references import drawn, float64
from test_models import batch, hidden, model, weights

from bert_jax import models
from bert_jax.models import relative
from bert_jax.objectives import encode, mask_decoder

# Rows of 20 tokens are longer than the buckets reach (11), and more than twice as long as some (7).
DEBERTA = dict(position_embeddings='disentangled', max_relative_positions=11, position_buckets=6)
DEBERTA |= dict(type_vocab_size=0, layer_norm_eps=0.01)


def row_of(config, distance):
  """The row of the table for a distance: He et al. 2020, equation 3, and its buckets, by math."""
  longest, side = config.max_relative_positions, config.distance_rows // 2
  if near := config.position_buckets // 2:
    size = abs(distance)
    if size > near:
      share = math.log(size / near) / math.log((longest - 1) / near)
      distance = math.copysign(near + math.ceil(share * (near - 1) - 1e-9), distance)
  return int(min(max(distance + side, 0), 2 * side - 1))


def attend(config, p, asking, x, seen, r):
  """A layer's attention of vectors `asking` over x, both [B, T, D]; r: vectors of distances [R, D].
  One score after the other."""
  B, T, D = x.shape
  H, terms = config.num_attention_heads, config.pos_att_type.split('|')
  heads = lambda x, name: references.dense(x, p[name]).reshape(*x.shape[:-1], H, -1)
  q, k, v = heads(asking, 'query'), heads(x, 'key'), heads(x, 'value')
  far_k, far_q = heads(r, 'key'), heads(r, 'query')
  out = np.zeros(v.shape)
  for b, h, i in np.ndindex(B, H, T):
    scores = np.full(T, -np.inf)
    for j in np.flatnonzero(seen[b, i]):
      row = row_of(config, i - j)
      scores[j] = q[b, i, h] @ k[b, j, h]
      scores[j] += (q[b, i, h] @ far_k[row, h]) * ('c2p' in terms)
      scores[j] += (k[b, j, h] @ far_q[row, h]) * ('p2c' in terms)
    if seen[b, i].any():
      shares = np.exp((scores - scores.max()) / math.sqrt((1 + len(terms)) * D / H))
      out[b, i, h] = shares @ v[b, :, h] / shares.sum()
  return references.dense(out.reshape(B, T, D), p['output'])


def layer(config, p, asking, x, seen, r):
  """A layer of vectors `asking` that reads x, or these if it is None."""
  read = lambda y: attend(config, p['attention'], y, y if x is None else x, seen, r)
  pieces = {'attention': read, 'output': lambda y: references.feed_forward(config, p, y)}
  return references.residuals(config, p, pieces, asking)


def distances_of(config, params):
  table = params['distances']
  return references.norm(config, table['embedding'], table['LayerNorm'])


def packed():
  """Rows of one, of two and of three examples; and one of padding alone."""
  inputs = batch() | {'position_ids': jnp.asarray(np.arange(80).reshape(4, 20) % 31)}
  inputs['segment_ids'] = inputs['segment_ids'].at[0, 12:].set(2).at[1, 6:9].set(3).at[3].set(0)
  return inputs


@pytest.mark.parametrize(
  'changes',
  [
    dict(scan_layers=True, remat='dots'),
    dict(attention_window=7, pos_att_type='p2c', position_buckets=0, max_relative_positions=7),
    dict(causal=True, pos_att_type='c2p', attention_implementation='xla', num_hidden_layers=1),
  ],
  ids=str,
)
def test_the_encoder_is_its_formula(changes):
  config, inputs = model(**DEBERTA | changes), packed()
  params = weights(config)
  p, ids = float64(models.unstack_layers(params)), np.asarray(inputs['segment_ids'])
  x = references.embedded(config, p['embeddings'], jax.tree.map(np.asarray, inputs))
  seen = references.sees(ids, ids, config.causal, config.attention_window)
  for i in range(config.num_hidden_layers):
    x = layer(config, p[f'layer_{i}'], x, None, seen, distances_of(config, p))
  found = hidden(config, inputs, params)
  np.testing.assert_allclose(found[ids > 0], x[ids > 0], rtol=0, atol=1e-4)


@pytest.mark.parametrize('buckets, longest', [(6, 11), (256, 512), (8, 30), (0, 7)])
def test_distances_are_in_rows(buckets, longest):
  """Near ones alone, far ones together, and those that are too far in the last rows."""
  config = model(max_relative_positions=longest, position_buckets=buckets)
  at = np.arange(-longest - 9, longest + 10)
  rows = np.asarray(relative.rows_of(config, at)).tolist()
  assert rows == [row_of(config, s) for s in at]
  assert (rows[0], rows[-1]) == (0, 2 * (config.distance_rows // 2) - 1)


@pytest.mark.parametrize('scan, window', [(False, 0), (True, 7)])
def test_the_mask_decoder_applies_the_last_layer_again(scan, window):
  """It asks from positions, and always reads what is below the last layer (He et al. 2020, 3.2)."""
  config = model(**DEBERTA, mask_decoder=2, num_hidden_layers=3, attention_window=window)
  inputs, params = packed(), {'encoder': weights(config)}
  params['mlm'] = drawn(functools.partial(encode.init_words, config), params['encoder'])['mlm']
  p, ids = float64(params), np.asarray(inputs['segment_ids'])
  x = references.embedded(config, p['encoder']['embeddings'], jax.tree.map(np.asarray, inputs))
  seen, r = references.sees(ids, ids, window=window), distances_of(config, p['encoder'])
  for i in range(2):
    x = layer(config, p['encoder'][f'layer_{i}'], x, None, seen, r)
  table = p['mlm']['position_embeddings']['embedding']
  assert table.shape == (config.max_position_embeddings, config.hidden_size)
  asking = x + table[np.asarray(inputs['position_ids'])]
  for _ in range(2):
    asking = layer(config, p['encoder']['layer_2'], asking, x, seen, r)
  if scan:
    config = dataclasses.replace(config, scan_layers=True, remat='full')
    params['encoder'] = models.stack_layers(params['encoder'])
  found = jax.jit(functools.partial(encode.encode_mlm, config))(params, inputs)
  np.testing.assert_allclose(found[ids > 0], asking[ids > 0], rtol=0, atol=1e-4)


def test_all_that_a_mask_decoder_has_is_learned_with_dropout():
  config = model(**DEBERTA, mask_decoder=2, hidden_dropout_prob=0.2)
  inputs, params = packed(), {'encoder': weights(config)}
  head = drawn(functools.partial(encode.init_words, config), params['encoder'])['mlm']
  params['mlm'] = {mask_decoder.TABLE: head[mask_decoder.TABLE]}  # others are read behind it
  loss = lambda params, rng: jnp.sum(encode.encode_mlm(config, params, inputs, rng)[:3] ** 3)
  run = jax.jit(jax.value_and_grad(loss))
  (one, gradient), (other, _), (again, _) = (run(params, jax.random.key(k)) for k in (0, 1, 0))
  assert one == again != other
  for path, x in jax.tree_util.tree_leaves_with_path(gradient):
    assert np.abs(x).max() > 0, path
