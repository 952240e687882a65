"""The notebooks of launch/, executed as Colab does, small; what a notebook shows of a run."""

import ast
import base64
import csv
import io
import json
import os
import re
import subprocess
import sys
import time
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
from bert_jax.errors import Stopped
from bert_jax.metrics import Level
from bert_jax.notebooks import LOOKS
from bert_jax.run import progress
from bert_jax.workdir.recorded import Point

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
  source += '\nimport fake_bucket' * parameters['FOLDER'].startswith('fake:')
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
  """A bar at its end, in one output, and one curve."""
  assert len(pictures(cell)) == 1
  texts = [x.data['text/plain'] for x in cell.outputs if 'text/plain' in x.get('data', {})]
  bars = [x for x in texts if f'step {steps} of {steps}' in x]
  assert len(bars) == 1 and bars[0].startswith('100 %') and '\ntrain ' in bars[0]
  assert not [x for x in cell.outputs if x.output_type == 'stream' and x.name == 'stderr']
  log, *_ = (x.data for x in cell.outputs if 'text/html' in x.get('data', {}))
  assert log['text/html'].startswith('<details>') and f'step {steps}/' not in log['text/plain']
  return log['text/plain']


# ---- The files ----------------------------------------------------------------------------------


def test_notebooks_are_short_and_without_outputs():
  """And they begin with the same cell, for the address of the repository, and ask before they
  answer."""
  paths, begins = sorted((ROOT / 'launch').glob('*.ipynb')), set()
  assert [x.name for x in paths] == [f'colab_{x}.ipynb' for x in NAMES]
  for name in NAMES:
    notebook = read(name)
    nbformat.validate(notebook)
    cells = [x for x in notebook.cells if x.cell_type == 'code']
    assert all(x.outputs == [] and x.execution_count is None for x in cells)
    assert all(len(x.source.splitlines()) <= 15 for x in cells)
    for cell in cells:  # what fails there would not end *Run all*
      assert not re.search(r'(?m)^ *[!%].*$(?!\n *if _exit_code:)', cell.source)
    begins.add(cells[0].source)
    texts = ' '.join(x.source for x in notebook.cells if x.cell_type == 'markdown')
    for number in '12':  # a question stands in a cell before its answer
      assert 0 < texts.find(f'**Question {number}.**') < texts.find(f'*Answer {number}:*'), name
    if name != 'ablation':  # what stands below a bar
      line = ['grad_norm', 'update_norm', 'passes', 'MFU', 'goodput', '**majority**']
      line += [x for x in ('**prior**', '`masked`') if name != 'finetune']
      assert not [x for x in line if x not in texts.partition('**Question 2.**')[0]], name
    assert 'cross-entrop' in texts and re.search(r'\*\*nats?\*\*', texts)
    # Between cells of code stands what they do, in English.
    kinds = [x.cell_type for x in notebook.cells]
    assert notebook.cells[-1].source.startswith('## Next\n')
    assert kinds[0] == 'markdown' and kinds.count('markdown') >= len(cells) - 1
  (begin,) = begins
  assert "REPOSITORY = ''" in begin


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


@pytest.mark.parametrize('here', ['copy/launch', 'copy/..', '.'])
def test_the_first_cell_finds_a_copy_around_it_or_beside_it(here, tmp_path, monkeypatch):
  """A folder `bert_jax` that holds a copy is no package, though Python imports it as one."""
  source = next(x for x in read('tpu').cells if x.cell_type == 'code').source
  search, _, _ = source.partition('if not importlib')  # and not the network
  copy = tmp_path / ('bert_jax' if here == 'copy/..' else 'copy')
  for name in ('bert_jax/train.py', 'launch/colab_tpu.ipynb'):
    (copy / name).parent.mkdir(parents=True)
    (copy / name).touch()
  monkeypatch.chdir(copy.parent / here.replace('copy', copy.name))
  for _ in range(2):  # run again in the same kernel, it stays there
    exec(search, {})
    assert Path.cwd() == (tmp_path if here == '.' else copy)


