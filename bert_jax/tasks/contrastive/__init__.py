"""Sentence vectors, learned from pairs, triples, scored pairs, paragraphs with questions, lines."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.field import Field, affecting
from bert_jax.models.pooling import POOLINGS
from bert_jax.objectives.contrastive import LOSSES
from bert_jax.tasks import labelled, remarks
from bert_jax.tasks.contrastive import reading, task
from bert_jax.tasks.record import Head
from bert_jax.tokenizers import Tokenizer

FIELDS = affecting({'rows'}, {
  'contrastive.loss': Field('in_batch',
    'in_batch: the global batch has the negatives; cosent: pairs with scores', allowed=LOSSES),
  'contrastive.anchor_column': Field('anchor|question|query|sentence1',
    'column of the anchor; a|b: the first of these that is there'),
  'contrastive.positive_column': Field('positive|paragraph|answer|sentence2',
    'column of its positive, a|b as above; empty: the text under another dropout (SimCSE)'),
  'contrastive.negative_columns': Field((), 'columns of hard negatives', allowed=str),
  'contrastive.score_column': Field('',
    'column of the score of a pair, for cosent and, in a table, data.eval; empty: none'),
  'contrastive.columns': Field((),
    'columns of a TSV without header; empty: it has one', allowed=str),
  'contrastive.eval_format': Field('', 'the format of data.eval; empty: task.format',
    allowed=('', *reading.FORMATS)),
}) | {
  'contrastive.temperature': Field(0.05,
    'similarities are divided by it; 1 / the scale of sentence-transformers', allowed='(0, inf)'),
  'contrastive.widths': Field((),
    'widths of which each has a loss (Matryoshka); (): only the whole'),
  'contrastive.pooling': Field('mean',
    'how a text is pooled: mean of hidden states, [CLS], ..; unless set: as of init_from',
    allowed=POOLINGS),
  'contrastive.normalize': Field(True,
    'vectors have length 1: similarity is the cosine; false: the product'),
  'contrastive.chunks': Field(1,
    'parts a batch is encoded in, as one (GradCache)', allowed='[1, inf)'),
}  # fmt: skip
DEFAULTS = {'batch_size': 64, 'data.examples_per_row': 2, 'optimizer.learning_rate': 2e-5}


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  fields, data, model = config.contrastive, config.data, config.model
  texts, batch_size = task.texts_per_item(config), config.batch_size
  yield from labelled.rules(config)
  yield (
    data.examples_per_row % texts == 0,
    f'data.examples_per_row is {data.examples_per_row}; use a multiple of {texts}, the texts of an '
    'item, which share a row.',
  )
  yield (
    data.seq_length >= 8 * texts,
    f'data.seq_length {data.seq_length} has no room for {texts} texts of 8 tokens; raise it.',
  )
  parts = config.optimizer.accumulation
  yield (
    parts == 1,
    f'optimizer.accumulation={parts} would part the batch that negatives come from; set it to 1, '
    f'and contrastive.chunks={parts} for as little memory.',
  )
  yield (
    batch_size % fields.chunks == 0,
    f'batch_size {batch_size} does not divide into contrastive.chunks={fields.chunks}; use a '
    'divisor.',
  )
  yield from loss_rules(config)
  yield from data_rules(config)
  yield (
    fields.pooling != 'cls' or not model.causal,
    'the [CLS] of a causal model sees no text; set contrastive.pooling=lasttoken, or mean.',
  )


def data_rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  """Rules for texts that are their own positives, and for what is evaluated."""
  data, model = config.data, config.model
  is_own_positive = config.task.format == 'lines'
  if config.task.format == 'table':
    is_own_positive = not config.contrastive.positive_column
  yield (
    not is_own_positive or model.hidden_dropout_prob + model.attention_probs_dropout_prob > 0,
    'a text that is its own positive is told from itself by dropout, and there is none; set '
    'model.hidden_dropout_prob=0.1.',
  )
  yield (
    not data.eval or reading.format_of(config, 'eval') != 'lines',
    'data.eval would be lines, which nothing can be judged by; set contrastive.eval_format to '
    'table or squad.',
  )


def loss_rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  """Rules for what is learned of the vectors: their widths, and scores."""
  fields = config.contrastive
  width = task.width_of(config)
  are_widths = all(type(x) is int and 0 < x <= width for x in fields.widths)
  yield (
    are_widths and len(set(fields.widths)) == len(fields.widths),
    f'contrastive.widths is {fields.widths}; name different whole numbers up to the width of the '
    f'vectors, {width}.',
  )
  if fields.loss == 'cosent':
    yield (
      fields.score_column and not fields.negative_columns and config.task.format == 'table',
      'contrastive.loss=cosent learns the scores of pairs in a table; name their score_column, '
      'leave negative_columns empty, and set task.format=table.',
    )


def remarks_on(config: ConfigDict, tokenizer: Tokenizer, sources: Mapping[str, Any]) -> list[str]:
  # Of 'train' alone: among the texts to rank, answers of the training data are as expected.
  return remarks.about_examples(config, tokenizer, {'train': sources['train']})


HEAD = Head('Model', ('encoder',), 'sentence-similarity', import_as_this_family=False)

CONTRASTIVE = labelled.family(
  'contrastive',
  objective=task.objective,
  texts=task.texts,
  sources=task.sources,
  formats=reading.FORMATS,
  main_metric=lambda config: task.score_names(config)[-1],
  fields=FIELDS,
  defaults=DEFAULTS,
  rules=rules,
  remarks=remarks_on,
  microbatches=lambda config: config.contrastive.chunks,
  vector=('contrastive.pooling', 'contrastive.normalize'),
  has_teacher=False,
  heads=(HEAD, HEAD._replace(causal=True)),
)
