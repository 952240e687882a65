"""Multiple choice: which of several answers fits a context and a question."""

from collections.abc import Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.errors import InputError
from bert_jax.field import Field, affecting
from bert_jax.tasks import labelled
from bert_jax.tasks.ask import OfHead, RecordProblems, numbered, texts_in
from bert_jax.tasks.choice import task
from bert_jax.tasks.choice.reading import Question
from bert_jax.tasks.choice.task import Choices
from bert_jax.tasks.record import Head, Prediction, Released

CHOICES = 4  # choices that a row of a released model has room for


FIELDS = affecting({'rows'}, {
  'choice.first_label': Field(-1, 'the label of the first choice; -1: 0, or 1 if no label of the '
    'training data is 0', allowed='[-1, 1]'),
})  # fmt: skip


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  yield from labelled.rules(config)
  limit = config.task.max_length
  advice = 'set it to the tokens of one choice, which share a row of data.seq_length'
  yield limit > 0, f'task.max_length is {limit}; {advice}.'


def from_released(config: ConfigDict, released: Released) -> None:
  config.task.max_length = released.limit
  config.data.seq_length = CHOICES * released.limit


class Choose(OfHead):
  """Asks a model of multiple choice: {"context", "question", "choices": [..]}."""

  fields, tabs = ('context', 'question', 'choices'), True
  examples_of, exports = Choices, {'logits': '[B], of each choice'}
  shows = 'prediction', 'prediction_text', 'probability', 'probabilities'

  def from_parts(self, parts: Sequence[str]) -> dict[str, Any]:
    if len(parts) < 4:
      raise InputError('a line of a context, a question and two choices at least has three tabs')
    return dict(zip(self.fields, (*parts[:2], list(parts[2:]))))

  def record(self, fields: dict[str, Any]) -> Question:
    context, question = texts_in(fields, self.fields[:2])
    choices = fields.get('choices')
    are_texts = isinstance(choices, (list, tuple)) and all(isinstance(x, str) for x in choices)
    if not are_texts or len(choices) < 2:
      raise InputError('\'choices\' is no list of two texts or more; write ["a", "b"]')
    fills = self.model.config.task.format == 'race'
    return Question('', '', context, question, tuple(choices), None, fills=fills)

  def examples(self, records: Sequence[Question], problems: RecordProblems) -> Choices:
    most = max(len(record.choices) for record in records)
    config = self.config(most * self.model.limit)
    config.data.examples_per_row = most
    return Choices(config, self.model.tokenizer, numbered(records), problems)


CHOICE = labelled.family(
  'choice',
  objective=task.objective,
  texts=task.texts,
  sources=task.sources,
  resolve=task.resolve,
  formats=('race', 'swag', 'dream', 'copa'),
  main_metric=lambda config: 'accuracy',
  rules=rules,
  fields=FIELDS,
  defaults={
    'task.format': 'swag',
    'data.examples_per_row': 8,
    'optimizer.learning_rate': 2e-5,
    'checkpoint.best_metric': 'accuracy',
  },
  predictions={'choose': Prediction(Choose)},
  heads=(
    Head(
      'ForMultipleChoice',
      ('encoder', 'pooler', 'classifier'),
      'multiple-choice',
      found_by_class_name=True,
    ),
  ),
  from_released=from_released,
  card=labelled.card_of(longer_texts='alike'),
)
