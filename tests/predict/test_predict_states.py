"""Attention and hidden states against numpy; exported programs without our code."""

import functools
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import vocabularies
from references import drawn
from scipy.special import softmax
from test_predict import NER, load_pretrain, main, random_model, sentences
from tokenizers import Tokenizer

import bert_jax
from bert_jax import tokenizers
from bert_jax.config import InputError
from bert_jax.convert import exported_tokenizers
from bert_jax.convert.sentence_transformers import Vector
from bert_jax.models import attention_kernels
from bert_jax.predict import Model, cpu_kernels, export
from bert_jax.workdir import trained

SHORT = '--config.qa.max_query_length=8'


def test_attention_is_the_softmax_of_scaled_products(vocab, tokenizer):
  model = random_model(load_pretrain(vocab, 2), tokenizer)
  (found,) = model.states(['old river new garden'])
  L, H, T, _ = found.attention.shape
  assert (L, H, T) == (2, 2, 6)
  assert found.tokens == ['[CLS]', 'old', 'river', 'new', 'garden', '[SEP]']
  encoder = model.params['encoder']
  for layer in range(L):
    own, x_TD = encoder[f'layer_{layer}']['attention'], found.hidden[layer]
    q, k = (x_TD @ own[x]['kernel'] + own[x]['bias'] for x in ('query', 'key'))
    q, k = q.reshape(T, H, -1), k.reshape(T, H, -1)
    expected = softmax(np.einsum('qhd,khd->hqk', q, k) / np.sqrt(q.shape[-1]), axis=-1)
    np.testing.assert_allclose(found.attention[layer], expected, atol=1e-5)


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'use_bias': False, 'precision': 'highest'},
    {'dtype': jnp.bfloat16, 'param_dtype': jnp.bfloat16},
  ],
  ids=['plain', 'no bias', 'bfloat16'],
)
def test_turned_kernels_give_the_same_numbers(options):
  rows = np.random.default_rng(0).normal(size=(2, 300, 16)).astype(np.float32)
  for part in (rows, rows[0, 0]):
    dense = nn.Dense(7, **options)
    params = drawn(dense.init, part)
    expected = dense.apply(params, part)
    for call in (lambda x: ((x,), {}), lambda x: ((), {'inputs': x})):
      args, named = call(part)
      with cpu_kernels.dense(True):
        found = dense.apply(cpu_kernels.turned(params), *args, **named)
      assert found.dtype == expected.dtype
      pair = (np.asarray(x, np.float32) for x in (found, expected))
      np.testing.assert_allclose(*pair, atol=1e-5 if expected.dtype == np.float32 else 0.03)


def test_kernels_that_are_not_a_dense_are_never_multiplied_turned():
  x = np.ones((2, 5, 4), np.float32)
  conv = nn.Conv(4, (3,))
  params = conv.init(jax.random.key(0), x)
  with cpu_kernels.dense(True):
    np.testing.assert_array_equal(conv.apply(cpu_kernels.turned(params), x), conv.apply(params, x))
  general = nn.DenseGeneral(4)  # its square kernel would fit either way
  params = cpu_kernels.turned(general.init(jax.random.key(0), x))
  refused = pytest.raises(TypeError, match='has a kernel that .*, and is no Dense')
  with cpu_kernels.dense(True), refused:
    general.apply(params, x)


def test_a_model_on_a_cpu_multiplies_with_turned_kernels(pretrained_model):
  name = 'intermediate'
  params, weights = (
    tree['encoder']['layer_0'][name]['kernel']
    for tree in (pretrained_model.params, pretrained_model.weights)
  )
  np.testing.assert_array_equal(params, np.asarray(weights).T)
  assert params.shape != weights.shape


def test_bfloat16_where_exactness_is_not_asked(pretrained_model, model_folder):
  model, texts = bert_jax.load(model_folder, dtype='bfloat16'), sentences(5, most=14)
  assert model.weights['encoder']['layer_0']['output']['kernel'].dtype == 'bfloat16'
  assert model.weights['nsp']['dense']['kernel'].dtype == 'float32'
  assert model.weights['encoder']['layer_0']['output']['bias'].dtype == 'float32'
  found, expected = model.embed(texts), pretrained_model.embed(texts)
  assert found.dtype == np.float32 and not np.array_equal(found, expected)
  assert np.sum(found * expected, axis=1).min() > 0.999


