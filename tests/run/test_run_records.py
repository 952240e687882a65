"""What a run leaves beside its weights: trackers, summary.json, what made it; rerun."""

import dataclasses
import json
import shutil
import subprocess
import sys
import types

import pytest
from conftest import small_pretrain
from running import edit, lines, without_a_model

from bert_jax import files
from bert_jax.run import trackers
from bert_jax.tools import rerun
from bert_jax.train import train
from bert_jax.workdir import provenance, records

pytestmark = pytest.mark.usefixtures('steps_once')

SELDOM = 'log.every=10 eval.batches=1'


class FakeRun:
  def __init__(self, settings):
    self.settings, self.logged, self.steps_of, self.finished = settings, [], {}, 0

  def define_metric(self, name, step_metric):
    self.steps_of[name] = step_metric

  def log(self, values):
    self.logged.append(values)

  def finish(self):
    self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
  """A module with the calls of wandb that are used; `runs` are those that were opened."""
  module = types.ModuleType('wandb')
  module.runs, module.Error = [], RuntimeError

  def init(**settings):
    module.runs.append(FakeRun(settings))
    return module.runs[-1]

  module.init = init
  monkeypatch.setitem(sys.modules, 'wandb', module)
  return module


def summary_of(workdir):
  return json.loads((workdir / 'summary.json').read_text())


# ---- Weights & Biases and the summary of one run ------------------------------------


def test_a_run_with_every_record(corpus_file, tmp_path, wandb):
  words = 'corpus.rows=full loss.nsp_weight=0'
  config = small_pretrain(corpus_file, SELDOM, words, 'log.wandb=offline')
  with without_a_model():
    train(config, tmp_path / 'run')
  logged = lines(tmp_path / 'run')

  # Weights & Biases has all that metrics.jsonl has, with the step as its axis.
  (run,) = wandb.runs
  assert run.steps_of == {'*': 'step'} and run.finished == 1
  assert run.settings['id'] == (tmp_path / 'run/wandb/id.txt').read_text().strip()
  name = lambda line, k: k if k == 'step' else f'{line["split"]}/{k}'
  named = [{name(x, k): v for k, v in x.items() if k != 'split'} for x in logged]
  assert run.logged == named and len(named) == 5

  # The summary: how far, how good.
  summary = summary_of(tmp_path / 'run')
  assert (summary['state'], summary['step'], summary['metric']) == ('finished', 20, 'mlm')
  assert [summary['last'][kind] for kind in ('train', 'eval', 'whole')] == logged[-3:]

  # A finished run stays finished, and opens nothing; one that goes on keeps its id.
  with without_a_model():
    train(config, tmp_path / 'run')
  assert summary_of(tmp_path / 'run') == summary and len(wandb.runs) == 1
  trackers.opened(config, tmp_path / 'run', 20)
  assert [run.settings['id'] for run in wandb.runs] == [run.settings['id']] * 2


# ---- what made it --------------------------------------------------------------------------------


def test_the_changes_of_the_code_can_be_applied_to_its_commit(tmp_path, monkeypatch):
  root, copy = tmp_path / 'code', tmp_path / 'copy'
  root.mkdir()

  def git(*words, where=root):
    name = '-c', 'user.name=x', '-c', 'user.email=x@example.com'
    return subprocess.run(('git', *name, *words), cwd=where, check=True, capture_output=True)

  git('init', '-q')
  (root / 'model.py').write_text('x = 1\n')
  git('add', '.')
  git('commit', '-qm', 'first')
  git('clone', '-q', str(root), str(copy), where=tmp_path)
  monkeypatch.setattr(provenance, 'ROOT', root)
  assert provenance.code_changes() == '' and not provenance.commit().endswith('+')
  (root / 'model.py').write_text('x = 2\n')
  (root / 'bert_jax').mkdir()
  (root / 'bert_jax' / 'new.py').write_text('y = "ä"\n')
  (root / 'keys.py').write_text('SECRET = 1\n')
  (root / 'notes.txt').write_text('no code\n')
  patch = provenance.code_changes()
  assert provenance.commit().endswith('+') and 'notes.txt' not in patch
  assert 'SECRET' not in patch
  (tmp_path / 'code.diff').write_text(patch)
  git('apply', str(tmp_path / 'code.diff'), where=copy)
  assert (copy / 'model.py').read_text() == 'x = 2\n'
  assert (copy / 'bert_jax' / 'new.py').read_text() == 'y = "ä"\n'


