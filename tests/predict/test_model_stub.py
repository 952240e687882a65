"""predict/model.pyi: what a type checker sees of Model, whose methods are those of the predictions.

    python tests/predict/test_model_stub.py

writes it anew, from model.py and the records of the families.
"""

import ast
import inspect
from pathlib import Path

from bert_jax.predict import model
from bert_jax.predict.model import METHODS, PREDICTIONS

PATH = Path(model.__file__).with_suffix('.pyi')
HEAD = """# Made by tests/predict/test_model_stub.py of model.py and the records of the families.
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy

import bert_jax.predict.hidden_states
from bert_jax.tasks.ask import Ask
from bert_jax.tasks.record import Prediction
"""


def header_of(function):
  """The first line of a function, with types where it has them, and Any for the rest."""
  arguments = function.args
  for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
    if argument.annotation is None and argument.arg != 'self':
      argument.annotation = ast.Name('Any')
  returns = ast.unparse(function.returns).strip("'") if function.returns else 'Any'
  returns = 'None' if function.name == '__init__' else returns
  marks = [f'  @{ast.unparse(mark)}' for mark in function.decorator_list]
  return [*marks, f'  def {function.name}({ast.unparse(arguments)}) -> {returns}: ...']


def method_of(name):
  """The first line of the method of a task, with its options and their defaults."""
  prediction = PREDICTIONS[METHODS[name]]
  known = inspect.signature(prediction.ask.__init__).parameters
  options = ''.join(
    f', {option}: {about.kind.__name__} | None = {known[option].default!r}'
    for option, about in prediction.options.items()
  )
  returned = inspect.signature(prediction.ask.returned).return_annotation
  answers = inspect.formatannotation(returned)
  return f'  def {name}(self, values: Iterable[Any]{options}) -> {answers}: ...'


def made():
  """The text of the stub, before it is formatted."""
  (found,) = (
    node
    for node in ast.parse(Path(model.__file__).read_text()).body
    if isinstance(node, ast.ClassDef)
  )
  lines, attributes = [], []
  for node in found.body:
    if isinstance(node, ast.FunctionDef) and (node.name[0] != '_' or node.name == '__init__'):
      lines += header_of(node)
    for inner in ast.walk(node):
      is_own = isinstance(inner, ast.Attribute) and ast.unparse(inner.value) == 'self'
      if is_own and isinstance(inner.ctx, ast.Store) and inner.attr[0] != '_':
        attributes.append(f'  {inner.attr}: Any')
  lines = [*dict.fromkeys(attributes), *lines, *map(method_of, METHODS)]
  names = 'OF_ALL: dict[str, Prediction]', 'PREDICTIONS: dict[str, Prediction]'
  names += ('METHODS: dict[str, str]', 'def known(task: str) -> None: ...', 'class Model:')
  return '\n'.join([HEAD, *names, *lines, ''])


def test_the_stub_has_the_methods_and_attributes_of_a_model():
  assert ast.dump(ast.parse(PATH.read_text())) == ast.dump(ast.parse(made()))


if __name__ == '__main__':
  PATH.write_text(made())
