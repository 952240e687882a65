"""What our parameters are called in released weights: a table for each family of models.

A family has a name for each module; the shape of a module and its parameters are the same for all.
Two or three of our modules may be one of theirs, whose rows are those of ours, one after the other.
A dense kernel is [out, in] in torch and [in, out] here. In TensorFlow it is as here, but for the
output layers of google-research/bert (TensorFlow 1), which are [out, in] too. Names of TensorFlow 2
(Model Garden, official/nlp/bert) become those of google-research/bert.
"""

import re
from typing import NamedTuple

FIELDS = {'V': 'vocab_size', 'P': 'max_position_embeddings', 'T': 'type_vocab_size',
          'D': 'hidden_size', 'F': 'intermediate_size', 'E': 'embedding_size'}  # fmt: skip

# {path of a module: (its kind, its shape in the letters of FIELDS, its name in a BERT of torch, its
# name in a DistilBERT), those of the encoder below; '' where there is none. A dense layer is
# [in, out], C is any number of labels, and # stands for the number of a layer.
MODULES = {
  'pooler/dense': ('dense', 'DD', 'bert.pooler.dense', ''),
  'pooler/LayerNorm': ('norm', 'D', '', ''),
  'mlm/transform': ('dense', 'DE', 'cls.predictions.transform.dense', 'vocab_transform'),
  'mlm/LayerNorm': ('norm', 'E', 'cls.predictions.transform.LayerNorm', 'vocab_layer_norm'),
  'mlm': ('bias', 'V', 'cls.predictions', 'vocab_projector'),
  'mlm/': ('decoder', 'VE', 'cls.predictions.decoder', 'vocab_projector'),  # untied only
  'nsp/dense': ('dense', 'D2', 'cls.seq_relationship', ''),
  'classifier/dense': ('dense', 'DC', 'classifier', 'classifier'),
  'span/dense': ('dense', 'D2', 'qa_outputs', 'qa_outputs'),
  'replaced/dense': ('dense', 'DD', '', ''),  # the head of ELECTRA's discriminator
  'replaced/score': ('dense', 'D1', '', ''),
  'encoder/embeddings/projection': ('dense', 'ED', '', ''),
  'encoder/LayerNorm': ('norm', 'D', '', ''),  # after the last layer of a pre-LN model
  'encoder/layer_#/gate': ('dense', 'DF', '', ''),
  'encoder/layer_#/fourier_LayerNorm': ('norm', 'D', '', ''),
}
_EMBEDDINGS = {  # the same names everywhere; a DistilBERT has no token types
  'word_embeddings': ('embed', 'VE'),
  'position_embeddings': ('embed', 'PE'),
  'token_type_embeddings': ('embed', 'TE'),
  'LayerNorm': ('norm', 'E'),
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

BERT = {ours: bert for ours, (_, _, bert, _) in MODULES.items() if bert}
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


_HEADS = {'classifier/dense': 'classifier', 'span/dense': 'qa_outputs'}
ELECTRA = {  # the MLM head is that of its generator
  ours: theirs.replace('bert.', 'electra.') for ours, theirs in BERT.items()
  if ours.startswith('encoder/')
} | _HEADS | {
  'encoder/embeddings/projection': 'electra.embeddings_project',
  'replaced/dense': 'discriminator_predictions.dense',
  'replaced/score': 'discriminator_predictions.dense_prediction',
  'mlm/transform': 'generator_predictions.dense',
  'mlm/LayerNorm': 'generator_predictions.LayerNorm',
  'mlm': 'generator_lm_head',
  'mlm/': 'generator_lm_head',
}  # fmt: skip
FNET = {
  ours: theirs.replace('bert.', 'fnet.') for ours, theirs in BERT.items()
  if 'attention' not in ours
} | {
  'encoder/embeddings/projection': 'fnet.embeddings.projection',
  'encoder/layer_#/fourier_LayerNorm': 'fnet.encoder.layer.#.fourier.output.LayerNorm',
}  # fmt: skip
_ALBERT_LAYER = {
  'attention/query': 'attention.query',
  'attention/key': 'attention.key',
  'attention/value': 'attention.value',
  'attention/output': 'attention.dense',
  'attention_LayerNorm': 'attention.LayerNorm',
  'intermediate': 'ffn',
  'output': 'ffn_output',
  'output_LayerNorm': 'full_layer_layer_norm',
}
ALBERT = {f'encoder/embeddings/{name}': f'albert.embeddings.{name}' for name in _EMBEDDINGS} | {
  f'encoder/layer_#/{ours}': f'albert.encoder.albert_layer_groups.0.albert_layers.0.{theirs}'
  for ours, theirs in _ALBERT_LAYER.items()
} | _HEADS | {
  'encoder/embeddings/projection': 'albert.encoder.embedding_hidden_mapping_in',
  'pooler/dense': 'albert.pooler',
  'mlm/transform': 'predictions.dense',
  'mlm/LayerNorm': 'predictions.LayerNorm',
  'mlm': 'predictions',
  'mlm/': 'predictions.decoder',
  'nsp/dense': 'sop_classifier.classifier',
}  # fmt: skip
_MODERNBERT_LAYER = {
  'attention_LayerNorm': 'attn_norm',
  'attention/query': 'attn.Wqkv',
  'attention/key': 'attn.Wqkv',
  'attention/value': 'attn.Wqkv',
  'attention/output': 'attn.Wo',
  'output_LayerNorm': 'mlp_norm',
  'gate': 'mlp.Wi',  # the half that goes through the activation
  'intermediate': 'mlp.Wi',
  'output': 'mlp.Wo',
}
_MODERNBERT = {
  f'encoder/layer_#/{ours}': f'model.layers.#.{theirs}'
  for ours, theirs in _MODERNBERT_LAYER.items()
} | {
  'encoder/embeddings/word_embeddings': 'model.embeddings.tok_embeddings',
  'encoder/embeddings/LayerNorm': 'model.embeddings.norm',
  'encoder/LayerNorm': 'model.final_norm',
}  # fmt: skip
MODERNBERT = _MODERNBERT | {
  'mlm/transform': 'head.dense',
  'mlm/LayerNorm': 'head.norm',
  'mlm': 'decoder',
  'mlm/': 'decoder',
}
# Its sequence classifier has the same head over [CLS]; that is our pooler, and no MLM head.
MODERNBERT_CLASSIFIER = _MODERNBERT | {
  'pooler/dense': 'head.dense',
  'pooler/LayerNorm': 'head.norm',
  'classifier/dense': 'classifier',
}
TABLES = {
  'bert': BERT, 'roberta': ROBERTA, 'roberta classifier': ROBERTA_CLASSIFIER,
  'distilbert': DISTILBERT, 'google': GOOGLE, 'albert': ALBERT, 'electra': ELECTRA, 'fnet': FNET,
  'modernbert': MODERNBERT, 'modernbert classifier': MODERNBERT_CLASSIFIER,
}  # fmt: skip
PREFIXES = {'modernbert': 'model.'}  # of the encoder; else it is the family and a dot
# (a pattern of paths, whether a model with these fields of config.model has such parameters).
OPTIONAL = (
  (r'.*LayerNorm/bias', lambda model: model['norm_bias']),
  (r'.*/attention/\w+/bias', lambda model: model['attention_bias']),
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
  part: tuple = (0, 1)  # (i, n): it is the i-th of n equal runs of rows of the tensor


def table(family, model):
  """{path: Place} of every parameter that a model of a family with these fields of config.model may
  have, with all its heads."""
  is_google, out, modules = family == 'google', {}, TABLES[family]
  layers = 1 if model['share_layers'] else model['num_hidden_layers']
  for ours, theirs in modules.items():
    kind, letters, *_ = MODULES[ours]
    together = [x for x in modules if modules[x] == theirs and MODULES[x][0] == kind]
    part = together.index(ours), len(together)
    for leaf, names in LEAVES[kind].items():
      turned = leaf == 'kernel' and not is_google
      place = Place(theirs + names[is_google], turned, _letters(leaf, letters), part)
      for i in range(layers if '#' in ours else 1):
        path = f'{ours.rstrip("/")}/{leaf}'.replace('#', str(i))
        out[path] = place._replace(name=place.name.replace('#', str(i)))
  for ours, theirs in GOOGLE_OUTPUTS.items() if is_google else ():
    out[f'{ours}/kernel'] = Place(f'{theirs}weights', True, MODULES[ours][1])
    out[f'{ours}/bias'] = Place(f'{theirs}bias', False, MODULES[ours][1][-1])
  return {path: place for path, place in out.items() if _is_in(model, path)}


def _is_in(model, path):
  return all(has(model) for pattern, has in OPTIONAL if re.fullmatch(pattern, path))


def _letters(leaf, letters):
  return letters if leaf in ('kernel', 'embedding', 'decoder') else letters[-1]


def shapes(layers):
  """{path: shape of the parameter, in the letters of FIELDS}, of all that a family may have."""
  out = {}
  for ours, (kind, letters, *_) in MODULES.items():
    for leaf in LEAVES[kind]:
      for i in range(layers if '#' in ours else 1):
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
    encoder = ('embeddings.', 'encoder.', 'transformer.', 'pooler.', 'layers.', 'final_norm.',
               'embeddings_project.')  # fmt: skip
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
