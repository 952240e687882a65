"""Runs in which something changes by step, that go back or go on: steps are time, rows are data."""

import json

import pytest
from conftest import fields, small_overrides, small_pretrain
from running import begun, edit, goes_on, without_a_model

from bert_jax import config as c
from bert_jax.errors import InputError
from bert_jax.run import setup, tally
from bert_jax.run.inputs import read_inputs
from bert_jax.run.spikes import Spikes
from bert_jax.timeline import Moment
from bert_jax.tools.sweep import plan
from bert_jax.train import train
from bert_jax.workdir import checkpoint, contents, recorded, records

GUARD = 'spikes.window=4 spikes.zscore=50 spikes.rollback=4 eval.every=0 log.every=1'
GROWING = 'optimizer.accumulation=4 loss.nsp_weight=0 corpus.rows=full optimizer.warmup=2'


def taking(monkeypatch, factor):
  """{(step, times it was taken): share of its positions that hold a token}, of the runs from here
  on, whose loss at a step is multiplied by factor(step, times)."""
  add, seen = tally.Tally._add, {}

  def one(self, number, out):
    times = sum(at == number for at, _ in seen)
    seen[number, times] = float(out['tokens'].total) / float(out['tokens'].weight)
    return add(self, number, out | {'loss': out['loss'] * factor(number, times)})

  monkeypatch.setattr(tally.Tally, '_add', one)
  return seen


