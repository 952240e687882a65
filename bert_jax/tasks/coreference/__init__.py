"""Coreference: whom a pronoun stands for (GAP, Winograd schemas)."""

from bert_jax.tasks import labelled
from bert_jax.tasks.coreference import task
from bert_jax.tasks.coreference.ask import Coreference
from bert_jax.tasks.record import Prediction, Task

COREFERENCE = Task(
  name='coreference',
  texts=task.texts,
  objective=task.objective,
  sources=task.sources,
  main_metric=lambda config: 'coreference_accuracy',
  fields=labelled.fields('gap', 'wsc'),
  rules=labelled.rules,
  defaults=labelled.DEFAULTS,
  predictions={'coreference': Prediction(Coreference)},
)
