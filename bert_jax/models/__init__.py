"""Transformers as plain Flax Linen modules, without losses, tasks or devices."""

from bert_jax.models import recurrence
from bert_jax.models.attention import Unsupported
from bert_jax.models.config import ModelConfig, share_of_heads
from bert_jax.models.encoder import Encoder, encoder_flops, init_encoder, tower_flops, unsupported
from bert_jax.models.heads import (
  Classifier,
  MaskedLMHead,
  Pooler,
  count_parameters,
  example_means,
  gather_positions,
  head_flops,
)
from bert_jax.models.positions import extended, has_position_table
from bert_jax.models.stack import Stack, stack_layers, unstack_layers
from bert_jax.models.tokens import Layer, Tokens

__all__ = [
  'Classifier',
  'Encoder',
  'Layer',
  'MaskedLMHead',
  'ModelConfig',
  'Pooler',
  'Stack',
  'Tokens',
  'Unsupported',
  'count_parameters',
  'encoder_flops',
  'example_means',
  'extended',
  'gather_positions',
  'has_position_table',
  'head_flops',
  'init_encoder',
  'recurrence',
  'share_of_heads',
  'stack_layers',
  'tower_flops',
  'unstack_layers',
  'unsupported',
]
