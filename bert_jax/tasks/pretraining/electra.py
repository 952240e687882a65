"""ELECTRA: pre-training on the rows of a masked language model, with a generator."""

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from bert_jax import models
from bert_jax.field import Field
from bert_jax.objectives import electra
from bert_jax.tasks.pretraining import PRETRAINING, task, words_alone
from bert_jax.tasks.record import Head
from bert_jax.tokenizers import Tokenizer

FIELDS = {
  'loss.replaced_weight': Field(50.0,
    'lambda in MLM of the generator + lambda * replaced-token detection', allowed='(0, inf)'),
  'generator.size': Field(0.25,
    "heads and feed-forward width of the generator, as a share of the model's", allowed='(0, 1]'),
  'generator.depth': Field(1.0,
    "layers of the generator, as a share of the model's", allowed='(0, 1]'),
  'generator.embeddings': Field('shared',
    "shared with the model's; disentangled: without its gradients", allowed=electra.SHARING),
}  # fmt: skip
DEFAULTS = {
  'corpus.rows': 'full',
  'loss.nsp_weight': 0.0,
  'masking.mask_share': 0.85,
  'masking.random_share': 0.0,
}


def objective(config: ConfigDict, tokenizer: Tokenizer) -> electra.Electra:
  """The ELECTRA objective of a config, which masks as MlmNsp does."""
  model = models.ModelConfig(**config.model)
  return task.objective(
    config,
    tokenizer,
    electra.Electra,
    generator=electra.generator_of(model, config.generator.size, config.generator.depth),
    sharing=config.generator.embeddings,
    replaced_weight=config.loss.replaced_weight,
  )


def heads_besides(config: ConfigDict) -> dict[str, int]:
  heads = models.share_of_heads(config.model.num_attention_heads, config.generator.size)
  return {f'of generator.size={config.generator.size:.3g}, the number of its heads': heads}


def generator_of(model: Any) -> Any:
  """The generator inside a Trained of this family, as a Trained masked language model."""
  own = objective(model.config, model.tokenizer)
  config = model.config.copy_and_resolve_references()
  with config.unlocked():
    del config.generator, config.loss.replaced_weight
  config.objective, config.checkpoint.best_metric = PRETRAINING.name, ''
  config.model.update(dataclasses.asdict(own.generator))
  return model._replace(config=config, params=own.generator_params(model.params))


ELECTRA = words_alone(
  'electra',
  fields={**PRETRAINING.fields, **FIELDS},
  defaults=DEFAULTS,
  objective=objective,
  main_metric=lambda config: 'replaced',
  predictions={},  # its generator's are asked after convert --generator
  other_models={'generator': generator_of},
  heads_besides=heads_besides,
  heads=(
    Head('ForPreTraining', ('encoder', 'replaced'), training_only={'generator': ''}),
    Head('Model', ('encoder',), 'feature-extraction', training_only={'generator': ''}),
  ),
  from_released=lambda config, released: None,
)
