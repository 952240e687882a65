"""The step: accumulation is exact, and so is the mesh."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys
from conftest import ROOT
from refusal import refused
from test_models import model
from test_objectives import MASKING, close

from bert_jax import config as c
from bert_jax import gradients, sharding
from bert_jax.metrics import Mean
from bert_jax.objectives import base
from bert_jax.objectives.encode import row_spec
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.rows.row_arrays import TOKENS
from bert_jax.step import (
  Constants,
  State,
  constants_of,
  keys,
  make_eval_step,
  make_train_step,
  program,
)
from bert_jax.tasks import TASKS
from bert_jax.timeline import EVALUATION
from bert_jax.tools.preflight import estimate
from bert_jax.workdir import manifest


def objective(nsp_weight=0.7):
  return MlmNsp(model(initializer_range=0.1, num_hidden_layers=1), 20, nsp_weight, MASKING)


def ragged_batch(B=8, T=20):
  """Rows of very different lengths and some without a sentence pair: a mean of means goes wrong."""
  rng = np.random.RandomState(0)
  real = np.arange(T) < np.array([20, 20, 19, 4, 3, 20, 8, 0])[:B, None]
  ids = np.where(real, rng.randint(5, 99, (B, T)), 0), 0 * real, np.tile(np.arange(T), (B, 1)), real
  out = dict(zip(TOKENS, ids), cls_positions=np.zeros((B, 1)), labels=rng.randint(2, size=(B, 1)))
  weights = jnp.asarray([[1.0], [1], [0], [1], [0], [0], [1], [0]][:B])
  return {name: jnp.asarray(x, jnp.int32) for name, x in out.items()} | {'weights': weights}


def constants(seed=1, **parts):
  """The Constants of a step, of a seed and nothing else."""
  key = jax.random.key(seed)
  return Constants(**dict(train_key=key, eval_key=key, numbers={}, fixed={}) | parts)


def stepping(own, number=0, **options):
  """(the training step of an objective by plain gradient descent, its State)"""
  optimizer, params = optax.sgd(1.0), jax.jit(own.init)(jax.random.key(0))
  state = State(jnp.int32(number), params, optimizer.init(params), {})
  return jax.jit(make_train_step(own, lambda _: optimizer, **options)), state


@functools.cache
def compiled_step(accumulation, grows=False):
  """(the compiled training step of `objective`, its State)"""
  step, state = stepping(objective(), accumulation=accumulation, grows=grows)
  return step.lower(state, ragged_batch(), constants()).compile(), state


@functools.cache
def one_step(accumulation):
  step, state = compiled_step(accumulation)
  return step(state, ragged_batch(), constants())


def test_accumulation_equals_the_whole_batch():
  (whole, metrics), (parts, metrics2) = one_step(1), one_step(4)
  close((whole.params, metrics), (parts.params, metrics2))


def test_an_empty_microbatch_costs_nothing_and_changes_nothing():
  """Two microbatches of four, the others empty: the same step, by a program that skips them."""
  rows = ragged_batch()
  keep = jnp.arange(8) % 4 < 2
  half = {n: x * keep.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype) for n, x in rows.items()}
  out = {}
  for grows in (False, True):
    compiled, state = compiled_step(4, grows)
    out[grows] = compiled(state, half, constants())
    assert (' conditional(' in compiled.as_text()) == grows
  close(*out.values(), 1e-7)
  assert float(out[True][1]['tokens'].total) == float((half['segment_ids'] > 0).sum()) > 0


def test_the_loss_is_the_sum_of_weighted_means():
  _, metrics = one_step(1)
  loss = float(metrics['mlm'].value + 0.7 * metrics['nsp'].value)
  assert float(metrics['loss']) == pytest.approx(loss, rel=1e-6)
  assert float(metrics['nsp'].weight) == 4
  assert float(metrics['tokens'].total) == 94 and float(metrics['tokens'].weight) == 160


def test_weights_are_computed_without_a_second_forward_pass():
  """With microbatches the step asks the objective for the weights of the whole batch first; the
  compiler must drop the rest of that. It counts the operations of one microbatch."""
  own, (step, state) = objective(), compiled_step(4)

  def bare(params, batch):
    batch = own.prepare(batch, jax.random.key(1), EVALUATION)
    terms, _ = own.terms(params, batch, None, False)
    return terms['mlm'].total + terms['nsp'].total

  floor = jax.jit(jax.grad(bare)).lower(state.params, ragged_batch(2)).compile()
  assert step.cost_analysis()['flops'] < 1.15 * floor.cost_analysis()['flops']


# ---- what is carried, given, frozen --------------------------------------------------------------


def toy_program(objective, *overrides, config=None):
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  config = config or toys.config_of(*overrides)
  return program(config, objective, mesh, c.timeline_of(config, 10))


@pytest.fixture(scope='module')
def eight():
  """The lines that EIGHT prints on 8 simulated devices."""
  flags = f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count=8'
  env = dict(os.environ, XLA_FLAGS=flags, PYTHONPATH=f'{ROOT}:{ROOT}/tests')
  out = subprocess.run([sys.executable, '-c', EIGHT], env=env, capture_output=True, text=True)
  assert out.returncode == 0, out.stderr[-2000:]
  return [json.loads(line) for line in out.stdout.splitlines()]


def test_a_carry_moves_from_step_to_step():
  made = toy_program(toys.Running())
  state = toys.first_state(made)
  assert not state.carry['mean'].any()
  state, metrics = toys.steps_of(made, state, [0, 1])
  first, second = np.arange(8), np.arange(8) + 1
  np.testing.assert_allclose(state.carry['mean'], first / 4 + second / 2)
  # Adam's first update is the rate: of the offset alone, since the slope had no gradient.
  assert metrics['loss'] == pytest.approx(np.mean((first / 2 + 0.1 - second) ** 2), rel=1e-4)


def test_a_carry_is_split_like_its_batch(eight):
  (loss, carried, shards), of_one, *_ = eight
  assert of_one[:2] == [pytest.approx(loss, abs=1e-5), carried]
  assert shards == sorted([carried[i : i + 2] for i in (0, 2, 4, 6)] * 2)  # twice along `tensor`


def test_an_evaluation_passes_its_carry_on():
  objective = toys.Running()
  eval_step, carry = jax.jit(make_eval_step(objective)), {'mean': jnp.zeros(8)}
  for index in (0, 1):
    batch = toys.batch_of(index)
    _, _, carry = eval_step(objective.init(None), carry, batch, index, constants())
  np.testing.assert_allclose(carry['mean'], np.arange(8) / 4 + np.arange(1, 9) / 2)


def test_given_weights_are_an_argument_and_neither_trained_nor_saved():
  made = toy_program(toys.Taught(3.0), 'optimizer.freeze=scale')
  state = toys.first_state(made)
  arrays = [name for part in manifest.PARTS for name in manifest.flat(getattr(state, part))]
  assert not [name for name in arrays if 'teacher' in name]
  teacher = {'teacher': {'kernel': jnp.array([-3.0])}}
  other = dataclasses.replace(made.constants, fixed=teacher)
  up, _ = toys.steps_of(made, state, range(2))
  down, _ = toys.steps_of(made, toys.first_state(made), range(2), other)
  assert float(up.params['student'][0]) == pytest.approx(0.2 - 0.1 / 10, abs=1e-3)
  assert float(down.params['student'][0]) == pytest.approx(-(0.2 - 0.1 / 10), abs=1e-3)
  assert teacher['teacher']['kernel'] == -3.0  # not donated


def test_parameters_whose_gradient_is_not_finite_are_frozen_or_their_step_is_left_out():
  """The square root of `scale` has no finite gradient at 0."""
  made = toy_program(toys.Taught(), 'optimizer.freeze=scale')
  state, metrics = toys.steps_of(made, toys.first_state(made), [0])
  assert float(metrics['grad_norm']) == 6 and state.params['scale'] == 0
  moments = manifest.flat(state.opt_state)
  assert sorted(moments) == ['2.count', '2.mu.student', '2.nu.student', '4.count']
  for skip in (0, 1):  # unless a step with such a gradient is left out, it stays
    made = toy_program(toys.Taught(), f'optimizer.skip_nonfinite={skip}')
    state, metrics = toys.steps_of(made, toys.first_state(made), [0])
    assert not np.isfinite(metrics['grad_norm']) and np.isfinite(state.params['scale']) == skip


SIZES = 'num_hidden_layers=1 hidden_size=32 intermediate_size=64 num_attention_heads=2'
KINDS = 'tpu', 'cpu'
SMALL = [*(f'model.{x}' for x in SIZES.split()), 'model.vocab_size=99', 'data.seq_length=16']


def real_program(*overrides):
  """The Program of a small pre-training run on one device."""
  config = toys.config_of(*SMALL, 'optimizer.no_decay=bias', *overrides)
  return toy_program(estimate.objective_of(config), config=config)


@functools.cache
def lowered(*overrides):
  """That program's steps of training and evaluation, lowered."""
  made = real_program(*overrides)
  return made.lower(), made.lower_evaluation()


