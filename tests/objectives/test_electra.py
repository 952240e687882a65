"""ELECTRA: what is drawn, what is said of it, who learns from whom, and a run from end to end."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import references
from running import same_bits
from scipy import special
from test_objectives import MASKING, MODEL, batch_of, close

from bert_jax import config as config_lib
from bert_jax import models
from bert_jax.metrics import Mean
from bert_jax.models import count_parameters
from bert_jax.objectives import electra as electra_lib
from bert_jax.objectives.electra import SHARING, Electra, drawn, generator_of
from bert_jax.objectives.encode import encode
from bert_jax.step import Constants, State, make_train_step

WIDE = dataclasses.replace(MODEL, hidden_size=32, num_attention_heads=4)
MIXING = dataclasses.replace(WIDE, mixer='bag')  # the least that a layer does


def electra(sharing='shared', model=WIDE, size=0.25, **changes):
  generator = generator_of(model, size)
  fixed = model, 8, 0.0, MASKING
  return Electra(*fixed, generator=generator, sharing=sharing, **changes)


def is_zero(tree):
  return not any(np.any(x) for x in jax.tree.leaves(tree))


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  'size, share, depth, layers', [('base', 1 / 3, 1.0, 12), ('large', 0.25, 0.5, 12)]
)
def test_a_generator_is_as_large_as_the_released_ones(size, share, depth, layers):
  """config.json of google/electra-base-generator and -large-generator; with half of the layers, as
  DeBERTa-v3's."""
  model = models.ModelConfig(**config_lib.bert(size, vocab_multiple=1))
  sizes = dict(hidden_size=256, num_attention_heads=4, intermediate_size=1024)
  sizes |= dict(embedding_size=model.hidden_size, num_hidden_layers=layers)
  assert generator_of(model, share, depth) == dataclasses.replace(model, **sizes)


def test_embeddings_are_one_copy_where_they_are_shared():
  counts = {}
  for sharing in SHARING:
    params = jax.eval_shape(electra(sharing).init, jax.random.key(0))
    counts[sharing] = count_parameters(params)
  tables = count_parameters(params['encoder']['embeddings'])
  assert counts['separate'] == counts['disentangled'] == counts['shared'] + tables


# ---- drawing and saying --------------------------------------------------------------------------


def test_masks_are_filled_as_often_as_the_generator_says():
  """20,000 draws of one mask; slots without a prediction, and all other tokens, stay."""
  objective, many = electra(), 20_000
  row = {
    'input_ids': jnp.array([2, 9, 4, 7, 3, 0, 0, 0]),
    'masked_positions': jnp.array([2, 3, 0]),
    'masked_labels': jnp.array([8, 7, 2]),
    'masked_weights': jnp.array([1.0, 0.0, 0.0]),
  }
  batch = {name: jnp.tile(x, (many, 1)) for name, x in row.items()}
  logits = jax.random.normal(jax.random.key(0), (1, 3, 20)) * 2
  many_logits = jnp.tile(logits, (many, 1, 1))
  filled, replaced = jax.jit(objective.filled)(batch, many_logits, jax.random.key(1))
  ids, replaced = np.asarray(filled['input_ids']), np.asarray(replaced)
  share = np.bincount(ids[:, 2], minlength=20) / many
  expected = np.asarray(jax.nn.softmax(logits[0, 0]))
  np.testing.assert_allclose(share, expected, atol=5 * np.sqrt(0.25 / many))
  assert (np.delete(ids, 2, axis=1) == [2, 9, 7, 3, 0, 0, 0]).all()
  assert (replaced[:, 2] == (ids[:, 2] != 8)).all()
  assert not np.delete(replaced, 2, axis=1).any()


