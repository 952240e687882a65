"""Every public function says what it takes and returns, and the type checker believes it."""

import ast
import subprocess
import sys
from pathlib import Path


def without_a_signature(body, prefix=''):
  """Yields the public functions and methods that leave a type out."""
  for node in body:
    public = not getattr(node, 'name', '_').startswith('_')
    if isinstance(node, ast.ClassDef) and public:
      yield from without_a_signature(node.body, f'{node.name}.')
    elif isinstance(node, ast.FunctionDef) and (public or node.name in ('__init__', '__call__')):
      a = node.args
      given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
      static = any(ast.unparse(x) == 'staticmethod' for x in node.decorator_list)
      typed = [x.annotation for x in given[bool(prefix and not static) :]]
      if None in typed or (node.returns is None and node.name != '__init__'):
        yield f'{node.lineno}: {prefix}{node.name}'


def test_public_functions_say_their_types():
  for path in Path('bert_jax').rglob('*.py'):
    assert not list(without_a_signature(ast.parse(path.read_text()).body)), path


def test_the_type_checker_finds_nothing():
  command = [sys.executable, '-m', 'pyrefly', 'check', '-c', 'tests/pyrefly.toml']
  command += ['--python-interpreter-path', sys.executable, '--output-format', 'min-text']
  found = subprocess.run(command, capture_output=True, text=True)
  assert not found.returncode, found.stdout[-6000:] + found.stderr[-2000:]
