"""What a run is at each of its steps: rates, rows of batches and values that change by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from refusal import one_sentence
from toys import load

from bert_jax import config as c
from bert_jax import timeline
from bert_jax.timeline import EVALUATION, GROWTH, RATE

PLAIN = 'configs/pretrain.py:runlocal'
GROWING = 'batch_size=24', 'optimizer.accumulation=6', 'optimizer.batch_warmup=0.37'
STAGES = (
  'masking.policy=token,span@0.3,whole_word@80',
  'corpus.lengths=16,32@40',
  'corpus.rows=full',
)


def line_of(*changes, steps=100):
  """The Timeline of a config."""
  return c.timeline_of(
    load(PLAIN, 'optimizer.warmup=3 loss.nsp_weight=0', *changes, f'steps={steps}')
  )


@pytest.mark.parametrize('final_rate', [0.0, 0.1])
@pytest.mark.parametrize('schedule', timeline.SCHEDULES)
def test_rates_of_all_steps_at_once_are_those_of_each(schedule, final_rate):
  settings = dict(schedule=schedule, warmup=100.0, decay=777.0, final_rate=final_rate)
  rate = timeline.make_schedule(ConfigDict(settings | {'learning_rate': 3.3e-4}), 10007)
  ends = 0, 1, 99, 100, 101, 9229, 9230, 9231, 10006
  steps = np.array(sorted({*ends, *range(0, 10007, 113)}))
  alone = np.array([float(rate(int(step))) for step in steps], np.float32)
  np.testing.assert_array_equal(np.asarray(rate(steps)), alone)


def test_a_decay_begins_where_the_rate_falls_also_if_the_schedule_goes_on_past_the_run():
  line = line_of('optimizer.schedule=wsd', 'optimizer.decay=20', 'optimizer.horizon=1.1')
  rates = line.rates(np.arange(100))
  (begin,) = (change.step for change in line.changes() if change.before)
  assert begin == 90 and rates[89] == rates[90] > rates[91]


def test_rows_are_counted_as_the_steps_read_them():
  """Also of a run whose schedule goes on past its end, and of batches that grow in few steps."""
  for changes, first_full in (
    (GROWING, 37),
    ((*GROWING, 'optimizer.horizon=2.0'), 74),
    ((*GROWING[:2], 'optimizer.batch_warmup=3'), 3),
    ((*GROWING[:2], 'optimizer.batch_warmup=0.001'), 1),
  ):
    line, read = line_of(*changes), 0
    for step in range(100):
      rows = min(24, 4 * (1 + step * 5 // first_full))
      assert (line.rows_at(step), line.rows_before(step)) == (rows, read)
      places = [line.position(step, i) for i in range(24)]
      assert sorted(x for x in places if x is not None) == list(range(read, read + rows))
      by_microbatch = [places[k::6] for k in range(6)]
      assert [x is None for x in sum(by_microbatch, [])] == [i >= rows for i in range(24)]
      read += rows
    assert line.rows_before(100) == read
  plain = line_of('batch_size=24')
  assert plain.rows_before(7) == 168 and plain.position(7, 5) == 173 and not plain.changes()[1:]


def test_values_change_exactly_at_their_steps():
  line = line_of(*STAGES)
  at = jax.jit(lambda step: line.at(step).values)
  places = {0: (0, 0), 29: (0, 0), 30: (1, 0), 40: (1, 1), 80: (2, 1), 99: (2, 1)}
  for step, (policy, length) in places.items():
    moment, numbers = line.at(step), at(jnp.int32(step))
    assert (numbers['masking.policy'], numbers['corpus.lengths']) == (policy, length)
    names = ('token', 'span', 'whole_word')[policy], (16, 32)[length]
    assert (moment.values['masking.policy'], moment.values['corpus.lengths']) == names
  assert EVALUATION.stage('masking.policy') == -1 and not EVALUATION.train
  assert line.jumps() == {30, 40, 80}
  assert [str(x) for x in line.changes()] == [
    'optimizer.learning_rate 0.0 -> 0.001 from step 3 on',
    'masking.policy token -> span from step 30 on',
    'corpus.lengths 16 -> 32 from step 40 on',
    'masking.policy span -> whole_word from step 80 on',
  ]


def test_what_another_length_would_have_done_otherwise():
  share, longer = line_of(*GROWING, *STAGES), line_of(*GROWING, *STAGES, steps=200)
  # 37 steps of growth, or 74: the second size begins at step 8, or 15; a span at step 30, or 60.
  assert not {GROWTH, 'masking.policy'} & {*longer.changed_before(8, share)}
  assert GROWTH in longer.changed_before(9, share)
  assert 'masking.policy' not in longer.changed_before(30, share)
  assert {GROWTH, 'masking.policy', RATE} == {*longer.changed_before(31, share)}
  steps = 'optimizer.batch_warmup=37', 'masking.policy=token,span@30,whole_word@80'
  again = line_of(*GROWING, *STAGES, *steps, steps=200)
  assert again.changed_before(100, share) == [RATE]  # a linear one
  constant = 'optimizer.schedule=constant'
  assert not line_of(constant, steps=200).changed_before(100, line_of(constant))


@pytest.mark.parametrize(
  'changes, sentence',
  [
    ('masking.policy=token,span@100', 'span would begin at step 100, and the run ends with step'),
    ('corpus.lengths=16,32@900', 'corpus.lengths: 32 would begin at step 900'),
    ('corpus.lengths=4', "is not understood at '4'; use whole numbers from 8"),
    ('corpus.lengths=16,64', 'does not begin at step 0 and go up'),
    ('corpus.lengths=16,65@9', 'is longer than a row; use at most 64'),
    ('masking.policy=token,span@.5 steps=0 epochs=2.0', 'a share of the steps, and steps is'),
  ],
)
def test_what_does_not_fit_the_run_is_one_sentence(changes, sentence):
  rows = 'corpus.rows=full loss.nsp_weight=0 data.seq_length=64'
  with one_sentence(sentence):
    load(PLAIN, 'steps=100 optimizer.warmup=3', rows, changes)
