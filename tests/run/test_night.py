"""What goes wrong while nobody looks: stops, clocks, numbers that are not finite, spikes."""

import json
import math
import os
import shutil
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from conftest import fields, small_pretrain
from references import drawn
from running import lines, same_bits, saved

from bert_jax import config as config_lib
from bert_jax import sharding, step
from bert_jax.errors import InputError
from bert_jax.rows.batches import Batches
from bert_jax.run import session, speed, stopping
from bert_jax.run.inputs import read_inputs
from bert_jax.run.tally import Tally
from bert_jax.tools import replay
from bert_jax.train import train
from bert_jax.workdir import contents

pytestmark = pytest.mark.usefixtures('steps_once')

# ---- stops ---------------------------------------------------------------------------------------


def asked_to_save(monkeypatch, minutes, hours, seconds, vote=None):
  """(when a Watch asks for a checkpoint, its last decision, the Watch), asked every 5 seconds."""
  clock = SimpleNamespace(now=0.0)
  monkeypatch.setattr(stopping, 'time', SimpleNamespace(monotonic=lambda: clock.now))
  config = SimpleNamespace(checkpoint=SimpleNamespace(minutes=minutes), max_hours=hours)
  watch = stopping.Watch(config, one_device(), 0.0, lambda: False)
  watch.vote, asked = vote or watch.vote, []
  for clock.now in range(0, seconds, 5):
    if (decision := watch.ask()) == stopping.Decision.SAVE:
      asked.append(clock.now)
      watch.saved()
  return asked, decision, watch


def test_the_clock_asks_for_a_checkpoint_soon_and_then_every_so_many_minutes(monkeypatch):
  asked, decision, watch = asked_to_save(monkeypatch, 5.0, 1.0, 3610)
  assert asked[:3] == [35, 340, 645] and decision == stopping.Decision.TIME_IS_UP and decision.ends
  assert not stopping.Decision.SAVE.ends
  watch.signalled = lambda: True
  assert watch.ask() == stopping.Decision.STOP and watch.ask().ends


def test_a_vote_that_comes_late_does_not_save_twice(monkeypatch):
  """Of several processes: each decision is about the step before."""

  class Late:
    pending = 0

    def cast(self, number):
      before, self.pending = self.pending, number
      return before

  assert asked_to_save(monkeypatch, 1.0, 0.0, 100, Late())[0] == [15, 85]


def test_a_closed_terminal_saves_unless_nohup_has_it_ignored():
  before = signal.getsignal(signal.SIGHUP)
  try:
    for handler in (signal.SIG_DFL, signal.SIG_IGN):
      signal.signal(signal.SIGHUP, handler)
      with stopping.stop_signals() as asked:
        os.kill(os.getpid(), signal.SIGHUP)
        assert asked() == (handler == signal.SIG_DFL)
  finally:
    signal.signal(signal.SIGHUP, before)


# ---- numbers that are not finite -----------------------------------------------------------------


def poisoned(monkeypatch, *places):
  """The batches at these places make the loss NaN: the weights of their pairs are NaN."""
  get = Batches.__getitem__

  def getting(self, step):
    batch = get(self, step)
    if self.shuffled and step in places:
      batch = batch | {'weights': batch['weights'] * math.nan}
    return batch

  monkeypatch.setattr(Batches, '__getitem__', getting)


def one_device():
  return sharding.make_mesh(1, 1, 1, jax.devices()[:1])


@pytest.mark.parametrize('accumulation', [1, 2])
def test_a_step_that_is_not_finite_changes_nothing_but_its_number(accumulation):
  config = toys.config_of(
    'optimizer.skip_nonfinite=3', 'optimizer.freeze=scale', f'optimizer.accumulation={accumulation}'
  )
  program = step.program(config, toys.Taught(), one_device(), config_lib.timeline_of(config, 10))
  state, out = toys.steps_of(program, toys.first_state(program), range(3))
  assert np.isfinite(out['loss']) and set(out['module_norms']) == {'student'}
  before = jax.device_get(state)
  bad = step.constants_of(config, toys.Taught(math.nan), 10)
  state, out = toys.steps_of(program, state, [3], bad)
  assert not np.isfinite(out['loss']) and int(state.step) == 4
  same_bits(before.params, state.params)
  same_bits(before.opt_state, state.opt_state)
  state, out = toys.steps_of(program, state, [4])
  assert np.isfinite(out['loss']) and state.params['student'] != before.params['student']


def test_a_step_that_is_not_finite_leaves_the_carry():
  config = toys.config_of('optimizer.skip_nonfinite=3')
  program = step.program(config, toys.Running(), one_device(), config_lib.timeline_of(config, 10))
  state, _ = toys.steps_of(program, toys.first_state(program), range(3))
  state.params['slope'] = state.params['slope'] * jnp.inf
  before = jax.device_get(state)
  state, out = toys.steps_of(program, state, [3])
  assert not np.isfinite(out['loss'])
  same_bits(before.carry, state.carry)


