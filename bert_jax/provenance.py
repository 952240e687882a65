"""What made a result: versions, command, commit. It is written to run.json and to model cards."""

import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from bert_jax import __version__

SHIPPED = '.commit'  # in which launch/ ships the commit with code without its .git
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy')


def versions():
  """{name: version} of this package, its commit, Python and the packages that decide results."""
  return {
    'bert_jax': __version__,
    'commit': commit(),
    'python': platform.python_version(),
    'packages': {name: metadata.version(name) for name in PACKAGES},
  }


def command():
  """The command line of this process, and the time."""
  return {'argv': sys.argv, 'time': time.strftime('%Y-%m-%d %H:%M:%S')}


def commit():
  """The git commit of this package, with + if files were changed since; '' if nothing says it."""
  root = Path(__file__).parents[1]

  def git(*words):
    out = subprocess.run(('git', *words), cwd=root, capture_output=True, text=True, timeout=30)
    return out.stdout.strip() if out.returncode == 0 else ''

  if not (root / '.git').exists():
    try:
      return (root / SHIPPED).read_text().strip()
    except (OSError, ValueError):
      return ''
  try:
    return git('rev-parse', 'HEAD') + '+' * bool(git('status', '--porcelain', '-uno'))
  except (OSError, subprocess.TimeoutExpired):
    return ''
