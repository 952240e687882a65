"""Our parameters under the names and in the layout of Hugging Face's BERT.

One table of names serves both directions; arrays are numpy. torch keeps a dense kernel as
[out, in], we keep [in, out]; its LayerNorm `weight` is our `scale`. Our vocabulary rows are padded
to `padded_vocab_size` with zeros, theirs are not.
"""

import importlib.util
import json
import logging
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from bert_jax import models
from bert_jax.config import InputError

log = logging.getLogger('bert_jax')

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


# Fields of their config.json and ours, where the names differ; values that do.
FIELDS = ('vocab_size', 'hidden_size', 'num_hidden_layers', 'num_attention_heads',
          'intermediate_size', 'max_position_embeddings', 'type_vocab_size',
          'layer_norm_eps')  # fmt: skip
ACTIVATIONS = {'gelu': 'gelu', 'gelu_new': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh',
               'relu': 'relu', 'silu': 'swish', 'swish': 'swish'}  # fmt: skip


def locate(path):
  """The folder of a model: a path, or a path inside an installed Python package."""
  folder = Path(path).expanduser()
  if folder.exists() or folder.is_absolute():
    return folder
  package = folder.parts[0]
  found = importlib.util.find_spec(package) if package.isidentifier() else None
  return Path(found.origin).parent.joinpath(*folder.parts[1:]) if found and found.origin else folder


def is_model(folder):
  """Does a folder hold a model of Hugging Face's, that is, a config.json that says its type?"""
  path = folder / 'config.json'
  return path.is_file() and 'model_type' in _read_json(path)


def read_model(folder):
  """{field of config.model: value} of a folder's config.json; InputError if it is no BERT."""
  theirs = _read_json(folder / 'config.json')
  kind, positions = theirs['model_type'], theirs.get('position_embedding_type', 'absolute')
  act = theirs.get('hidden_act', 'gelu')
  if kind != 'bert' or positions != 'absolute' or act not in ACTIVATIONS:
    raise InputError(
      f'{folder} is a {kind} with {positions} positions and {act}; weights are read of model_type '
      f'bert with absolute positions and one of {", ".join(ACTIVATIONS)}.'
    )
  lacking = [name for name in FIELDS if name not in theirs]
  if lacking:
    raise InputError(f'{folder / "config.json"} does not say {", ".join(lacking)}; add it.')
  return {name: theirs[name] for name in FIELDS} | {
    'hidden_act': ACTIVATIONS[act],
    'position_embeddings': 'learned',
    'norm_placement': 'post',
    'tie_word_embeddings': True,
  }


def read_params(folder, model):
  """The parameters of a folder's model.safetensors for a ModelConfig: the encoder and what heads of
  ours it has (pooler, mlm, nsp). What is not used is logged."""
  path = folder / 'model.safetensors'
  if not path.is_file():
    raise InputError(f'{folder} has no model.safetensors; save the model in that format.')
  try:
    tensors = safetensors.numpy.load_file(path)
  except (safetensors.SafetensorError, OSError, ValueError) as error:
    raise InputError(f'{path} cannot be read ({error}); is it whole?') from None
  if not any(name.startswith('bert.') for name in tensors):  # a BertModel, without heads
    tensors = {f'bert.{name}': x for name, x in tensors.items()}
  for ours, old in (('LayerNorm.weight', 'LayerNorm.gamma'), ('LayerNorm.bias', 'LayerNorm.beta')):
    tensors = {name.replace(old, ours): x for name, x in tensors.items()}
  for copy, original in COPIES.items():
    if copy in tensors and original not in tensors:
      tensors[original] = tensors[copy]
  names = _names(model.num_hidden_layers)
  heads = {path.split('/')[0] for path, name in names.items() if name in tensors} - {'encoder'}
  known = {name for path, name in names.items() if path.split('/')[0] in heads | {'encoder'}}
  unused = sorted(tensors.keys() - known - COPIES.keys() - BUFFERS)
  if unused:
    log.info('%s: not used: %s', path, ', '.join(unused))
  tensors = {name: x for name, x in tensors.items() if name not in unused}
  return to_params(tensors, model, heads)


def _read_json(path):
  try:
    out = json.loads(path.read_text())
  except (OSError, ValueError) as error:
    raise InputError(f'{path} cannot be read ({error}); is it whole?') from None
  return out if isinstance(out, dict) else {}


def to_params(tensors, model, heads=('pooler', 'mlm', 'nsp')):
  """{their name: array} -> the encoder and the named heads, float32, for a ModelConfig.

  InputError if a tensor is missing, unknown, or a copy that differs from what it is tied to.
  """
  names = _names(model.num_hidden_layers)
  names = {k: name for k, name in names.items() if k.split('/')[0] in {'encoder', *heads}}
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
      f'these are not the weights of a BERT of this size: {len(missing)} missing '
      f'{missing[:3]}, {len(unknown)} unknown {unknown[:3]}.'
    )
