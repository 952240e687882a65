"""ELECTRA: a discriminator with a head for each token, or its generator; narrow embeddings."""

from bert_jax.convert.families.bert import ENCODER
from bert_jax.convert.families.record import HEADS, OtherHead, ReleasedFamily, renamed

_DENSE = OtherHead(
  ('classifier.',),
  ('pooler', 'classifier'),
  "ELECTRA's classifier has a dense layer with GELU, where our pooler has tanh",
)
_SUMMARY = _DENSE._replace(names=('sequence_summary.', 'classifier.'))
_GENERATOR = OtherHead(
  ('generator_',), ('mlm',), "an ELECTRA's generator predicts with gelu, ours with its hidden_act"
)


def _other_head(description, names):
  if 'classifier.dense.weight' in names:
    return _DENSE
  if 'sequence_summary.summary.weight' in names:
    return _SUMMARY
  return _GENERATOR if description.model['hidden_act'] != 'gelu' else OtherHead()


def _refusal(exported):
  # Its generator's head has gelu.
  is_other = 'mlm' in exported.parts and exported.model['hidden_act'] != 'gelu'
  return ('hidden_act', 'gelu') if is_other else None


ELECTRA = ReleasedFamily(
  name='electra',
  classes='Electra',
  modules=renamed(ENCODER, 'bert.', 'electra.')
  | HEADS
  | {
    'encoder/embeddings/projection': 'electra.embeddings_project',
    'replaced/dense': 'discriminator_predictions.dense',
    'replaced/score': 'discriminator_predictions.dense_prediction',
    'mlm/transform': 'generator_predictions.dense',
    'mlm/LayerNorm': 'generator_predictions.LayerNorm',
    'mlm': 'generator_lm_head',
    'mlm/': 'generator_lm_head',
  },
  prefix='electra.',
  defaults={'embedding_size': 128},
  free=('embedding_size',),
  projects='narrower',
  same={'embedding_size': 'hidden_size'},
  refusal=_refusal,
  fits=lambda exported: exported.model['embedding_size'] or 'replaced' in exported.parts,
  other_head=_other_head,
)
