"""Each worked difference of bert_jax/README.md, applied to a copy, does what it says there.

The copy has them all, and a second objective beside the one that it adds; it is asked in one
process.
"""

import json
import runpy
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import fields
from differences import ROOT, apply, copy_to, patch_of, printed

from bert_jax import config
from bert_jax.models import positions
from bert_jax.objectives import masking
from bert_jax.text.documents import held_out

TITLES = ('Add rotary positions', 'Add a masking policy', 'Add a data set', 'Add an objective')
ROTARY = 'model.position_embeddings=half_rotary'
TEAMS = {'billing': 'the invoice is wrong', 'technical': 'it does not start'}
TICKETS = [f'{team} {i};{text} again {i};{team}' for i in range(20) for team, text in TEAMS.items()]
# A new objective is its own files and one line of tasks/__init__.py: nothing else knows it. The
# first of two is as it says there; the second has a carry, a second tower and a prediction with an
# option.
LINES = ('from bert_jax.tasks.last_piece import TASK as LAST_PIECE',)
LINES += ('from bert_jax.tasks.first_piece import RECORD as FIRST_PIECE',)
ASKED = """
import jax
import bert_jax
from bert_jax import config, step
from bert_jax.run.inputs import read_inputs
from bert_jax.timeline import Moment
from bert_jax.tools.preflight.estimate import objective_of
from bert_jax.files import Path
from bert_jax.tools import report
from running import untrained
first = config.load('configs/first_piece.py', SMALL)
untrained(first, Path('first'))
inputs = read_inputs(first, Path('new'))
made = step.program(inputs.config, inputs.objective, inputs.mesh, inputs.timeline)
made.lower(), made.lower_evaluation()
print(report.text(report.read(Path('last'))).count('last_piece'))
model = bert_jax.load('first')
print(model.default_task)
print(*model.answer('begin-with', ['the river'], most=2)[0]['pieces'])
for ask in [lambda: model.answer('begin-with', ['the river'], most=0)] + [
  lambda name=name: config.load('configs/last_piece.py', [f'--config.{name}'])
  for name in ('last.rows=pairs', 'data.eval=x', 'loss.nsp_weight=1', 'objective=last')
]:
  try:
    ask()
  except config.InputError as error:
    print(error)
table = 'data.train=tickets.csv', 'model.vocab_size=200'
table = config.load('configs/finetune.py:task=tickets', [f'--config.{x}' for x in table])
inputs = read_inputs(table, Path('tickets'))
print(*inputs.config.table.labels, *(x.size for x in inputs.sources.values()))
words = '--config.masking.policy=stretch', '--config.data.seq_length=24'
objective = objective_of(config.load('configs/pretrain.py:size=2/128', words))
key, batch = jax.random.key(0), objective.spec(4)

def loss(params, batch):
  batch = objective.prepare(batch, key, Moment())
  return objective.terms(params, batch, key, True)[0]['mlm'].total

print(jax.eval_shape(loss, jax.eval_shape(objective.init, key), batch).shape)
"""


@pytest.fixture(scope='module')
def changed(tmp_path_factory):
  """(A copy of the code with the differences, and with the objectives of tests/guinea_pig and
  tests/guinea_pig_2; its texts before the objectives). Each of two can be made first, too."""
  for title in TITLES[1:3]:
    apply(copy_to(tmp_path_factory.mktemp('one') / 'copy'), title)
  folder = copy_to(tmp_path_factory.mktemp('all') / 'copy')
  for title in TITLES[:3]:
    apply(folder, title)
  (folder / 'tickets.csv').write_text('\n'.join(['subject;body;queue', *TICKETS]) + '\n')
  before = contents(folder)
  hidden = shutil.ignore_patterns('__pycache__')
  for name in ('guinea_pig', 'guinea_pig_2'):
    shutil.copytree(ROOT / 'tests' / name, folder, ignore=hidden, dirs_exist_ok=True)
  apply(folder, TITLES[3])
  tasks = folder / 'bert_jax' / 'tasks' / '__init__.py'
  tasks.write_text(tasks.read_text().replace(LINES[0], '\n'.join(LINES)))
  return folder, before


def contents(folder):
  return {path.relative_to(folder): path.read_text() for path in folder.rglob('*.py')}


@pytest.fixture(scope='module')
def said(changed, corpus_file):
  """What the added objective prints when it is trained and asked, then ASKED, which begins with an
  untrained model of the second, and then what that prints."""
  folder = changed[0]
  small = f'data.train={corpus_file} model.num_hidden_layers=1 model.dtype=float32'
  small = fields(f'{small} log.tensorboard=false')
  (folder / 'asked.py').write_text(ASKED.replace('SMALL', repr(small)))
  train = f'bert_jax.train --config configs/last_piece.py --workdir last {" ".join(small)}'
  ask = ['the river\n', 'bert_jax.predict', '--model', 'last']
  return printed(folder, f'{train} --config.{ROTARY}', ask, 'asked', 'bert_jax.predict --help')


