"""What each family's objective keeps of its contract, and mistakes in a new one."""

import re

import jax
import jax.numpy as jnp
import pytest
import toys

from bert_jax import config as config_lib
from bert_jax import sharding, step
from bert_jax.errors import InputError
from bert_jax.metrics import Mean, mean
from bert_jax.tasks import TASKS


def lowered(objective):
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  config = toys.config_of()
  program = step.program(config, objective, mesh, config_lib.timeline_of(config, 10))
  with jax.set_mesh(mesh):
    program.lower()


SPECS = {name: f'finetune.py:task=table,objective={name},runlocal' for name in TASKS} | {
  'mlm_nsp': 'pretrain.py:runlocal',
  'electra': 'pretrain.py:objective=electra,runlocal',
  'language_model': 'causal_lm.py:runlocal',
  'qa': 'finetune.py:task=squad,runlocal',
  'tagging': 'finetune.py:task=ner,runlocal',
  'choice': 'finetune.py:task=swag,runlocal',
  'coreference': 'finetune.py:task=gap,runlocal',
  'contrastive': 'contrastive.py:task=pairs,runlocal',
  'translation': 'translate.py:runlocal',
  'denoising': 'pretrain.py:objective=denoising,runlocal',
}
WITHOUT_ONE = {'distillation'}  # its objective wraps another


@pytest.mark.parametrize('name', sorted(TASKS.keys() - WITHOUT_ONE))
def test_an_objective_computes_what_its_record_is_judged_by(name, letters):
  """Terms are Means of single numbers with all terms of the loss; the main metric is a metric."""
  record = TASKS[name]
  config = record.stand_in(config_lib.load(f'configs/{SPECS[name]}', []))
  assert config.objective == name
  objective = record.objective(config, letters)
  assert record.main_metric(config) in objective.metrics
  assert not {*record.scores} & {*objective.metrics}
  batch = objective.spec(2)
  params = jax.eval_shape(objective.init, jax.random.key(0))
  carry = objective.carry(2)
  moment = config_lib.timeline_of(config, 1000).at(3)

  def terms(params, batch, carry):
    batch = objective.prepare(batch, jax.random.key(0), moment)
    return objective.terms(params, batch, jax.random.key(1), True, carry, {})

  found, after = jax.eval_shape(terms, params, batch, carry)
  assert {*objective.loss_weights} <= {*found}
  assert all(isinstance(x, Mean) and x.total.shape == x.weight.shape == () for x in found.values())
  forms = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (carry, after)]
  assert forms[0] == forms[1]


@pytest.mark.parametrize('weights', [(8, 1), (), (5,)])
def test_weights_that_values_share(weights):
  """A mean of ones over [8, 5] would be 5, 40 or 8."""

  class Shared(toys.Running):
    def terms(self, *arguments):
      terms, carry = super().terms(*arguments)
      return terms | {'score': mean(jnp.ones((8, 5)), jnp.ones(weights))}, carry

  sentence = f'has values [8, 5] and weights {list(weights)}; give each value its weight'
  with pytest.raises(InputError, match=re.escape(sentence)):
    lowered(Shared())
  assert mean(jnp.arange(40.0).reshape(8, 5), jnp.ones((8, 5))).value == 19.5
