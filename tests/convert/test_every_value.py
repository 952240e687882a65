"""Every value of every field of a model builds, is counted, and is converted or refused by name."""

import functools
import math

import jax
import pytest
from refusal import refused
from released import made, random_like, same

from bert_jax import config as c
from bert_jax import models
from bert_jax.config.model import FIELDS
from bert_jax.convert import sentence_transformers
from bert_jax.convert.config_json import ANSWERING
from bert_jax.errors import InputError
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained

# What a value stands on, where the rest of a small BERT does not have it.
DISENTANGLED = {'position_embeddings': 'disentangled'}
RELATIVE, ROTARY = {'position_embeddings': 'relative'}, {'position_embeddings': 'rotary'}
NEEDS = {
  'attention_implementation': {'attention_probs_dropout_prob': 0.0},
  'max_relative_positions': DISENTANGLED,
  'position_buckets': DISENTANGLED,
  'pos_att_type': DISENTANGLED,
  'rotary_theta': ROTARY,
  'local_rotary_theta': ROTARY | {'attention_window': 6},
  'global_attention_every': {'attention_window': 6},
  'first_norm': {'norm_placement': 'pre'},
  'conv_width': {'mixer': 'conv', 'position_embeddings': 'none'},
  'projection_act': {'projection_size': 7},
  'projection_bias': {'projection_size': 7},
}
# Where twice the usual is not allowed.
NUMBERS = {'conv_width': 5, 'position_buckets': 6}
REFUSED = {'attention_implementation', 'mixer', 'memory_length'}
ALONE = {'extend_positions'}  # stands on init_from, which builds nothing here


@functools.cache
def small(head='masked-lm'):
  return made(head, num_hidden_layers=1)


def values_of(name):
  """The values of a field beside that of a small BERT: all choices, or another number."""
  field, usual = FIELDS[f'model.{name}'], small().config.model[name]
  if isinstance(field.allowed, tuple):
    return [x for x in field.allowed if x != usual]
  if field.type is bool:
    return [not usual]
  return [NUMBERS.get(name, field.type(2 * usual or (0.5 if '1)' in field.allowed else 2)))]


CASES = [(name, value) for name in vars(models.ModelConfig()) for value in values_of(name)]
CASES.remove(('attention_implementation', 'cudnn'))  # which wants a GPU


def config_with(name, value, **needs):
  """A small config with this value, or the sentence that refuses it before anything is built."""
  of_classifiers = 'pooler', 'token_pooler', 'classifier_bias'
  config = small('classifier' if name in of_classifiers else 'masked-lm').config
  config = config.copy_and_resolve_references()
  config.data.examples_per_row = 1
  config.model.update(needs | {name: value})
  return c.check(config)


@pytest.mark.parametrize('name, value', CASES, ids=lambda x: str(x))
def test_every_value_builds_counts_and_converts_or_is_refused(tmp_path, name, value):
  try:
    config = config_with(name, value, **NEEDS.get(name, {}))
  except InputError as error:
    assert name in ALONE | REFUSED and f'model.{name}' in str(error)
    return
  tokenizer = small().tokenizer
  objective = TASKS[config.objective].objective(config, tokenizer)
  params = jax.eval_shape(objective.init, jax.random.key(0))
  assert models.count_parameters(params) > 0
  if isinstance(value, str) or 'layers' in name:  # others build what is counted already
    assert 0 < objective.flops(2) < math.inf
  params = random_like(params)
  found = trained.Trained(config, tokenizer, params, 3)
  try:
    convert.export_run(tmp_path / 'hf', found, {})
  except InputError as error:
    said = str(error)
    assert len(said.splitlines()) == 1 and 'cannot be written' in said, said
    return
  again = trained.load(tmp_path / 'hf')
  same(found.params, again.params, config)
  has_none = 'replaced_head', *sentence_transformers.FIELDS
  if name in ANSWERING and name not in has_none:
    assert again.config.model[name] == value


ALLOWED = 'first_norm', 'attention_implementation', 'projection_act', 'projection_bias'  # without
STANDING = [name for name in NEEDS if name not in ALLOWED]


@pytest.mark.parametrize('name', STANDING)
def test_a_field_without_what_it_stands_on_is_one_sentence(name):
  config = small().config.copy_and_resolve_references()
  config.data.examples_per_row = 1
  value, *_ = values_of(name)
  config.model[name] = value
  with refused(rf'model\.{name}'):
    c.check(config)