def test_a_model_without_attention_shows_none(vocab, tokenizer):
  config = load_pretrain(vocab, 1)
  config.model.mixer, config.model.position_embeddings = 'bag', 'none'
  with pytest.raises(InputError, match='no attention to show: its model.mixer is bag'):
    random_model(config, tokenizer).states(['old'])


def run_exported(path, texts):
  """What the snippet of predict/README.md prints of texts, in a process that cannot import us."""
  readme = Path('bert_jax/predict/README.md').read_text()
  (snippet,) = re.findall(r'```python\n(import jax.*?)```', readme, re.DOTALL)
  snippet = snippet.replace('DIR/', f'{path}/').replace("['one text', 'another']", repr(texts))
  assert str(path) in snippet and texts[0] in snippet
  snippet = snippet.replace('print(', 'out = (')
  hidden = "import sys; sys.modules['bert_jax'] = None\nimport numpy"
  code = f'{hidden}\n{snippet}numpy.save({str(path / "out.npy")!r}, out)'
  out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=path)
  assert out.returncode == 0, out.stderr[-2000:]
  return np.load(path / 'out.npy')


def test_an_exported_model_needs_none_of_our_code(model_folder, pretrained_model, tmp_path):
  main(model_folder, '--task', 'embed', '--export', tmp_path)
  texts = sentences(5)
  found = run_exported(tmp_path, texts)
  np.testing.assert_allclose(found, pretrained_model.embed(texts), atol=1e-5)
  about = json.loads((tmp_path / 'export.json').read_text())
  assert about['task'] == 'embed' and about['platforms'] == ['cpu', 'tpu', 'cuda']


@pytest.mark.parametrize('window', [0, 8])
def test_a_program_takes_rows_of_512_tokens_and_more(
  window, vocab, tokenizer, tmp_path, monkeypatch
):
  """The length of its rows is a symbol, which is not known to be long or short. It is for CPUs,
  too, if it is written on a TPU."""
  config = load_pretrain(vocab, 1)
  config.data.seq_length = config.model.max_position_embeddings = 600
  config.model.update(attention_probs_dropout_prob=0.0, attention_window=window)
  model = random_model(config, tokenizer)
  with monkeypatch.context() as patch:
    patch.setattr(attention_kernels, 'on_tpu', lambda: True)
    export.write(model, 'embed', tmp_path)
  program = jax.export.deserialize((tmp_path / 'model.stablehlo').read_bytes())
  weights = safetensors.numpy.load_file(tmp_path / 'weights.safetensors')
  ids = np.random.default_rng(0).integers(5, 30, (1, 600), np.int32)
  for length in (7, 600):
    rows = ids[:, :length], 0 * ids[:, :length], 0 * ids[:, :length] + 1
    expected = export.forward(model, 'embed', model.params, *rows)['embedding']
    found = program.call(weights, *rows)['embedding']
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.fixture
def without_a_program(monkeypatch):
  """What is exported is all but the program, which takes a second to write."""
  empty = types.SimpleNamespace(serialize=lambda: b'')
  monkeypatch.setattr(export.jax_export, 'export', lambda *_, **__: lambda *_: empty)


def test_an_exported_model_says_how_its_texts_are_read(
  pretrained_model, tmp_path, without_a_program
):
  own = pretrained_model
  for i, (prompts, lower) in enumerate((({'q': 'query: '}, True), ({}, False))):
    vector = Vector('mean', True, prompts=prompts, prompt='q' * len(prompts), lower=lower)
    model = Model(trained.Trained(own.config, own.tokenizer, own.params, 0, vector))
    export.write(model, 'embed', tmp_path / str(i))
    about = json.loads((tmp_path / str(i) / 'export.json').read_text())
    assert (about['prompt'], about['lower_case']) == (prompts.get('q', ''), lower)


def arrays_of(row):
  return [np.array([x], np.int32) for x in (row.ids, row.type_ids, row.attention_mask)]


