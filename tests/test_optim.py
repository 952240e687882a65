"""Optimizers against their formulas, schedules at known steps, masks by what they do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from ml_collections import ConfigDict
from test_models import model
from test_objectives import close

from bert_jax import models, optim, timeline
from bert_jax.config import InputError
from bert_jax.config.optimizer import FIELDS
from bert_jax.objectives.mlm_nsp import MlmNsp


def settings(**changes):
  """The optimizer block: no schedule, no decay, no clipping, no masks but for `changes`."""
  plain = {name.partition('.')[2]: field.default for name, field in FIELDS.items()}
  block = dict(name='adamw', schedule='constant', eps=1e-8, learning_rate=0.1, warmup=0.0)
  block |= dict(decay=0.0, weight_decay=0.0, no_decay='', clip_norm=0.0)
  assert changes.keys() <= plain.keys()
  return ConfigDict(plain | block | changes)


def run(optimizer, params, gradients):
  """Parameters after one step for each of `gradients`, and the last update."""

  @jax.jit
  def step(params, state, gradient):
    updates, state = optimizer.update(gradient, state, params)
    updates = jax.tree.map(lambda p, u: jnp.zeros_like(p) if u is None else u, params, updates)
    return jax.tree.map(jnp.add, params, updates), state, updates

  state = jax.jit(optimizer.init)(params)
  for gradient in gradients:
    params, state, updates = step(params, state, gradient)
  return params, updates


@functools.cache
def bert_params(scan_layers=False):
  """Real parameters of a two-layer model with all heads."""
  sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=12, vocab_size=11)
  config = model(**sizes, vocab_multiple=1, scan_layers=scan_layers)
  return references.drawn(MlmNsp(config, 6, 1.0, {}).init)


def stacked(params):
  return params | {'encoder': models.stack_layers(params['encoder'])}


def step_factors(scan_layers=False, **changes):
  """The first step of Adam on a gradient of ones, in units of the learning rate."""
  params = bert_params(scan_layers)
  optimizer = optim.make_optimizer(settings(**changes), 10, params)
  updates = run(optimizer, params, [jax.tree.map(jnp.ones_like, params)])[1]
  return jax.tree.map(lambda u: np.asarray(u) / -0.1, updates)


def same_everywhere(tree, value):
  for x in jax.tree.leaves(tree):
    np.testing.assert_allclose(x, value, rtol=1e-4)


# ---- optimizers ----------------------------------------------------------------------------------


def draws(steps, **shapes):
  """(parameters, gradients of so many steps) in float64, for formulas; one gradient is large."""
  random = np.random.RandomState(0)
  params = {name: random.standard_normal(shape) for name, shape in shapes.items()}
  gradients = [
    {name: random.standard_normal(shape) * (10 if t == 3 else 1) for name, shape in shapes.items()}
    for t in range(steps)
  ]
  return params, gradients


def after(params, gradients, steps=30, **changes):
  """The parameters after these gradients; the tree may be any nested dict."""
  as_float32 = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)
  optimizer = optim.make_optimizer(settings(**changes), steps, params)
  return run(optimizer, as_float32(params), [as_float32(g) for g in gradients])[0]


ADAM = dict(learning_rate=0.03, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1)
NUMBERS = dict(zip(('lr', 'b1', 'b2', 'eps', 'decay'), ADAM.values()))


@pytest.mark.parametrize('name', ['adamw', 'bert_adamw', 'lamb', 'stable_adamw'])
def test_optimizers_of_adams_family_are_their_formulas(name):
  """`zero` has no length: LAMB's first step of it is Adam's; and bias does not decay. The squares
  of the gradients of `small` are below eps."""
  params, gradients = draws(30, w=(5, 4), bias=(3,), zero=(2,), small=(6,))
  params['zero'] *= 0
  for gradient in gradients:
    gradient['small'] /= 100
  found = after(params, gradients, name=name, no_decay='bias', **ADAM)
  for key, w in params.items():
    of_key = [g[key] for g in gradients]
    expected = references.adam(w, of_key, **NUMBERS, kind=name, decays=key != 'bias')
    np.testing.assert_allclose(found[key], expected, rtol=3e-5, err_msg=key)


def test_muon_is_its_formula():
  """For the kernels of layers; the rest is AdamW's."""
  params, gradients = draws(20, tall=(6, 4), wide=(3, 5))
  kernels = lambda tree: {'encoder': {'layer_0': {n: {'kernel': x} for n, x in tree.items()}}}
  found = after(kernels(params), [kernels(g) for g in gradients], name='muon', **ADAM)
  for name, layer in found['encoder']['layer_0'].items():
    expected = references.muon(params[name], [g[name] for g in gradients], 0.03, 0.1)
    np.testing.assert_allclose(layer['kernel'], expected, rtol=1e-3, atol=1e-4)


