"""The loop alone, on steps of plain NumPy and checkpoints in memory: a run of 12 steps is stopped
wherever it can be, whatever is due there, and loses nothing; what it writes, evaluates, saves."""

import copy
import gc
import json
import math
import os
import signal
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import fields
from running import lines

from bert_jax import errors, train
from bert_jax.command_line import command_line
from bert_jax.config import load, timeline_of
from bert_jax.errors import InputError
from bert_jax.metrics import Mean
from bert_jax.rows.source import Source
from bert_jax.run import evaluation, speed, stopping
from bert_jax.run.inputs import Inputs
from bert_jax.run.tally import Tally
from bert_jax.step import State

STEPS, SPIKES_AT = 12, (5, 9)
SPIKES = 'spikes.window=2 spikes.zscore=1e4'
EACH = 'log.every=1 checkpoint.every=1 eval.every=1'
IN_TURN = 'log.every=3 checkpoint.every=5 eval.every=4'
SCHEDULES = {
  'in turn': IN_TURN,
  'only at the end': 'log.every=50 checkpoint.every=0 eval.every=0',
  'spikes': f'log.every=2 checkpoint.every=0 eval.every=4 {SPIKES}',
}


class Rows(Source):
  def __len__(self):
    return 37


class Batches:
  """Batch n is the number n."""

  source = Rows()

  def __len__(self):
    return 9

  def part(self, count):
    return [*range(count or 9)]

  def __getitem__(self, step):
    return step

  def row_numbers(self, step):
    return [step]


class Checkpoints:
  """Checkpoints of a run, in memory. kept: {step: (State, metadata)}, as on a disk."""

  def __init__(self, kept):
    self.kept, self.best = kept, {'step': 0, 'metrics': {}}
    self.newest = kept[max(kept)][1] if kept else {}

  def save(self, state, metrics, counts):
    step = int(state.step)
    if step in self.kept:
      self.kept[step][1]['metrics'] = dict(metrics) or self.kept[step][1]['metrics']
      return
    meta = {'step': step, 'metrics': dict(metrics), 'tally': counts}
    self.kept[step] = state, json.loads(json.dumps(meta))
    self.newest = self.kept[step][1]

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


def one_pass(step, params, carry, batches, constants, count, ends, **rest):
  for _ in range(2):
    if ends():
      raise evaluation.Interrupted
  return {'mlm': float(params), 'count': count}, []


@pytest.fixture(autouse=True)
def alone(monkeypatch):
  monkeypatch.setattr(evaluation, 'one_pass', one_pass)
  monkeypatch.setattr(speed, 'peak_flops', lambda: 1e9)
  monkeypatch.setattr('os.fsync', lambda file: None)


def configured(*settings):
  common = f'steps={STEPS} epochs=0 batch_size=8 log.tensorboard=False'
  return load('configs/pretrain.py:runlocal', fields(common, *settings))


def trains(config, workdir, kept, signalled=lambda: False, step=train_step):
  """(parameters, metrics of the last evaluation) of a run from the newest of the checkpoints."""
  workdir.mkdir(exist_ok=True)
  (workdir / 'config.json').write_text('{}')
  first = State(*jax.device_put((np.int32(0), np.float32(0.5))), {}, {})
  state, meta = copy.deepcopy(kept[max(kept)]) if kept else (first, {})
  mesh, checkpoints = jax.make_mesh((1,), ('data',)), Checkpoints(kept)
  inputs = SimpleNamespace(config=config, steps=STEPS, workdir=workdir, in_workdir=bool(kept))
  inputs.log_every, inputs.passes = config.log.every, lambda rows: Inputs.passes(inputs, rows)
  inputs.is_due = lambda step, every: Inputs.is_due(inputs, step, every)
  inputs.timeline, inputs.batches = timeline_of(config, STEPS), Batches()
  inputs.eval_batches = Batches()
  inputs.objective = SimpleNamespace(derived_metrics=lambda sums: {}, loss_weights={})
  run = SimpleNamespace(inputs=inputs, checkpoints=checkpoints, results=meta.get('metrics', {}))
  run.train_step, run.eval_step, run.constants, run.empty_carry = step, step, None, {}
  run.rates, run.clock = np.float32(1 / np.arange(1, 1 + STEPS)), speed.Clock(1.0)
  run.watch = stopping.Watch(config, mesh, time.monotonic(), signalled)
  run.tally = Tally.from_meta(meta, inputs)
  state, results = train.loop(run, state)
  return float(state.params), results


def written(workdir, kept):
  """What a run leaves but for what a clock measures: its lines by step, its last checkpoint."""
  measured = {*speed.MEASURED, 'steps'}
  logged = [{k: v for k, v in line.items() if k not in measured} for line in lines(workdir)]
  assert json.loads((workdir / 'summary.json').read_text())['state'] == 'finished'
  return sorted(logged, key=lambda line: (line['step'], line['split'])), kept[STEPS][1]


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_a_stop_at_any_moment_loses_nothing(schedule, tmp_path):
  config, asked, kept = configured(SCHEDULES[schedule]), [], {}
  whole = trains(config, tmp_path / 'whole', kept, lambda: asked.append(1))
  expected = written(tmp_path / 'whole', kept)
  assert expected[1]['tally']['events'].get('loss_spikes', 0) == 2 * bool(config.spikes.window)
  # After each step and before each batch of evaluations, every second one where there are many.
  for moment in range(1, len(asked) + 1, 1 + (len(asked) > 30)):
    workdir, asks, kept = tmp_path / str(moment), [], {}
    with pytest.raises(KeyboardInterrupt, match='stopped by a signal at step'):
      # It is asked again and again, as once a signal has come.
      trains(config, workdir, kept, lambda: asks.append(1) or len(asks) >= moment)  # noqa: B023
    assert json.loads((workdir / 'summary.json').read_text())['state'] == 'stopped'
    assert trains(config, workdir, kept) == whole, moment
    assert written(workdir, kept) == expected, moment


