"""Questions to a question-answering model: {"question", "context"}."""

from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from bert_jax.errors import InputError
from bert_jax.tasks.ask import OfHead, check_top_k, texts_of
from bert_jax.tasks.qa.reading import Question
from bert_jax.tasks.qa.task import Windows

if TYPE_CHECKING:
  from bert_jax.predict.model import Model


class Answer(OfHead):
  """Answers a question with the top_k best spans of its context."""

  fields, tabs = ('question', 'context'), True
  examples_of, exports = Windows, {'start_logits': '[B, T]', 'end_logits': '[B, T]'}

  def __init__(self, model: 'Model', top_k: int = 5):
    super().__init__(model)
    check_top_k(top_k)
    self.top_k = top_k

  def config(self, row: int = 0) -> ConfigDict:
    config = super().config(row)
    config.qa.n_best_size = max(self.top_k, config.qa.n_best_size)
    return config

  def record(self, fields: dict[str, Any]) -> Question:
    question, context = texts_of(fields, self.fields)
    if not question.strip() or not context.strip():
      raise InputError('the question or its context is empty')
    return Question('', '', question, context, None, ())

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    names, best = ('text', 'probability', 'start', 'end'), answer['nbest'][: self.top_k]
    out = {'question': answer['question'], 'answer': answer['prediction']}
    out |= {'probability': answer['probability']} | dict(zip(('start', 'end'), answer['span']))
    return out | {'nbest': [{name: entry[name] for name in names} for entry in best]}
