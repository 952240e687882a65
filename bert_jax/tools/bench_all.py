"""All measurements of tools/bench.py in turn, with what is aimed at beside what came out."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from bert_jax.errors import InputError
from bert_jax.whole_files import write_whole


class Aim(NamedTuple):
  """A value of a result that should be at least, or at most, a number."""

  what: str  # how the result's `what` begins
  value: str  # the value's name
  least: float = -float('inf')
  most: float = float('inf')

  def verdict(self, results):
    """The result {name: value} that says whether the aim was reached; results: [{name: value}]."""
    limit = f'at least {self.least:g}' if self.most == float('inf') else f'at most {self.most:g}'
    line = {'aim': f'{self.what}: {self.value}', 'wanted': limit}
    values = [r[self.value] for r in results if r['what'].startswith(self.what) and self.value in r]
    if not values:
      return line | {'measured': None, 'verdict': 'not measured'}
    worst = min(values) if self.most == float('inf') else max(values)
    reached = self.least <= worst <= self.most
    return line | {'measured': worst, 'verdict': 'reached' if reached else 'missed'}


# (command, the arguments of `all` that it needs and hands on, its aims), on 2 CPU cores.
MEASUREMENTS = (
  ('loading', ('corpus',), [Aim('loading', 'tokens/s', least=1e6)]),
  ('prepare', ('input', 'vocab'), [Aim('prepare, 1 process', 'MB/s', least=8)]),
  ('pretrain --size 6/768 --batch-size 8 --steps 5', (), [
    Aim('pretrain, 6/768', 'speed-up', least=2.0)]),
  ('pretrain --size base --batch-size 8 --steps 3', (), [
    Aim('pretrain, base', 'speed-up', least=2.0)]),
  ('batches', (), [Aim('a token', 'of the smallest batch', most=1.1)]),
  ('memory', (), [
    Aim('training base', 'GiB at most', most=4.0),
    Aim('training base', 's a save stops it', most=0.3)]),
  ('finetune', ('train',), [
    Aim('finetune', 'ours / Trainer', least=2.5),
    Aim('finetune', 'ours / Trainer, group_by_length', least=1.5)]),
  ('predict', (), [
    Aim('one sentence', 'ours / transformers', most=0.5),
    Aim('one sentence', 'ours / torch.compile', most=1.0),
    Aim('one sentence', 'ours / ONNX Runtime', most=1.0),
    Aim('one sentence', 'ours / half of the layers', least=1.6),
    Aim('1000 sentences', 'ours / half of the layers', least=1.6),
    Aim('1000 sentences', 'ours / transformers', most=0.25)]),
  ('start', (), [
    Aim('train, base', 'first time', most=15.0),
    Aim('train, base', 'compiled before', most=5.0),
    Aim('train, of a run that has ended', 'compiled before', most=5.0),
    Aim('evaluate', 'compiled before', most=5.0),
    Aim('predict', 'compiled before', most=3.0)]),
  ('generate', (), [
    Aim('1 x', 'ours / transformers', least=1.0),
    Aim('16 x', 'ours / transformers', least=1.5)]),
)  # fmt: skip


def everything(args):
  """Yields the results {name: value} of each measurement, and after them what was aimed at; writes
  them all to args.json, if named."""
  results, verdicts = [], []
  chosen = [x for x in MEASUREMENTS if x[0].startswith(args.only)]
  if not chosen:
    names = ', '.join(command.split()[0] for command, _, _ in MEASUREMENTS)
    raise InputError(f'--only={args.only} is no measurement; use one of {names}')
  for command, needs, aims in chosen:
    missing = [f'--{name}' for name in needs if not getattr(args, name)]
    measured, why = [], f'give {" and ".join(missing)}'
    if not missing:
      given = [x for name in needs for x in _option(name, getattr(args, name))]
      run = subprocess.run(
        [sys.executable, '-m', 'bert_jax.tools.bench', *command.split(), *given,
         f'--repeat={args.repeat}'], stdout=subprocess.PIPE, text=True, check=False,
      )  # fmt: skip
      measured = [json.loads(line) for line in run.stdout.splitlines() if line[:1] == '{']
      why = 'it failed, see above' if run.returncode else 'its peer is not installed'
    yield from measured
    results += measured
    for aim in aims:
      line = aim.verdict(measured)
      if line['measured'] is None:
        line['verdict'] += f': {why}'
      verdicts.append(line)
      yield line
  if args.json:
    text = json.dumps({'results': results, 'aims': verdicts}, indent=1)
    write_whole(Path(args.json).expanduser(), text)


def _option(name, value):
  """The arguments that hand this one on; one that may be repeated is a list."""
  values = value if isinstance(value, list) else [value]
  return [x for value in values for x in (f'--{name}', value)]
