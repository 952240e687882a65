"""Losses and hits by hand, and where objectives draw dropout."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import drawn
from scipy.special import log_softmax
from toys import load

from bert_jax import config as c
from bert_jax import models
from bert_jax.objectives.classification import Classification
from bert_jax.objectives.encode import cut_rows, encode
from bert_jax.objectives.losses import label_terms, nats_in_chunks, share_equal_to_first
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.translation import Translation
from bert_jax.rows.row_arrays import TOKENS
from bert_jax.timeline import EVALUATION

T = 8
MASKING = {'special_ids': (0, 1, 2, 3, 4), 'mask_id': 4, 'policies': ('token',)}
MASKING |= {'masked_lm_prob': 0.3, 'max_predictions': 3, 'mask_share': 0.8, 'random_share': 0.1}
SIZES = {'vocab_size': 20, 'hidden_size': 16, 'num_attention_heads': 2, 'intermediate_size': 16}
SIZES |= {'num_hidden_layers': 1, 'max_position_embeddings': T, 'vocab_multiple': 1}
DRY = {'hidden_dropout_prob': 0.0, 'attention_probs_dropout_prob': 0.0}
MODEL = models.ModelConfig(**c.bert('tiny', **SIZES, **DRY, initializer_range=0.3))


def batch_of(objective, B=4, seed=0):
  """A prepared batch: random tokens, every slot an example, slot n at token n, label 0 or 1."""
  rng = np.random.default_rng(seed)
  out = {}
  for name, x in objective.spec(B).items():
    value = name in ('segment_ids', 'weights', 'tags')
    out[name] = jnp.full(x.shape, value, x.dtype)
    if name == 'cls_positions':
      out[name] += jnp.arange(x.shape[1], dtype=x.dtype)
    if name in ('input_ids', 'labels'):
      out[name] = jnp.asarray(rng.integers(*((5, 20) if name == 'input_ids' else (0, 2)), x.shape))
      out[name] = out[name].astype(x.dtype)
  return jax.jit(lambda out: objective.prepare(out, jax.random.key(7), EVALUATION))(out)


def close(a, b, tolerance=1e-5):
  """Checks that two trees of arrays are equal but for rounding."""
  assert_close = lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance, rtol=tolerance)
  jax.tree.map(assert_close, a, b)


# ---- terms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('level', [0, -200, 200])  # all below 0; all too large for exp
def test_label_terms_are_the_cross_entropy_and_hits(level):
  rng = np.random.default_rng(0)
  logits, labels = rng.normal(level, 30, (3, 4, 5)).astype('f4'), rng.integers(0, 5, (3, 4))
  weights = rng.integers(0, 3, (3, 4)).astype('f4')
  out = label_terms('x', jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(weights))
  nats = -np.take_along_axis(log_softmax(logits.astype('f8'), -1), labels[..., None], -1)[..., 0]
  assert out['x'].total == pytest.approx((nats * weights).sum(), rel=1e-5)
  assert out['x_accuracy'].total == ((logits.argmax(-1) == labels) * weights).sum()
  assert out['x'].weight == out['x_accuracy'].weight == weights.sum()


def test_a_tie_is_a_miss():
  """Or a model that says the same of everything would seem to be always right."""
  logits = jnp.array([[1.0, 1.0, 0.0], [2.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
  assert label_terms('x', logits, jnp.array([0, 0, 2]), jnp.ones(3))['x_accuracy'].total == 1


def test_words_are_predicted_for_a_few_tokens_of_each_row_at_a_time(monkeypatch):
  """For at most 64, in four parts or more of about the same size."""
  monkeypatch.setattr(models, 'word_logits', lambda model, params, hidden_BtD: hidden_BtD)
  sizes = []

  def nats(logits_BtV, labels_Bt):
    sizes.append(labels_Bt.shape[1])
    return logits_BtV.argmax(-1) + 0 * labels_Bt, labels_Bt

  for length, size in ((3, 1), (8, 2), (37, 10), (257, 52), (700, 64)):
    labels = np.arange(2 * length).reshape(2, length)
    hidden = jax.nn.one_hot(labels % 7, 7)
    found = nats_in_chunks(MODEL, {}, hidden, jnp.asarray(labels), nats)
    assert sizes.pop() == size and not sizes
    np.testing.assert_array_equal(found, [labels % 7, labels])


@pytest.mark.parametrize(
  'fields, limits',
  [
    ({'vocab_size': 13}, {'input_ids': 13, 'token_type_ids': 2, 'position_ids': T}),
    (
      {'type_vocab_size': 3, 'position_embeddings': 'rotary'},
      {'input_ids': 17, 'token_type_ids': 3},
    ),
  ],
)
def test_ids_lie_within_the_tables_that_a_model_has(fields, limits):
  model = dataclasses.replace(MODEL, **fields)
  assert MlmNsp(model, T, 0.0, MASKING).limits(17) == limits
  more = dict.fromkeys(('target_ids', 'target_labels'), limits['input_ids'])
  more |= {'target_position_ids': T} if 'position_ids' in limits else {}
  assert Translation(model, T, target_length=T).limits(17) == limits | more


# ---- dropout -------------------------------------------------------------------------------------


def test_the_mean_of_a_text_is_that_of_its_tokens_alone():
  """Beside another text in its row, and beside padding, as alone."""
  objective = Classification(MODEL, T, ('a', 'b'), pooling='mean', examples_per_row=2)
  params = drawn(objective.init)
  assert params.keys() == {'encoder', 'classifier'}
  segments = jnp.array([[1] * 3 + [2] * (T - 4) + [0]] * 4)
  batch = batch_of(objective) | {'segment_ids': segments, 'cls_positions': jnp.array([[0, 3]] * 4)}
  run = lambda params: (encode(MODEL, params['encoder'], batch), objective.logits(params, batch))
  hidden, logits = map(np.asarray, jax.jit(run)(params))
  head = params['classifier']['dense']
  means = np.stack([hidden[:, :3].mean(axis=1), hidden[:, 3 : T - 1].mean(axis=1)], axis=1)
  expected = means @ np.asarray(head['kernel']) + np.asarray(head['bias'])
  np.testing.assert_allclose(logits, expected, atol=1e-4)


# ---- lengths by step -----------------------------------------------------------------------------


def test_tokens_of_cut_rows_see_what_they_would_in_rows_of_that_length():
  """Two examples, of 5 tokens and of 3, cut at every fourth token of each."""
  model = dataclasses.replace(MODEL, position_embeddings='learned')
  ids = jnp.arange(5, 5 + T)[None]
  segments = jnp.array([[1] * 5 + [2] * 3])
  positions = jnp.array([[0, 1, 2, 3, 4, 0, 1, 2]])
  row = dict(zip(TOKENS, (ids, 0 * ids, positions, segments)))
  params = drawn(functools.partial(models.init_encoder, model))
  cut = cut_rows(row, 4)
  np.testing.assert_array_equal(cut['position_ids'], [[0, 1, 2, 3, 0, 0, 1, 2]])
  run = jax.jit(functools.partial(encode, model))
  hidden = run(params, cut)
  for part in (1, 2, 3):  # alone, and all else padding
    own = (cut['segment_ids'] == part).astype(jnp.int32)
    alone = run(params, cut | {'segment_ids': own})
    np.testing.assert_allclose(hidden[own > 0], alone[own > 0], atol=1e-4)
  # Numbers that go up one by one; padding stays.
  short = dict(segment_ids=jnp.array([[1, 2, 3, 3, 3, 4, 5, 0]]))
  short |= dict(position_ids=jnp.array([[0, 0, 0, 1, 2, 0, 0, 0]]))
  assert cut_rows(short, 2)['segment_ids'].tolist() == [[1, 2, 3, 3, 4, 5, 6, 0]]


def test_lengths_change_at_their_steps_and_evaluations_read_whole_rows():
  objective = MlmNsp(MODEL, T, 0.0, MASKING, lengths=(2, 4, T))
  changes = 'corpus.rows=full loss.nsp_weight=0 corpus.lengths=8,16@3,24@5 steps=10'
  timeline = c.timeline_of(load('configs/pretrain.py:runlocal', changes, 'optimizer.warmup=2'))
  batch, key = batch_of(objective), jax.random.key(0)
  at_step = jax.jit(lambda step: objective.prepare(batch, key, timeline.at(step)))
  batch['position_ids'] = jnp.tile(jnp.arange(T), (4, 1))

  def longest(prepared):
    return max(np.bincount(row).max() for row in np.asarray(prepared['segment_ids']))

  assert [longest(at_step(step)) for step in (0, 2, 3, 4, 5, 9)] == [2, 2, 4, 4, T, T]
  assert longest(jax.jit(lambda x: objective.prepare(x, key, EVALUATION))(batch)) == T


def test_answers_that_are_one_piece_are_told_from_others():
  """Where nothing is weighed no answer counts, and the first that is weighed is compared with."""
  answers = jnp.array([[4, 7, 7], [7, 7, 2]])
  weights = jnp.array([[0.0, 2.0, 1.0], [1.0, 0.5, 0.0]])
  (term,) = share_equal_to_first('lm', answers, weights).values()
  assert (term.total, term.weight) == (3, 3)
  (term,) = share_equal_to_first('lm', answers, jnp.ones((2, 3))).values()
  assert (term.total, term.weight) == (0, 5)
