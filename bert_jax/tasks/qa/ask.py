"""Questions to a question-answering model: {"question", "context"}."""

from bert_jax.errors import InputError
from bert_jax.tasks.ask import OfHead, check_top_k, texts_of
from bert_jax.tasks.qa.reading import Question
from bert_jax.tasks.qa.task import Windows


class Answer(OfHead):
  """Answers a question with the top_k best spans of its context."""

  fields = ('question', 'context')
  examples_of, exports = Windows, {'start_logits': '[B, T]', 'end_logits': '[B, T]'}

  def __init__(self, model, top_k=5):
    super().__init__(model)
    check_top_k(top_k)
    self.top_k = top_k

  def config(self, row=0):
    config = super().config(row)
    config.qa.n_best_size = max(self.top_k, config.qa.n_best_size)
    return config

  def record(self, fields):
    question, context = texts_of(fields, self.fields)
    if not question.strip() or not context.strip():
      raise InputError('the question or its context is empty')
    return Question('', '', question, context, None, ())

  def shown(self, answer):
    out = {'question': answer['question'], 'answer': answer['prediction']}
    out |= {'probability': answer['probability']} | dict(zip(('start', 'end'), answer['span']))
    names = 'text', 'probability', 'start', 'end'
    best = answer['nbest'][: self.top_k]
    return out | {'nbest': [{name: entry[name] for name in names} for entry in best]}
