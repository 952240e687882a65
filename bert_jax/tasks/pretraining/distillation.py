"""Pre-training from a teacher (DistilBERT): a masked language model without pairs of sentences."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bert_jax.errors import InputError
from bert_jax.field import Field
from bert_jax.objectives.distillation import DistilledLanguageModel
from bert_jax.tasks import teaching
from bert_jax.tasks.pretraining import PRETRAINING, rules_of_words_alone, words_alone

FIELDS = teaching.FIELDS | {
  'distillation.hidden_weight': Field(1.0,
    "weight in the loss of 1 - the cosine between the last hidden states and the teacher's, of the "
    'same width; 0: none', allowed='[0, inf)'),
}  # fmt: skip
DEFAULTS = {
  'corpus.rows': 'full',
  'loss.nsp_weight': 0.0,
  'model.type_vocab_size': 0,
  'distillation.soft_weight': 5.0,
  'distillation.label_weight': 2.0,
}


def rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  yield from rules_of_words_alone(config)
  yield from teaching.rules(config)
  yield not config.model.causal, 'distillation predicts masked words; set model.causal=false.'


def resolve(config: ConfigDict) -> ConfigDict:
  if not config.teacher:
    raise InputError('there is no teacher to learn from; name it with teacher=W.')
  return PRETRAINING.resolve(config)


def by_words(config: ConfigDict, objective: Any, teacher: teaching.Teacher) -> teaching.Lesson:
  """The Lesson in which a student imitates a teacher's masked-word probabilities and states."""
  model, width = teacher.model, config.model.hidden_size
  if {'encoder', 'mlm'} - teacher.params.keys() or model.causal:
    raise InputError(
      f'the teacher {config.teacher} does not predict masked words, which are learned here; '
      'name a masked language model.'
    )
  if config.distillation.hidden_weight and model.hidden_size != width:
    raise InputError(
      f'the hidden states of the teacher are {model.hidden_size} wide and those of this run '
      f'{width}, so there is no cosine between them; set distillation.hidden_weight=0.'
    )
  params = {part: teacher.params[part] for part in ('encoder', 'mlm')}
  theirs = dataclasses.replace(objective, model=model)
  return teaching.Lesson(DistilledLanguageModel, theirs, params)


DISTILLATION = words_alone(
  'distillation',
  fields={**PRETRAINING.fields, **FIELDS},
  defaults=DEFAULTS,
  taught=by_words,
  rules=rules,
  resolve=resolve,
)
