"""Multiple choice: which of several answers fits a context and a question."""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bert_jax.tasks import labelled
from bert_jax.tasks.choice import task
from bert_jax.tasks.choice.ask import Choose
from bert_jax.tasks.choice.fields import FIELDS
from bert_jax.tasks.record import Head, Prediction, Released

CHOICES = 4  # choices that a row of a released model has room for


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  yield from labelled.rules(config, pairs=True)
  limit = config.task.max_length
  advice = 'set it to the tokens of one choice, which share a row of data.seq_length'
  yield limit > 3, f'task.max_length is {limit}; {advice}.'


def from_released(config: ConfigDict, released: Released) -> None:
  config.task.max_length = released.limit
  config.data.seq_length = CHOICES * released.limit


CHOICE = labelled.family(
  'choice',
  task,
  formats=('race', 'swag', 'dream', 'copa'),
  main_metric=lambda config: 'choice_accuracy',
  rules=rules,
  fields=FIELDS,
  defaults={
    'task.format': 'swag',
    'data.examples_per_row': 8,
    'optimizer.learning_rate': 2e-5,
    'checkpoint.best_metric': 'choice_accuracy',
  },
  predictions={'choose': Prediction(Choose)},
  heads=(Head('ForMultipleChoice', ('encoder', 'pooler', 'classifier'), found_by_class_name=True),),
  from_released=from_released,
  reads_stretches=True,
  card=labelled.card(shares_of_examples=('choice_accuracy',)),
)
