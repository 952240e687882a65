"""What differs where this process is the kernel of a notebook."""

import contextlib
import sys
from collections.abc import Iterator

from bert_jax.errors import Stopped


def in_notebook() -> bool:
  """Is this process the kernel of a notebook?"""
  ipython = sys.modules.get('IPython')
  return ipython is not None and hasattr(ipython.get_ipython(), 'kernel')


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
  """A context, or decorator, in which a notebook shows an interruption as one sentence. One without
  a sentence comes where nothing can be saved: while data are read, or steps compiled."""
  try:
    yield
  except KeyboardInterrupt as error:
    if str(error) or not in_notebook():
      raise
    raise Stopped('at once; the same cell goes on from what is saved, or begins again') from None
