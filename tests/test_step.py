"""The step: accumulation is exact, and so is the mesh."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys
from conftest import ROOT, run_module, small_pretrain

from bert_jax import config as c
from bert_jax import manifest, models, optim, sharding
from bert_jax.config import InputError
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.step import Constants, State, make_eval_step, make_train_step, program
from bert_jax.tools import preflight


def objective(nsp_weight=1.0):
  model = models.ModelConfig(
    **c.bert(
      'tiny',
      vocab_size=99,
      hidden_size=24,
      num_attention_heads=3,
      intermediate_size=40,
      hidden_dropout_prob=0.0,
      attention_probs_dropout_prob=0.0,
      initializer_range=0.1,
    )
  )
  return MlmNsp(
    model,
    20,
    nsp_weight,
    dict(
      special_ids=(0, 1, 2, 3, 4),
      mask_id=4,
      stages=((0, 'token'),),
      masked_lm_prob=0.15,
      max_predictions=5,
      mask_share=0.8,
      random_share=0.1,
    ),
  )


def ragged_batch(B=8, T=20):
  """Rows of very different lengths and some without a sentence pair: a mean of means goes wrong."""
  rng = np.random.RandomState(0)
  real = np.arange(T) < np.array([20, 20, 19, 4, 3, 20, 8, 0])[:B, None]
  return {
    k: jnp.asarray(v, jnp.int32)
    for k, v in {
      'input_ids': np.where(real, rng.randint(5, 99, (B, T)), 0),
      'token_type_ids': 0 * real,
      'position_ids': np.tile(np.arange(T), (B, 1)),
      'segment_ids': real,
      'cls_positions': np.zeros((B, 1)),
      'labels': rng.randint(2, size=(B, 1)),
    }.items()
  } | {'weights': jnp.asarray([[1.0], [1], [0], [1], [0], [0], [1], [0]][:B])}


def constants(seed=1, **parts):
  """The Constants of a step, of a seed and nothing else."""
  key = jax.random.key(seed)
  return Constants(**dict(train_key=key, eval_key=key, numbers={}, given={}) | parts)


@functools.cache
def one_step(accumulation):
  own = objective()
  params = jax.jit(own.init)(jax.random.key(0))
  optimizer = optax.sgd(1.0)
  step = make_train_step(own, lambda _: optimizer, accumulation=accumulation)
  state = State(jnp.zeros([], jnp.int32), params, optimizer.init(params), {})
  return jax.jit(step)(state, ragged_batch(), constants())


@pytest.mark.parametrize('accumulation', [2, 4])
def test_accumulation_equals_the_whole_batch(accumulation):
  (whole, metrics), (parts, metrics2) = one_step(1), one_step(accumulation)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), whole.params, parts.params)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), metrics, metrics2
  )


def test_the_loss_is_the_sum_of_weighted_means():
  _, metrics = one_step(1)
  assert float(metrics['loss']) == pytest.approx(
    float(metrics['mlm'].value + metrics['nsp'].value), rel=1e-6
  )
  assert float(metrics['nsp'].weight) == 4
  assert float(metrics['tokens'].total) == 94 and float(metrics['tokens'].weight) == 160


def test_weights_are_computed_without_a_second_forward_pass():
  """The step asks the objective for the weights first; the compiler must drop the rest of it."""
  own = objective()
  params = jax.jit(own.init)(jax.random.key(0))
  optimizer = optax.sgd(1.0)
  state = State(jnp.zeros([], jnp.int32), params, optimizer.init(params), {})
  step = make_train_step(own, lambda _: optimizer)
  flops = jax.jit(step).lower(state, ragged_batch(), constants()).compile().cost_analysis()['flops']

  def bare(params, batch):
    batch = own.prepare(batch, jax.random.key(1))
    return sum(
      t.total for n, t in own.terms(params, batch, None, False)[0].items() if n in ('mlm', 'nsp')
    )

  floor = jax.jit(jax.grad(bare)).lower(params, ragged_batch()).compile().cost_analysis()['flops']
  assert flops < 1.15 * floor


# ---- what is carried, given, frozen --------------------------------------------------------------


def toy_program(objective, *overrides):
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  return program(toys.config_of(*overrides), objective, mesh, 10)


def test_a_carry_moves_from_step_to_step():
  made = toy_program(toys.Running())
  state = toys.first_state(made)
  assert not state.carry['mean'].any()
  state, metrics = toys.steps_of(made, state, [0, 1])
  first, second = np.arange(8), np.arange(8) + 1
  np.testing.assert_allclose(state.carry['mean'], first / 4 + second / 2)
  # Adam's first update is the rate: of the offset alone, since the slope had no gradient.
  assert metrics['loss'] == pytest.approx(np.mean((first / 2 + 0.1 - second) ** 2), rel=1e-4)


def test_a_carry_is_split_like_its_batch():
  env = dict(os.environ, XLA_FLAGS='--xla_force_host_platform_device_count=8', PYTHONPATH=str(ROOT))
  lines = [
    subprocess.run(
      [sys.executable, 'tests/toys.py', mesh], env=env, capture_output=True, text=True, check=True
    ).stdout
    for mesh in ('2,2,2', '1,1,1')
  ]
  (loss, carried, shards), (loss_of_one, carried_of_one, _) = map(json.loads, lines)
  assert carried == carried_of_one and loss == pytest.approx(loss_of_one, abs=1e-5)
  assert shards == sorted([carried[i : i + 2] for i in (0, 2, 4, 6)] * 2)  # twice along `tensor`


def test_an_evaluation_passes_its_carry_on_and_draws_alike_each_time():
  objective = toys.Running()
  eval_step = jax.jit(make_eval_step(objective))
  params, carry, outputs = objective.init(None), {'mean': jnp.zeros(8)}, []
  for index in (0, 1, 1):
    _, out, carry = eval_step(params, carry, toys.batch_of(index), index, constants())
    outputs.append(jax.device_get(out))
  np.testing.assert_allclose(outputs[1]['before'], np.arange(8) / 2)
  assert (outputs[0]['drawn'] != outputs[1]['drawn']).all()
  np.testing.assert_array_equal(outputs[1]['drawn'], outputs[2]['drawn'])


def test_a_carry_does_not_go_with_accumulation():
  with pytest.raises(InputError, match='carries something .* optimizer.accumulation=2; set it to'):
    toy_program(toys.Running(), 'optimizer.accumulation=2')


def test_given_weights_are_an_argument_and_neither_trained_nor_saved():
  made = toy_program(toys.Taught(3.0), 'optimizer.freeze=scale')
  state = toys.first_state(made)
  arrays = [name for part in manifest.PARTS for name in manifest.flat(getattr(state, part))]
  assert not [name for name in arrays if 'teacher' in name]
  assert {n for n in arrays if 'student' in n} == {'student', '2.mu.student', '2.nu.student'}
  teacher = {'teacher': {'kernel': jnp.array([-3.0])}}
  other = dataclasses.replace(made.constants, given=teacher)
  up, _ = toys.steps_of(made, state, range(2))
  down, _ = toys.steps_of(made, toys.first_state(made), range(2), other)
  assert float(up.params['student'][0]) == pytest.approx(0.2 - 0.1 / 10, abs=1e-3)
  assert float(down.params['student'][0]) == pytest.approx(-(0.2 - 0.1 / 10), abs=1e-3)
  assert teacher['teacher']['kernel'] == -3.0  # not donated


def test_frozen_parameters_have_no_gradient_even_if_that_is_not_finite():
  """The square root of `scale` has no finite gradient at 0."""
  made = toy_program(toys.Taught(), 'optimizer.freeze=scale')
  state, metrics = toys.steps_of(made, toys.first_state(made), [0])
  assert float(metrics['grad_norm']) == 6 and state.params['scale'] == 0
  assert float(metrics['update_norm']) == pytest.approx(0.1, rel=1e-4)
  moments = manifest.flat(state.opt_state)
  assert sorted(moments) == ['2.count', '2.mu.student', '2.nu.student', '4.count']
  made = toy_program(toys.Taught())
  _, metrics = toys.steps_of(made, toys.first_state(made), [0])
  assert not np.isfinite(metrics['grad_norm'])


SMALL = ['data.seq_length=16', 'model.vocab_size=99', 'model.num_hidden_layers=2',
         'model.hidden_size=32', 'model.intermediate_size=64', 'model.num_attention_heads=2',
         'masking.max_predictions_per_seq=2']  # fmt: skip


def real_program(*overrides):
  """The Program of a small pre-training run on one device."""
  config = toys.config_of(*SMALL, 'optimizer.no_decay=bias', *overrides)
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  return program(config, preflight.objective_of(config), mesh, 10)


def test_a_frozen_encoder_costs_a_forward_pass():
  """No gradient of its parameters and none through them: about a third of the FLOPs."""
  whole, heads = (
    real_program(f'optimizer.freeze={freeze}').lower().compile().cost_analysis()['flops']
    for freeze in ('', '^encoder')
  )
  assert heads < 0.45 * whole


def test_runs_that_differ_in_seed_and_rate_share_their_compiled_steps():
  a, b, c = (
    real_program(f'seed={seed}', f'optimizer.learning_rate={rate}', 'optimizer.weight_decay=0.1',
                 f'model.hidden_dropout_prob={dropout}')
    for seed, rate, dropout in ((0, 1e-3, 0.1), (1, 3e-4, 0.1), (0, 1e-3, 0.2))
  )  # fmt: skip
  for lower in ('lower', 'lower_evaluation'):
    assert getattr(a, lower)().as_text() == getattr(b, lower)().as_text()
  assert a.lower().as_text() != c.lower().as_text()


@pytest.mark.parametrize('mesh', ['2,2,2', '8,1,1', '1,4,2'])
def test_eight_devices_train_as_one(mesh, corpus_file, pretrained, tmp_path):
  """20 steps with dropout on a mesh of 8 simulated devices: the losses of one device to 1e-5.

  One of the meshes is compiled as a user's run is: what the tests compile computes the same.
  """
  data, fsdp, tensor = mesh.split(',')
  config = small_pretrain(corpus_file, '--config.eval.every=0')
  overrides = [
    f'--config.{k}={v}' for k, v in c.flatten(config).items() if not isinstance(v, tuple)
  ]
  run_module(
    'bert_jax.train',
    '--config',
    'configs/pretrain.py',
    '--workdir',
    tmp_path / 'run',
    *overrides,
    f'--config.mesh.data={data}',
    f'--config.mesh.fsdp={fsdp}',
    f'--config.mesh.tensor={tensor}',
    devices=8,
    quick=mesh != '2,2,2',
  )
  lines = lambda folder: [
    json.loads(x) for x in (folder / 'metrics.jsonl').read_text().splitlines()
  ]
  for split in ('train', 'eval'):
    one = [x for x in lines(pretrained[0]) if x['split'] == split][-1]
    eight = [x for x in lines(tmp_path / 'run') if x['split'] == split][-1]
    for name in ('mlm', 'nsp'):
      assert eight[name] == pytest.approx(one[name], abs=1e-5), (split, name)


def test_a_scanned_layer_axis_changes_nothing():
  class Mesh:
    shape = {'data': 1, 'fsdp': 2, 'tensor': 2}

  assert tuple(sharding.spec_of('encoder/layers/intermediate/kernel', (12, 64, 256), Mesh)) == (
    None,
    'fsdp',
    'tensor',
  )


def test_slices_split_the_batch_first():
  code = """
