"""How sentence-transformers makes vectors: its poolings, prompts, and modules that are not read."""

import json

import jax
import numpy as np
import pytest
from golden import make_released_golden as hf
from refusal import refused
from released import adamw_losses, exported, recorded_of, rewrite, same, started_from
from released import folder_of as released_as
from test_projection import TEXTS, start

import bert_jax
from bert_jax.convert import sentence_transformers
from bert_jax.models.pooling import POOLINGS
from bert_jax.predict import Model
from bert_jax.tasks import TASKS
from bert_jax.tasks.contrastive import task
from bert_jax.tasks.contrastive.reading import Item
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tools import convert
from bert_jax.workdir import trained

MODELS = 'sentence_transformers.models'
PROMPTS = {'query': 'the old ', 'document': '', 'passage': 'a market : '}


def folder_of(path, pooling='mean', prompts=None, default=None, whole=True):
  """A BERT as sentence-transformers 6 saves it, with these settings, whose states differ."""
  _, folder = exported(path, 'encoder and pooler')
  rewrite(folder, lambda tensors: {k: x + ('Norm.weight' in k) for k, x in tensors.items()})
  said = {'embedding_dimension': 12, 'pooling_mode': pooling, 'include_prompt': whole}
  (folder / '1_Pooling' / 'config.json').write_text(json.dumps(said))
  said = {'prompts': prompts or {}, 'default_prompt_name': default}
  (folder / 'config_sentence_transformers.json').write_text(json.dumps(said))
  return folder


def of_states(states, kind, skipped):
  """What a pooling makes of the states [T, D] of a text."""
  states, places = states[skipped:], np.arange(skipped, len(states)) + 1.0
  if kind in ('cls', 'lasttoken'):
    return states[0 if kind == 'cls' else -1]
  if kind == 'max':
    return states.max(axis=0)
  if kind == 'weightedmean':
    return places @ states / places.sum()
  return states.sum(axis=0) / len(states) ** (1.0 if kind == 'mean' else 0.5)


@pytest.mark.parametrize('whole', [True, False])
@pytest.mark.parametrize('pooling', POOLINGS)
def test_a_folder_says_how_states_become_a_vector(tmp_path, pooling, whole):
  """Of packed texts, one of which is empty, behind a prompt that counts or does not."""
  folder = folder_of(tmp_path / 'theirs', pooling, PROMPTS, 'query', whole)
  model, texts = Model(trained.load(folder)), [*TEXTS, '']
  assert model.vector.pooling == pooling in sentence_transformers.MODES.values()
  for prompt, text, length in ((None, 'the old ', 3), ('', '', 0), ('passage', 'a market : ', 4)):
    found = model.embed(texts, prompt=prompt, normalize=False)
    states = model.states([text + x for x in texts])
    skipped = length if text and not whole else 0
    expected = [of_states(x.hidden[-1], pooling, skipped) for x in states]
    np.testing.assert_allclose(found, expected, atol=5e-6)
    assert np.std(found, axis=0).mean() > 0.05
  if pooling == 'max' or whole:  # what is written does not depend on both
    return
  convert.convert(str(folder), str(tmp_path / 'W'))
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/again')
  for source in (tmp_path / 'W', tmp_path / 'again'):
    again = trained.load(source)
    same(trained.load(folder).params, again.params, again.config)
    assert again.vector == model.vector
    np.testing.assert_array_equal(Model(again).embed(texts), model.embed(texts))


def test_prompts_go_by_their_names(tmp_path):
  model = Model(trained.load(folder_of(tmp_path, prompts=PROMPTS | {'none': None})))
  plain = model.embed(['river'])
  for prompt in ('', 'document', 'none'):
    np.testing.assert_array_equal(model.embed(['river'], prompt=prompt), plain)
  with refused("prompt is 'text'; the prompts of this model are: 'query', 'document', 'passage'"):
    model.embed(['river'], prompt='text')
  with refused("default_prompt_name is 'q', and prompts has 'query', 'document', 'passage'"):
    trained.load(folder_of(tmp_path / 'q', prompts=PROMPTS, default='q'))


