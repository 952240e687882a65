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
from bert_jax.tasks import TASKS

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
  """Makes the Field for a setting of ModelConfig."""
  facts, default = dict(setting.metadata), setting.default
  allowed = tuple(TABLES.get(setting.name, ())) or facts.pop('allowed')
  past = default if facts.pop('past') else NO_PAST
  return Field(default, **facts | {'allowed': allowed, 'past': past})


FIELDS = {f'model.{x.name}': _field(x) for x in dataclasses.fields(models.ModelConfig)}


def settings_affecting(purpose: str) -> frozenset[str]:
  """The names, without `model.`, of the fields of config.model that affect a purpose."""
  return frozenset(
    name.removeprefix('model.') for name, field in FIELDS.items() if purpose in field.affects
  )


def rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  """Yields the rules for the block `model`: (whether it holds, the sentence if it does not)."""
  model, implementation = config.model, config.model.attention_implementation
  yield (
    model.hidden_size % model.num_attention_heads == 0,
    f'model.hidden_size {model.hidden_size} does not divide into model.num_attention_heads '
    f'{model.num_attention_heads}; use a multiple.',
  )
  # Positions are counted within an example, so a row of several may be longer than their table.
  family, row = TASKS[config.objective], config.data.seq_length
  limit = family.limit(config) or row
  longest = model.recurrent_length or limit
  yield (
    not models.has_position_table(model) or longest <= model.max_position_embeddings,
    f'{family.limit_field if limit != row else "data.seq_length"} {longest} is longer than model.'
    f'max_position_embeddings {model.max_position_embeddings}; raise the one or lower the other.',
  )
  yield from memory_rules(config)
  sentence = models.unsupported(models.ModelConfig(**model))
  yield not sentence, sentence
  yield (
    model.mixer != 'fourier' or config.data.examples_per_row == 1,
    f'model.mixer=fourier mixes all tokens of a row, and data.examples_per_row='
    f'{config.data.examples_per_row} would mix examples; set it to 1.',
  )
  yield (
    not model.share_layers or config.optimizer.layer_lr_decay == 1,
    f'optimizer.layer_lr_decay={config.optimizer.layer_lr_decay} gives each layer another rate, '
    'and with model.share_layers=true there is one for all; set it to 1.',
  )
  yield (
    implementation != 'cudnn' or model.dtype == 'bfloat16',
    'model.attention_implementation=cudnn computes in bfloat16; set model.dtype=bfloat16.',
  )
  yield (
    implementation != 'splash' or config.data.seq_length % 128 == 0,
    f'model.attention_implementation=splash takes rows of a multiple of 128 tokens, and '
    f'data.seq_length is {config.data.seq_length}; change one of them.',
  )


def rules_to_begin(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  """Rules for new runs only; runs of earlier versions may break them."""
  for name, other, value in (
    ('rotary_theta', 'position_embeddings', 'rotary'),
    ('conv_width', 'mixer', 'conv'),
  ):
    usual, value_now = FIELDS[f'model.{name}'].default, config.model[name]
    yield (
      value_now == usual or config.model[other] == value or bool(config.init_from),
      f'model.{name}={value_now} is for model.{other}={value}, and this model has '
      f'{config.model[other]}; set it to {usual}.',
    )


def memory_rules(config: ConfigDict) -> Iterator[tuple[bool, str]]:
  model, objective = config.model, config.objective
  memory, stretch = f'model.memory_length={model.memory_length}', model.recurrent_length
  yield (
    not model.relative_clamp or model.position_embeddings == 'relative',
    f'model.relative_clamp={model.relative_clamp} is for model.position_embeddings=relative; set '
    'it to 0.',
  )
  yield (
    model.extend_positions == 'none' or bool(config.init_from),
    f'model.extend_positions={model.extend_positions} extends the positions of init_from, which is '
    'empty; set it to none.',
  )
  family = TASKS[objective]
  follow = ' or '.join(name for name, x in TASKS.items() if x.rows_follow)
  able = [name for name, x in TASKS.items() if x.reads_stretches]
  yield (
    not stretch or family.reads_stretches,
    f'model.recurrent_length={stretch} reads the long texts of {" and ".join(able)} in stretches, '
    f'and this objective is {objective}; set it to 0.',
  )
  limit, sizes = family.limit_field, (config.data.seq_length, family.limit(config))
  yield (
    not stretch or not any(size % stretch for size in sizes),
    f'data.seq_length and {limit} are {" and ".join(map(str, sizes))}, and not made of '
    f'stretches of model.recurrent_length={stretch}; use multiples of it.',
  )
  yield (
    not stretch or model.memory_length > 0,
    f'model.recurrent_length={stretch} cuts rows into stretches that know nothing of each other '
    'without model.memory_length; set that above 0.',
  )
  yield (
    not model.memory_length or stretch or family.rows_follow,
    f'{memory} is for objective={follow}, whose rows follow each other, or for rows that are '
    'read in stretches (model.recurrent_length); set it to 0.',
  )


# {size: (layers, hidden size)} of BERT-large and the 24 released models of Turc et al. 2019
# (https://arxiv.org/abs/1908.08962), base being the largest. Attention heads are 64 wide, the
# feed-forward layer 4 times the hidden size.
SIZES = {f'{L}/{H}': (L, H) for L in (2, 4, 6, 8, 10, 12) for H in (128, 256, 512, 768)}
SIZES |= {'24/1024': (24, 1024)}
SIZES |= {
  'tiny': (2, 128),
  'mini': (4, 256),
  'small': (4, 512),
  'medium': (8, 512),
  'base': (12, 768),
  'large': (24, 1024),
}


def bert(size: str, **changes: Any) -> dict[str, Any]:
  """The block `model` for a BERT of a released size, with `changes` applied."""
  if size not in SIZES:
    raise InputError(f'size {size!r} is not known; use one of {", ".join(SIZES)}.')
  layers, hidden = SIZES[size]
  block = {name.removeprefix('model.'): field.default for name, field in FIELDS.items()}
  block |= {'hidden_size': hidden, 'num_hidden_layers': layers}
  block |= {'num_attention_heads': hidden // 64, 'intermediate_size': 4 * hidden}
  if unknown := set(changes) - set(block):
    raise InputError(f'model has no field {", ".join(sorted(unknown))}.')
  return block | changes
