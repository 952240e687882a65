"""Measures how fast text is prepared, a prepared corpus is read and a training on it begins."""

import contextlib
import json
import socket
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from bench import peers

from bert_jax import config as config_lib
from bert_jax import hosts, sharding, train
from bert_jax.corpus import store
from bert_jax.errors import InputError
from bert_jax.rows.batches import Batches
from bert_jax.tasks import TASKS
from bert_jax.tokenizers import run_tokenizer
from bert_jax.workdir import provenance

KINDS = {  # {kind of rows: fields of configs/pretrain.py}
  'full': {'corpus.rows': 'full'},
  'single, packed': {'corpus.rows': 'single', 'data.examples_per_row': 8},
  'nsp': {'corpus.rows': 'nsp'},
  'sop': {'corpus.rows': 'sop'},
}
LATE = 10**6  # a step at which a run goes on


def prepare(args):
  """Yields the result {name: value} for each number of processes."""
  alone = {}
  for n in sorted({1, args.processes}):
    rounds = []
    for _ in range(args.repeat + 1):
      with tempfile.TemporaryDirectory() as folder:
        given = ['--vocab', args.vocab, '--out', f'{folder}/D', '--processes', str(n), *args.rest]
        given += [x for spec in args.input for x in ('--input', spec)]
        rounds += peers.results_of(peers.in_process('_prepare', given))
    speeds = [x['MB/s'] for x in rounds[1:]]
    alone = alone or peers.spread('', speeds)
    yield {
      'what': f'prepare, {n} process' + 'es' * (n > 1),
      **peers.spread('MB/s', speeds),
      'share of ideal speed-up': round(peers.spread('', speeds)[''] / alone[''] / n, 3),
      **peers.spread('peak MiB of a process', [x['peak MiB'] for x in rounds[1:]]),
    }


def prepare_once(given):
  """One run of tools/prepare, timed without its imports: its speed and memory."""
  from bert_jax.tools.prepare import __main__ as tool

  args = tool.parser().parse_args(given)
  started = time.perf_counter()
  meta = tool.run(args)
  speed = meta['counts']['bytes'] / 1e6 / (time.perf_counter() - started)
  yield {'MB/s': speed, 'peak MiB': peers.peak_memory() / 2**20}


def loading(args):
  """Yields the result {name: value} for each kind of rows, on one core and on several: how long a
  run takes to plan them and to go on at a late step, and the tokens/s of its batches, shuffled as
  in training. As in training, a process makes one batch after the other, and on several cores there
  are several processes that are one run, each with its part of the rows (launch/local)."""
  for n in sorted({1, min(args.processes, provenance.cores())}):
    with contextlib.closing(socket.create_server(('127.0.0.1', 0))) as free:
      address = f'127.0.0.1:{free.getsockname()[1]}'
    run = {hosts.ADDRESS: address, hosts.COUNT: str(n)} if n > 1 else {}
    names = 'corpus', 'seq_length', 'batch_size', 'seconds', 'repeat'
    settings, run = {name: getattr(args, name) for name in names}, run | {'JAX_PLATFORMS': 'cpu'}
    each = [run | {hosts.INDEX: str(k)} for k in range(n)]
    processes = [peers.in_process('_loading', settings, **env) for env in each]
    with peers.killed(processes):
      results = [*map(peers.results_of, processes)]
    for parts in zip(*results, strict=True):
      speeds = np.sum([x['tokens/s'] for x in parts], axis=0).tolist()
      times = {name: max(x[name] for x in parts) for name in ('planned in s', 'resumed in s')}
      yield {
        'what': f'loading, {"one core" if n == 1 else "several cores"}, {parts[0]["what"]}',
        'cores': n,
        **peers.spread('tokens/s', speeds),
        **peers.spread('tokens/s a core', [x / n for x in speeds]),
        **times,
        'filled': parts[0]['filled'],
      }


def loading_once(settings):
  """What `loading` measures in this process. Of the corpus little more than the blocks that are
  mixed stays in memory, however small it is."""
  hosts.join()
  seq_length, rows = settings['seq_length'], settings['batch_size'] * jax.process_count()
  where = sharding.batch_sharding(sharding.make_mesh(-1, 1, 1))
  for name, fields in KINDS.items():
    config = _config(settings['corpus'], seq_length, rows, 'base', fields)
    task = TASKS[config.objective]
    config = task.resolve(config)
    tokenizer = run_tokenizer.load_or_train(config, None, lambda: ())
    spec = task.objective(config, tokenizer).spec(config.batch_size)
    started = time.perf_counter()
    source = task.sources(config, tokenizer, ('train',))['train']
    batches = Batches(source, spec, where, limits={'input_ids': tokenizer.vocab_size}, seed=0)
    planned = time.perf_counter()
    batches[LATE]
    resumed = time.perf_counter()
    tokens_per_s, step = [], 0
    for _ in range(settings['repeat'] + 1):
      hosts.wait(name)
      tokens, begun = 0, time.perf_counter()
      while time.perf_counter() - begun < settings['seconds']:
        parts = batches[step]['segment_ids'].addressable_shards
        tokens += sum(int((np.asarray(part.data) > 0).sum()) for part in parts)
        step += 1
      tokens_per_s.append(tokens / (time.perf_counter() - begun))
    yield {
      'what': f'{name} rows of {seq_length}',
      'tokens/s': tokens_per_s[1:],
      'planned in s': round(planned - started, 2),
      'resumed in s': round(resumed - planned, 2),
      'filled': round(source.fill, 4),
    }


def _config(corpus, seq_length, rows, size, fields):
  """The config of pre-training on a prepared corpus by a kind of rows. fields: KINDS has them."""
  if not store.is_prepared(corpus):
    raise InputError(f'--corpus {corpus} is no folder that bert_jax.tools.prepare has written.')
  fields = {'corpus.eval_share': 0.0} | fields | {'data.train': corpus, 'batch_size': rows}
  fields |= {'data.seq_length': seq_length}
  if fields['corpus.rows'] in ('full', 'single'):
    fields['loss.nsp_weight'] = 0.0
  given = [f'--config.{name}={value}' for name, value in fields.items()]
  return config_lib.check(config_lib.load(f'configs/pretrain.py:size={size}', given))


def waiting(args):
  """Yields the share of the time for which a training of a model so small that its steps are short
  waits for its batches, for each kind of rows: between two lines of its metrics, of which the first
  does not count."""
  parts = args.repeat + 1
  steps = max(1, args.steps // parts) * parts
  more = {
    'steps': steps,
    'log.every': steps // parts,
    'log.tensorboard': False,
    'model.dtype': 'float32',
    'optimizer.warmup': 0.1,
    'eval.every': 0,
  }
  for name, fields in KINDS.items():
    config = _config(args.corpus, args.seq_length, args.batch_size, args.size, fields | more)
    lines = training_lines(config)
    yield {
      'what': f'waiting, {args.size}, {name} rows, {args.batch_size} x {args.seq_length}',
      **peers.spread('share of the time', [line['data_wait'] for line in lines]),
      **peers.spread('tokens/s', [line['tokens_per_s'] for line in lines]),
    }


def training_lines(config):
  """The lines of the metrics of a training, but for the first, which warms up."""
  with tempfile.TemporaryDirectory() as folder:
    train.train(config, folder)
    lines = [json.loads(x) for x in (Path(folder) / 'metrics.jsonl').read_text().splitlines()]
  return [line for line in lines if line['split'] == 'train'][1:]