HALF = 'model.dtype=bfloat16'


def test_a_frozen_encoder_costs_a_forward_pass():
  """No gradient of its parameters and none through them: about a third of the FLOPs."""
  heads = real_program(HALF, 'optimizer.freeze=^encoder').lower().cost_analysis()['flops']
  assert heads < 0.45 * lowered(HALF)[0].cost_analysis()['flops']


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_products_are_as_exact_as_the_type_of_the_model(dtype):
  """On every chip: a TPU would round the factors of a float32 product to bfloat16."""
  for step in lowered(f'model.dtype={dtype}'):
    products = [x for x in step.as_text().splitlines() if 'dot_general' in x]
    exact = ['HIGHEST' in x for x in products]
    # Those of the classifier of sentence pairs are exact in any model.
    assert all(exact) if dtype == 'float32' else 0 < sum(exact) < len(exact) // 2


def test_small_tables_are_summed_by_products_on_a_tpu():
  """The gradients of words (here few), positions and types."""
  made = real_program()
  with jax.set_mesh(made.mesh):
    traced = jax.jit(made.train_step).trace(made.state, made.batch, made.constants)
  scatters = {x: traced.lower(lowering_platforms=(x,)).as_text().count('scatter"(') for x in KINDS}
  assert scatters['cpu'] - scatters['tpu'] == 3


