"""Pre-training on a corpus: masked language model and next-sentence prediction (BERT, 3.1)."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bert_jax.field import Field, affecting
from bert_jax.objectives.masking import POLICIES
from bert_jax.rows.plans import KINDS
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.tasks.ask import TOP_K
from bert_jax.tasks.pretraining import remarks, resolution, task
from bert_jax.tasks.pretraining.ask import FillMask, NextSentence, Perplexity
from bert_jax.tasks.pretraining.generate import GENERATE
from bert_jax.tasks.record import Card, Family, Head, Prediction, Released
from bert_jax.timeline import values_of

CORPUS = affecting({'rows'}, {
  'corpus.format': Field('auto', 'see text/documents.py',
    allowed=('auto', 'sentences', 'lines', 'paragraphs', 'jsonl', 'wiki', 'wikitext'),
    affects={'rows'}),
  'corpus.text_field': Field('text', 'field of a JSONL or TFDS record that holds the text',
    affects={'rows'}),
  'corpus.eval_share': Field(0.01, 'share of the documents that is held out if data.eval is '
    'empty; raised, and said, where of one short text too few would be', allowed='[0, 1)',
    affects={'rows'}),
  'corpus.rows': Field('nsp', 'what an example is, see rows/plans.py', allowed=KINDS,
    affects={'rows'}),
  'corpus.short_seq_prob': Field(0.1, 'share of pairs with random, lower length', allowed='[0, 1]'),
  'corpus.dupe_factor': Field(5, 'times the corpus is cut into pairs anew', allowed='[1, inf)'),
  'corpus.window': Field(32, 'chunks of a large prepared corpus whose rows are mixed at a time',
    allowed='[1, inf)'),
  'corpus.languages': Field((), 'to use, in order; empty: all that data.train has', allowed=str),
  'corpus.sampling': Field(1.0, 'S: a language is seen in proportion to P(L)^S', allowed='[0, 1]'),
  'corpus.segmenter': Field('', 'marks whole words of Chinese', allowed=('', 'jieba')),
  'corpus.phrases': Field('', 'lexicon, one a line: units of masking.policy=phrase'),
  'corpus.entities': Field('', 'lexicon, one a line: units of masking.policy=entity'),
}) | {
  'corpus.lengths': Field('',
    'how far apart tokens that see each other may be in training, by step, as in '
    '32,64@2000,128@4000 or 32,64@0.3,128@0.6 (rows are cut there); empty: as far as in the row',
    allowed='[8, inf)', by_step=True),
}  # fmt: skip
MASKING = {
  'masking.policy': Field('token',
    'token, whole_word, span, phrase or entity; or by step, as in token,phrase@1000,entity@2000, '
    'or token,phrase@0.5: from half of the steps on',
    allowed=tuple(POLICIES), by_step=True),
  'masking.masked_lm_prob': Field(0.15, 'share of tokens to predict (elsewhere: masking_rate, '
    'mask_rate, mask_ratio, mlm_probability)', allowed='(0, 1)'),
  'masking.mask_share': Field(0.8, 'of these, replaced by [MASK]', allowed='[0, 1]'),
  'masking.random_share': Field(0.1, 'of these, replaced by a random piece; the rest stay',
    allowed='[0, 1]'),
}  # fmt: skip
EVAL_MASKING = affecting({'judging'}, {
  'eval_masking.policy': Field('token',
    'masking.policy in evaluations', allowed=tuple(POLICIES)),
  'eval_masking.masked_lm_prob': Field(0.15, 'share of tokens to predict; it does not follow '
    'masking.masked_lm_prob, so that the losses of runs can be compared', allowed='(0, 1)'),
  'eval_masking.mask_share': Field(0.8, 'of these, replaced by [MASK]', allowed='[0, 1]'),
  'eval_masking.random_share': Field(0.1, 'of these, replaced by a random piece; the rest stay',
    allowed='[0, 1]'),
})  # fmt: skip
LOSS = {
  'loss.nsp_weight': Field(1.0, 'MLM + this * NSP (or SOP); 0: no such head', allowed='[0, inf)'),
  'loss.sbo_weight': Field(0.0, "loss + this * SpanBERT's span boundary objective; 0: no such head",
    allowed='[0, inf)'),
}  # fmt: skip


def rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  model, pairs, spans = config.model, config.loss.nsp_weight, config.loss.sbo_weight
  row, rows = config.data.seq_length, config.corpus.rows
  for block in ('masking', 'eval_masking'):
    yield (
      config[block].mask_share + config[block].random_share <= 1,
      f'{block}.mask_share and {block}.random_share add up to more than 1.',
    )
  yield (
    pairs == 0 or rows in PAIRS,
    f'loss.nsp_weight is {pairs} but corpus.rows={rows} makes no sentence pairs; '
    'set loss.nsp_weight=0 or corpus.rows=nsp.',
  )
  yield from length_rules(config)
  yield (
    not spans or values_of(config.masking.policy) == ('span',),
    f'loss.sbo_weight is {spans} but masking.policy={config.masking.policy} masks no spans; '
    'set masking.policy=span, or loss.sbo_weight=0.',
  )
  decoder, positions = model.mask_decoder, model.max_position_embeddings
  yield (
    not (decoder and (pairs or spans or 'language_model' in config)),
    f'model.mask_decoder={decoder} is for masked words alone; set it to 0.',
  )
  yield (
    not decoder or row <= positions,
    f'model.mask_decoder reads {positions} positions (max_position_embeddings), and '
    f'data.seq_length is {row}; change one of them.',
  )


def without_effect(config: ConfigDict) -> tuple[str, ...]:
  """The fields about pairs of sentences, if rows are none."""
  return () if config.corpus.rows in PAIRS else ('corpus.short_seq_prob', 'corpus.dupe_factor')


def rules_of_words_alone(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  """The rules of an objective that predicts words only, without sentence pairs or spans."""
  for name in ('nsp_weight', 'sbo_weight'):
    weight = config.loss[name]
    yield (
      not weight,
      f'loss.{name} is {weight}, and {config.objective} has no such term; set it to 0.',
    )
  yield from rules(config)


def length_rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  """The rules for rows whose length changes by step (corpus.lengths)."""
  lengths, longest = task.lengths(config), config.data.seq_length
  if not lengths:
    return
  yield (
    max(lengths) <= longest,
    f'corpus.lengths is longer than a row; use at most {longest}, or raise data.seq_length.',
  )
  whole_rows = [
    (config.loss.nsp_weight, 'pairs of sentences', 'loss.nsp_weight=0 and corpus.rows=full'),
    (config.model.mixer == 'fourier', 'a Fourier transform', 'another model.mixer'),
    (config.model.memory_length, 'a memory of the last row', 'model.memory_length=0'),
  ]
  for is_there, what, advice in whole_rows:
    yield not is_there, f'corpus.lengths cuts rows, and {what} needs them whole; set {advice}.'


def from_released(config: ConfigDict, released: Released) -> None:
  config.corpus.rows = released.pairs
  if not {'pooler', 'nsp'} & set(released.parts):
    config.loss.nsp_weight, config.corpus.rows = 0.0, 'full'


def card(config: ConfigDict) -> Card:
  pair = config.loss.nsp_weight and PAIRS[config.corpus.rows]
  trained_for = f'masked words and {pair.words}' if pair else 'masked words alone'
  return Card(trained_for, languages=config.corpus.languages)


def words_alone(name: str, **changes: Any) -> Family:
  """Makes the record of another objective on the rows of PRETRAINING, without sentence pairs."""

  def card(config: ConfigDict) -> Card:
    return Card(f'`{name}`', languages=config.corpus.languages)

  usual: dict[str, Any] = {'predictions': OF_WORDS, 'rules': rules_of_words_alone, 'card': card}
  return dataclasses.replace(PRETRAINING, name=name, **{**usual, **changes})


SBO = {'sbo': 'loss.sbo_weight'}
MASKED_LM = 'masked-LM head; use a pre-trained one'
FILLS = (
  'masked-LM head, or is causal, and so knows nothing of the text behind a [MASK]; use a '
  'pre-trained, masked one'
)
PAIR_HEAD = 'next-sentence head; use one pre-trained with loss.nsp_weight above 0'

OF_WORDS = {
  'fill-mask': Prediction(FillMask, ('mlm',), FILLS, options={'top_k': TOP_K}),
  'perplexity': Prediction(Perplexity, ('mlm',), MASKED_LM),
  'generate': GENERATE,
}

PRETRAINING = Family(
  name='mlm_nsp',
  resolve=resolution.resolve,
  texts=resolution.texts,
  objective=task.objective,
  sources=task.sources,
  main_metric=lambda config: 'mlm',
  fields=CORPUS | MASKING | EVAL_MASKING | LOSS,
  rules=rules,
  without_effect=without_effect,
  judged_under=task.judged_under,
  remarks=remarks.remarks,
  reads_corpus=True,
  predictions=OF_WORDS | {'next-sentence': Prediction(NextSentence, ('pooler', 'nsp'), PAIR_HEAD)},
  heads=(
    Head('ForPreTraining', ('encoder', 'pooler', 'mlm', 'nsp'), 'fill-mask', training_only=SBO),
    Head('ForMaskedLM', ('encoder', 'mlm'), 'fill-mask', training_only=SBO),
    Head('ForNextSentencePrediction', ('encoder', 'pooler', 'nsp')),
    Head('Model', ('encoder',), 'feature-extraction'),
  ),
  from_released=from_released,
  card=card,
)
