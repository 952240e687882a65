"""The folder of a source: a path, a path inside an installed package, or a model on the Hub.

The Hub (huggingface.co) needs `pip install huggingface_hub`, which keeps what it has fetched once;
with HF_HUB_OFFLINE=1 it uses only that.
"""

import os
import re
from pathlib import Path

from bert_jax.convert import from_huggingface
from bert_jax.errors import InputError, first_line

ABOUT = ['*.json', '*.txt', '*.model']
WEIGHTS = ['model*.safetensors'], ['pytorch_model*.bin']  # the first of these that is there


def folder(source):
  """The folder of a source. What is no folder, and has the form of a name on the Hub (org/name or
  name, as `bert-base-uncased`), is fetched from there."""
  if not isinstance(source, (str, os.PathLike)):
    raise InputError(f'a {type(source).__name__} is no path and no name of a model; give one.')
  path = from_huggingface.locate(source)
  if path.exists() or not re.fullmatch(r'[\w-][\w.-]*(/[\w.-]+)?', str(source)):
    return path
  absent = f'{source} holds no run: there is no folder {source}'
  try:
    from huggingface_hub import errors, snapshot_download
  except ImportError:
    how = 'if it is a model on the Hub, pip install huggingface_hub'
    raise InputError(f'{absent}; {how}.') from None
  try:
    for weights in WEIGHTS:
      path = Path(snapshot_download(str(source), allow_patterns=ABOUT + weights))
      if any(file for pattern in weights for file in path.glob(pattern)):
        break
  except errors.LocalEntryNotFoundError:
    how = 'check the path, or the connection (and HF_HUB_OFFLINE)'
    absent += ', no model of that name is kept here, and the Hub is not reached'
    raise InputError(f'{absent}; {how}.') from None
  except Exception as error:  # of the network, of the Hub, of what it keeps
    reason = f'the Hub gives no model of that name ({first_line(error)})'
    raise InputError(f'{absent}, and {reason}; check the name.') from None
  return path
