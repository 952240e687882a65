"""Maps our parameters to the tensor names of released weights, by the record of a family.

The names follow from the modules' names, whose parameters are the same in all families. A dense
kernel is [out, in] in torch and [in, out] here, in GPTs and in TensorFlow.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.convert import sentence_transformers
from bert_jax.convert.families import record
from bert_jax.convert.families.record import Place, ReleasedFamily
from bert_jax.errors import InputError, listed

FIELDS = {
  'V': 'vocab_size',
  'P': 'max_position_embeddings',
  'T': 'type_vocab_size',
  'D': 'hidden_size',
  'F': 'intermediate_size',
  'E': 'embedding_size',
  'H': 'num_attention_heads',
}
# {our module: (its kind, its shape in the letters of FIELDS)}. A dense layer is [in, out], C is the
# number of labels, R of relative distances, Q the width of all queries, G of all keys, J of the
# projection, # the number of a layer.
MODULES = {
  'pooler/dense': ('dense', 'DD'),
  'pooler/LayerNorm': ('norm', 'D'),
  'mlm/transform': ('dense', 'DE'),
  'mlm/LayerNorm': ('norm', 'E'),
  'mlm/position_embeddings': ('embed', 'PD'),  # the mask decoder's
  'mlm': ('bias', 'V'),
  'mlm/': ('decoder', 'VE'),  # untied only
  'nsp/dense': ('dense', 'D2'),
  'classifier/dense': ('dense', 'DC'),
  'projection/dense': ('dense', 'DJ'),  # of vectors of texts, see sentence_transformers.py
  'span/dense': ('dense', 'D2'),
  'replaced/LayerNorm': ('norm', 'D'),
  'replaced/dense': ('dense', 'DD'),  # the head of ELECTRA's discriminator
  'replaced/score': ('dense', 'D1'),
  'encoder/embeddings/projection': ('dense', 'ED'),
  'encoder/distances': ('embed', 'RD'),
  'encoder/distances/LayerNorm': ('norm', 'D'),
  'encoder/distances/biases': ('embed', 'RH'),
  'encoder/LayerNorm': ('norm', 'D'),  # after the last layer of a pre-LN model
  'encoder/layer_#/gate': ('dense', 'DF'),
  'encoder/layer_#/fourier_LayerNorm': ('norm', 'D'),
  'decoder/embeddings/position_embeddings': ('embed', 'PE'),
  'decoder/embeddings/LayerNorm': ('norm', 'E'),
  'decoder/layer_#/cross_attention_LayerNorm': ('norm', 'D'),
}
_LAYER = ('norm', 'D'), ('dense', 'DF'), ('dense', 'FD'), ('norm', 'D')
for _tower in ('encoder', 'decoder'):
  MODULES |= {f'{_tower}/layer_#/{name}': kind for name, kind in zip(record.LAYER, _LAYER)}
for _place in ('encoder/layer_#/', 'decoder/layer_#/', 'decoder/layer_#/cross_'):
  _shapes = zip(record.ATTENTION, ('DQ', 'DG', 'DG', 'QD'))
  MODULES |= {f'{_place}attention/{name}': ('dense', shape) for name, shape in _shapes}
_TABLES = ('embed', 'VE'), ('embed', 'PE'), ('embed', 'TE'), ('norm', 'E')
MODULES |= {f'encoder/embeddings/{name}': kind for name, kind in zip(record.EMBEDDINGS, _TABLES)}
MATRICES = 'kernel', 'embedding', 'decoder'  # parameters with two axes
# (regex of paths, function of config.model's fields: whether the model has such parameters).
OPTIONAL = (
  (r'.*LayerNorm/bias', lambda model: model['norm_bias']),
  (r'.*attention/\w+/bias', lambda model: model['attention_bias']),
  (r'.*/(gate|intermediate)/bias', lambda model: model['feed_forward_bias'] == 'all'),
  (r'.*layer_\d+/output/bias', lambda model: model['feed_forward_bias'] != 'none'),
  (r'(mlm/transform|pooler/dense)/bias', lambda model: model['head_bias']),
  (r'classifier/dense/bias', lambda model: model['classifier_bias']),
  (r'projection/.*', lambda model: model['projection_size']),
  (r'projection/dense/bias', lambda model: model['projection_bias']),
  (r'mlm/bias', lambda model: model['decoder_bias']),
  (r'replaced/LayerNorm/.*', lambda model: model['replaced_head'] == 'context'),
  (r'mlm/decoder', lambda model: not model['tie_word_embeddings']),
  (r'.*layer_0/attention_LayerNorm/.*', lambda model: model['first_norm']),
  (r'.*embeddings/projection/.*', lambda model: model['embedding_size']),
)


def table(family: ReleasedFamily, model: Mapping[str, Any]) -> dict[str, Place]:
  """{path: Place} for all parameters, heads too, that a model of a family can have."""
  modules = dict(family.modules)
  if model['feed_forward'] == 'glu':
    modules |= family.gated
  out = {}
  for ours, theirs in modules.items():
    kind, letters = MODULES[ours]
    # Several modules of ours may be one of theirs.
    together = [x for x, name in modules.items() if name == theirs and MODULES[x][0] == kind]
    pairs = 0
    if family.side_by_side and ours.endswith(('attention/query', 'attention/key')):
      pairs = model['num_attention_heads']
    for leaf, ending in family.endings[kind].items():
      for path, number in _paths(ours, leaf, model):
        out[path] = Place(
          (theirs + ending).replace('#', number),
          turned=leaf == 'kernel' and family.turned,
          shape=letters if leaf in MATRICES else letters[-1],
          part=(together.index(ours), len(together)),
          side_by_side=pairs,
        )
  out |= {**family.places, **sentence_transformers.PLACES}
  return {path: place for path, place in out.items() if _has(model, path)}


def _has(model, path):
  """Whether a model has such a parameter, by all rules of OPTIONAL that are about it."""
  return all(rule(model) for pattern, rule in OPTIONAL if re.fullmatch(pattern, path))


def _paths(module, leaf, model):
  """(path of the parameter, layer number) for each of a model's modules under a name in MODULES."""
  of_decoder = model['num_decoder_layers'] if module.startswith('decoder') else 0
  layers = 1 if model['share_layers'] else of_decoder or model['num_hidden_layers']
  path = f'{module.rstrip("/")}/{leaf}'
  return [(path.replace('#', str(i)), str(i)) for i in range(layers if '#' in path else 1)]