def test_a_run_whose_hours_are_over_saves_and_may_be_tried_again(tmp_path):
  kept = {}
  with pytest.raises(errors.Paused) as end:
    trains(configured(IN_TURN, 'max_hours=1e-9'), tmp_path / 'run', kept)
  assert errors.farewell(end.value)[1] == 3 and [*kept] == [1]


def test_a_line_is_the_mean_since_the_line_before(tmp_path):
  """And each evaluation looks at eval.batches, the last one at everything, too."""
  trains(configured(EACH), tmp_path / 'each', {})
  trains(configured(IN_TURN, 'eval.batches=7'), tmp_path / 'run', {})
  each = {line['step']: line for line in lines(tmp_path / 'each', 'train')}
  logged = lines(tmp_path / 'run', 'train')
  assert [line['step'] for line in logged] == [3, 6, 9, 12]
  for line in logged:
    for name in ('loss', 'fill'):
      values = [each[line['step'] - k][name] for k in range(3)]
      assert line[name] == pytest.approx(np.mean(values), rel=1e-9)
  counts = {
    kind: {line['step']: line['count'] for line in lines(tmp_path / 'run', kind)}
    for kind in ('eval', 'whole')
  }
  assert counts == {'eval': {4: 7, 8: 7, 12: 7}, 'whole': {12: 0}}


@pytest.mark.parametrize('batches, whole', [(8, 1), (9, 0), (10, 0), (0, 0)])
def test_all_rows_are_evaluated_beside_a_part_and_not_twice(batches, whole, tmp_path):
  trains(configured(f'eval.batches={batches} eval.every=6'), tmp_path, {})
  assert len(lines(tmp_path, 'eval')) == 2 and len(lines(tmp_path, 'whole')) == whole


def test_a_run_saves_by_the_clock(tmp_path):
  kept = {}
  trains(configured('checkpoint.every=0 checkpoint.minutes=1e-9 eval.every=0'), tmp_path, kept)
  assert {1, 3, 5, 12} <= set(kept)


def test_skipped_steps_are_counted_and_too_many_in_a_row_end_the_run(tmp_path):
  """Two of the three in a row come before a stop, the third after it."""

  def step(state, batch, constants):
    state, metrics = train_step(state, batch, constants)
    wrong = {'loss': np.float64(math.nan), 'module_norms': {'mlm': np.float64(math.nan)}}
    return state, metrics | (wrong if batch in (2, 7, 8, 9) else {})

  config = configured('log.every=2 eval.every=0 optimizer.skip_nonfinite=3')
  kept, asked = {}, []
  with pytest.raises(KeyboardInterrupt):
    trains(config, tmp_path, kept, lambda: asked.append(1) or len(asked) >= 9, step)
  logged, tallied = lines(tmp_path, 'train'), kept[9][1]['tally']
  assert [line['skipped_steps'] for line in logged] == [0, 1, 1, 2]
  assert (tallied['events'], tallied['in_a_row']) == ({'skipped_steps': 3}, 2)
  assert all(math.isfinite(x) for line in logged for x in line.values() if isinstance(x, float))
  # The schedule, here 1 / step, goes by the steps that counted.
  assert [line['learning_rate'] for line in logged] == pytest.approx([1 / n for n in (2, 3, 5, 6)])
  with pytest.raises(InputError, match='the loss is nan at step 10'):
    trains(config, tmp_path, kept, step=step)


def test_a_gradient_that_is_not_finite_ends_the_run_and_its_step_is_not_saved(tmp_path):
  def steep(state, batch, constants):
    state, metrics = train_step(state, batch, constants)
    return state, metrics | {'grad_norm': np.float64(np.inf if batch == 6 else 1)}

  kept = {}
  with pytest.raises(InputError, match='the grad_norm is inf at step 7'):
    trains(configured(EACH), tmp_path, kept, step=steep)
  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert summary['state'] == 'failed' and max(kept) == 6


def test_a_step_to_which_something_crosses_unasked_ends_the_run(tmp_path):
  """Such as an array that each step makes of a number."""

  def crossing(*arrays):
    return jnp.zeros(3), train_step(*arrays)[1]

  with pytest.raises(RuntimeError, match='Disallowed host-to-device transfer'):
    trains(configured(), tmp_path, {}, step=crossing)


def test_the_best_is_saved_when_no_checkpoint_is_due(tmp_path, monkeypatch):
  monkeypatch.setattr(Checkpoints, 'is_best', lambda self, metrics, step: step == 8)
  kept = {}
  trains(configured('checkpoint.every=0 eval.every=4 eval.batches=7'), tmp_path, kept)
  assert set(kept) == {8, STEPS} and kept[8][1]['metrics']['count'] == 7


def test_a_signal_while_garbage_is_collected_is_not_lost():
  """What such a callback raises is dropped, as in JAX's while a vocabulary is trained."""
  sent = []

  def callback(phase, info):
    if not sent:
      sent.append(phase)
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(0.01)  # where Python hears it

  gc.callbacks.append(callback)
  try:
    with pytest.raises(SystemExit) as end, command_line():
      gc.collect()
      assert sent
      time.sleep(30)
  finally:
    gc.callbacks.remove(callback)
  assert end.value.code == 130