@pytest.mark.slow
def test_the_first_cell_gets_the_code_once(tmp_path, monkeypatch):
  if not (ROOT / '.git').exists():
    pytest.skip('not a git checkout')
  monkeypatch.delenv('PYTHONPATH')
  source = next(x for x in read('tpu').cells if x.cell_type == 'code').source
  source = source.replace("REPOSITORY = ''", f"REPOSITORY = 'file://{ROOT}'")
  new = nbformat.v4.new_code_cell
  (tmp_path / 'bert_jax_code').mkdir()  # what a wrong address has left
  (tmp_path / 'bert_jax_code' / 'requirements.txt').touch()
  for first in (True, False):  # then in a new kernel on the same machine
    asks = 'import bert_jax\nprint(bert_jax.__file__)'
    notebook = nbformat.v4.new_notebook(cells=[new(source), new(asks)])
    here = {'metadata': {'path': str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name='python3', resources=here).execute()
    code = tmp_path / 'bert_jax_code'
    assert text_of(notebook.cells[1]).strip() == str(code / 'bert_jax' / '__init__.py')
    assert (code / 'README.md').exists() == first
    (code / 'README.md').unlink(missing_ok=True)  # it would be there again, were it fetched again


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
    'MODEL': '',
    'FOLDER': 'fake://mine/out',
    'FIELDS': dict(x.split('=') for x in fields.split()),
  }
  parameters['FIELDS'] |= {f'table.{kind}': True} if kind != 'one label' else {}
  notebook = execute('finetune', parameters, 'run.curve()')
  assert len(pictures(cell_of(notebook, 'run.curve'))) == 1
  log = shows_a_run(cell_of(notebook, 'bert_jax.finetune'), 60)
  assert log.count('12 examples held out of training (table.eval_share)') == 1
  assert '<th>nachricht</th>' in html_of(cell_of(notebook, 'tables.records'))
  entropies = text_of(cell_of(notebook, 'entropy(shares)'))
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
    'one label': 'classification_accuracy',
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
    'FOLDER': 'fake://mine/out',
    'PRETRAIN': [*small, '--config.corpus.eval_share=0.2'],
    'FINETUNE': [f'--config.{x}' for x in fields.split()],
  }
  notebook = execute('quickstart', parameters)
  shows_a_run(cell_of(notebook, 'stage=pretrain'), 20)
  assert len(pictures(cell_of(notebook, 'imshow'))) == 1
  assert len(pictures(cell_of(notebook, 'stage=finetune'))) == 2  # a curve of each
  report = html_of(cell_of(notebook, 'report.shown'))
  assert report.count('<svg') and re.search('=pretrain.* differs most from .*=none', report)


@pytest.mark.slow
def test_ablation(corpus_file, tmp_path):
  parameters = {'ABLATION': 'norm_placement,runlocal', 'SEEDS': 2, 'FOLDER': str(tmp_path / 'out')}
  parameters['OVERRIDES'] = small_overrides(corpus_file)
  notebook = execute('ablation', parameters)
  assert '4 runs; time left' in text_of(cell_of(notebook, '--dry-run'))
  assert ' ± ' not in text_of(cell_of(notebook, '/dev/null'))
  report = html_of(cell_of(notebook, 'report.shown'))
  assert 'norm_placement=pre</td>' in report and ' ± ' in report and report.count('<svg') >= 2
  assert (tmp_path / 'out' / 'report' / 'report.html').is_file()


# ---- The module ---------------------------------------------------------------------------------


def write_run(folder, lines):
  folder.mkdir()
  (folder / 'metrics.jsonl').write_text(''.join(f'{x}\n' for x in lines))
  (folder / 'summary.json').write_text(json.dumps({'metric': 'f1'}))
  facts = {'data': {'eval': {'baselines': {'f1': [0.3, 'prior']}}}}
  facts['data']['train'] = {'baselines': {'loss': [70.5, 'unigram']}}
  (folder / 'run.json').write_text(json.dumps(facts))


