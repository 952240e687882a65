"""The worked differences of bert_jax/README.md, as patches applied to a copy of the code."""

import contextlib
import io
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def patch_of(title):
  """The text of the block of differences below a heading there."""
  (section,) = re.findall(
    rf'^### {title}\n(.*?)(?=^#|\Z)', (ROOT / 'bert_jax' / 'README.md').read_text(), re.M | re.S
  )
  (patch,) = re.findall(r'```diff\n(.*?)```', section, re.S)
  return patch


def copy_to(folder):
  """A copy of the package and its configs in a new folder; returns the folder."""
  for name in ('bert_jax', 'configs'):
    shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns('__pycache__'))
  return folder


def apply(folder, title):
  """Applies a difference as a reader would, with `git apply`."""
  (folder / 'change.patch').write_text(patch_of(title))
  command = ['git', 'apply', 'change.patch']
  env = os.environ | {'GIT_CEILING_DIRECTORIES': str(folder.parent)}  # it is no repository
  out = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
  advice = 'if the code there has changed, write the difference in bert_jax/README.md anew'
  assert not out.returncode, f'{title}: {out.stderr}{advice}, or delete it'


def command(module: str, *arguments, stdin: str = '') -> str:
  """What `python -m MODULE ARGUMENTS` prints, run in this process, which has imported JAX."""
  kept = sys.argv, sys.stdin, {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
  sys.argv = [module, *map(str, arguments)]
  out = io.TextIOWrapper(io.BytesIO(), encoding='utf-8')
  sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding='utf-8')
  try:
    with contextlib.redirect_stdout(out):
      runpy.run_module(module, run_name='__main__', alter_sys=False)
  except SystemExit as end:
    if end.code:
      raise RuntimeError(f'{" ".join(sys.argv)} has ended with {end.code}') from end
  finally:
    sys.argv, sys.stdin = kept[:2]
    for number, handler in kept[2].items():
      signal.signal(number, handler)
  out.flush()
  return out.buffer.getvalue().decode()


SEVERAL = """
import json, sys
from differences import command
print(json.dumps([command(*words, stdin=lines) for lines, *words in json.loads(sys.argv[1])]))
"""


def printed(folder, *commands):
  """What commands print, each a text of its words or a list of them, first its standard input.
  They run one after the other in one process of a copy of the code."""
  words = [x if isinstance(x, list) else ['', *x.split()] for x in commands]
  out = subprocess.run(
    [sys.executable, '-c', SEVERAL, json.dumps(words)],
    cwd=folder,
    env=dict(os.environ, PYTHONPATH=f'{folder}:{ROOT}/tests'),
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert not out.returncode, out.stderr[-3000:]
  return json.loads(out.stdout.splitlines()[-1])