def test_muon_leaves_embeddings_heads_and_vectors_to_adamw():
  """One step of a gradient of ones: AdamW's is -rate everywhere, an orthogonal matrix is not."""
  for path, x in jax.tree_util.tree_flatten_with_path(step_factors(name='muon'))[0]:
    names = [key.key for key in path]
    by_muon = names[0] == 'encoder' and names[-1] == 'kernel'
    assert np.allclose(x, 1, rtol=1e-3) != by_muon, names


@pytest.mark.parametrize('name', optim.OPTIMIZERS)
def test_what_is_computed_of_a_matrix_is_computed_for_each_layer(name):
  """Three steps with other gradients in each layer: stacked as apart."""
  encoder = bert_params()['encoder']
  parts = 'attention', 'output_LayerNorm'
  layers = {n: {part: encoder[n][part] for part in parts} for n in ('layer_0', 'layer_1')}
  params, random = {'encoder': layers}, np.random.RandomState(0)

  def drawn(path, x):
    return random.standard_normal(x.shape) * (100 if 'layer_1' in str(path) else 1)

  gradients = [jax.tree_util.tree_map_with_path(drawn, params) for _ in range(3)]
  changes = ADAM | dict(name=name, learning_rate=0.01, no_decay='LayerNorm|bias')
  apart = stacked(after(params, gradients, **changes))
  together = after(stacked(params), [stacked(g) for g in gradients], **changes)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), together, apart)


# ---- schedules -----------------------------------------------------------------------------------

WSD = dict(schedule='wsd', warmup=100.0, decay=200.0)


@pytest.mark.parametrize(
  'changes, points',
  [
    # BERT's falls from step 0, so the warm-up ends below the peak: 2 * (1 - 100 / 1000).
    (dict(schedule='linear', warmup=0.1), {0: 0, 50: 1, 99: 1.98, 100: 1.8, 500: 1, 1500: 0}),
    (dict(schedule='linear'), {0: 2, 250: 1.5}),
    (dict(schedule='cosine', warmup=100.0), {50: 1, 100: 2, 325: 1 + np.sqrt(0.5), 1500: 0}),
    (dict(schedule='constant', warmup=100.0), {0: 0, 25: 0.5, 100: 2, 1500: 2}),
    (dict(schedule='constant', warmup=1.0), {0: 0, 1: 2}),  # a step, and no share
    (dict(schedule='inverse_sqrt', warmup=100.0), {50: 1, 100: 2, 400: 1, 900: 2 / 3}),
    (dict(schedule='wsd', decay=0.2), {0: 2, 800: 2, 900: 1}),
    (dict(schedule='wsd_sqrt', decay=400.0), {600: 2, 604: 1.8, 700: 1, 825: 0.5, 1500: 0}),
    # From 2 to a tenth of it in place of 0; the warm-up begins at 0 all the same.
    (WSD | dict(final_rate=0.1), {0: 0, 50: 1, 800: 2, 900: 1.1, 1000: 0.2, 1500: 0.2}),
    (dict(schedule='cosine', final_rate=0.1), {0: 2, 500: 1.1, 1000: 0.2}),
  ],
  ids=str,
)
def test_schedule(changes, points):
  schedule = timeline.make_schedule(settings(learning_rate=2.0, **changes), 1000)
  rates = schedule(np.array([*points]))
  np.testing.assert_allclose(rates, [*points.values()], rtol=1e-5, atol=1e-6)


def test_weight_decay_follows_the_rate():
  """Without a gradient a step is -rate * decay * w: nothing at step 0, little in the warm-up."""
  params = {'w': jnp.array([2.0, -4.0])}
  changes = dict(warmup=4.0, schedule='linear', weight_decay=0.25)
  for name in set(optim.OPTIMIZERS) - {'lamb'}:  # whose update is as long as its parameter
    optimizer = optim.make_optimizer(settings(name=name, **changes), 10, params)
    w, state = params, optimizer.init(params)
    for rate in [0.0, 0.025, 0.05, 0.075, 0.06, 0.05]:
      updates, state = optimizer.update({'w': jnp.zeros(2)}, state, w)
      np.testing.assert_allclose(updates['w'], -rate * 0.25 * w['w'], rtol=1e-5, err_msg=str(rate))
      w = jax.tree.map(jnp.add, w, updates)


# ---- masks ---------------------------------------------------------------------------------------


