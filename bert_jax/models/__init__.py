"""BERT as plain Flax Linen modules. They know no loss, no task and no mesh."""

from bert_jax.models.common import ACTIVATIONS, ModelConfig
from bert_jax.models.encoder import (
  REMAT_POLICIES,
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
  'ACTIVATIONS',
  'REMAT_POLICIES',
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