def part_of(path: str) -> str:
  """The part of a model that a parameter is in: encoder, pooler, mlm, ..."""
  return path.partition('/')[0]


def copies(family: ReleasedFamily, places: Mapping[str, Place]) -> dict[str, str]:
  """{name of a copy: name of its original} for tied tensors, which files may hold twice."""
  words = places['encoder/embeddings/word_embeddings/embedding'].name
  decoder = family.modules.get('mlm/')
  out = {f'{decoder}.weight': words} if decoder and 'mlm/decoder' not in places else {}
  if decoder and 'mlm/bias' in places:
    out[f'{decoder}.bias'] = places['mlm/bias'].name
  out |= dict.fromkeys(family.tied, words)
  return {copy: original for copy, original in out.items() if copy != original}


def names_in_file(names: Iterable[str], family: ReleasedFamily) -> dict[str, str]:
  """{name in `table`: name in the file}. What a wrapper puts before all names (module., net.) is
  taken off, and the prefix that a bare encoder's names lack is added."""
  out, prefix = {family.canonical(name): name for name in names}, family.prefix
  wrapper = _wrapper(out, family)
  out = {short.removeprefix(wrapper): name for short, name in out.items()}
  if any(name.startswith(prefix) for name in out):
    return out
  inside = (x.removeprefix(prefix) for x in family.modules.values() if x.startswith(prefix))
  encoder = tuple({f'{name.partition(".")[0]}.' for name in inside})
  return {(prefix if k.startswith(encoder) else '') + k: name for k, name in out.items()}


def _wrapper(names, family):
  """What stands before all names of a model's tensors."""
  (ending,) = family.endings['embed'].values()
  words = family.modules['encoder/embeddings/word_embeddings'] + ending
  words = re.compile(rf'(.*\.|){re.escape(words.removeprefix(family.prefix))}')
  found = sorted({match[1] for match in map(words.fullmatch, names) if match})
  if len(found) > 1:
    raise InputError(
      f'the file holds {len(found)} models, whose names begin with {listed(found)}; keep the '
      'tensors of one in it.'
    )
  return min(found, default='').removesuffix(family.prefix)


def not_a_parameter(name: str) -> str:
  """Why a tensor of this name is no parameter; '' if it may be one."""
  leaf = name.replace('/', '.').rpartition('.')[2]
  if leaf in ('position_ids', 'token_type_ids'):
    return 'a buffer of numbers in order'
  if re.search(r'\bh\.\d+\.attn\.(masked_)?bias$', name):
    return "a buffer: a GPT's mask of later tokens"
  if re.fullmatch(r'adam_[mv]|lamb_[mv]|(Adam|AdamWeightDecayOptimizer)(_1)?', leaf):
    return "the optimizer's"
  training = 'global_step', 'beta1_power', 'beta2_power', 'good_steps', 'current_loss_scale'
  return "the training's" if leaf in training else ''
