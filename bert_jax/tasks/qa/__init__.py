"""Extractive question answering: which part of a context answers a question (SQuAD)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from bert_jax.field import Field, affecting
from bert_jax.tasks import labelled
from bert_jax.tasks.ask import Empty, OfHead, texts_in
from bert_jax.tasks.qa import task
from bert_jax.tasks.qa.reading import Question
from bert_jax.tasks.qa.task import Windows
from bert_jax.tasks.record import Head, Option, Prediction

if TYPE_CHECKING:
  from bert_jax.predict.loaded import Loaded

FIELDS = affecting({'rows'}, {
  'qa.doc_stride': Field(128, 'tokens between the starts of two windows', allowed='[1, inf)'),
  'qa.max_query_length': Field(64, 'tokens of a question; a longer one is cut', allowed='[1, inf)'),
  'qa.max_answer_length': Field(30, 'tokens of an answer', allowed='[1, inf)',
    affects={'judging'}),
  'qa.unanswerable': Field(False, 'a question may have no answer (SQuAD 2.0)'),
  'qa.null_threshold': Field(0.0, 'no answer where its lead over the best span is above this',
    affects={'judging'}),
  'qa.answer_units': Field('words', 'of the F1; characters for Chinese (CMRC)',
    allowed=('words', 'characters'), affects={'judging'}),
})  # fmt: skip


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  yield from labelled.rules(config)
  yield (
    not config.qa.unanswerable or config.qa.answer_units == 'words',
    'qa.answer_units=characters scores as CMRC 2018, where every question has an answer; set '
    'qa.unanswerable=false or qa.answer_units=words.',
  )


TOP_K = Option(int, 'how many to give; default: 5', 1, task.N_BEST)


class Answer(OfHead):
  """Answers {"question", "context"} with the top_k best spans of the context."""

  fields, tabs = ('question', 'context'), True
  shows = 'prediction', 'probability', 'start', 'end', 'nbest'
  examples_of, exports = Windows, {'start_logits': '[B, T]', 'end_logits': '[B, T]'}

  def __init__(self, model: 'Loaded', top_k: int = 5):
    super().__init__(model)
    self.top_k = top_k

  def record(self, fields: dict[str, Any]) -> Question:
    question, context = texts_in(fields, self.fields)
    if not question.strip() or not context.strip():
      raise Empty('the question or its context is empty')
    return Question('', '', question, context, None, ())

  def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
    start, end = answer['span']
    nbest = []
    for entry in answer['nbest'][: self.top_k]:
      nbest.append({name: entry[name] for name in ('text', 'probability', 'start', 'end')})
    return super().shown(answer | {'start': start, 'end': end, 'nbest': nbest})


QA = labelled.family(
  'qa',
  objective=task.objective,
  texts=task.texts,
  sources=task.sources,
  formats=('squad',),
  main_metric=lambda config: 'f1',
  fields=FIELDS,
  rules=rules,
  defaults={'epochs': 2.0, 'data.examples_per_row': 4, 'checkpoint.best_metric': 'f1'},
  predictions={'answer': Prediction(Answer, options={'top_k': TOP_K})},
  heads=(Head('ForQuestionAnswering', ('encoder', 'span'), 'question-answering'),),
  card=labelled.card_of(longer_texts='windows'),
)
