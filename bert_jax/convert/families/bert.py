"""BERT: its tensor names, which most of its relatives share."""

from bert_jax.convert.families.record import EMBEDDINGS, HEADS, ReleasedFamily, layers

ENCODER = {f'encoder/embeddings/{name}': f'bert.embeddings.{name}' for name in EMBEDDINGS} | layers(
  'bert.encoder.layer.#.',
  ('attention.self.query', 'attention.self.key', 'attention.self.value', 'attention.output.dense'),
  ('attention.output.LayerNorm', 'intermediate.dense', 'output.dense', 'output.LayerNorm'),
)
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
  pooler=('Model',),
)
