"""What the READMEs tell their readers to type exists: configs, fields, options, files, links."""

import re
import shlex
from pathlib import Path

import pytest

from bert_jax import config
from bert_jax.predict import __main__ as predict

ROOT = Path(__file__).parents[1]
FOLDERS = 'bert_jax', 'configs', 'launch', 'tests', '.github'
PAGES = ROOT / 'README.md', *(x for folder in FOLDERS for x in (ROOT / folder).rglob('*.md'))
PAGES = sorted(path.relative_to(ROOT) for path in PAGES)
READMES = [path for path in PAGES if path.name == 'README.md']
# Options that a tool reads otherwise than by the argument that it is named in.
GENERAL = {'--help', '--config', '--workdir'}


def commands(path):
  """The words of each command for one of our modules in the blocks of a README."""
  for block in re.findall(r'```bash\n(.*?)```', (ROOT / path).read_text(), re.S):
    variables = dict(re.findall(r'^([A-Z]+)="(.*)"$', block, re.M))
    for line in block.replace('\\\n', ' ').splitlines():
      for name, value in variables.items():
        line = re.sub(rf'\${name}\b', lambda _, value=value: value, line)
      if 'python -m bert_jax.' in line and ' ... ' not in f'{line} ':
        words = shlex.split(line, comments=True)
        start = next(i for i, x in enumerate(words) if x.startswith('bert_jax.'))
        for stop in ('|', '>', '&&'):
          words = words[: words.index(stop, start)] if stop in words[start:] else words
        yield words[start:]


def source_of(module):
  """The text of all files of a command, its --options among them."""
  path = ROOT / module.replace('.', '/')
  files = [path / '__main__.py'] if path.is_dir() else [path.with_suffix('.py')]
  if path.is_dir():
    files += path.glob('*.py')
  if 'tools' in module:
    files.append(ROOT / 'bert_jax' / 'tools' / 'arguments.py')
  options = predict.parser()._option_string_actions if module == 'bert_jax.predict' else ()
  return '\n'.join([*(file.read_text() for file in files), *map(repr, options)])


@pytest.mark.parametrize('path', READMES, ids=str)
def test_commands_are_ones_that_are_there(path):
  for module, *words in commands(path):
    text = source_of(module)
    for word in words:
      option = word.partition('=')[0]
      if option.startswith('--') and not option.startswith('--config.') and option not in GENERAL:
        assert f"'{option}'" in text, f'{module} has no {option}'


@pytest.mark.parametrize('path', READMES, ids=str)
def test_configs_and_fields_of_commands_are_valid(path, monkeypatch):
  monkeypatch.setenv('DATA', 'data')
  for module, *words in commands(path):
    if '--config' in words and module not in ('bert_jax.evaluate', 'bert_jax.tools.sweep'):
      file = words[words.index('--config') + 1]
      fields = [word for word in words if word.startswith('--config.')]
      config.load(file, fields)


@pytest.mark.parametrize('path', PAGES, ids=str)
def test_links_lead_somewhere(path):
  text = (ROOT / path).read_text()
  for link in re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', text):
    link = ''.join(link)
    file, _, section = link.partition('#')
    if '://' in link:
      continue
    target = (ROOT / path).parent / file if file else ROOT / path
    assert target.exists(), link
    if section:
      titles = re.findall(r'^#+ (.*)$', target.read_text(), re.M)
      anchors = [re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in titles]
      assert section in anchors, f'{link}: there are {anchors}'
