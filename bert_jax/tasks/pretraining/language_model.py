"""Language models of all kinds on a corpus: causal, masked, hybrid, diffusion, or by step."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax import models
from bert_jax.field import Field
from bert_jax.models.positions import POSITIONS
from bert_jax.objectives import language_model
from bert_jax.objectives.encode import next_tokens
from bert_jax.rows.sentence_pairs import PAIRS
from bert_jax.tasks.pretraining import (
  EVAL_MASKING,
  MASKING,
  OF_WORDS,
  PRETRAINING,
  rules_of_words_alone,
  task,
  words_alone,
)
from bert_jax.tasks.pretraining.baselines import add
from bert_jax.tasks.pretraining.generate import GENERATE
from bert_jax.tasks.record import Head, Released
from bert_jax.timeline import values_of
from bert_jax.tokenizers import Tokenizer

FIELDS = {
  'language_model.kind': Field('causal',
    'causal, masked, hybrid or diffusion; or by step, as in causal,masked@20000, or '
    'causal,masked@0.5: from half of the steps on',
    allowed=language_model.KINDS, by_step=True),
  'language_model.causal_share': Field(0.5, 'share of the rows of a hybrid', allowed='[0, 1]'),
  'language_model.writing': Field((),
    'how it writes, as its release says: ((ends, ids of the pieces that end a text), ...); what '
    'else is here goes into the generation_config.json of an export'),
  'language_model.eval_memory': Field(0,
    'model.memory_length in evaluations, which may be longer; 0: as in training',
    allowed='[0, inf)', affects={'judging'}),
}  # fmt: skip
DEFAULTS = {'model.causal': True, 'corpus.rows': 'lm', 'loss.nsp_weight': 0.0}


def stages(config: ConfigDict) -> tuple[str, ...]:
  """The kinds of language model (causal, masked, ..) that are trained, stage by stage."""
  return values_of(config.language_model.kind)


def objective(config: ConfigDict, tokenizer: Tokenizer) -> language_model.LanguageModel:
  return task.objective(
    config,
    tokenizer,
    language_model.LanguageModel,
    masks={*stages(config)} != {'causal'},
    stages=stages(config),
    causal_share=config.language_model.causal_share,
    eval_memory=config.language_model.eval_memory,
  )


def main_metric(config: ConfigDict) -> str:
  """The name of the last stage's loss; for a hybrid, of its causal rows if it has any."""
  hybrid = 'causal' if config.language_model.causal_share else 'masked'
  return language_model.TERMS[stages(config)[-1].replace('hybrid', hybrid)]


def judged_under(config: ConfigDict) -> dict[str, Any]:
  """As in other pre-training, and the lanes, since a memory is empty where each of them begins."""
  memory = config.language_model.eval_memory or config.model.memory_length
  lanes = f'{config.batch_size} with a memory of {memory}' if memory else ''
  return PRETRAINING.judged_under(config) | {'lanes': lanes}


def rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  yield from rules_of_words_alone(config)
  kinds, rows, model = stages(config), config.corpus.rows, config.model
  setting = f'language_model.kind={config.language_model.kind}'
  yield (
    'hybrid' not in kinds or len(kinds) == 1,
    f'{setting}: a hybrid does not change by step; leave out the other kinds.',
  )
  all_rows_causal = kinds[-1] == 'hybrid' and config.language_model.causal_share == 1
  causal = kinds[-1] == 'causal' or all_rows_causal
  ends = 'is causal' if causal else 'is not causal'
  yield (
    model.causal == causal,
    f'{setting} ends with a model that {ends}, and model.causal is {str(model.causal).lower()}; '
    f'set model.causal={str(causal).lower()}.',
  )
  yield from memory_rules(config, kinds)
  yield (
    rows not in PAIRS,
    f'corpus.rows={rows} makes pairs, of which a language model knows nothing; set it to lm.',
  )
  sees = 'by row' if 'hybrid' in kinds or len(set(kinds)) > 1 else causal
  blind = dataclasses.replace(models.ModelConfig(**model), causal=False)
  sentence = models.unsupported(blind, sees)
  yield not sentence, sentence


def without_effect(config: ConfigDict) -> tuple[str, ...]:
  """As in other pre-training, and the fields of masks where nothing is masked."""
  idle = [] if {'masked', 'hybrid'} & {*stages(config)} else [*MASKING, *EVAL_MASKING]
  return (*PRETRAINING.without_effect(config), *idle)


