"""ELECTRA: a discriminator with a head for each token, or its generator; narrow embeddings."""

from bert_jax.convert.families.bert import ENCODER
from bert_jax.convert.families.record import (
  HEADS,
  Classifier,
  OtherHead,
  ReleasedFamily,
  has_gelu,
  renamed,
)

_MODULES = renamed(ENCODER, 'bert.', 'electra.')
_MODULES['encoder/embeddings/projection'] = 'electra.embeddings_project'
# The dense layer with GELU in its classifiers, which is our pooler.
CLASSIFIER = {'pooler/dense': 'classifier.dense', 'classifier/dense': 'classifier.out_proj'}
_CHOICE = {'pooler/dense': 'sequence_summary.summary', 'classifier/dense': 'classifier'}
_GENERATOR = OtherHead(
  ('generator_',), ('mlm',), "an ELECTRA's generator predicts with gelu, ours with its hidden_act"
)


def _fits(exported):
  if 'mlm' in exported.parts and not has_gelu(exported.model):
    return False
  return exported.model['embedding_size'] or 'replaced' in exported.parts


ELECTRA = ReleasedFamily(
  name='electra',
  classes='Electra',
  modules=_MODULES
  | HEADS
  | {
    'replaced/dense': 'discriminator_predictions.dense',
    'replaced/score': 'discriminator_predictions.dense_prediction',
    'mlm/transform': 'generator_predictions.dense',
    'mlm/LayerNorm': 'generator_predictions.LayerNorm',
    'mlm': 'generator_lm_head',
    'mlm/': 'generator_lm_head',
  },
  prefix='electra.',
  classifiers=(
    Classifier(_MODULES | CLASSIFIER, 'classifier.out_proj.bias', 'ForSequenceClassification'),
    Classifier(_MODULES | _CHOICE, 'sequence_summary.summary.bias', 'ForMultipleChoice'),
  ),
  fields={'pooler': 'gelu'},
  fixed=dict(summary_type=('first',), summary_use_proj=(True,), summary_activation=('gelu',)),
  defaults={'embedding_size': 128},
  free=('embedding_size',),
  projects='narrower',
  same={'embedding_size': 'hidden_size'},
  fits=_fits,
  other_head=lambda said, _: OtherHead() if has_gelu(said.model) else _GENERATOR,
)
