"""Each worked difference of README.md, applied to a copy of the code, does what it says there.

That of an objective is applied, trained and asked in test_house.py.
"""

import json
import os
import runpy
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_overrides
from differences import apply, copy_to, patch_of

from bert_jax import config
from bert_jax.models import positions
from bert_jax.objectives import masking

TITLES = ('Add rotary positions', 'Add a masking policy', 'Add a data set', 'Add an objective')


def run(folder, module, *arguments):
  """The last line that a module of the copy prints, as JSON."""
  out = subprocess.run(
    [sys.executable, '-m', module, *map(str, arguments)],
    cwd=folder,
    env=os.environ | {'PYTHONPATH': str(folder)},
    capture_output=True,
    text=True,
  )
  assert not out.returncode, out.stderr[-3000:]
  return json.loads(out.stdout.splitlines()[-1])


def train_and_evaluate(folder, *arguments):
  """The metrics of a short run of the copy, which an evaluation must repeat."""
  trained = run(folder, 'bert_jax.train', '--workdir', 'W', *arguments)
  evaluated = run(folder, 'bert_jax.evaluate', '--workdir', 'W')
  for name, value in trained.items():
    if isinstance(value, float):
      assert evaluated[name] == pytest.approx(value, rel=1e-5), name
  return trained


@pytest.fixture
def changed(request, tmp_path):
  """A copy of the code with the difference that the test names."""
  folder = copy_to(tmp_path / 'copy')
  apply(folder, request.param)
  return folder


def changed_by(title):
  return pytest.mark.parametrize('changed', [title], indirect=True, ids=[title])


@pytest.mark.parametrize('title', TITLES)
def test_its_lines_are_as_short_as_ours(title):
  assert max(map(len, patch_of(title).splitlines())) <= 101


@changed_by('Add rotary positions')
def test_half_of_each_head_is_rotated(changed, corpus_file):
  refused = '--config.model.position_embeddings=half_rotary'
  with pytest.raises(config.InputError, match='position_embeddings'):
    config.load('configs/pretrain.py:runlocal', [refused])
  theirs = runpy.run_path(str(changed / 'bert_jax' / 'models' / 'positions.py'))
  x = jax.random.normal(jax.random.key(0), (1, 5, 2, 8))
  at = jnp.arange(5)[None]
  out = theirs['half_rotary'](x, at, 100.0)
  np.testing.assert_array_equal(out[..., 4:], x[..., 4:])
  np.testing.assert_allclose(out[..., :4], positions.rotary(x[..., :4], at, 100.0), rtol=1e-6)
  assert not np.allclose(out[:, 1:, :, :4], x[:, 1:, :, :4])
  trained = train_and_evaluate(
    changed,
    '--config',
    'configs/pretrain.py:runlocal',
    *small_overrides(corpus_file),
    refused,
    '--config.steps=4',
  )
  assert 4 < trained['mlm'] < 6


@changed_by('Add a masking policy')
def test_one_stretch_of_a_row_is_hidden(changed, corpus_file):
  given = '--config.masking.policy=stretch'
  options = dict(
    special_ids=(0, 1),
    mask_id=2,
    vocab_size=50,
    masked_lm_prob=0.25,
    max_predictions=8,
    mask_share=1.0,
    random_share=0.0,
  )
  ids = jnp.tile(jnp.arange(10, 34)[None], (20, 1)).at[:, 0].set(0).at[:, -1].set(1)
  with pytest.raises(KeyError, match='stretch'):
    masking.mask_tokens(
      jax.random.key(0),
      ids,
      jnp.ones_like(ids),
      jnp.ones_like(ids),
      policies=('stretch',),
      **options,
    )
  path = changed / 'bert_jax' / 'objectives' / 'masking.py'
  mask_tokens = runpy.run_path(str(path))['mask_tokens']
  made = mask_tokens(
    jax.random.key(0), ids, jnp.ones_like(ids), None, policies=('stretch',), **options
  )
  corrupted, places, _, weights = map(np.asarray, made)
  first = set()
  for row, at, weight in zip(corrupted, places, weights):
    hidden = sorted(at[weight > 0])
    assert hidden == list(range(hidden[0], hidden[0] + 6)) == list(np.flatnonzero(row == 2))
    assert hidden[0] >= 1 and hidden[-1] <= 22
    first.add(hidden[0])
  assert len(first) > 5
  trained = train_and_evaluate(
    changed,
    '--config',
    'configs/pretrain.py:runlocal',
    *small_overrides(corpus_file),
    given,
    '--config.eval_masking.policy=stretch',
    '--config.steps=4',
  )
  assert 4 < trained['mlm'] < 6


@changed_by('Add a data set')
def test_a_table_is_an_entry(changed):
  with pytest.raises(config.InputError, match="task 'tickets' is not known"):
    config.load('configs/finetune.py:task=tickets', [])
  teams = {'billing': 'the invoice is wrong', 'technical': 'it does not start'}
  lines = [f'{team} {i};{text} again {i};{team}' for i in range(20) for team, text in teams.items()]
  (changed / 'tickets.csv').write_text('\n'.join(['subject;body;queue', *lines]) + '\n')
  trained = train_and_evaluate(
    changed,
    '--config',
    'configs/finetune.py:task=tickets,runlocal',
    '--config.data.train=tickets.csv',
    '--config.steps=4',
    '--config.model.vocab_size=200',
    '--config.eval.every=0',
    '--config.batch_size=2',
    '--config.model.num_hidden_layers=1',
    '--config.model.hidden_size=32',
    '--config.model.intermediate_size=64',
  )
  assert 0 <= trained['classification_accuracy'] <= 1
  labels = json.loads((changed / 'W' / 'config.json').read_text())['table']['labels']
  assert sorted(labels) == ['billing', 'technical']
  (answers,) = changed.glob('W/eval/*/predictions.jsonl')
  assert len(answers.read_text().splitlines()) == len(lines) / 10
