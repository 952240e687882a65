"""Rules that a ModelConfig must meet: why a model cannot be computed, and what to set instead."""

from collections.abc import Iterator

from bert_jax.models import attention_kernels
from bert_jax.models.config import ModelConfig
from bert_jax.models.positions import POSITIONS


def unsupported(config: ModelConfig, causal: bool | str = False) -> str:
  """A sentence that says why this model cannot be computed, and the fix; '': it can.
  causal: False, True, or 'by row'; config.causal makes it True."""
  causal = config.causal or causal
  if sentence := next(_faults(config, causal), ''):
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


def _faults(config: ModelConfig, causal: bool | str) -> Iterator[str]:
  """Yields the rules that fields break together."""
  mixer, positions = f'model.mixer={config.mixer}', POSITIONS[config.position_embeddings]
  attends, encoding = config.mixer == 'attention', config.position_embeddings
  if config.memory_length and (config.share_layers or not attends):
    fix = 'set it to 0, or model.mixer=attention and model.share_layers=false'
    yield f'model.memory_length is for the attention of layers that are each their own; {fix}.'
  if positions.turn and config.head_size % 2:
    fix = 'heads of an odd size; use another model.num_attention_heads or attention_head_size'
    yield f'model.position_embeddings={encoding} turns pairs of numbers, and this model has {fix}.'
  if config.num_attention_heads % config.key_value_heads:
    fault = f'model.num_key_value_heads {config.num_key_value_heads} does not divide'
    yield f'{fault} model.num_attention_heads {config.num_attention_heads}; use one that does.'
  if causal and not attends:
    yield f'{mixer} reads later tokens too, which may not be; use attention.'
  if not attends and (positions.turn or positions.bias or positions.own_scores):
    fault = f'model.position_embeddings={encoding} is a part of attention'
    yield f'{fault}, which {mixer} has not; use learned or none.'
  for name, value in {'attention_window': 0, 'attention_implementation': 'einsum'}.items():
    if not attends and getattr(config, name) != value:
      yield f'{mixer} has no attention; set model.{name}={value}.'
  if config.mixer == 'lstm' and config.hidden_size % 2:
    yield f'{mixer} halves model.hidden_size {config.hidden_size}; use an even one.'
  if config.mixer == 'conv' and config.conv_width % 2 == 0:
    yield f'model.conv_width {config.conv_width} has no middle; use an odd number.'
  if not config.first_norm and (config.norm_placement != 'pre' or config.share_layers):
    fix = 'set model.norm_placement=pre and share_layers=false'
    yield f'model.first_norm=false leaves out the norm before the first layer alone; {fix}.'
  others = config.global_attention_every or config.global_tokens
  others = others or config.share_layers or config.memory_length
  if config.mask_decoder and (causal or others or not attends or config.norm_placement != 'post'):
    needs = 'attention and norm_placement=post, without causal, share_layers, memory_length, '
    needs += 'global_attention_every and global_tokens'
    fault = f'model.mask_decoder={config.mask_decoder} needs {needs}'
    yield f'{fault}; set these, or it to 0.'
  if config.mlm_head == 'none' and config.embedding_size:
    fix = 'use mlm_head=dense, or embedding_size=0'
    yield f'model.mlm_head=none leaves vectors of another size than embedding_size; {fix}.'
  buckets, most = config.position_buckets, 2 * config.max_relative_positions - 4
  if buckets and (buckets < 4 or buckets % 2 or buckets > most):
    fault = f'model.position_buckets={buckets} do not divide distances by their logarithm'
    yield f'{fault}; use an even number from 4 to {most} (by max_relative_positions), or 0.'
  window, count = config.attention_window, config.global_tokens
  if config.local_rotary_theta and not (positions.turn and window):
    yield 'model.local_rotary_theta is for rotary positions of layers with a window; set it to 0.'
  if config.global_attention_every and not window:
    fix = 'there is no window; set model.attention_window, or this to 0'
    yield f'model.global_attention_every is {config.global_attention_every} and {fix}.'
  if count and (config.memory_length or causal or not window):
    fix = 'model.causal=false and model.memory_length=0' if window else 'model.attention_window'
    fault = f'model.global_tokens={count} are for windows that look both ways in whole rows'
    yield f'{fault}; set {fix}, or it to 0.'
  if count and config.attention_implementation == 'splash':
    yield f'model.global_tokens={count} cannot be computed by splash; use einsum or xla.'
