"""What differs where this process is the kernel of a notebook."""

import sys


def in_notebook() -> bool:
  """Is this process the kernel of a notebook?"""
  ipython = sys.modules.get('IPython')
  return ipython is not None and hasattr(ipython.get_ipython(), 'kernel')
