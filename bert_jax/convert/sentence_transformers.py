"""Reads and writes how a model of sentence-transformers makes one vector of a text.

Its folder has modules.json, 1_Pooling/config.json, sentence_bert_config.json and perhaps 2_Dense, a
layer over the pooled vector, which is our projection (www.sbert.net, "Creating Custom Models").
"""

from typing import Any, NamedTuple

import numpy as np

from bert_jax.convert import tensor_files
from bert_jax.convert.families.record import Place
from bert_jax.errors import InputError, log, quoted
from bert_jax.files import Path, write_json
from bert_jax.text import files

MODES = {'pooling_mode_mean_tokens': 'mean', 'pooling_mode_cls_token': 'cls'}
KNOWN = ('Transformer', 'Pooling', 'Dense', 'Normalize')  # the supported modules, in order
# Of a Dense: its folder, with which its tensors begin here, {activation: ours}, what it becomes.
DENSE, TORCH, TANH = '2_Dense', 'torch.nn.modules.', 'activation.Tanh'
ACTIVATIONS = {TANH: 'tanh', 'linear.Identity': 'none', 'activation.GELU': 'gelu'}
ACTIVATIONS |= {'activation.ReLU': 'relu', 'activation.SiLU': 'swish'}
PLACES = {'projection/dense/kernel': Place(f'{DENSE}.linear.weight', True, 'DJ')}
PLACES |= {'projection/dense/bias': Place(f'{DENSE}.linear.bias', False, 'J')}
FIELDS = 'projection_size', 'projection_act', 'projection_bias'
ONE = ' (one is, behind the pooling, with Tanh, Identity, GELU, ReLU or SiLU)'
LENGTH = 'sentence_bert_config.json'
PROMPTS = 'config_sentence_transformers.json'


class Vector(NamedTuple):
  """The settings by which a text becomes a vector."""

  pooling: str = ''  # mean or cls; '': not given, or not supported
  normalized: bool = False  # to length 1
  lower: bool = False  # texts are lower-cased before they are encoded
  prompts: dict[str, str] = {}  # {name: text that is put before a text}
  prompt: str = ''  # the name of the one that is put before each text, if nothing else is asked for

  def read_as(self, text: str) -> str:
    """The text that is encoded for a text as given."""
    text = self.prompts.get(self.prompt, '') + text
    return text.lower() if self.lower else text


UNKNOWN = Vector()


def read(folder: Path) -> Vector:
  """Reads the Vector of a folder; warns of unsupported modules, poolings and prompts."""
  modules = _modules(folder)
  for kind, _ in modules:
    if kind not in KNOWN or (kind == 'Dense' and not projection(folder)):
      which = ONE if kind == 'Dense' else ''
      log.warning('%s: its module %s is not read%s: vectors are without it', folder, kind, which)
  paths = dict(modules)
  if 'Pooling' not in paths:
    return UNKNOWN
  content = files.json_of(folder / paths['Pooling'] / 'config.json')
  modes = [name for name, on in content.items() if name.startswith('pooling_mode_') and on is True]
  pooling = content.get('pooling_mode')
  if len(modes) == 1:
    pooling = MODES.get(modes[0], '')
  elif not modes and not any(name.startswith('pooling_mode') for name in content):
    pooling = 'mean'
  prompts, prompt = _prompts(folder, content)
  lower = files.json_of(folder / LENGTH).get('do_lower_case', False)
  if pooling not in MODES.values():
    log.warning('%s: its pooling, %s, is not one of ours (mean, cls)', folder, pooling or modes)
    pooling = ''
  return Vector(pooling, 'Normalize' in paths, bool(lower), prompts, prompt)


def _modules(folder):
  """[(kind of a module, its folder in the folder), ...], in order."""
  modules = []
  for module in files.json_of(folder / 'modules.json', list):
    kind = str(module.get('type')).rpartition('.')[2]
    modules.append((kind, str(module.get('path', ''))))
  return modules