def exported(model, task, *asked):
  """(the encoding, {output: array}) of what is exported of a model, asked for one text or pair."""
  row = exported_tokenizers.fast(model.tokenizer).encode(*asked)
  forward = jax.jit(functools.partial(export.forward, model, task))
  found = forward(model.params, *arrays_of(row))
  return row, {name: np.asarray(x[0]) for name, x in found.items()}


def test_exported_heads_give_the_same_numbers(make_model):
  pair = 'old good river', 'new garden'
  model = make_model('mrpc')
  _, found = exported(model, 'classify', *pair)
  (shares,) = model.classify([pair])
  np.testing.assert_allclose(softmax(found['logits']), list(shares.values()), atol=1e-5)
  model = make_model('ner', NER)
  _, found = exported(model, 'tag', pair[0])
  ((answer, _),) = model.ask('tag').replies([model.ask('tag').record({'text': pair[0]})])
  shares = softmax(found['logits'][1:-1], axis=-1)
  np.testing.assert_allclose(shares.max(axis=-1), answer['probability'], atol=1e-5)
  model = make_model('squad', SHORT)
  row, found = exported(model, 'answer', *pair)
  sums = found['start_logits'][5:7, None] + found['end_logits'][None, 5:7]
  first, last = max([(0, 0), (0, 1), (1, 1)], key=lambda span: sums[span])
  start, end = row.offsets[5 + first][0], row.offsets[5 + last][1]
  assert model.find_answers([pair])[0]['prediction'] == pair[1][start:end]


def test_every_exported_task_gives_what_it_states(pretrained_model, make_model):
  """Arrays of the stated axes; labels are those of the last axis of logits."""
  models = dict.fromkeys(('embed', 'fill-mask', 'next-sentence'), pretrained_model)
  models |= {
    'choose': make_model('swag'),
    'tag': make_model('ner', NER),
    'answer': make_model('squad', SHORT),
  }
  models |= dict.fromkeys(('classify', 'pair'), make_model('mrpc'))
  assert models.keys() == export.OUTPUTS.keys()
  rows = [jax.ShapeDtypeStruct((3, 8), jnp.int32)] * 3
  for task, model in models.items():
    forward = functools.partial(export.forward, model, task)
    out, labels = jax.eval_shape(forward, model.params, *rows), model.ask(task).labels
    assert out.keys() == export.OUTPUTS[task].keys()
    settings = model.objective.model
    sizes = {'B': 3, 'T': 8, 'D': settings.hidden_size, 'labels': len(labels), '2': 2}
    sizes |= {'V': settings.padded_vocab_size, 'vector_size': settings.vector_size}
    for name, stated in export.OUTPUTS[task].items():
      axes = stated[1 : stated.index(']')].split(', ')
      assert out[name].shape == tuple(sizes[axis] for axis in axes), (task, name)
    assert bool(labels) == (task in ('classify', 'pair', 'tag', 'next-sentence'))


def test_an_exported_byte_level_vocabulary_cuts_and_pads_as_we_do(
  vocab, tmp_path, without_a_program
):
  vocabularies.roberta(tmp_path / 'bytes')
  config, own = load_pretrain(vocab, 1), tokenizers.load_folder(tmp_path / 'bytes')
  config.model.vocab_size = own.vocab_size
  model = random_model(config, own)
  export.write(model, 'fill-mask', tmp_path / 'out')
  cuts_and_pads(model, tmp_path / 'out')


def cuts_and_pads(model, folder):
  own, text, long = model.tokenizer, 'old river garden', 'old river ' * 40
  found = Tokenizer.from_file(str(folder / 'tokenizer.json')).encode_batch([text, long])
  ids, many = own.ids_batch([text, long])
  assert len(many) > model.limit == 32
  expected = [own.cls_id, *ids, own.sep_id]
  assert found[0].ids == expected + [own.pad_id] * (32 - len(expected))
  assert found[0].attention_mask == [1] * len(expected) + [0] * (32 - len(expected))
  assert found[1].ids == [own.cls_id, *many[:30], own.sep_id]