def test_a_curve_is_drawn_from_a_workdir(tmp_path, monkeypatch):
  from matplotlib.axes import Axes

  losses = [{'step': i, 'split': 'train', 'loss': 99.0 - i} for i in (10, 20, 30, 33)]
  lines = [json.dumps(line) for line in losses]  # the last is of three steps, no point of the curve
  evals = (20, 'eval', 0.5), (33, 'eval', None), (33, 'whole', 0.4)
  lines += [json.dumps({'step': n, 'split': kind, 'f1': x}) for n, kind, x in evals]
  write_run(tmp_path / 'run', [*lines, '{"step": 33, "spl'])
  facts = json.loads((tmp_path / 'run' / 'run.json').read_text())
  facts['data']['eval']['part'] = {'f1': [0.25, 'prior']}  # of the rows of the curve
  (tmp_path / 'run' / 'run.json').write_text(json.dumps(facts))
  drawn, plot, levels, titles = [], Axes.plot, [], []

  def noted(axis, x, y, **look):
    drawn.append((look['label'], list(x), list(y)))
    return plot(axis, x, y, **look)

  monkeypatch.setattr(Axes, 'plot', noted)
  monkeypatch.setattr(Axes, 'axhline', lambda axis, y, **look: levels.append((y, look['label'])))
  monkeypatch.setattr(Axes, 'set_title', lambda axis, text, **_: titles.append(text))
  assert base64.b64decode(notebooks.drawn(tmp_path / 'run')).startswith(PNG)
  # The metric that it is judged by has no values in training, so the loss stands beside it.
  train = 'train, means of 10 steps', [10, 20, 30], [89.0, 79.0, 69.0]
  # The evaluation of all rows is a marker, which no line joins.
  assert drawn == [
    train,
    ('eval, a part of the rows', [20], [0.5]),
    ('eval, all rows', [33], [0.4]),
  ]
  # The title compares with the baseline of the rows that it is about.
  assert levels == [(0.25, 'prior of a part of eval, 0.25')]
  assert titles[0] == 'train: loss 69, 1.50 below unigram (70.5)'
  assert titles[1:] == ['eval, all rows: f1 0.4, 0.10 above prior (0.3)']  # that of all rows
  known = {kind: {'mlm': Level(6.1, 'unigram')} for kind in ('eval', 'whole')}
  said = lambda **last: notebooks.headline('mlm', last, known)
  # The digits are those of the line below the bar.
  assert said(whole=5.038, train=4.0) == 'eval, all rows: mlm 5.04, 1.06 below unigram (6.1)'
  assert said(train=7.0, eval=6.102) == 'eval: mlm 6.1, at unigram (6.1)' and said() == 'mlm'
  assert said(train=7.0) == 'train: mlm 7'
  write_run(tmp_path / 'begun', lines[:1])
  write_run(tmp_path / 'short', [json.dumps({'step': 6, 'split': x, 'f1': 0.4}) for x in LOOKS])
  assert {notebooks.drawn(tmp_path / x) for x in ('begun', 'none', 'short')} == {''}
  write_run(tmp_path / 'once', lines[:3] + lines[-1:])  # f1 is known at one step alone
  del titles[:]
  assert notebooks.drawn(tmp_path / 'once') and titles == [
    'train: loss 69, 1.50 below unigram (70.5)'
  ]


def test_a_command_that_fails_ends_its_cell(capfd):
  notebooks.run('printf "%s\\n" "one two" three')
  assert capfd.readouterr().out == 'one two\nthree\n'
  with pytest.raises(InputError, match='ended with status 2, see its last line'):
    notebooks.run('sh -c "echo done; echo error: why >&2; exit 2"')
  assert capfd.readouterr().out == 'done\nerror: why\n'
  notebooks.run(r"printf 'a\344b\n'")  # is no UTF-8
  assert capfd.readouterr().out == 'a\ufffdb\n'
  with pytest.raises(
    InputError, match='ended with status 3, see its last line; run this cell'
  ):  # though it stops writing here before
    notebooks.run('exec > /dev/null 2>&1; sleep 0.3; exit 3')


def test_an_interruption_of_a_cell_is_the_commands(capfd, monkeypatch):
  shown = []

  def interrupted(*lines, **how):
    shown.extend(lines)
    if shown == ['begun\n']:
      raise KeyboardInterrupt

  monkeypatch.setattr(notebooks, 'print', interrupted, raising=False)
  with pytest.raises(Stopped, match='see its last line; the same cell goes on'):
    notebooks.run("trap 'echo saved; exit 130' INT; echo begun; sleep 30 & wait")
  assert shown == ['begun\n', 'saved\n']


