"""Denoising (BART, Lewis et al. 2019): the texts of a corpus from what infilling leaves of them.

Corpora, rows and held-out documents are those of masked pre-training; the model is that of
translation, which a run of it is the beginning of (init_from).
"""

import dataclasses

from bert_jax import models
from bert_jax.field import Field
from bert_jax.objectives.translation import Denoising
from bert_jax.tasks import translation
from bert_jax.tasks.pretraining import PRETRAINING
from bert_jax.tasks.pretraining import task as pretraining

FIELDS = {
  'denoising.mean_span': Field(float, '(0, 10]',
    "mean of Poisson's lengths of the spans; masking.masked_lm_prob is the share of tokens in them",
    3.0),
}  # fmt: skip
# Of the model's they are BART's: learned positions, a norm after the embeddings, and GELU.
DEFAULTS = {'corpus.rows': 'full', 'loss.nsp_weight': 0.0, 'masking.masked_lm_prob': 0.3,
            'eval_masking.masked_lm_prob': 0.3, 'model.type_vocab_size': 0,
            'model.mlm_head': 'none'}  # fmt: skip
# Of the fields of masking only the share says something here; the others keep their defaults.
UNUSED = ('masking.policy', 'masking.mask_share', 'masking.random_share', 'eval_masking.policy',
          'eval_masking.mask_share', 'eval_masking.random_share', 'loss.nsp_weight',
          'loss.sbo_weight')  # fmt: skip


def objective(config, tokenizer):
  model, data = models.ModelConfig(**config.model), config.data
  common = {'mean_span': config.denoising.mean_span, 'mask_id': tokenizer.mask_id}
  rate = config.masking.masked_lm_prob
  eval_rate = pretraining.judged_under(config)['eval_masking.masked_lm_prob']
  return Denoising(
    model, data.seq_length, target_length=data.seq_length, examples_per_row=data.examples_per_row,
    infilling=common | {'rate': rate}, eval_infilling=common | {'rate': eval_rate},
  )  # fmt: skip


def sources(config, tokenizer, splits=('train', 'eval')):
  out = pretraining.sources(config, tokenizer, splits)
  for source in out.values():
    source.baselines = {}  # most of a text can be copied: its unigram line says nothing
  return out


def rules(config):
  yield from PRETRAINING.rules(config)
  yield from translation.decoder_rules(config)
  for name in UNUSED:
    block, field = name.split('.')
    default = DEFAULTS.get(name, PRETRAINING.fields[name].default)
    value = config[block][field]
    says = f'{name}={value!r} says nothing to denoising, which hides spans of a mean length'
    yield value == default, f'{says}; set it to {default!r}.'
  pairs = f'corpus.rows={config.corpus.rows} makes pairs; set it to full or single.'
  yield config.corpus.rows in ('full', 'single'), pairs


DENOISING = dataclasses.replace(
  PRETRAINING,
  name='denoising',
  objective=objective,
  sources=sources,
  rules=rules,
  rules_to_begin=lambda config: (),
  fields=PRETRAINING.fields | FIELDS,
  defaults=PRETRAINING.defaults | DEFAULTS,
  main_metric=lambda config: 'denoising',
  predictions={},
  heads=translation.HEADS,
  from_released=lambda config, released: None,
)
