"""The notebooks of launch/, executed as Colab does, small; what a notebook shows of a run."""

import ast
import base64
import csv
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import fake_bucket
import nbformat
import numpy as np
import pytest
import small_tables
from conftest import ROOT, small_overrides, small_pretrain
from nbclient import NotebookClient

from bert_jax import config, notebooks, train
from bert_jax.config import InputError
from bert_jax.run import progress

NAMES = 'ablation', 'finetune', 'quickstart', 'tpu'
PNG = b'\x89PNG\r\n'


def read(name):
  return nbformat.read(ROOT / 'launch' / f'colab_{name}.ipynb', as_version=4)


def execute(name, parameters, then=''):
  """A notebook after all its cells were run with other parameters. then: a cell at the end."""
  notebook, new = read(name), nbformat.v4.new_code_cell
  places = [i for i, x in enumerate(notebook.cells) if 'parameters' in x.metadata.get('tags', ())]
  source = '\n'.join(f'{name} = {value!r}' for name, value in parameters.items())
  source += "\nfrom bert_jax import notebooks\nnotebooks.machine = lambda: 'cpu'"  # which is slow
  if parameters['FOLDER'].startswith('az:'):
    source += '\nimport fake_bucket'
  notebook.cells.insert(places[0] + 1, new(source))
  notebook.cells += [new(then)] if then else []
  here = {'metadata': {'path': str(ROOT)}}
  NotebookClient(notebook, timeout=300, kernel_name='python3', resources=here).execute()
  return notebook


@pytest.fixture(autouse=True)
def is_hermetic(tmp_path, monkeypatch):
  monkeypatch.setenv('IPYTHONDIR', str(tmp_path / 'ipython'))
  monkeypatch.setenv('PYTHONPATH', f'{ROOT}:{ROOT / "tests"}')


def cell_of(notebook, text):
  """The last cell with a text in its code."""
  return [x for x in notebook.cells if x.cell_type == 'code' and text in x.source][-1]


def pictures(cell):
  found = [x.data['image/png'] for x in cell.outputs if 'image/png' in x.get('data', {})]
  assert all(base64.b64decode(x).startswith(PNG) for x in found)
  return found


def text_of(cell):
  """What a cell has printed (a line may come in parts) and shown as text."""
  shown = lambda x: x.get('text', '') or x.get('data', {}).get('text/plain', '') + '\n'
  return ''.join(map(shown, cell.outputs))


def html_of(cell):
  return ''.join(x.get('data', {}).get('text/html', '') for x in cell.outputs)


def shows_a_run(cell, steps):
  """A bar at its end, and one curve; the lines of the log."""
  assert len(pictures(cell)) == 1
  assert not [x for x in cell.outputs if x.output_type == 'stream' and x.name == 'stderr']
  text = text_of(cell)
  assert f'{steps}/{steps}' in text
  return text


# ---- The files ----------------------------------------------------------------------------------


def test_notebooks_are_short_and_without_outputs():
  """And they begin with the same cell, for the address of the repository."""
  begins = set()
  for name in NAMES:
    notebook = read(name)
    nbformat.validate(notebook)
    cells = [x for x in notebook.cells if x.cell_type == 'code']
    assert all(x.outputs == [] and x.execution_count is None for x in cells)
    for cell in cells:
      lines = cell.source.splitlines()
      assert len(lines) <= 15 and max(map(len, lines)) <= 100
      # What fails there would not end *Run all*.
      assert not re.search(r'(?m)^ *[!%].*$(?!\n *if _exit_code:)', cell.source)
    begins.add(cells[0].source)
  assert len(begins) == 1


