"""Reads and writes how a model of sentence-transformers makes one vector of a text.

Its folder has modules.json, 1_Pooling/config.json, sentence_bert_config.json and perhaps 2_Dense, a
layer over the pooled vector, which is our projection (www.sbert.net, "Creating Custom Models").
What else it may hold and is not read has a name and a reason: vectors without it would be others.
"""

from typing import Any, NamedTuple

import numpy as np

from bert_jax.convert import tensor_files
from bert_jax.convert.families.record import Place
from bert_jax.errors import InputError, listed, quoted
from bert_jax.files import Path, write_json
from bert_jax.models.pooling import POOLINGS
from bert_jax.text import files

MODES = {  # {key of a Pooling as it was written before version 6, and is here: the mode}
  'pooling_mode_cls_token': 'cls',
  'pooling_mode_max_tokens': 'max',
  'pooling_mode_mean_tokens': 'mean',
  'pooling_mode_mean_sqrt_len_tokens': 'mean_sqrt_len_tokens',
  'pooling_mode_weightedmean_tokens': 'weightedmean',
  'pooling_mode_lasttoken': 'lasttoken',
}
KNOWN = ('Transformer', 'Pooling', 'Dense', 'Normalize')  # the supported modules, in order
# Of a Dense: its folder, with which its tensors begin here, {activation: ours}, what it becomes.
DENSE, TORCH, TANH = '2_Dense', 'torch.nn.modules.', 'activation.Tanh'
ACTIVATIONS = {TANH: 'tanh', 'linear.Identity': 'none', 'activation.GELU': 'gelu'}
ACTIVATIONS |= {'activation.ReLU': 'relu', 'activation.SiLU': 'swish'}
PLACES = {'projection/dense/kernel': Place(f'{DENSE}.linear.weight', True, 'DJ')}
PLACES |= {'projection/dense/bias': Place(f'{DENSE}.linear.bias', False, 'J')}
FIELDS = 'projection_size', 'projection_act', 'projection_bias'
LENGTH = 'sentence_bert_config.json'
UNLIMITED = 1e20  # a model_max_length above it says none
PROMPTS = 'config_sentence_transformers.json'
OF_ALL = 'query', 'document'  # prompts of any model, of no text unless it says another
UNREAD = {  # settings by which other vectors come of the same modules
  LENGTH: ('query_expansion', 'query_length', 'document_length', 'processing_kwargs'),
  PROMPTS: ('truncate_dim',),
}


class Vector(NamedTuple):
  """The settings by which a text becomes a vector."""

  pooling: str = ''  # one of POOLINGS; '': not given, or not supported
  normalized: bool = False  # to length 1
  lower: bool = False  # texts are lower-cased before they are encoded
  prompts: dict[str, str] = {}  # {name: text that is put before a text}
  prompt: str = ''  # the name of the one that is put before each text, if nothing else is asked for
  pools_prompt: bool = True  # whether the tokens of a prompt count in the pooling

  def read_as(self, text: str) -> str:
    """The text that is encoded for a text as given."""
    text = self.prompts.get(self.prompt, '') + text
    return text.lower() if self.lower else text


UNKNOWN = Vector()


class Found(NamedTuple):
  """What is read of a folder, and what is not."""

  vector: Vector
  dense: dict[str, Any]  # the FIELDS of its Dense; {}: it has none
  places: dict[str, str]  # {kind of a module that is read: its folder in the folder}
  unread: dict[str, str]  # {module or setting: why it is not read}


def read(folder: Path) -> Found:
  """Reads a folder; InputError if a file is damaged, or names a default prompt that it lacks."""
  places, dense, unread, pooling = {}, {}, {}, ''
  for module in files.json_of(folder / 'modules.json', list):
    kind, place = str(module.get('type')).rpartition('.')[2], str(module.get('path', ''))
    if kind == 'Dropout':  # in training alone
      continue
    why = _out_of_place(kind, places)
    if not why and kind == 'Pooling':
      pooling, why = _pooling(files.json_of(folder / place / 'config.json'))
    if not why and kind == 'Dense':
      dense, why = _dense(files.json_of(folder / place / 'config.json'))
    if why:
      unread[place or kind] = why
    else:
      places[kind] = place
  for file, names in UNREAD.items():
    content = files.json_of(folder / file)
    for name in names:
      if content.get(name):
        unread[f'{name} of {file}'] = f'it is {quoted(content[name])}'
  if not pooling:
    return Found(UNKNOWN, dense, places, unread)
  lower = bool(files.json_of(folder / LENGTH).get('do_lower_case'))
  prompts, prompt = _prompts(folder)
  content = files.json_of(folder / places['Pooling'] / 'config.json')
  pools_prompt = content.get('include_prompt') is not False
  vector = Vector(pooling, 'Normalize' in places, lower, prompts, prompt, pools_prompt)
  return Found(vector, dense, places, unread)