def test_runs_that_differ_in_seed_and_rate_share_their_compiled_steps():
  rates = 'optimizer.learning_rate=3e-4', 'optimizer.weight_decay=0.2'
  one, other = ([x.as_text() for x in lowered(HALF, *more)] for more in ((), ('seed=7', *rates)))
  assert one == other
  assert one[0] != real_program(HALF, 'model.hidden_dropout_prob=0.2').lower().as_text()


# ---- random bits and the rate, step by step ------------------------------------------------------


class Draws(base.Objective):
  """Its gradient for a row is three random numbers, those that the row's microbatch drew, and
  three that corruption drew for the row. Learns nothing."""

  loss_weights = {'draws': 1.0}
  metrics = ('draws', 'corrupted')

  def spec(self, batch_size):
    return row_spec(batch_size, 8)

  def init(self, rng):
    return {'draws': jnp.zeros((4, 6))}

  def prepare(self, batch, rng, moment):
    return batch | {'corrupted': jax.random.uniform(rng, (len(batch['input_ids']), 3))}

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    w = params['draws'][batch['input_ids'][:, 0]]
    drawn = jax.random.uniform(rng, (3,)) if train else jnp.zeros(3)
    drawn = jnp.broadcast_to(drawn, (len(w), 3))
    total = (w * jnp.concatenate([drawn, batch['corrupted']], axis=1)).sum()
    return {'draws': Mean(total, jnp.float32(len(w)))}, carry

  def predict(self, params, batch):
    return {'corrupted': batch['corrupted']}


ROWS = dict.fromkeys(row_spec(4, 8), jnp.tile(jnp.arange(4)[:, None], 8))


