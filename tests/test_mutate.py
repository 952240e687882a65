"""The sampler of faults changes code into valid code, and what it draws follows from the seed."""

import ast
from pathlib import Path

import mutate
import pytest

SOURCE = '''"""A text."""
import logging

log = logging.getLogger('x')


def area(sides: list[int], scale: float = 2.0, flip=True) -> float:
  """Another text with 3 words."""
  found = {'width': sides[0], 'height': sides[1]}
  found['depth'] = 5  # of each
  if not flip and len(sides) < 3:
    log.info('%d sides', len(sides))
    raise ValueError(f'{len(sides)} sides are {3 - len(sides)} too few.')
  total = -scale * pow(found['width'], found['height'])
  total = max(total, scale)
  total += sum(sides, axis=1)
  return total
'''


@pytest.fixture
def faults(tmp_path, monkeypatch):
  path = tmp_path / 'bert_jax' / 'models' / 'area.py'
  path.parent.mkdir(parents=True)
  path.write_text(SOURCE)
  monkeypatch.setattr(mutate, 'ROOT', tmp_path)
  monkeypatch.setattr(mutate, 'WITHOUT_EFFECT', tmp_path / 'none.txt')
  return list(mutate.faults_of(path))


def changed(fault: mutate.Fault) -> str:
  source = SOURCE.encode()
  return (source[: fault.start] + fault.text.encode() + source[fault.end :]).decode()


def test_every_kind_is_found_and_leaves_valid_code(faults):
  assert {fault.kind for fault in faults} == set(mutate.KINDS)
  for fault in faults:
    assert ast.dump(ast.parse(changed(fault))) != ast.dump(ast.parse(SOURCE)), fault.name


LINES = {
  '  if not flip and len(sides) >= 3:': 'comparison',
  '  if not flip and len(sides) <= 3:': 'boundary',
  '  if (flip) and len(sides) < 3:': 'logic',
  '  if not flip and len(sides) < 4:': 'constant',
  "  total = scale * pow(found['width'], found['height'])": 'sign',
  "  total = -scale * pow(found['height'], found['width'])": 'arguments',
  '  total += sum(sides, axis=0)': 'axis',
  '  pass': 'line',
}


def test_a_fault_is_put_where_it_belongs(faults):
  for line, kind in LINES.items():
    assert any(line in changed(fault).splitlines() for fault in faults if fault.kind == kind), kind


def test_what_may_stand_either_way_round_is_left_alone(faults):
  assert not any('max(scale, total)' in changed(fault) for fault in faults)


def test_texts_annotations_and_logging_are_left_alone(faults):
  rows = SOURCE.splitlines()
  lines = {rows[fault.line - 1].strip() for fault in faults}
  assert not any(line.startswith(('log', '"""', 'import')) for line in lines)
  assert {fault.kind for fault in faults if 'raise' in rows[fault.line - 1]} == {'line'}


def test_a_sample_is_a_function_of_the_seed_and_takes_turns(faults):
  names = lambda seed: [fault.name for fault in mutate.sample(9, seed, [])]
  assert names(1) == names(1) != names(3)
  assert {fault.kind for fault in mutate.sample(9, 1, [])} == set(mutate.KINDS)
  assert not mutate.sample(9, 1, ['tasks'])


def test_what_is_known_to_change_nothing_is_not_drawn(faults, tmp_path):
  known = next(fault for fault in faults if '  # ' in fault.shown)
  Path(tmp_path / 'none.txt').write_text(f'# Faults\n{mutate.signature(known)}  # a reason\n')
  drawn = mutate.sample(999, 1, [])
  assert known not in drawn and len(drawn) == len(faults) - 1
  assert mutate.without_effect() == {mutate.signature(known): 'a reason'}


def test_the_quickest_test_of_each_file_is_chosen_first_and_those_of_the_room_run_first():
  seconds = {'a::slow': 9.0, 'a::quick': 1.0, 'rows/b::one': 2.0, 'rows/b::two': 3.0}
  assert mutate.chosen(set(seconds), seconds, 6.5, 'text') == ['a::quick', *list(seconds)[2:]]
  assert mutate.chosen(set(seconds), seconds, 6.5, 'rows') == [*list(seconds)[2:], 'a::quick']


def test_a_line_that_runs_at_import_is_tried_by_the_tests_of_its_file_or_room(faults):
  (fault,) = (x for x in faults if x.kind == 'axis')
  seconds = dict.fromkeys(
    ('tests/models/test_a.py::a', 'tests/models/test_b.py::b', 'tests/c.py::c')
  )
  a, b, c = seconds
  assert mutate.reaching(fault, {(fault.file, fault.line): {c}}, seconds) == {c}
  assert mutate.reaching(fault, {(fault.file, 1): {c}, (fault.file, 2): {a}}, seconds) == {a, c}
  assert mutate.reaching(fault, {('bert_jax/x.py', fault.line): {c}}, seconds) == {a, b}
