"""The embedded corpus: the English documentation that every Python installation already holds.

The docstrings of the Python standard library and of the installed ones of PACKAGES: text to
pre-train on and a labelled task to fine-tune on (which package is this from?), without a network.
Files are parsed with `ast`, never imported, and come in the same order in every process.
"""

import ast
import contextlib
import functools
import gzip
import hashlib
import itertools
import json
import os
import re
import sys
import sysconfig
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

from bert_jax.copies import cache_folder
from bert_jax.errors import InputError
from bert_jax.files import Path, make_folder, write_whole
from bert_jax.text.sentences import split_sentences

# What is read, as far as it is installed: the standard library ('python') and packages by their
# import names. The list stays as it is when requirements change, so that the corpus does too.
PACKAGES = (
  *('python', 'absl', 'clu', 'flax', 'grain', 'jax', 'matplotlib', 'ml_collections', 'numpy'),
  *('optax', 'orbax', 'scipy', 'sentencepiece', 'tensorboardX', 'tensorflow_datasets'),
  *('tokenizers', 'tqdm'),
)
# How the documentation imports them and their main modules.
ALIASES = ('jnp', 'mpl', 'nn', 'np', 'ocp', 'onp', 'plt', 'pygrain', 'sp', 'tfds')
MIN_WORDS, MIN_EXAMPLES = 5, 200

_SKIPPED = re.compile(r'(^|_)tests?($|_)|^(lib2to3|site-packages|dist-packages)$')
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NAMES = '|'.join(PACKAGES + ALIASES).replace('_', r'[-_\s]?')
# Whole words, where _ and digits end a word too: jax_enable_x64, python3.
_NAME = re.compile(rf'(?<![^\W_])(?:{_NAMES})\d*(?![^\W_])', re.IGNORECASE)
_PARAGRAPH = re.compile(r'\n\s*\n|^[ \t]*(?:-{3,}|={3,}|~{3,}|\^{3,}|\*{3,}|#{3,})[ \t]*$', re.M)


class Docstring(NamedTuple):
  package: str  # one of PACKAGES
  module: str  # dotted: 'json.decoder'
  text: str  # as inspect.cleandoc leaves it


def docstrings() -> Iterator[Docstring]:
  """Every docstring of every module of PACKAGES, in source order; test modules are left out.
  Parsing takes 8 to 15 s, so the result is kept in ~/.cache/bert_jax (or $XDG_CACHE_HOME/bert_jax)
  under a name that changes with all files read. Files that do not parse are skipped."""
  modules = []
  for package in PACKAGES:
    modules += _modules(package)
  if not modules:
    raise InputError('no documentation found to read; run pip install -r requirements.txt')
  cache = _cache_path(modules)
  try:
    texts = json.loads(gzip.decompress(cache.read_bytes()))
  except (OSError, EOFError, ValueError, zlib.error):  # there is none, or it is damaged
    texts = _read(modules)
    with contextlib.suppress(OSError):  # then it is read anew each time
      make_folder(cache.parent)
      write_whole(cache, gzip.compress(json.dumps(texts).encode(), compresslevel=1))
  for package, module, text in texts:
    yield Docstring(package, module, text)


def documents() -> Iterator[tuple[str, list[str]]]:
  """(dotted name, sentences) for every module that has a docstring."""
  for module, group in itertools.groupby(docstrings(), key=lambda docstring: docstring.module):
    of_module = []
    for docstring in group:
      of_module += sentences(docstring.text)
    yield module, of_module


@functools.cache  # a run reads it for its labels, its training and its evaluation split
def labelled() -> tuple[dict[str, Any], ...]:
  """The task "which package is this docstring from?": {'text', 'label', 'modules'}.
  Package names and their import aliases become '_', so that the answer does not stand in the
  question. A text that stands in several modules is one example, with all of them named. Texts
  under MIN_WORDS words and labels with fewer than MIN_EXAMPLES texts are left out."""
  examples = {}
  for package, module, text in docstrings():
    text = _NAME.sub('_', text)
    if text in examples:
      examples[text]['modules'].append(module)
    elif len(text.split()) >= MIN_WORDS:
      examples[text] = {'text': text, 'label': package, 'modules': [module]}
  sizes = Counter(example['label'] for example in examples.values())
  return tuple(x for x in examples.values() if sizes[x['label']] >= MIN_EXAMPLES)


def sentences(text: str) -> list[str]:
  """Sentences of one docstring. Paragraphs end at blank lines and at the rule under a heading,
  which is dropped. Lines of prose are joined; lines of code are sentences: a paragraph with a
  doctest, what stands between ``` or is indented after '::'."""
  result, fenced, margin = [], False, None
  for paragraph in _PARAGRAPH.split(text):
    lines = [line.rstrip() for line in paragraph.splitlines() if line.strip()]
    if not lines:
      continue
    starts = [line.lstrip()[:3] for line in lines]
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    if margin is not None and indent <= margin:
      margin = None
    if fenced or margin is not None or '```' in starts or '>>>' in starts:
      result.extend(lines)
      fenced ^= starts.count('```') % 2 == 1
    else:
      result.extend(split_sentences(' '.join(line.strip() for line in lines)))
      margin = indent if lines[-1].endswith('::') else None
  return result


def _modules(package: str) -> list[tuple[str, str, Path]]:
  """(package, dotted name, path) of the modules of a package, sorted, without tests."""

  def is_read(name):
    return name.isidentifier() and not _SKIPPED.search(name)

  top, roots, modules = (), [sysconfig.get_path('stdlib')], []
  if package != 'python':
    spec = find_spec(package)  # imports nothing for a name without dots
    top, roots = (package,), (spec.submodule_search_locations or ()) if spec else ()
  for root in roots:
    for folder, subfolders, files in os.walk(root):
      subfolders[:] = filter(is_read, subfolders)
      prefix = top + Path(folder).relative_to(root).parts
      for file in files:
        name, suffix = os.path.splitext(file)
        if suffix == '.py' and is_read(name):
          parts = prefix if name == '__init__' else (*prefix, name)
          modules.append((package, '.'.join(parts), Path(folder, file)))
  return sorted(modules)


def _read(modules: list[tuple[str, str, Path]]) -> list[tuple[str, str, str]]:
  """Parses all (package, module, path): the (package, module, text) of each docstring."""
  texts = []
  for package, module, path in modules:
    try:
      with warnings.catch_warnings(action='ignore'):  # other people's invalid escapes
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
      continue
    for text in _texts(tree):
      texts.append((package, module, text))
  return texts


def _texts(node: ast.AST) -> Iterator[str]:
  """Docstrings in and under a node, in source order; only statements can hold one."""
  if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
    yield text
  for field in ('body', 'handlers', 'orelse', 'finalbody', 'cases'):
    for child in getattr(node, field, ()):
      yield from _texts(child)


def _cache_path(modules: list[tuple[str, str, Path]]) -> Path:
  key = hashlib.sha256(sys.version.encode() + Path(__file__).read_bytes())
  for package, module, path in modules:
    with contextlib.suppress(OSError):  # e.g. a dangling link: _read counts it
      stat = path.stat()
      key.update(f'{package} {module} {path} {stat.st_size} {stat.st_mtime_ns}\n'.encode())
  return cache_folder() / f'docs-{key.hexdigest()[:16]}.json.gz'
