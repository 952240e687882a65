"""FLOPs, which are counted in what an objective computes, against what each part needs by hand."""

import jax
import numpy as np
import pytest
from test_objectives import MASKING, MODEL

from bert_jax.models import flops
from bert_jax.objectives.language_model import LanguageModel
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.timeline import EVALUATION, Moment

B, T, D, V = 4, 8, MODEL.hidden_size, MODEL.padded_vocab_size
K = MASKING['max_predictions']


def encoder(model=MODEL):
  """Of B rows: four projections, the feed-forward layer, scores and their values."""
  F, layers = model.intermediate_size, model.num_hidden_layers
  return layers * 2 * B * T * (4 * D * D + 2 * D * F + 2 * T * D)


def words(predictions):
  return 2 * predictions * (D * D + D * V)


def language_model(*stages, share=0.5):
  return LanguageModel(MODEL, T, 0.0, MASKING, stages=stages, causal_share=share)


def test_products_of_loops_branches_and_gradients():
  """3 x 5 times 5 x 2 is 60 operations."""
  a, b = np.ones((3, 5)), np.ones((5, 2))

  def loop(a, b):
    return jax.lax.scan(lambda x, _: (x + (a @ b).sum(), None), 0.0, None, length=4)[0]

  def branches(a, b):
    return jax.lax.cond(a[0, 0] > 0, lambda: (a @ b).sum(), lambda: (a @ a.T @ a @ b).sum())

  assert flops.products(jax.jit(loop), a, b) == 4 * 60
  assert flops.products(branches, a, b) == 90 + 90 + 60
  gradient = jax.grad(lambda a, b: ((a @ b) ** 2).sum(), (0, 1))
  assert flops.products(gradient, a, b) == 3 * 60


def test_a_masked_language_model():
  assert MlmNsp(MODEL, T, 0.0, MASKING).flops(B) == encoder() + words(B * K)
  pairs = MlmNsp(MODEL, T, 1.0, MASKING, examples_per_row=2).flops(B)
  assert pairs == encoder() + words(B * K) + 2 * B * 2 * (D * D + 2 * D)


def test_an_evaluation_counts_its_own_masks():
  eval_masking = {'policies': ('token',), 'max_predictions': K + 2}
  of = MlmNsp(MODEL, T, 0.0, MASKING, eval_masking=eval_masking)
  assert of.flops(B, EVALUATION) == encoder() + words(B * (K + 2))
  assert of.flops(B) == of.flops(B, Moment()) == encoder() + words(B * K)


@pytest.mark.parametrize('share', [0.5, 1 / 16])
def test_a_hybrid_counts_each_head_by_its_share_of_the_rows(share):
  expected = encoder() + share * words(B * T) + (1 - share) * words(B * K)
  assert language_model('hybrid', share=share).flops(B) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize('last, predictions', [('masked', K), ('causal', T), ('diffusion', T)])
def test_a_language_model_of_several_stages_counts_the_one_that_it_is_in(last, predictions):
  first = 'causal' if last != 'causal' else 'masked'
  of = language_model(first, last)
  assert of.flops(B) == encoder() + words(B * predictions)
  before = Moment(values={'language_model.kind': first})
  assert of.flops(B, before) == encoder() + words(B * {'causal': T, 'masked': K}[first])