def memory_rules(config: ConfigDict, kinds: Sequence[str]) -> Iterator[tuple[bool, str]]:
  """The rules for a model with a memory of earlier rows."""
  model, longer = config.model, config.language_model.eval_memory
  yield (
    model.memory_length or not longer,
    f'language_model.eval_memory={longer} is for a model with a memory; set model.memory_length.',
  )
  if not model.memory_length:
    return
  memory = f'model.memory_length={model.memory_length} gives each row a memory of the one before it'
  follows = [
    (set(kinds) == {'causal'}, 'language_model.kind=causal'),
    (config.corpus.rows == 'lm', 'corpus.rows=lm'),
    (config.data.examples_per_row == 1, 'data.examples_per_row=1'),
    (config.optimizer.accumulation == 1, 'optimizer.accumulation=1'),
  ]
  for holds, needed in follows:
    yield holds, f'{memory}, so rows have to follow each other whole; set {needed}.'
  relative = [name for name, scheme in POSITIONS.items() if scheme.embed is None]
  yield (
    model.position_embeddings in relative,
    f'{memory}, and model.position_embeddings={model.position_embeddings} counts from the '
    f'beginning of a row; use one of {", ".join(relative)}.',
  )


def sources(
  config: ConfigDict, tokenizer: Tokenizer, splits: Sequence[str] = ('train', 'eval')
) -> dict[str, Any]:
  """Rows as in other pre-training, with baselines of each loss, and text sizes for bits."""
  out = {}
  for split, source, languages in task.with_languages(config, tokenizer, splits):
    targets = _add_baseline_of_next_tokens(tokenizer, source, languages)
    _add_scales(config, source, languages, targets)
    out[split] = source
  return out


def _add_baseline_of_next_tokens(tokenizer, source, languages):
  """Adds the baseline of the loss `lm`; returns the number of tokens that are predicted."""
  counts, targets = {}, 0
  for name, language in languages.items():
    totals = language.rows.totals
    predicted = totals['tokens'] - totals['examples']  # all but the first of each stretch
    targets += predicted
    # Ends of stretches are predicted too, as often in all splits.
    ends = predicted / max(1, totals['text_tokens']) - 1
    train_V, here_V = language.train_counts.copy(), language.counts.copy()
    train_V[tokenizer.sep_id] += max(0, round(ends * language.train_tokens))
    here_V[tokenizer.sep_id] += max(0, round(ends * totals['text_tokens']))
    counts[name] = train_V, here_V
  add(source, ('lm',), languages, counts, next_tokens)
  return targets


def _add_scales(config, source, languages, targets):
  """Adds what turns the main loss into bits per character and byte, but for masked words."""
  term, totals = main_metric(config), [language.rows.totals for language in languages.values()]
  if term == 'mlm':  # it says nothing about a whole text
    return
  predicted = targets if term == 'lm' else sum(counted['text_tokens'] for counted in totals)
  for name, unit in (('bits_per_character', 'characters'), ('bits_per_byte', 'bytes')):
    size = sum(counted[unit] for counted in totals)
    if size:
      source.scales[name] = term, predicted / size / math.log(2)


def from_released(config: ConfigDict, released: Released) -> None:
  if not released.makes_vectors:  # any text may be continued
    config.data.seq_length = config.model.max_position_embeddings
  config.language_model.writing = tuple(released.writing.items())


LANGUAGE_MODEL = words_alone(
  'language_model',
  fields={**PRETRAINING.fields, **FIELDS},
  defaults=DEFAULTS,
  objective=objective,
  sources=sources,
  rules=rules,
  without_effect=without_effect,
  main_metric=main_metric,
  judged_under=judged_under,
  predictions={'fill-mask': OF_WORDS['fill-mask'], 'generate': GENERATE} | OF_WORDS,
  heads=(
    Head('LMHeadModel', ('encoder', 'mlm'), 'text-generation', causal=True),
    Head('LMHeadModel', ('encoder',), 'text-generation', causal=True),  # tied to the words
    Head('ForMaskedLM', ('encoder', 'mlm'), 'fill-mask'),
    Head('Model', ('encoder',), 'feature-extraction'),
  ),
  from_released=from_released,
  rows_follow=True,
  writing='language_model.writing',
)
