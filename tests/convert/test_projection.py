"""The dense layer that sentence-transformers puts behind its pooling is our projection."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import scipy.stats
import vocabularies
from refusal import refused
from released import exported, rewrite, same, started_from

import bert_jax
from bert_jax import config as c
from bert_jax.convert import sentence_transformers
from bert_jax.predict import Model, export
from bert_jax.run import initialization
from bert_jax.tools import convert
from bert_jax.workdir import trained

TEXTS = ['the river', 'old stone near a market', 'café', 'a , 1 ! the the the']
TORCH = sentence_transformers.TORCH
ACTIVATIONS = {'activation.Tanh': np.tanh, 'linear.Identity': lambda x: x}
ACTIVATIONS |= {'activation.GELU': lambda x: x * scipy.stats.norm.cdf(x)}
ACTIVATIONS |= {'activation.ReLU': lambda x: np.maximum(x, 0)}
ACTIVATIONS |= {'activation.SiLU': lambda x: x / (1 + np.exp(-x))}


def add_dense(folder, act='activation.Tanh', bias=True, out=5, width=12, **settings):
  """Puts a Dense between the pooling and the length of 1 in an exported folder: (weight, bias)."""
  rng, path = np.random.default_rng(out), folder / 'dense'
  tensors = {'linear.weight': rng.normal(0, 0.4, (out, width)).astype(np.float32)}
  tensors |= {'linear.bias': rng.normal(0, 0.4, out).astype(np.float32)} if bias else {}
  said = dict(in_features=width, out_features=out, bias=bias, activation_function=TORCH + act)
  path.mkdir(exist_ok=True)
  (path / 'config.json').write_text(json.dumps(said | settings))
  safetensors.numpy.save_file(tensors, path / 'model.safetensors')
  modules = json.loads((folder / 'modules.json').read_text())
  modules.insert(
    2, {'idx': 2, 'name': '2', 'path': 'dense', 'type': 'sentence_transformers.x.Dense'}
  )
  (folder / 'modules.json').write_text(json.dumps(modules))
  return tensors['linear.weight'], tensors.get('linear.bias', 0)


@pytest.fixture
def folder(tmp_path):
  """A bare encoder as others release it, with a mean of length 1, and no Dense yet."""
  _, folder = exported(tmp_path / 'theirs', 'encoder and pooler')
  modules = json.loads((folder / 'modules.json').read_text())
  modules.append({'idx': 2, 'path': '2_Normalize', 'type': 'sentence_transformers.x.Normalize'})
  (folder / 'modules.json').write_text(json.dumps(modules))
  return rewrite(folder)


def unit(x):
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('act', ACTIVATIONS)
def test_vectors_go_through_it_and_it_goes_along(folder, tmp_path, act, bias):
  """Into a workdir, into a folder of theirs, into an exported program, bit for bit."""
  pooled = Model(trained.load(folder)).embed(TEXTS, normalize=False)
  weight, b = add_dense(folder, act, bias)
  found = trained.load(folder)
  expected = ACTIVATIONS[act](pooled.astype(float) @ weight.T + b)
  model = Model(found)
  np.testing.assert_allclose(model.embed(TEXTS, normalize=False), expected, atol=2e-6)
  convert.convert(str(folder), str(tmp_path / 'W'))
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/again')
  for source in (tmp_path / 'W', tmp_path / 'again'):
    again = trained.load(source)
    same(found.params, again.params, found.config)
    assert (again.config.model, again.vector) == (found.config.model, found.vector)
  theirs = json.loads((folder / 'dense' / 'config.json').read_text())
  assert json.loads((tmp_path / 'again' / '2_Dense' / 'config.json').read_text()) == theirs
  modules = json.loads((tmp_path / 'again' / 'modules.json').read_text())
  assert [x['path'] for x in modules] == ['', '1_Pooling', '2_Dense', '3_Normalize']
  cls, sep = model.tokenizer.cls_id, model.tokenizer.sep_id
  ids = np.array([[cls, *model.tokenizer.ids_batch(TEXTS[:1])[0], sep]], np.int32)
  forward = jax.jit(functools.partial(export.forward, model, 'embed'))
  out = forward(model.params, ids, 0 * ids, 0 * ids + 1)
  np.testing.assert_allclose(out['embedding'][0], unit(expected[0]), atol=2e-6)


SAID = {
  'another activation': 'its activation is torch.nn.modules.activation.Softplus',
  'two': 'a Dense behind a Dense',
  'a residual': 'use_residual',
  'of tokens': "module_input_name is 'token_embeddings'",
}
ODD = {
  'another activation': lambda folder: add_dense(folder, 'activation.Softplus'),
  'two': lambda folder: (add_dense(folder), add_dense(folder)),
  'a residual': lambda folder: add_dense(folder, out=12, use_residual=True),
  'of tokens': lambda folder: add_dense(folder, module_input_name='token_embeddings'),
}


@pytest.mark.parametrize('kind', ODD)
def test_another_one_is_named_as_not_read(folder, tmp_path, kind):
  """A conversion may leave it out."""
  pooled = Model(trained.load(folder)).embed(TEXTS)
  ODD[kind](folder)
  with refused(f'dense is not read .*{SAID[kind]}.*--allow-unused'):
    Model(trained.load(folder)).embed(TEXTS)
  convert.convert(str(folder), str(tmp_path / 'W'), strict=False)
  found = trained.load(tmp_path / 'W')
  assert ('projection' in found.params) == (kind == 'two')
  if kind != 'two':  # of which the first is read
    np.testing.assert_array_equal(Model(found).embed(TEXTS), pooled)


def test_a_damaged_one_is_one_sentence(folder):
  add_dense(folder, width=9)
  with refused(r'2_Dense.linear.weight is \(9, 5\), where config.json asks for \(12, 5\)'):
    trained.load(folder)
  path, said = folder / 'dense' / 'config.json', dict(out_features=5, bias=True)
  for wrong in ({'out_features': -1}, {'bias': 'yes'}, {'out_features': 6}):
    path.write_text(json.dumps(said | wrong))
    with refused('config.json: projection_|where config.json asks for'):
      trained.load(folder)
  (folder / 'dense' / 'model.safetensors').unlink()
  path.write_text(json.dumps(said))
  with refused('dense has no model.safetensors'):
    trained.load(folder)


def start(init_from, file='contrastive.py', **fields):
  fields |= {'init_from': init_from, 'data.seq_length': 24, 'data.train': 'x'}
  return c.load(f'configs/{file}', [f'--config.{name}={x}' for name, x in fields.items()])


def test_who_begins_from_such_a_folder(folder, tmp_path):
  """Vectors of texts go on with it; others leave it; and a new one may begin over any encoder."""
  plain, _ = started_from(start(folder, **{'model.projection_size': 7}), tmp_path / 'W')
  assert plain.model.projection_size == 7
  weight, _ = add_dense(folder, 'linear.Identity', bias=False)
  for source in (folder, tmp_path / 'converted'):
    if source != folder:
      convert.convert(str(folder), str(source))
    config, params = started_from(start(source), tmp_path / 'W')
    model = config.model
    assert (model.projection_size, model.projection_act, model.projection_bias) == (
      5,
      'none',
      False,
    )
    np.testing.assert_array_equal(params['projection']['dense']['kernel'], weight.T)
    config, _ = started_from(start(source, 'finetune.py:task=table', **{'table.labels': 'a,b'}), '')
    assert config.model.projection_size == 0
  config.model.projection_size = 5
  with refused('model.projection_size=5 means nothing to objective=classification'):
    c.check(config)


def test_a_run_pools_as_the_folder_does_that_it_begins_from(folder, tmp_path, caplog):
  """So does one from its weights here; what the user or a config file says counts more."""
  said = {'word_embedding_dimension': 12, 'pooling_mode_cls_token': True}
  (folder / '1_Pooling' / 'config.json').write_text(json.dumps(said))
  prompts = {'prompts': {'ask': 'ask: ', 'document': ''}}
  (folder / sentence_transformers.PROMPTS).write_text(json.dumps(prompts))
  convert.convert(str(folder), str(tmp_path / 'converted'))
  caplog.set_level('INFO', 'bert_jax')
  for source in (folder, tmp_path / 'converted'):
    config = start(source, **{'contrastive.normalize': source == folder})
    is_other = config.contrastive.normalize != trained.load(source).vector.normalized
    caplog.clear()
    beginning = initialization.start_of(config, tmp_path / 'W')
    for set_by_user, pooling in ((), 'cls'), (['contrastive.pooling'], 'mean'):
      adopted = initialization.adopt_model(config, beginning, set_by_user)
      assert adopted.contrastive.pooling == pooling
    assert f"prompts of {source} are not put before texts here: 'ask'\n" in caplog.text
    assert (f', and in {source} ' in caplog.text) == is_other
    other = start(source, 'finetune.py:task=table', **{'table.labels': 'a,b'})
    initialization.adopt_model(other, beginning)  # it has no such field
  said = {'word_embedding_dimension': 12, 'pooling_mode_mean_tokens': True}
  (folder / '1_Pooling' / 'config.json').write_text(json.dumps(said))
  config = start(folder, **{'contrastive.pooling': 'cls'})
  beginning = initialization.start_of(config, tmp_path / 'W')
  assert initialization.adopt_model(config, beginning).contrastive.pooling == 'cls'


def test_it_is_learned(folder, tmp_path):
  """By a loss of vectors that are as wide as it makes them."""
  add_dense(folder)
  config, params = started_from(start(folder, **{'contrastive.widths': (3, 5)}), tmp_path / 'W')
  objective = bert_jax.tasks.TASKS['contrastive'].objective(config, trained.load(folder).tokenizer)
  batch = {name: np.zeros(x.shape, x.dtype) for name, x in objective.spec(2).items()}
  batch['input_ids'] = np.arange(48, dtype=np.int32).reshape(2, 24) % 19 + 5
  batch['position_ids'] = np.arange(48, dtype=np.int32).reshape(2, 24) % 12
  batch['segment_ids'] = np.arange(48, dtype=np.int32).reshape(2, 24) % 24 // 12 + 1
  batch['cls_positions'] = np.array([[0, 12]] * 2, np.int32)
  batch['weights'], batch['text_ids'] = np.ones((2, 2), np.float32), np.array([[1, 2], [3, 4]])

  def loss(layer):
    terms, _ = objective.terms(params | {'projection': layer}, batch, None, False)
    return sum(terms[name].total for name in ('in_batch_3', 'in_batch_5'))

  batch = jax.tree.map(jnp.asarray, batch)
  gradient = jax.jit(jax.grad(loss))(params['projection'])['dense']
  assert gradient['kernel'].shape == (12, 5)
  assert all(jnp.abs(x).min() > 0 for x in gradient.values())


KINDS = {  # {kind: (case, pooling, size, bias, activation, is of length 1)}
  'LaBSE': ('bert', 'cls', 12, True, 'Tanh', True),
  'distiluse': ('bert', 'mean', 7, True, 'Tanh', False),
  'sentence-t5': ('t5', 'mean', 9, False, 'Identity', True),
}


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_vectors_are_those_of_sentence_transformers(tmp_path, monkeypatch, kind):
  """Of a folder of theirs, and of ours in theirs."""
  sentences = pytest.importorskip('sentence_transformers')
  torch = pytest.importorskip('torch')
  modules = pytest.importorskip('sentence_transformers.models')
  family, pooling, size, bias, act, normalized = KINDS[kind]
  encoder = tmp_path / 'encoder'
  monkeypatch.setenv('TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK', 'true')  # sentencepiece's is new
  torch.manual_seed(0)
  if family == 't5':  # of flan-t5's kind, whose heads do not add up to the width
    transformers = pytest.importorskip('transformers')
    count = vocabularies.t5(encoder).vocab_size() + 100
    transformers.T5Tokenizer.from_pretrained(encoder).save_pretrained(encoder)
    sizes = dict(vocab_size=count, d_model=12, d_kv=10, num_heads=3, d_ff=20, num_layers=2)
    model = transformers.T5EncoderModel(
      transformers.T5Config(**sizes, feed_forward_proj='gated-gelu')
    )
    for name, x in model.named_parameters():
      x.data = torch.randn(x.shape) * 0.3 + ('norm' in name)
    model.save_pretrained(encoder)
  else:
    exported(encoder, 'encoder and pooler', type_vocab_size=2)
    rewrite(encoder)
  parts = [modules.Transformer(str(encoder)), modules.Pooling(12, pooling)]
  parts.append(modules.Dense(12, size, bias, getattr(torch.nn, act)()))
  theirs = sentences.SentenceTransformer(
    modules=[*parts, *[modules.Normalize()] * normalized], device='cpu'
  )
  theirs.save(str(tmp_path / 'theirs'))
  expected = theirs.encode(TEXTS)
  found = bert_jax.load(tmp_path / 'theirs')
  np.testing.assert_allclose(found.embed(TEXTS), expected, rtol=0, atol=1e-5)
  convert.convert(str(tmp_path / 'theirs'), f'hf:{tmp_path}/ours')
  again = sentences.SentenceTransformer(str(tmp_path / 'ours'), device='cpu')
  np.testing.assert_allclose(again.encode(TEXTS), expected, rtol=0, atol=1e-5)
