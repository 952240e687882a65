"""ALBERT: one layer for all, narrow embeddings, and a head that tells the order of two texts."""

from bert_jax.convert.families.record import (
  EMBEDDINGS,
  ENDS,
  HEADS,
  NO_DROPOUT,
  ReleasedFamily,
  layers,
)


def _refusal(exported):
  model = exported.model  # an ALBERT has a projection, however wide its embeddings are
  return None if model['embedding_size'] else ('embedding_size', model['hidden_size'])


ALBERT = ReleasedFamily(
  name='albert',
  classes='Albert',
  modules={f'encoder/embeddings/{name}': f'albert.embeddings.{name}' for name in EMBEDDINGS}
  | layers(
    'albert.encoder.albert_layer_groups.0.albert_layers.0.',
    ('attention.query', 'attention.key', 'attention.value', 'attention.dense'),
    ('attention.LayerNorm', 'ffn', 'ffn_output', 'full_layer_layer_norm'),
  )
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
  defaults={'hidden_act': 'gelu_new', 'embedding_size': 128, **NO_DROPOUT},
  fields={'share_layers': True},
  free=('embedding_size',),
  fixed={'num_hidden_groups': (1,), 'inner_group_num': (1,)},
  ids=ENDS,
  refusal=_refusal,
  fits=lambda exported: exported.model['share_layers'],
  pooler=('Model',),
  pairs='sop',
)
