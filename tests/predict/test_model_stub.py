"""predict/model.pyi: what a type checker sees of Model, whose methods are those of the predictions.

A line that is missing there, or wrong, is shown by the test as it must be.
"""

import ast
import inspect
from pathlib import Path

from bert_jax.predict import model
from bert_jax.predict.model import METHODS, PREDICTIONS

STUB = ast.parse(Path(model.__file__).with_suffix('.pyi').read_text())


def lines_of(module, name='Model'):
  """{name: the line of the function in a stub} of the public functions of a class."""
  (found,) = (x for x in module.body if isinstance(x, ast.ClassDef) and x.name == name)
  functions = [x for x in found.body if isinstance(x, ast.FunctionDef)]
  public = [x for x in functions if x.name[0] != '_' or x.name == '__init__']
  return {
    x.name: f'def {x.name}({ast.unparse(x.args)}) -> {ast.unparse(x.returns or ast.Name("None"))}'
    for x in public
  }


def method_of(name):
  """The line of the method of a task, with its options and their defaults."""
  prediction = PREDICTIONS[METHODS[name]]
  known = inspect.signature(prediction.ask.__init__).parameters
  options = ''.join(
    f', {option}: {about.kind.__name__} | None={known[option].default!r}'
    for option, about in prediction.options.items()
  )
  returned = inspect.signature(prediction.ask.returned).return_annotation
  answers = inspect.formatannotation(returned)
  return f'def {name}(self, values: Iterable[Any]{options}) -> {answers}'


def test_the_stub_has_the_methods_of_a_model_and_of_every_task():
  own = lines_of(ast.parse(Path(model.__file__).read_text()))
  expected = own | {name: method_of(name) for name in METHODS}
  plain = lambda lines: {name: line.replace("'", '') for name, line in lines.items()}
  assert plain(lines_of(STUB)) == plain(expected)


def test_what_a_model_has_not_is_no_attribute():
  nothing = object.__new__(model.Model)
  assert not hasattr(nothing, 'fill_masks') and callable(nothing.fill_mask)
  assert {'fill_mask', 'embed', 'ask'} <= {*dir(nothing)}


def test_the_stub_has_the_attributes_of_a_model():
  tree = ast.parse(Path(model.__file__).read_text())
  stored = (x for x in ast.walk(tree) if isinstance(x, ast.Attribute))
  names = {x.attr for x in stored if isinstance(x.ctx, ast.Store) and x.attr[0] != '_'}
  annotated = (x for x in ast.walk(STUB) if isinstance(x, ast.AnnAssign))
  known = {x.target.id for x in annotated if isinstance(x.target, ast.Name)}
  assert names - {'dtype'} <= known  # dtype: of its config.model