def test_a_command_ends_with_its_kernel():
  """Which holds a pipe that closes when it is killed; the command reads nothing of it."""
  kwargs = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True}
  command = "trap 'echo saved; exit 0' TERM; echo begun; cat; sleep 30 & wait"
  with subprocess.Popen(
    notebooks.ENDS_WITH + command, shell=True, start_new_session=True, **kwargs
  ) as process:
    assert process.stdout.readline() == 'begun\n'
    process.stdin.close()
    assert process.stdout.read() == 'saved\n' and process.wait() == 0
    with pytest.raises(ProcessLookupError):
      for _ in range(100):
        os.killpg(process.pid, 0)
        time.sleep(0.05)


def test_a_run_in_a_notebook_shows_a_bar_and_its_curve(pretrained, corpus_file, monkeypatch):
  """Each text and picture replaces the one before; a run that has ended shows its curve again."""
  outputs = []

  def display(data, raw, display_id):
    shown = [data]
    outputs.append(shown)
    return types.SimpleNamespace(update=lambda new, raw: shown.append(new))

  monkeypatch.setattr('IPython.display.display', display)
  for module in (progress, train):
    monkeypatch.setattr(module, 'in_notebook', lambda: True)
  bar = progress.opened(20, 5, pretrained[0])
  for step in range(6, 21):
    bar.update(f'loss {step}' if step % 5 == 0 else '')
    if step % 10 == 0:
      bar.busy('evaluating all 35 rows')  # at step 20 the bar is full, and the run goes on
      assert outputs[0][-1]['text/plain'].endswith('\nevaluating all 35 rows')
      bar.line(f'step {step}  mlm 4')
  drawn = len(outputs[1])
  bar.close()
  (*_, text), (*_, curve) = outputs
  lines = text['text/plain'].splitlines()
  assert lines[0].startswith('100 %') and 'step 20 of 20' in lines[0]
  assert lines[1:] == ['train loss 20', 'step 20  mlm 4'] and bar.is_bar is False
  assert base64.b64decode(curve['image/png']).startswith(PNG) and len(outputs[1]) == drawn + 1
  train.train(small_pretrain(corpus_file), pretrained[0])
  assert len(outputs) == 3 and outputs[2][-1] == curve


def test_a_line_of_metrics_breaks_between_two_of_them():
  metrics = [f'metric_{i} {i / 7:.4f} ({i / 9:.2f} below unigram)' for i in range(9)]
  text = '  '.join(metrics)
  lines = progress.folded(text).splitlines()
  assert len(lines) > 2 and max(map(len, lines)) <= progress.WIDTH
  assert [x for line in lines for x in line.strip().split('  ')] == metrics
  assert progress.folded('step 20/20  eval  mlm 4') == 'step 20/20  eval  mlm 4'


@pytest.mark.parametrize('cost, every', [(0.0, 2.0), (0.5, 10.5)])
def test_a_curve_is_drawn_every_two_seconds_and_in_a_twentieth_of_the_time(
  cost, every, monkeypatch
):
  now, drawn = [50.0], []

  def draw(workdir):
    drawn.append(now[0])
    now[0] += cost

  monkeypatch.setattr(progress.notebooks, 'drawn', draw)
  monkeypatch.setattr(progress, 'time', types.SimpleNamespace(monotonic=lambda: now[0]))
  monkeypatch.setattr(progress, 'Output', io.StringIO)
  bar = progress.Live(99, 0, Path('W'))
  for step in range(99):
    bar.update(f'loss {step}')
    now[0] += 0.25
  assert len(drawn) > 2 and set(np.diff(drawn)) == {every}
  bar.bar.close()


