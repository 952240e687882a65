"""What our parameters are called in released weights: a table for each family of models.

A family has a name for each module; the shape of a module and its parameters are the same for all.
A dense kernel is [out, in] in torch and [in, out] here. In TensorFlow it is as here, but for the
output layers of google-research/bert, which are [out, in] too.
"""

from typing import NamedTuple

from bert_jax.convert import tensorflow_names

FIELDS = {'V': 'vocab_size', 'P': 'max_position_embeddings', 'T': 'type_vocab_size',
          'D': 'hidden_size', 'F': 'intermediate_size'}  # fmt: skip

# {path of a module: (its kind, its shape in the letters of FIELDS, its name in a BERT of torch,
# where the encoder and the pooler are in `bert`)}. A dense layer is [in, out], C is any number of
# labels, and # stands for the number of a layer.
MODULES = {
  'encoder/embeddings/word_embeddings': ('embed', 'VD', 'embeddings.word_embeddings'),
  'encoder/embeddings/position_embeddings': ('embed', 'PD', 'embeddings.position_embeddings'),
  'encoder/embeddings/token_type_embeddings': ('embed', 'TD', 'embeddings.token_type_embeddings'),
  'encoder/embeddings/LayerNorm': ('norm', 'D', 'embeddings.LayerNorm'),
  'encoder/layer_#/attention/query': ('dense', 'DD', 'encoder.layer.#.attention.self.query'),
  'encoder/layer_#/attention/key': ('dense', 'DD', 'encoder.layer.#.attention.self.key'),
  'encoder/layer_#/attention/value': ('dense', 'DD', 'encoder.layer.#.attention.self.value'),
  'encoder/layer_#/attention/output': ('dense', 'DD', 'encoder.layer.#.attention.output.dense'),
  'encoder/layer_#/attention_LayerNorm': (
    'norm',
    'D',
    'encoder.layer.#.attention.output.LayerNorm',
  ),
  'encoder/layer_#/intermediate': ('dense', 'DF', 'encoder.layer.#.intermediate.dense'),
  'encoder/layer_#/output': ('dense', 'FD', 'encoder.layer.#.output.dense'),
  'encoder/layer_#/output_LayerNorm': ('norm', 'D', 'encoder.layer.#.output.LayerNorm'),
  'pooler/dense': ('dense', 'DD', 'pooler.dense'),
  'mlm/transform': ('dense', 'DD', 'cls.predictions.transform.dense'),
  'mlm/LayerNorm': ('norm', 'D', 'cls.predictions.transform.LayerNorm'),
  'mlm': ('bias', 'V', 'cls.predictions'),
  'mlm/': ('decoder', 'VD', 'cls.predictions.decoder'),  # untied only
  'nsp/dense': ('dense', 'D2', 'cls.seq_relationship'),
  'classifier/dense': ('dense', 'DC', 'classifier'),
  'span/dense': ('dense', 'D2', 'qa_outputs'),
}
# {kind of module: {parameter: (how its name ends in torch, in TensorFlow)}}.
LEAVES = {
  'embed': {'embedding': ('.weight', '')},
  'norm': {'scale': ('.weight', '/gamma'), 'bias': ('.bias', '/beta')},
  'dense': {'kernel': ('.weight', '/kernel'), 'bias': ('.bias', '/bias')},
  'bias': {'bias': ('.bias', '')},
  'decoder': {'decoder': ('.weight', '')},
}

BERT = {
  ours: f'bert.{name}' if ours.startswith(('encoder', 'pooler')) else name
  for ours, (_, _, name) in MODULES.items()
}
ROBERTA = {
  ours: theirs.replace('bert.', 'roberta.')
  for ours, theirs in BERT.items()
  if not ours.startswith('nsp')
} | {
  'mlm/transform': 'lm_head.dense',
  'mlm/LayerNorm': 'lm_head.layer_norm',
  'mlm': 'lm_head',
  'mlm/': 'lm_head.decoder',
}
# Its sequence classifier has a dense layer with tanh over <s>, which is our pooler, and no other.
ROBERTA_CLASSIFIER = ROBERTA | {
  'pooler/dense': 'classifier.dense',
  'classifier/dense': 'classifier.out_proj',
}
_DISTIL = 'distilbert.transformer.layer.#'
DISTILBERT = {
  'encoder/embeddings/word_embeddings': 'distilbert.embeddings.word_embeddings',
  'encoder/embeddings/position_embeddings': 'distilbert.embeddings.position_embeddings',
  'encoder/embeddings/LayerNorm': 'distilbert.embeddings.LayerNorm',
  'encoder/layer_#/attention/query': f'{_DISTIL}.attention.q_lin',
  'encoder/layer_#/attention/key': f'{_DISTIL}.attention.k_lin',
  'encoder/layer_#/attention/value': f'{_DISTIL}.attention.v_lin',
  'encoder/layer_#/attention/output': f'{_DISTIL}.attention.out_lin',
  'encoder/layer_#/attention_LayerNorm': f'{_DISTIL}.sa_layer_norm',
  'encoder/layer_#/intermediate': f'{_DISTIL}.ffn.lin1',
  'encoder/layer_#/output': f'{_DISTIL}.ffn.lin2',
  'encoder/layer_#/output_LayerNorm': f'{_DISTIL}.output_layer_norm',
  'mlm/transform': 'vocab_transform',
  'mlm/LayerNorm': 'vocab_layer_norm',
  'mlm': 'vocab_projector',
  'mlm/': 'vocab_projector',
  'classifier/dense': 'classifier',
  'span/dense': 'qa_outputs',
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
    kind, letters, _ = MODULES[ours]
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
    return {tensorflow_names.version_1(name, layers): name for name in names}
  out = {}
  for name in names:
    short = name
    for wrapper in ('module.', '_orig_mod.', 'model.'):
      short = short.removeprefix(wrapper)
    for old, new in (('.gamma', '.weight'), ('.beta', '.bias')):
      if short.endswith(old):
        short = short.removesuffix(old) + new
    out[short] = name
  prefix = f'{family.partition(" ")[0]}.'
  if not any(name.startswith(prefix) for name in out):
    encoder = ('embeddings.', 'encoder.', 'transformer.', 'pooler.')
    out = {
      (prefix if short.startswith(encoder) else '') + short: name for short, name in out.items()
    }
  return out


def not_a_parameter(name):
  """'' for what may be a parameter; else what the tensor is."""
  if why := tensorflow_names.not_a_parameter(name):
    return why
  leaf = name.replace('/', '.').rpartition('.')[2]
  if leaf in ('position_ids', 'token_type_ids'):
    return 'a buffer of numbers in order'
  if leaf in ('adam_m', 'adam_v', 'AdamWeightDecayOptimizer', 'AdamWeightDecayOptimizer_1', 'Adam',
              'Adam_1', 'lamb_m', 'lamb_v'):  # fmt: skip
    return "the optimizer's"
  if leaf in ('global_step', 'beta1_power', 'beta2_power', 'good_steps', 'current_loss_scale'):
    return "the training's"
  return ''
