"""Nomic's BERT (Nussbaum et al. 2024, https://arxiv.org/abs/2402.01613): rotary positions and gated
feed-forward layers in a BERT without the biases of its layers."""

from bert_jax.convert.families import record
from bert_jax.convert.families.bert import BERT, MLM
from bert_jax.convert.families.record import ReleasedFamily, layers
from bert_jax.errors import log

_MODULES = {
  'encoder/embeddings/word_embeddings': 'nomic_bert.embeddings.word_embeddings',
  'encoder/embeddings/token_type_embeddings': 'nomic_bert.embeddings.token_type_embeddings',
  'encoder/embeddings/LayerNorm': 'nomic_bert.emb_ln',
  'encoder/layer_#/gate': 'nomic_bert.encoder.layers.#.mlp.fc12',
  'pooler/dense': 'nomic_bert.pooler.dense',
  'classifier/dense': 'classifier',
} | layers(
  'nomic_bert.encoder.layers.#.',
  ('attn.Wqkv', 'attn.Wqkv', 'attn.Wqkv', 'attn.out_proj'),
  ('norm1', 'mlp.fc11', 'mlp.fc2', 'norm2'),
)
_MLM = MLM | {'mlm/LayerNorm': 'cls.predictions.transform.layer_norm'}
_OLDER = dict(n_embd='hidden_size', n_layer='num_hidden_layers', n_head='num_attention_heads')
_OLDER |= dict(n_inner='intermediate_size', n_positions='max_position_embeddings')
_OLDER |= dict(layer_norm_epsilon='layer_norm_eps', resid_pdrop='hidden_dropout_prob')
_OLDER |= dict(attn_pdrop='attention_probs_dropout_prob', activation_function='hidden_act')
_FIXED = dict(rotary_emb_fraction=(1.0,), num_experts=(0,), auto_map=None)
_FIXED |= dict.fromkeys(('qkv_proj_bias', 'mlp_fc1_bias', 'mlp_fc2_bias'), (False,))
_FIXED |= dict.fromkeys(('prenorm', 'parallel_block', 'rotary_emb_interleaved'), (False,))
_FIXED |= dict.fromkeys(('use_rms_norm', 'causal'), (False,))
_FIXED |= dict.fromkeys(('rotary_emb_scale_base', 'rotary_scaling_factor'), ())


def _read(path, content):
  act, longest = content['hidden_act'], content['max_position_embeddings']
  rope, usual = content.get('rope_parameters') or {}, content.get('rotary_emb_base', 1000.0)
  if rope.get('rope_type') == 'dynamic':  # it is the default where rows are no longer than trained
    content['rope_parameters'] = rope | {'rope_type': 'default'}
    longest = content.get('max_trained_positions', longest)
    said = '%s stretches the positions of rows with more than %s tokens, which is not done here'
    log.warning(said, path, longest)
  return content | {
    'hidden_act': {'swiglu': 'silu', 'geglu': 'gelu'}.get(str(act), act),
    'rotary_theta': record.theta_of(path, content, usual),
    'max_position_embeddings': longest,
  }


NOMIC = ReleasedFamily(
  name='nomic_bert',
  classes='NomicBert',
  modules=_MODULES | _MLM,
  prefix='nomic_bert.',
  older=_OLDER,
  keys={'head_dim': 'attention_head_size'},
  defaults=dict(hidden_act='silu', type_vocab_size=2, max_position_embeddings=2048)
  | record.NO_DROPOUT,
  fields=dict(position_embeddings='rotary', feed_forward='glu')
  | dict(attention_bias=False, feed_forward_bias='none'),
  free=('attention_head_size',),
  derived=('rotary_theta',),
  fixed=_FIXED,
  read=_read,
  write=lambda model: {'rope_parameters': record.rope(model['rotary_theta'])},
  canonical=lambda name: BERT.canonical(name.removeprefix('bert.')),
  lacks=('ForMultipleChoice',),
)
