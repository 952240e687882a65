"""Which checkpoints a folder has."""

import re
from collections.abc import Iterator

from bert_jax import files
from bert_jax.buckets import Bucket
from bert_jax.files import Path

NOTE = '_CHECKPOINT_METADATA'  # the file of a checkpoint that says when Orbax had written all
CUT_OFF = re.compile(r'^$|"commit_timestamp_nsecs"\s*:\s*null')  # its upload


def newest_first(folder: Path) -> Iterator[int]:
  """The steps in a folder, the newest first, listed anew for each: a run may save meanwhile."""
  seen = set()
  while True:
    new = {int(name) for name in files.names(folder) if name.isdecimal()} - seen
    if not new:
      return
    newest = max(new)
    seen.add(newest)
    is_whole = True
    if isinstance(folder, Bucket):
      is_whole = not CUT_OFF.search(files.read_text(folder / str(newest) / NOTE))
    if is_whole:
      yield newest
