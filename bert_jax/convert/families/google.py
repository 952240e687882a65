"""BERT in TensorFlow, as google-research/bert saves it.

Kernels are [in, out], but for its output layers. A checkpoint is recognised by its tensors, not by
a config.json, so this is not one of the FAMILIES.
"""

from bert_jax.convert.families.bert import BERT, ENCODER, MLM, POOLER
from bert_jax.convert.families.record import Place, renamed

_MODULES = {ours: name for ours, name in (ENCODER | POOLER | MLM).items() if ours[-1] != '/'}
_PLACES = {'mlm/bias': Place('cls/predictions/output_bias', False, 'V')}
for _ours, _theirs, _shape in (  # the output layers of heads: also of classifiers and for SQuAD
  ('nsp/dense', 'cls/seq_relationship/output_', 'D2'),
  ('classifier/dense', 'output_', 'DC'),
  ('span/dense', 'cls/squad/output_', 'D2'),
):
  _PLACES[f'{_ours}/kernel'] = Place(f'{_theirs}weights', True, _shape)
  _PLACES[f'{_ours}/bias'] = Place(f'{_theirs}bias', False, _shape[-1])

GOOGLE = BERT._replace(
  name='google',
  modules=renamed(renamed(_MODULES, '.', '/'), 'encoder/layer/#', 'encoder/layer_#'),
  places=_PLACES,
  prefix='bert/',
  endings={
    'embed': {'embedding': ''},
    'norm': {'scale': '/gamma', 'bias': '/beta'},
    'dense': {'kernel': '/kernel', 'bias': '/bias'},
    'bias': {'bias': ''},
  },
  turned=False,
  canonical=lambda name: name,
)