# ---- rerun ---------------------------------------------------------------------------------------


def rerun_of(capsys, *arguments):
  """(what rerun prints, its exit status)."""
  status = 0
  try:
    rerun.main([str(x) for x in arguments])
  except SystemExit as end:
    status = end.code
  return json.loads(capsys.readouterr().out.splitlines()[-1]), status


def test_a_run_is_repeated_with_the_same_bits(pretrained, tmp_path, capsys):
  out, status = rerun_of(capsys, pretrained[0], '--workdir', tmp_path / 'again')
  assert (out['same'], status, out['not_the_same']) == (True, 0, [])
  assert out['lines'] == out['same_lines'] == len(lines(pretrained[0])) == 6
  assert out['state'] == 'step 20: the same bits' and not out['first_difference']


def test_a_repetition_that_differs_or_ends_earlier_is_not_the_same(pretrained, tmp_path):
  shutil.copytree(pretrained[0], tmp_path / 'again')
  path = tmp_path / 'again' / 'metrics.jsonl'
  kept = [line for line in lines(pretrained[0]) if line['step'] <= 10]
  path.write_text(''.join(json.dumps(line) + '\n' for line in kept))
  once, again = records.read(pretrained[0]), records.read(tmp_path / 'again')
  assert again.faults and not again.points  # the summary has the checksum of more
  (tmp_path / 'again' / 'summary.json').unlink()
  again = records.read(tmp_path / 'again')
  again = dataclasses.replace(again, newest={}, checkpoints=())
  out = rerun.outcome(once, again)
  assert out['lines'] == out['same_lines'] == 3 and not out['same']
  # Numbers and bits that differ are found out.
  last = kept.pop()
  other = [*kept, last | {'mlm': 0.5}]
  path.write_text(''.join(json.dumps(line) + '\n' for line in other))
  out = rerun.outcome(once, records.read(tmp_path / 'again'))
  assert not out['same'] and out['first_difference'].startswith('step 10')
  assert (out['lines'], out['same_lines']) == (3, 2)
  out = rerun.outcome(dataclasses.replace(once, newest=once.newest | {'arrays': {}}), once)
  assert not out['same'] and not out['first_difference']


CHANGED = """diff --git a/{0} b/{0}
new file mode 100644
--- /dev/null
+++ b/{0}
@@ -0,0 +1 @@
+x = 1
"""


def test_what_bears_on_the_bits_is_recorded(monkeypatch):
  monkeypatch.setenv('JAX_RANDOM_SEED_OFFSET', '3')
  assert provenance.machine()['environment']['JAX_RANDOM_SEED_OFFSET'] == '3'


def test_what_is_not_the_same_is_said_before_a_repetition(pretrained, tmp_path, capsys):
  workdir = shutil.copytree(pretrained[0], tmp_path / 'run')

  def change(facts):
    facts['made_by']['packages'].update(jax='0.1')
    facts['made_by'].update(commit='abc', cores=99)
    facts['made_by'].update(environment={'JAX_RANDOM_SEED_OFFSET': '5'})
    facts['seal'] = files.seal(facts)

  edit(workdir / 'run.json', change)
  patch = provenance.code_changes() + CHANGED.format('bert_jax/new.py')
  (workdir / 'code.diff').write_text(patch)
  arguments = '--workdir', tmp_path / 'again', '--dry-run', '--config.seed=3'
  out, status = rerun_of(capsys, workdir, *arguments)
  assert status == 1 and not (tmp_path / 'again').exists()
  said = '\n'.join(out['not_the_same'])
  # The rows are drawn with the seed, too.
  for part in ('jax', 'commit', 'code', 'cores', 'seed', 'data of train', 'OFFSET'):
    assert part in said, part
  assert len(out['not_the_same']) == 7