@pytest.mark.parametrize('name', NAMES)
def test_what_a_notebook_uses_of_this_package_is_there(name):
  cells = [x.source for x in read(name).cells if x.cell_type == 'code']
  tree = ast.parse(re.sub(r'(?m)^(\s*)[%!].*', r'\1pass', '\n'.join(cells)))
  known = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom | ast.Import) and 'bert_jax' in ast.unparse(node):
      exec(ast.unparse(node), known)
  used = [
    x for x in ast.walk(tree) if isinstance(x, ast.Attribute) and ast.unparse(x.value) in known
  ]
  assert used and all(hasattr(known[x.value.id], x.attr) for x in used), name
  for spec in re.findall(r"'(configs/[^'{]+)'", ast.unparse(tree)):
    config.load(spec, [])


# ---- Executed -----------------------------------------------------------------------------------

AGAIN = """
import time
from bert_jax import step
def compiles(self):
  raise AssertionError('a step was compiled')
step.Program.lower = compiles
started = time.monotonic()
state, metrics = train.train(recipe, root / kind)
print('again', int(state.step), time.monotonic() - started)
"""


@pytest.mark.slow
def test_a_notebook_trains_and_a_finished_one_returns(corpus_file, tmp_path):
  parameters = {'FOLDER': str(tmp_path)}
  parameters['OVERRIDES'] = [*small_overrides(corpus_file), '--config.eval.batches=2']
  notebook = execute('tpu', parameters, AGAIN)
  training = next(x for x in notebook.cells if x.source.startswith('import bert_jax'))
  shows_a_run(training, 20)
  assert text_of(training).splitlines()[-1].startswith('State(step 20, ')
  assert pictures(cell_of(notebook, 'barh'))
  assert 'Model(mlm_nsp, 1 layers x 32' in text_of(cell_of(notebook, 'fill_mask'))
  again = cell_of(notebook, 'again')
  assert 'this run has finished, at step 20' in text_of(again) and len(pictures(again)) == 1
  assert float(text_of(again).split('again 20 ')[1].split()[0]) < 15


@pytest.mark.slow
@pytest.mark.parametrize('kind', ('one label', 'multi_label', 'regression'))
def test_a_table_becomes_a_classifier(kind, tmp_path, monkeypatch):
  fake_bucket.in_folder(tmp_path, monkeypatch)
  write_tickets(tmp_path / 'tickets.csv', np.random.default_rng(0), kind)
  fields = """steps=60 model.vocab_size=200 batch_size=4 data.seq_length=32
  model.num_hidden_layers=1 model.hidden_size=64 model.intermediate_size=64
  optimizer.learning_rate=2e-3 log.tensorboard=false"""
  parameters = {
    'DATA': str(tmp_path / 'tickets.csv'),
    'TEXT': 'nachricht',
    'LABEL': 'abteilung',
    'TASK': 'table,runlocal',
    'MODEL': 'tiny',
    'FOLDER': 'az://mine/out',
    'FIELDS': dict(x.split('=') for x in fields.split()),
  }
  parameters['FIELDS'] |= {f'table.{kind}': True} if kind != 'one label' else {}
  notebook = execute('finetune', parameters, 'run.curve()')
  assert len(pictures(cell_of(notebook, 'run.curve'))) == 1
  log = shows_a_run(cell_of(notebook, 'bert_jax.finetune'), 60)
  assert 'held out of training (table.eval_share)' in log
  assert '<th>nachricht</th>' in html_of(cell_of(notebook, 'tables.records'))
  entropies = text_of(cell_of(notebook, 'entropy(table'))
  assert entropies.startswith('entropy in training: 1.10 nats, if equal 1.10\n') == (
    kind == 'one label'
  )
  assert len(pictures(cell_of(notebook, 'ConfusionMatrixDisplay.from'))) == (kind != 'multi_label')
  asked = cell_of(notebook, 'run.model.classify')
  if kind == 'regression':
    assert re.search(r'   \d\.?\d?\d?\n', text_of(asked)), text_of(asked)
  scores = html_of(asked)
  names, values = (re.findall(rf'<{x}>(.+?)</{x}>', scores) for x in ('th', 'td'))
  found = dict(zip(names[-len(values) - 1 :], values))
  least = {
    'one label': 'accuracy',
    'multi_label': 'micro_f1',
    'regression': 'pearson',
  }
  assert float(found[least[kind]]) > 0.6
  assert 'model.safetensors' in text_of(cell_of(notebook, 'convert.convert'))


