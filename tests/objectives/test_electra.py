"""ELECTRA: what is drawn, what is said of it, who learns from whom, and a run from end to end."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import small_overrides, small_pretrain
from running import same_bits
from test_objectives import MASKING, MODEL, batch_of, one_sentence
from toys import load

from bert_jax import config as config_lib
from bert_jax import models, optim
from bert_jax.models import count_parameters
from bert_jax.objectives.electra import SHARING, Electra, ReplacedHead, generator_of
from bert_jax.objectives.encode import encode
from bert_jax.predict import Model
from bert_jax.rows.row_arrays import TOKENS
from bert_jax.step import Constants, State, make_train_step
from bert_jax.tasks import TASKS
from bert_jax.timeline import Moment
from bert_jax.train import train
from bert_jax.workdir import trained

WIDE = dataclasses.replace(MODEL, hidden_size=32, num_attention_heads=4)


def electra(sharing='shared', model=WIDE, size=0.25, **changes):
  generator = generator_of(model, size)
  fixed = model, 8, 0.0, MASKING
  return Electra(*fixed, generator=generator, sharing=sharing, **changes)


def gradients(objective, term):
  """Of one term of the loss: the parameters and the gradients."""
  params, batch = objective.init(jax.random.key(0)), batch_of(objective)
  loss = lambda params: objective.terms(params, batch, jax.random.key(1), True)[0][term].total
  return params, jax.grad(loss)(params)


def is_zero(tree):
  return not any(np.any(x) for x in jax.tree.leaves(tree))


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  'size, share, hidden, heads, inner',
  [('base', 1 / 3, 256, 4, 1024), ('large', 0.25, 256, 4, 1024), ('base', 1.0, 768, 12, 3072)],
)
def test_a_generator_is_as_large_as_the_released_ones(size, share, hidden, heads, inner):
  """config.json of google/electra-base-generator and -large-generator."""
  model = models.ModelConfig(**config_lib.bert(size))
  generator = generator_of(model, share)
  assert (generator.hidden_size, generator.num_attention_heads) == (hidden, heads)
  assert generator.intermediate_size == inner
  assert generator.num_hidden_layers == model.num_hidden_layers
  assert generator.embedding_width == model.embedding_width


def test_the_generator_of_base_has_its_published_parameters():
  """google/electra-base-generator: 33,511,168 without the head's bias and layer, by transformers'
  ElectraModel; here words are not padded, and the tables are counted with it."""
  model = models.ModelConfig(**config_lib.bert('base', vocab_multiple=1))
  init = lambda key: models.init_encoder(generator_of(model, 1 / 3), key)
  assert count_parameters(jax.eval_shape(init, jax.random.key(0))) == 33_511_168


def test_embeddings_are_one_copy_where_they_are_shared():
  counts = {}
  for sharing in SHARING:
    params = electra(sharing).init(jax.random.key(0))
    assert params.keys() == {'encoder', 'generator', 'replaced'}
    counts[sharing] = count_parameters(params)
  tables = params['encoder']['embeddings']
  assert counts['separate'] == counts['disentangled'] == counts['shared'] + count_parameters(tables)
  same = electra('shared', size=1.0).init(jax.random.key(0))  # as wide: there is no layer either
  assert 'embeddings' not in same['generator']['encoder']


# ---- drawing and saying --------------------------------------------------------------------------


def test_masks_are_filled_as_often_as_the_generator_says():
  """20,000 draws of one mask; slots without a prediction, and all other tokens, stay."""
  objective, many = electra(), 20_000
  batch = {
    'input_ids': jnp.tile(jnp.array([2, 9, 4, 7, 3, 0, 0, 0]), (many, 1)),
    'masked_positions': jnp.tile(jnp.array([2, 3, 0]), (many, 1)),
    'masked_labels': jnp.tile(jnp.array([8, 7, 2]), (many, 1)),
    'masked_weights': jnp.tile(jnp.array([1.0, 0.0, 0.0]), (many, 1)),
  }
  logits = jax.random.normal(jax.random.key(0), (1, 3, 20)) * 2
  filled, replaced = objective.filled(batch, jnp.tile(logits, (many, 1, 1)), jax.random.key(1))
  ids = np.asarray(filled['input_ids'])
  share = np.bincount(ids[:, 2], minlength=20) / many
  expected = np.asarray(jax.nn.softmax(logits[0, 0]))
  np.testing.assert_allclose(share, expected, atol=5 * np.sqrt(0.25 / many))
  assert (ids[:, [0, 1, 3, 4, 5, 6, 7]] == [2, 9, 7, 3, 0, 0, 0]).all()
  assert (np.asarray(replaced)[:, 2] == (ids[:, 2] != 8)).all()
  assert not np.delete(np.asarray(replaced), 2, axis=1).any()


def test_terms_are_their_formulas():
  objective = electra()
  params, batch = objective.init(jax.random.key(0)), batch_of(objective)
  batch['segment_ids'] = batch['segment_ids'].at[:, 6:].set(0)  # padding counts nowhere
  key = jax.random.key(5)
  terms, _ = objective.terms(params, batch, key, False)
  mlm = objective.generated(params, batch)
  filled, replaced = objective.filled(batch, mlm, jax.random.split(key, 3)[0])
  hidden = encode(WIDE, params['encoder'], filled)
  logits = ReplacedHead(WIDE).apply({'params': params['replaced']}, hidden)
  logits, replaced = (np.asarray(x)[:, :6] for x in (logits, replaced))
  assert 0 < replaced.sum() < 12
  p = 1 / (1 + np.exp(-np.float64(logits)))
  nats = -np.log(np.where(replaced, p, 1 - p))
  assert float(terms['replaced'].value) == pytest.approx(nats.mean(), rel=1e-5)
  said = logits > 0
  assert float(terms['replaced_accuracy'].value) == pytest.approx((said == replaced).mean())
  assert float(terms['replaced_recall'].total) == (said & replaced).sum()
  assert float(terms['replaced_recall'].weight) == replaced.sum()
  assert float(terms['replaced_precision'].weight) == said.sum()
  assert objective.loss_weights == {'mlm': 1.0, 'replaced': 50.0}
  assert set(objective.metrics) == terms.keys() | {'masked'}  # a share, of the host
  again, _ = objective.terms(params, batch, key, False)
  other, _ = objective.terms(params, batch, jax.random.key(6), False)
  assert again['replaced'].total == terms['replaced'].total != other['replaced'].total


@pytest.mark.slow
def test_the_discriminator_is_transformers():
  """Our encoder and head in ElectraForPreTraining, an example of a row without padding."""
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  objective = electra()
  params, batch = objective.init(jax.random.key(0)), batch_of(objective)
  sizes = {'vocab_size': 20, 'embedding_size': 32, 'hidden_size': 32, 'num_hidden_layers': 1}
  sizes |= {'num_attention_heads': 4, 'intermediate_size': 16, 'max_position_embeddings': 8}
  config = transformers.ElectraConfig(**sizes, attn_implementation='eager')
  theirs = transformers.ElectraForPreTraining(config).eval()
  state = {}

  def put(name, tree):
    for key, x in tree.items():
      end = {'kernel': 'weight', 'scale': 'weight', 'embedding': 'weight', 'bias': 'bias'}[key]
      state[f'{name}.{end}'] = torch.tensor(np.asarray(x.T if key == 'kernel' else x))

  encoder = params['encoder']
  for name, tree in encoder['embeddings'].items():
    put(f'electra.embeddings.{name}', tree)
  layer, there = encoder['layer_0'], 'electra.encoder.layer.0'
  parts = {f'attention.self.{x}': layer['attention'][x] for x in ('query', 'key', 'value')}
  parts |= {'attention.output.dense': layer['attention']['output']}
  parts |= {'attention.output.LayerNorm': layer['attention_LayerNorm']}
  parts |= {'intermediate.dense': layer['intermediate'], 'output.dense': layer['output']}
  parts |= {'output.LayerNorm': layer['output_LayerNorm']}
  for name, tree in parts.items():
    put(f'{there}.{name}', tree)
  put('discriminator_predictions.dense', params['replaced']['dense'])
  put('discriminator_predictions.dense_prediction', params['replaced']['score'])
  missing = theirs.load_state_dict(state, strict=False)
  assert not missing.unexpected_keys and all('_ids' in name for name in missing.missing_keys)
  batch['position_ids'] += jnp.arange(8)
  hidden = encode(WIDE, encoder, batch)
  ours = ReplacedHead(WIDE).apply({'params': params['replaced']}, hidden)
  ids = torch.tensor(np.asarray(batch['input_ids']), dtype=torch.long)
  types = torch.tensor(np.asarray(batch['token_type_ids']), dtype=torch.long)
  with torch.no_grad():
    logits = theirs(input_ids=ids, token_type_ids=types).logits
  np.testing.assert_allclose(ours, logits.numpy(), atol=1e-4)


# ---- who learns from whom ------------------------------------------------------------------------


@pytest.mark.parametrize('sharing', SHARING)
def test_the_generator_learns_nothing_from_the_discriminator(sharing):
  params, out = gradients(electra(sharing), 'replaced')
  assert is_zero(out['generator']) and not is_zero(out['replaced'])
  assert not is_zero(out['encoder']['embeddings']['word_embeddings'])
  _, out = gradients(electra(sharing), 'mlm')
  assert is_zero(out['replaced']) and is_zero(out['encoder']['layer_0'])
  assert not is_zero(out['generator']['encoder']['layer_0'])
  # Only shared tables learn from both.
  assert is_zero(out['encoder']['embeddings']) == (sharing != 'shared')


def steps_of(objective, weights, steps=3, **changes):
  """The parameters before and after some steps of a loss with these weights."""

  class Weighed(type(objective)):
    loss_weights = weights

  weighed = Weighed(**vars(objective))
  settings = load('configs/pretrain.py:arch=electra').optimizer
  settings.update(dict(warmup=0.0, learning_rate=0.01) | changes)
  params = weighed.init(jax.random.key(0))
  make = lambda numbers: optim.make_optimizer(settings, 100, params, numbers)
  numbers, key = optim.numbers(settings), jax.random.key(3)
  state = State(jnp.int32(0), params, make(numbers).init(params), {})
  step = jax.jit(make_train_step(weighed, make))
  batch = batch_of(objective)
  for _ in range(steps):
    state, _ = step(state, batch, Constants(key, key, numbers, {}))
  return params, state.params


def words(params):
  tables = params['encoder'], params['generator']['encoder']
  return [np.asarray(x['embeddings']['word_embeddings']['embedding']) for x in tables]


def test_disentangled_tables_move_together_but_learn_apart():
  """DeBERTa-v3, section 3.2: E_D = sg(E_G) + E_delta, and E_delta begins at 0."""
  before, after = steps_of(electra('disentangled'), {'mlm': 1.0})
  np.testing.assert_array_equal(*words(before))
  model, generator = words(after)
  assert np.abs(generator - words(before)[1]).max() > 1e-3
  np.testing.assert_allclose(model, generator, atol=1e-7)
  before, after = steps_of(electra('disentangled'), {'replaced': 1.0}, weight_decay=0.0)
  model, generator = words(after)
  np.testing.assert_array_equal(generator, words(before)[1])
  assert np.abs(model - generator).max() > 1e-3


def test_disentangled_steps_are_those_of_a_delta():
  """The same three steps of 0.01 written out with E_delta as a parameter, by AdamW with decay. Adam
  makes steps even of the rounding errors that are the gradient of the bias of keys."""
  objective = electra('disentangled')
  params, after = steps_of(objective, objective.loss_weights, clip_norm=1.0, name='adamw')
  settings = load('configs/pretrain.py:arch=electra').optimizer
  settings.update(dict(warmup=0.0, learning_rate=0.01, name='adamw'))
  tables = lambda tree: {n: x for n, x in tree['embeddings'].items() if n.endswith('_embeddings')}
  deltas = dict(params, deltas=jax.tree.map(jnp.zeros_like, tables(params['encoder'])))
  norm = {'LayerNorm': params['encoder']['embeddings']['LayerNorm']}
  deltas['encoder'] = params['encoder'] | {'embeddings': norm}

  def whole(tree):
    fixed = jax.lax.stop_gradient(tables(tree['generator']['encoder']))
    new = jax.tree.map(jnp.add, fixed, tree['deltas'])
    encoder = dict(tree['encoder'], embeddings=tree['encoder']['embeddings'] | new)
    return {'encoder': encoder, 'generator': tree['generator'], 'replaced': tree['replaced']}

  optimizer = optim.make_optimizer(settings, 100, deltas)
  state = optimizer.init(deltas)
  batch = batch_of(objective)
  for number in range(3):
    corrupt, dropout = jax.random.split(jax.random.fold_in(jax.random.key(3), number))
    prepared = objective.prepare(batch, corrupt, Moment())

    def loss(tree, prepared=prepared, dropout=dropout):
      terms, _ = objective.terms(whole(tree), prepared, dropout, True)
      return terms['mlm'].value + 50 * terms['replaced'].value

    updates, state = optimizer.update(jax.grad(loss)(deltas), state, deltas)
    deltas = optax.apply_updates(deltas, updates)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-4), after, whole(deltas))


# ---- runs ----------------------------------------------------------------------------------------


def run_of(corpus_file, *overrides):
  given = [*small_overrides(corpus_file), *overrides]
  return config_lib.load('configs/pretrain.py:arch=electra,runlocal', given)


@pytest.fixture(scope='module')
def run(corpus_file, tmp_path_factory):
  """(workdir, metrics) of a small run with disentangled sharing and two microbatches."""
  workdir = tmp_path_factory.mktemp('electra') / 'run'
  changes = '--config.generator.embeddings=disentangled', '--config.optimizer.accumulation=2'
  config = run_of(corpus_file, *changes)
  return workdir, config, train(config, workdir)[1]


def flat(workdir):
  return jax.tree.map(np.asarray, jax.device_get(trained.load(workdir).params))


def test_a_run_stopped_and_continued_ends_with_the_same_bits(run):
  workdir, config, metrics = run
  assert {'mlm', 'replaced', 'replaced_accuracy', 'replaced_recall'} <= metrics.keys()
  whole = flat(workdir)
  shutil.rmtree(workdir / 'checkpoints' / '20')
  _, again = train(config, workdir)
  assert again == metrics
  same_bits(flat(workdir), whole)


def test_the_discriminator_is_the_model_that_others_take(run, corpus_file, tmp_path):
  workdir, _, _ = run
  assert Model(workdir).embed(['the first text', 'another']).shape == (2, 32)
  still = '--config.steps=1', '--config.optimizer.learning_rate=0'
  config = small_pretrain(corpus_file, f'--config.init_from={workdir}', *still)
  train(config, tmp_path / 'next')
  same_bits(flat(tmp_path / 'next')['encoder'], flat(workdir)['encoder'])


@pytest.mark.parametrize('sharing', SHARING)
def test_the_generator_fills_masks(run, sharing):
  """With the probabilities that it has in training, whatever embeddings it shares."""
  workdir, config, _ = run
  found, config = trained.load(workdir), config.copy_and_resolve_references()
  config.generator.embeddings, text = sharing, 'the first [MASK] of it'
  objective = TASKS['electra'].objective(config, found.tokenizer)
  keys = iter(jax.random.split(jax.random.key(3), 99))
  moved = lambda x: x + 0.2 * jax.random.normal(next(keys), x.shape)
  params = jax.tree.map(moved, objective.init(jax.random.key(0)))
  model = Model(trained.part_of(found._replace(config=config, params=params), 'generator'))
  ids = np.array([[2, *found.tokenizer.encode_with_masks(text), 3]])
  batch = dict(zip(TOKENS, (ids, 0 * ids, np.arange(ids.shape[1])[None], 0 * ids + 1)))
  batch['masked_positions'] = np.argwhere(ids == found.tokenizer.mask_id)[:, 1:]
  shares = np.asarray(jax.nn.softmax(objective.generated(params, batch)))[0, 0]
  ((best,),) = model.fill_mask([text], top_k=3)
  pieces = [found.tokenizer.pieces[i] for i in np.argsort(-shares)[:3]]
  assert pieces == [piece for piece, _ in best]
  np.testing.assert_allclose([p for _, p in best], np.sort(shares)[:-4:-1], rtol=1e-4)
  assert shares.max() > 5 / len(shares)
  with one_sentence("was trained for 'electra' and has no"):
    Model(found).fill_mask([text])


@pytest.mark.parametrize(
  'change, said',
  [
    ('loss.nsp_weight=1', 'loss.nsp_weight is 1.0'),
    ('generator.size=0', 'outside (0, 1]'),
    ('generator.embeddings=tied', 'use one of shared, disentangled, separate'),
  ],
)
def test_what_electra_has_not_is_a_sentence(corpus_file, change, said):
  with one_sentence(said):
    run_of(corpus_file, f'--config.{change}')
