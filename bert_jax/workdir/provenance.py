"""Records what made a result (versions, command, commit, changed code) for workdirs and cards."""

import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from typing import Any

from bert_jax import __version__, files
from bert_jax.files import Path

SHIPPED = '.commit'  # names the commit where launch/ ships the code without its .git
ROOT = Path(__file__).parents[2]
# The environment variables that can change the numbers of a run.
ENVIRONMENT = 'XLA_FLAGS', 'LIBTPU_INIT_ARGS', 'JAX_DEFAULT_MATMUL_PRECISION', 'JAX_ENABLE_X64'
ENVIRONMENT += 'JAX_THREEFRY_PARTITIONABLE', 'JAX_RANDOM_SEED_OFFSET', 'NVIDIA_TF32_OVERRIDE'
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy')


def versions() -> dict[str, Any]:
  """The versions, {name: version}, of this package, its commit, Python and key packages."""
  return {
    'bert_jax': __version__,
    'commit': commit(),
    'python': platform.python_version(),
    'packages': {name: metadata.version(name) for name in PACKAGES},
  }


def command() -> dict[str, Any]:
  return {'argv': sys.argv, 'time': time.strftime('%Y-%m-%d %H:%M:%S')}


def commit() -> str:
  """The git commit of this package, with + if files were changed since; '' if unknown."""
  if not (ROOT / '.git').exists():
    for origin in ROOT.glob('bert_jax-*.dist-info/direct_url.json'):  # by pip, of what it installed
      return json.loads(origin.read_text()).get('vcs_info', {}).get('commit_id', '')
    return files.read_text(ROOT / SHIPPED).strip()
  head = _git('rev-parse', 'HEAD').strip()
  if _git('status', '--porcelain', '-uno'):
    return f'{head}+'
  return head


def code_changes() -> str:
  """The changes since the commit as a patch, with new Python files of ours; '' without git. Other
  new files are not in it, since they may hold anything."""
  if not (ROOT / '.git').exists():
    return ''
  patch = _git('diff', 'HEAD', '--binary')
  ours = 'bert_jax/*.py', 'configs/*.py'
  for name in _git('ls-files', '--others', '--exclude-standard', *ours).splitlines():
    patch += _git('diff', '--no-index', '--', '/dev/null', name, fine=(0, 1))
  return patch


def machine() -> dict[str, Any]:
  """The processor and environment variables, on which the last bits of a run also depend."""
  named = re.search(r'^model name\s*: (.*)', files.read_text('/proc/cpuinfo'), re.MULTILINE)
  processor = named[1] if named else platform.processor() or platform.machine()
  environment = {name: os.environ[name] for name in ENVIRONMENT if os.environ.get(name)}
  return {'processor': processor, 'environment': environment}


def cores() -> int:
  """How many cores this process may use; on macOS, how many there are."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _git(*words, fine=(0,)):
  """The output of a git command, or '' if it fails."""
  try:
    out = subprocess.run(
      ('git', *words), cwd=ROOT, capture_output=True, text=True, errors='replace', timeout=30
    )
  except (OSError, subprocess.TimeoutExpired):
    return ''
  return out.stdout if out.returncode in fine else ''
