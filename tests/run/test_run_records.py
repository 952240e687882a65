"""What a run leaves beside its weights: trackers, summary.json, what made it."""

import json
import subprocess
import sys
import types

import pytest
from conftest import small_pretrain
from running import lines, without_a_model

from bert_jax.run import trackers
from bert_jax.train import train
from bert_jax.workdir import contents, provenance, records

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


def test_a_run_is_repeated_with_the_same_bits(pretrained, tmp_path):
  """As tools/README.md says."""
  train(contents.read_config(pretrained[0]), tmp_path)
  once, again = records.read(pretrained[0]), records.read(tmp_path)
  assert once.newest['arrays'] == again.newest['arrays']


def test_what_bears_on_the_bits_is_recorded(monkeypatch):
  monkeypatch.setenv('JAX_RANDOM_SEED_OFFSET', '3')
  assert provenance.machine()['environment']['JAX_RANDOM_SEED_OFFSET'] == '3'
