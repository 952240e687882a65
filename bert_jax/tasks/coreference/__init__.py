"""Coreference: whom a pronoun stands for (GAP, Winograd schemas)."""

from bert_jax.tasks import labelled
from bert_jax.tasks.coreference import task
from bert_jax.tasks.coreference.ask import Coreference
from bert_jax.tasks.record import Prediction

COREFERENCE = labelled.family(
  'coreference',
  task,
  formats=('gap', 'wsc'),
  main_metric=lambda config: 'coreference_accuracy',
  predictions={'coreference': Prediction(Coreference)},
  card=labelled.card(shares_of_examples=('coreference_accuracy',)),
)
