"""The encoder of T5 (Raffel et al. 2019, https://arxiv.org/abs/1910.10683), as for sentence vectors
(Ni et al. 2021, https://arxiv.org/abs/2108.08877)."""

import re

from bert_jax.convert.families import record
from bert_jax.convert.families.record import OtherHead, ReleasedFamily, layers, other_model

_LAYER = 't5.encoder.block.#.layer.'
_DENSE = f'{_LAYER}1.DenseReluDense.'
_MODULES = {
  'encoder/embeddings/word_embeddings': 't5.shared',
  'encoder/distances/biases': 't5.encoder.block.0.layer.0.SelfAttention.relative_attention_bias',
  'encoder/LayerNorm': 't5.encoder.final_layer_norm',
} | layers(
  _LAYER,
  [f'0.SelfAttention.{name}' for name in 'qkvo'],
  ('0.layer_norm', '1.DenseReluDense.wi', '1.DenseReluDense.wo', '1.layer_norm'),
)
_KEYS = dict(d_model='hidden_size', num_layers='num_hidden_layers', num_heads='num_attention_heads')
_KEYS |= dict(d_ff='intermediate_size', d_kv='attention_head_size')
_KEYS |= dict(n_positions='max_position_embeddings', layer_norm_epsilon='layer_norm_eps')
_KEYS |= dict(dropout_rate='hidden_dropout_prob', dense_act_fn='hidden_act')
_KEYS |= dict(relative_attention_max_distance='max_relative_positions')
_DEFAULTS = dict(layer_norm_eps=1e-6, type_vocab_size=0, max_position_embeddings=512)
_DEFAULTS |= dict(max_relative_positions=128, relative_attention_num_buckets=32)
_DEFAULTS |= dict(attention_head_size=64)
_FIELDS = dict(position_embeddings='relative_bias', norm_placement='pre', norm='rms_norm')
_FIELDS |= dict(norm_bias=False, embedding_norm=False, attention_bias=False)
_FIELDS |= dict(feed_forward_bias='none')
_GATED = {'gated-gelu': 'gelu_new', 'gated-gelu_python': 'gelu'}  # others are called as they are


def _read(path, content):
  buckets, said = content['relative_attention_num_buckets'], content.get('feed_forward_proj')
  if buckets % 4:
    ours = 'our encoder has a multiple of 4'
    raise other_model(path, 'relative_attention_num_buckets', buckets, ours)
  act = str(said or 'relu')
  return content | {
    'position_buckets': buckets // 2,
    'feed_forward': 'glu' if act.startswith('gated-') else 'mlp',
    'hidden_act': _GATED.get(act, act.removeprefix('gated-')),
  }


def _write(model):
  act = record.activation_name(model['hidden_act'], 'gelu_new')
  names = {theirs: name for name, theirs in _GATED.items()}
  return {
    'relative_attention_num_buckets': 2 * model['position_buckets'],
    'hidden_act': act,
    'feed_forward_proj': act if model['feed_forward'] == 'mlp' else names.get(act, f'gated-{act}'),
  }


T5 = ReleasedFamily(
  name='t5',
  classes='T5Encoder',
  modules=_MODULES,
  gated={'encoder/layer_#/gate': f'{_DENSE}wi_0', 'encoder/layer_#/intermediate': f'{_DENSE}wi_1'},
  prefix='t5.',
  canonical=lambda name: re.sub(r'\b(shared|encoder)\.', r't5.\1.', name, count=1),
  tied=('t5.encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'),
  keys=_KEYS,
  defaults=_DEFAULTS,
  fields=_FIELDS,
  free=('max_relative_positions', 'attention_head_size'),
  derived=('position_buckets', 'feed_forward'),
  unsaid=('type_vocab_size', 'initializer_range', 'attention_probs_dropout_prob'),
  without_effect=('norm_bias',),
  fixed={'is_encoder_decoder': None},
  ids={'eos_token_id': 'sep'},
  read=_read,
  write=_write,
  fits=lambda exported: exported.model['position_buckets'] > 0,
  lacks=('ForPreTraining', 'ForMaskedLM', 'ForNextSentencePrediction', 'ForMultipleChoice')
  + ('ForSequenceClassification', 'ForTokenClassification', 'ForQuestionAnswering'),
  other_head=lambda *_: OtherHead(('decoder.', 'lm_head.'), (), 'only the encoder of a T5 is read'),
  not_given='token_type_ids',
)
