"""The house is as DESIGN says: its tree, the order and floor of imports, what a guest brings."""

import ast
import functools
import graphlib
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest
import yaml

import bert_jax
from bert_jax import tasks
from bert_jax.convert.families import FAMILIES
from bert_jax.tasks import TASKS
from bert_jax.tasks.record import Family

# Rooms, the files and folders of bert_jax, from the bottom up, one on each level. A room imports
# those below it, so that no circle of rooms is possible.
LEVELS = """
  __version__ errors cells command_line field buckets copies files models hosts text metrics
  sharding gradients parameter_layers timeline optim tokenizers corpus rows objectives step tasks
  config convert workdir notebooks run evaluate train predict interactive tools __main__""".split()  # noqa: SIM905
MODULES = sorted(Path('bert_jax').rglob('*.py'))


@functools.cache
def tree(path):
  return ast.parse(path.read_text())


def statements(node, inside):
  """All statements in a node that run, so none under `if TYPE_CHECKING:`. inside: in functions,
  too."""
  for part in ast.iter_child_nodes(node):
    types = isinstance(part, ast.If) and ast.unparse(part.test).endswith('TYPE_CHECKING')
    stays_out = isinstance(part, ast.FunctionDef) and not inside
    if not (types or stays_out or isinstance(part, ast.expr)):
      yield part
      yield from statements(part, inside)


def imported(path, inside=True):
  """Names of what a file imports where it runs: what stands under `if TYPE_CHECKING:` only names
  types. inside: in functions, too."""
  out = []
  for node in statements(tree(path), inside):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
      names = [f'{node.module}.{alias.name}' for alias in node.names]
    else:
      continue
    out += names
  return out


@functools.cache
def imports(path, inside=True):
  """Names of our own modules, without `bert_jax.`, among those of imported."""
  own = [x for x in imported(path, inside) if x.startswith('bert_jax.')]
  return [x.removeprefix('bert_jax.') for x in own]


def level(module):
  """The level of the room of a module such as tasks.qa.reading."""
  room = module.split('.')[0]
  assert room in LEVELS, f'{module} is in no room; give it a place in LEVELS of tests/test_house.py'
  return LEVELS.index(room)


def name_of(path):
  """The name of a module, such as tasks.qa.reading."""
  return '.'.join(path.relative_to('bert_jax').with_suffix('').parts).removesuffix('.__init__')


def test_imports_go_one_way():
  for path in MODULES[1:]:  # without bert_jax itself
    for name in imports(path):
      assert level(name) <= level(name_of(path)), f'{path} imports {name}, which lives above it'


def test_a_room_is_one_file_or_one_folder():
  """Two rooms on a level, or a part of a room on a level of its own, would hide a circle."""
  assert len(LEVELS) == len(set(LEVELS)) and not any('.' in room for room in LEVELS)
  paths = {path.stem for path in Path('bert_jax').iterdir() if path.suffix in ('', '.py')}
  differ = (set(LEVELS) - {'__version__'}) ^ (paths - {'__init__', '__pycache__', 'configs'})
  assert not differ, f'{differ}: each room has its place in LEVELS of tests/test_house.py'


def test_every_stack_is_tested_and_has_its_constraints():
  (job,) = yaml.safe_load(Path('.github/workflows/test.yml').read_text())['jobs'].values()
  stacks = {
    f'tests/constraints-py{x.replace(".", "")}.txt' for x in job['strategy']['matrix']['python']
  }
  assert stacks == {str(path) for path in Path('tests').glob('constraints-*.txt')}


def test_an_installed_package_asks_for_what_a_clone_does():
  """pip reads pyproject.toml beside the package, where no file of the folder above may be named."""
  project = tomllib.loads(Path('bert_jax/pyproject.toml').read_text())
  assert project['tool']['setuptools']['dynamic']['dependencies'] == {'file': ['requirements.txt']}
  assert Path('bert_jax/requirements.txt').resolve() == Path('requirements.txt').resolve()
  assert f'## {bert_jax.__version__}' in Path('.github/CHANGELOG.md').read_text()


def test_files_and_folders_form_no_circle():
  """Files by what they import when they are imported, so that each may be the first; folders, such
  as two packages of tools, by all imports. A folder and the one around it are one idea."""
  paths = {name_of(path): path for path in MODULES}
  folders, files = {}, {}
  for path in MODULES:
    for name in imports(path):
      folder = (paths.get(name) or paths.get(name.rpartition('.')[0], path)).parent
      if not (path.parent.is_relative_to(folder) or folder.is_relative_to(path.parent)):
        folders.setdefault(path.parent, set()).add(folder)
    for name in imports(path, inside=False):
      files.setdefault(path, set()).add(paths.get(name) or paths.get(name.rpartition('.')[0]))
  for below in folders, files:
    list(graphlib.TopologicalSorter(below).static_order())  # or a CycleError that names them


def rooms(path):
  return {name.split('.')[0] for name in imports(path)}


