"""Extractive question answering: which part of a context answers a question (SQuAD)."""

from bert_jax.field import Field
from bert_jax.tasks import labelled
from bert_jax.tasks.ask import TOP_K
from bert_jax.tasks.qa import task
from bert_jax.tasks.qa.ask import Answer
from bert_jax.tasks.record import Head, Prediction

FIELDS = {
  'qa.doc_stride': Field(int, '[1, inf)', 'tokens between the starts of two windows of a context',
    128),
  'qa.max_query_length': Field(int, '[1, inf)', 'tokens of a question; a longer one is cut', 64),
  'qa.max_answer_length': Field(int, '[1, inf)', 'tokens of an answer', 30),
  'qa.n_best_size': Field(int, '[1, inf)', 'spans kept of each question', 20),
  'qa.unanswerable': Field(bool, None, 'a question may have no answer (SQuAD 2.0)', False),
  'qa.null_threshold': Field(float, None,
    'no answer where its lead over the best span is above this', 0.0),
  'qa.answer_units': Field(str, ('words', 'characters'), 'of the F1; characters for Chinese (CMRC)',
    'words'),
}  # fmt: skip


def rules(config):
  return labelled.rules(config, pairs=True)


QA = labelled.family(
  'qa',
  task,
  formats=('squad',),
  main_metric=lambda config: 'f1',
  fields=FIELDS,
  rules=rules,
  defaults={'epochs': 2.0, 'data.examples_per_row': 4, 'checkpoint.best_metric': 'f1'},
  predictions={'answer': Prediction(Answer, options={'top_k': TOP_K})},
  heads=(Head('ForQuestionAnswering', ('encoder', 'span'), 'question-answering'),),
  card=labelled.card(reads_pairs=True, longer_texts='windows'),
)
