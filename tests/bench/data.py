"""Measures how fast batches are made of a prepared corpus."""

import json
import tempfile
import time
from pathlib import Path

import numpy as np
from bench import peers

from bert_jax import config as config_lib
from bert_jax import sharding, train
from bert_jax.corpus import prepared
from bert_jax.errors import InputError
from bert_jax.rows.batches import Batches
from bert_jax.tasks import TASKS
from bert_jax.tokenizers import run_tokenizer

KINDS = {  # {kind of rows: fields of configs/pretrain.py}
  'full': {'corpus.rows': 'full', 'loss.nsp_weight': 0.0},
  'single, packed': {
    'corpus.rows': 'single',
    'data.examples_per_row': 8,
    'loss.nsp_weight': 0.0,
  },
  'nsp': {'corpus.rows': 'nsp'},
  'sop': {'corpus.rows': 'sop'},
}
LATE = 10**6  # a step at which a run goes on


def loading(args):
  """Yields the result {name: value} for each kind of rows: how long a run takes to plan them and to
  go on at a late step, and the tokens/s of its batches, shuffled as in training, made one after the
  other by one process. Of the corpus little more than the blocks that are mixed stays in memory,
  however small it is."""
  if not prepared.is_prepared(args.corpus):
    raise InputError(f'--corpus {args.corpus} is no folder that tools.prepare has written.')
  prepared.CACHE_TOKENS = 10_000_000
  where = sharding.batch_sharding(sharding.make_mesh(-1, 1, 1))
  common = {'corpus.eval_share': 0.0, 'data.train': args.corpus, 'batch_size': args.batch_size}
  for name, fields in KINDS.items():
    fields = common | {'data.seq_length': args.seq_length} | fields
    given = [f'--config.{field}={value}' for field, value in fields.items()]
    config = config_lib.check(config_lib.load('configs/pretrain.py:size=base', given))
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
    for _ in range(args.repeat + 1):
      tokens, begun = 0, time.perf_counter()
      while time.perf_counter() - begun < args.seconds:
        tokens += int((np.asarray(batches[step]['segment_ids']) > 0).sum())
        step += 1
      tokens_per_s.append(tokens / (time.perf_counter() - begun))
    yield {
      'what': f'loading, {name} rows of {args.seq_length}',
      **peers.spread('tokens/s', tokens_per_s[1:]),
      'planned in s': round(planned - started, 2),
      'resumed in s': round(resumed - planned, 2),
      'filled': round(source.fill, 4),
    }


def training_lines(config):
  """The lines of the metrics of a training, but for the first, which warms up."""
  with tempfile.TemporaryDirectory() as folder:
    train.train(config, folder)
    lines = [json.loads(x) for x in (Path(folder) / 'metrics.jsonl').read_text().splitlines()]
  return [line for line in lines if line['split'] == 'train'][1:]
