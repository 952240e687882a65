"""Puts faults into a copy of the code, one at a time, and counts how many the tests notice.

    python tests/mutate.py --sample 600 --seed 1                 # every room, by turns
    python tests/mutate.py --sample 40 --seed 2 --rooms models rows --workers 2
    python tests/mutate.py --seed 1 --show                        # the table of what has been tried

Nobody writes the faults: they are drawn from the syntax tree of bert_jax/ (KINDS). First the suite
runs once under coverage, which says what each test reaches and how long it takes. Then each fault
is put into a copy of the repository and the tests that reach its line are run there until one
fails: the quickest of every file, then the next of every file, --seconds of them, those of the
fault's room first. A line that runs when its file is imported is of no test: there the tests that
reach the file are run, or else those of its room. A fault that no test reaches counts as unnoticed.
A program that no fault changes is compiled once for all. Each result is a line of OUT/SEED.jsonl,
so a run that was stopped goes on where it was. Faults that cannot change what the code does are
not drawn if tests/mutations_without_effect.txt lists them with a reason.
"""

import argparse
import ast
import collections
import concurrent.futures
import hashlib
import itertools
import json
import multiprocessing
import os
import queue
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import tqdm

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_EFFECT = ROOT / 'tests' / 'mutations_without_effect.txt'
COPIED = 'bert_jax', 'configs', 'launch', 'tests', '.github', 'README.md', 'requirements.txt'
COPIED += '.pytest.ini', '.ruff.toml'

# {an operator: what is put in its place}
OPPOSITES = {'==': '!=', '<': '>=', '>': '<=', 'in': 'not in', 'is': 'is not'}
OPPOSITES |= {new: old for old, new in OPPOSITES.items()}
BOUNDARIES = {'<': '<=', '<=': '<', '>': '>=', '>=': '>'}
SIGNS = {'+': '-', '-': '+', '*': '/', '/': '*', '//': '*'}
LOGIC = {'and': 'or', 'or': 'and'}
EITHER_WAY = 'min', 'max', 'minimum', 'maximum'  # whose two arguments may change places
KINDS = ('comparison', 'boundary', 'constant', 'sign', 'arguments', 'logic', 'line', 'axis', 'key')


# Libraries are imported once, in a process that each attempt's is forked of; first the file that
# sets the environment in which they are imported.
CHILDREN = multiprocessing.get_context('forkserver')
CHILDREN.set_forkserver_preload(
  ['conftest', 'jax', 'flax.linen', 'optax', 'orbax.checkpoint', 'tokenizers', 'hypothesis']
)


class Fault(NamedTuple):
  """A replacement of source[start:end] in a file."""

  file: str
  line: int
  kind: str
  start: int
  end: int
  text: str
  shown: str  # the changed line as it stands, and the new text

  @property
  def name(self) -> str:
    return f'{self.file}:{self.line} {self.kind}: {self.shown}'

  @property
  def room(self) -> str:
    parts = Path(self.file).parts
    return parts[1] if len(parts) > 2 else 'trunk'


# ---- which faults there are ----------------------------------------------------------------------


