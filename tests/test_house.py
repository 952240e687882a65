"""The house is as DESIGN says: its tree, its import order, its import floor."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Rooms from the bottom up, as prefixes of module names; the longest that fits counts. A room imports
# rooms of its own level and of those below.
LEVELS = [
  {'errors', 'field', 'whole_files', 'provenance', '__version__'},
  {'models'},
  {'hosts', 'text'},
  {'metrics', 'sharding', 'tokenizers', 'corpus', 'rows', 'optim'},
  {'objectives'},
  {'step', 'tasks.record', 'tasks.labelled'},
  {'tasks'},
  {'config'},
  {'workdirs', 'convert'},
  {'manifest'},
  {'checkpoint'},
  {'initialization'},
  {'train', 'evaluate', 'predict'},
  {'tools'},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}


def imports(path):
  """Names of our own modules, without `bert_jax.`, that a file imports."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
      names = [f'{node.module}.{alias.name}' for alias in node.names]
    else:
      continue
    for name in names:
      if name.startswith('bert_jax.'):
        yield name.removeprefix('bert_jax.')


def level(module):
  """The level of a module such as tasks.qa.reading."""
  parts = module.split('.')
  for size in range(len(parts), 0, -1):
    if (name := '.'.join(parts[:size])) in LEVEL:
      return LEVEL[name]
  raise AssertionError(f'{module} is in no room; give it a place in LEVELS of tests/test_house.py')


@pytest.mark.parametrize('path', sorted(Path('bert_jax').rglob('*.py')), ids=str)
def test_imports_go_one_way(path):
  module = '.'.join(path.relative_to('bert_jax').with_suffix('').parts).removesuffix('.__init__')
  if module == '__init__':
    return
  for name in imports(path):
    assert level(name) <= level(module), f'{path} imports {name}, which lives above it'


def rooms(path):
  return {name.split('.')[0] for name in imports(path)}


def test_models_know_only_models():
  for path in Path('bert_jax/models').glob('*.py'):
    assert rooms(path) <= {'models'}, path


def test_objectives_do_not_know_the_loop_and_configs_only_the_config():
  for path in Path('bert_jax/objectives').glob('*.py'):
    assert not {'train', 'step', 'tasks', 'tools', 'config'} & rooms(path), path
  for path in Path('configs').glob('*.py'):
    assert rooms(path) <= {'config'}, path


def test_every_room_can_be_imported_first():
  """There is no circle of imports that only works in one order."""
  modules = sorted(
    '.'.join(path.with_suffix('').parts).removesuffix('.__init__')
    for path in Path('bert_jax').rglob('*.py')
    if path.stem not in ('__main__', 'prepare_beam')
  )
  code = '''
import importlib, sys
for name in sys.argv[1:]:
  for known in [known for known in sys.modules if known.partition('.')[0] == 'bert_jax']:
    del sys.modules[known]
  importlib.import_module(name)
'''
  out = subprocess.run([sys.executable, '-c', code, *modules], capture_output=True, text=True)
  assert not out.returncode, out.stderr[-2000:]


def test_top_level_is_the_agreed_six():
  listed = subprocess.run(['git', 'ls-files'], capture_output=True, text=True)
  if listed.returncode:
    pytest.skip('not a git checkout')
  top = {line.split('/')[0] for line in listed.stdout.splitlines()}
  assert {name for name in top if not name.startswith('.')} <= {
    'README.md',
    'requirements.txt',
    'bert_jax',
    'configs',
    'launch',
    'tests',
  }


HEAVY = {'tensorflow', 'torch', 'transformers', 'tensorflow_datasets', 'matplotlib'}
SCORERS = {'sklearn', 'seqeval', 'scipy.stats'}  # wanted only where a score is computed


@pytest.mark.parametrize(
  'module, without',
  [
    ('bert_jax', HEAVY | SCORERS | {'jax'}),
    ('bert_jax.train', HEAVY | SCORERS),
    ('bert_jax.predict', HEAVY | SCORERS),
    ('bert_jax.predict.__main__', HEAVY | SCORERS),
    ('bert_jax.tools.prepare', HEAVY | SCORERS | {'jax'}),
  ],
)
def test_import_floor(module, without):
  code = f'import sys, {module}; print(*sys.modules)'
  loaded = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert not without & set(loaded.stdout.split())


def test_orbax_lives_in_one_file():
  for path in Path('bert_jax').rglob('*.py'):
    uses = re.search(r'^\s*(import|from) orbax', path.read_text(), re.M)
    assert bool(uses) == (path == Path('bert_jax/checkpoint.py')), path
