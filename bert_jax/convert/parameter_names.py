"""What our parameters are called in released weights: a table for each family of models.

It follows from the names of modules (module_names.py), whose parameters are the same in all. A
dense kernel is [out, in] in torch and [in, out] here. In a GPT it is as here, and in TensorFlow,
but for the output layers of google-research/bert (TensorFlow 1), which are [out, in] too. Names of
TensorFlow 2 (Model Garden, official/nlp/bert) become those of google-research/bert.
"""

import re
from typing import NamedTuple

from bert_jax.convert.module_names import (
  EMBEDDINGS,
  GOOGLE_OUTPUTS,
  LEAVES,
  MODULES,
  PREFIXES,
  TABLES,
  TIED,
  UNTURNED,
)

FIELDS = {
  'V': 'vocab_size',
  'P': 'max_position_embeddings',
  'T': 'type_vocab_size',
  'D': 'hidden_size',
  'F': 'intermediate_size',
  'E': 'embedding_size',
}

# (a pattern of paths, whether a model with these fields of config.model has such parameters).
OPTIONAL = (
  (r'.*LayerNorm/bias', lambda model: model['norm_bias']),
  (r'.*attention/\w+/bias', lambda model: model['attention_bias']),
  (r'.*/(gate|intermediate)/bias', lambda model: model['feed_forward_bias'] == 'all'),
  (r'.*layer_\d+/output/bias', lambda model: model['feed_forward_bias'] != 'none'),
  (r'(mlm/transform|pooler/dense)/bias', lambda model: model['head_bias']),
  (r'mlm/bias', lambda model: model['decoder_bias']),
  (r'mlm/decoder', lambda model: not model['tie_word_embeddings']),
  (r'.*layer_0/attention_LayerNorm/.*', lambda model: model['first_norm']),
  (r'.*embeddings/projection/.*', lambda model: model['embedding_size']),
)


class Place(NamedTuple):
  """How a parameter is stored in the files of a family."""

  name: str
  turned: bool  # transposed: [out, in], where ours is [in, out]
  shape: str  # of our parameter, in the letters of FIELDS
  part: tuple = (0, 1)  # (i, n): it is the i-th of n equal parts of the tensor
  is_row: bool = False  # [1, n], where ours is [n]

  @property
  def axis(self):
    """The axis of the tensor along which its parts lie, which is that of the outputs."""
    return 0 if self.turned else -1


def table(family, model):
  """{path: Place} of every parameter that a model of a family with these fields of config.model may
  have, with all its heads."""
  is_google, out, modules = family == 'google', {}, TABLES[family]
  for ours, theirs in modules.items():
    kind, letters, *_ = MODULES[ours]
    together = [x for x in modules if modules[x] == theirs and MODULES[x][0] == kind]
    part = together.index(ours), len(together)
    for leaf, names in LEAVES[kind].items():
      turned = leaf == 'kernel' and family not in UNTURNED
      place = Place(theirs + names[is_google], turned, _letters(leaf, letters), part)
      for i in range(_count(ours, model)):
        path = f'{ours.rstrip("/")}/{leaf}'.replace('#', str(i))
        out[path] = place._replace(name=place.name.replace('#', str(i)))
  for ours, theirs in GOOGLE_OUTPUTS.items() if is_google else ():
    out[f'{ours}/kernel'] = Place(f'{theirs}weights', True, MODULES[ours][1])
    out[f'{ours}/bias'] = Place(f'{theirs}bias', False, MODULES[ours][1][-1])
  if family == 'bart':
    out['mlm/bias'] = out['mlm/bias']._replace(name='final_logits_bias', is_row=True)
  return {path: place for path, place in out.items() if _is_in(model, path)}


def _count(module, model):
  """How many modules of a name (in MODULES) a model with these fields of config.model has."""
  if '#' not in module:
    return 1
  of_decoder = model['num_decoder_layers'] if module.startswith('decoder') else 0
  return 1 if model['share_layers'] else of_decoder or model['num_hidden_layers']


def _is_in(model, path):
  return all(has(model) for pattern, has in OPTIONAL if re.fullmatch(pattern, path))


def _letters(leaf, letters):
  return letters if leaf in ('kernel', 'embedding', 'decoder') else letters[-1]


def shapes(model):
  """{path: shape of the parameter, in the letters of FIELDS}, of all that a model of some family
  with these fields of config.model may have."""
  out = {}
  for ours, (kind, letters, *_) in MODULES.items():
    for leaf in LEAVES[kind]:
      for i in range(_count(ours, model)):
        path = f'{ours.rstrip("/")}/{leaf}'.replace('#', str(i))
        out[path] = _letters(leaf, letters)
  return out