def faults_of(path: Path) -> Iterator[Fault]:
  """Every fault that can be put into a file, in the order of its source."""
  source = path.read_text()
  tree, encoded, lines = ast.parse(source), source.encode(), source.splitlines()
  starts = [0, *itertools.accumulate(map(len, encoded.splitlines(keepends=True)))]
  start_of = lambda node: starts[node.lineno - 1] + node.col_offset
  end_of = lambda node: starts[node.end_lineno - 1] + node.end_col_offset
  source_of = lambda node: encoded[start_of(node) : end_of(node)].decode()
  file = str(path.relative_to(ROOT))
  keys = sorted({node.slice.value for node in ast.walk(tree) if _names_a_key(node)})

  def fault(kind, node, text, start=None, end=None):
    start = start_of(node) if start is None else start
    end = end_of(node) if end is None else end
    before = ' '.join(encoded[start:end].decode().split())
    shown = f'{before} -> {" ".join(text.split())}  in  {lines[node.lineno - 1].strip()}'
    return Fault(file, node.lineno, kind, start, end, text, shown)

  def operator(kind, node, left, right, others):
    """The fault that puts another operator between two expressions, if `others` has one."""
    first = end_of(left)
    gap = encoded[first : start_of(right)].decode()
    old = re.sub(r'[\s()]', ' ', gap).strip()
    if old in others and '#' not in gap:
      at = first + gap.index(old)
      yield fault(kind, node, others[old], at, at + len(old))

  for node in _code(tree):
    found = []
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
      for kind, others in ('comparison', OPPOSITES), ('boundary', BOUNDARIES):
        found += operator(kind, node, node.left, node.comparators[0], others)
    elif isinstance(node, ast.BoolOp):
      found += operator('logic', node, *node.values[:2], LOGIC)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
      found.append(fault('logic', node, f'({source_of(node.operand)})'))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
      found.append(fault('sign', node, source_of(node.operand)))
    elif isinstance(node, ast.BinOp) and not _is_text(node):
      found += operator('sign', node, node.left, node.right, SIGNS)
    elif isinstance(node, ast.Constant):
      if isinstance(node.value, bool):
        found.append(fault('constant', node, str(not node.value)))
      elif isinstance(node.value, int):
        found.append(fault('constant', node, str(node.value + 1)))
      elif isinstance(node.value, float):
        found.append(fault('constant', node, repr(node.value * 2 if node.value else 1.0)))
    elif isinstance(node, ast.Call):
      if len(node.args) > 1 and not any(isinstance(x, ast.Starred) for x in node.args[:2]):
        one, two = map(source_of, node.args[:2])
        if one != two and ast.unparse(node.func).rpartition('.')[2] not in EITHER_WAY:
          ends = start_of(node.args[0]), end_of(node.args[1])
          found.append(fault('arguments', node, f'{two}, {one}', *ends))
      for word in node.keywords:
        if word.arg in ('axis', 'axes') and isinstance(_number(word.value), int):
          other = 0 if _number(word.value) else 1
          found.append(fault('axis', word.value, str(other)))
    elif _names_a_key(node):
      others = [key for key in keys if key != node.slice.value]
      if others:
        near = others[hash_of(node.slice.value, file) % len(others)]
        found.append(fault('key', node.slice, repr(near)))
    if _can_go(node):
      found.append(fault('line', node, 'pass'))
    yield from found


def hash_of(*words: str) -> int:
  return int(hashlib.sha256(' '.join(words).encode()).hexdigest()[:8], 16)


def _code(tree: ast.AST) -> Iterator[ast.AST]:
  """The nodes of a syntax tree without annotations, logging, texts of errors and the command line's
  help, and the definitions of tables that are only text."""
  for field, value in ast.iter_fields(tree):
    if field in ('annotation', 'returns', 'type_comment'):
      continue
    for node in value if isinstance(value, list) else [value]:
      if not isinstance(node, ast.AST) or _is_left_out(node):
        continue
      yield node
      yield from _code(node)


def _is_left_out(node: ast.AST) -> bool:
  if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)):
    return True
  if isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.dump(node.test):
    return True
  if isinstance(node, ast.Call):
    name = ast.unparse(node.func)
    first, _, last = name.rpartition('.')
    return first in ('log', 'logging', 'warnings') or last in ('add_argument', 'getLogger')
  return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_text(node: ast.BinOp) -> bool:
  texts = (ast.JoinedStr, ast.List, ast.Tuple)
  return any(
    isinstance(x, texts) or isinstance(x, ast.Constant) and isinstance(x.value, (str, bytes))
    for x in ast.walk(node)
  )


def _number(node: ast.AST) -> int | None:
  try:
    value = ast.literal_eval(node)
  except ValueError:
    return None
  return value if isinstance(value, int) else None


def _names_a_key(node: ast.AST) -> bool:
  if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
    return False
  return isinstance(node.slice.value, str)


