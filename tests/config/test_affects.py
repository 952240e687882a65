"""What fields bear on, and what is read of it."""

import pytest
import recorder

from bert_jax import config
from bert_jax.field import Field, affecting
from bert_jax.tasks import TASKS
from bert_jax.tools.report import runs


def test_fields_affect_what_they_did():
  """What a checkpoint, a report or a continued run compares changes in no field unseen."""
  golden = dict(line.split('=') for line in recorder.AFFECTS.read_text().splitlines())
  found = recorder.affected()
  names = [name for name in golden | found if golden.get(name) != found.get(name)]
  lines = [
    f'{name}: {golden.get(name, "no field")} -> {found.get(name, "no field")}' for name in names
  ]
  assert not lines, (
    'fields affect other things than they did:\n  ' + '\n  '.join(lines[:20]) + '\n'
    'If that was meant: python tests/recorder.py --goldens, and say in the commit what changed.'
  )


@pytest.mark.parametrize(
  'found, has, lacks',
  [
    (
      {name for name, field in config.ALL.items() if not field.decides},
      'mesh.fsdp max_hours log.every eval.every eval_masking.policy data.eval teacher',
      'mesh.sums mesh.gather seed data.train corpus.rows optimizer.learning_rate',
    ),
    (
      runs.WITHOUT_EFFECT,
      'mesh.fsdp log.every max_hours checkpoint.every',
      'eval.every teacher mesh.sums',
    ),
  ],
)
def test_what_is_read_of_it_has_some_fields_and_lacks_others(found, has, lacks):
  assert found >= {*has.split()} and not found & {*lacks.split()}


def test_all_purposes_are_used_and_a_field_has_the_same_in_all_families():
  used = set().union(*(field.affects for field in config.ALL.values()))
  assert used == {'rows', 'vocabulary', 'weights', 'start', 'judging', 'free'}
  for task in TASKS.values():
    for name, field in task.fields.items():
      assert field.affects == config.ALL[name].affects, (task.name, name)


def test_a_field_of_no_purpose_decides():
  assert Field(1, 'a number').decides and not Field(1, 'a number', affects={'free'}).decides
  assert not Field('', 'a path', affects={'start', 'free'}).decides
  some = {'a': Field(1, 'one'), 'b': Field(2, 'two', affects={'free'})}
  found = affecting({'rows'}, some)
  assert found['a'].affects == {'rows'} and found['b'].affects == {'free'}