def write_tickets(path, rng, kind='one label'):
  says = {'multi_label': lambda x: f'{x},all', 'regression': lambda x: f'{len(x)},5'}
  with path.open('w', newline='') as file:
    rows = csv.writer(file, delimiter=';')
    rows.writerow(['nachricht', 'abteilung'])
    for i in range(120):
      label = ['sales', 'support', 'it'][i % 3]
      label_of = says.get(kind, str)
      rows.writerow([f'{small_tables.sentence(rng)}; {label}', label_of(label)])


@pytest.mark.slow
def test_quickstart(corpus_file, tmp_path, monkeypatch):
  fake_bucket.in_folder(tmp_path, monkeypatch)
  small = [x for x in small_overrides(corpus_file) if 'layers' not in x and 'corpus.' not in x]
  data = tmp_path / 'tickets.csv'
  write_tickets(data, np.random.default_rng(0))
  fields = f"""data.train={data} table.eval_share=0.2 epochs=2.0 table.text_column=nachricht
  table.label_column=abteilung log.tensorboard=false task.train_examples=0 model.vocab_size=200
  log.every=1"""
  parameters = {
    'FOLDER': 'az://mine/out',
    'PRETRAIN': [*small, '--config.corpus.eval_share=0.2'],
    'FINETUNE': [f'--config.{x}' for x in fields.split()],
  }
  notebook = execute('quickstart', parameters)
  shows_a_run(cell_of(notebook, 'stage=pretrain'), 20)
  assert len(pictures(cell_of(notebook, 'imshow'))) == 1
  assert len(pictures(cell_of(notebook, 'stage=finetune'))) == 2  # a curve of each
  report = html_of(cell_of(notebook, 'report.shown'))
  assert report


@pytest.mark.slow
def test_ablation(corpus_file, tmp_path):
  parameters = {'ABLATION': 'norm_placement,runlocal', 'SEEDS': 2, 'FOLDER': str(tmp_path / 'out')}
  parameters['OVERRIDES'] = small_overrides(corpus_file)
  notebook = execute('ablation', parameters)
  assert '4 runs' in text_of(cell_of(notebook, '--dry-run'))
  report = html_of(cell_of(notebook, 'report.shown'))
  assert 'norm_placement=pre' in report
  assert (tmp_path / 'out' / 'report' / 'report.html').is_file()


# ---- The module ---------------------------------------------------------------------------------


def test_a_run_in_a_notebook_shows_a_bar_and_its_curve(pretrained, corpus_file, monkeypatch):
  """A run that has ended shows its curve again; one without two points has none."""
  shown = []
  monkeypatch.setattr('IPython.display.display', lambda data, raw: shown.append(data))
  for module in (progress, train, notebooks):
    monkeypatch.setattr(module, 'in_notebook', lambda: True)
  bar = progress.Progress(20, 5, pretrained[0])
  for step in range(6, 21):
    bar.update(f'loss {step}')
  assert bar.is_bar and not shown
  bar.close()
  train.train(small_pretrain(corpus_file), pretrained[0])
  assert len(shown) == 2 and shown[0] == shown[1]
  assert base64.b64decode(shown[0]['image/png']).startswith(PNG)