def _can_go(node: ast.AST) -> bool:
  """Is this a statement that the code would still be defined without?"""
  if isinstance(node, ast.Expr):
    return isinstance(node.value, ast.Call) and not _is_left_out(node.value)
  if isinstance(node, ast.Assign):
    return all(isinstance(x, (ast.Attribute, ast.Subscript)) for x in node.targets)
  return isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break))


def sample(count: int, seed: int, rooms: list[str]) -> list[Fault]:
  """`count` faults, as many of each room and within a room as many of each kind as there are."""
  known = without_effect()
  found = collections.defaultdict(lambda: collections.defaultdict(list))
  for path in sorted((ROOT / 'bert_jax').rglob('*.py')):
    for fault in faults_of(path):
      if signature(fault) not in known:
        found[fault.room][fault.kind].append(fault)
  rng = random.Random(seed)
  piles = {}
  for room in sorted(found):
    if rooms and room not in rooms:
      continue
    for kind in KINDS:
      rng.shuffle(found[room][kind])
    kinds = [found[room][kind] for kind in KINDS]
    piles[room] = [pile[i] for i in range(max(map(len, kinds))) for pile in kinds if i < len(pile)]
  drawn = [pile[i] for i in range(count) for pile in piles.values() if i < len(pile)]
  return drawn[:count]


def signature(fault: Fault) -> str:
  """What names a fault in tests/mutations_without_effect.txt, whichever line it is on."""
  return f'{fault.file} {fault.kind}: {fault.shown}'


def without_effect() -> dict[str, str]:
  """{signature: reason} of the faults that are known to change nothing."""
  if not WITHOUT_EFFECT.exists():
    return {}
  lines = WITHOUT_EFFECT.read_text().splitlines()
  pairs = [line.rsplit('  # ', 1) for line in lines if line and not line.startswith('#')]
  return {name: reason for name, reason in pairs}


# ---- which tests reach a line --------------------------------------------------------------------


def fingerprint() -> str:
  """Of the code and its tests as they stand."""
  out = hashlib.sha256()
  for folder in ('bert_jax', 'configs', 'tests'):
    for path in sorted((ROOT / folder).rglob('*.py')):
      out.update(f'{path.relative_to(ROOT)}\n'.encode() + path.read_bytes())
  return out.hexdigest()[:16]


def reached(out: Path, workers: int) -> tuple[dict[tuple[str, int], set[str]], dict[str, float]]:
  """({(file, line): the tests that reach it}, {test: its seconds}), by one run of the suite under
  coverage, which is kept for as long as neither the code nor a test changes."""
  folder = out / f'coverage-{fingerprint()}'
  data, report = folder / 'coverage', folder / 'seconds.jsonl'
  if not (folder / 'done').exists():
    folder.mkdir(parents=True, exist_ok=True)
    print('running the suite once under coverage ...', file=sys.stderr)
    command = [sys.executable, '-m', 'pytest', '-q', '-n', str(workers), '--dist', 'loadfile']
    command += ['--no-loadscope-reorder', '-p', 'mutate', '--cov=bert_jax', '--cov-context=test']
    command += ['--cov-report=', '--no-cov-on-fail']
    env = os.environ | {'COVERAGE_FILE': str(data), 'MUTATE_SECONDS': str(report)}
    env['PYTHONPATH'] = f'{ROOT / "tests"}{os.pathsep}{ROOT}'
    ended = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
      print(ended.stdout[-3000:], file=sys.stderr)
      raise SystemExit('error: the tests must pass before faults are put in; see above.')
    (folder / 'done').touch()
  seconds = collections.defaultdict(float)
  for line in map(json.loads, report.read_text().splitlines()):
    seconds[line['test']] += line['seconds']
  return _lines(data), dict(seconds)