def drawn(number, accumulation=1, seed=0):
  """([4, 3], [4, 3]): what each row's loss drew at a step, and what corruption drew for it."""
  step, state = stepping(Draws(), number, accumulation=accumulation)
  out = -4 * np.asarray(step(state, ROWS, constants(seed))[0].params['draws'])
  return out[:, :3].round(6), out[:, 3:].round(6)


def distinct(arrays):
  return len({row.tobytes() for array in arrays for row in array})


def test_every_step_draws_anew():
  steps = [drawn(number) for number in range(4)]
  assert distinct(x for x, _ in steps) == 4  # one for all rows of a step
  assert distinct(y for _, y in steps) == 16
  np.testing.assert_array_equal(drawn(2), steps[2])
  assert not np.isin(steps[0][0], steps[0][1]).any()
  assert distinct([drawn(0, seed=1)[0], steps[0][0]]) == 2


def test_every_microbatch_draws_anew():
  steps = [drawn(number, accumulation=4) for number in range(2)]
  assert distinct(x for x, _ in steps) == 8 and distinct([steps[0][0]]) == 4
  # What is corrupted is the whole batch, however it is split.
  np.testing.assert_allclose(steps[1][1], drawn(1)[1], atol=2e-6)


def test_every_batch_of_an_evaluation_is_corrupted_anew():
  evaluate, params = jax.jit(make_eval_step(Draws())), Draws().init(None)
  outputs = [evaluate(params, {}, ROWS, i, constants(3))[1] for i in (0, 1, 2, 1)]
  draws = [np.asarray(x['corrupted']) for x in outputs]
  assert distinct(draws) == 12
  np.testing.assert_array_equal(draws[1], draws[3])  # and alike at every evaluation


class KeyOfTerms(Draws):
  """Its metric `draws` is a number that its terms drew."""

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    return {'draws': Mean(jax.random.uniform(rng), jnp.float32(1))}, carry


def test_the_terms_of_an_evaluation_draw_other_numbers_than_its_corruption():
  evaluate, params = jax.jit(make_eval_step(KeyOfTerms())), Draws().init(None)
  drawn = []
  for index in (0, 1):
    terms, outputs, _ = evaluate(params, {}, ROWS, index, constants(3))
    same_key = jax.random.fold_in(constants(3).eval_key, index)
    assert outputs['corrupted'][0, 0] == jax.random.uniform(same_key, (4, 3))[0, 0]
    drawn += [float(terms['draws'].value), float(jax.random.uniform(same_key))]
  assert len(set(drawn)) == 4


def test_initialisation_training_and_evaluation_have_keys_of_their_own():
  words = [bytes(jax.random.key_data(key)) for seed in (0, 1) for key in keys(seed, 'threefry2x32')]
  assert len(set(words)) == 6
  config = c.load('configs/pretrain.py:runlocal', ['--config.seed=1', '--config.eval.seed=0'])
  found = constants_of(config, Draws())
  used = [bytes(jax.random.key_data(key)) for key in (found.train_key, found.eval_key)]
  assert used == [words[4], words[2]]  # of seed 1, and of seed 0


class Slope(Draws):
  """A gradient of ones for ever: Adam's step is the learning rate."""

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    return {'draws': Mean(params['draws'].sum(), jnp.float32(1))}, carry


@pytest.mark.parametrize('horizon', [1.0, 2.0])
def test_the_schedule_is_as_long_as_its_horizon(horizon):
  """The linear schedule of 10 steps, or of twice as many of which this run makes the first 10."""
  fields = 'batch_size=4', 'optimizer.clip_norm=0', 'optimizer.learning_rate=0.5'
  config = toys.config_of(*fields, f'optimizer.horizon={horizon}')
  made = toy_program(Slope(), config=config)
  state, run = made.make_state(jax.random.key(0)), jax.jit(made.train_step)
  for number in range(4):
    before = state.params['draws'][0, 0]
    state, metrics = run(state, ROWS, made.constants)
    assert state.step == number + 1 and metrics['grad_norm'] == pytest.approx(24**0.5)
    rate = float(before - state.params['draws'][0, 0])
    assert rate == pytest.approx(0.5 * (1 - number / (10 * horizon)), rel=1e-4)