def test_models_know_only_models():
  for path in Path('bert_jax/models').glob('*.py'):
    assert rooms(path) <= {'models'}, path


# {(a file, or a folder that ends with /; the name): why it may stand there}.
NAMES_OF_FAMILIES = {
  ('bert_jax/corpus/', 'corpus'): 'the name of a dataset on the disk',
  ('bert_jax/tokenizers/run_tokenizer.py', 'corpus'): 'the block that the rooms of texts are given',
  ('bert_jax/corpus/loading.py', 'corpus'): 'the block that the rooms of texts are given',
  ('bert_jax/predict/hidden_states.py', 'pair'): "the field of a record's second text",
  ('bert_jax/predict/__main__.py', 'task'): 'the option --task',
  ('bert_jax/tokenizers/tokenizer.py', 'pair'): 'a part of a tokenizer.json',
  ('bert_jax/tools/probe/pieces.py', 'perplexity'): 'the prediction whose numbers it takes apart',
  ('bert_jax/tools/report/', 'task'): 'a column of the long table',
  ('bert_jax/interactive.py', 'table'): 'the task of configs/finetune.py for rows of any columns',
  **{
    ('bert_jax/text/documentation_tasks.py', name): 'a name in published formats'
    for name in ('table',)
  },
  ('bert_jax/tools/preflight/estimate.py', 'corpus'): 'how often an epoch reads a text',
  ('bert_jax/config/__init__.py', 'language_model.eval_memory'): 'may change in a run that goes on',
}


def names_of_families():
  """Names of families, of what their models are asked, of blocks and fields; not what is also the
  name of something that all runs have, or of Hugging Face's."""
  names = set()
  for family in TASKS.values():
    names |= {family.name, *family.predictions, *family.blocks, *family.fields}
    names |= {*family.other_models}
  pipelines = {head.pipeline for family in TASKS.values() for head in family.heads}
  return names - {'teacher', 'loss'} - pipelines - set(FAMILIES)


def test_families_are_known_by_their_records_only():
  """Outside of tasks/, objectives/ and configs/ nothing writes down the name of a family, as a text
  or as a block of a config; who wants something of one asks its record. A Model
  alone has a method for each prediction."""
  names = names_of_families()
  for path in Path('bert_jax').rglob('*.py'):
    if path.parts[1] in ('tasks', 'objectives') or path.parts[1:] == ('predict', 'model.py'):
      continue
    found = set()
    for node in ast.walk(tree(path)):
      if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found.add(node.value)
      elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        found |= {node.attr} if node.value.id == 'config' else set()
    allowed = {
      name
      for (where, name) in NAMES_OF_FAMILIES
      if where == str(path) or (where.endswith('/') and str(path).startswith(where))
    }
    assert not (of_families := found & names - allowed), (
      f'{path} writes down {", ".join(sorted(of_families))}: ask the record of the family, call it '
      'otherwise or, if the text means something else, say in NAMES_OF_FAMILIES what.'
    )


def test_every_record_of_a_family_is_known():
  """A record without its line in tasks/__init__.py would be an objective that is not known."""
  for module in pkgutil.walk_packages(tasks.__path__, 'bert_jax.tasks.'):
    for name, x in vars(importlib.import_module(module.name)).items():
      known = not isinstance(x, Family) or TASKS.get(x.name) is x
      assert known, f'{module.name}.{name} has no line in bert_jax/tasks/__init__.py'


def test_objectives_do_not_know_the_loop_and_configs_only_the_config():
  for path in Path('bert_jax/objectives').glob('*.py'):
    assert not {'train', 'step', 'tasks', 'tools', 'config'} & rooms(path), path
  for path in Path('configs').glob('*.py'):
    assert rooms(path) <= {'config'}, path


def test_top_level_is_the_agreed_six():
  listed = subprocess.run(['git', 'ls-files'], capture_output=True, text=True)
  if listed.returncode:
    pytest.skip('not a git checkout')
  top = {line.split('/')[0] for line in listed.stdout.splitlines()}
  allowed = {'README.md', 'requirements.txt', 'bert_jax', 'configs', 'launch', 'tests'}
  assert {name for name in top if not name.startswith('.')} <= allowed


HEAVY = {'tensorflow', 'torch', 'transformers', 'tensorflow_datasets', 'matplotlib'}
SCORERS = {'sklearn', 'seqeval', 'sacrebleu', 'scipy.stats'}  # wanted where a score is computed


def loaded_by(*modules):
  """{module: all that are loaded after its import}, one after the other in a new process."""
  lines = ''.join(f'import {x}\nprint(*sys.modules)\n' for x in modules)
  code = f'import sys\nimport bert_jax\nbert_jax.load\n{lines}'
  out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  return dict(zip(modules, (set(line.split()) for line in out.stdout.splitlines()), strict=True))