def test_a_mistake_is_one_sentence_and_log_lines_fold(tmp_path):
  sources = """
from bert_jax import cells, command_line, errors
command_line.show_log()
errors.log.info('a < b')
---
for i in range(7):
  errors.log.info('line %d', i)
errors.log.warning('careful')
cells.Output().write('a bar')
errors.log.info('after it')
---
errors.log.info('of the first run')
print('second')
command_line.show_log()
errors.log.info('of it')
---
raise errors.InputError('x is wrong; write y.')
---
raise errors.Paused('saved at step 3')
---
with cells.stoppable():
  raise KeyboardInterrupt"""
  cells = [nbformat.v4.new_code_cell(x.strip()) for x in sources.split('---')]
  notebook = nbformat.v4.new_notebook(cells=cells)
  how = {'resources': {'metadata': {'path': str(ROOT)}}, 'allow_errors': True}
  NotebookClient(notebook, timeout=60, kernel_name='python3', **how).execute()
  few, many, two, mistake, pause, interruption = cells
  assert re.sub('<.*?>', '', html_of(few)) == 'a &lt; b' and '<details>' not in html_of(few)
  lines, bar, after = many.outputs
  folded, rest = lines.data['text/html'].split('</details>')
  assert folded.startswith('<details><summary>7 lines, the last: <code>line 6</code>')
  assert 'line 0\nline 1' in folded and re.sub('<.*?>', '', rest) == 'careful'
  assert (bar.data['text/plain'], after.data['text/plain']) == ('a bar', 'after it')
  first, title, second = two.outputs  # a title stands above the lines of its run
  assert re.sub('<.*?>', '', first.data['text/html']) == 'of the first run'
  assert title.text == 'second\n' and second.data['text/plain'] == 'of it'
  said = [x.traceback for cell in (mistake, pause, interruption) for x in cell.outputs]
  assert said[:2] == [['InputError: x is wrong; write y.'], ['Paused: saved at step 3']]
  ((sentence,),) = said[2:]
  assert sentence.startswith('Stopped: at once; the same cell goes on')


def test_the_curve_of_a_regression_is_of_the_error_in_its_unit():
  point = lambda **values: Point(step=1, kind='train', values=values)
  training, mean = [point(loss=0.7, squared_error=3.1, absolute=1.2)], Level(4.0, 'mean')
  of = lambda *given: notebooks.curves_of(training, *given)
  assert of('pearson', {'squared_error': mean, 'absolute': mean}) == ['squared_error', 'pearson']
  assert of('pearson', {'accuracy': Level(0.4, 'majority')}) == ['loss', 'pearson']
  assert of('squared_error', {'squared_error': mean}) == ['squared_error']


def test_folders_outlive_the_machine(monkeypatch):
  assert notebooks.folder('~/runs') == Path.home() / 'runs'
  with pytest.raises(InputError, match='Colab alone can mount'):
    notebooks.folder('drive:x')
  with pytest.raises(InputError, match='FOLDER is empty; name a folder'):
    notebooks.folder('')
  for misspelt in ('dirve:a/b', 'gs:mine/a'):  # would be lost with the machine
    with pytest.raises(InputError, match='is not known; drive:NAME is on Google Drive'):
      notebooks.folder(misspelt)
  assert notebooks.folder('./a:b') == Path('a:b')
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
  assert look() == 'cpu' and 'no TPU and no GPU' in capsys.readouterr().out
  monkeypatch.setenv('JAX_PLATFORMS', '')
  found = subprocess.CompletedProcess([], 0, 'cpu 1 cpu\n', '')
  monkeypatch.setattr(subprocess, 'run', lambda *_, **__: found)
  assert look() == 'cpu' and capsys.readouterr().out
  assert os.environ['JAX_PLATFORMS'] == 'cpu'  # no process looks again for what is not there
  found = subprocess.CompletedProcess([], 0, 'a warning\ntpu 4 TPU v5 lite\n', '')
  assert look() == 'tpu'
  assert capsys.readouterr().out == f'4 x TPU v5 lite, {os.cpu_count()} cores\n'
  busy = subprocess.CompletedProcess([], 1, '', 'The TPU is already in use\n')
  monkeypatch.setattr(subprocess, 'run', lambda *_, **__: busy)
  with pytest.raises(InputError, match='restart the runtime.*already in use'):
    look()


def test_a_state_and_a_model_are_one_line(pretrained):
  import bert_jax

  state, model = repr(pretrained[1]), repr(bert_jax.load(pretrained[0]))
  assert state.startswith('State(step 20, ') and '\n' not in state and len(state) < 60
  assert model.startswith('Model(mlm_nsp, 1 layers x 32, ') and len(model) < 100
  assert model.endswith('step 20)')
