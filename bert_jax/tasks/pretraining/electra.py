"""ELECTRA: pre-training on the rows of a masked language model, with a generator."""

import dataclasses

from bert_jax import models
from bert_jax.field import Field, affecting
from bert_jax.objectives import electra
from bert_jax.tasks.pretraining import PRETRAINING, card_of_corpus, rules_of_words_alone, task
from bert_jax.tasks.record import Head

FIELDS = affecting({'objective'}, {
  'loss.replaced_weight': Field(50.0,
    'lambda in MLM of the generator + lambda * replaced-token detection', allowed='(0, inf)'),
  'generator.size': Field(0.25,
    "heads and feed-forward width of the generator, as a share of the model's", allowed='(0, 1]'),
  'generator.embeddings': Field('shared',
    "shared with the model's; disentangled: without the model's gradients",
    allowed=electra.SHARING),
})  # fmt: skip
DEFAULTS = {
  'corpus.rows': 'full',
  'loss.nsp_weight': 0.0,
  'masking.mask_share': 0.85,
  'masking.random_share': 0.0,
}


def objective(config, tokenizer):
  """The ELECTRA objective of a config, which masks as MlmNsp does."""
  masked = task.objective(config, tokenizer)
  masking = {field.name: getattr(masked, field.name) for field in dataclasses.fields(masked)}
  return electra.Electra(
    **masking,
    generator=electra.generator_of(masked.model, config.generator.size),
    sharing=config.generator.embeddings,
    replaced_weight=config.loss.replaced_weight,
  )


def rules(config):
  yield from PRETRAINING.rules(config)
  yield from rules_of_words_alone(config)


def heads_besides(config):
  heads = models.share_of_heads(config.model.num_attention_heads, config.generator.size)
  return {f'of generator.size={config.generator.size:.3g}, the number of its heads': heads}


def generator_of(model):
  """The generator inside a Trained of this family, as a Trained masked language model."""
  objective = ELECTRA.objective(model.config, model.tokenizer)
  config = model.config.copy_and_resolve_references()
  with config.unlocked():
    del config.generator, config.loss.replaced_weight
  config.objective, config.checkpoint.best_metric = PRETRAINING.name, ''
  config.model.update(dataclasses.asdict(objective.generator))
  return model._replace(config=config, params=objective.generator_params(model.params))


ELECTRA = dataclasses.replace(
  PRETRAINING,
  card=card_of_corpus,
  name='electra',
  objective=objective,
  rules=rules,
  fields=PRETRAINING.fields | FIELDS,
  defaults=PRETRAINING.defaults | DEFAULTS,
  main_metric=lambda config: 'replaced',
  predictions={
    name: x._replace(by='generator')
    for name, x in PRETRAINING.predictions.items()
    if name != 'next-sentence'
  },
  other_models={'generator': generator_of},
  heads_besides=heads_besides,
  heads=(
    Head('ForPreTraining', ('encoder', 'replaced'), training_only={'generator': ''}),
    Head('Model', ('encoder',), 'feature-extraction', training_only={'generator': ''}),
  ),
  from_released=lambda config, released: None,
)
