"""Puts faults into a copy of the code, one at a time, and counts how many the tests notice.

    python tests/mutate.py --sample 100 --seed 1
    python tests/mutate.py --sample 20 --rooms models rows
    python tests/mutate.py --fault 'bert_jax/metrics.py: np.float64 -> np.float32'

Faults are drawn from the syntax tree of bert_jax/, as many of each room, or written by hand with
--fault: a file, a text that stands in it (the first such place is changed), and what is put there.
For each the tests of its room run (ROOMS, or the folder of its name in tests/) until one fails. A
fault that none notices is printed; whether it changes anything is for you to say.
"""

import argparse
import ast
import collections
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tqdm

ROOT = Path(__file__).resolve().parents[1]
COPIED = 'bert_jax', 'configs', 'launch', 'tests', '.github', 'README.md', 'requirements.txt'
COPIED += '.pytest.ini', '.ruff.toml'
# {room: its tests, where these are not the folder of its name in tests/}.
ROOMS = {
  'files': 'tests/test_step.py tests/test_optim.py tests/test_timeline.py tests/test_buckets.py '
  'tests/run/test_metrics.py tests/run/test_train.py tests/run/test_processes.py',
  'models': 'tests/models tests/objectives tests/convert/test_released_families.py',
  'tools': 'tests/tools tests/run/test_run_records.py',
  'corpus': 'tests/corpus tests/rows tests/tools/test_prepare.py',
  'rows': 'tests/rows tests/objectives/test_transformer_xl.py',
  'run': 'tests/run tests/workdir tests/tasks/test_finetuning.py',
  'workdir': 'tests/workdir tests/run',
  'text': 'tests/text tests/test_faulty_inputs.py',
}
OPERATORS = {  # {an operator: what is put in its place}
  '==': ['!='],
  '!=': ['=='],
  '<': ['<=', '>='],
  '<=': ['<'],
  '>': ['>=', '<='],
  '>=': ['>'],
  'in': ['not in'],
  'not in': ['in'],
  'is': ['is not'],
  'is not': ['is'],
  'and': ['or'],
  'or': ['and'],
  '+': ['-'],
  '-': ['+'],
  '*': ['/'],
  '/': ['*'],
  '//': ['*'],
}


class Fault(NamedTuple):
  """A replacement of bytes [start, end) of a file."""

  file: str
  start: int
  end: int
  text: str
  shown: str

  @property
  def room(self) -> str:
    parts = Path(self.file).parts
    return parts[1] if len(parts) > 2 else 'files'


def code_of(node: ast.AST) -> Iterator[ast.AST]:
  """The nodes below one, without annotations, docstrings, texts and logging."""
  for name, value in ast.iter_fields(node):
    if name in ('annotation', 'returns'):
      continue
    for child in value if isinstance(value, list) else [value]:
      if not isinstance(child, ast.AST) or isinstance(child, (ast.JoinedStr, ast.Import)):
        continue
      if isinstance(child, ast.Call) and ast.unparse(child.func).startswith(('log.', 'add')):
        continue
      yield child
      yield from code_of(child)


