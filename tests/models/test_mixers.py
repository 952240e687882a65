"""What can stand in place of attention: each beside its formula, packed or not, scanned or not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_blocks import Ones
from test_models import batch, hidden, model
from test_predict import load_pretrain, random_model, sentences

from bert_jax import config as c
from bert_jax import models
from bert_jax.models import block, flops, mixers
from bert_jax.models.tokens import Layer, Tokens
from bert_jax.objectives.encode import encode
from bert_jax.predict import packed_rows
from bert_jax.tasks import TASKS
from bert_jax.tasks.ask import RecordProblems

PACKING = sorted(set(block.MIXERS) - {'fourier'})
IDS = np.array([[1] * 6 + [2] * 5 + [3] + [0] * 4, [1] * 16], np.int32)
X = np.random.default_rng(0).normal(size=(2, 16, 24)).astype(np.float32)


def mixed(name, x, ids, **fields):
  """(parameters, outputs) of a mixer whose parameters are all drawn, biases too."""
  mixer = block.MIXERS[name](model(mixer=name, **fields), True)
  variables = mixer.init(jax.random.key(0), x, Tokens(ids), Layer())
  draw = np.random.default_rng(1)
  variables = jax.tree.map(
    lambda p: (p + 0.3 * draw.normal(size=p.shape)).astype(np.float32), variables
  )
  return variables.get('params', {}), np.asarray(mixer.apply(variables, x, Tokens(ids), Layer()))


def segments(ids):
  """(row, start, end) of each example."""
  for b, row in enumerate(ids):
    for number in sorted(set(row) - {0}):
      (places,) = np.nonzero(row == number)
      yield b, places[0], places[-1] + 1


def product(x, layer):
  return x @ layer['kernel'] + layer['bias']


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def lstm_by_hand(params, x):
  """[T, D] -> [T, D], by torch's equations but for the order of gates."""
  h = x.shape[-1] // 2
  outputs = []
  for way, steps in enumerate((range(len(x)), range(len(x) - 1, -1, -1))):
    hidden, cell, out = np.zeros(h), np.zeros(h), np.zeros((len(x), h))
    for t in steps:
      gates = product(x[t], params['input'])[way * 4 * h : (way + 1) * 4 * h]
      i, f, o, candidate = np.split(gates + hidden @ params['recurrent'][way], 4)
      cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(candidate)
      out[t] = hidden = sigmoid(o) * np.tanh(cell)
    outputs.append(out)
  return np.concatenate(outputs, axis=-1)


def conv_by_hand(params, x):
  x, gate = np.split(product(x, params['input']), 2, axis=-1)
  x = x * sigmoid(gate)
  reach = len(params['taps']) // 2
  padded = np.pad(x, [(reach, reach), (0, 0)])
  summed = sum(padded[n : n + len(x)] * tap for n, tap in enumerate(params['taps']))
  return product(summed, params['output'])


def bag_by_hand(params, x):
  return product(np.broadcast_to(x.mean(0), x.shape), params['output'])


@pytest.mark.parametrize('name', ['lstm', 'conv', 'bag'])
def test_mixers_are_their_formulas_in_each_example(name):
  params, got = mixed(name, X, IDS, conv_width=5)
  by_hand = {'lstm': lstm_by_hand, 'conv': conv_by_hand, 'bag': bag_by_hand}[name]
  for b, start, end in segments(IDS):
    expected = by_hand(jax.device_get(params), X[b, start:end])
    np.testing.assert_allclose(got[b, start:end], expected, atol=1e-5)


def test_an_lstm_is_that_of_torch():
  torch = pytest.importorskip('torch')
  params, got = mixed('lstm', X, np.ones((2, 16), np.int32))
  theirs, h = torch.nn.LSTM(24, 12, bidirectional=True, batch_first=True), 12
  order = np.r_[0:h, h : 2 * h, 3 * h : 4 * h, 2 * h : 3 * h]  # input, forget, candidate, output
  forget = np.r_[np.zeros(h), np.ones(h), np.zeros(2 * h)]
  tensors = {}
  for way, end in enumerate(('', '_reverse')):
    columns = slice(way * 4 * h, (way + 1) * 4 * h)
    tensors[f'weight_ih_l0{end}'] = np.asarray(params['input']['kernel'])[:, columns].T[order]
    tensors[f'weight_hh_l0{end}'] = np.asarray(params['recurrent'])[way].T[order]
    tensors[f'bias_ih_l0{end}'] = np.asarray(params['input']['bias'])[columns][order] + forget
    tensors[f'bias_hh_l0{end}'] = np.zeros(4 * h)
  theirs.load_state_dict({k: torch.tensor(np.float32(x)) for k, x in tensors.items()})
  with torch.no_grad():
    expected = theirs(torch.tensor(X))[0].numpy()
  np.testing.assert_allclose(got, expected, atol=1e-5)