def test_replay_runs_a_step_alone(corpus_file, tmp_path, monkeypatch):
  """One whose loss is not finite, from a checkpoint, and another, from scratch, with the numbers of
  the run."""
  poisoned(monkeypatch, 13)
  text, workdir = shutil.copy(corpus_file, tmp_path / 'text.txt'), tmp_path / 'run'
  with pytest.raises(InputError, match='replay .*--step 14 runs the step alone'):
    train(small_pretrain(text, 'log.every=1 eval.every=0 checkpoint.every=7'), workdir)
  assert saved(workdir) == [7]  # and not step 14
  facts = replay.replay(workdir, 14)
  dumped = json.loads((workdir / 'nonfinite-14.json').read_text())
  assert facts['step'] == 14 and facts['loss'] == facts['nsp'] == dumped['loss'] == 'nan'
  assert math.isfinite(facts['mlm']) and facts['rows'] == dumped['rows']
  assert facts['first_not_finite'] == ''  # the labels are wrong, and no module
  assert facts['module_norms']['nsp/dense'] == 'nan'
  for at in (2, 7):  # where there is a checkpoint of it, from before that
    facts, line = replay.replay(workdir, at), lines(workdir, 'train')[at - 1]
    for name in ('step', 'loss', 'mlm', 'nsp', 'grad_norm'):
      assert facts[name] == pytest.approx(line[name], rel=1e-5), name
  norms = np.array(list(facts['module_norms'].values()))
  assert np.sqrt((norms**2).sum()) == pytest.approx(line['grad_norm'], rel=1e-5)
  assert len(facts['rows']) == 8 and facts['first_not_finite'] == ''
  text.write_text(text.read_text().replace('river', 'forest'))
  with pytest.raises(InputError, match='the training data is not what it was at'):
    replay.replay(workdir, 14)


def test_among_scanned_layers_it_is_named_with_its_layer(tmp_path):
  """Though no layer of the decoder, which reads the encoder, is finite either."""
  (tmp_path / 'pairs.tsv').write_text('en\tde\nold\talt\nnew\tneu\n' * 4)
  scanned = 'model.scan_layers=true model.remat=full model.num_hidden_layers=3'
  train = f'data.train={tmp_path}/pairs.tsv batch_size=2 data.seq_length=16'
  sizes = 'model.num_decoder_layers=2 model.vocab_size=41 model.hidden_size=16'
  sizes += ' model.intermediate_size=24 model.num_attention_heads=2'
  spec = 'configs/translate.py:pair=en-de,size=small'
  inputs = read_inputs(toys.load(spec, train, sizes, scanned), tmp_path / 'W')
  params = drawn(inputs.objective.init)
  params['encoder']['layers']['output']['kernel'][2] = 3e38
  state = step.State(jnp.int32(0), jax.device_put(params), {}, {})
  program = step.program(inputs.config, inputs.objective, inputs.mesh, inputs.timeline)
  found = replay.first_not_finite(
    inputs.objective, state, inputs.batches[0], program.constants, inputs.timeline
  )
  assert found == 'Encoder/layers/output of layer 2'


def test_rows_of_a_batch_are_named_as_they_are_read(pretrained):
  batches = read_inputs(contents.read_config(pretrained[0]), pretrained[0]).batches
  for number in (0, 40):  # in the first pass and a later one
    rows = batches.row_numbers(number)
    ids = np.asarray(batches[number]['input_ids'])
    for row, there in zip(rows, ids, strict=True):
      np.testing.assert_array_equal(batches.source[row]['input_ids'], there)


# ---- spikes --------------------------------------------------------------------------------------


def test_metrics_are_counted_once_the_next_step_runs_and_spikes_by_the_losses_before():
  """A loss of just zscore deviations above the mean is none; where fields change, the losses before
  are forgotten."""
  config = config_lib.load(
    'configs/pretrain.py:runlocal', fields('spikes.window=2 spikes.zscore=2.0')
  )
  inputs = SimpleNamespace(config=config, timeline=SimpleNamespace(jumps=lambda: {0, 2}))
  run, settled = Tally(inputs), []
  for k, loss in enumerate((2.0, 2.0, 9.0, 11.0, 12.0, 13.0, 7.0), 1):
    run.take(k, {'loss': loss, 'grad_norm': 1.0, 'seen': {'seen_tokens': 10.0**k}})
    run.add_taken(k == 3)
    settled.append((sorted(run.pending), run.data_counts.get('seen_tokens', 0)))
  counted = [0, 10, 1110, 1110, 11110, 111110, 1111110]
  assert settled == [([] if k == 3 else [k], counted[k - 1]) for k in range(1, 8)]
  assert run.events == {'loss_spikes': 1} and run.losses == [12, 13]
  assert (run.window['loss'].total, run.window['loss'].weight) == (49, 6)
  meta = {'step': 6, 'tally': run.to_meta()}
  again = Tally.from_meta(json.loads(json.dumps(meta)), inputs)
  assert again.to_meta() == run.to_meta()
  assert (again.step, again.data_counts) == (6, run.data_counts)


# ---- speed ---------------------------------------------------------------------------------------


def test_the_speed_counts_the_rows_that_a_step_has(monkeypatch):
  """Of two steps with a half and a quarter of their rows, three quarters of a full batch."""
  monkeypatch.setattr(speed, 'peak_flops', lambda: 1e9)
  timeline = SimpleNamespace(rows_at=lambda step: (4, 2)[step])
  inputs = SimpleNamespace(timeline=timeline, config=SimpleNamespace(batch_size=8))
  clock, ahead = speed.Clock(1e6), SimpleNamespace(take=lambda step: ({}, 0.25))
  at = SimpleNamespace(run=SimpleNamespace(inputs=inputs, clock=clock), ahead=ahead)
  for number in (0, 1):
    session.Session.batch(at, number)
  assert (clock.batches, clock.steps, clock.waited) == (0.75, 2, 0.5)


# ---- a mistake -----------------------------------------------------------------------------------


def test_a_size_that_is_given_is_not_replaced_by_init_from(corpus_file, pretrained, tmp_path):
  given = [f'--config.init_from={pretrained[0]}', '--config.model.num_hidden_layers=3']
  config = small_pretrain(corpus_file, *given)
  names = config_lib.names_of(given)
  assert names == ('init_from', 'model.num_hidden_layers')
  with pytest.raises(InputError, match='model.num_hidden_layers=3'):
    train(config, tmp_path / 'run', names)
