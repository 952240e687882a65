"""BERT, whose names most of its relatives have."""

from bert_jax.convert.families.record import EMBEDDINGS, HEADS, ReleasedFamily, numbered

LAYER = {
  'attention/query': 'attention.self.query',
  'attention/key': 'attention.self.key',
  'attention/value': 'attention.self.value',
  'attention/output': 'attention.output.dense',
  'attention_LayerNorm': 'attention.output.LayerNorm',
  'intermediate': 'intermediate.dense',
  'output': 'output.dense',
  'output_LayerNorm': 'output.LayerNorm',
}
ENCODER = {
  f'encoder/embeddings/{name}': f'bert.embeddings.{name}' for name in EMBEDDINGS
} | numbered(LAYER, 'bert.encoder.layer.#.')
POOLER = {'pooler/dense': 'bert.pooler.dense'}
MLM = {
  'mlm/transform': 'cls.predictions.transform.dense',
  'mlm/LayerNorm': 'cls.predictions.transform.LayerNorm',
  'mlm': 'cls.predictions',
  'mlm/': 'cls.predictions.decoder',
}
PAIRS = {'nsp/dense': 'cls.seq_relationship'}

BERT = ReleasedFamily(
  name='bert',
  classes='Bert',
  modules=ENCODER | POOLER | MLM | PAIRS | HEADS,
  prefix='bert.',
  fits=lambda exported: True,
  pooler=('Model',),
)
