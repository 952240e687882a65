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

from bert_jax import config, models, optim, timeline
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
  """`zero` has no length: LAMB's first step of it is Adam's; and bias does not decay."""
  params, gradients = draws(30, w=(5, 4), bias=(3,), zero=(2,))
  params['zero'] *= 0
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
  layers = {
    name: {part: layer[part] for part in ('attention', 'output_LayerNorm')}
    for name, layer in bert_params()['encoder'].items()
    if name.startswith('layer_')
  }
  params, random = {'encoder': layers}, np.random.RandomState(0)
  drawn = lambda path, x: 10.0 ** (2 * ('layer_1' in str(path))) * random.standard_normal(x.shape)
  gradients = [jax.tree_util.tree_map_with_path(drawn, params) for _ in range(3)]
  changes = ADAM | dict(name=name, learning_rate=0.01, no_decay='LayerNorm|bias')
  apart = stacked(after(params, gradients, **changes))
  together = after(stacked(params), [stacked(g) for g in gradients], **changes)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), together, apart)


# ---- schedules -----------------------------------------------------------------------------------

COSINE = dict(schedule='cosine', warmup=100.0)
WSD = dict(schedule='wsd', warmup=100.0, decay=200.0)


@pytest.mark.parametrize(
  'changes, points',
  [
    # BERT's falls from step 0, so the warm-up ends below the peak: 2 * (1 - 100 / 1000).
    (dict(schedule='linear', warmup=100.0), {0: 0, 50: 1, 99: 1.98, 100: 1.8, 500: 1, 1000: 0}),
    (dict(schedule='linear', warmup=0.1), {50: 1, 100: 1.8, 1500: 0}),
    (dict(schedule='linear'), {0: 2, 250: 1.5}),
    (COSINE, {0: 0, 50: 1, 100: 2, 325: 1 + np.sqrt(0.5), 550: 1, 1000: 0, 1500: 0}),
    (dict(schedule='constant', warmup=100.0), {0: 0, 25: 0.5, 100: 2, 1500: 2}),
    (dict(schedule='inverse_sqrt', warmup=100.0), {0: 0, 50: 1, 100: 2, 400: 1, 900: 2 / 3}),
    (WSD, {0: 0, 50: 1, 100: 2, 800: 2, 850: 1.5, 900: 1, 1000: 0, 1500: 0}),
    (dict(schedule='wsd', decay=0.2), {0: 2, 800: 2, 900: 1}),
    (
      dict(schedule='wsd_sqrt', warmup=100.0, decay=400.0),
      {0: 0, 50: 1, 100: 2, 600: 2, 604: 1.8, 700: 1, 825: 0.5, 1000: 0, 1500: 0},
    ),
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


@pytest.mark.parametrize('spec', ['pretrain.py', 'finetune.py', 'quickstart.py:stage=finetune'])
def test_every_config_decays_what_bert_decays(spec):
  """optimization.py of google-research/bert: all but LayerNorm and biases."""
  pattern = config.load(f'configs/{spec}').optimizer.no_decay
  hits = jax.tree_util.tree_flatten_with_path(optim.matches(pattern, bert_params()))[0]
  for path, hit in hits:
    names = [key.key for key in path]
    assert hit == (names[-1] == 'bias' or any('LayerNorm' in name for name in names)), names


def test_frozen_parameters_stay_under_gradient_and_decay():
  params = bert_params(scan_layers=True)
  changes = dict(weight_decay=0.1, freeze='^encoder/embeddings/|query')
  news = after(params, [jax.tree.map(jnp.ones_like, params)] * 3, **changes)
  olds = jax.tree.leaves(params)
  for (path, new), old in zip(jax.tree_util.tree_flatten_with_path(news)[0], olds):
    names = [key.key for key in path]
    frozen = names[:2] == ['encoder', 'embeddings'] or 'query' in names
    assert np.array_equal(new, old) == frozen, names


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


def tower(layers, scanned):
  """Shapes of a tower with embeddings, layers, of which the first is not scanned, and a norm."""
  shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
  rest = {
    'embeddings': {'words': {'embedding': shape((7, 4))}},
    'LayerNorm': {'scale': shape((4,))},
  }
  kernels = lambda *sizes: {'output': {'kernel': shape((*sizes, 4, 4))}}
  rest |= {f'layer_{i}': kernels() for i in range(1 if scanned else layers)}
  return rest | ({'layers': kernels(layers - 1)} if scanned else {})


@pytest.mark.parametrize('scanned', [False, True])
def test_every_tower_has_depths_of_its_own(scanned):
  """A tower of 4 layers beside one of 12, as a generator beside a discriminator."""
  word = {'embedding': jax.ShapeDtypeStruct((7, 4), jnp.float32)}
  params = {
    'encoder': tower(12, False),
    'generator': {'encoder': tower(4, scanned), 'embeddings': word, 'head': {'embeddings': word}},
    'embeddings': word,
  }
  params['encoder']['distances'] = word
  depths = optim.layer_depths(params)
  assert depths['encoder']['distances']['embedding'] == 13
  for tree, layers in ((depths['encoder'], 12), (depths['generator']['encoder'], 4)):
    assert tree['embeddings']['words']['embedding'] == layers + 1
    assert tree['LayerNorm']['scale'] == 0
    found = [tree[f'layer_{i}']['output']['kernel'] for i in range(layers) if f'layer_{i}' in tree]
    if 'layers' in tree:
      stacked = tree['layers']['output']['kernel']
      assert stacked.shape == (layers - 1, 1, 1)
      found += stacked.ravel().tolist()
    assert found == list(range(layers, 0, -1))
  # Those beside towers are below the deepest; those of a head are in no tower and beside none.
  assert depths['embeddings']['embedding'] == 13
  assert depths['generator']['embeddings']['embedding'] == 5
  assert depths['generator']['head']['embeddings']['embedding'] == 0
  assert optim.layer_depths(params['encoder'])['layer_2']['output']['kernel'] == 10  # itself one


def test_scanned_layers_are_stepped_as_unrolled_ones():
  changes = dict(clip_norm=1.0, eps=1.0, layer_lr_decay=0.5, freeze='embeddings')
  changes |= dict(lr_multipliers=(('query', 3.0), ('kernel', 0.0)))
  close(step_factors(True, **changes), stacked(step_factors(False, **changes)))


def test_a_regex_that_matches_nothing_is_an_error():
  for name, value in dict(no_decay='Nor_', freeze='Nor_', lr_multipliers=(('Nor_', 2.0),)).items():
    with pytest.raises(InputError, match="'Nor_' .* matches no parameter"):
      optim.make_optimizer(settings(**{name: value}), 10, bert_params())


@pytest.mark.parametrize('freeze', ['', 'c'])
def test_clipping_is_by_the_global_norm_of_what_is_trained(freeze):
  """eps 1 makes Adam feel the scale: the first step is rate * g / (|g| + 1)."""
  own, params = settings(clip_norm=1.0, eps=1.0, freeze=freeze), dict.fromkeys('abc', jnp.zeros(1))
  step = lambda *g: run(optim.make_optimizer(own, 10, params), params, [dict(zip('abc', g))])[1]
  numbers = lambda *g: [jnp.array([x]) for x in g]
  c = 1e6 if freeze else 0.0
  for scale, g in ((5.0, (3.0, -4.0)), (1.0, (0.3, 0.4))):
    updates = step(*numbers(*g, c))
    for name, x in zip('ab', g):
      same_everywhere(updates[name], -0.1 * x / scale / (abs(x) / scale + 1))
    same_everywhere(updates['c'], 0)