import jax
from bert_jax import sharding
mesh = sharding.make_mesh(-1, 2, 1, slices=2)
print([[d.id for d in row] for row in mesh.devices[:, :, 0]])
try:
  sharding.make_mesh(1, 8, 1, slices=2)
except sharding.InputError as error:
  print(error)
"""
  env = dict(os.environ, JAX_PLATFORMS='cpu', XLA_FLAGS='--xla_force_host_platform_device_count=8')
  out = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True)
  rows, error = out.stdout.splitlines()
  assert rows == '[[0, 1], [2, 3], [4, 5], [6, 7]]'  # fsdp inside a slice, data over them
  assert error.startswith('mesh.data 1 does not divide over mesh.slices=2')


def test_mesh_mistakes_are_sentences():
  with pytest.raises(InputError, match='does not multiply to the 1 devices'):
    sharding.make_mesh(2, 1, 1, jax.devices()[:1])

  class Mesh:
    shape = {'data': 8, 'fsdp': 1, 'tensor': 1}

  config = c.load('configs/pretrain.py', ['--config.batch_size=250'])
  with pytest.raises(
    InputError, match='batch_size 250 does not divide over 8 data shards; use 248 or 256'
  ):
    sharding.check_fits(Mesh, config)
  Mesh.shape = {'data': 1, 'fsdp': 1, 'tensor': 5}
  with pytest.raises(InputError, match='num_attention_heads 12 does not divide over mesh.tensor=5'):
    sharding.check_fits(Mesh, config)
  with pytest.raises(InputError, match='encoder/x of shape .* does not divide'):
    sharding.spec_of(
      'encoder/intermediate/kernel'.replace('intermediate/kernel', 'x'),
      (7, 7),
      Mesh,
      ((r'x$', jax.sharding.PartitionSpec('tensor', None)),),
    )
  with pytest.raises(InputError, match='no sharding rule matches'):
    sharding.spec_of('y', (7, 7), Mesh, ())


def test_specs_of_base_at_2x2x2():
  """The table of tests/golden, read and approved; a change of RULES is to be read there too."""

  class Mesh:
    shape = {'data': 2, 'fsdp': 2, 'tensor': 2}

  config = c.load('configs/pretrain.py:size=base')
  model = models.ModelConfig(**config.model)
  params = jax.eval_shape(MlmNsp(model, 20, 1.0, objective().masking).init, jax.random.key(0))
  lines = []
  for path, x in jax.tree_util.tree_flatten_with_path(params)[0]:
    name = sharding.path_name(path)
    lines.append(f'{name} {list(x.shape)} {tuple(sharding.spec_of(name, x.shape, Mesh))}')
  assert lines == Path('tests/golden/specs_base_2x2x2.txt').read_text().splitlines()


def test_optimizer_state_follows_its_parameters():
  config = c.load('configs/pretrain.py:size=tiny')
  model = models.ModelConfig(**config.model)
  params = jax.eval_shape(MlmNsp(model, 20, 1.0, objective().masking).init, jax.random.key(0))
  optimizer = optim.make_optimizer(config.optimizer, 100_000, params)
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  own = sharding.tree_shardings(params, mesh)
  moments = sharding.tree_shardings(jax.eval_shape(optimizer.init, params), mesh)
  found = [
    x
    for x in jax.tree.leaves(moments, is_leaf=lambda x: isinstance(x, dict))
    if isinstance(x, dict)
  ]
  assert len(found) == 2 and all(x == own for x in found)
