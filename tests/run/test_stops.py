"""A run of 12 steps is stopped at each of them, whatever is due there, and loses nothing."""

import dataclasses
import json
import time

import jax
import numpy as np
import pytest
import toys
from test_night import stop_when
from test_train import lines, same_bits

from bert_jax import sharding, step, train
from bert_jax.rows.batches import batches_of
from bert_jax.run import initialization, setup, speed, tally
from bert_jax.tasks import TASKS
from bert_jax.workdir import checkpoint, contents, provenance

STEPS = 12
SPIKES = 'spikes.window=3', 'spikes.zscore=50', 'spikes.rollback=3'
SCHEDULES = {
  'each step': ('log.every=1', 'checkpoint.every=1', 'eval.every=1'),
  'in turn': ('log.every=3', 'checkpoint.every=5', 'eval.every=4'),
  'only at the end': ('log.every=50', 'checkpoint.every=0', 'eval.every=0'),
  'with spikes': ('log.every=2', 'checkpoint.every=0', 'eval.every=4', *SPIKES),
}


class Rows:
  """Rows of four equal ids."""

  baselines = {}

  def __init__(self, count, first):
    self.count, self.first = count, first
    self.fingerprint = f'{count} from {first}'

  def __len__(self):
    return self.count

  def __getitem__(self, i):
    ids = np.full(4, self.first + i * 7 % 31, np.int32)
    return {name: ids if name == 'input_ids' else np.ones(4, np.int32) for name in toys_row()}


def toys_row():
  return toys.Running().spec(8)


class Words:
  vocab_size, fingerprint = 1000, 'none'

  def save(self, workdir):
    (workdir / 'vocab.txt').write_text('')


@pytest.fixture(scope='module')
def compiled():
  """{schedule: a Program that is lowered and compiled once}"""
  return {}


@pytest.fixture(params=SCHEDULES)
def trains(request, compiled, monkeypatch):
  """A function that trains in a workdir -> (State, metrics of its last evaluation)."""
  fields = 'log.tensorboard=False', 'eval.batches=2', 'checkpoint.keep_latest=20'
  config = toys.config_of(f'steps={STEPS}', *fields, *SCHEDULES[request.param])
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  objective, words = toys.Running(), Words()
  sources = {'train': Rows(100, 3), 'eval': Rows(37, 5)}
  common = config, words, objective, mesh
  monkeypatch.setattr(contents, 'write_facts', lambda *_: None)
  monkeypatch.setattr(speed, 'peak_flops', lambda: 1e9)
  monkeypatch.setattr(provenance, 'code_changes', lambda: '')
  task = dataclasses.replace(TASKS['mlm_nsp'], remarks=lambda *_: [])
  monkeypatch.setitem(TASKS, 'mlm_nsp', task)
  if request.param == 'with spikes':
    spiking(monkeypatch, 5, 9)
  program = compiled.setdefault(request.param, Once(*common[::2], mesh))
  monkeypatch.setattr(step, 'program', lambda *_: program)

  def training(workdir):
    beginning = initialization.beginning_of(config, workdir)
    batches = batches_of(sources['train'], *common, seed=config.seed)
    every = batches, batches_of(sources['eval'], *common), STEPS
    inputs = setup.Inputs(config, workdir, beginning, mesh, words, objective, sources, *every)
    return train.train_on(inputs, time.monotonic())

  return training


class Once:
  """A step.Program whose steps are compiled once."""

  def __init__(self, config, objective, mesh):
    self.program = step.program(config, objective, mesh, STEPS)
    self.made = {}

  def __getattr__(self, name):
    return getattr(self.program, name)

  def _once(self, lower):
    if lower not in self.made:
      self.made[lower] = Compiled(getattr(self.program, lower)().compile())
    return self.made[lower]

  def lower(self):
    return self._once('lower')

  def lower_evaluation(self):
    return self._once('lower_evaluation')


class Compiled:
  """What is compiled already, as what is to be compiled."""

  def __init__(self, executable):
    self.executable = executable

  def compile(self):
    return self.executable


def spiking(monkeypatch, *places):
  """The batches at these places have a loss that is a thousand times as high."""
  add = tally.Tally._add

  def adding(self, number, out):
    if number - 1 + self.offset in places:
      out = out | {'loss': out['loss'] * 1000}
    return add(self, number, out)

  monkeypatch.setattr(tally.Tally, '_add', adding)


def written(workdir):
  """What a run leaves, but for what a clock measures: lines, and its last checkpoint."""
  measured = {*speed.MEASURED, 'steps'}
  logged = [
    [{k: v for k, v in line.items() if k not in measured} for line in lines(workdir, split)]
    for split in ('train', 'eval')
  ]
  meta = checkpoint.newest_meta(workdir)
  return logged, {name: meta[name] for name in ('step', 'metrics', 'seen', 'tally', 'arrays')}


def test_a_stop_at_any_step_loses_nothing(trains, tmp_path, monkeypatch):
  whole = trains(tmp_path / 'whole')
  expected = written(tmp_path / 'whole')
  stops = [(at, False) for at in range(1, STEPS + 1)] + [(1, True), (STEPS, True)]
  for at, evaluating in stops:
    workdir = tmp_path / f'{at}-{evaluating}'
    with monkeypatch.context() as patch:
      stop_when(patch, lambda number, inside, at=at, e=evaluating: number >= at and inside == e)
      with pytest.raises(KeyboardInterrupt):  # at the last step it breaks the evaluation off
        trains(workdir)
    state, results = trains(workdir)
    same_bits(state, whole[0])
    assert results == whole[1] and written(workdir) == expected
    assert json.loads((workdir / 'summary.json').read_text())['state'] == 'finished'
