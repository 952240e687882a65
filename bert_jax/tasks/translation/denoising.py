"""Denoising (BART, Lewis et al. 2019): restores the texts of a corpus after text infilling.

Corpora, rows and held-out documents are the same as in masked pre-training. The model is the
encoder-decoder of translation, and a translation may start from its weights (init_from).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.field import Field
from bert_jax.objectives.translation import Denoising
from bert_jax.tasks import labelled, translation
from bert_jax.tasks.pretraining import CORPUS, PRETRAINING, words_alone
from bert_jax.tokenizers import Tokenizer

RATE = Field(0.3, 'share of the tokens of a text that is hidden', allowed='(0, 1)')
SPAN = Field(3.0, "mean of Poisson's lengths of the spans that are hidden", allowed='(0, 10]')
FIELDS = {'denoising.rate': RATE, 'denoising.mean_span': SPAN}
# The fields of the model are BART's: learned positions, a norm after the embeddings, and GELU.
DEFAULTS = {'corpus.rows': 'full', 'model.type_vocab_size': 0, 'model.mlm_head': 'none'}


def as_pretraining(config: ConfigDict) -> ConfigDict:
  """The config for the corpus functions of masked pre-training, with its defaults, but no pairs."""
  out = config.to_dict()
  for name in PRETRAINING.fields.keys() - CORPUS.keys():
    block, _, field = name.partition('.')
    out.setdefault(block, {})[field] = PRETRAINING.fields[name].default
  out['loss']['nsp_weight'] = 0.0
  return ConfigDict(out)


def resolve(config: ConfigDict) -> ConfigDict:
  resolved = PRETRAINING.resolve(as_pretraining(config)).to_dict()
  return ConfigDict({name: resolved[name] for name in config})


def objective(config: ConfigDict, tokenizer: Tokenizer) -> Denoising:
  hides = {**config.denoising, 'mask_id': tokenizer.mask_id}
  length = config.data.seq_length
  return labelled.objective(Denoising, config, target_length=length, infilling=hides)


def sources(
  config: ConfigDict, tokenizer: Tokenizer, splits: Sequence[str] = ('train', 'eval')
) -> dict[str, Any]:
  out = PRETRAINING.sources(as_pretraining(config), tokenizer, splits)
  for source in out.values():
    source.baselines = {}  # most of a text can be copied, so a unigram baseline means nothing
  return out


def rules(config: ConfigDict) -> Iterator[tuple[Any, str]]:
  pairs = f'corpus.rows={config.corpus.rows} makes pairs; set it to full or single.'
  yield config.corpus.rows in ('full', 'single'), pairs
  cut = f'corpus.lengths={config.corpus.lengths} cuts rows, which denoising reads whole'
  yield not config.corpus.lengths, f'{cut}; leave it empty.'
  yield from PRETRAINING.rules(as_pretraining(config))
  yield from translation.decoder_rules(config)


def remarks(config: ConfigDict, tokenizer: Tokenizer, sources: dict[str, Any]) -> list[str]:
  return PRETRAINING.remarks(as_pretraining(config), tokenizer, sources)


def judged_under(config: ConfigDict) -> dict[str, Any]:
  return {
    'eval.seed': config.eval.seed,
    **{name: config.denoising[name.partition('.')[2]] for name in FIELDS},
  }


DENOISING = words_alone(
  'denoising',
  resolve=resolve,
  objective=objective,
  sources=sources,
  rules=rules,
  judged_under=judged_under,
  remarks=remarks,
  fields=CORPUS | FIELDS,
  defaults=DEFAULTS,
  main_metric=lambda config: 'denoising',
  predictions={},
  heads=translation.HEADS,
  from_released=lambda config, released: None,
)