@pytest.mark.parametrize('title', TITLES)
def test_its_lines_are_as_short_as_ours(title):
  assert max(map(len, patch_of(title).splitlines())) <= 101


def test_half_of_each_head_is_rotated(changed):
  with pytest.raises(config.InputError, match='position_embeddings'):
    config.load('configs/pretrain.py:runlocal', fields(ROTARY))
  theirs = runpy.run_path(str(changed[0] / 'bert_jax' / 'models' / 'positions.py'))
  x = jax.random.normal(jax.random.key(0), (1, 5, 2, 8))
  at = jnp.arange(5)[None]
  out = theirs['half_rotary'](x, at, 100.0)
  np.testing.assert_array_equal(out[..., 4:], x[..., 4:])
  np.testing.assert_allclose(out[..., :4], positions.rotary(x[..., :4], at, 100.0), rtol=1e-6)
  assert not np.allclose(out[:, 1:, :, :4], x[:, 1:, :, :4])


def test_one_stretch_of_a_row_is_hidden(changed, said):
  options = dict(special_ids=(0, 1), mask_id=2, vocab_size=50, masked_lm_prob=0.25)
  options |= dict(max_predictions=8, mask_share=1.0, random_share=0.0, policies=('stretch',))
  ids = jnp.tile(jnp.arange(10, 34)[None], (20, 1)).at[:, 0].set(0).at[:, -1].set(1)
  given = jax.random.key(0), ids, jnp.ones_like(ids)
  with pytest.raises(KeyError, match='stretch'):
    masking.mask_tokens(*given, jnp.ones_like(ids), **options)
  path = changed[0] / 'bert_jax' / 'objectives' / 'masking.py'
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
  assert said[2].splitlines()[-1] == '()'  # its loss is computed


def test_a_table_is_an_entry(said):
  with pytest.raises(config.InputError, match="task 'tickets' is not known"):
    config.load('configs/finetune.py:task=tickets', [])
  rows = [ticket.split(';') for ticket in TICKETS]
  held = sum(held_out((body, subject), 0.1) for subject, body, _ in rows)
  assert said[2].splitlines()[-2] == f'billing technical {len(TICKETS) - held} {held}'


def test_they_touch_their_own_files_and_one_line_each(changed):
  folder, before = changed
  after = contents(folder)
  new = {path for path in after.keys() - before.keys() if path.name != 'asked.py'}
  assert sorted(map(str, new)) == [
    f'{room}/{name}_piece.py'
    for room in ('bert_jax/objectives', 'bert_jax/tasks', 'configs')
    for name in ('first', 'last')
  ]
  assert [n for n in before if before[n] != after[n]] == [Path('bert_jax/tasks/__init__.py')]
  old, now = (side[Path('bert_jax/tasks/__init__.py')].splitlines() for side in (before, after))
  assert tuple(line for line in now if line not in old) == LINES and len(now) == len(old) + 2


def test_it_trains_evaluates_and_answers(changed, said):
  trained, answer = map(json.loads, said[:2])
  folder = changed[0] / 'last'
  lines = [json.loads(x) for x in (folder / 'metrics.jsonl').read_text().splitlines()]
  assert lines[-1]['step'] == 3 and lines[-1]['split'] == 'eval'
  assert 4.5 < trained['last'] < 6  # near log 200: three steps
  pieces = (folder / 'vocab.txt').read_text().splitlines()
  assert answer['piece'] in pieces and 0 < answer['probability'] <= 1
  assert int(said[2].splitlines()[0])  # times that a report names it


def test_the_second_carries_on_and_answers_by_its_name(changed, said):
  asked, pieces = said[2].splitlines(), (changed[0] / 'first' / 'vocab.txt').read_text().split()
  assert asked[1] == 'begin-with' and '--most' in said[3]
  assert len(set(asked[2].split()) & set(pieces)) == 2
  assert asked[3] == 'most is 0; ask for 1 piece or more.'


def test_its_mistakes_are_sentences(said):
  rows, held_out, block, objective = said[2].splitlines()[4:8]
  assert rows == "config.last.rows is 'pairs'; use one of full, single."
  assert held_out == 'objective last_piece holds out documents; leave data.eval empty.'
  assert block.startswith("config has no field 'loss.nsp_weight'")
  assert objective.startswith("config.objective is 'last'; use one of ")
  assert 'last_piece' in objective
