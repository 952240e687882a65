"""RoFormer (Su et al. 2021, https://arxiv.org/abs/2104.09864): a BERT with rotary positions."""

import numpy as np

from bert_jax.convert.families.bert import ENCODER, MLM
from bert_jax.convert.families.record import HEADS, Classifier, OtherHead, ReleasedFamily, renamed
from bert_jax.models.positions import sinusoidal_table

_MODULES = renamed(ENCODER, 'bert.', 'roformer.') | MLM
_MODULES['encoder/embeddings/projection'] = 'roformer.embeddings_project'
del _MODULES['encoder/embeddings/position_embeddings']
# The dense layer with the layers' activation in its classifier, which is our pooler.
_CLASSIFIER = {'pooler/dense': 'classifier.dense', 'classifier/dense': 'classifier.out_proj'}
_ACTIVATION = OtherHead(
  ('classifier.',),
  ('pooler', 'classifier'),
  "RoFormer's classifier has the hidden_act of its layers, and ours gelu",
)
_LAST = OtherHead(
  ('classifier.',), ('classifier',), "RoFormer's choice is by the last token of a row"
)


def _other_head(said, names):
  if said.architecture.endswith('ForMultipleChoice'):
    return _LAST
  has_gelu = said.model['hidden_act'] == 'gelu' or 'classifier.out_proj.weight' not in names
  return OtherHead() if has_gelu else _ACTIVATION


def _buffers(model):
  """The sines of all positions, then their cosines."""
  width = model['hidden_size'] // model['num_attention_heads']
  table = sinusoidal_table(model['max_position_embeddings'], width)
  table = np.concatenate([table[:, ::2], table[:, 1::2]], axis=1)
  return {'roformer.encoder.embed_positions.weight': table}


def _refusal(exported):
  is_other = 'pooler' in exported.parts and exported.model['hidden_act'] != 'gelu'
  return ('hidden_act', 'gelu') if is_other else None


ROFORMER = ReleasedFamily(
  name='roformer',
  classes='RoFormer',
  modules=_MODULES | HEADS,
  prefix='roformer.',
  classifiers=(
    Classifier(_MODULES | _CLASSIFIER, 'classifier.out_proj.bias', ('ForSequenceClassification',)),
  ),
  side_by_side=True,
  buffers=_buffers,
  defaults={'embedding_size': 0},
  fields={'position_embeddings': 'rotary', 'pooler': 'gelu'},
  projects='narrower',
  same={'embedding_size': 'hidden_size'},
  free=('embedding_size',),
  fixed={'rotary_value': (False,)},
  refusal=_refusal,
  fits=lambda exported: (
    exported.model['position_embeddings'] == 'rotary' and exported.model['norm_placement'] == 'post'
  ),
  lacks=('ForMultipleChoice',),
  other_head=_other_head,
)
