"""Sequence to sequence: translation, summaries, and other tables of sources and targets."""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bert_jax import models
from bert_jax.tasks import labelled
from bert_jax.tasks.record import Head, Prediction, Released
from bert_jax.tasks.translation import task
from bert_jax.tasks.translation.ask import OPTIONS, Translate
from bert_jax.tasks.translation.fields import DEFAULTS, FIELDS


def decoder_rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  """Yields (what must hold, the sentence if it does not) for a model with a decoder."""
  sentence = models.unsupported(models.ModelConfig(**config.model), causal=True)
  yield not sentence, sentence
  causal = 'model.causal=true would hide the rest of a source from its encoder; set it to false.'
  yield not config.model.causal, causal


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  yield from labelled.rules(config)
  yield from decoder_rules(config)
  fields, limit = config.translation, config.task.max_length
  length, longest = fields.target_length, config.model.max_position_embeddings
  fits = (limit and limit <= longest) or length <= longest
  long = (
    f'translation.target_length {length} is longer than model.max_position_embeddings {longest}'
  )
  advice = 'raise the one, lower the other, or set task.max_length'
  yield not models.has_position_table(config.model) or fits, f'{long}; {advice}.'
  both = f'translation.source_column and target_column are both {fields.source_column!r}'
  yield fields.source_column != fields.target_column, f'{both}; name two columns.'
  best = config.checkpoint.best_metric
  unwritten = f'checkpoint.best_metric={best} is of what an evaluation writes, and with'
  nothing = 'translation.beams=0 it writes nothing; set it to 1 or more'
  yield fields.beams > 0 or best not in task.SCORES, f'{unwritten} {nothing}.'


def from_released(config: ConfigDict, released: Released) -> None:
  config.translation.begin = released.begin


PARTS = 'encoder', 'decoder', 'mlm'
HEADS = (Head('ForConditionalGeneration', PARTS, 'text2text-generation'),)
LACKS = 'decoder that was trained on pairs; train one with configs/translate.py'

TRANSLATION = labelled.family(
  'translation',
  task,
  formats=('pairs',),
  has_teacher=False,
  main_metric=lambda config: 'bleu' if config.translation.beams else 'translation_nats',
  fields=FIELDS,
  rules=rules,
  defaults=DEFAULTS,
  predictions={'translate': Prediction(Translate, PARTS, LACKS, options=OPTIONS)},
  heads=HEADS,
  from_released=from_released,
  begin='translation.begin',
)
