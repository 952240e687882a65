"""BERT as plain Flax Linen modules. They know no loss, no task and no mesh."""

from bert_jax.models.common import ModelConfig
from bert_jax.models.encoder import (
  Encoder,
  encoder_flops,
  init_encoder,
  stack_layers,
  unstack_layers,
)
from bert_jax.models.heads import (
  Classifier,
  MaskedLMHead,
  Pooler,
  count_parameters,
  gather_positions,
  head_flops,
)

__all__ = [
  'Classifier',
  'Encoder',
  'MaskedLMHead',
  'ModelConfig',
  'Pooler',
  'count_parameters',
  'encoder_flops',
  'gather_positions',
  'head_flops',
  'init_encoder',
  'stack_layers',
  'unstack_layers',
]