def test_import_floor():
  rooms = 'tools.prepare metrics tools.prepare.__main__ train predict predict.__main__'
  loaded = loaded_by('bert_jax', *(f'bert_jax.{room}' for room in rooms.split()))
  heavy = (HEAVY | SCORERS) & set().union(*loaded.values())
  there = lambda path, x: any(f'{y}.'.startswith(f'{x}.') for y in imported(path, inside=False))
  found = {x: [str(path) for path in MODULES if there(path, x)] for x in heavy}
  assert not heavy, f'these imports belong in the functions that need them: {found}'
  assert not {'jax', 'IPython'} & loaded['bert_jax.tools.prepare']
  assert not {'tqdm', 'bert_jax.hosts', 'bert_jax.config'} & loaded['bert_jax.metrics']


def test_orbax_lives_in_one_file():
  for path in Path('bert_jax').rglob('*.py'):
    uses = re.search(r'^\s*(import|from) orbax', path.read_text(), re.M)
    assert bool(uses) == (path == Path('bert_jax/workdir/checkpoint.py')), path


def test_tests_share_what_they_compile():
  """jax reads the environment when it is imported, so nothing may import it before conftest.py has
  set that."""
  import jax

  assert jax.config.jax_compilation_cache_dir == os.environ['JAX_COMPILATION_CACHE_DIR']
  assert jax.config.jax_platforms == os.environ['JAX_PLATFORMS']


# What is on the devices while a run trains, as the files of run/ and workdir/ call it.
ON_DEVICES = re.compile(r'\b(state|params|opt_state|carry|constants|batch|schedule)\b')


def test_arrays_are_fetched_where_it_says_so():
  """int(array) waits for the device, and looks as if it did not."""
  for path in (path for path in MODULES if path.parts[1] in ('run', 'workdir')):
    for node in ast.walk(tree(path)):
      if isinstance(node, ast.Call) and ast.unparse(node.func) in ('int', 'float', 'bool'):
        text = ast.unparse(node)
        assert 'device_get' in text or not ON_DEVICES.search(text), f'{path}:{node.lineno} {text}'


def test_folders_hold_at_most_25_files():
  for folder in {path.parent for path in Path('bert_jax').rglob('*.py')}:
    assert len([path for path in folder.iterdir() if path.is_file()]) <= 25, folder


def code_readme(title):
  """A section of bert_jax/README.md."""
  (section,) = re.findall(
    rf'^## {title}\n(.*?)(?=^## |\Z)', Path('bert_jax/README.md').read_text(), re.M | re.S
  )
  return section


def test_the_trail_is_read_in_an_evening():
  """It begins at the text, and is at most 28 files and 4,500 lines."""
  paths = re.findall(r'^\d+\. `(\S+)`: ', code_readme('The trail'), re.M)
  rooms = [path.partition('/')[0].removesuffix('.py') for path in paths]
  order = 'text', 'tokenizers', 'corpus', 'rows', 'train', 'step', 'metrics', 'objectives'
  order = *order, 'models', 'optim', 'sharding'
  assert sorted(rooms, key=order.index) == rooms and {*order} == {*rooms}
  assert 20 <= len(set(paths)) == len(paths) <= 28
  lines = {path: len((Path('bert_jax') / path).read_text().splitlines()) for path in paths}
  assert sum(lines.values()) <= 4500, lines


def test_every_place_that_the_table_names_is_there():
  places = re.findall(r'\| `(\S+): ([\w.]+)` \|$', code_readme('The trail'), re.M)
  assert len(places) >= 15
  for path, name in places:
    node = tree(Path('bert_jax') / path)
    for part in name.split('.'):
      (node,) = (x for x in node.body if getattr(x, 'name', '') == part)


# Python's tokens without comments, texts, line ends and indentation: ideas, which no formatting
# changes. A new capability says in its commit by how much it raises these, and what it replaces.
MOST_TOKENS = {'bert_jax': 252_100, 'tests': 277_300}
MOST_LINES = 60  # of a function
UNCOUNTED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
UNCOUNTED |= {tokenize.STRING}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason='others see the code in f-strings')
@pytest.mark.parametrize('folder', MOST_TOKENS)
def test_the_house_has_as_many_ideas_as_it_may(folder):
  tokens = 0
  for path in Path(folder).rglob('*.py'):
    with path.open() as file:
      tokens += sum(x.type not in UNCOUNTED for x in tokenize.generate_tokens(file.readline))
  assert tokens <= MOST_TOKENS[folder], f'{folder} has {tokens:,} tokens'


def test_no_function_is_longer_than_a_screen():
  long = {}
  for path in MODULES:
    for node in ast.walk(tree(path)):
      if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > MOST_LINES:
        long[f'{path}:{node.name}'] = node.end_lineno - node.lineno + 1
  assert not long


def test_the_map_shows_every_room_from_the_bottom_up():
  rows = re.findall(r'^\| (`.*?) \|', code_readme('The rooms'), re.M)
  rooms = [name for row in rows for name in re.findall(r'`([a-z_]+)(?:/|\.py)`', row)]
  assert rooms == LEVELS[1:], (
    'the table of rooms in bert_jax/README.md is not in the order of LEVELS'
  )
