"""Makes the rows of pre-training from text or prepared corpora, with baselines to beat."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.corpus import loading, tokenized
from bert_jax.errors import InputError, log
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.rows.corpus_rows import Rows
from bert_jax.rows.language_mixture import Mixture, language_shares
from bert_jax.rows.plans import Cutting
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.tasks import labelled
from bert_jax.tasks.pretraining import baselines, resolution
from bert_jax.timeline import values_of
from bert_jax.tokenizers import Tokenizer

SHARES = 'masked_lm_prob', 'mask_share', 'random_share'


class Language(NamedTuple):
  """The text of one language in one split, and its rows."""

  number: int  # of the language, in a batch
  rows: Rows
  counts: np.ndarray  # [V] how often each piece occurs in it
  train_tokens: int  # of the language in training
  train_counts: np.ndarray  # [V]
  share: float  # of the tokens that are seen


def lengths(config: ConfigDict) -> tuple[int, ...]:
  """The row lengths in corpus.lengths, stage by stage."""
  return tuple(map(int, values_of(config.corpus.lengths)))


def most_predictions(rate: float, tokens: int) -> int:
  """The number of predictions in a row of so many tokens at a masking rate, rounded up."""
  return math.ceil(round(rate * tokens, 6))


# -- the objective ---------------------------------------------------------------------------------


def judged_under(config: ConfigDict) -> dict[str, Any]:
  """The seed and the masking of an evaluation, on which its numbers depend, {name: value}."""
  masking = config.eval_masking
  return {
    'eval.seed': config.eval.seed,
    'eval_masking.policy': masking.policy,
    **{f'eval_masking.{name}': masking[name] for name in SHARES},
    'predictions per row': most_predictions(masking.masked_lm_prob, config.data.seq_length),
  }


def objective(
  config: ConfigDict, tokenizer: Tokenizer, kind: type = MlmNsp, masks: bool = True, **fields: Any
) -> Any:
  """The objective of a config, a `kind` of MlmNsp with these further `fields`. masks: it needs
  [MASK]."""
  masking, length = config.masking, config.data.seq_length
  corruption = {
    **{name: masking[name] for name in SHARES},
    'policies': values_of(masking.policy),
    'vocab_size': tokenizer.vocab_size,
    'special_ids': tokenizer.special_ids,
    # Rows need a [CLS]; vectors, which T5's encoder makes, need neither.
    'mask_id': tokenizer.mask_id if masks and '[CLS]' in tokenizer.reserved else None,
    'max_predictions': most_predictions(masking.masked_lm_prob, length),
  }
  in_evaluations = {
    **{name: config.eval_masking[name] for name in SHARES},
    'policies': (config.eval_masking.policy,),
    'max_predictions': most_predictions(config.eval_masking.masked_lm_prob, length),
  }
  return labelled.objective(
    kind,
    config,
    config.loss.nsp_weight,
    corruption,
    eval_masking=in_evaluations,
    sbo_weight=config.loss.sbo_weight,
    pairs=pairs_of(config),
    lengths=lengths(config),
    languages=tuple(config.corpus.languages),
    **fields,
  )


def pairs_of(config: ConfigDict) -> str:
  """The kind of sentence pairs of a config's head, also if its rows have no pairs."""
  return config.corpus.rows if config.corpus.rows in PAIRS else 'nsp'


# -- rows ------------------------------------------------------------------------------------------


def sources(
  config: ConfigDict, tokenizer: Tokenizer, splits: Sequence[str] = ('train', 'eval')
) -> dict[str, Any]:
  """The rows of each split, {split: source}, with baselines."""
  return {split: source for split, source, _ in with_languages(config, tokenizer, splits)}


def with_languages(
  config: ConfigDict, tokenizer: Tokenizer, splits: Sequence[str]
) -> Iterator[tuple[str, Any, dict[str, Language]]]:
  """Yields (split, its source with baselines, {name of a language: its Language}). With data.eval
  empty, documents are held out by a hash of their text."""
  # `resolve` checks this before a training; an evaluation may come with another policy.
  resolution.check_marks(config, loading.metas(config.data.train, config.corpus.languages))
  loaded = _loaded(config, tokenizer)
  for split in splits:
    if not loaded[split]:
      continue
    languages = _languages(config, tokenizer, split, loaded)
    if len(languages) == 1:
      source = next(iter(languages.values())).rows
    else:
      source = _mixture(languages)
    _add_baselines(config, tokenizer, split, source, languages)
    yield split, source, languages


def _loaded(config, tokenizer):
  """{split: {language: (corpus, how often each piece occurs in it [V])}}."""
  data = config.data
  train, evaluated = {}, {}
  share = 0.0 if data.eval else config.corpus.eval_share
  for name, (whole, counts) in loading.load(config, data.train, tokenizer, 'train').items():
    kept, held_out = whole.divided(share)
    if held_out is not None:
      held_counts = held_out.unigrams(tokenizer.vocab_size)
      evaluated[name] = held_out, held_counts
      counts = np.maximum(counts - held_counts, 0)
    train[name] = kept, counts
  if data.eval:
    evaluated = loading.load(config, data.eval, tokenizer, 'eval')
  return {'train': train, 'eval': evaluated}


