"""Rules that a ModelConfig must meet: why a model cannot be computed, and what to set instead."""

import dataclasses
from collections.abc import Iterator

from bert_jax.models import attention_kernels
from bert_jax.models.config import ModelConfig
from bert_jax.models.positions import POSITIONS
from bert_jax.models.tokens import Causal, Pattern

LONG = 512  # tokens of a row from which on splash takes less time than einsum


def unsupported(config: ModelConfig, causal: bool | str = False) -> str:
  """A sentence that says why this model cannot be computed, and the fix; '': it can.
  causal: False, True, or 'by row'; config.causal makes it True."""
  causal = config.causal or causal
  for faults in (_faults_of_mixers, _faults_of_layers, _faults_of_kernels):
    for sentence in faults(config, causal):
      return sentence
  return ''


def kernel_of(config: ModelConfig, pattern: Pattern) -> str:
  """Which of attention_kernels.KERNELS computes the attention of a Pattern: 'auto' is splash within
  long rows on a TPU, if it can compute the model, else einsum, as for rows whose length is a symbol
  (predict/export.py)."""
  kernel = config.attention_implementation
  if kernel != 'auto':
    return kernel
  length = pattern.queries.segment_ids.shape[1]
  is_long = pattern.queries is pattern.keys and isinstance(length, int) and length >= LONG
  if is_long and attention_kernels.on_tpu():
    splash = dataclasses.replace(config, attention_implementation='splash')
    if not any(_faults_of_kernels(splash, pattern.causal)):
      return 'splash'
  return 'einsum'


def _faults_of_mixers(config: ModelConfig, causal: bool | str) -> Iterator[str]:
  """Yields what a mixer, or attention, cannot do."""
  mixer = f'model.mixer={config.mixer}'
  attends = config.mixer == 'attention'
  positions = POSITIONS[config.position_embeddings]
  if config.memory_length and (config.share_layers or not attends):
    yield (
      'model.memory_length is for the attention of layers that are each their own; set it to 0, or '
      'model.mixer=attention and model.share_layers=false.'
    )
  if attends and positions.turn and config.head_size % 2:
    yield (
      f'model.position_embeddings={config.position_embeddings} turns pairs of numbers, and heads '
      f'have {config.head_size}; change model.num_attention_heads or attention_head_size.'
    )
  if config.num_attention_heads % config.key_value_heads:
    yield (
      f'model.num_key_value_heads {config.num_key_value_heads} does not divide '
      f'model.num_attention_heads {config.num_attention_heads}; use one that does.'
    )
  if causal and not attends:
    yield f'{mixer} reads later tokens too, which may not be; use attention.'
  if not attends and (positions.turn or positions.bias or positions.own_scores):
    yield (
      f'model.position_embeddings={config.position_embeddings} is a part of attention, which '
      f'{mixer} has not; use learned or none.'
    )
  if config.mixer == 'conv' and config.conv_width % 2 == 0:
    yield f'model.conv_width {config.conv_width} has no middle; use an odd number.'


def _faults_of_layers(config: ModelConfig, causal: bool | str) -> Iterator[str]:
  """Yields what norms, a mask decoder and windows cannot do with other fields."""
  if not config.first_norm and (config.norm_placement != 'pre' or config.share_layers):
    yield (
      'model.first_norm=false leaves out the norm before the first layer alone; set '
      'model.norm_placement=pre and share_layers=false.'
    )
  differs_by_layer = config.global_attention_every or config.share_layers or config.memory_length
  is_plain = config.mixer == 'attention' and config.norm_placement == 'post'
  if config.mask_decoder and (causal or differs_by_layer or not is_plain):
    yield (
      f'model.mask_decoder={config.mask_decoder} needs attention and norm_placement=post, without '
      'causal, share_layers, memory_length and global_attention_every; set these, or it to 0.'
    )
  buckets = config.position_buckets
  most = 2 * config.max_relative_positions - 4
  if buckets and (buckets < 4 or buckets % 2 or buckets > most):
    yield (
      f'model.position_buckets={buckets} do not divide distances by their logarithm; use an even '
      f'number from 4 to {most} (by max_relative_positions), or 0.'
    )
  window = config.attention_window
  if config.local_rotary_theta and not (POSITIONS[config.position_embeddings].turn and window):
    yield 'model.local_rotary_theta is for rotary positions of layers with a window; set it to 0.'
  if config.global_attention_every and not window:
    yield (
      f'model.global_attention_every is {config.global_attention_every} and there is no window; '
      'set model.attention_window, or this to 0.'
    )


def _faults_of_kernels(config: ModelConfig, causal: Causal | str) -> Iterator[str]:
  """Yields what the implementation of attention cannot do."""
  kernel = config.attention_implementation
  positions = POSITIONS[config.position_embeddings]
  cannot = []  # what it cannot, and how else it goes
  if kernel not in ('auto', 'einsum') and config.attention_probs_dropout_prob:
    cannot.append('drop attention probabilities; set model.attention_probs_dropout_prob=0, or use')
  if kernel == 'cudnn' and config.dtype == 'float32':
    cannot.append('compute in float32; set model.dtype=bfloat16, or use xla or')
  if kernel in ('cudnn', 'splash') and (positions.bias or positions.own_scores):
    cannot.append('add a bias (ALiBi, relative) to the scores; use xla or')
  if kernel == 'splash':
    if config.scan_layers and config.global_attention_every:
      cannot.append('give some scanned layers a window; set model.scan_layers=false, or use')
    if not isinstance(causal, bool):
      cannot.append('be causal in some rows only; use xla or')
    if config.memory_length:
      cannot.append('read what is before the row; use xla or')
  for reason in cannot:
    yield f'model.attention_implementation={kernel} cannot {reason} einsum.'
