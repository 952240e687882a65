"""How fast the data moves, on this machine, now.

    python -m bert_jax.tools.bench prepare --input 'books/*.md' --vocab V
    python -m bert_jax.tools.bench loading --corpus D

prepare: MB/s of text and the memory of a process, with 1 process and with more, each in a process
of its own, in turn. loading: tokens/s from a prepared corpus into finished batches, on one core,
for each kind of rows, with the corpus in memory and with every record read anew. Medians of
--repeat runs; the first, which warms up, does not count. Nothing else should run beside it: ratios
of one table are safer than its numbers.
"""

import argparse
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bert_jax import config as config_lib
from bert_jax.config import InputError
from bert_jax.data import batching, prepared, rows, tokenizers

KINDS = {  # of rows: settings of rows.Rows
  'full': dict(kind='full'),
  'nsp': dict(kind='nsp', short_seq_prob=0.1),
  'packed': dict(kind='full', examples_per_row=8),
}


def prepare(args):
  """Yields a line for each number of processes."""
  counts = sorted({1, args.processes})
  found = {n: [] for n in counts}
  for number, n in itertools.product(range(args.repeat + 1), counts):
    with tempfile.TemporaryDirectory() as folder:
      out = Path(folder) / 'D'
      command = [sys.executable, '-m', 'bert_jax.tools.bench', '_prepare', '--vocab', args.vocab]
      command += [x for spec in args.input for x in ('--input', spec)]
      command += ['--out', str(out), '--processes', str(n), *args.rest]
      run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
      if run.returncode:
        raise InputError('prepare failed; see above')
      if number:
        found[n].append(json.loads(run.stdout.splitlines()[-1]))
  median = lambda n, key: statistics.median(x[key] for x in found[n])
  alone = median(1, 'seconds')
  for n in counts:
    yield {
      'processes': n,
      'MB/s': round(median(n, 'bytes') / 1e6 / median(n, 'seconds'), 2),
      'share of ideal speed-up': round(alone / median(n, 'seconds') / n, 3),
      'peak MB of a process': round(median(n, 'peak_mb')),
    }


def _prepare(arguments):
  """One timed run, from when the imports are done: prints what `prepare` needs of it."""
  import resource

  from bert_jax.tools import prepare as tool

  args = tool.parser().parse_args(arguments)
  started = time.perf_counter()
  meta = tool.run(args)
  seconds = time.perf_counter() - started
  kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  peak = max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024
  print(json.dumps({'seconds': seconds, 'bytes': meta['counts']['bytes'], 'peak_mb': peak}))


def loading(args):
  """Yields a line for each kind of rows."""
  import jax

  tokenizer = tokenizers.load_folder(args.corpus)
  corpus = prepared.load(args.corpus, tokenizer).corpus
  sharding = jax.sharding.SingleDeviceSharding(jax.devices('cpu')[0])
  for name, settings in KINDS.items():
    started = time.perf_counter()
    source = rows.Rows(corpus, tokenizer, seq_length=args.seq_length, **settings)
    planned = time.perf_counter() - started
    shape = jax.ShapeDtypeStruct((args.batch_size, args.seq_length), np.int32)
    names = ('input_ids', 'token_type_ids', 'position_ids', 'segment_ids', 'unit_starts')
    batches = batching.Batches(
      source, dict.fromkeys(names, shape), sharding, limits={'input_ids': tokenizer.vocab_size},
      seed=0,
    )  # fmt: skip
    speeds, step = {}, 0
    for where, room in (('memory', prepared.CACHE_TOKENS), ('disk', 0)):
      corpus.read.room = room
      found = []
      for _ in range(args.repeat + 1):
        tokens, started = 0, time.perf_counter()
        while time.perf_counter() - started < args.seconds:
          tokens += int((batches[step]['segment_ids'] > 0).sum())
          step += 1
        found.append(tokens / (time.perf_counter() - started))
      speeds[f'tokens/s from {where}'] = round(statistics.median(found[1:]))
    yield {
      'rows': name,
      **speeds,
      'planned in s': round(planned, 2),
      'filled': round(source.fill, 4),
    }


def main(argv=None):
  argv = sys.argv[1:] if argv is None else argv
  if argv[:1] == ['_prepare']:
    return _prepare(argv[1:])
  top = argparse.ArgumentParser(
    prog='python -m bert_jax.tools.bench', allow_abbrev=False, description=__doc__
  )
  commands = top.add_subparsers(dest='command', required=True)
  for name in ('prepare', 'loading'):
    own = commands.add_parser(name, allow_abbrev=False)
    own.add_argument('--repeat', type=int, default=3, help='measured runs')
    if name == 'prepare':
      own.add_argument('--input', action='append', required=True)
      own.add_argument('--vocab', required=True)
      own.add_argument('--processes', type=int, default=len(os.sched_getaffinity(0)))
    else:
      own.add_argument('--corpus', required=True)
      own.add_argument('--seq-length', type=int, default=128)
      own.add_argument('--batch-size', type=int, default=64)
      own.add_argument('--seconds', type=float, default=3, help='of each measured run')
  args, rest = top.parse_known_args(argv)
  args.rest = rest
  with config_lib.command_line():
    if rest and args.command == 'loading':
      raise InputError(f'argument {rest[0]!r} is not known; see --help')
    logging.getLogger('bert_jax').setLevel(logging.WARNING)
    for line in {'prepare': prepare, 'loading': loading}[args.command](args):
      print(json.dumps(line), flush=True)


if __name__ == '__main__':
  main()