def projection(folder: Path) -> dict[str, Any]:
  """The FIELDS of a folder's Dense; {}: it has none, or one that computes something else."""
  modules = _modules(folder)
  kinds = [kind for kind, _ in modules if kind in KNOWN]
  in_order = [kind for kind in KNOWN if kind in kinds]
  if 'Pooling' not in kinds or 'Dense' not in kinds or kinds != in_order:
    return {}
  path = folder / dict(modules)['Dense'] / 'config.json'
  content = {'bias': True, 'activation_function': TORCH + TANH} | files.json_of(path)
  act = ACTIVATIONS.get(str(content['activation_function']).removeprefix(TORCH))
  for side in ('in', 'out'):
    if content.get(f'module_{side}put_name') not in ('sentence_embedding', None):
      return {}
  if not act or content.get('use_residual'):
    return {}
  return {
    'projection_size': content.get('out_features'),
    'projection_act': act,
    'projection_bias': content['bias'],
  }


def tensors(folder: Path) -> dict[str, np.ndarray]:
  """The tensors of the Dense that `projection` reads, if any, under names as in PLACES."""
  if not projection(folder):
    return {}
  layer, _ = tensor_files.read(folder / dict(_modules(folder))['Dense'])
  return {f'{DENSE}.{name}': x for name, x in layer.items()}


def _prompts(folder, pooling):
  """({name: text before a text}, the name of the one that is put before each)."""
  path = folder / PROMPTS
  settings = files.json_of(path)
  prompts = settings.get('prompts') or {}
  default = settings.get('default_prompt_name') or ''
  if prompts.get(default) and pooling.get('include_prompt') is False:
    raise InputError(
      f'{folder} leaves its prompt out of the mean (include_prompt), which is not done here; set '
      f'default_prompt_name to null in {path} for texts without one.'
    )
  others = [name for name, text in prompts.items() if text and name != default]
  if others:
    message = '%s: its prompts %s are not put before texts; write them there where they are due'
    log.warning(message, folder, ', '.join(map(quoted, others)))
  return prompts, default


def longest(folder: Path) -> int:
  """The most tokens, with [CLS] and [SEP], that the model reads of a text; 0: not given."""
  length = files.json_of(folder / LENGTH).get('max_seq_length')
  if length is None and (folder / 'modules.json').exists():  # newer versions write it there alone
    length = files.json_of(folder / 'tokenizer_config.json').get('model_max_length')
  return length or 0


def write(
  folder: Path, vector: Vector, width: int, length: int, dense: Any = None, act: str = ''
) -> None:
  """Writes the files that `read` reads, for hidden states [T, width] of T <= length tokens.
  dense: {name as in PLACES: tensor} of the projection, if there is one; act: its activation."""
  kinds = ['Transformer', 'Pooling']
  if dense:
    kinds.append('Dense')
  if vector.normalized:
    kinds.append('Normalize')
  places = [f'{i}_{kind}' if i else '' for i, kind in enumerate(kinds)]
  modes = {name: vector.pooling == mode for name, mode in MODES.items()}
  pooling = {'word_embedding_dimension': width} | modes
  (folder / places[1]).mkdir()
  write_json(folder / places[1] / 'config.json', pooling)
  write_json(folder / LENGTH, {'max_seq_length': length, 'do_lower_case': vector.lower})
  prompts = {'prompts': vector.prompts, 'default_prompt_name': vector.prompt or None}
  similarity = {'similarity_fn_name': 'cosine' if vector.normalized else 'dot'}
  write_json(folder / PROMPTS, similarity | prompts)
  if dense:
    inside = folder / DENSE
    inside.mkdir()
    layer = {name.removeprefix(f'{DENSE}.'): x for name, x in dense.items()}
    theirs = {ours: name for name, ours in ACTIVATIONS.items()}
    content = {
      'in_features': width,
      'out_features': len(layer['linear.weight']),
      'bias': 'linear.bias' in layer,
      'activation_function': TORCH + theirs[act],
    }
    write_json(inside / 'config.json', content)
    tensor_files.write_safetensors(inside / tensor_files.SAFETENSORS, layer, {'format': 'pt'})
  modules = [
    {'idx': i, 'name': str(i), 'path': path, 'type': f'sentence_transformers.models.{kind}'}
    for i, (path, kind) in enumerate(zip(places, kinds))
  ]
  write_json(folder / 'modules.json', modules)
