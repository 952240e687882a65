"""What our parameters are called in released weights: a table for each family of models.

A family has a name for each module; the shape of a module and its parameters are the same for all.
A dense kernel is [out, in] in torch and [in, out] here. In TensorFlow it is as here, but for the
output layers of google-research/bert (TensorFlow 1), which are [out, in] too. Names of TensorFlow 2
(Model Garden, official/nlp/bert) become those of google-research/bert.
"""

import re
from typing import NamedTuple

FIELDS = {'V': 'vocab_size', 'P': 'max_position_embeddings', 'T': 'type_vocab_size',
          'D': 'hidden_size', 'F': 'intermediate_size'}  # fmt: skip

# {path of a module: (its kind, its shape in the letters of FIELDS, its name in a BERT of torch, its
# name in a DistilBERT or '')}, those of the encoder below. A dense layer is [in, out], C is any
# number of labels, and # stands for the number of a layer.
MODULES = {
  'pooler/dense': ('dense', 'DD', 'bert.pooler.dense', ''),
  'mlm/transform': ('dense', 'DD', 'cls.predictions.transform.dense', 'vocab_transform'),
  'mlm/LayerNorm': ('norm', 'D', 'cls.predictions.transform.LayerNorm', 'vocab_layer_norm'),
  'mlm': ('bias', 'V', 'cls.predictions', 'vocab_projector'),
  'mlm/': ('decoder', 'VD', 'cls.predictions.decoder', 'vocab_projector'),  # untied only
  'nsp/dense': ('dense', 'D2', 'cls.seq_relationship', ''),
  'classifier/dense': ('dense', 'DC', 'classifier', 'classifier'),
  'span/dense': ('dense', 'D2', 'qa_outputs', 'qa_outputs'),
}
_EMBEDDINGS = {  # the same names everywhere; a DistilBERT has no token types
  'word_embeddings': ('embed', 'VD'),
  'position_embeddings': ('embed', 'PD'),
  'token_type_embeddings': ('embed', 'TD'),
  'LayerNorm': ('norm', 'D'),
}
_LAYER = {
  'attention/query': ('dense', 'DD', 'attention.self.query', 'attention.q_lin'),
  'attention/key': ('dense', 'DD', 'attention.self.key', 'attention.k_lin'),
  'attention/value': ('dense', 'DD', 'attention.self.value', 'attention.v_lin'),
  'attention/output': ('dense', 'DD', 'attention.output.dense', 'attention.out_lin'),
  'attention_LayerNorm': ('norm', 'D', 'attention.output.LayerNorm', 'sa_layer_norm'),
  'intermediate': ('dense', 'DF', 'intermediate.dense', 'ffn.lin1'),
  'output': ('dense', 'FD', 'output.dense', 'ffn.lin2'),
  'output_LayerNorm': ('norm', 'D', 'output.LayerNorm', 'output_layer_norm'),
}
for _name, _kind in _EMBEDDINGS.items():
  _distil = '' if _name == 'token_type_embeddings' else f'distilbert.embeddings.{_name}'
  MODULES[f'encoder/embeddings/{_name}'] = (*_kind, f'bert.embeddings.{_name}', _distil)
for _name, (*_kind, _bert, _distil) in _LAYER.items():
  _names = f'bert.encoder.layer.#.{_bert}', f'distilbert.transformer.layer.#.{_distil}'
  MODULES[f'encoder/layer_#/{_name}'] = (*_kind, *_names)
# {kind of module: {parameter: (how its name ends in torch, in TensorFlow)}}.
LEAVES = {
  'embed': {'embedding': ('.weight', '')},
  'norm': {'scale': ('.weight', '/gamma'), 'bias': ('.bias', '/beta')},
  'dense': {'kernel': ('.weight', '/kernel'), 'bias': ('.bias', '/bias')},
  'bias': {'bias': ('.bias', '')},
  'decoder': {'decoder': ('.weight', '')},
}