def causal(path, pooling):
  """A GPT-2 with its word head that reads nine tokens of a text, as a model of vectors."""
  released_as(path, recorded_of(hf), 'gpt2')
  modules('Pooling')(path)
  (path / '1_Pooling').mkdir()
  said = {'embedding_dimension': 12, 'pooling_mode': pooling}
  (path / '1_Pooling' / 'config.json').write_text(json.dumps(said))
  (path / sentence_transformers.LENGTH).write_text('{"max_seq_length": 9}')
  said = {'tokenizer_class': 'GPT2Tokenizer', 'pad_token': '<|endoftext|>'}
  (path / 'tokenizer_config.json').write_text(json.dumps(said))
  return path


CAUSAL = ['at', 'the old stone', 'b a c']
THEIRS = {  # the first numbers that sentence-transformers gives of CAUSAL
  'weightedmean': [2.29576, 0.37396, 1.40055],
  'lasttoken': [2.93444, 1.67865, 0.68261],
}


@pytest.mark.parametrize('pooling', ['weightedmean', 'lasttoken'])
def test_a_causal_model_reads_the_text_alone_and_keeps_its_head(tmp_path, pooling):
  folder = causal(tmp_path / 'theirs', pooling)
  convert.convert(str(folder), str(tmp_path / 'W'))
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/again')
  for source in ('theirs', 'W', 'again'):
    model = bert_jax.load(tmp_path / source)
    assert (model.default_task, model.limit, model.vector.pooling) == ('embed', 9, pooling)
    assert model.tasks['perplexity']
    np.testing.assert_allclose(model.embed(CAUSAL)[:, 0], THEIRS[pooling], rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize('pooling', ['weightedmean', 'lasttoken'])
def test_causal_vectors_are_those_of_sentence_transformers(tmp_path, pooling):
  sentences = pytest.importorskip('sentence_transformers')
  folder = causal(tmp_path / 'theirs', pooling)
  convert.convert(str(folder), f'hf:{tmp_path}/ours')
  found = bert_jax.load(folder).embed(CAUSAL)
  for source in ('theirs', 'ours'):
    expected = sentences.SentenceTransformer(str(tmp_path / source), device='cpu').encode(CAUSAL)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def modules(*kinds):
  """A change of a folder: its modules are these, besides the Transformer."""

  def change(folder):
    said = [{'idx': 0, 'name': '0', 'type': f'{MODELS}.Transformer', 'path': ''}]
    for i, kind in enumerate(kinds, 1):
      module = {'idx': i, 'name': str(i), 'type': f'{MODELS}.{kind}', 'path': f'{i}_{kind}'}
      said.append(module)
    (folder / 'modules.json').write_text(json.dumps(said))

  return change


def setting(file, **said):
  return lambda folder: (folder / file).write_text(json.dumps(said))


POOLING = '1_Pooling/config.json'
UNREAD = {
  '2_LayerNorm': modules('Pooling', 'LayerNorm'),
  '3_Pooling': modules('Pooling', 'Normalize', 'Pooling'),
  '3_Dense': modules('Pooling', 'Normalize', 'Dense'),
  '1_Normalize': modules('Normalize', 'Pooling'),
  '1_Pooling': setting(POOLING, pooling_mode=['mean', 'max']),
  'its pooling is .pooling_mode_best': setting(POOLING, pooling_mode_best=True),
  'truncate_dim': setting(sentence_transformers.PROMPTS, truncate_dim=8),
  'query_expansion': setting(sentence_transformers.LENGTH, query_expansion={'length': 32}),
}


@pytest.mark.parametrize('what', UNREAD)
def test_what_is_not_read_is_refused_by_name(tmp_path, what, capsys):
  """Wherever vectors are made or learned; a conversion names it, too, and may leave it out."""
  folder = folder_of(tmp_path / 'theirs')
  UNREAD[what](folder)
  with refused(f'{what}.*--allow-unused leaves it out'):
    Model(folder).predict(TEXTS)
  with refused(f'{what}.*--allow-unused leaves it out'):
    started_from(start(folder), tmp_path / 'W')
  started_from(start(folder, 'finetune.py:task=table', **{'table.labels': 'a,b'}), '')
  with refused(f'1 parts.*{what}|{what}.*--allow-unused converts the rest'):
    convert.convert(str(folder), str(tmp_path / 'W'))
  convert.convert(str(folder), str(tmp_path / 'W'), strict=False)
  assert 'not used: ' in capsys.readouterr().out
  assert np.isfinite(Model(trained.load(tmp_path / 'W')).embed(TEXTS)).all()


def test_a_head_is_read_beside_modules_that_are_not(tmp_path):
  folder = causal(tmp_path, 'mean')
  modules('SpladePooling')(folder)
  model = Model(folder)
  assert model.default_task == 'generate'
  with refused("1_SpladePooling is not read .a 'SpladePooling'.*--allow-unused leaves it out"):
    model.embed(CAUSAL)


def test_a_module_for_training_alone_changes_no_vector(tmp_path, caplog):
  folder = folder_of(tmp_path, prompts={'query': 'the old '})
  modules('Pooling', 'Normalize')(folder)
  expected = Model(folder).embed(TEXTS)
  modules('Pooling', 'Dropout', 'Normalize')(folder)
  caplog.clear()
  model = Model(folder)
  assert [x for x in caplog.messages if 'prompts' in x] == [
    f"{folder}: embed puts its prompts before texts by name: 'query'"
  ]
  np.testing.assert_array_equal(model.embed(TEXTS, prompt='document'), expected)
  assert np.abs(model.embed(TEXTS, prompt='query') - expected).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize('whole', [True, False])
@pytest.mark.parametrize('pooling', POOLINGS)
def test_poolings_are_those_of_sentence_transformers(tmp_path, pooling, whole):
  """Vectors of their folder and of ours, with and without a prompt, of an empty text, too; and ten
  steps of AdamW from there."""
  sentences = pytest.importorskip('sentence_transformers')
  torch = pytest.importorskip('torch')
  losses = pytest.importorskip('sentence_transformers.losses')
  folder = folder_of(tmp_path / 'theirs', pooling, PROMPTS, 'query', whole)
  theirs = sentences.SentenceTransformer(str(folder), device='cpu')
  convert.convert(str(folder), f'hf:{tmp_path}/ours')
  again = sentences.SentenceTransformer(str(tmp_path / 'ours'), device='cpu')
  model, texts = bert_jax.load(folder), [*TEXTS, '']
  for prompt in (None, 'document', 'passage'):
    expected = theirs.encode(texts, prompt_name=prompt)
    np.testing.assert_array_equal(again.encode(texts, prompt_name=prompt), expected)
    found = model.embed(texts, prompt=prompt)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
  pairs = list(zip(TEXTS, ['old 1', 'the café', 'near the river !', 'market stone a ,']))
  theirs.eval()  # no dropout
  loss_of = losses.MultipleNegativesRankingLoss(theirs)
  optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, eps=1e-8, weight_decay=0)
  expected = []
  for _ in range(10):
    loss = loss_of([theirs.preprocess(list(side)) for side in zip(*pairs)], None)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    expected.append(loss.item())
  dropout = {'model.hidden_dropout_prob': 0.0, 'model.attention_probs_dropout_prob': 0.0}
  fields = dropout | {'data.seq_length': 48, 'data.examples_per_row': 4, 'model.dtype': 'float32'}
  config, params = started_from(start(folder, **fields), tmp_path / 'W')
  tokenizer = trained.load(folder).tokenizer
  items = [Item(str(i), '', pair) for i, pair in enumerate(pairs)]
  rows = task.rows(config, tokenizer, items, Problems('train', False))
  batch = jax.tree.map(lambda *x: np.stack(x), *[rows[i] for i in range(len(rows))])
  objective = TASKS['contrastive'].objective(config, tokenizer)
  params.pop('pooler', None)
  found = adamw_losses(objective, params, [batch] * 10, 1e-3, 0.0)
  print(f'losses: at most {np.abs(np.subtract(found, expected)).max():.1e} apart')
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
  assert expected[0] - expected[-1] > 0.01
