"""The loop alone, on steps of plain NumPy and checkpoints in memory: a run of 12 steps is stopped
wherever it can be, whatever is due there, and loses nothing."""

import copy
import json
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import fields
from running import lines

from bert_jax import train
from bert_jax.config import load, timeline_of
from bert_jax.metrics import Mean
from bert_jax.run import evaluation, speed, spikes, stopping, tally
from bert_jax.step import State

STEPS, SPIKES_AT = 12, (5, 9)
SPIKES = 'spikes.window=2 spikes.zscore=1e4 spikes.rollback=3'
EACH = 'log.every=1 checkpoint.every=1 eval.every=1'
SCHEDULES = {
  'each step': EACH,
  'in turn': 'log.every=3 checkpoint.every=5 eval.every=4',
  'only at the end': 'log.every=50 checkpoint.every=0 eval.every=0',
  'spikes': f'log.every=2 checkpoint.every=0 eval.every=4 {SPIKES}',
  'spikes where all is due': f'{EACH} {SPIKES}',
}


class Batches:
  """Batch n is the number n."""

  skip_damaged, source = False, SimpleNamespace(baselines={})

  def at(self, step, skipped):
    return step + skipped // 8


class Checkpoints:
  """Checkpoints of a run, in memory. kept: {step: (State, metadata)}, as on a disk."""

  def __init__(self, kept):
    self.kept, self.best = kept, {'step': 0}
    self.newest = kept[max(kept)][1] if kept else {}

  def save(self, state, metrics, seen, counts):
    step = int(state.step)
    if step in self.kept:
      self.kept[step][1]['metrics'] = dict(metrics) or self.kept[step][1]['metrics']
      return
    meta = {'step': step, 'metrics': dict(metrics), 'seen': seen, 'tally': counts}
    self.kept[step] = state, json.loads(json.dumps(meta))
    self.newest = self.kept[step][1]

  def back_to(self, step, shapes):
    for later in [n for n in self.kept if n > step]:
      del self.kept[later]
    state, self.newest = self.kept[step]
    return state, copy.deepcopy(self.newest)

  def steps(self):
    return sorted(self.kept)

  def is_best(self, metrics, step):
    return False

  def wait(self):
    pass


def train_step(state, batch, constants):
  params = np.sin(1.1 * np.asarray(state.params) + batch)  # any change of a bit, or of order, stays
  loss = np.float64(1 + abs(params)) * (1e6 if batch in SPIKES_AT else 1)
  metrics = {'loss': loss, 'grad_norm': np.float64(1), 'tokens': Mean(5.0 + batch, 80.0)}
  step = np.int32(jax.device_get(state.step) + 1)
  new = State(*jax.device_put((step, params.astype(np.float32))), {}, {})
  return new, metrics | {'seen': {'seen_tokens': 5.0 + batch}}


def one_pass(step, params, carry, batches, constants, count, shares, ends):
  for _ in range(2):
    if ends():
      raise evaluation.Interrupted
  return {'mlm': float(params)}, []


@pytest.fixture(params=SCHEDULES)
def config(request, monkeypatch):
  monkeypatch.setattr(evaluation, 'one_pass', one_pass)
  monkeypatch.setattr(speed, 'peak_flops', lambda: 1e9)
  monkeypatch.setattr('os.fsync', lambda file: None)
  common = f'steps={STEPS} epochs=0 batch_size=8 log.tensorboard=False'
  return load('configs/pretrain.py:runlocal', fields(common, SCHEDULES[request.param]))


def trains(config, workdir, kept, signalled=lambda: False, step=train_step):
  """(parameters, metrics of the last evaluation) of a run from the newest of the checkpoints."""
  workdir.mkdir(exist_ok=True)
  (workdir / 'config.json').write_text('{}')
  first = State(*jax.device_put((np.int32(0), np.float32(0.5))), {}, {})
  state, meta = copy.deepcopy(kept[max(kept)]) if kept else (first, {})
  mesh, checkpoints = jax.make_mesh((1,), ('data',)), Checkpoints(kept)
  inputs = SimpleNamespace(
    config=config,
    steps=STEPS,
    workdir=workdir,
    in_workdir=bool(kept),
    timeline=timeline_of(config, STEPS),
    batches=Batches(),
    eval_batches=Batches(),
    objective=SimpleNamespace(shares=lambda sums: {}),
  )
  run = SimpleNamespace(
    inputs=inputs,
    train_step=step,
    eval_step=step,
    constants=None,
    empty_carry={},
    rates=np.float32(1 / np.arange(1, 1 + STEPS)),
    checkpoints=checkpoints,
    results=meta.get('metrics', {}),
    clock=speed.Clock(1.0),
    watch=stopping.Watch(config, mesh, time.monotonic(), signalled),
  )
  judge = spikes.Spikes.from_meta(config.spikes, checkpoints, meta)
  run.tally = tally.Tally.from_meta(meta, config.batch_size, inputs=inputs, spikes=judge)
  state, results = train.loop(run, state)
  return float(state.params), results


def written(workdir, kept):
  """What a run leaves but for what a clock measures: its lines by step, its last checkpoint."""
  measured = {*speed.MEASURED, 'steps'}
  logged = [{k: v for k, v in line.items() if k not in measured} for line in lines(workdir)]
  assert json.loads((workdir / 'summary.json').read_text())['state'] == 'finished'
  return sorted(logged, key=lambda line: (line['step'], line['split'])), kept[STEPS][1]


def test_a_stop_at_any_moment_loses_nothing(config, tmp_path):
  asked, kept = [], {}
  whole = trains(config, tmp_path / 'whole', kept, lambda: asked.append(1))
  expected = written(tmp_path / 'whole', kept)
  assert expected[1]['tally']['events'].get('rollbacks', 0) == 2 * bool(config.spikes.rollback)
  for moment in range(1, len(asked) + 1):  # after each step, and before each batch of evaluations
    workdir, asks, kept = tmp_path / str(moment), [], {}
    with pytest.raises(KeyboardInterrupt, match='stopped by a signal at step'):
      # It is asked again and again, as once a signal has come.
      trains(config, workdir, kept, lambda: asks.append(1) or len(asks) >= moment)  # noqa: B023
    assert json.loads((workdir / 'summary.json').read_text())['state'] == 'stopped'
    assert trains(config, workdir, kept) == whole, moment
    assert written(workdir, kept) == expected, moment


def test_a_step_to_which_something_crosses_unasked_ends_the_run(config, tmp_path):
  """Such as an array that each step makes of a number."""

  def crossing(*arrays):
    return jnp.zeros(3), train_step(*arrays)[1]

  with pytest.raises(RuntimeError, match='Disallowed host-to-device transfer'):
    trains(config, tmp_path / 'run', {}, step=crossing)