def test_each_device_draws_the_tokens_of_its_own_rows(monkeypatch):
  """Those that jax.random.categorical draws for all rows, also past 2**32 numbers."""

  @functools.partial(jax.jit, static_argnames='parts')
  def of_part(key, logits, part, parts):
    with monkeypatch.context() as patch:
      patch.setattr(electra_lib.dropout, 'shard_of_rows', lambda: (part, parts))
      return drawn(key, logits)

  key, logits = jax.random.key(5), 2 * jax.random.normal(jax.random.key(1), (12, 3, 50))
  for_all = jax.jit(jax.random.categorical)(key, logits)
  each = [of_part(key, logits[k : k + 3], k // 3, parts=4) for k in (0, 3, 6, 9)]
  assert (np.concatenate(each) == for_all).all() and (drawn(key, logits) == for_all).all()
  begin, many = 1023 * 4 * (2**20 + 1), jnp.zeros((1, 4, 2**20 + 1))
  assert begin < 2**32 < begin + many.size
  places = np.arange(begin, begin + many.size, dtype=np.uint64)
  high, low = (jnp.asarray(x.astype(np.uint32)) for x in (places >> 32, places & 0xFFFFFFFF))
  first, second = electra_lib.threefry2x32_p.bind(*jax.random.key_data(key), high, low)
  highest = (np.asarray(first ^ second) >> 9).reshape(4, -1).argmax(axis=1)
  assert (of_part(key, many, 1023, parts=1024)[0] == highest).all()


def test_terms_are_their_formulas():
  objective = electra()
  params, batch = references.drawn(objective.init), batch_of(objective)
  batch['segment_ids'] = batch['segment_ids'].at[:, 6:].set(0)  # padding counts nowhere

  @jax.jit
  def run(key):
    mlm = objective.generated(params, batch)
    filled, replaced = objective.filled(batch, mlm, jax.random.split(key, 3)[0])
    hidden = encode(WIDE, params['encoder'], filled)
    return objective.terms(params, batch, key, False)[0], hidden[:, :6], replaced[:, :6]

  terms, hidden, replaced = run(jax.random.key(9))
  assert 0 < replaced.sum() < 12
  head, hidden, replaced = params['replaced'], np.float64(hidden), np.asarray(replaced)
  inner = references.ACTIVATIONS['gelu'](references.dense(hidden, head['dense']))
  logits = references.dense(inner, head['score'])[..., 0]  # as ElectraForPreTraining
  p = special.expit(logits)
  nats = -np.log(np.where(replaced, p, 1 - p))
  assert float(terms['replaced'].value) == pytest.approx(nats.mean(), rel=1e-5)
  said = logits > 0
  assert float(terms['replaced_accuracy'].value) == pytest.approx((said == replaced).mean()) != 0.5
  assert float(terms['replaced_recall'].total) == (said & replaced).sum()
  assert float(terms['replaced_recall'].weight) == replaced.sum()
  assert float(terms['replaced_precision'].weight) == said.sum()
  assert objective.loss_weights == {'mlm': 1.0, 'replaced': 50.0}
  assert float(terms['replaced_accuracy_majority'].value) == pytest.approx(1 - replaced.mean())
  alike = terms.pop('replaced_alike')  # as the first token: by it a run is seen to have collapsed
  assert alike.total == (said == said[0, 0]).sum() - 1 < alike.weight == said.size - 1
  assert set(objective.metrics) == terms.keys() | {'masked'}  # a share, of the host
  again, other = (run(jax.random.key(seed))[0]['replaced'].total for seed in (9, 6))
  assert again == terms['replaced'].total != other


def test_what_tells_replaced_tokens_may_read_their_cls_too():
  """Of the example that a token belongs to, in rows of several (DeBERTa's code)."""
  model = dataclasses.replace(WIDE, replaced_head='context', layer_norm_eps=0.01)
  head, positions = electra_lib.ReplacedHead(model), np.array([[0, 1, 2, 0, 1, 0], range(6)])
  x = np.random.default_rng(2).normal(size=(2, 6, 32)).astype(np.float32)
  params = references.drawn(head.init, x, positions)['params']
  logits = head.apply({'params': params}, x, positions)
  p, first = references.float64(params), np.array([[0, 0, 0, 3, 3, 5], [0] * 6])
  for b, t in np.ndindex(2, 6):
    y = references.norm(model, x[b, t] + np.float64(x[b, first[b, t]]), p['LayerNorm'])
    y = references.ACTIVATIONS['gelu'](references.dense(y, p['dense']))
    np.testing.assert_allclose(logits[b, t], references.dense(y, p['score'])[0], atol=1e-5)


# ---- who learns from whom ------------------------------------------------------------------------


@pytest.mark.parametrize('sharing', ['shared', 'disentangled'])
def test_the_generator_learns_nothing_from_the_discriminator(sharing):
  objective = electra(sharing, MIXING)
  batch = batch_of(objective)

  def totals(params):
    terms, _ = objective.terms(params, batch, jax.random.key(1), True)
    return [terms[name].total for name in ('replaced', 'mlm')]

  @jax.jit
  def both(params):
    _, pull = jax.vjp(totals, params)
    return [pull(list(ones))[0] for ones in jnp.eye(2)]

  replaced, out = both(references.drawn(objective.init))
  assert is_zero(replaced['generator']) and not is_zero(replaced['replaced'])
  assert not is_zero(replaced['encoder']['embeddings']['word_embeddings'])
  assert is_zero(out['replaced']) and is_zero(out['encoder']['layer_0'])
  assert not is_zero(out['generator']['encoder']['layer_0'])
  # Only shared tables learn from both.
  assert is_zero(out['encoder']['embeddings']) == (sharing != 'shared')


class Quadratic(Electra):
  """Its loss is half the square of how far each parameter is from 2."""

  def prepare(self, batch, rng, moment):
    return batch

  def terms(self, params, batch, rng, train, carry=None, constants=None):
    total = sum(jnp.sum((x - 2) ** 2) / 2 for x in jax.tree.leaves(params))
    return {'mlm': Mean(total, jnp.ones(())), 'replaced': Mean(jnp.zeros(()), jnp.ones(()))}, carry


def test_disentangled_steps_are_those_of_a_delta():
  """DeBERTa-v3, section 3.2: E_D = sg(E_G) + E_delta, and E_delta begins at 0. Steps of gradient
  descent with decay of E_delta, written out."""
  objective, rate, decay = Quadratic(**vars(electra('disentangled', MIXING))), 0.1, 0.3

  def tables(tree):
    return {k: x for k, x in tree['embeddings'].items() if k.endswith('_embeddings')}

  first = jax.jit(objective.init)(jax.random.key(0))
  same_bits(tables(first['encoder']), tables(first['generator']['encoder']))
  optimizer = optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate))
  params, batch, key = references.drawn(objective.init), batch_of(objective), jax.random.key(3)
  state = State(jnp.int32(0), params, optimizer.init(params), {})
  step = jax.jit(make_train_step(objective, lambda _: optimizer))

  def moved(x, gradient):
    return x - rate * (gradient + decay * x)

  def of_delta(x, other, now):
    return now + moved(x - other, x - 2)

  for _ in range(3):
    state, _ = step(state, batch, Constants(key, key, {}, {}))
    new = jax.tree.map(lambda x: moved(x, x - 2), params)
    mine, others = tables(params['encoder']), tables(params['generator']['encoder'])
    now = tables(new['generator']['encoder'])
    new['encoder']['embeddings'] |= jax.tree.map(of_delta, mine, others, now)
    params = new
  close(state.params, params)
