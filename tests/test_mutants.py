"""Tests that notice: each fault of tests/mutants/ is put into a copy of the code, and the tests
named with it must fail.

    python -m pytest -m slow tests/test_mutants.py         # a test for each fault; -n 2 splits them
    python tests/test_mutants.py [ROOM ...] [--workers 2]  # the same as a table by room

A room is a file of tests/mutants/ with a list MUTANTS of
(name, file, text as it stands, text with the fault, pytest arguments of tests that must fail).
The text as it stands occurs exactly once in the file. When a change of the code moves that text,
the quick test here says so: write the same fault into the new code.
"""

import argparse
import ast
import collections
import concurrent.futures
import os
import queue
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SLOWEST = 900  # seconds that the tests of one fault may take


class Mutant(typing.NamedTuple):
  room: str
  name: str
  file: str
  before: str
  after: str
  tests: str

  def applied(self, text):
    return text.replace(self.before, self.after, 1)


def mutants():
  return [
    Mutant(path.stem, *fields)
    for path in sorted((TESTS / 'mutants').glob('*.py'))
    for fields in runpy.run_path(str(path))['MUTANTS']
  ]


ALL = mutants()
# Room and number first: a name alone may hold what pytest shows badly or not at all.
IDS = [f'{m.room}-{i}-{re.sub(r"[^a-zA-Z0-9]+", "_", m.name)}' for i, m in enumerate(ALL)]


def copy_of_the_tree(folder):
  """A copy of what git tracks, or would, below `folder`; beside it the real data if it is here."""
  listed = subprocess.run(
    ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  if listed.returncode:
    pytest.skip('not a git checkout')
  tree = Path(folder) / 'tree'
  for name in filter(None, listed.stdout.split('\0')):
    if (ROOT / name).is_file():
      (tree / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(ROOT / name, tree / name)
  if (ROOT.parent / 'shared').is_dir():
    (Path(folder) / 'shared').symlink_to(ROOT.parent / 'shared')
  return tree


def run_tests(tree, arguments):
  """Runs pytest in a copy -> the finished process, its output as text."""
  env = {k: v for k, v in os.environ.items() if not k.startswith('PYTEST')}
  # A fault of the same length within the same second would meet the bytecode of the one before.
  env |= {'PYTHONDONTWRITEBYTECODE': '1', 'PYTHONPATH': str(tree)}
  return subprocess.run(
    [
      sys.executable,
      '-m',
      'pytest',
      '-x',
      '-q',
      '-p',
      'no:cacheprovider',
      '-o',
      'addopts=--strict-markers',
      *arguments,
    ],
    cwd=tree,
    env=env,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=SLOWEST,
  )


def verdict(tree, mutant):
  """('noticed' | 'not noticed' | 'skipped' | 'broken', output) of the named tests under a fault."""
  path = tree / mutant.file
  text = path.read_text()
  path.write_text(mutant.applied(text))
  try:
    done = run_tests(tree, shlex.split(mutant.tests))
  finally:
    path.write_text(text)
  if done.returncode == 0:
    return 'not noticed' if re.search(r'\d passed', done.stdout) else 'skipped', done.stdout
  return 'noticed' if done.returncode == 1 else 'broken', done.stdout


# ---- quick ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('mutant', ALL, ids=IDS)
def test_a_fault_still_fits_the_code(mutant):
  text = (ROOT / mutant.file).read_text()
  assert text.count(mutant.before) == 1, (
    f'{mutant.name}: {mutant.file} has {mutant.before!r} {text.count(mutant.before)} times, not '
    f'once; write the fault anew in tests/mutants/{mutant.room}.py'
  )
  faulty = mutant.applied(text)
  if mutant.file.endswith('.py'):
    assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(text)), 'it changes nothing'
  else:
    assert faulty != text
  tests = [word for word in shlex.split(mutant.tests) if not word.startswith('-')]
  named = [word for word in tests if word.startswith('tests/')]
  assert named, 'no test is named'
  for word in named:
    file, *names = word.partition('[')[0].split('::')
    source = (ROOT / file).read_text()
    for name in names:
      assert re.search(rf'^\s*(def|class) {name}\b', source, re.M), f'{file} has no {name}'


def test_faults_have_names_of_their_own():
  counts = collections.Counter(m.name for m in ALL)
  assert max(counts.values(), default=1) == 1, [name for name, n in counts.items() if n > 1]


# ---- slow ----------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def tree(tmp_path_factory):
  return copy_of_the_tree(tmp_path_factory.mktemp('mutants'))


@pytest.mark.slow
@pytest.mark.parametrize('mutant', ALL, ids=IDS)
def test_a_fault_is_noticed(mutant, tree):
  outcome, output = verdict(tree, mutant)
  if outcome == 'skipped':
    pytest.skip('its tests are skipped here')
  assert outcome == 'noticed', (
    f'{outcome}: {mutant.name}, in {mutant.file}, by {mutant.tests}\n{output[-3000:]}'
  )


@pytest.mark.slow
def test_without_faults_the_same_tests_pass(tree):
  """Else a test that always fails would count as one that notices."""
  named = sorted({word for m in ALL for word in shlex.split(m.tests)})
  for start in range(0, len(named), 40):  # a command line and a time of bearable length
    done = run_tests(tree, named[start : start + 40])
    assert done.returncode == 0, done.stdout[-3000:]


def table(rows):
  """[(room, outcome), ...] -> lines of how many were noticed, by room and in all."""
  outcomes = ('noticed', 'not noticed', 'skipped', 'broken')
  rooms = [*sorted({room for room, _ in rows}), 'all']
  lines = ['{:<20}{:>9}{:>13}{:>9}{:>8}'.format('room', *outcomes)]
  for room in rooms:
    counts = collections.Counter(o for r, o in rows if room in (r, 'all'))
    lines.append('{:<20}{:>9}{:>13}{:>9}{:>8}'.format(room, *(counts[o] for o in outcomes)))
  return lines


def main():
  parser = argparse.ArgumentParser(description='Which faults of tests/mutants are noticed?')
  parser.add_argument('room', nargs='*', help='files of tests/mutants/; all by default')
  parser.add_argument('--workers', type=int, default=2, help='copies that are tried at once')
  args = parser.parse_args()
  sys.path.insert(0, str(ROOT))
  import conftest  # noqa: F401 (the environment of the tests, and what they share compiled)

  chosen = [m for m in ALL if not args.room or m.room in args.room]
  with tempfile.TemporaryDirectory(prefix='bert_jax-mutants-') as folder:
    free = queue.SimpleQueue()
    for i in range(args.workers):
      free.put(copy_of_the_tree(Path(folder, str(i))))

    def attempt(mutant):
      tree = free.get()
      try:
        outcome, output = verdict(tree, mutant)
      finally:
        free.put(tree)
      print(f'{outcome:<12} {mutant.room}: {mutant.name}', flush=True)
      if outcome == 'broken':
        print(output[-1500:], flush=True)
      return mutant.room, outcome

    with concurrent.futures.ThreadPoolExecutor(args.workers) as pool:
      rows = list(pool.map(attempt, chosen))
  print('', *table(rows), sep='\n')
  tried = [outcome for _, outcome in rows if outcome != 'skipped']
  sys.exit(tried.count('noticed') < 0.95 * len(tried))


if __name__ == '__main__':
  main()
