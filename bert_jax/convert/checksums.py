"""SHA-256 checksums of the files of an exported model, to notice later changes.

They lie in a file of their own, which Hugging Face's libraries ignore. The model card is left out,
since it is there to be edited.
"""

import hashlib
import json

from bert_jax.errors import InputError
from bert_jax.files import write_whole
from bert_jax.text import files

NAME = 'checksums.json'


def write(folder, later):
  """Writes the checksums of a folder's files and of `later`, {name: text} yet to be written."""
  sums = {
    str(path.relative_to(folder)): _of_file(path)
    for path in sorted(folder.rglob('*'))
    if path.is_file() and path.suffix != '.md'
  }
  sums |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in later.items()}
  write_whole(folder / NAME, json.dumps(sums, indent=2) + '\n')


def check(folder):
  """InputError if a file that the folder's checksums.json lists has changed or is missing."""
  for name, known in files.json_of(folder / NAME).items():
    path = folder / name
    if not path.is_file() or _of_file(path) != known:
      fault = 'is not as it was exported' if path.is_file() else 'is missing'
      raise InputError(
        f'{path} {fault}, by {NAME}; bring it back, or delete {folder / NAME} if that is meant.'
      )


def _of_file(path):
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
