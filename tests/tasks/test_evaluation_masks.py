"""Runs that differ in their seed and their masking are evaluated on the same rows and masks."""

import functools
import json

import jax
import numpy as np
import pytest
from conftest import small_pretrain
from small_tables import fields

from bert_jax import sharding, step, tokenizers
from bert_jax.rows.batches import batches_of
from bert_jax.tasks import TASKS
from bert_jax.tasks.pretraining import task
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
  more = ('masking.masked_lm_prob=0.4',)
  other = 'seed=7', 'masking.policy=span', 'masking.random_share=0.2'
  assert same(first, judged(*more, *other))
  assert not same(first, judged('eval.seed=1'))
  assert not same(first, judged('eval_masking.masked_lm_prob=0.3'))


@pytest.mark.parametrize('tokens, rate, takes', [(32, 0.15, 5), (128, 0.15, 20), (512, 0.15, 77)])
def test_as_many_are_masked_as_the_rate_takes_rounded_up(tokens, rate, takes):
  assert task.most_predictions(rate, tokens) == takes
  assert task.most_predictions(2 * rate, tokens) in (2 * takes, 2 * takes - 1)


def test_the_share_really_masked_is_a_metric(pretrained):
  workdir, _, results = pretrained
  lines = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  assert {line['split'] for line in lines} == {'train', 'eval'}
  for line in lines:  # rows of 32: 5 of 32, fewer where they are shorter
    assert 0.12 < line['masked'] < 0.18
  assert 0.12 < results['masked'] < 0.18
