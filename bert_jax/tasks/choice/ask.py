"""Questions to a multiple-choice model: {"context", "question", "choices": [..]}."""

from collections.abc import Sequence
from typing import Any

from bert_jax.errors import InputError
from bert_jax.tasks.ask import OfHead, RecordProblems, numbered, texts_of
from bert_jax.tasks.choice.reading import Question
from bert_jax.tasks.choice.task import Choices


class Choose(OfHead):
  fields, tabs = ('context', 'question', 'choices'), True
  examples_of, exports = Choices, {'logits': '[B], of each choice'}
  shows = 'question', 'choices', 'prediction', 'prediction_text', 'probability', 'probabilities'

  def from_parts(self, parts: Sequence[str]) -> dict[str, Any]:
    if len(parts) < 4:
      raise InputError('a line of a context, a question and two choices at least has three tabs')
    return dict(zip(self.fields, (*parts[:2], list(parts[2:]))))

  def record(self, fields: dict[str, Any]) -> Question:
    context, question = texts_of(fields, self.fields[:2])
    choices = fields.get('choices')
    if not isinstance(choices, (list, tuple)) or not all(isinstance(x, str) for x in choices):
      raise InputError('\'choices\' is no list of texts; write ["a", "b"]')
    if len(choices) < 2:
      raise InputError(f'there are {len(choices)} choices; give two at least')
    fills = self.model.config.task.format == 'race'
    return Question('', '', context, question, tuple(choices), None, fills=fills)

  def examples(self, records: Sequence[Question], problems: RecordProblems) -> Choices:
    most = max(len(record.choices) for record in records)
    config = self.config(most * self.model.limit)
    config.data.examples_per_row = config.task.choices = most
    return Choices(config, self.model.tokenizer, numbered(records), problems)