def _lines(data: Path) -> dict[tuple[str, int], set[str]]:
  import coverage

  tests, measured = {}, coverage.CoverageData(str(data))
  measured.read()
  for path in measured.measured_files():
    file = f'bert_jax/{path.rpartition("bert_jax/")[2]}'
    for line, contexts in measured.contexts_by_lineno(path).items():
      if found := {context.partition('|')[0] for context in contexts if context}:
        tests[file, line] = found
  return tests


def pytest_runtest_logreport(report) -> None:
  """Writes how long each test took, when pytest loads this file as a plugin (-p mutate)."""
  path = os.environ.get('MUTATE_SECONDS')
  if path and not hasattr(report, 'node'):  # a process that only gathers reports of others has it
    with open(path, 'a') as file:
      file.write(json.dumps({'test': report.nodeid, 'seconds': report.duration}) + '\n')


def reaching(
  fault: Fault, tests: dict[tuple[str, int], set[str]], seconds: dict[str, float]
) -> set[str]:
  """The tests that reach a fault, see above."""
  if at := tests.get((fault.file, fault.line)):
    return at
  of_file = set().union(*(names for (file, _), names in tests.items() if file == fault.file))
  room = 'tests' if fault.room == 'trunk' else f'tests/{fault.room}'
  return of_file or {test for test in seconds if str(Path(test.partition('::')[0]).parent) == room}


def chosen(tests: set[str], seconds: dict[str, float], limit: float, room: str) -> list[str]:
  """The tests to run: the quickest of each file, then the next of each, up to `limit` seconds. A
  file's stay together, since what they share is made once; those of the room come first."""
  files = collections.defaultdict(list)
  for test in sorted(tests, key=lambda test: (seconds.get(test, 1.0), test)):
    files[test.partition('::')[0]].append(test)
  turns = sorted(
    (i, seconds.get(test, 1.0), test) for own in files.values() for i, test in enumerate(own)
  )
  out, total = [], 0.0
  of_file = collections.Counter()
  for _, cost, test in turns:
    if not out or total + cost <= limit:
      out.append(test)
      total += cost
      of_file[test.partition('::')[0]] += cost

  def place(test):
    file = test.partition('::')[0]
    return Path(file).parent.name != room, of_file[file], file

  return sorted(out, key=place)


# ---- trying them ---------------------------------------------------------------------------------


def copy_to(folder: Path) -> Path:
  for name in COPIED:
    source, target = ROOT / name, folder / name
    if source.is_dir():
      shutil.copytree(source, target, ignore=shutil.ignore_patterns('__pycache__'))
    elif source.exists():
      shutil.copy(source, target)
  return folder


def run_tests(folder: Path, tests: list[str], output: str, cpu: int) -> None:
  """Runs tests of the copy in `folder` until one fails, in a process of its own, which ends with
  pytest's status. cpu: the seconds that it may use."""
  resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
  with open(output, 'w') as file:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
  os.chdir(folder)
  sys.modules.pop('conftest', None)  # only its environment was wanted
  del os.environ['PYTHONPATH']
  sys.path[:] = [str(folder), *(x for x in sys.path if not x.startswith(str(ROOT) + os.sep))]
  sys.exit(pytest.main(['-x', '-q', '-p', 'no:cacheprovider', *tests]))


def attempt(fault: Fault, tests: list[str], folder: Path, seconds: float) -> dict:
  """Puts a fault into the copy in `folder`, runs tests there and takes it out again."""
  path = folder / fault.file
  before = path.read_bytes()
  started = time.monotonic()
  cpu = int(3 * seconds) + 60  # for a fault that never ends, however busy the machine is
  try:
    path.write_bytes(before[: fault.start] + fault.text.encode() + before[fault.end :])
    with tempfile.NamedTemporaryFile('r+') as output:
      child = CHILDREN.Process(target=run_tests, args=(folder, tests, output.name, cpu))
      child.start()
      child.join(3 * cpu)
      code = child.exitcode
      child.kill()
      lines = output.read().splitlines()
  finally:
    path.write_bytes(before)
  failed = next((line for line in lines if line.startswith(('FAILED', 'ERROR'))), '')
  verdict = 'unnoticed' if code == 0 else 'noticed'
  if code == 5:  # no test was collected
    verdict = 'unnoticed'
  took = round(time.monotonic() - started, 1)
  return {'verdict': verdict, 'by': failed or str(code), 'tests': len(tests), 'seconds': took}