def copies(family, places):
  """{name of a copy: name of the tensor that it is tied to}; files may hold such copies too."""
  words = places['encoder/embeddings/word_embeddings/embedding'].name
  decoder = TABLES[family].get('mlm/')
  out = {f'{decoder}.weight': words} if decoder and 'mlm/decoder' not in places else {}
  if decoder and 'mlm/bias' in places:
    out[f'{decoder}.bias'] = places['mlm/bias'].name
  out |= dict.fromkeys(TIED.get(family, ()), words)
  return {copy: original for copy, original in out.items() if copy != original}


def names_in_file(names, family, layers):
  """{name as `table` has it: name in the file}. Prefixes of wrappers are removed, gamma and beta
  become weight and bias, and a bare encoder gets the prefix that it has inside a model."""
  if family == 'google':
    return {_version_1(name, layers): name for name in names}
  out = {}
  for name in names:
    short = re.sub(r'^(module\.)?(_orig_mod\.)?(model\.)?', '', name)
    out[re.sub(r'\.beta$', '.bias', re.sub(r'\.gamma$', '.weight', short))] = name
  prefix = prefix_of(family)
  if not any(name.startswith(prefix) for name in out):
    encoder = (
      'embeddings.',
      'encoder.',
      'transformer.',
      'pooler.',
      'layers.',
      'final_norm.',
      'embeddings_project.',
      'wte.',
      'wpe.',
      'tokens_embed.',
      'positions_embed.',
      'h.',
      'ln_f.',
    )
    encoder += ('decoder.', 'shared.') if family == 'bart' else ()
    out = {(prefix if k.startswith(encoder) else '') + k: name for k, name in out.items()}
  return out


def prefix_of(family):
  """What the names of an encoder's tensors begin with inside a model with a head."""
  name = family.partition(' ')[0]
  return PREFIXES.get(name, f'{name}.')


# An object-based checkpoint (TensorFlow 2) names a variable by the objects that lead to it: the
# number of a layer with weights (three embeddings, their LayerNorm, the blocks, the pooler), then
# attributes inside it. Attention heads have a separate axis: [D, H, d] where version 1 has [D, D].
GRAPH = '_CHECKPOINTABLE_OBJECT_GRAPH'
END = '/.ATTRIBUTES/VARIABLE_VALUE'
_BLOCK = {f'_attention_layer/_{x}_dense': f'attention/self/{x}' for x in ('query', 'key', 'value')}
_BLOCK |= {
  '_attention_layer/_output_dense': 'attention/output/dense',
  '_attention_output_dense': 'attention/output/dense',  # of earlier releases
  '_attention_layer_norm': 'attention/output/LayerNorm',
  '_intermediate_dense': 'intermediate/dense',
  '_output_dense': 'output/dense',
  '_output_layer_norm': 'output/LayerNorm',
}


def _version_1(name, layers):
  """The name in google-research/bert of a variable of an encoder; the name itself of others."""
  match = re.fullmatch(rf'(?:model/)?layer_with_weights-(\d+)/(.+){re.escape(END)}', name)
  if not match:
    return name
  number, (module, _, leaf) = int(match[1]), match[2].rpartition('/')
  if number < 3 and match[2] == 'embeddings':
    return f'bert/embeddings/{list(EMBEDDINGS)[number]}'
  if number == 3 and not module:
    return f'bert/embeddings/LayerNorm/{leaf}'
  if 4 <= number < layers + 4 and module in _BLOCK:
    return f'bert/encoder/layer_{number - 4}/{_BLOCK[module]}/{leaf}'
  return f'bert/pooler/dense/{leaf}' if number == layers + 4 and not module else name


def not_a_parameter(name):
  """'' for what may be a parameter; else what the tensor is."""
  leaf = name.replace('/', '.').rpartition('.')[2]
  if name == GRAPH:
    return 'the graph of objects'
  if leaf in ('position_ids', 'token_type_ids'):
    return 'a buffer of numbers in order'
  if re.search(r'\bh\.\d+\.attn\.(masked_)?bias$', name):
    return "a buffer: a GPT's mask of later tokens"
  if (
    '.OPTIMIZER_SLOT' in name
    or re.match(r'(\w+/)?_?optimizer\b', name)
    or leaf
    in (
      'adam_m',
      'adam_v',
      'AdamWeightDecayOptimizer',
      'AdamWeightDecayOptimizer_1',
      'Adam',
      'Adam_1',
      'lamb_m',
      'lamb_v',
    )
  ):
    return "the optimizer's"
  training = ('global_step', 'beta1_power', 'beta2_power', 'good_steps', 'current_loss_scale')
  if leaf in training or re.match(r'(save_counter|global_step|step)/', name):
    return "the training's"
  return ''
