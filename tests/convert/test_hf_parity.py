"""The same numbers as Hugging Face's BertForPreTraining: logits, gradients, twenty steps of AdamW.

golden/make_hf_golden.py recorded theirs; a slow test compares the record with torch itself.
"""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from golden import make_hf_golden as hf
from released import Masked, adamw_losses, to_params, to_tensors

from bert_jax import config as c
from bert_jax import models
from bert_jax.objectives.encode import encode

CONFIG = c.load(f'{Path(__file__).parents[2]}/configs/pretrain.py:size=tiny,runlocal')


def objective_of(case, **changes):
  no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, vocab_multiple=1)
  model = models.ModelConfig(**dict(CONFIG.model) | no_dropout | case.model | changes)
  return Masked(model, case.lengths[0], 1.0, {'max_predictions': hf.PREDICTIONS})


@functools.cache
def tensors_of(case_name):
  case = hf.CASES[case_name]
  objective = objective_of(case)
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  empty = jax.tree.map(lambda x: np.broadcast_to(np.float32(0), x.shape), shapes)
  shapes = {k: x.shape for k, x in to_tensors(empty, objective.model).items()}
  return hf.draw_weights(case, shapes)


def setup(case_name, **changes):
  """(objective, parameters, first batch) of a case."""
  case = hf.CASES[case_name]
  objective = objective_of(case, **changes)
  return (objective, to_params(tensors_of(case_name), objective.model), hf.draw_batch(case, 0))


def gradients(objective, params, batch):
  """What forward returns, and {their name: gradient}; the gradient of a kernel turns with it."""
  run = jax.jit(jax.value_and_grad(_forward(objective, batch), has_aux=True))
  (loss, aux), tree = jax.device_get(run(params))
  return _read(batch, loss, aux), to_tensors(tree, objective.model)


def _forward(objective, batch):
  def run(params):
    terms, _ = objective.terms(params, batch, jax.random.key(0), True)
    loss = sum(w * terms[n].total / terms[n].weight for n, w in objective.loss_weights.items())
    hidden = encode(objective.model, params['encoder'], batch)
    return loss, (hidden, *objective.logits(params, batch))

  return run


def _read(batch, loss, aux):
  hidden, mlm, nsp = aux
  out = {'loss': loss, 'hidden': hidden[batch['segment_ids'] > 0]}
  return out | {'mlm': mlm[batch['masked_weights'] > 0], 'nsp': nsp[batch['weights'] > 0]}


@functools.cache
def computed(case_name):
  return gradients(*setup(case_name))


def close(ours, theirs, **tolerance):
  np.testing.assert_allclose(ours, theirs, **tolerance)
  print(f'max difference {np.max(np.abs(np.asarray(ours) - theirs)):.2e}')


@pytest.fixture(scope='module', params=['small', pytest.param('base', marks=pytest.mark.slow)])
def theirs(request):
  """(case name, what Hugging Face computed)."""
  case, recorded = request.param, np.load(hf.FILE)
  return case, {k.partition('/')[2]: recorded[k] for k in recorded if k.startswith(case)}


@pytest.mark.slow
def test_they_still_compute_what_is_recorded(transformers, theirs):
  case, recorded = theirs
  for name, x in hf.record(hf.CASES[case]).items():
    if x.dtype.kind == 'f':
      np.testing.assert_allclose(x, recorded[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_logits_and_loss(theirs):
  case, theirs = theirs
  ours, _ = computed(case)
  close(ours['hidden'][:, :: hf.CASES[case].stride], theirs['hidden'], rtol=0, atol=1e-4)
  close(ours['mlm'], theirs['mlm'], rtol=0, atol=1e-4)
  close(ours['nsp'], theirs['nsp'], rtol=0, atol=1e-4)
  close(ours['loss'], theirs['loss'], rtol=1e-5)


def test_gradients(theirs):
  """Within 1e-3 of each parameter's gradient norm.

  A shift of all keys changes no softmax, so the gradient of a key bias is rounding noise: there the
  yardstick is 1e-6 of the norm of the whole gradient.
  """
  case, theirs = theirs
  _, found = computed(case)
  ours = hf.gradient_summary(found)
  assert list(ours['names']) == list(theirs['names'])
  allowed = np.maximum(1e-3 * theirs['norms'], 1e-6 * np.linalg.norm(theirs['norms']))
  differences = {kind: abs(ours[kind] - theirs[kind]) for kind in ('norms', 'products')}
  if 'gradients' in theirs:
    ends = np.cumsum([found[name].size for name in theirs['names']])
    parts = zip(theirs['names'], np.split(theirs['gradients'], ends[:-1]))
    distances = [np.linalg.norm(found[name].ravel() - part) for name, part in parts]
    differences['elements'] = np.array(distances)
  for kind, difference in differences.items():
    print(f'{kind}: at most {1e-3 * np.max(difference / allowed):.2e} of the norm')
    wrong = theirs['names'][difference > allowed]
    assert not len(wrong), f'{kind} of the gradients differ: {list(wrong)}'


def test_twenty_adamw_steps(theirs):
  name, theirs = theirs
  case, (objective, params, _) = hf.CASES[name], setup(name, scan_layers=True)
  batches = [hf.draw_batch(case, i) for i in range(hf.STEPS)]
  losses = adamw_losses(objective, params, batches, case.learning_rate, hf.WEIGHT_DECAY)
  close(losses, theirs['losses'], rtol=0, atol=1e-3)
