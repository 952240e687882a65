"""SHA-256 checksums of the files of an exported model, to notice later changes.

They lie in a file of their own, which Hugging Face's libraries ignore. The model card is left out,
since it is there to be edited.
"""

import hashlib
from collections.abc import Mapping

from bert_jax.errors import InputError
from bert_jax.files import Path, write_json
from bert_jax.text import files

NAME = 'checksums.json'


def write(folder: Path, later: Mapping[str, str]) -> None:
  """Writes the checksums of a folder's files and of `later`, {name: text} yet to be written."""
  paths = (path for path in sorted(folder.rglob('*')) if path.is_file() and path.suffix != '.md')
  sums = {str(path.relative_to(folder)): _of_file(path) for path in paths}
  sums |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in later.items()}
  write_json(folder / NAME, sums)


def check(folder: Path) -> None:
  """InputError if a file that the folder's checksums.json lists has changed or is missing."""
  for name, known in files.json_of(folder / NAME).items():
    path = folder / name
    if not path.is_file() or _of_file(path) != known:
      fault = 'is not as it was exported' if path.is_file() else 'is missing'
      advice = f'bring it back, or delete {folder / NAME} if that is meant'
      raise InputError(f'{path} {fault}, by {NAME}; {advice}.')


def _of_file(path: Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
