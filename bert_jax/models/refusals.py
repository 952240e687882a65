"""Rules that a ModelConfig must meet: why a model cannot be computed, and what to set instead."""

import itertools
from collections.abc import Iterator

from bert_jax.models import attention_kernels
from bert_jax.models.config import ModelConfig
from bert_jax.models.positions import POSITIONS


def unsupported(config: ModelConfig, causal: bool | str = False) -> str:
  """A sentence that says why this model cannot be computed, and the fix; '': it can.
  causal: False, True, or 'by row'; config.causal makes it True."""
  causal = config.causal or causal
  rules = itertools.chain(
    mixer_rules(config, causal), layer_rules(config), window_rules(config, causal)
  )
  if sentence := next((sentence for holds, sentence in rules if not holds), ''):
    return sentence
  positions = POSITIONS[config.position_embeddings]
  by_layer = config.scan_layers and config.global_attention_every
  return attention_kernels.refusal(
    config.attention_implementation,
    causal=causal,
    window='by layer' if by_layer else config.attention_window,
    bias=bool(positions.bias or positions.own_scores),
    dropout=config.attention_probs_dropout_prob,
    places=config.memory_length > 0,
  )


def mixer_rules(config: ModelConfig, causal: bool | str) -> Iterator[tuple[bool, str]]:
  """Rules of mixer and positions: (does it hold, a sentence if not)."""
  mixer, positions = config.mixer, POSITIONS[config.position_embeddings]
  attends = mixer == 'attention'
  without = 'has one copy of its layers' if attends else 'has no attention'
  yield (
    not config.memory_length or (attends and not config.share_layers),
    f'model.memory_length={config.memory_length} is for the attention of each layer, and this '
    f'model {without}; set it to 0, or model.mixer=attention and model.share_layers=false.',
  )
  yield (
    not (positions.turn and config.head_size % 2),
    f'model.position_embeddings={config.position_embeddings} turns pairs of numbers, and heads '
    f'of {config.hidden_size} / {config.num_attention_heads} have an odd one; use another '
    'model.num_attention_heads.',
  )
  yield (
    attends or not causal,
    f'model.mixer={mixer} reads later tokens too, which may not be; use attention.',
  )
  yield (
    attends or not (positions.turn or positions.bias or positions.own_scores),
    f'model.position_embeddings={config.position_embeddings} is a part of attention, which '
    f'model.mixer={mixer} has not; use learned or none.',
  )
  for name, value in {'attention_window': 0, 'attention_implementation': 'einsum'}.items():
    yield (
      attends or getattr(config, name) == value,
      f'model.mixer={mixer} has no attention; set model.{name}={value}.',
    )
  yield (
    mixer != 'lstm' or config.hidden_size % 2 == 0,
    f'model.mixer=lstm halves model.hidden_size {config.hidden_size}; use an even one.',
  )
  yield (
    mixer != 'conv' or config.conv_width % 2 == 1,
    f'model.conv_width {config.conv_width} has no middle; use an odd number.',
  )


def layer_rules(config: ModelConfig) -> Iterator[tuple[bool, str]]:
  """Rules of norms, heads and layers: (does it hold, a sentence if not)."""
  post = config.norm_placement != 'pre'
  other = 'model.norm_placement=pre' if post else 'share_layers=false'
  yield (
    config.first_norm or not (post or config.share_layers),
    f'model.first_norm=false leaves out the norm before the first layer alone; set {other}.',
  )
  yield (
    config.mlm_head != 'none' or not config.embedding_size,
    f'model.mlm_head=none leaves vectors of model.hidden_size {config.hidden_size}, and words '
    f'have model.embedding_size {config.embedding_size}; use mlm_head=dense, or embedding_size=0.',
  )


def window_rules(config: ModelConfig, causal: bool | str) -> Iterator[tuple[bool, str]]:
  """Rules of windows: (does it hold, a sentence if not)."""
  window, count = config.attention_window, config.global_tokens
  yield (
    not config.local_rotary_theta or (POSITIONS[config.position_embeddings].turn and window),
    'model.local_rotary_theta is for rotary positions of layers with a window, which this model '
    'has not; set it to 0.',
  )
  yield (
    not config.global_attention_every or window,
    f'model.global_attention_every is {config.global_attention_every} and there is no window; '
    'set model.attention_window, or this to 0.',
  )
  other = 'model.causal=false and model.memory_length=0' if window else 'model.attention_window'
  yield (
    not count or (window and not config.memory_length and not causal),
    f'model.global_tokens={count} are for windows that look both ways in whole rows; set {other}, '
    'or it to 0.',
  )
  yield (
    not count or config.attention_implementation != 'splash',
    f'model.global_tokens={count} cannot be computed by splash, which has windows alone; use '
    'einsum or xla.',
  )
