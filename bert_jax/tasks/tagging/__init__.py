"""Tagging: a label for each token (named entities, chunks, parts of speech)."""

from ml_collections import ConfigDict

from bert_jax.tasks import labelled
from bert_jax.tasks.record import Head, Prediction, Released
from bert_jax.tasks.tagging import task
from bert_jax.tasks.tagging.ask import Tag
from bert_jax.tasks.tagging.fields import FIELDS


def from_released(config: ConfigDict, released: Released) -> None:
  config.tagging.labels = released.labels()


def stand_in(config: ConfigDict) -> ConfigDict:
  config.tagging.labels = config.tagging.labels or ('0', '1')
  return config


TAGGING = labelled.family(
  'tagging',
  task,
  formats=('columns', 'conllu'),
  main_metric=lambda config: 'token_accuracy',
  fields=FIELDS,
  defaults={'checkpoint.best_metric': 'entity_f1'},
  predictions={'tag': Prediction(Tag)},
  heads=(Head('ForTokenClassification', ('encoder', 'classifier'), 'token-classification'),),
  from_released=from_released,
  card=labelled.card(longer_texts='windows'),
  stand_in=stand_in,
)