def test_fourier_is_numpys():
  params, got = mixed('fourier', X, np.ones((2, 16), np.int32))
  assert not params
  np.testing.assert_allclose(got, np.fft.fft2(X).real, atol=2e-4)


def test_a_bag_knows_no_order():
  order = np.random.default_rng(2).permutation(16)
  ids = np.ones((2, 16), np.int32)
  config = model(mixer='bag', position_embeddings='none')
  tower = models.Stack(config, 2)
  params = tower.init(jax.random.key(0), X, Tokens(ids))
  run = lambda x: tower.apply(params, x, Tokens(ids))
  np.testing.assert_allclose(run(X)[:, order], run(X[:, order]), atol=1e-5)
  assert np.abs(run(X) - run(np.roll(X, 1, 2))).max() > 0.1


@pytest.mark.parametrize('name', PACKING)
def test_a_packed_row_is_its_examples_apart(name):
  config = model(mixer=name, num_hidden_layers=3)
  inputs = {k: np.array(x) for k, x in batch().items()}
  inputs['segment_ids'] = np.array([[1] * 9 + [2] * 8 + [0] * 3] * 4, np.int32)
  starts = np.where(inputs['segment_ids'] == 2, 9, 0)
  inputs['position_ids'] = np.arange(20, dtype=np.int32) - starts.astype(np.int32)
  params = models.init_encoder(config, jax.random.key(0))
  together = hidden(config, inputs, params)
  for start, end in ((0, 9), (9, 17)):
    alone = {k: x[:, start:end] for k, x in inputs.items()}
    apart = hidden(config, alone | {'segment_ids': np.ones_like(alone['segment_ids'])}, params)
    np.testing.assert_allclose(together[:, start:end], apart, atol=1e-5)
  other = inputs | {'input_ids': np.where(starts > 0, 5, inputs['input_ids'])}
  np.testing.assert_allclose(hidden(config, other, params)[:, :9], together[:, :9], atol=1e-5)


@pytest.mark.parametrize('name', sorted(block.MIXERS))
def test_mixers_scanned_are_those_apart_and_learn(name):
  """Gradients too; every parameter has one, and so has a token of another place."""
  config = model(mixer=name, num_hidden_layers=3)
  params, inputs = models.init_encoder(config, jax.random.key(0)), batch()

  def gradient(config, params):
    def loss(params):
      out = encode(config, params, inputs)
      return jnp.sum(out[:, 0] ** 3)  # of the first token alone

    return jax.jit(jax.grad(loss))(params)

  apart = gradient(config, params)
  scanned = gradient(dataclasses.replace(config, scan_layers=True), models.stack_layers(params))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3),
    apart,
    models.unstack_layers(scanned),
  )
  for path, x in jax.tree_util.tree_leaves_with_path(apart['layer_1']):
    assert np.abs(x).max() > 0, path
  words = apart['embeddings']['word_embeddings']['embedding']
  assert np.abs(words[inputs['input_ids'][0, 1]]).max() > 0