def faults_of(path: Path) -> Iterator[Fault]:
  """Every fault that can be drawn for a file."""
  source = path.read_bytes()
  starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
  file = str(path.relative_to(ROOT))

  def begin(node):
    return starts[node.lineno - 1] + node.col_offset

  def end(node):
    return starts[node.end_lineno - 1] + node.end_col_offset

  def text_of(node):
    return source[begin(node) : end(node)].decode()

  def fault(node, text, first=None, last=None):
    first = begin(node) if first is None else first
    last = end(node) if last is None else last
    old = ' '.join(source[first:last].decode().split())
    line = source.splitlines()[node.lineno - 1].decode().strip()
    return Fault(file, first, last, text, f'{file}:{node.lineno} {old} -> {text}  in  {line}')

  def other_operators(left, right):
    gap = source[end(left) : begin(right)].decode()
    old = ' '.join(gap.replace('(', ' ').replace(')', ' ').split())
    for new in OPERATORS.get(old, ()):
      at = end(left) + gap.index(old.split()[0])
      yield fault(left, new, at, at + len(old))

  for node in code_of(ast.parse(source)):
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
      yield from other_operators(node.left, node.comparators[0])
    elif isinstance(node, ast.BoolOp):
      yield from other_operators(node.values[0], node.values[1])
    elif isinstance(node, ast.BinOp):
      yield from other_operators(node.left, node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
      yield fault(node, f'({text_of(node.operand)})')
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
      value = node.value
      new = (
        not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 2
      )
      yield fault(node, repr(new))
    elif isinstance(node, ast.Call) and len(node.args) > 1:
      one, two = node.args[:2]
      if not isinstance(one, ast.Starred) and not isinstance(two, ast.Starred):
        yield fault(node, f'{text_of(two)}, {text_of(one)}', begin(one), end(two))
    elif isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break)):
      yield fault(node, 'pass')


def drawn(count: int, seed: int, rooms: list[str]) -> list[Fault]:
  """`count` faults, as many of each room."""
  piles = collections.defaultdict(list)
  for path in sorted((ROOT / 'bert_jax').rglob('*.py')):
    for fault in faults_of(path):
      piles[fault.room].append(fault)
  rng = random.Random(seed)
  chosen = []
  for room, pile in sorted(piles.items()):
    if not rooms or room in rooms:
      rng.shuffle(pile)
      chosen.append(pile)
  by_turns = itertools.chain(*itertools.zip_longest(*chosen))
  return [fault for fault in by_turns if fault][:count]


def written(text: str) -> Fault:
  """The fault of --fault."""
  file, _, change = text.partition(': ')
  old, _, new = change.partition(' -> ')
  start = (ROOT / file).read_bytes().index(old.encode())
  return Fault(file, start, start + len(old.encode()), new, text)


def is_noticed(fault: Fault, folder: Path, seconds: float) -> bool:
  """Puts a fault into a copy, runs the tests of its room there and takes it out again."""
  path = folder / fault.file
  before = path.read_bytes()
  tests = ROOMS.get(fault.room, f'tests/{fault.room}').split()
  command = [sys.executable, '-m', 'pytest', '-x', '-q', '-p', 'no:cacheprovider', *tests]
  path.write_bytes(before[: fault.start] + fault.text.encode() + before[fault.end :])
  try:
    env = os.environ | {'PYTHONPATH': str(folder)}
    return bool(
      subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=seconds).returncode
    )
  except subprocess.TimeoutExpired:
    return True  # it never ends
  finally:
    path.write_bytes(before)


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--sample', type=int, default=100, help='how many faults are drawn')
  add('--seed', type=int, default=1)
  add('--rooms', nargs='*', default=[], help="folders of bert_jax, or 'files'")
  add('--fault', action='append', default=[], metavar='FILE: OLD -> NEW', help='in place of a draw')
  add('--seconds', type=float, default=900.0, help='after which a fault counts as noticed')
  args = parser.parse_args()
  faults = [written(text) for text in args.fault] or drawn(args.sample, args.seed, args.rooms)
  noticed = collections.Counter()
  with tempfile.TemporaryDirectory(prefix='mutate-') as top:
    folder = Path(top) / 'bert_jax'
    for name in COPIED:
      if (ROOT / name).is_dir():
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns('__pycache__'))
      else:
        shutil.copy(ROOT / name, folder / name)
    (Path(top) / 'shared').symlink_to(ROOT.parent / 'shared')
    for fault in tqdm.tqdm(faults, unit=' faults'):
      found = is_noticed(fault, folder, args.seconds)
      noticed[fault.room, found] += 1
      if not found:
        tqdm.tqdm.write(f'unnoticed: {fault.shown}')
  for room in sorted({room for room, _ in noticed}):
    total = noticed[room, True] + noticed[room, False]
    print(f'{room:12} {noticed[room, True]} of {total} noticed')


if __name__ == '__main__':
  main()
