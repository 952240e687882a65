"""ALBERT: one layer for all, narrow embeddings, and a head that tells the order of two texts."""

from bert_jax.convert.families.record import EMBEDDINGS, ENDS, HEADS, ReleasedFamily, numbered

_LAYER = {
  'attention/query': 'attention.query',
  'attention/key': 'attention.key',
  'attention/value': 'attention.value',
  'attention/output': 'attention.dense',
  'attention_LayerNorm': 'attention.LayerNorm',
  'intermediate': 'ffn',
  'output': 'ffn_output',
  'output_LayerNorm': 'full_layer_layer_norm',
}

ALBERT = ReleasedFamily(
  name='albert',
  classes='Albert',
  modules={f'encoder/embeddings/{name}': f'albert.embeddings.{name}' for name in EMBEDDINGS}
  | numbered(_LAYER, 'albert.encoder.albert_layer_groups.0.albert_layers.0.')
  | HEADS
  | {
    'encoder/embeddings/projection': 'albert.encoder.embedding_hidden_mapping_in',
    'pooler/dense': 'albert.pooler',
    'mlm/transform': 'predictions.dense',
    'mlm/LayerNorm': 'predictions.LayerNorm',
    'mlm': 'predictions',
    'mlm/': 'predictions.decoder',
    'nsp/dense': 'sop_classifier.classifier',
  },
  prefix='albert.',
  defaults={
    'hidden_act': 'gelu_new',
    'embedding_size': 128,
    'hidden_dropout_prob': 0.0,
    'attention_probs_dropout_prob': 0.0,
  },
  fields={'share_layers': True},
  free=('embedding_size',),
  fixed={'num_hidden_groups': (1,), 'inner_group_num': (1,)},
  ids=ENDS,
  write=lambda model: {'embedding_size': model['embedding_size'] or model['hidden_size']},
  fits=lambda exported: exported.model['share_layers'],
  pooler=('Model',),
  pairs='sop',
)
