"""Sequence to sequence: translation, summaries, and other tables of sources and targets."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bert_jax import models
from bert_jax.field import Field, affecting
from bert_jax.tasks import labelled
from bert_jax.tasks.ask import OfHead, texts_in
from bert_jax.tasks.record import Head, Option, Prediction, Released
from bert_jax.tasks.translation import task
from bert_jax.tasks.translation.reading import Pair
from bert_jax.tasks.translation.task import Pairs

FIELDS = affecting({'rows'}, {
  'translation.source_column': Field('source',
    'column of the source, or name of its file; a|b: the first of these that is there'),
  'translation.target_column': Field('target',
    'column of the target, or name of its file; a|b as above'),
  'translation.columns': Field((),
    'columns of a TSV without header; empty: it has one', allowed=str),
  'translation.target_length': Field(0, 'tokens of the target side of a row; 0: data.seq_length',
    allowed='[0, inf)'),
  'translation.begin': Field('cls',
    'a target begins with [CLS]; or [SEP], then [CLS] (BART)', allowed=('cls', 'sep')),
  'translation.too_long': Field('leave_out',
    'what training does with a pair that is too long for its row', allowed=('leave_out', 'cut')),
  'translation.beams': Field(4,
    'beams by which evaluations and predictions write; 0: evaluations write nothing',
    allowed='[0, inf)', affects={'judging'}),
  'translation.length_penalty': Field(1.0,
    'a text is as good as its log-probability, divided by its length to this power',
    affects={'judging'}),
  'translation.early_stopping': Field(False,
    'a search ends as soon as it has as many texts as beams',
    affects={'judging'}),
}) | {
  'translation.label_smoothing': Field(0.1,
    'share of probability spread over all words', allowed='[0, 1)'),
}  # fmt: skip
# The base model of Vaswani et al. 2017 (section 5), with about as many tokens in a step.
DEFAULTS = {
  'batch_size': 128,
  'steps': 100_000,
  'epochs': 0.0,
  'data.seq_length': 256,
  'tokenizer.kind': 'unigram',
  'tokenizer.do_lower_case': False,
  'model.type_vocab_size': 0,
  'model.position_embeddings': 'sinusoidal',
  'model.embedding_scale': True,
  'model.embedding_norm': False,
  'model.hidden_act': 'relu',
  'model.mlm_head': 'none',
  'optimizer.learning_rate': 7e-4,
  'optimizer.schedule': 'inverse_sqrt',
  'optimizer.warmup': 4000.0,
  'optimizer.beta2': 0.98,
  'optimizer.eps': 1e-9,
  'optimizer.weight_decay': 0.0,
  'optimizer.clip_norm': 0.0,
  'checkpoint.best_metric': 'bleu',
}


def decoder_rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  """Yields (what must hold, the sentence if it does not) for a model with a decoder."""
  sentence = models.unsupported(models.ModelConfig(**config.model), causal=True)
  yield not sentence, sentence
  causal = 'model.causal=true would hide the rest of a source from its encoder; set it to false.'
  yield not config.model.causal, causal


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  yield from labelled.rules(config)
  yield from decoder_rules(config)
  fields, longest = config.translation, config.model.max_position_embeddings
  length, best = task.limits(config)[1], config.checkpoint.best_metric
  yield (
    not models.has_position_table(config.model) or length <= longest,
    f'translation.target_length {length} is longer than model.max_position_embeddings {longest}; '
    'raise the one, lower the other, or set task.max_length.',
  )
  yield (
    fields.beams > 0 or best not in task.SCORES,
    f'checkpoint.best_metric={best} is of what an evaluation writes, and with translation.beams=0 '
    'it writes nothing; set it to 1 or more.',
  )


def from_released(config: ConfigDict, released: Released) -> None:
  config.translation.begin = released.begin
  writing = {'beams': 1, **released.writing}
  with config.translation.ignore_type():  # config.check looks at them
    for name in ('beams', 'length_penalty', 'early_stopping'):
      if name in writing:
        config.translation[name] = writing[name]


BEAMS = 4  # of a model that was trained with translation.beams=0


class Translate(OfHead):
  """Translates {"text"} by beam search. beams: None: as in evaluations. Texts that are too long are
  cut, and counted."""

  examples_of, shows = Pairs, ('prediction', 'score')
  columns = {'text': 'translation.source_column'}

  def __init__(self, model: Any, beams: int | None = None):
    trained = model.objective
    self.objective = dataclasses.replace(
      trained,
      model=trained.model.with_vocab_size(model.tokenizer.vocab_size),
      beams=beams or trained.beams or BEAMS,
    )
    super().__init__(model)

  def outputs(self, params: dict, batch: dict) -> dict[str, Any]:
    return self.objective.predict(params, batch)

  def record(self, fields: dict[str, Any]) -> Pair:
    return Pair('', '', texts_in(fields, self.fields)[0], None)

  def returned(self, answers: list[dict | None]) -> list[str | None]:
    return [answer['prediction'] if answer else None for answer in answers]


OPTIONS = {'beams': Option(int, 'beam search with so many; default: as in its config', 1)}

PARTS = 'encoder', 'decoder', 'mlm'
HEADS = (Head('ForConditionalGeneration', PARTS, 'text2text-generation'),)
LACKS = 'decoder that was trained on pairs; train one with configs/translate.py'

TRANSLATION = labelled.family(
  'translation',
  objective=task.objective,
  texts=task.texts,
  sources=task.sources,
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