def _out_of_place(kind, places):
  """Why a module is not read behind others, {kind: folder}; '': it may be."""
  if kind not in KNOWN:
    return f'a {quoted(kind)}, and what is read is {", ".join(KNOWN)}'
  number = KNOWN.index(kind)
  for other in KNOWN[number:]:
    if other in places:
      return f'a {kind} behind a {other}; it is read once, in the order {", ".join(KNOWN)}'
  for other in KNOWN[: min(number, 2)]:
    if other not in places:
      return f'a {kind}, and no {other} that is read stands before it'
  return ''


def _pooling(content):
  """(the pooling of a Pooling, ''), or ('', why it is not read)."""
  modes = content.get('pooling_mode')
  if modes is None:
    on = [key for key, value in content.items() if key.startswith('pooling_mode_') and value]
    modes = [MODES.get(key, key) for key in on] or 'mean'
  if isinstance(modes, str):
    modes = [modes]
  if len(modes) > 1 or modes[0] not in POOLINGS:
    return '', f'its pooling is {listed(modes)}, and one is read: {", ".join(POOLINGS)}'
  return modes[0], ''


def _dense(content):
  """(the FIELDS of a Dense, ''), or ({}, why it is not read)."""
  content = {'bias': True, 'activation_function': TORCH + TANH} | content
  name = str(content['activation_function'])
  act = ACTIVATIONS.get(name.removeprefix(TORCH))
  if not act:
    return {}, f'its activation is {name}, and what is read is Tanh, Identity, GELU, ReLU, SiLU'
  if content.get('use_residual'):
    return {}, 'a Dense with use_residual'
  for side in ('in', 'out'):
    key = f'module_{side}put_name'
    if content.get(key) not in ('sentence_embedding', None):
      return {}, f'a Dense whose {key} is {quoted(content[key])}'
  return dict(zip(FIELDS, (content.get('out_features'), act, content['bias']))), ''


def refusal(folder: Path) -> str:
  """Why no vectors are made as a folder says, a sentence; '': all of it is read."""
  for name, why in read(folder).unread.items():
    return (
      f'{folder}: {name} is not read ({why}), and vectors without it are others; python -m '
      f'bert_jax.tools.convert --from {folder} --to W --allow-unused leaves it out.'
    )
  return ''


def tensors(folder: Path) -> dict[str, np.ndarray]:
  """The tensors of the Dense that is read, if any, under names as in PLACES."""
  found = read(folder)
  if not found.dense:
    return {}
  layer, _ = tensor_files.read(folder / found.places['Dense'])
  return {f'{DENSE}.{name}': x for name, x in layer.items()}


def _prompts(folder):
  """({name: text before a text}, the name of the one that is put before each)."""
  path = folder / PROMPTS
  settings = files.json_of(path)
  prompts = {name: text or '' for name, text in (settings.get('prompts') or {}).items()}
  default = settings.get('default_prompt_name') or ''
  if default and default not in {*prompts, *OF_ALL}:
    raise InputError(
      f'{path}: default_prompt_name is {quoted(default)}, and prompts has '
      f'{listed(prompts) or "none"}; correct it.'
    )
  return prompts, default


def longest(folder: Path) -> int:
  """The most tokens, with [CLS] and [SEP], that the model reads of a text; 0: not given."""
  length = files.json_of(folder / LENGTH).get('max_seq_length')
  if length is None:  # newer versions write it there alone, and classifiers do
    length = files.json_of(folder / 'tokenizer_config.json').get('model_max_length') or 0
  return length if length < UNLIMITED else 0


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
  modes = {key: vector.pooling == mode for key, mode in MODES.items()}
  pooling = {'word_embedding_dimension': width, 'include_prompt': vector.pools_prompt} | modes
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