def try_all(faults: list[Fault], log: Path, workers: int, limit: float, out: Path) -> None:
  """Tries the faults that `log` has no line of and adds one for each."""
  done = {line['name'] for line in results(log)}
  left = [fault for fault in faults if fault.name not in done]
  if not left:
    return
  tests, seconds = reached(out, workers)
  folders = queue.Queue()
  with tempfile.TemporaryDirectory(prefix='mutate-') as top, log.open('a') as file:
    for i in range(workers):
      folders.put(copy_to(Path(top) / str(i) / 'bert_jax'))
      shared = ROOT.parent / 'shared'
      if shared.exists():
        (Path(top) / str(i) / 'shared').symlink_to(shared)

    def one(fault):
      own = chosen(reaching(fault, tests, seconds), seconds, limit, fault.room)
      folder = folders.get()
      try:
        found = attempt(fault, own, folder, limit) if own else {'verdict': 'unreached'}
      finally:
        folders.put(folder)
      return {'name': fault.name, 'room': fault.room, 'kind': fault.kind} | found

    with concurrent.futures.ThreadPoolExecutor(workers) as threads:
      for found in tqdm.tqdm(threads.map(one, left), total=len(left), unit='fault'):
        file.write(json.dumps(found) + '\n')
        file.flush()


def results(log: Path) -> list[dict]:
  return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def table(found: list[dict], group: str) -> str:
  """Faults and the share of them that was noticed, by room or by kind."""
  counts = collections.defaultdict(collections.Counter)
  for line in found:
    counts[line[group]][line['verdict']] += 1
    counts['all'][line['verdict']] += 1
  rows = [f'{group:12} faults noticed unnoticed unreached share']
  for name in [*sorted(set(counts) - {'all'}), 'all']:
    count = counts[name]
    total = sum(count.values())
    verdicts = (count[verdict] for verdict in ('noticed', 'unnoticed', 'unreached'))
    numbers = ''.join(f'{n:{w}}' for n, w in zip(verdicts, (8, 10, 10), strict=True))
    rows.append(f'{name:12} {total:6}{numbers} {count["noticed"] / total:6.1%}')
  return '\n'.join(rows)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--sample', type=int, default=600, help='how many faults are drawn')
  add('--seed', type=int, default=1)
  add('--rooms', nargs='*', default=[], help='folders of bert_jax, or trunk; all by default')
  add('--workers', type=int, default=2, help='faults that are tried at once, each on one core')
  add('--seconds', type=float, default=120.0, help='of tests for one fault')
  add('--out', type=Path, default=ROOT / 'runs' / 'mutate')
  add('--show', action='store_true', help='the table only; nothing is tried')
  args = parser.parse_args(argv)
  args.out.mkdir(parents=True, exist_ok=True)
  os.environ['JAX_COMPILATION_CACHE_DIR'] = str((args.out / 'compiled').resolve())
  os.environ['PYTHONPATH'] = str(ROOT / 'tests')  # where CHILDREN find conftest
  log = args.out / f'{args.seed}.jsonl'
  if not args.show:
    faults = sample(args.sample, args.seed, args.rooms)
    try_all(faults, log, args.workers, args.seconds, args.out)
  found = results(log)
  if not found:
    raise SystemExit(f'error: {log} has no results; run without --show first.')
  missed = [line for line in found if line['verdict'] != 'noticed']
  print('\n'.join(f'{line["verdict"]}: {line["name"]}' for line in missed))
  print('', table(found, 'kind'), '', table(found, 'room'), sep='\n')
  print(f'{len(without_effect())} faults are known to change nothing and were not drawn.')
  return 0


if __name__ == '__main__':
  sys.exit(main())
