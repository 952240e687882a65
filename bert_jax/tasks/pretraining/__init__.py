"""Pre-training on a corpus: masked language model and next-sentence prediction (BERT, 3.1)."""

from collections.abc import Iterator

from ml_collections import ConfigDict

from bert_jax.errors import quoted
from bert_jax.field import pairs_with_positive_numbers
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.tasks import remarks
from bert_jax.tasks.ask import TOP_K
from bert_jax.tasks.pretraining import task
from bert_jax.tasks.pretraining.ask import FillMask, NextSentence, Perplexity
from bert_jax.tasks.pretraining.fields import CORPUS, EVAL_MASKING, LOSS, MASKING
from bert_jax.tasks.pretraining.generate import GENERATE
from bert_jax.tasks.record import Card, Family, Head, Prediction, Released
from bert_jax.timeline import values_of


def rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  policies = values_of(config.masking.policy)
  weight, model, rows = config.loss.nsp_weight, config.model, config.corpus.rows
  for block in ('masking', 'eval_masking'):
    much = f'{block}.mask_share and {block}.random_share add up to more than 1.'
    yield config[block].mask_share + config[block].random_share <= 1, much
  no_pairs = f'loss.nsp_weight is {weight} but corpus.rows={rows} makes no sentence pairs'
  yield weight == 0 or rows in PAIRS, f'{no_pairs}; set loss.nsp_weight=0 or corpus.rows=nsp.'
  yield from length_rules(config)
  one_type = 'NSP rows have two token types; set model.type_vocab_size to 2, or to 0 for none.'
  yield weight == 0 or model.type_vocab_size != 1, one_type
  row, window = config.data.seq_length, model.attention_window
  sees_all = model.global_attention_every or model.global_tokens  # so does [CLS]
  near = (
    f'[CLS] sees {window // 2} tokens of a pair of up to {row} (model.attention_window); set '
    'model.global_attention_every or model.global_tokens, or loss.nsp_weight=0.'
  )
  yield weight == 0 or sees_all or not 0 < window < 2 * (row - 1), near
  no_spans = (
    f'loss.sbo_weight is {config.loss.sbo_weight} but masking.policy={config.masking.policy} masks '
    'no spans; set masking.policy=span, or loss.sbo_weight=0.'
  )
  yield not config.loss.sbo_weight or policies == ('span',), no_spans
  odd = f'corpus.weights is {quoted(config.corpus.weights)}; write ((language, factor), ...)'
  wanted = f'{odd} with factors above 0; corpus.languages leaves languages out.'
  yield pairs_with_positive_numbers(config.corpus.weights), wanted


def rules_of_words_alone(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  """The rules of an objective that predicts words only, without sentence pairs or spans."""
  for name in ('nsp_weight', 'sbo_weight'):
    fault = f'loss.{name} is {config.loss[name]}, and {config.objective} has no such term'
    yield not config.loss[name], f'{fault}; set it to 0.'


def length_rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  """The rules for rows whose length changes by step (corpus.lengths)."""
  if not (lengths := task.lengths(config)):
    return
  model, longest, setting = config.model, config.data.seq_length, config.corpus.lengths
  most = f'use at most {longest}, or raise data.seq_length'
  yield max(lengths) <= longest, f'corpus.lengths={setting} is longer than a row; {most}.'
  cuts = f'corpus.lengths={setting} cuts rows in training'
  parts = 'which would part the sentences of a pair'
  yield not config.loss.nsp_weight, f'{cuts}, {parts}; set loss.nsp_weight=0 and corpus.rows=full.'
  mixes = 'and a Fourier transform mixes all that is in a row'
  yield model.mixer != 'fourier', f'{cuts}, {mixes}; choose another model.mixer.'
  follows = 'and a memory goes on from row to row'
  yield not model.memory_length, f'{cuts}, {follows}; set model.memory_length=0.'


def rules_to_begin(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  masking, tokens = config.masking, config.data.seq_length
  most, rate = masking.max_predictions_per_seq, masking.masked_lm_prob
  takes = task.most_predictions(rate, tokens)
  # Published caps round the rate up or down: 20 of 128 tokens, 76 and 77 of 512.
  few = (
    f'masking.max_predictions_per_seq is {most}, and masking.masked_lm_prob={rate:g} of {tokens}'
  )
  advice = f'tokens takes {takes}; set it to {takes} or more, or to 0 for as many as it takes.'
  yield most in (0, takes) or most >= int(rate * tokens), f'{few} {advice}'


def from_released(config: ConfigDict, released: Released) -> None:
  config.masking.max_predictions_per_seq = max(1, round(0.15 * released.limit))
  if not {'pooler', 'nsp'} & set(released.parts):
    config.loss.nsp_weight, config.corpus.rows = 0.0, 'full'
  else:
    config.corpus.rows = released.pairs


def card(config: ConfigDict) -> Card:
  pair = config.loss.nsp_weight and PAIRS[config.corpus.rows]
  trained_for = f'masked words and {pair.words}' if pair else 'masked words alone'
  return Card(trained_for, languages=config.corpus.languages)


def card_of_corpus(config: ConfigDict) -> Card:
  """The Card of a family that is trained on a corpus and called by its name."""
  return Card(f'`{config.objective}`', languages=config.corpus.languages)


SBO = {'sbo': 'loss.sbo_weight'}
MASKED_LM = 'masked-LM head; use a pre-trained one'
PAIR_HEAD = 'next-sentence head; use one pre-trained with loss.nsp_weight above 0'

PRETRAINING = Family(
  name='mlm_nsp',
  resolve=task.resolve,
  texts=task.texts,
  objective=task.objective,
  sources=task.sources,
  main_metric=lambda config: 'mlm',
  fields=CORPUS | MASKING | EVAL_MASKING | LOSS,
  rules=rules,
  rules_to_begin=rules_to_begin,
  judged_under=task.judged_under,
  remarks=remarks.remarks,
  reads_corpus=True,
  predictions={
    'fill-mask': Prediction(FillMask, ('mlm',), MASKED_LM, options={'top_k': TOP_K}),
    'perplexity': Prediction(Perplexity, ('mlm',), MASKED_LM),
    'next-sentence': Prediction(NextSentence, ('pooler', 'nsp'), PAIR_HEAD),
    'generate': GENERATE,
  },
  heads=(
    Head('ForPreTraining', ('encoder', 'pooler', 'mlm', 'nsp'), 'fill-mask', training_only=SBO),
    Head('ForMaskedLM', ('encoder', 'mlm'), 'fill-mask', training_only=SBO),
    Head('ForNextSentencePrediction', ('encoder', 'pooler', 'nsp')),
    Head('Model', ('encoder',), 'feature-extraction'),
  ),
  from_released=from_released,
  card=card,
)
