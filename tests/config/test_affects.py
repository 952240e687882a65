"""What fields bear on: the lists of names that stood in eight places before fields said it."""

import pytest

from bert_jax import config
from bert_jax.config import model
from bert_jax.field import DECISIVE, PURPOSES, Field, affecting
from bert_jax.tasks import TASKS
from bert_jax.tools.report import arms

FREE = """mesh. max_hours profile checkpoint. log. eval. eval_masking. data.eval data.skip_damaged
  data.text_encoding teacher language_model.eval_memory"""
BITS = 'mesh.sums mesh.gather'  # how gradients are rounded
SET_BY_THE_RUN = """model.hidden_dropout_prob model.attention_probs_dropout_prob
  model.attention_output_dropout_prob model.scaled_initializer model.attention_implementation
  model.dtype model.scan_layers model.remat model.relative_clamp model.memory_length
  model.mask_decoder model.recurrent_length model.extend_positions model.new_top_layers"""
# The last three are said, and are no part of the answers.
UNSAID = """model.vocab_multiple model.attention_implementation model.dtype model.scan_layers
  model.remat model.attention_output_dropout_prob model.scaled_initializer model.extend_positions
  model.new_top_layers model.initializer_range model.hidden_dropout_prob
  model.attention_probs_dropout_prob"""
WITHOUT_EFFECT = """mesh. log. profile max_hours checkpoint.every checkpoint.minutes
  checkpoint.keep_"""
READ = """objective data. task. table. tagging. qa. contrastive. translation. tokenizer. corpus.
  model.recurrent_length model.vocab_size"""
NOT_READ = """contrastive.temperature contrastive.widths contrastive.pooling contrastive.normalize
  contrastive.chunks table.class_weights table.lm_weight table.pooling table.prior tagging.prior
  qa.n_best_size
  qa.null_threshold qa.max_answer_length qa.answer_units translation.label_smoothing
  translation.beams translation.length_penalty translation.early_stopping corpus.lengths"""
EVALUATION = """data. corpus. tokenizer. eval.seed eval_masking. task. table. tagging.
  qa. model.vocab_size"""
NOT_EVALUATION = """table.class_weights table.lm_weight table.pooling table.prior tagging.prior
  corpus.lengths"""
FORGOTTEN = """objective model.recurrent_length language_model.eval_memory contrastive.loss
  contrastive.anchor_column contrastive.positive_column contrastive.negative_columns
  contrastive.score_column contrastive.columns contrastive.eval_format translation.source_column
  translation.target_column translation.columns translation.target_length translation.begin
  translation.too_long translation.beams translation.length_penalty translation.early_stopping"""


@pytest.mark.parametrize(
  'prefixes, wrong, missing, found',
  [
    (FREE, BITS, '', {name for name, field in config.ALL.items() if not field.decides}),
    (SET_BY_THE_RUN, '', '', {*model.FIELDS} - config.fields_affecting('weights')),
    (UNSAID, '', '', {*model.FIELDS} - config.fields_affecting('model')),
    (WITHOUT_EFFECT, '', '', arms.WITHOUT_EFFECT),
    (READ, NOT_READ, '', arms.READING),
    (EVALUATION, NOT_EVALUATION, FORGOTTEN, arms.READING | config.fields_affecting('evaluation')),
  ],
)
def test_fields_are_those_of_the_list_but_for_named_corrections(prefixes, wrong, missing, found):
  """prefixes: of the names in a list that stood in the code."""
  before = {field for field in config.ALL if field.startswith(tuple(prefixes.split()))}
  wrong, missing = set(wrong.split()), set(missing.split())
  assert wrong <= before and not missing & before
  assert before - found == wrong and found - before == missing


def test_every_field_says_what_it_affects():
  assert {*PURPOSES} >= DECISIVE
  for name, field in config.ALL.items():
    assert field.affects, name
  used = set().union(*(field.affects for field in config.ALL.values()))
  assert used == set(PURPOSES)
  for task in TASKS.values():
    for name, field in task.fields.items():
      assert field.affects == config.ALL[name].affects, (task.name, name)


def test_a_field_of_unknown_purpose_decides_and_a_misspelt_one_is_an_error():
  assert Field(1, 'a number').decides and not Field(1, 'a number', affects={'place'}).decides
  assert not Field('', 'a path', affects={'objective', 'checked'}).decides
  some = {'a': Field(1, 'one'), 'b': Field(2, 'two', affects={'record'})}
  found = affecting({'rows'}, some)
  assert found['a'].affects == {'rows'} and found['b'].affects == {'record'}
  with pytest.raises(ValueError, match='a field affects plaice; use some of rows'):
    Field(1, 'a number', affects={'plaice'})
