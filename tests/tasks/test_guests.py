"""A mistake in a new objective or its record is one sentence before anything is compiled."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest
import toys
from conftest import small_pretrain

from bert_jax import config as config_lib
from bert_jax import sharding, step
from bert_jax.errors import InputError
from bert_jax.metrics import LossLevel, Mean, mean
from bert_jax.objectives.encode import encode
from bert_jax.run.inputs import read_inputs
from bert_jax.tasks import TASKS
from bert_jax.tasks.pretraining.ask import Perplexity
from bert_jax.tasks.record import Option, Prediction


def refused(monkeypatch, corpus_file, tmp_path, sentence, **changes):
  record, config = dataclasses.replace(TASKS['mlm_nsp'], **changes), small_pretrain(corpus_file)
  monkeypatch.setitem(TASKS, 'mlm_nsp', record)
  with pytest.raises(InputError, match=sentence):
    read_inputs(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


class Line(list):
  fingerprint, baselines = '', {'mlm': (3.0, 'unigram')}


class Judged(list):
  fingerprint, baselines = '', {'mlm': LossLevel(3.0, 'prior')}


LACKS = "objective 'mlm_nsp' has no {}; add it"


def predictions(**changes):
  return {'predictions': {'next': Prediction(Perplexity, **changes)}}


@pytest.mark.parametrize(
  'changes, sentence',
  [
    ({'main_metric': lambda config: 'bleu'}, "is 'bleu', whose objective has mlm, mlm_accuracy"),
    ({'sources': lambda *_: [1]}, 'returns a list; return {split: Source}'),
    ({'sources': lambda *_: {'eval': [1]}}, "returns no 'train'; return"),
    ({'sources': lambda *_: {'train': [1]}}, 'a list without fingerprint and baselines; return'),
    ({'sources': lambda *_: {'train': Line()}}, 'a baseline that is no metrics.Level'),
    (
      {'sources': lambda *_: {'train': Judged()}},
      "has for 'mlm' a LossLevel whose kind is not",
    ),
    ({'limit_field': 'corpus.most'}, LACKS.format("field 'corpus.most', which it names")),
    ({'heads': ('Model',)}, LACKS.format("Head where it says 'Model'")),
    ({'predictions': {'next': 1}, 'rules': None}, LACKS.format("rules and no Prediction 'next'")),
    (predictions(options={'many': Option(int, '')}), "no argument 'many' of Perplexity, an option"),
  ],
)
def test_a_record_that_is_not_whole(monkeypatch, corpus_file, tmp_path, changes, sentence):
  refused(monkeypatch, corpus_file, tmp_path, re.escape(sentence), **changes)


def test_an_array_that_rows_lack(monkeypatch, corpus_file, tmp_path):
  def objective(config, tokenizer):
    return dataclasses.replace(made(config, tokenizer), seq_length=config.data.seq_length - 1)

  made = TASKS['mlm_nsp'].objective
  sentence = r"row 0 has int32\[32\] for 'input_ids' where the objective expects int32\[31\]"
  refused(monkeypatch, corpus_file, tmp_path, sentence, objective=objective)


def lowered(objective):
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  config = toys.config_of()
  program = step.program(config, objective, mesh, config_lib.timeline_of(config, 10))
  with jax.set_mesh(mesh):
    program.lower(), program.lower_evaluation()


def test_a_metric_that_nothing_computes():
  class Bleu(toys.Running):
    metrics = ('running', 'bleu')

  with pytest.raises(InputError, match='Bleu.metrics names bleu, which nothing computes'):
    lowered(Bleu())


@pytest.mark.parametrize('odd', [jnp.float32(2), Mean(jnp.ones(2), jnp.ones(2))])
def test_a_term_that_is_not_divided_by_its_weight(odd):
  class Sum(toys.Running):
    def terms(self, *arguments):
      terms, carry = super().terms(*arguments)
      return terms | {'score': odd}, carry

  with pytest.raises(InputError, match="Sum.terms returns for 'score' no Mean of single numbers"):
    lowered(Sum())


@pytest.mark.parametrize('weights', [(8, 1), (), (5,)])
def test_weights_that_values_share(weights):
  """A mean of ones over [8, 5] would be 5, 40 or 8."""

  class Shared(toys.Running):
    def terms(self, *arguments):
      terms, carry = super().terms(*arguments)
      return terms | {'score': mean(jnp.ones((8, 5)), jnp.ones(weights))}, carry

  sentence = f'has values [8, 5] and weights {list(weights)}; give each value its weight'
  with pytest.raises(InputError, match=re.escape(sentence)):
    lowered(Shared())
  both = jnp.arange(40.0).reshape(8, 5), jnp.ones((8, 5))
  assert mean(*both).value == 19.5 and mean(3.0, both[1]).value == 3


def test_arrays_that_steps_and_encoders_need():
  class NoSegments(toys.Running):
    def spec(self, batch_size):
      return {k: x for k, x in super().spec(batch_size).items() if k != 'segment_ids'}

  with pytest.raises(InputError, match='NoSegments.spec has no segment_ids, by which steps count'):
    lowered(NoSegments())
  with pytest.raises(InputError, match='the batch has no token_type_ids, which an encoder reads'):
    encode(None, {}, dict.fromkeys(('input_ids', 'position_ids', 'segment_ids')))
