"""Runs in which something changes by step, or that go on: steps are time, rows are data."""

import pytest
from conftest import fields, small_overrides, small_pretrain
from refusal import refused
from running import begun, goes_on

from bert_jax import config as c
from bert_jax.errors import InputError
from bert_jax.run import setup
from bert_jax.run.inputs import read_inputs
from bert_jax.workdir import checkpoint, contents, recorded, records

GROWING = 'optimizer.accumulation=4 loss.nsp_weight=0 corpus.rows=full optimizer.warmup=2'


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
    with pytest.raises(InputError, match=f'the {named} data is not what it was at checkpoint 2'):
      goes_on(config, tmp_path / 'run')
    path.write_text(was)


def test_a_run_goes_on_only_with_the_past_that_it_had(corpus_file, tmp_path, caplog):
  """A share of the steps would begin elsewhere; numbers of steps stay where they are."""
  caplog.set_level('INFO', 'bert_jax')
  for name, changes in (
    ('shares', 'masking.policy=token,span@0.5 optimizer.batch_warmup=0.4'),
    ('numbers', 'masking.policy=token,span@5 optimizer.batch_warmup=4'),
  ):
    begun(small_pretrain(corpus_file, GROWING, changes, 'steps=10'), tmp_path / name, 10)
    longer = small_pretrain(corpus_file, GROWING, changes, 'steps=20')
    if name == 'shares':
      with refused('in one of 20 steps its past would be another .*masking.policy'):
        goes_on(longer, tmp_path / name)
      assert contents.read_config(tmp_path / name).steps == 10
      continue
    inputs = goes_on(longer, tmp_path / name)
    contents.claim(tmp_path / name, inputs.config, inputs.asked)
    assert 'this run now has 20 steps, before 10' in caplog.text
    contents.check_belongs(tmp_path / name, checkpoint.newest_meta(tmp_path / name))


def test_a_report_counts_the_rows_that_were_read(tmp_path):
  """Of 200 steps of 4 microbatches, a further of which has rows every 40 steps."""
  parts = sum(min(4, 1 + n * 3 // 120) for n in range(200))
  for growth, flops in (('0.6', 100 * parts / 4), ('0', 100 * 200)):
    changes = f'optimizer.batch_warmup={growth} steps=200'
    config = c.load('configs/pretrain.py:runlocal', fields(GROWING, changes))
    facts = recorded.Facts(flops_by_stage=[(0, 100.0)])
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
  setup.write_facts(inputs, parameters=5)
  run = records.read(tmp_path / 'run')
  (_, causal), (first, masked) = run.facts.flops_by_stage
  assert run.facts.parameters == 5 and first == 4 and masked == setup.flops_of(inputs) != causal
  counted = [run.flops_before(step) for step in (0, 3, 4, 6)]
  assert counted == pytest.approx([0, 3 * causal, 4 * causal, 4 * causal + 2 * masked])