def _languages(config, tokenizer, split, loaded):
  """{name: Language} of a split. Its `share` is the share of the text in an evaluation, and in
  training the share that corpus.sampling gives it."""
  corpora = _large_enough(config, split, loaded[split])
  numbers = {name: number for number, name in enumerate(loaded['train'])}
  sampling = config.corpus.sampling if split == 'train' else 1.0
  sizes = {name: len(corpus) for name, (corpus, _) in corpora.items()}
  shares = language_shares(sizes, sampling)
  out = {}
  for name, (corpus, counts) in corpora.items():
    train_corpus, train_counts = loaded['train'][name]
    out[name] = Language(
      number=numbers[name],
      rows=_rows(config, corpus, tokenizer, split, numbers[name], f'{split} {name}'.strip()),
      counts=counts,
      train_tokens=len(train_corpus),
      train_counts=train_counts,
      share=shares[name],
    )
  return out


def _large_enough(config, split, corpora):
  """The corpora that have enough documents; InputError if there is none, or if one for training
  has too few."""
  needed = resolution.documents_needed(config)
  few = [name for name, (corpus, _) in corpora.items() if corpus.number_of_documents < needed]
  if few and (split == 'train' or len(few) == len(corpora)):
    number = corpora[few[0]][0].number_of_documents
    raise InputError(
      f'the {split} data: {few[0] or "it"} has {number} documents, and '
      f'corpus.rows={config.corpus.rows} needs {needed}; change '
      f'corpus.eval_share={config.corpus.eval_share}, the share of documents held out while '
      'data.eval is empty, or give more documents: a blank line ends one in a file of text (with '
      'corpus.format=paragraphs a file is one).'
    )
  if few:
    log.warning(
      'eval: too few documents to evaluate on %s; raise corpus.eval_share, or give data.eval',
      ', '.join(few),
    )
  return {name: loaded for name, loaded in corpora.items() if name not in few}


def _rows(config, corpus, tokenizer, split, language, place):
  """The rows of a corpus. language: its number; place: split and language, for messages."""
  drawn_by = config.eval.seed if split == 'eval' else config.seed
  cutting = Cutting(
    kind=config.corpus.rows,
    seq_length=config.data.seq_length,
    short_seq_prob=config.corpus.short_seq_prob,
    dupe_factor=config.corpus.dupe_factor if split == 'train' else 1,
    examples_per_row=config.data.examples_per_row,
  )
  seed = drawn_by, split == 'eval', language
  rows = Rows(corpus, tokenizer, cutting, seed=seed, language=language)
  repeated = f', of which rows are made {rows.cuts} times' if rows.cuts > 1 else ''
  cut, kept = rows.totals['cut_tokens'], rows.totals['tokens']
  log.info(
    f'{place}: {corpus.number_of_documents:,} documents, {len(corpus):,} tokens{repeated} -> '
    f'{len(rows):,} rows of {config.data.seq_length}, {100 * rows.fill:.1f} % filled, '
    f'{100 * cut / max(1, cut + kept):.1f} % of the tokens of examples cut to fit'
  )
  if rows.units > 1:
    log.info(
      f'{place}: planned in {rows.units} units; '
      f'rows of a pass that are left out, or twice: {100 * rows.missed:.2f} %'
    )
  return rows


def _mixture(languages):
  """The Mixture of the rows of several languages, each in proportion to its share of the tokens."""
  rows, weights = {}, {}
  for name, language in languages.items():
    tokens_per_row = language.rows.totals['tokens'] / len(language.rows)
    rows[name] = language.rows
    weights[name] = language.share / tokens_per_row
  total = sum(weights.values())
  return Mixture(rows, {name: weight / total for name, weight in weights.items()})


def _add_baselines(config, tokenizer, split, source, languages):
  """Adds the baselines of the losses of pieces that are predicted from their own places, and of
  sentence pairs."""
  terms = ['mlm']
  if config.loss.sbo_weight:
    terms.append('sbo')
  if 'language_model' in config:
    terms.append('bound')
  counts = {}
  for name, language in languages.items():
    in_training = tokenized.predictable(language.train_counts, tokenizer)
    counts[name] = in_training, tokenized.predictable(language.counts, tokenizer)
  level = baselines.add(source, terms, languages, counts)
  if config.loss.nsp_weight:
    totals = [language.rows.totals for language in languages.values()]
    baselines.add_pairs(source, pairs_of(config), totals)
  log.info(
    f'{split}: unigram cross-entropy {level:.3f} nats per token; '
    'a loss of predicted tokens that stays there has learned frequencies only'
  )