def test_batches_grow_by_time_after_a_run_went_back(corpus_file, tmp_path, monkeypatch):
  """A quarter of the batch more every six steps, also where three steps were done again."""
  factor = lambda number, times: 1e6 if number in (7, 11) and not times else 1
  seen = taking(monkeypatch, factor)
  changes = 'optimizer.batch_warmup=18 spikes.zscore=500'  # losses differ much
  config = small_pretrain(corpus_file, GUARD, GROWING, changes)
  with without_a_model():
    train(config, tmp_path / 'run')
  assert {number for number, times in seen if times} >= {5, 6, 7, 9, 10, 11}
  for (number, _), fill in seen.items():
    parts = min(4, 1 + (number - 1) * 3 // 18)
    assert (parts - 1) / 4 < fill <= parts / 4, number
  rows = [2 * min(4, 1 + n * 3 // 18) for n in range(20)]
  saved = tally.Tally.from_meta(checkpoint.newest_meta(tmp_path / 'run'), config.batch_size)
  assert saved.skipped == sum(rows[4:7]) + sum(rows[8:11])


def test_batches_skipped_by_an_earlier_version_are_rows():
  meta = {'tally': {'offset': 9, 'moves': [[4, 3], [8, 9]], 'losses': [2.5]}}
  read = lambda meta: tally.Tally.from_meta(meta, 8, spikes=Spikes(None, None, meta))
  saved = read(meta)
  assert (saved.skipped, saved.moves, saved.spikes.losses) == (72, [[4, 24], [8, 72]], [2.5])
  assert [saved.skipped_after(n) for n in (0, 4, 7, 8, 30)] == [0, 24, 24, 72, 72]
  assert read({'tally': saved.to_meta()}).to_meta() == saved.to_meta()


def test_a_run_goes_on_only_with_the_data_that_it_had(corpus_file, tmp_path):
  """Other texts to train on give other bits; others to be judged by give a curve of two kinds."""
  texts = {split: tmp_path / f'{split}.txt' for split in ('train', 'eval')}
  for number, path in enumerate(texts.values()):
    path.write_text('\n\n'.join(corpus_file.read_text().split('\n\n')[number::2]))
  config = small_pretrain(texts['train'], f'data.eval={texts["eval"]}', 'steps=3')
  begun(config, tmp_path / 'run', 2)
  goes_on(config, tmp_path / 'run')
  for path, named in zip(texts.values(), ('training', 'evaluation')):
    was = path.read_text()
    path.write_text(was.replace('holds', 'finds'))
    with pytest.raises(InputError, match=f'the {named} data is not what it was.* checkpoint 2; '):
      goes_on(config, tmp_path / 'run')
    path.write_text(was)


def test_a_run_of_an_earlier_version_goes_on_with_its_best_mode(corpus_file, tmp_path):
  """In which the highest loss may be the best: a new run is refused."""
  of = 'checkpoint.best_metric=mlm eval.batches=0 steps=3 checkpoint.best_mode'
  begun(small_pretrain(corpus_file, f'{of}=min'), tmp_path / 'run', 2)

  def change(saved):
    saved['checkpoint']['best_mode'] = 'max'
    del saved['seal']

  edit(tmp_path / 'run' / 'config.json', change)
  config = small_pretrain(corpus_file, f'{of}=max')
  assert read_inputs(config, tmp_path / 'run').in_workdir
  with pytest.raises(InputError, match='set checkpoint.best_mode=min'):
    read_inputs(config, tmp_path / 'other')


def test_a_run_goes_on_only_with_the_past_that_it_had(corpus_file, tmp_path, caplog):
  caplog.set_level('INFO', 'bert_jax')
  workdir = tmp_path / 'run'
  changing = 'masking.policy=token,span@0.5 optimizer.batch_warmup=0.4'
  short = [GROWING, changing, 'steps=10']
  begun(small_pretrain(corpus_file, *short), workdir, 10)
  for steps in ('steps=20', 'steps=13'):
    with pytest.raises(InputError) as error:
      goes_on(small_pretrain(corpus_file, *short, steps), workdir)
    given = '--config.masking.policy=token,span@5 --config.optimizer.batch_warmup=4'
    assert given in str(error.value) and '\n' not in str(error.value)
  assert contents.read_config(workdir).steps == 10

  def claimed(*settings):
    contents.claim(workdir, goes_on(small_pretrain(corpus_file, *settings), workdir).config)
    return json.loads((workdir / 'config.json').read_text())['earlier_lengths']

  as_it_was = [*short, *given.split(), 'steps=20']
  before = {'optimizer.batch_warmup': 0.4, 'masking.policy': 'token,span@0.5'}
  assert claimed(*as_it_was) == [[10, 0.0, before]]
  assert 'this run now has 20 steps, before 10' in caplog.text
  contents.check_belongs(workdir, checkpoint.newest_meta(workdir))
  # What lies ahead may change, and is said.
  known = claimed(*as_it_was, 'masking.policy=token,span@5,whole_word@18 steps=24')
  assert known == [[10, 0.0, before], [20, 0.0, {'masking.policy': 'token,span@5'}]]
  assert 'from here on this run changes otherwise than before' in caplog.text


def test_a_report_counts_the_rows_that_were_read(tmp_path):
  """Of 200 steps of 4 microbatches, a further of which has rows every 40 steps."""
  parts = sum(min(4, 1 + n * 3 // 120) for n in range(200))
  for growth, flops in (('0.6', 100 * parts / 4), ('0', 100 * 200)):
    changes = f'optimizer.batch_warmup={growth} steps=200'
    config = c.load('configs/pretrain.py:runlocal', fields(GROWING, changes))
    facts = recorded.Facts(flops_per_step=100.0)
    run = recorded.Run(tmp_path, config, c.flatten(config), 'mlm', facts)
    assert run.flops_before(200) == pytest.approx(flops)


def test_a_report_counts_the_operations_of_each_stage(corpus_file, tmp_path):
  """A causal language model, then one of masked words, whose heads cost something else."""
  kinds = 'language_model.kind=causal,masked@4 steps=6 eval.every=0'
  config = c.load(
    'configs/pretrain.py:objective=causal_then_masked,runlocal',
    [*small_overrides(corpus_file), *fields(kinds)],
  )
  inputs = read_inputs(config, tmp_path / 'run')
  contents.claim(inputs.workdir, inputs.config)
  costs = setup.costs_of(inputs, parameters=5)
  contents.write_facts(inputs.workdir, inputs.config, inputs.sources, inputs.mesh, costs)
  run = records.read(tmp_path / 'run')
  (_, causal), (first, masked) = run.facts.flops_by_stage
  assert run.facts.parameters == 5 and first == 4 and masked == run.facts.flops_per_step != causal
  counted = [run.flops_before(step) for step in (0, 3, 4, 6)]
  assert counted == pytest.approx([0, 3 * causal, 4 * causal, 4 * causal + 2 * masked])


@pytest.mark.parametrize('growth', ['0.6', '100'])
def test_a_budget_pays_for_the_rows_that_are_read(growth):
  changes = f'optimizer.batch_warmup={growth} batch_size=24 steps=150'
  config = c.load('configs/pretrain.py:runlocal', fields(GROWING, changes))
  steps = plan.within_budget(config, 3000 * plan.flops_of(config)(Moment(rows=1)))
  first_full = round(0.6 * steps) if growth == '0.6' else 100
  read = sum(6 * min(4, 1 + n * 3 // first_full) for n in range(steps))
  assert abs(read - 3000) <= 12  # to the nearest step