@pytest.mark.parametrize('name', sorted(block.MIXERS))
def test_flops_match_the_compilers_count(name):
  """An LSTM of one token, since the compiler counts the body of a loop once. It counts 5 n log n
  for a Fourier transform, and we none."""
  T = 1 if name == 'lstm' else 8
  config = model(hidden_size=192, intermediate_size=768, hidden_act='relu', mixer=name)
  x, tokens = np.ones((16 // T, T, 192), np.float32), Tokens(np.ones((16 // T, T), np.int32))
  tower = models.Stack(config, 2)
  params = jax.eval_shape(tower.init, jax.random.key(0), x, tokens)
  cost = jax.jit(tower.apply).lower(params, x, tokens).compile().cost_analysis()
  assert flops.products(tower.apply, params, x, tokens) == pytest.approx(cost['flops'], rel=0.07)


def test_shared_layers_are_one_copy_called_again():
  config = model(share_layers=True, num_hidden_layers=3, embedding_size=8)
  params, inputs = models.init_encoder(config, jax.random.key(0)), batch()
  assert set(params) == {'embeddings', 'layer_0'}
  assert params['embeddings']['word_embeddings']['embedding'].shape[1] == 8
  plain = dataclasses.replace(config, share_layers=False)
  apart = params | {f'layer_{i}': params['layer_0'] for i in range(3)}
  expected = hidden(plain, inputs, apart)
  for scan in (False, True):
    shared = dataclasses.replace(config, scan_layers=scan)
    assert jax.tree.structure(models.init_encoder(shared, jax.random.key(0))) == (
      jax.tree.structure(params)
    )
    np.testing.assert_allclose(hidden(shared, inputs, params), expected, atol=1e-5)
  loss = lambda config: lambda p: jnp.sum(encode(config, p, inputs) ** 3)
  one = jax.grad(loss(config))(params)['layer_0']
  three = jax.grad(loss(plain))(apart)
  total = jax.tree.map(lambda *x: sum(x), *(three[f'layer_{i}'] for i in range(3)))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), one, total)


@pytest.mark.parametrize('scan', [False, True])
def test_each_call_of_a_shared_layer_drops_others(scan, monkeypatch):
  """Each of two calls adds 0 or 2: 2 in some places only if they drop different ones."""
  monkeypatch.setitem(block.MIXERS, 'ones', Ones)
  monkeypatch.setitem(block.NORM_PLACEMENTS, 'none', lambda x, f, norm, drop: x + drop(f(x)))
  monkeypatch.setitem(block.FEED_FORWARD, 'nothing', lambda config, x_BTD: jnp.zeros_like(x_BTD))
  config = model(
    hidden_dropout_prob=0.5,
    mixer='ones',
    feed_forward='nothing',
    share_layers=True,
    norm_placement='none',
    scan_layers=scan,
  )
  out = models.Stack(config, 2).apply(
    {}, jnp.zeros_like(X), Tokens(IDS), deterministic=False, rngs={'dropout': jax.random.key(0)}
  )
  assert set(np.unique(out)) == {0, 2, 4}


def test_shifting_fills_with_zeros():
  x = np.arange(1, 5)[None]
  for n, expected in ((0, [1, 2, 3, 4]), (1, [2, 3, 4, 0]), (-2, [0, 0, 1, 2]), (4, [0] * 4)):
    np.testing.assert_array_equal(mixers._shifted(x, n)[0], expected)


@pytest.mark.parametrize(
  'changes, sentence',
  [
    (['model.mixer=fourier', 'data.examples_per_row=2'], 'data.examples_per_row=2 would mix'),
    (['model.mixer=lstm', 'model.position_embeddings=rotary'], 'is a part of attention, which'),
    (['model.mixer=bag', 'model.position_embeddings=relative'], 'which model.mixer=bag has not'),
    (['model.mixer=conv', 'model.attention_window=8'], 'model.mixer=conv has no attention'),
    (['model.mixer=bag', 'model.attention_implementation=xla'], 'implementation=einsum'),
    (['model.mixer=conv', 'model.conv_width=4'], 'model.conv_width 4 has no middle'),
    (['model.share_layers=true', 'optimizer.layer_lr_decay=0.9'], 'there is one for all; set it'),
    (['model.attention_window=16'], '[CLS] sees 8 tokens of a pair of up to 64'),
    (['model.attention_window=125'], '[CLS] sees 62 tokens of a pair of up to 64'),
    (['model.first_norm=false'], 'set model.norm_placement=pre'),
    (
      ['model.first_norm=false', 'model.norm_placement=pre', 'model.share_layers=true'],
      'set share_layers=false',
    ),
    (['model.mlm_head=none', 'model.embedding_size=8'], 'use mlm_head=dense, or embedding_size=0'),
    (['model.local_rotary_theta=500'], 'which this model has not; set it to 0'),
    (
      [
        'model.position_embeddings=alibi',
        'model.attention_implementation=splash',
        'model.attention_probs_dropout_prob=0',
      ],
      'cannot add a bias (ALiBi, relative)',
    ),
  ],
)
def test_what_does_not_go_together_is_one_sentence(changes, sentence):
  with pytest.raises(c.InputError) as error:
    c.load('configs/pretrain.py:runlocal', [f'--config.{change}' for change in changes])
  assert sentence in str(error.value) and str(error.value).count('\n') == 0


