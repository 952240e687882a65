"""RoFormer (Su et al. 2021, https://arxiv.org/abs/2104.09864): a BERT with rotary positions."""

import numpy as np

from bert_jax.convert.families.bert import MLM
from bert_jax.convert.families.electra import CLASSIFIER, ELECTRA
from bert_jax.convert.families.record import OtherHead, has_gelu, renamed
from bert_jax.models.positions import sinusoidal_table

_OTHERS = 'replaced/', 'mlm', 'encoder/embeddings/position_embeddings'
_NAMES = {ours: x for ours, x in ELECTRA.modules.items() if not ours.startswith(_OTHERS)}
_MODULES = renamed(_NAMES, 'electra.', 'roformer.') | MLM
_OF_LAYERS = "RoFormer's classifier has the hidden_act of its layers, and ours gelu"
_ACTIVATION = OtherHead(('classifier.',), ('pooler', 'classifier'), _OF_LAYERS)
_BY_LAST = "RoFormer's choice is by the last token of a row"
_LAST = OtherHead(('classifier.',), ('classifier',), _BY_LAST)


def _other_head(said, names):
  if said.architecture.endswith('ForMultipleChoice'):
    return _LAST
  is_same = has_gelu(said.model) or 'classifier.out_proj.weight' not in names
  return OtherHead() if is_same else _ACTIVATION


def _buffers(model):
  """The sines of all positions, then their cosines."""
  width = model['hidden_size'] // model['num_attention_heads']
  table = sinusoidal_table(model['max_position_embeddings'], width)
  table = np.concatenate([table[:, ::2], table[:, 1::2]], axis=1)
  return {'roformer.encoder.embed_positions.weight': table}


def _fits(exported):
  return 'pooler' not in exported.parts or has_gelu(exported.model)


# An ELECTRA's embeddings and heads for labels, and a BERT's for masks.
ROFORMER = ELECTRA._replace(
  name='roformer',
  classes='RoFormer',
  modules=_MODULES,
  prefix='roformer.',
  classifiers=(ELECTRA.classifiers[0]._replace(modules=_MODULES | CLASSIFIER),),
  side_by_side=True,
  buffers=_buffers,
  defaults={'embedding_size': 0},
  fields=ELECTRA.fields | {'position_embeddings': 'rotary'},
  fixed={'rotary_value': (False,)},
  fits=_fits,
  lacks=('ForMultipleChoice',),
  other_head=_other_head,
)
