"""A run of commit 7ece11e in golden/old_workdir still is a run: evaluated, asked, continued.

It was written there by, at that commit,

    python -m bert_jax.train --config configs/pretrain.py:runlocal --workdir old_workdir ...

with the arguments that its run.json tells, 20 steps with checkpoints at 10 and 20. old_workdir.json
holds what it evaluated and answered then. If one of these tests fails, users cannot read the runs
they have: a field that is new states its past (bert_jax/field.py), parameters keep their names.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from conftest import fields
from recorder import command
from running import read_weights, same_bits

from bert_jax import config as config_lib
from bert_jax.convert import released_config
from bert_jax.convert.families import BERT
from bert_jax.run import initialization
from bert_jax.workdir import manifest, trained

GOLDEN = Path(__file__).parents[1] / 'golden'
OLD = GOLDEN / 'old_workdir'


@pytest.fixture(scope='module')
def known():
  return json.loads((GOLDEN / 'old_workdir.json').read_text())


@pytest.fixture
def workdir(tmp_path):
  """A copy of the old workdir, which may be written into."""
  return shutil.copytree(OLD, tmp_path / 'run')


def meta(workdir, step):
  return json.loads((workdir / 'checkpoints' / str(step) / 'meta' / 'metadata').read_text())


def params(workdir, which='latest'):
  return manifest.flat(jax.device_get(trained.load(workdir, which).params))


def test_its_config_has_the_same_fingerprint():
  config = config_lib.from_json((OLD / 'config.json').read_text())
  assert config_lib.fingerprint(config) == meta(OLD, 20)['config'] == '5742553d4f7866d6'
  again = config_lib.from_json(config_lib.to_json(config))
  assert config_lib.changes(config, again) == []


def test_a_field_with_another_default_keeps_what_was_in_effect(workdir, tmp_path, caplog):
  caplog.set_level('INFO', 'bert_jax')
  config = config_lib.load('configs/pretrain.py:runlocal')
  begun = initialization.as_begun(config, workdir)
  assert [config.corpus.encoding, begun.corpus.encoding] == ['document', 'sentence']
  assert begun.corpus.rows == config.corpus.rows
  assert "corpus.encoding stays 'sentence', as this run began, not 'document'" in caplog.text
  for folder, given in ((workdir, ('corpus.encoding',)), (tmp_path / 'new', ())):
    assert initialization.as_begun(config, folder, given).corpus.encoding == 'document'


def test_it_evaluates_to_the_same_metrics(workdir, known):
  found = json.loads(command('bert_jax.evaluate', '--workdir', workdir))
  assert {name: found[name] for name in known['evaluate']} == pytest.approx(known['evaluate'])


def test_it_answers_the_same(known):
  asked = ''.join(answer['text'] + '\n' for answer in known['predict'])
  out = command('bert_jax.predict', '--model', OLD, '--no-cache', stdin=asked)
  for line, answer in zip(out.splitlines(), known['predict'], strict=True):
    for one, other in zip(json.loads(line)['masks'], answer['masks'], strict=True):
      assert [x['piece'] for x in one] == [x['piece'] for x in other]
      for x, y in zip(one, other):
        assert x['probability'] == pytest.approx(y['probability'], abs=2e-6)


def test_it_is_continued_and_ends_with_the_same_numbers(workdir, capsys):
  shutil.rmtree(workdir / 'checkpoints' / '20')
  arguments = json.loads((workdir / 'run.json').read_text())['commands'][0]['argv'][1:]
  arguments[arguments.index('--workdir') + 1] = workdir
  command('bert_jax.train', *arguments)
  said = capsys.readouterr().err
  starts = 'reading the data', 'compiling the steps', 'restoring the checkpoint of step 10'
  assert all(x in said for x in (*starts, 'continuing at step 10 of 20', ' -> ')), said
  then, now = meta(OLD, 20), meta(workdir, 20)
  assert now['config'] == then['config'] and now['data'] == then['data']
  del now['metrics']['masked']
  assert now['seen'] == then['seen'] and now['arrays'].keys() == then['arrays'].keys()
  assert now['metrics'] == pytest.approx(then['metrics'], rel=1e-5)
  theirs = params(OLD)
  for name, ours in params(workdir).items():
    np.testing.assert_allclose(ours, theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_another_run_begins_from_it(tmp_path):
  config = config_lib.from_json((OLD / 'config.json').read_text())
  config = config_lib.override(config, fields(f'init_from={OLD}'))
  weights = read_weights(config, tmp_path / 'new')[1]
  same_bits(manifest.flat(jax.device_get(weights)), params(OLD))


RELEASED = json.loads((GOLDEN / 'released_configs.json').read_text())


@pytest.mark.parametrize('kind', RELEASED)
def test_released_models_have_the_config_they_had(kind):
  """The configs that 7ece11e gave released models of each objective; bare: without NSP head."""
  has_labels = kind in ('classification', 'tagging')
  flat = {'classifier/dense/kernel': np.zeros((16, 3))} if has_labels else {}
  if kind == 'mlm_nsp':
    flat = {'pooler/dense/bias': np.zeros(16), 'nsp/dense/bias': np.zeros(2)}
  old = config_lib.from_json(json.dumps(RELEASED[kind]['config']))
  about = dict(family=BERT, model=SIZES, labels=(), problem='', ours={}, begin='cls', writing={})
  about = SimpleNamespace(**about, pooling='cls')
  weights = SimpleNamespace(objective=kind.split()[0], flat=flat, description=about)
  new = released_config.config_of(weights)
  later = {'checkpoint.minutes': 5.0, 'eval.seed': 0, 'mesh.sums': 'model', 'mesh.gather': 'step'}
  corpus = {'eval_masking.policy': 'token', 'corpus.encoding': 'document'}
  later |= corpus if 'mlm' in kind else {'log.every': 0, 'min_steps': 100}
  later |= {'table.every_label_trained': True} if kind == 'classification' else {}
  assert config_lib.flatten(new) == config_lib.flatten(old) | later
  assert config_lib.fingerprint(old) == RELEASED[kind]['fingerprint']


SIZES = dict(vocab_size=100, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
SIZES |= dict(intermediate_size=32, max_position_embeddings=64, type_vocab_size=2)
SIZES |= dict(position_embeddings='learned', norm_placement='post', tie_word_embeddings=True)
SIZES |= dict(hidden_act='gelu', hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
SIZES |= dict(layer_norm_eps=1e-12, initializer_range=0.02)