def test_a_curve_is_of_what_is_known_at_two_steps(tmp_path, monkeypatch):
  from matplotlib.axes import Axes

  (tmp_path / 'run').mkdir()
  evals = (20, 'eval', 0.5), (33, 'eval', None), (33, 'whole', 0.4)
  lines = [{'step': i, 'split': 'train', 'loss': 99.0 - i} for i in (10, 20, 33)]
  lines += [{'step': n, 'split': kind, 'f1': value} for n, kind, value in evals]
  metrics = tmp_path / 'run' / 'metrics.jsonl'
  metrics.write_text(''.join(json.dumps(line) + '\n' for line in lines))
  (tmp_path / 'run' / 'summary.json').write_text(json.dumps({'metric': 'f1'}))
  drawn, plot = {}, Axes.plot

  def noted(axis, x, y, **look):
    drawn[look['label']] = list(x), list(y)
    return plot(axis, x, y, **look)

  monkeypatch.setattr(Axes, 'plot', noted)
  assert notebooks.drawn(tmp_path / 'run').startswith(PNG)
  # The metric that it is judged by has no values in training, so the loss stands beside it.
  assert drawn['train'] == ([10, 20, 33], [89.0, 79.0, 66.0])
  assert drawn['eval'] == ([20], [0.5]) and drawn['whole'] == ([33], [0.4])
  metrics.write_text(json.dumps(lines[0]) + '\n')
  assert notebooks.drawn(tmp_path / 'run') == notebooks.drawn(tmp_path / 'none') == b''


def test_a_mistake_in_a_notebook_is_one_sentence():
  sources = """
from bert_jax import command_line, errors
command_line.show_log()
errors.log.info('a < b')
---
raise errors.InputError('x is wrong; write y.')
---
raise errors.Paused('saved at step 3')"""
  cells = [nbformat.v4.new_code_cell(x.strip()) for x in sources.split('---')]
  notebook = nbformat.v4.new_notebook(cells=cells)
  how = {'resources': {'metadata': {'path': str(ROOT)}}, 'allow_errors': True}
  NotebookClient(notebook, timeout=60, kernel_name='python3', **how).execute()
  (logged,) = cells[0].outputs
  assert (logged.name, logged.text) == ('stdout', 'a < b\n')
  texts = [x.traceback[0] for cell in cells[1:] for x in cell.outputs]
  assert texts == ['InputError: x is wrong; write y.', 'Paused: saved at step 3']


def test_folders_outlive_the_machine(monkeypatch):
  assert notebooks.folder('~/runs') == Path.home() / 'runs'
  with pytest.raises(InputError, match='Colab alone can mount'):
    notebooks.folder('drive:x')
  assert str(notebooks.folder('gs://mine/a/b')) == 'gs://mine/a/b'
  # On Colab: Drive is mounted, and for a bucket of Google's the user is asked.
  calls = []
  drive = types.SimpleNamespace(mount=lambda place: calls.append(place))
  auth = types.SimpleNamespace(authenticate_user=lambda: calls.append('auth'))
  for name, module in ('', drive), ('.drive', drive), ('.auth', auth):
    monkeypatch.setitem(sys.modules, f'google.colab{name}', module)
  assert notebooks.folder('drive:a/b') == Path('/content/drive/MyDrive/a/b')
  assert str(notebooks.folder('s3://mine/a')) == 's3://mine/a' and calls == ['/content/drive']
  assert str(notebooks.folder('gs://mine/a')) == 'gs://mine/a' and calls[1:] == ['auth']


def test_the_machine_is_named(capsys, monkeypatch):
  look = notebooks.machine.__wrapped__
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  assert look() == 'cpu' and 'x cpu' in capsys.readouterr().out
  found = subprocess.CompletedProcess([], 0, 'a warning\ntpu 4 TPU v5 lite\n', '')
  monkeypatch.setattr(subprocess, 'run', lambda *_, **__: found)
  assert look() == 'tpu'
  assert capsys.readouterr().out == f'4 x TPU v5 lite, {os.cpu_count()} cores\n'
  busy = subprocess.CompletedProcess([], 1, '', 'The TPU is already in use\n')
  monkeypatch.setattr(subprocess, 'run', lambda *_, **__: busy)
  with pytest.raises(InputError, match='restart the runtime.*already in use'):
    look()