EIGHT = """
import json
import jax, jax.numpy as jnp
import toys
from bert_jax import config as c, gradients, models, sharding
from bert_jax.objectives.encode import encode
from bert_jax.workdir import manifest

for sizes in (2, 2, 2), (1, 1, 1):
  print(json.dumps(toys.run_on(*sizes)))
mesh = sharding.make_mesh(2, 2, 2)
batch = {name: jnp.zeros((8, 16), int) for name in ('input_ids', 'token_type_ids', 'position_ids')}
batch['segment_ids'] = jnp.ones((8, 16), int)
size = dict(hidden_size=32, num_attention_heads=4, intermediate_size=64, num_hidden_layers=1)
model = models.ModelConfig(**c.bert('tiny', vocab_size=128, **size))
params = jax.jit(models.init_encoder, static_argnums=0)(model, jax.random.key(0))
everywhere = jax.NamedSharding(mesh, jax.sharding.PartitionSpec())
out = {'batch': sharding.batch_sharding(mesh).shard_shape((8, 16))}

def hidden(params, batch):
  found = encode(model, params, batch)
  jax.debug.inspect_array_sharding(
    found, callback=lambda s: out.update(hidden=s.shard_shape(found.shape)))
  return found

with jax.set_mesh(mesh), sharding.activation_rules():
  step = jax.jit(hidden, in_shardings=(everywhere, everywhere)).lower(params, batch).compile()
out['columns'] = sharding.placed(params, mesh)['layer_0']['intermediate']['kernel'].sharding
out['columns'] = out['columns'].shard_shape((32, 64))
print(json.dumps(out))
mesh = sharding.make_mesh(-1, 2, 1, slices=2)
print([[d.id for d in row] for row in mesh.devices[:, :, 0]])
try:
  sharding.make_mesh(1, 8, 1, slices=2)
except sharding.InputError as error:
  print(json.dumps(str(error)))
# Checksums of many arrays do not wait for one another. XLA lets a simulated device have 32 programs
# at a time; one that waits may keep a thread that another, which sums over devices, waits for. It
# gives up after 40 seconds.
mesh = sharding.make_mesh(2, 2, 2)
axes = ('fsdp', 'tensor'), (None, 'fsdp')
where = [jax.NamedSharding(mesh, jax.sharding.PartitionSpec(*x)) for x in axes]
arrays = {str(i): jax.device_put(jnp.ones((32, 64)), where[i % 2]) for i in range(100)}
for _ in range(12):
  table = manifest.array_table({'params': arrays})
print(len(table))
# Over two slices a gradient is computed in a branch, which a batch without a row does not take.
mesh = sharding.make_mesh(2, 4, 1, slices=2)
def gradient(params, batch, key, carry, others):
  x_B = jnp.where(batch['segment_ids'].any(1), batch['x'], jnp.nan)
  total = x_B.sum()
  gradients = {'a': total * jnp.arange(8.0), 'b': x_B.mean()}
  return (total, ({'x': total}, carry + 1)), gradients
with jax.set_mesh(mesh):
  rows = lambda x: jax.device_put(x, sharding.batch_sharding(mesh))
  x = 0.5 * jnp.arange(16.0)
  step = gradients.over_devices(gradient, mesh, 'float32', 'step', slices=2)
  params = sharding.placed({'a': jnp.zeros(8), 'b': jnp.zeros([])}, mesh)
  for kept in 1, 0:
    batch = {'segment_ids': rows(kept * jnp.ones((16, 3), int)), 'x': rows(x)}
    out = jax.jit(step)(params, batch, jax.random.key(0), rows(x), ())
    print(json.dumps(jax.tree.map(lambda x: x.tolist(), out)))
  split, = jax.make_jaxpr(step)(params, batch, jax.random.key(0), rows(x), ()).eqns
  choice, = (x for x in split.params['jaxpr'].eqns if x.primitive.name == 'cond')
  inside = (x for branch in choice.params['branches'] for x in branch.jaxpr.eqns)
  print(json.dumps([x.params['axes'] for x in inside if x.primitive.name.startswith('psum')]))
"""


