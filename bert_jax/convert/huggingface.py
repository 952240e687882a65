"""Our parameters under the names and in the layout of Hugging Face's BertForPreTraining.

One table of names serves both directions; arrays are numpy. torch keeps a dense kernel as
[out, in], we keep [in, out]; its LayerNorm `weight` is our `scale`. Our vocabulary rows are padded
to `padded_vocab_size` with zeros, theirs are not.
"""

import numpy as np
from flax import traverse_util

from bert_jax import models
from bert_jax.config import InputError

# our module -> (their module, what it is); '#' is the number of the layer.
MODULES = {
  'encoder/embeddings/word_embeddings': ('bert.embeddings.word_embeddings', 'embed'),
  'encoder/embeddings/position_embeddings': ('bert.embeddings.position_embeddings', 'embed'),
  'encoder/embeddings/token_type_embeddings': ('bert.embeddings.token_type_embeddings', 'embed'),
  'encoder/embeddings/LayerNorm': ('bert.embeddings.LayerNorm', 'norm'),
  'encoder/layer_#/attention/query': ('bert.encoder.layer.#.attention.self.query', 'dense'),
  'encoder/layer_#/attention/key': ('bert.encoder.layer.#.attention.self.key', 'dense'),
  'encoder/layer_#/attention/value': ('bert.encoder.layer.#.attention.self.value', 'dense'),
  'encoder/layer_#/attention/output': ('bert.encoder.layer.#.attention.output.dense', 'dense'),
  'encoder/layer_#/attention_LayerNorm': (
    'bert.encoder.layer.#.attention.output.LayerNorm',
    'norm',
  ),
  'encoder/layer_#/intermediate': ('bert.encoder.layer.#.intermediate.dense', 'dense'),
  'encoder/layer_#/output': ('bert.encoder.layer.#.output.dense', 'dense'),
  'encoder/layer_#/output_LayerNorm': ('bert.encoder.layer.#.output.LayerNorm', 'norm'),
  'pooler/dense': ('bert.pooler.dense', 'dense'),
  'mlm/transform': ('cls.predictions.transform.dense', 'dense'),
  'mlm/LayerNorm': ('cls.predictions.transform.LayerNorm', 'norm'),
  'mlm': ('cls.predictions', 'bias'),
  'nsp/dense': ('cls.seq_relationship', 'dense'),
}
LEAVES = {  # our leaf -> theirs
  'embed': {'embedding': 'weight'},
  'norm': {'scale': 'weight', 'bias': 'bias'},
  'dense': {'kernel': 'weight', 'bias': 'bias'},
  'bias': {'bias': 'bias'},
}
VOCABULARY = ('encoder/embeddings/word_embeddings/embedding', 'mlm/bias')

# What their files may hold besides: copies of tied tensors, and a buffer of 0, 1, 2...
COPIES = {
  'cls.predictions.decoder.weight': 'bert.embeddings.word_embeddings.weight',
  'cls.predictions.decoder.bias': 'cls.predictions.bias',
}
BUFFERS = {'bert.embeddings.position_ids'}


def to_params(tensors, model):
  """{their name: array} -> the parameters of objective mlm_nsp, float32, for a ModelConfig.

  InputError if a tensor is missing, unknown, or a copy that differs from what it is tied to.
  """
  names = _names(model.num_hidden_layers)
  _check_same(set(names.values()), tensors.keys() - COPIES.keys() - BUFFERS)
  for copy, original in COPIES.items():
    if copy in tensors and not np.array_equal(tensors[copy], tensors[original]):
      raise InputError(f'{copy} differs from {original}; only tied weights can be converted.')
  flat = {}
  for path, name in names.items():
    x = np.asarray(tensors[name], np.float32)
    if path in VOCABULARY:
      if len(x) != model.vocab_size:
        raise InputError(
          f'{name} has {len(x)} rows; set model.vocab_size={len(x)}, it is {model.vocab_size}.'
        )
      x = np.pad(x, [(0, model.padded_vocab_size - len(x))] + [(0, 0)] * (x.ndim - 1))
    flat[path] = _turn(path, x)
  params = traverse_util.unflatten_dict(flat, sep='/')
  if model.scan_layers:
    params['encoder'] = models.stack_layers(params['encoder'])
  return params


def to_tensors(params, model):
  """The inverse of to_params; copies and buffers are left out, as in their safetensors files."""
  names = _names(model.num_hidden_layers)
  params = params | {'encoder': models.unstack_layers(params['encoder'])}
  flat = traverse_util.flatten_dict(params, sep='/')
  _check_same(set(names), flat.keys())
  return {
    name: _turn(path, np.asarray(flat[path])[: model.vocab_size if path in VOCABULARY else None])
    for path, name in names.items()
  }


def _names(num_hidden_layers):
  """{our path: their name} of every parameter."""
  return {
    f'{ours}/{leaf}'.replace('#', str(i)): f'{theirs}.{LEAVES[kind][leaf]}'.replace('#', str(i))
    for ours, (theirs, kind) in MODULES.items()
    for leaf in LEAVES[kind]
    for i in range(num_hidden_layers if '#' in ours else 1)
  }


def _turn(path, x):
  return np.ascontiguousarray(x.T) if path.endswith('/kernel') else x


def _check_same(expected, found):
  missing, unknown = sorted(expected - found), sorted(found - expected)
  if missing or unknown:
    raise InputError(
      f'these are not the weights of a BertForPreTraining of this size: {len(missing)} missing '
      f'{missing[:3]}, {len(unknown)} unknown {unknown[:3]}.'
    )
