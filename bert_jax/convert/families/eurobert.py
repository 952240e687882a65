"""EuroBERT (Boizard et al. 2025, https://arxiv.org/abs/2503.05500): Llama's layers, not causal."""

from bert_jax.convert.families import record
from bert_jax.convert.families.record import Classifier, ReleasedFamily, layers, theta_of

_MODULES = {
  'encoder/layer_#/gate': 'model.layers.#.mlp.gate_proj',
  'encoder/embeddings/word_embeddings': 'model.embed_tokens',
  'encoder/LayerNorm': 'model.norm',
  **dict.fromkeys(('mlm', 'mlm/'), 'lm_head'),
  'classifier/dense': 'classifier',
} | layers(
  'model.layers.#.',
  ('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj', 'self_attn.o_proj'),
  ('input_layernorm', 'mlp.up_proj', 'mlp.down_proj', 'post_attention_layernorm'),
)
_KEYS = dict(rms_norm_eps='layer_norm_eps', hidden_dropout='hidden_dropout_prob')
_KEYS |= dict(attention_dropout='attention_probs_dropout_prob', mlp_bias='feed_forward_bias')
_POOLINGS = {'bos': 'cls', 'mean': 'mean', 'late': 'late'}  # {theirs: ours}


def _read(path, content):
  rope = content.get('rope_parameters') or {}
  heads, biases = content.get('num_attention_heads'), content['feed_forward_bias'] is True
  groups = content.get('num_key_value_heads')
  return content | {
    'feed_forward_bias': 'all' if biases else 'none',
    'decoder_bias': biases,
    'num_key_value_heads': 0 if groups in (None, heads) else groups,
    'rotary_theta': theta_of(path, rope, content.get('rope_theta', 10_000.0)),
    'classifier_pooling': _POOLINGS[content.get('classifier_pooling', 'late')],
  }


def _write(model):
  return {
    'feed_forward_bias': model['feed_forward_bias'] == 'all',
    'num_key_value_heads': model['num_key_value_heads'] or model['num_attention_heads'],
    'rope_parameters': {'rope_type': 'default', 'rope_theta': model['rotary_theta']},
    'classifier_pooling': 'bos',
  }


def _refusal(exported):
  biases = exported.model['feed_forward_bias']
  if biases == 'output':
    return 'feed_forward_bias', 'all or none'
  is_other = 'mlm' in exported.parts and exported.model['decoder_bias'] != (biases == 'all')
  return ('decoder_bias', biases == 'all') if is_other else None


EUROBERT = ReleasedFamily(
  name='eurobert',
  classes='EuroBert',
  modules=_MODULES,
  prefix='model.',
  classifiers=(
    Classifier(
      _MODULES | {'pooler/dense': 'dense'}, 'dense.weight', ('ForSequenceClassification',)
    ),
  ),
  older={'clf_pooling': 'classifier_pooling'},
  keys=_KEYS,
  defaults=dict(
    type_vocab_size=0,
    feed_forward_bias=False,
    attention_bias=False,
    hidden_act='silu',
    layer_norm_eps=1e-5,
  )
  | record.NO_DROPOUT,
  fields=dict(position_embeddings='rotary', norm_placement='pre', feed_forward='glu')
  | dict(norm='rms_norm', norm_bias=False, embedding_norm=False, mlm_head='none', pooler='gelu')
  | dict(tie_word_embeddings=False),
  without_effect=('norm_bias',),
  free=('attention_bias',),
  derived=('feed_forward_bias', 'decoder_bias', 'num_key_value_heads', 'rotary_theta'),
  unsaid=('type_vocab_size',),
  fixed=dict(
    tie_word_embeddings=(False,),
    rope_scaling=(None,),
    classifier_pooling=(*_POOLINGS,),
    auto_map=None,
  ),
  ids=record.ENDS | {'mask_token_id': 'mask'},
  read=_read,
  write=_write,
  refusal=_refusal,
  fits=lambda exported: (
    exported.model['position_embeddings'] == 'rotary' and exported.model['norm'] == 'rms_norm'
  ),
  lacks=('ForQuestionAnswering', 'ForMultipleChoice'),
  not_given='token_type_ids',
)