def test_batch_and_activations_are_split_over_data_and_fsdp(eight):
  """On 2x2x2 devices each has 2 of 8 rows, of what goes in and, by the model's own constraints, of
  what it computes from an input that lies whole on every device. And slices split rows first."""
  found, rows, error, arrays = eight[2:6]
  assert found == {'batch': [2, 16], 'hidden': [2, 16, 32], 'columns': [16, 32]}
  assert rows == [[0, 1], [2, 3], [4, 5], [6, 7]]  # fsdp inside a slice, data over them
  assert error.startswith('mesh.data 1 does not divide over mesh.slices=2') and arrays == 100


def test_the_gradient_of_a_slice_is_a_branch_that_sums_nothing_over_slices(eight):
  """16 rows on 2 x 4 devices, two each. Without rows the carry stays and all else is 0."""
  some, none, sums = eight[6:]
  x, a = 0.5 * np.arange(16), np.arange(8)
  total, means = x.sum(), x.reshape(8, 2).mean(1).sum()
  assert some == [[total, [{'x': total}, [*x + 1]]], {'a': [*total * a], 'b': means}]
  assert none == [[0, [{'x': 0}, [*x]]], {'a': [0] * 8, 'b': 0}]
  assert sums == [['fsdp'], ['fsdp']]


def shaped(data=1, fsdp=1, tensor=1):
  return types.SimpleNamespace(shape={'data': data, 'fsdp': fsdp, 'tensor': tensor})


def test_old_versions_split_a_step_where_no_axis_is_left_to_the_compiler(monkeypatch):
  mesh = shaped(data=2, fsdp=3)
  for version, fits in (((0, 9, 2), False), ((0, 10, 0), True)):
    monkeypatch.setattr(jax, '__version_info__', version)
    assert gradients.fits(mesh, 'step') and gradients.fits(shaped(data=3, tensor=2), 'step') == fits
    assert gradients.fits(mesh, 'layer') == fits


def spec(name, shape, mesh, *rules):
  return tuple(sharding.spec_of(name, shape, mesh, *rules))


def test_rules_are_of_the_whole_name_of_a_part_and_of_trailing_axes():
  mesh = shaped(fsdp=2, tensor=2)
  kernel = spec('encoder/layers/intermediate/kernel', (12, 64, 256), mesh)
  assert kernel == (None, 'fsdp', 'tensor')
  assert spec('encoder/layer_1/attention/query/kernel', (8, 8), mesh) == ('fsdp', 'tensor')
  assert spec('layers/cross_attention/output/kernel', (8, 8), mesh) == ('tensor', 'fsdp')
  for other in ('probe/attention/query/kernel', 'head/intermediate/kernel', 'head/predecoder'):
    assert spec(other, (8, 8), mesh) == ()


@pytest.mark.parametrize(
  'changes, number, said',
  [
    ('', 24, ''),
    ('optimizer.accumulation=4', 24, ''),
    ('optimizer.accumulation=2', 32, 'use a multiple of 64'),  # a microbatch is what is split
    ('mesh.data=5', 12, '12 devices'),
    ('mesh.tensor=8', 24, 'num_attention_heads 12'),
    ('mesh.tensor=8 init_from=W', 24, ''),  # whose heads are not known
    ('mesh.slices=5', 24, 'mesh.slices=5'),
    ('mesh.slices=3', 24, ''),
  ],
)
def test_a_config_is_checked_for_chips_that_are_not_here(changes, number, said):
  config = toys.load('configs/pretrain.py:size=base', 'batch_size=96', changes)
  with refused(said) if said else contextlib.nullcontext():
    sharding.check_tpus(number, config, TASKS[config.objective])


