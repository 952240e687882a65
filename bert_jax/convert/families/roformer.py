"""RoFormer (Su et al. 2021, https://arxiv.org/abs/2104.09864): a BERT with rotary positions."""

import numpy as np

from bert_jax.convert.families.bert import MLM
from bert_jax.convert.families.electra import CLASSIFIER, ELECTRA
from bert_jax.convert.families.record import ACTIVATIONS, OtherHead, renamed
from bert_jax.models.positions import sinusoidal_table

_OTHERS = 'replaced/', 'mlm', 'encoder/embeddings/position_embeddings'
_NAMES = {ours: x for ours, x in ELECTRA.modules.items() if not ours.startswith(_OTHERS)}
_MODULES = renamed(_NAMES, 'electra.', 'roformer.') | MLM
_BY_LAST = "RoFormer's choice is by the last token of a row"
_LAST = OtherHead(('classifier.',), ('classifier',), _BY_LAST)


def _other_head(said, names):
  return _LAST if said.architecture.endswith('ForMultipleChoice') else OtherHead()


def _read(path, content):
  """Its classifier has the activation of its layers."""
  act = content['hidden_act']
  return content | {'pooler': ACTIVATIONS.get(act, act)}


def _buffers(model):
  """The sines of all positions, then their cosines."""
  width = model['hidden_size'] // model['num_attention_heads']
  table = sinusoidal_table(model['max_position_embeddings'], width)
  table = np.concatenate([table[:, ::2], table[:, 1::2]], axis=1)
  return {'roformer.encoder.embed_positions.weight': table}


def _fits(exported):
  model = exported.model
  return 'pooler' not in exported.parts or model['pooler'] == model['hidden_act']


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
  fields={'position_embeddings': 'rotary'},
  derived=('pooler',),
  fixed={'rotary_value': (False,)},
  read=_read,
  fits=_fits,
  lacks=('ForMultipleChoice',),
  other_head=_other_head,
)