BERT = {ours: bert for ours, (_, _, bert, _) in MODULES.items()}
DISTILBERT = {ours: distil for ours, (_, _, _, distil) in MODULES.items() if distil}
ROBERTA = {ours: theirs.replace('bert.', 'roberta.') for ours, theirs in BERT.items()} | {
  'mlm/transform': 'lm_head.dense',
  'mlm/LayerNorm': 'lm_head.layer_norm',
  'mlm': 'lm_head',
  'mlm/': 'lm_head.decoder',
}
del ROBERTA['nsp/dense']
# Its sequence classifier has a dense layer with tanh over <s>, which is our pooler, and no other.
ROBERTA_CLASSIFIER = ROBERTA | {
  'pooler/dense': 'classifier.dense',
  'classifier/dense': 'classifier.out_proj',
}
# google-research/bert, and its fine-tuned classifiers and SQuAD models.
GOOGLE = {
  ours: theirs.replace('.', '/').replace('encoder/layer/#', 'encoder/layer_#')
  for ours, theirs in BERT.items()
  if ours.partition('/')[0] in ('encoder', 'pooler', 'mlm') and ours != 'mlm/'
} | {'mlm': 'cls/predictions/output_bias'}
GOOGLE_OUTPUTS = {  # [out, in]
  'nsp/dense': 'cls/seq_relationship/output_',
  'classifier/dense': 'output_',
  'span/dense': 'cls/squad/output_',
}


class Place(NamedTuple):
  """How a parameter is stored in the files of a family."""

  name: str
  turned: bool  # transposed: [out, in], where ours is [in, out]
  shape: str  # of our parameter, in the letters of FIELDS


def table(family, layers, tied=True):
  """{path: Place} of every parameter that a family may have, with all its heads."""
  is_google = family == 'google'
  modules = {'bert': BERT, 'roberta': ROBERTA, 'roberta classifier': ROBERTA_CLASSIFIER,
             'distilbert': DISTILBERT, 'google': GOOGLE}[family]  # fmt: skip
  out = {}
  for ours, theirs in modules.items():
    kind, letters, *_ = MODULES[ours]
    if kind == 'decoder' and tied:
      continue
    for leaf, names in LEAVES[kind].items():
      shape = letters if leaf in ('kernel', 'embedding', 'decoder') else letters[-1]
      turned = leaf == 'kernel' and not is_google
      place = Place(theirs + names[is_google], turned, shape)
      for i in range(layers if '#' in ours else 1):
        path = f'{ours.rstrip("/")}/{leaf}'.replace('#', str(i))
        out[path] = place._replace(name=place.name.replace('#', str(i)))
  for ours, theirs in GOOGLE_OUTPUTS.items() if is_google else ():
    out[f'{ours}/kernel'] = Place(f'{theirs}weights', True, MODULES[ours][1])
    out[f'{ours}/bias'] = Place(f'{theirs}bias', False, MODULES[ours][1][-1])
  return out


def copies(places):
  """{name of a copy: name of the tensor that it is tied to}; files may hold such copies too."""
  words = places['encoder/embeddings/word_embeddings/embedding'].name
  bias = places['mlm/bias'].name if 'mlm/bias' in places else ''
  out = {
    'cls.predictions.decoder.weight': words, 'cls.predictions.decoder.bias': bias,
    'lm_head.decoder.weight': words, 'lm_head.decoder.bias': bias,
    'vocab_projector.weight': words,
  }  # fmt: skip
  used = {place.name for place in places.values()}
  return {copy: original for copy, original in out.items() if copy not in used}


def names_in_file(names, family, layers):
  """{name as `table` has it: name in the file}. Prefixes of wrappers are removed, gamma and beta
  become weight and bias, and a bare encoder gets the prefix that it has inside a model."""
  if family == 'google':
    return {_version_1(name, layers): name for name in names}
  out = {}
  for name in names:
    short = re.sub(r'^(module\.)?(_orig_mod\.)?(model\.)?', '', name)
    out[re.sub(r'\.beta$', '.bias', re.sub(r'\.gamma$', '.weight', short))] = name
  prefix = f'{family.partition(" ")[0]}.'
  if not any(name.startswith(prefix) for name in out):
    encoder = ('embeddings.', 'encoder.', 'transformer.', 'pooler.')
    out = {(prefix if k.startswith(encoder) else '') + k: name for k, name in out.items()}
  return out


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
    return f'bert/embeddings/{list(_EMBEDDINGS)[number]}'
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
  if '.OPTIMIZER_SLOT' in name or re.match(r'(\w+/)?_?optimizer\b', name) or leaf in (
      'adam_m', 'adam_v', 'AdamWeightDecayOptimizer', 'AdamWeightDecayOptimizer_1', 'Adam',
      'Adam_1', 'lamb_m', 'lamb_v'):  # fmt: skip
    return "the optimizer's"
  training = ('global_step', 'beta1_power', 'beta2_power', 'good_steps', 'current_loss_scale')
  if leaf in training or re.match(r'(save_counter|global_step|step)/', name):
    return "the training's"
  return ''
