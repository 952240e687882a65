"""The house is as DESIGN says: its tree, its import order, its import floor."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

LEVELS = [
  {'config', 'metrics', 'hosts', 'provenance', 'workdirs'},
  {'models', 'sharding', 'optim', 'text', 'tokenizers', 'corpus', 'rows', 'convert'},
  {'tasks', 'objectives'},
  {'step', 'checkpoint', 'manifest', 'initialization'},
  {'begin', 'train', 'evaluate', 'predict'},
  {'tools'},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}


def imports(path):
  """Names of our own rooms that a file imports."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
      names = [f'{node.module}.{alias.name}' for alias in node.names]
    else:
      continue
    for name in names:
      if name.startswith('bert_jax.'):
        yield name.split('.')[1]


def room(path):
  parts = path.relative_to('bert_jax').parts
  return parts[0].removesuffix('.py')


@pytest.mark.parametrize('path', sorted(Path('bert_jax').rglob('*.py')), ids=str)
def test_imports_go_one_way(path):
  if room(path) == '__init__':
    return
  for name in imports(path):
    if name in LEVEL:
      assert LEVEL[name] <= LEVEL[room(path)], f'{path} imports {name}, which lives above it'


def test_models_know_only_models():
  for path in Path('bert_jax/models').glob('*.py'):
    assert set(imports(path)) <= {'models'}, path


def test_objectives_do_not_know_the_loop_and_configs_only_the_config():
  for path in Path('bert_jax/objectives').glob('*.py'):
    assert not {'train', 'step', 'tasks'} & set(imports(path)), path
  for path in Path('configs').glob('*.py'):
    assert set(imports(path)) <= {'config'}, path


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


@pytest.mark.parametrize('module', ['bert_jax', 'bert_jax.train', 'bert_jax.predict'])
def test_import_floor(module):
  code = f'import sys, {module}; print(*sys.modules)'
  loaded = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert not {'tensorflow', 'torch', 'transformers', 'tensorflow_datasets', 'matplotlib'} & set(
    loaded.stdout.split()
  )


def test_orbax_lives_in_one_file():
  for path in Path('bert_jax').rglob('*.py'):
    uses = re.search(r'^\s*(import|from) orbax', path.read_text(), re.M)
    assert bool(uses) == (path == Path('bert_jax/checkpoint.py')), path
