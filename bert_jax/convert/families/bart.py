"""BART: an encoder and a decoder that share one table of word embeddings."""

from bert_jax.convert.families.record import ENDS, Place, ReleasedFamily, layers

_ATTENTION = 'self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj', 'self_attn.out_proj'
_LAYER = 'self_attn_layer_norm', 'fc1', 'fc2', 'final_layer_norm'
_CROSS = dict(query='q_proj', key='k_proj', value='v_proj', output='out_proj')
_KEYS = dict(d_model='hidden_size', init_std='initializer_range', scale_embedding='embedding_scale')
_KEYS |= dict(encoder_layers='num_hidden_layers', decoder_layers='num_decoder_layers')
_KEYS |= dict(encoder_attention_heads='num_attention_heads', encoder_ffn_dim='intermediate_size')
_KEYS |= dict(activation_function='hidden_act', attention_dropout='attention_probs_dropout_prob')
_KEYS |= dict(dropout='hidden_dropout_prob')
_FIXED = dict(is_encoder_decoder=(True,), tie_word_embeddings=(True,))
_FIXED |= dict.fromkeys(('normalize_before', 'add_final_layer_norm'), (False,))
_FIXED |= dict(normalize_embedding=(True,), static_position_embeddings=(False,))
_DEFAULTS = dict(layer_norm_eps=1e-5, type_vocab_size=0, attention_probs_dropout_prob=0.0)
_DEFAULTS |= dict(num_decoder_layers=12, embedding_scale=False)


BART = ReleasedFamily(
  name='bart',
  classes='Bart',
  modules=layers('model.encoder.layers.#.', _ATTENTION, _LAYER)
  | layers('model.decoder.layers.#.', _ATTENTION, _LAYER, 'decoder')
  | {
    f'decoder/layer_#/cross_attention/{ours}': f'model.decoder.layers.#.encoder_attn.{theirs}'
    for ours, theirs in _CROSS.items()
  }
  | {
    'decoder/layer_#/cross_attention_LayerNorm': 'model.decoder.layers.#.encoder_attn_layer_norm',
    'encoder/embeddings/word_embeddings': 'model.shared',
    'encoder/embeddings/position_embeddings': 'model.encoder.embed_positions',
    'encoder/embeddings/LayerNorm': 'model.encoder.layernorm_embedding',
    'decoder/embeddings/position_embeddings': 'model.decoder.embed_positions',
    'decoder/embeddings/LayerNorm': 'model.decoder.layernorm_embedding',
  },
  places={'mlm/bias': Place('final_logits_bias', False, 'V', is_row=True)},
  prefix='model.',
  tied=(*(f'model.{x}.embed_tokens.weight' for x in ('encoder', 'decoder')), 'lm_head.weight'),
  zeros=('mlm/bias',),
  keys=_KEYS,
  defaults=_DEFAULTS,
  fields={'mlm_head': 'none', 'tie_word_embeddings': True},
  same={'num_decoder_layers': 'num_hidden_layers'},
  free=('num_decoder_layers', 'embedding_scale'),
  unsaid=('layer_norm_eps', 'type_vocab_size'),
  fixed=_FIXED,
  ids=ENDS,
  also=dict(decoder_attention_heads='num_attention_heads', decoder_ffn_dim='intermediate_size'),
  write=lambda model: {'is_encoder_decoder': True},
  fits=lambda exported: 'decoder' in exported.parts,
  offset=lambda pad_id: 2,
  not_given='token_type_ids',
)
