"""Cross-encoders of sentence-transformers: what becomes of their one output."""

import json

import numpy as np
import pytest
from refusal import refused
from released import config_of, exported, rewrite, same
from scipy.special import expit

from bert_jax import config as c
from bert_jax.convert.sentence_transformers import PROMPTS
from bert_jax.predict import Model
from bert_jax.run import initialization
from bert_jax.tasks.classification import reading
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tools import convert
from bert_jax.workdir import trained

PAIRS = [('the river crosses', 'old stone'), ('café', 'a market , 1'), ('the', 'deja vu !')]
SIGMOID, IDENTITY = 'torch.nn.modules.activation.Sigmoid', 'torch.nn.modules.linear.Identity'
SET, OLD = 'table.sigmoid', 'sbert_ce_default_activation_function'


def folder_of(path, head='regression', newest=None, **settings):
  """A classifier as others release it; newest: the file of version 6."""
  _, folder = exported(path, head)
  config = {x: value for x, value in config_of(folder).items() if x != 'sentence_transformers'}
  (folder / 'config.json').write_text(json.dumps(config))
  if newest:
    (folder / PROMPTS).write_text(json.dumps(newest))
  return rewrite(folder, **settings)


SAID = {
  'nothing': ({}, False),
  'Identity': ({'sentence_transformers': {'activation_fn': IDENTITY}}, False),
  'Sigmoid': ({'sentence_transformers': {'activation_fn': SIGMOID, 'version': '4.1.0'}}, True),
  'of old': ({OLD: SIGMOID}, True),
  'public': ({OLD: 'torch.nn.Sigmoid'}, True),
  'newest': ({'newest': {'activation_fn': SIGMOID}, OLD: IDENTITY}, True),
  'its class': ({'newest': {'model_type': 'CrossEncoder'}}, True),
}


@pytest.mark.parametrize('kind', SAID)
def test_the_number_goes_through_it(tmp_path, kind):
  """Without a word, as by transformers, not at all. It goes along, in and out."""
  plain = Model(trained.load(folder_of(tmp_path / 'plain'))).pair(PAIRS)
  said, is_sigmoid = SAID[kind]
  folder = folder_of(tmp_path / 'theirs', **said)
  expected = expit(plain) if is_sigmoid else plain
  np.testing.assert_allclose(Model(trained.load(folder)).pair(PAIRS), expected, atol=1e-6)
  convert.convert(str(folder), str(tmp_path / 'W'))
  convert.convert(str(tmp_path / 'W'), f'hf:{tmp_path}/again')
  found = trained.load(folder)
  for source in ('W', 'again'):
    again = trained.load(tmp_path / source)
    if said:  # it is a cross-encoder, which is asked pairs
      answers = [answer['prediction'] for answer in Model(again).predict(PAIRS)]
      np.testing.assert_allclose(answers, expected, atol=1e-6)
    same(found.params, again.params, found.config)
    np.testing.assert_allclose(Model(again).pair(PAIRS), expected, atol=1e-6)
  written = {'activation_fn': SIGMOID if is_sigmoid else IDENTITY}
  assert config_of(tmp_path / 'again')['sentence_transformers'] == written


@pytest.mark.parametrize(
  'kind, asked', [('Identity', {}), ('Sigmoid', {}), ('Sigmoid', {SET: False})]
)
def test_a_run_that_begins_with_it_gives_such_numbers(tmp_path, caplog, kind, asked):
  """With a folder or a run of ours; unless the user says otherwise."""
  caplog.set_level('INFO', 'bert_jax')
  said, is_sigmoid = SAID[kind]
  folder = folder_of(tmp_path / 'theirs', **said)
  convert.convert(str(folder), str(tmp_path / 'W'))
  (tmp_path / 'a.csv').write_text('text,label\nold river,0.25\ngood stone,5\n')
  given = {'data.train': tmp_path / 'a.csv', 'table.text_column': 'text', 'data.seq_length': 24}
  for source in (folder, tmp_path / 'W'):
    values = given | asked | {'init_from': source, 'table.regression': True}
    settings = [f'--config.{name}={value}' for name, value in values.items()]
    config = c.load('configs/finetune.py:task=table', settings)
    start = initialization.start_of(config, tmp_path / 'new')
    found = initialization.adopt_model(config, start, values)
    assert found.table.sigmoid == (is_sigmoid and not asked)
    assert found.table.sigmoid == ('numbers are sigmoids' in caplog.text)
    if found.table.sigmoid:
      with refused("label '5' is not from 0 to 1, .* table.sigmoid=false"):
        list(reading.read(found, 'train', Problems.of(found, 'train')))
    config.table.regression = False
    assert not initialization.adopt_model(config, start, values).table.sigmoid


def test_another_one_is_refused_by_name(tmp_path):
  for name in ('torch.nn.modules.activation.Tanh', 'mine.Sigmoid'):
    with refused(f"config.json, or .* says that activation_fn .* is '{name}' over 1 outputs"):
      trained.load(folder_of(tmp_path / name, **{OLD: name}))
  with refused(f"Sigmoid' over 3 outputs, .* write '{IDENTITY}' there"):
    trained.load(folder_of(tmp_path / 'three', 'classifier', **{OLD: SIGMOID}))
  for head, name in (('classifier', IDENTITY), ('multi-label', SIGMOID)):
    newest = {'activation_fn': name}
    plain, said = folder_of(tmp_path / head, head), folder_of(tmp_path / name, head, newest=newest)
    shares = Model(trained.load(plain)).pair(PAIRS)
    assert Model(trained.load(said)).pair(PAIRS) == shares


@pytest.mark.slow
@pytest.mark.parametrize('kind', [x for x in SAID if x != 'nothing'])
def test_cross_encoders_of_sentence_transformers_say_the_same(tmp_path, kind):
  """Of a folder of theirs, and of ours in theirs."""
  sentences = pytest.importorskip('sentence_transformers')
  said, _ = SAID[kind]
  folder = folder_of(tmp_path / 'theirs', **said)
  if 'newest' in said:
    sentences.CrossEncoder(str(folder_of(tmp_path / 'plain')), device='cpu').save(str(folder))
  expected = sentences.CrossEncoder(str(folder), device='cpu').predict(PAIRS)
  np.testing.assert_allclose(Model(trained.load(folder)).pair(PAIRS), expected, rtol=0, atol=1e-5)
  convert.convert(str(folder), f'hf:{tmp_path}/ours')
  again = sentences.CrossEncoder(str(tmp_path / 'ours'), device='cpu')
  np.testing.assert_allclose(again.pair(PAIRS), expected, rtol=0, atol=1e-5)
