"""Each worked difference of bert_jax/README.md, applied to a copy, does what it says there.

That of an objective is applied, trained and asked in test_house.py.
"""

import json
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_overrides
from differences import apply, copy_to, patch_of, printed

from bert_jax import config
from bert_jax.models import positions
from bert_jax.objectives import masking

TITLES = ('Add rotary positions', 'Add a masking policy', 'Add a data set', 'Add an objective')
ROTARY = '--config.model.position_embeddings=half_rotary'
STRETCH = '--config.masking.policy=stretch --config.eval_masking.policy=stretch'
TEAMS = {'billing': 'the invoice is wrong', 'technical': 'it does not start'}
TICKETS = [f'{team} {i};{text} again {i};{team}' for i in range(20) for team, text in TEAMS.items()]


@pytest.fixture(scope='module')
def changed(tmp_path_factory):
  """A copy of the code with the differences but for the last, each of which can be made first."""
  for title in TITLES[1:3]:
    apply(copy_to(tmp_path_factory.mktemp('one') / 'copy'), title)
  folder = copy_to(tmp_path_factory.mktemp('all') / 'copy')
  for title in TITLES[:3]:
    apply(folder, title)
  (folder / 'tickets.csv').write_text('\n'.join(['subject;body;queue', *TICKETS]) + '\n')
  return folder


@pytest.fixture(scope='module')
def results(changed, corpus_file):
  """The metrics of a short run with the new positions and masks, and of one on the new data set."""
  small = ' '.join(small_overrides(corpus_file))
  words = f'configs/pretrain.py:runlocal {small} {ROTARY} {STRETCH}'
  table = """configs/finetune.py:task=tickets,runlocal --config.data.train=tickets.csv
  --config.model.vocab_size=200 --config.eval.every=0 --config.batch_size=2
  --config.model.num_hidden_layers=1 --config.model.hidden_size=32
  --config.model.intermediate_size=64"""
  train = lambda given, name: f'bert_jax.train --config {given} --config.steps=4 --workdir {name}'
  said = printed(changed, train(words, 'words'), train(table, 'tickets'))
  return [json.loads(text.splitlines()[-1]) for text in said]


@pytest.mark.parametrize('title', TITLES)
def test_its_lines_are_as_short_as_ours(title):
  assert max(map(len, patch_of(title).splitlines())) <= 101


def test_half_of_each_head_is_rotated(changed, results):
  with pytest.raises(config.InputError, match='position_embeddings'):
    config.load('configs/pretrain.py:runlocal', [ROTARY])
  theirs = runpy.run_path(str(changed / 'bert_jax' / 'models' / 'positions.py'))
  x = jax.random.normal(jax.random.key(0), (1, 5, 2, 8))
  at = jnp.arange(5)[None]
  out = theirs['half_rotary'](x, at, 100.0)
  np.testing.assert_array_equal(out[..., 4:], x[..., 4:])
  np.testing.assert_allclose(out[..., :4], positions.rotary(x[..., :4], at, 100.0), rtol=1e-6)
  assert not np.allclose(out[:, 1:, :, :4], x[:, 1:, :, :4])
  assert 4 < results[0]['mlm'] < 6


def test_one_stretch_of_a_row_is_hidden(changed):
  options = dict(special_ids=(0, 1), mask_id=2, vocab_size=50, masked_lm_prob=0.25)
  options |= dict(max_predictions=8, mask_share=1.0, random_share=0.0, policies=('stretch',))
  ids = jnp.tile(jnp.arange(10, 34)[None], (20, 1)).at[:, 0].set(0).at[:, -1].set(1)
  given = jax.random.key(0), ids, jnp.ones_like(ids)
  with pytest.raises(KeyError, match='stretch'):
    masking.mask_tokens(*given, jnp.ones_like(ids), **options)
  path = changed / 'bert_jax' / 'objectives' / 'masking.py'
  mask_tokens = runpy.run_path(str(path))['mask_tokens']
  made = mask_tokens(*given, None, **options)
  corrupted, places, _, weights = map(np.asarray, made)
  first = set()
  for row, at, weight in zip(corrupted, places, weights):
    hidden = sorted(at[weight > 0])
    assert hidden == list(range(hidden[0], hidden[0] + 6)) == list(np.flatnonzero(row == 2))
    assert hidden[0] >= 1 and hidden[-1] <= 22
    first.add(hidden[0])
  assert len(first) > 5


def test_a_table_is_an_entry(changed, results):
  with pytest.raises(config.InputError, match="task 'tickets' is not known"):
    config.load('configs/finetune.py:task=tickets', [])
  assert 0 <= results[1]['classification_accuracy'] <= 1
  labels = json.loads((changed / 'tickets' / 'config.json').read_text())['table']['labels']
  assert sorted(labels) == ['billing', 'technical']
  (answers,) = changed.glob('tickets/eval/*/predictions.jsonl')
  assert len(answers.read_text().splitlines()) == len(TICKETS) / 10
