"""The package without its clone: what pip installs, and a clone of another version beside it."""

import os
import shutil
import subprocess
import sys
import tomllib

import pytest
from conftest import ROOT

from bert_jax import __main__, config
from bert_jax.errors import InputError

TRAIN = """
import sys, bert_jax
from bert_jax import config, files
from bert_jax.workdir import provenance
rows = [{'sentence': f'{word} river', 'label': word} for word in ('old', 'new') * 8]
fields = {'tokenizer.path': sys.argv[1], 'model.vocab_size': 15, 'epochs': 0, 'steps': 2}
run = bert_jax.finetune(rows, 'W', model='2/128', **fields)
assert {*run.model.classify(['old river'])[0]} == {'old', 'new'}
ernie = config.load('configs/pretrain.py:arch=ernie,runlocal')
assert files.brought(ernie.corpus.phrases).is_file()
print(bert_jax.__file__, provenance.commit())
"""


def copied(site):
  """What a wheel holds, without pip, beside what is installed here."""
  shutil.copytree(ROOT / 'bert_jax', site / 'bert_jax')
  return sys.executable, '-m', 'bert_jax'


def installed(site, origin=str(ROOT / 'bert_jax')):
  """A new environment in which pip installs the package and all it needs."""
  subprocess.run([sys.executable, '-m', 'venv', site], check=True)
  subprocess.run([site / 'bin' / 'pip', 'install', '--quiet', origin], check=True)
  return site / 'bin' / 'python', site / 'bin' / 'bert-jax'


def of_git(site):
  return installed(site, f'git+{ROOT.as_uri()}#subdirectory=bert_jax')


slow = pytest.mark.slow


@pytest.mark.parametrize(
  'install', [copied, pytest.param(installed, marks=slow), pytest.param(of_git, marks=slow)]
)
def test_an_installed_package_trains_without_a_clone(install, vocab, tmp_path, monkeypatch):
  """Where somebody's own configs/ has a file of one of our names."""
  site, recipe = tmp_path / 'site', tmp_path / 'configs' / 'finetune.py'
  recipe.parent.mkdir()
  recipe.write_text('raise ValueError')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('PYTHONPATH', str(site))
  python, *program = install(site)
  said = subprocess.check_output([python, '-c', TRAIN, vocab], text=True)
  assert said.startswith(str(site))
  if install is of_git:
    commit = subprocess.check_output(['git', 'rev-parse', 'HEAD'], cwd=ROOT, text=True)
    assert said.endswith(f' {commit}')
  if install is not copied:
    shown = subprocess.check_output([*program, 'config', 'configs/pretrain.py'], text=True)
    assert 'optimizer.learning_rate' in shown


def test_a_wheel_has_every_config_and_every_command():
  project = tomllib.loads((ROOT / 'bert_jax' / 'pyproject.toml').read_text())
  package = ROOT / 'bert_jax'
  packed = set()
  for pattern in project['tool']['setuptools']['package-data']['bert_jax']:
    packed |= {path.resolve() for path in package.glob(pattern)}
  assert packed == {x for x in (ROOT / 'configs').rglob('*.*') if x.suffix in ('.py', '.txt')}
  mains = [x for x in package.rglob('*.py') if "if __name__ == '__main__'" in x.read_text()]
  names = {str(x.relative_to(package)).removesuffix('.py').replace('/', '.') for x in mains}
  names -= {'__main__', 'tools.sweep.child'}
  assert {*__main__.COMMANDS.split()} == {name.removesuffix('.__main__') for name in names}


def test_a_clone_of_another_version_is_named(tmp_path, monkeypatch, capsys):
  for name in 'bert_jax', 'configs':
    shutil.copytree(ROOT / name, tmp_path / name)
  run = []
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(os, 'execv', lambda *arguments: run.append(arguments))
  monkeypatch.setattr(sys, 'argv', ['bert-jax', 'convert', '--to', 'hf:OUT'])
  (tmp_path / 'bert_jax' / 'configs' / 'finetune.py').write_text('')  # recipes may differ
  (tmp_path / 'bert_jax' / 'notebooks.py').unlink()  # pip may still install it
  config.load('configs/finetune.py')
  __main__.main()
  assert capsys.readouterr().err == ''
  (tmp_path / 'bert_jax' / 'step.py').write_text('')
  with pytest.raises(InputError, match=r'bert_jax/step\.py is another version') as refused:
    config.load('configs/finetune.py')
  __main__.main()
  for said in str(refused.value), capsys.readouterr().err:
    assert str(tmp_path) in said and str(ROOT / 'bert_jax') in said
  command = [sys.executable, '-m', 'bert_jax.tools.convert', '--to', 'hf:OUT']
  assert run == [(sys.executable, command)] * 2


def test_the_program_says_what_each_command_does(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', ['bert-jax', '--help'])
  with pytest.raises(SystemExit):
    __main__.main()
  assert '\ntrain      Runs a config in a workdir, or continues' in capsys.readouterr().out
