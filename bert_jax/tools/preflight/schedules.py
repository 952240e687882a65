"""Counts the cycles of Pallas kernels, for which the compiler estimates none, in its schedules.

A TPU starts a bundle of instructions in each cycle. libtpu writes the bundles of every operation,
with the cycles in which nothing starts, where LIBTPU_INIT_ARGS says so; this module asks for the
schedule after the allocation of registers. A loop counts as often as it runs, a branch as if it
were taken, so a kernel that skips blocks takes less.
"""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

PASSES = '^packed-bundles-post-ra|deduplication-map'
_BUNDLE = re.compile(r'^ *(?:0|0x[0-9a-f]+) +(LB)? *: ')
_END = re.compile(r'%(\w+) = scmp\.ge\.\w+\.totalorder %\w+, (\d+) /\* loop exit test')
_JUMP = re.compile(r'sbr\.rel \(!%(\w+)\)')
_folder: Path | None = None
_flags = ''  # the user's LIBTPU_INIT_ARGS


def ask() -> None:
  """Has libtpu, which is not loaded yet, write schedules into a temporary folder."""
  global _folder, _flags
  if _folder is None:
    _flags = os.environ.get('LIBTPU_INIT_ARGS', '')
    _folder = Path(tempfile.mkdtemp(prefix='bert_jax_schedules_'))
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    ours = f'--xla_jf_dump_to={_folder} --xla_jf_dump_llo_text=true'
    ours += f' --xla_jf_dump_llo_pass_label_regex={PASSES}'
    os.environ['LIBTPU_INIT_ARGS'] = f'{_flags} {ours}'


def flags() -> str:
  """LIBTPU_INIT_ARGS without what `ask` adds."""
  return _flags if _folder else os.environ.get('LIBTPU_INIT_ARGS', '')


def cycles_of(schedule: str) -> int:
  """The cycles of an operation; 0 if it has a loop of unknown length. A loop over the blocks of a
  kernel has two turns more, in which only the first are fetched and the last stored."""
  open_loops, ends = [[0, 0]], {}
  for line in schedule.splitlines():
    bundle = _BUNDLE.match(line)
    if not bundle:
      continue
    if bundle[1]:
      is_pipeline = 'iteration index, stage' in line
      open_loops.append([0, 2 if is_pipeline else 0])
    open_loops[-1][0] += 1
    ends.update(_END.findall(line))
    for name in _JUMP.findall(line):
      if name in ends and len(open_loops) > 1:
        bundles, besides = open_loops.pop()
        open_loops[-1][0] += bundles * max(int(ends[name]) - besides, 1)
  return open_loops[0][0] if len(open_loops) == 1 else 0


def read(names: Collection[str]) -> dict[str, int]:
  """{name: cycles} of the operations `names` of the program compiled last; all are forgotten."""
  out: dict[str, int] = {}
  if _folder is None:
    return out
  first_of = {}  # operations that are the same are compiled once
  for path in _folder.glob('*-deduplication-map.txt'):
    first = ''
    for line in path.read_text().splitlines():
      if line.startswith('key:'):
        first = line.removeprefix('key:')
      elif line.startswith('  '):
        first_of[line.strip()] = first
  for name in names:
    for path in _folder.glob(f'*-{first_of.get(name, name)}-*-packed-bundles-post-ra.txt'):
      out[name] = cycles_of(path.read_text())
  shutil.rmtree(_folder, ignore_errors=True)
  return out
