"""BERT in TensorFlow: google-research/bert, and the encoders of the Model Garden.

In TensorFlow 1 kernels are [in, out], but for its output layers. Names of TensorFlow 2 (Model
Garden, official/nlp/bert) are mapped to google-research/bert's. A checkpoint is recognised by its
tensors, not by a config.json, so this is not one of the FAMILIES.
"""

import re

from bert_jax.convert.families.bert import BERT, ENCODER, MLM, POOLER
from bert_jax.convert.families.record import EMBEDDINGS, Place, renamed

# An object-based checkpoint (TensorFlow 2) names a variable by the objects that lead to it: the
# number of a layer with weights (three embeddings, their LayerNorm, the blocks, the pooler), then
# attributes inside it. Attention heads have a separate axis: [D, H, d] where version 1 has [D, D].
GRAPH = '_CHECKPOINTABLE_OBJECT_GRAPH'
END = '/.ATTRIBUTES/VARIABLE_VALUE'
_BLOCK = {f'_attention_layer/_{x}_dense': f'attention/self/{x}' for x in ('query', 'key', 'value')}
_OUTPUT = '_attention_layer/_output_dense', '_attention_output_dense'  # the latter is older
_BLOCK |= dict.fromkeys(_OUTPUT, 'attention/output/dense') | {
  '_attention_layer_norm': 'attention/output/LayerNorm',
  '_intermediate_dense': 'intermediate/dense',
  '_output_dense': 'output/dense',
  '_output_layer_norm': 'output/LayerNorm',
}
_MODULES = {ours: name for ours, name in (ENCODER | POOLER | MLM).items() if ours[-1] != '/'}
_PLACES = {'mlm/bias': Place('cls/predictions/output_bias', False, 'V')}
for _ours, _theirs, _shape in (  # the output layers of heads: also of classifiers and for SQuAD
  ('nsp/dense', 'cls/seq_relationship/output_', 'D2'),
  ('classifier/dense', 'output_', 'DC'),
  ('span/dense', 'cls/squad/output_', 'D2'),
):
  _PLACES[f'{_ours}/kernel'] = Place(f'{_theirs}weights', True, _shape)
  _PLACES[f'{_ours}/bias'] = Place(f'{_theirs}bias', False, _shape[-1])


def _version_1(name: str, layers: int) -> str:
  """The name in google-research/bert for a variable of an encoder; other names unchanged."""
  match = re.fullmatch(rf'(?:model/)?layer_with_weights-(\d+)/(.+){re.escape(END)}', name)
  if not match:
    return name
  number, (module, _, leaf) = int(match[1]), match[2].rpartition('/')
  if number < 3 and match[2] == 'embeddings':
    return f'bert/embeddings/{EMBEDDINGS[number]}'
  if number == 3 and not module:
    return f'bert/embeddings/LayerNorm/{leaf}'
  if 4 <= number < layers + 4 and module in _BLOCK:
    return f'bert/encoder/layer_{number - 4}/{_BLOCK[module]}/{leaf}'
  return f'bert/pooler/dense/{leaf}' if number == layers + 4 and not module else name


def is_ours(name: str) -> bool:
  """Whether a tensor of this name belongs to such an encoder."""
  return name.startswith('bert/') or '/layer_with_weights-0/' in f'/{name}'


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
  canonical=_version_1,
  heads_apart=True,
)
