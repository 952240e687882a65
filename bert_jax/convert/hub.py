"""Where a source is: a folder, a folder in an installed package, or a model on Hugging Face's Hub.

`pip install huggingface_hub` brings the last; what it has fetched once it keeps, and
HF_HUB_OFFLINE=1 makes it use only that.
"""

import os
import re
from pathlib import Path

from bert_jax.convert import from_huggingface
from bert_jax.errors import InputError, first_line

ABOUT = ['*.json', '*.txt', '*.model']
WEIGHTS = ['model*.safetensors'], ['pytorch_model*.bin']  # the first of these that there is


def folder(source):
  """The folder of a source; a name of the form org/name or name (as `bert-base-uncased`) that no
  folder has is asked of the Hub."""
  if not isinstance(source, (str, os.PathLike)):
    raise InputError(f'a {type(source).__name__} is no path and no name of a model; give one.')
  found = from_huggingface.locate(source)
  if found.exists() or not re.fullmatch(r'[\w-][\w.-]*(/[\w.-]+)?', str(source)):
    return found
  try:
    from huggingface_hub import errors, snapshot_download
  except ImportError:
    raise InputError(
      f'{source} holds no run: there is no folder {source}; if it is a model on the Hub, '
      'pip install huggingface_hub.'
    ) from None
  try:
    for weights in WEIGHTS:
      found = Path(snapshot_download(str(source), allow_patterns=ABOUT + weights))
      if any(path for pattern in weights for path in found.glob(pattern)):
        break
  except errors.LocalEntryNotFoundError:
    raise InputError(
      f'{source} holds no run: there is no folder {source}, no model of that name is kept here, '
      'and the Hub is not reached; check the path, or the connection (and HF_HUB_OFFLINE).'
    ) from None
  except Exception as error:  # of the network, of the Hub, of what it keeps
    raise InputError(
      f'{source} holds no run: there is no folder {source}, and the Hub gives no model of that '
      f'name ({first_line(error)}); check the name.'
    ) from None
  return found
