"""Where a source is: a folder, a folder in an installed package, or a model on Hugging Face's Hub.

`pip install huggingface_hub` brings the last; what it has fetched once it keeps, and
HF_HUB_OFFLINE=1 makes it use only that.
"""

import re
from pathlib import Path

from bert_jax.config import InputError, first_line
from bert_jax.convert import huggingface

ABOUT = ['*.json', '*.txt', '*.model']
WEIGHTS = ['model*.safetensors'], ['pytorch_model*.bin']  # the first of these that there is


def folder(source):
  """The folder of a source; a name of the form org/name or name (as `bert-base-uncased`) that no
  folder has is asked of the Hub."""
  found = huggingface.locate(source)
  if found.exists() or not re.fullmatch(r'[\w-][\w.-]*(/[\w.-]+)?', str(source)):
    return found
  try:
    from huggingface_hub import snapshot_download
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
  except Exception as error:  # of the network, of the Hub, of what it keeps
    raise InputError(
      f'{source} holds no run: there is no folder {source}, and the Hub gives no model of that '
      f'name ({first_line(error)}); check the name.'
    ) from None
  return found
