"""ALBERT: one layer for all, narrow embeddings, and a head that tells the order of two texts."""

from bert_jax.convert.families import record
from bert_jax.convert.families.record import ReleasedFamily, layers

ALBERT = ReleasedFamily(
  name='albert',
  classes='Albert',
  modules={f'encoder/embeddings/{name}': f'albert.embeddings.{name}' for name in record.EMBEDDINGS}
  | layers(
    'albert.encoder.albert_layer_groups.0.albert_layers.0.',
    ('attention.query', 'attention.key', 'attention.value', 'attention.dense'),
    ('attention.LayerNorm', 'ffn', 'ffn_output', 'full_layer_layer_norm'),
  )
  | record.HEADS
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
  defaults={'hidden_act': 'gelu_new', 'embedding_size': 128, **record.NO_DROPOUT},
  fields={'share_layers': True},
  free=('embedding_size',),
  fixed={'num_hidden_groups': (1,), 'inner_group_num': (1,)},
  ids=record.ENDS,
  projects='all',
  pooler=('Model',),
  pairs='sop',
)