@pytest.mark.parametrize(
  'changes, number, fsdp',
  [
    ('', 4, 4),
    ('', 256, 16),
    ('mesh.slices=2', 16, 8),
    ('mesh.tensor=2', 16, 8),
    ('mesh.data=4', 16, 4),
    ('mesh.fsdp=2', 16, 2),
    ('mesh.tensor=-1 mesh.data=2', 16, 1),
    ('model.hidden_size=312 model.num_attention_heads=12', 16, 8),
    ('model.vocab_multiple=1', 16, 1),
  ],
)
def test_the_parameters_are_shared_by_up_to_sixteen_chips_of_a_slice(changes, number, fsdp):
  config = toys.load('configs/pretrain.py:size=base', changes)
  assert sharding.axes_of(config, number, 'tpu')['fsdp'] == fsdp
  assert sharding.axes_of(config, number, 'gpu')['fsdp'] == max(1, config.mesh.fsdp)


def test_fsdp_cuts_the_largest_dimension_that_it_divides():
  of = lambda *shape: spec('x', shape, shaped(fsdp=4))
  assert of(256, 512) == (None, 'fsdp') and of(512, 256) == of(128, 128) == ('fsdp',)
  assert of(512, 514) == ('fsdp',) and of(127, 129) == ()  # 4 divides none of 514, 127 and 129
  assert of(128, 124) == ()  # too small to be worth it


# The model of BERT-wwm is BERT's.
ARCHITECTURES = set(runpy.run_path('configs/pretrain.py')['ARCHITECTURES']) - {'wwm'}
# {name of a table: config}
TABLES = (
  {'base': 'configs/pretrain.py:size=base'}
  | {kind: f'configs/pretrain.py:arch={kind}' for kind in sorted(ARCHITECTURES)}
  | {'gpt2': 'configs/causal_lm.py', 'translation': 'configs/translate.py'}
)


@pytest.mark.parametrize('kind', TABLES)
def test_specs_at_2x2x2(kind):
  """The tables of tests/golden, read and approved; a change of RULES is to be read there too. Of
  other configs than that of BERT-base, the lines that it does not have and the arrays that they do
  not have, and one layer of each kind."""
  config = c.load(TABLES[kind])
  if kind != 'base':  # the others' tables show one layer of each kind
    config.model.num_hidden_layers = 2
  params = jax.eval_shape(estimate.objective_of(config).init, jax.random.key(0))
  lines = []
  for path, x in jax.tree_util.tree_flatten_with_path(params)[0]:
    name = sharding.path_name(path)
    lines.append(f'{name} {list(x.shape)} {spec(name, x.shape, shaped(2, 2, 2))}')
  golden = Path('tests/golden/specs_base_2x2x2.txt').read_text().splitlines()
  if kind != 'base':
    names = {x.split()[0] for x in lines}
    lines = [x for x in lines if x not in golden]
    lines += [f'no {x.split()[0]}' for x in golden if x.split()[0] not in names]
    lines = [x for x in lines if not re.search(r'layer_([2-9]|\d\d)/', x)]
    golden = Path(f'tests/golden/specs_{kind}_2x2x2.txt').read_text().splitlines()
  assert lines == golden


def test_optimizer_state_follows_its_parameters_unless_it_has_another_shape():
  """Adafactor keeps the sums of rows and of columns, and of what it does not factor one number."""
  kernel = jax.ShapeDtypeStruct((4, 256, 512), jnp.float32)
  params = {'encoder': {'layers': {'intermediate': {'kernel': kernel}}}}
  mesh = jax.sharding.AbstractMesh((1, 2, 2), sharding.AXES)

  def specs(tree):
    leaves = jax.tree.leaves(sharding.tree_shardings(tree, mesh, params))
    return {tuple(x.spec) for x in leaves}

  adam = jax.eval_shape(optax.scale_by_adam().init, params)
  assert specs(params) == specs((adam.mu, adam.nu)) == {(None, 'fsdp', 'tensor')}
  factored = jax.eval_shape(optax.scale_by_factored_rms().init, params)
  assert specs((factored.v_row, factored.v_col, factored.v)) == {()}