@pytest.mark.parametrize('field', ['global_attention_every', 'global_tokens'])
def test_pairs_may_be_longer_than_a_window_that_does_not_hold_for_cls(field):
  given = ['--config.model.attention_window=16', f'--config.model.{field}=1']
  assert c.load('configs/pretrain.py:runlocal', given).loss.nsp_weight > 0


def test_a_mixer_that_reads_all_is_not_causal():
  assert 'use attention' in models.unsupported(model(mixer='conv'), causal='by row')
  assert not models.unsupported(model(mixer='conv'))


def model_with(vocab, tokenizer, **fields):
  config = load_pretrain(vocab, 2)
  config.model.update(fields)
  return random_model(c.check(config), tokenizer)


def test_a_fourier_model_reads_each_text_alone_in_a_row_as_in_training(vocab, tokenizer):
  """What is asked besides, and how long it is, changes no answer; and none shows attention."""
  fourier = model_with(vocab, tokenizer, mixer='fourier')
  texts = sentences(7, most=12)
  together = fourier.embed(texts)
  for text, vector in zip(texts, together):
    np.testing.assert_allclose(fourier.embed([text])[0], vector, atol=1e-5)
  examples = fourier.ask('embed').examples(texts, RecordProblems())
  rows = [row for rows in packed_rows.batches(examples, 32) for row in rows]
  assert {len(row['input_ids']) for row in rows} == {32}
  assert max(row['segment_ids'].max() for row in rows) == 1
  with pytest.raises(c.InputError, match='has no attention to show: its model.mixer is fourier'):
    fourier.states(['old river'])


def test_states_of_shared_layers_are_of_each_call(vocab, tokenizer):
  shared = model_with(vocab, tokenizer, share_layers=True, embedding_size=8)
  (found,) = shared.states(['old river new garden'])
  assert found.hidden.shape == (3, 6, 16) and found.attention.shape[0] == 2
  params, layer = shared.params['encoder'], shared.params['encoder']['layer_0']
  tokens = Tokens(np.ones((1, 6), np.int32))
  config = dataclasses.replace(shared.objective.model, num_hidden_layers=2)
  x = found.hidden[None, 0]
  for depth in (1, 2):
    x, _ = block.Block(config, True).apply({'params': layer}, x, tokens, Layer())
    np.testing.assert_allclose(found.hidden[depth], x[0], atol=1e-4)
  assert np.abs(found.attention[0] - found.attention[1]).max() > 0.01
  assert set(params) == {'embeddings', 'layer_0'}


def test_encoders_that_are_compared_are_of_one_size_and_judged_alike(tokenizer):
  """configs/encoders.py: as many parameters, the same rows and masks, and what it says of FLOPs."""
  found = {}
  names = 'bert', 'modern', 'modern-recipe', 'modern-flops', 'lstm', 'conv', 'bag', 'fnet'
  for name in names:
    config = c.load(f'configs/encoders.py:arch={name}')
    task = TASKS[config.objective]
    objective = task.objective(config, tokenizer)
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    flops = objective.flops(config.batch_size) * config.steps
    found[name] = config, models.count_parameters(shapes), flops, task.judged_under(config)
  bert, parameters, flops, judged = found['bert']
  for name, (config, number, _, evaluated) in found.items():
    assert abs(number / parameters - 1) < 1e-3, name
    assert evaluated == judged and config.corpus == bert.corpus and config.data == bert.data
    assert config.batch_size == bert.batch_size and config.tokenizer == bert.tokenizer
    assert (config.steps == bert.steps) == (name != 'modern-flops')
    recipe = config.copy_and_resolve_references().optimizer
    recipe.learning_rate = bert.optimizer.learning_rate
    same = recipe == bert.optimizer and config.masking == bert.masking
    assert same == (name not in ('modern-recipe', 'modern-flops')), name
  assert abs(found['modern-flops'][2] / flops - 1) < 0.01
  assert len({config.model.mixer for config, *_ in found.values()}) == 5
  with pytest.raises(c.InputError, match='arch=bart is not known; use one of bert, modern, '):
    c.load('configs/encoders.py:arch=bart')