def test_lr_multipliers_first_match_counts():
  factors = step_factors(lr_multipliers=(('query|nsp', 3.0), ('attention/', 0.5)))
  attention = factors['encoder']['layer_1']['attention']
  same_everywhere(attention['query'], 3)
  same_everywhere(factors['nsp'], 3)
  same_everywhere(attention['key'], 0.5)
  same_everywhere([factors['mlm'], factors['encoder']['layer_1']['output']], 1)


@pytest.mark.parametrize('last', [1, 2])
def test_layer_lr_decay_counts_from_the_heads(last):
  """With 2 the exponents are google-research/electra's, model/optimization.py: layers + 2 - depth,
  where the embeddings have depth 0, layer i has i + 1, and heads have layers + 2."""
  factors, layers = step_factors(layer_lr_decay=0.8, layer_lr_last=last), 2
  same_everywhere([factors[head] for head in ('mlm', 'pooler', 'nsp')], 1)
  for i in range(layers):
    same_everywhere(factors['encoder'][f'layer_{i}'], 0.8 ** (layers + last - (i + 1)))
  same_everywhere(factors['encoder']['embeddings'], 0.8 ** (layers + last))


@pytest.mark.parametrize('scanned', [False, True])
def test_every_tower_has_depths_of_its_own(scanned):
  """A tower of 4 layers beside one of 12, as a generator beside a discriminator."""
  kernel = {'kernel': jax.ShapeDtypeStruct((4, 4), jnp.float32)}
  stacked = {'kernel': jax.ShapeDtypeStruct((3, 4, 4), jnp.float32)}
  small = {'embeddings': kernel, 'LayerNorm': kernel, 'layer_0': kernel}
  small |= {'layers': stacked} if scanned else {f'layer_{i}': kernel for i in (1, 2, 3)}
  large = {f'layer_{i}': kernel for i in range(12)} | {'distances': kernel}
  generator = {'encoder': small, 'embeddings': kernel, 'head': {'embeddings': kernel}}
  params = {'encoder': large, 'generator': generator, 'embeddings': kernel}
  depths = jax.tree.map(lambda x: np.ravel(x).tolist(), optim.layer_depths(params))
  found = depths['generator']['encoder']
  assert found['embeddings']['kernel'] == [5] and found['LayerNorm']['kernel'] == [0]
  rest = [found['layers']] if scanned else [found[f'layer_{i}'] for i in (1, 2, 3)]
  assert sum([x['kernel'] for x in (found['layer_0'], *rest)], []) == [4, 3, 2, 1]
  assert [depths['encoder'][f'layer_{i}']['kernel'] for i in (0, 10, 11)] == [[12], [2], [1]]
  assert depths['encoder']['distances']['kernel'] == [13]
  # Those beside towers are below the deepest; those of a head are in no tower and beside none.
  assert depths['embeddings']['kernel'] == [13]
  assert depths['generator']['embeddings']['kernel'] == [5]
  assert depths['generator']['head']['embeddings']['kernel'] == [0]


def test_scanned_layers_are_stepped_as_unrolled_ones():
  changes = dict(clip_norm=1.0, eps=1.0, layer_lr_decay=0.5, freeze='embeddings')
  changes |= dict(lr_multipliers=(('query', 3.0), ('kernel', 0.0)))
  close(step_factors(True, **changes), stacked(step_factors(False, **changes)))


def test_a_regex_that_matches_nothing_is_an_error():
  with pytest.raises(InputError, match="'Nor_' .* matches no parameter"):
    optim.make_optimizer(settings(freeze='Nor_'), 10, bert_params())


@pytest.mark.parametrize('freeze', ['', 'c'])
def test_clipping_is_by_the_global_norm_of_what_is_trained(freeze):
  """eps 1 makes Adam feel the scale: the first step is rate * g / (|g| + 1)."""
  own, params = settings(clip_norm=1.0, eps=1.0, freeze=freeze), dict.fromkeys('abc', jnp.zeros(1))
  c = 1e6 if freeze else 0.0
  for scale, (a, b) in ((5.0, (3.0, -4.0)), (1.0, (0.3, 0.4))):
    gradient = {name: jnp.array([x]) for name, x in dict(a=a, b=b, c=c).items()}
    _, updates = run(optim.make_optimizer(own, 10, params), params, [gradient])
    same_everywhere(updates['a'], -0.1 * a / scale / (abs(a) / scale + 1))
    same_everywhere(updates['b'], -0.1 * b / scale / (abs(b) / scale + 1))
    same_everywhere(updates['c'], 0)
