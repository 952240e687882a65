"""Sentence vectors, learned from pairs, triples, scored pairs, paragraphs with questions, lines."""

from collections.abc import Iterator

from ml_collections import ConfigDict

from bert_jax.tasks import labelled
from bert_jax.tasks.contrastive import reading, task
from bert_jax.tasks.contrastive.fields import DEFAULTS, FIELDS
from bert_jax.tasks.record import Head


def rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  yield from labelled.rules(config)
  fields, data, texts = config.contrastive, config.data, task.texts_per_item(config)
  per_row, model, batch_size = data.examples_per_row, config.model, config.batch_size
  head = (
    f'the answers of the teacher {config.teacher} are those of a head, and contrastive has none'
  )
  yield not config.teacher, f'{head}; leave teacher empty.'
  fits = f'a multiple of {texts}, the texts of an item, which share a row'
  yield per_row % texts == 0, f'data.examples_per_row is {per_row}; use {fits}.'
  few = f'data.seq_length {data.seq_length} has no room for {texts} texts of 8 tokens; raise it.'
  yield data.seq_length >= 8 * texts, few
  has_others = batch_size * (per_row // texts) >= 2 or bool(fields.negative_columns)
  alone = f'batch_size {batch_size} is too small: a batch of one pair has no other text'
  yield has_others, f'{alone} to tell its positive from; use 2 at least, better 64 or more.'
  parts = config.optimizer.accumulation
  apart = f'optimizer.accumulation={parts} would part the batch that negatives come from'
  yield parts == 1, f'{apart}; set it to 1, and contrastive.chunks={parts} for as little memory.'
  chunks = f'batch_size {batch_size} does not divide into contrastive.chunks={fields.chunks}'
  yield batch_size % fields.chunks == 0, f'{chunks}; use a divisor.'
  whole = all(type(x) is int and 0 < x <= model.hidden_size for x in fields.widths)
  odd = (
    f'contrastive.widths is {fields.widths}; name different whole numbers up to the width of the'
  )
  distinct = len(set(fields.widths)) == len(fields.widths)
  yield whole and distinct, f'{odd} model, {model.hidden_size}.'
  if fields.loss == 'cosent':
    of_cosent = 'contrastive.loss=cosent'
    yield bool(fields.score_column), f'{of_cosent} learns scores; name their score_column.'
    yield (
      not fields.negative_columns,
      f'{of_cosent} has no negatives; leave negative_columns empty.',
    )
    table = config.task.format == 'table'
    yield table, f'{of_cosent} reads scores, which are in tables; set task.format=table.'
  simcse = {'lines': True, 'table': not fields.positive_column}.get(config.task.format, False)
  drops = model.hidden_dropout_prob + model.attention_probs_dropout_prob > 0
  twice = 'a text that is its own positive is told from itself by dropout, and there is none'
  yield drops or not simcse, f'{twice}; set model.hidden_dropout_prob=0.1.'
  lines = config.data.eval and reading.format_of(config, 'eval') == 'lines'
  judged = 'data.eval would be lines, which nothing can be judged by'
  yield not lines, f'{judged}; set contrastive.eval_format to table or squad.'
  first = fields.pooling == 'cls' and model.causal
  yield not first, 'the [CLS] of a causal model sees no text; set contrastive.pooling=mean.'


CONTRASTIVE = labelled.family(
  'contrastive',
  task,
  formats=reading.FORMATS,
  main_metric=lambda config: task.score_names(config)[-1],
  fields=FIELDS,
  defaults=DEFAULTS,
  rules=rules,
  microbatches=lambda config: config.contrastive.chunks,
  vector=lambda config: (config.contrastive.pooling, config.contrastive.normalize),
  heads=tuple(
    Head('Model', ('encoder',), 'sentence-similarity', causal=causal, import_as_this_family=False)
    for causal in (False, True)
  ),
  from_released=lambda config, released: None,
)
