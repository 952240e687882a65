"""Extractive question answering: which part of a context answers a question (SQuAD)."""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bert_jax.tasks import labelled
from bert_jax.tasks.ask import TOP_K
from bert_jax.tasks.qa import task
from bert_jax.tasks.qa.ask import Answer
from bert_jax.tasks.qa.fields import FIELDS
from bert_jax.tasks.record import Head, Prediction


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
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
