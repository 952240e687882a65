"""Measures how fast text is prepared and a prepared corpus is read; see tools/bench.py."""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax

from bert_jax import config as config_lib
from bert_jax.corpus import prepared
from bert_jax.errors import InputError
from bert_jax.rows.batches import Batches
from bert_jax.tasks import TASKS
from bert_jax.tokenizers import run_tokenizer

KINDS = {  # {kind of rows: fields of configs/pretrain.py}
  'full': {'corpus.rows': 'full'},
  'single, packed': {'corpus.rows': 'single', 'data.examples_per_row': 8},
  'nsp': {'corpus.rows': 'nsp'},
  'sop': {'corpus.rows': 'sop'},
}


def prepare(args):
  """Yields the result {name: value} for each number of processes."""
  runs = {n: [] for n in sorted({1, args.processes})}
  for number, n in itertools.product(range(args.repeat + 1), runs):
    with tempfile.TemporaryDirectory() as folder:
      out = Path(folder) / 'D'
      command = [sys.executable, '-m', 'bert_jax.tools.bench', '_prepare', '--vocab', args.vocab]
      command += [x for spec in args.input for x in ('--input', spec)]
      command += ['--out', str(out), '--processes', str(n), *args.rest]
      run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
      if run.returncode:
        raise InputError('prepare failed; see above')
      if number:
        runs[n].append(json.loads(run.stdout.splitlines()[-1]))
  median = lambda n, key: statistics.median(x[key] for x in runs[n])
  alone = median(1, 'seconds')
  for n in runs:
    yield {
      'what': f'prepare, {n} process' + 'es' * (n > 1),
      'MB/s': round(median(n, 'bytes') / 1e6 / median(n, 'seconds'), 2),
      'share of ideal speed-up': round(alone / median(n, 'seconds') / n, 3),
      'peak MB of a process': round(median(n, 'peak_mb')),
    }


def prepare_once(arguments):
  """One run of tools/prepare, timed without its imports; prints its seconds, bytes and memory."""
  import resource

  from bert_jax.tools import prepare as tool

  args = tool.parser().parse_args(arguments)
  started = time.perf_counter()
  meta = tool.run(args)
  seconds = time.perf_counter() - started
  both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
  peak = max(resource.getrusage(who).ru_maxrss for who in both) / 1024
  print(json.dumps({'seconds': seconds, 'bytes': meta['counts']['bytes'], 'peak_mb': peak}))


def loading(args):
  """Yields the result {name: value} for each kind of rows: how long a run takes to plan them, and
  the tokens/s of its batches, made one after the other on one core, shuffled as in training. Of the
  corpus only the blocks that are mixed stay in memory, however small it is."""
  prepared.CACHE_TOKENS = 0
  sharding = jax.sharding.SingleDeviceSharding(jax.devices('cpu')[0])
  for name, fields in KINDS.items():
    fields = fields | {'data.train': args.corpus, 'batch_size': args.batch_size}
    fields |= {'data.seq_length': args.seq_length, 'corpus.eval_share': 0.0}
    if name in ('full', 'single, packed'):
      fields['loss.nsp_weight'] = 0.0
    given = [f'--config.{name}={value}' for name, value in fields.items()]
    config = config_lib.check(config_lib.load('configs/pretrain.py', given))
    task = TASKS[config.objective]
    config = task.resolve(config)
    tokenizer = run_tokenizer.of_run(config, None, lambda: ())
    spec = task.objective(config, tokenizer).spec(config.batch_size)
    started = time.perf_counter()
    source = task.sources(config, tokenizer, ('train',))['train']
    planned = time.perf_counter() - started
    limits = {'input_ids': tokenizer.vocab_size}
    batches = Batches(source, spec, sharding, limits=limits, seed=0)
    tokens_per_s, step = [], 0
    for _ in range(args.repeat + 1):
      tokens, started = 0, time.perf_counter()
      while time.perf_counter() - started < args.seconds:
        tokens += int((batches[step]['segment_ids'] > 0).sum())
        step += 1
      tokens_per_s.append(tokens / (time.perf_counter() - started))
    yield {
      'what': f'loading, {name} rows of {args.seq_length}',
      'tokens/s': round(statistics.median(tokens_per_s[1:])),
      'planned in s': round(planned, 2),
      'filled': round(source.fill, 4),
    }
