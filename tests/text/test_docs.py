"""The embedded corpus: the same everywhere, nothing imported, nothing lost without a word."""

import os
from collections import Counter

import pytest

from bert_jax.text import documentation

FEW = 'flax', 'optax'


@pytest.fixture(scope='module')
def corpus():
  """(docstrings, documents, labelled) of a few packages."""
  documentation.labelled.cache_clear()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(documentation, 'PACKAGES', FEW)
    read = documentation.docstrings, documentation.documents, documentation.labelled
    return tuple(list(function()) for function in read)


@pytest.fixture(autouse=True)
def nothing_remembered():
  documentation.labelled.cache_clear()
  yield
  documentation.labelled.cache_clear()


@pytest.fixture
def tiny(tmp_path, monkeypatch):
  """A package that must not be imported, as the only one; returns its folder."""
  folder = tmp_path / 'lib' / 'tiny'
  (folder / 'sub' / 'tests').mkdir(parents=True)
  (folder / '__init__.py').write_text('"""The top."""\nraise SystemExit("imported")\n')
  (folder / 'broken.py').write_text('"""Never read."""\ndef f(:\n')
  (folder / 'empty.py').write_text('x = 1\n')
  for name in ('test_it.py', 'it_test.py', 'sub/tests/deep.py'):
    (folder / name).write_text('"""A test."""\n')
  (folder / 'sub' / 'code.py').write_text(
    '"""Module."""\nclass A:\n  "Class A."\n  def f(self):\n    "Method f."\n'
    'try:\n  def g():\n    """Function g.\n\n    Rest:\n      Indented.\n    """\nexcept E:\n'
    '  async def h():\n    "Function h."\nclass B:\n  "Class B."\n'
  )
  monkeypatch.syspath_prepend(str(tmp_path / 'lib'))
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(documentation, 'PACKAGES', ('tiny', 'no_such_package'))
  return folder


TINY = [
  ('tiny', 'tiny', 'The top.'),
  ('tiny', 'tiny.sub.code', 'Module.'),
  ('tiny', 'tiny.sub.code', 'Class A.'),
  ('tiny', 'tiny.sub.code', 'Method f.'),
  ('tiny', 'tiny.sub.code', 'Function g.\n\nRest:\n  Indented.'),
  ('tiny', 'tiny.sub.code', 'Function h.'),
  ('tiny', 'tiny.sub.code', 'Class B.'),
]


def test_documents(corpus):
  """One of each module, in order, none of a test or of another installation."""
  found, documents, _ = corpus
  modules = [module for module, _ in documents]
  assert modules == list(dict.fromkeys(docstring.module for docstring in found))
  assert {'flax.linen.linear', 'optax'} <= set(modules)
  assert not {'tests', 'test'} & {part for module in modules for part in module.split('.')}


def test_labelled_texts(corpus):
  found, _, labelled = corpus
  sizes = Counter(example['label'] for example in labelled)
  assert set(sizes) == set(FEW) and min(sizes.values()) >= 200
  texts = [example['text'] for example in labelled]
  assert len(set(texts)) == len(texts) and min(len(text.split()) for text in texts) >= 5
  package = {docstring.module: docstring.package for docstring in found}
  assert all(package[example['modules'][0]] == example['label'] for example in labelled)


def test_names_are_masked_as_whole_words_only(monkeypatch):
  text = 'Uses jax.numpy as JNP, set jax_enable_x64; NumPy-like, python3. But jaxpr, grains.'
  found = [documentation.Docstring('jax', 'jax.a', text)]
  monkeypatch.setattr(documentation, 'docstrings', lambda: iter(found))
  monkeypatch.setattr(documentation, 'MIN_EXAMPLES', 1)
  masked = 'Uses _._ as _, set __enable_x64; _-like, _. But jaxpr, grains.'
  assert documentation.labelled() == ({'text': masked, 'label': 'jax', 'modules': ['jax.a']},)


def test_cache_is_used_and_follows_the_files(tiny, monkeypatch):
  list(documentation.docstrings())
  with monkeypatch.context() as patch:
    fails = lambda source: pytest.fail('parsed in spite of the cache')
    patch.setattr(documentation.ast, 'parse', fails)
    assert list(documentation.docstrings()) == TINY
  top = tiny / '__init__.py'
  top.write_text(top.read_text().replace('top', 'end'))  # the same size
  os.utime(top, ns=(0, top.stat().st_mtime_ns + 1_000_000))
  assert next(documentation.docstrings()).text == 'The end.'


def test_damaged_or_unwritable_cache_does_no_harm(tiny, tmp_path, monkeypatch):
  list(documentation.docstrings())
  (cache,) = (tmp_path / 'cache' / 'bert_jax').iterdir()
  data = cache.read_bytes()
  for damaged in (data[:40], data[:40] + bytes([data[40] ^ 1]) + data[41:], b''):
    cache.write_bytes(damaged)
    assert list(documentation.docstrings()) == TINY
    assert cache.read_bytes() != damaged
  (tmp_path / 'file').touch()
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  assert list(documentation.docstrings()) == TINY


def test_sentences_join_prose_and_keep_code():
  text = """Adds two
numbers. Returns one.

Parameters
----------
x : int
    The first.

>>> add(1,
...     2)
3

Use it so::

    y = add(1, 2)

    print(y. real)

Then this.

```
if y:

  z = 1. w = 2.

  u = 3
```

```
x = 1. y = 2.
```

End. Of it."""
  prose = ['Adds two numbers.', 'Returns one.', 'Parameters', 'x : int The first.']
  code = ['>>> add(1,', '...     2)', '3', 'Use it so::', '    y = add(1, 2)', '    print(y. real)']
  fenced = ['Then this.', '```', 'if y:', '  z = 1. w = 2.', '  u = 3', '```']
  fenced += ['```', 'x = 1. y = 2.', '```']
  assert documentation.sentences(text) == [*prose, *code, *fenced, 'End.', 'Of it.']
