"""EuroBERT (Boizard et al. 2025, https://arxiv.org/abs/2503.05500): Llama's layers, not causal."""

from bert_jax.convert.families import record
from bert_jax.convert.families.record import Classifier, ReleasedFamily, layers

_MODULES = {
  'encoder/layer_#/gate': 'model.layers.#.mlp.gate_proj',
  'encoder/embeddings/word_embeddings': 'model.embed_tokens',
  'encoder/LayerNorm': 'model.norm',
  'mlm/': 'lm_head',
  'classifier/dense': 'classifier',
} | layers(
  'model.layers.#.',
  ('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj', 'self_attn.o_proj'),
  ('input_layernorm', 'mlp.up_proj', 'mlp.down_proj', 'post_attention_layernorm'),
)
_KEYS = dict(rms_norm_eps='layer_norm_eps', hidden_dropout='hidden_dropout_prob')
_KEYS |= dict(attention_dropout='attention_probs_dropout_prob', head_dim='attention_head_size')
_POOLINGS = {'bos': 'cls', 'mean': 'mean', 'late': 'late'}  # {theirs: ours}
_DEFAULTS = dict(type_vocab_size=0, attention_bias=False, hidden_act='silu', layer_norm_eps=1e-5)
_DEFAULTS |= dict(tie_word_embeddings=False)
_FIELDS = dict(position_embeddings='rotary', norm_placement='pre', feed_forward='glu')
_FIELDS |= dict(norm='rms_norm', norm_bias=False, embedding_norm=False, feed_forward_bias='none')
_FIELDS |= dict(mlm_head='none', decoder_bias=False, tie_word_embeddings=False, pooler='gelu')
_FIXED = dict(tie_word_embeddings=(False,), mlp_bias=(False,), rope_scaling=(), auto_map=None)


def _read(path, content):
  heads, groups = (content.get(f'num_{kind}_heads') for kind in ('attention', 'key_value'))
  return content | {
    'num_key_value_heads': 0 if groups in (None, heads) else groups,
    'rotary_theta': record.theta_of(path, content, content.get('rope_theta', 10_000.0)),
    'classifier_pooling': _POOLINGS[content.get('classifier_pooling', 'late')],
  }


EUROBERT = ReleasedFamily(
  name='eurobert',
  classes='EuroBert',
  modules=_MODULES,
  prefix='model.',
  classifiers=(
    Classifier(_MODULES | {'pooler/dense': 'dense'}, 'dense.weight', 'ForSequenceClassification'),
  ),
  older={'clf_pooling': 'classifier_pooling'},
  keys=_KEYS,
  defaults=_DEFAULTS | record.NO_DROPOUT,
  fields=_FIELDS,
  without_effect=('norm_bias',),
  free=('attention_bias', 'attention_head_size'),
  derived=('num_key_value_heads', 'rotary_theta'),
  unsaid=('type_vocab_size',),
  fixed=_FIXED | {'classifier_pooling': (*_POOLINGS,)},
  ids=record.ENDS | {'mask_token_id': 'mask'},
  read=_read,
  write=lambda model: {
    'num_key_value_heads': model['num_key_value_heads'] or model['num_attention_heads'],
    'rope_parameters': record.rope(model['rotary_theta']),
    'classifier_pooling': 'bos',
  },
  lacks=('ForQuestionAnswering', 'ForMultipleChoice'),
  not_given='token_type_ids',
)
