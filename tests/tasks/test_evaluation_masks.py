"""Runs that differ in their seed and their masking are evaluated on the same rows and masks."""

import functools
import json

import jax
import numpy as np
import pytest
from conftest import small_pretrain
from small_tables import fields

from bert_jax import sharding, step, tokenizers
from bert_jax.errors import InputError
from bert_jax.rows.batches import batches_of
from bert_jax.tasks import TASKS
from bert_jax.timeline import EVALUATION

TASK = TASKS['mlm_nsp']


@pytest.fixture(scope='module')
def judged(corpus_file, pretrained):
  """A function of fields of a config: what an evaluation sees, {name: array} of its first batch,
  masked."""
  tokenizer = tokenizers.load_folder(pretrained[0])
  return functools.cache(functools.partial(first_batch, corpus_file, tokenizer))


def first_batch(corpus_file, tokenizer, *overrides):
  config = TASK.resolve(small_pretrain(corpus_file, *fields(*overrides)))
  objective = TASK.objective(config, tokenizer)
  source = TASK.sources(config, tokenizer)['eval']
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  batch = batches_of(source, config, tokenizer, objective, mesh)[0]
  key = jax.random.fold_in(step.constants_of(config, objective).eval_key, 0)
  masked = jax.jit(lambda batch: objective.prepare(batch, key, EVALUATION))(batch)
  return {k: np.asarray(x) for k, x in masked.items()}


def same(one, other):
  return all(np.array_equal(one[name], other[name]) for name in one)


def test_they_are_the_same_whatever_the_run_masks_and_draws(judged):
  first = judged()
  assert same(first, judged('seed=7'))
  more = 'masking.masked_lm_prob=0.4', 'masking.max_predictions_per_seq=0'
  other = 'seed=7', 'masking.policy=span', 'masking.random_share=0.2'
  assert same(first, judged(*more, *other))
  assert not same(first, judged('eval.seed=1'))
  assert not same(first, judged('eval_masking.masked_lm_prob=0.3'))


def test_a_run_of_before_is_judged_as_it_was(judged):
  """By its own seed and masking, which is what the fields' past says."""
  own = 'eval.seed=-1', 'eval_masking.policy='
  assert same(judged(), judged(*own))
  assert not same(judged(), judged(*own, 'seed=7'))
  assert same(judged(*own, 'seed=7'), judged('eval.seed=7'))
  more = 'masking.masked_lm_prob=0.4', 'masking.max_predictions_per_seq=0'
  masked = judged(*own, *more)['masked_weights']
  assert masked.sum() > 2 * judged(*more)['masked_weights'].sum()


def test_as_many_are_masked_as_the_rate_takes(corpus_file):
  resolve = lambda *x: TASK.resolve(small_pretrain(corpus_file, *fields(*x)))
  whole = 'masking.max_predictions_per_seq=0', 'model.max_position_embeddings=512'
  most = lambda *x: resolve(*whole, *x).masking.max_predictions_per_seq
  assert most() == 5  # of 32 tokens
  assert [most(f'data.seq_length={n}') for n in (128, 512, 20)] == [20, 77, 3]
  assert most('masking.masked_lm_prob=0.4') == 13


@pytest.mark.parametrize(
  'tokens, rate, cap, fits',
  [(512, 0.15, 76, True), (512, 0.15, 75, False), (128, 0.4, 20, False), (128, 0.4, 0, True)],
)
def test_a_cap_below_the_rate_is_refused_where_a_run_begins(corpus_file, tokens, rate, cap, fits):
  masking = f'masking.masked_lm_prob={rate} masking.max_predictions_per_seq={cap}'
  rows = f'data.seq_length={tokens} model.max_position_embeddings=512'
  if fits:
    small_pretrain(corpus_file, *fields(masking, rows))
    return
  takes = int(np.ceil(tokens * rate))
  with pytest.raises(InputError, match=f'tokens takes {takes}; set it to {takes} or more, or to 0'):
    small_pretrain(corpus_file, *fields(masking, rows))


def test_the_share_really_masked_is_a_metric(pretrained):
  workdir, _, results = pretrained
  lines = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  assert {line['split'] for line in lines} == {'train', 'eval'}
  for line in lines:  # rows of 32: 5 of 32, fewer where they are shorter
    assert 0.12 < line['masked'] < 0.18
  assert 0.12 < results['masked'] < 0.18
