"""Measures how soon commands answer, and what training holds and stops for; see tools/bench.py."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bert_jax import tokenizers
from bert_jax.errors import InputError
from bert_jax.tools import bench_peers as peers

WORDS = 20_000  # in the text that is trained on, which takes no time to read
VOCABULARY = 30_522
BASE = 'configs/pretrain.py:size=base', '--config.model.dtype=float32', '--config.batch_size=8'
SMALL = 'configs/pretrain.py:runlocal', '--config.steps=20', '--config.eval.every=0'
MODULE = {name: [sys.executable, '-m', f'bert_jax.{name}'] for name in (
  'train', 'evaluate', 'predict', 'tools.bench')}  # fmt: skip


def start(args):
  """Yields the seconds from a command to its first step, or to its end, the first time and with
  what was compiled then."""
  with tempfile.TemporaryDirectory() as folder:
    text, env = _text(folder), dict(os.environ, JAX_COMPILATION_CACHE_DIR=f'{folder}/compiled')
    run = lambda command: subprocess.run(
      command, env=env, input=b'hello\n', stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
      check=False,
    )  # fmt: skip

    def ends(command):
      started, done = time.perf_counter(), run(command)
      if done.returncode:
        raise InputError(f'{" ".join(command[1:])} failed: {done.stderr.decode()[-500:]}')
      return time.perf_counter() - started

    for what, options in (('tiny', SMALL), ('base, 8 x 128', BASE)):
      command = [*MODULE['train'], '--config', *options, *text]
      times = [
        _to_first_step(command, Path(folder) / f'{what}-{n}', env) for n in range(1 + args.repeat)
      ]
      yield _times(f'train, {what}: to the first step, s', times)
    small = f'{folder}/small'
    train = [*MODULE['train'], '--config', *SMALL, *text, '--workdir', small]
    ends(train)
    commands = {
      'train, of a run that has ended, s': train,
      'evaluate, of a small run, s': [*MODULE['evaluate'], '--workdir', small],
    }
    if peers.installed(peers.SOURCE.partition('/')[0]):
      predict = [*MODULE['predict'], '--model', peers.SOURCE, '--task', 'embed']
      commands['predict, 6 layers, s'] = predict
    for what, command in commands.items():
      yield _times(what, [ends(command) for _ in range(1 + args.repeat)])


def _times(what, times):
  return {
    'what': what,
    'first time': round(times[0], 2),
    'compiled before': round(statistics.median(times[1:]), 2),
  }


def _text(folder):
  """The options of a config that train on a little text of made-up words, as many as BERT has."""
  draws, folder = np.random.default_rng(0), Path(folder)
  words = [f'word{n}' for n in range(VOCABULARY - len(tokenizers.RESERVED) - 1)]
  drawn = draws.choice(words, (WORDS // 10, 10))
  lines = [' '.join(line) + ' .' + '\n' * (k % 20 == 0) for k, line in enumerate(drawn)]
  (folder / 'text.txt').write_text('\n'.join(lines))
  (folder / 'vocab.txt').write_text('\n'.join([*tokenizers.RESERVED, '.', *words]) + '\n')
  fields = {'data.train': folder / 'text.txt', 'tokenizer.path': folder / 'vocab.txt'}
  fields |= {'model.vocab_size': VOCABULARY, 'log.every': 1, 'corpus.eval_share': 0.1}
  return [f'--config.{name}={value}' for name, value in fields.items()]


def _to_first_step(command, workdir, env):
  """Seconds from a command to the metrics of its first step; then it is stopped."""
  started, lines = time.perf_counter(), workdir / 'metrics.jsonl'
  command = [*command, f'--workdir={workdir}']
  with tempfile.TemporaryFile() as log:
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    while not (lines.exists() and lines.stat().st_size):
      if process.poll() is not None:
        log.seek(0)
        raise InputError(f'{" ".join(command[1:])} ended: {log.read().decode()[-500:]}')
      time.sleep(0.01)
    out = time.perf_counter() - started
    process.kill()
    process.wait()
  return out


def memory(args):
  """Yields what a process that trains holds at most, and for how long a step waits for a save."""
  options = [f'--size={args.size}', f'--steps={args.repeat + 1}']
  command = [*MODULE['tools.bench'], '_memory', *options]
  run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
  if run.returncode:
    raise InputError('the training failed; see above')
  result = json.loads(run.stdout.splitlines()[-1])
  yield {'what': f'training {args.size}, 8 x 128, float32', **result}


def memory_once(arguments):
  """Trains in this process and prints what it held at most and how long saving took."""
  import argparse
  import resource

  import jax

  from bert_jax import checkpoint, train
  from bert_jax import config as config_lib

  parser = argparse.ArgumentParser()
  parser.add_argument('--size')
  parser.add_argument('--steps', type=int)
  args = parser.parse_args(arguments)
  stalls, save = [], checkpoint.Checkpoints.save

  def timed(*given):
    started = time.perf_counter()
    save(*given)
    stalls.append(time.perf_counter() - started)

  checkpoint.Checkpoints.save = timed
  with tempfile.TemporaryDirectory() as folder:
    options = [*BASE[1:], *_text(folder), f'--config.steps={args.steps}']
    options += ['--config.checkpoint.every=1', '--config.optimizer.warmup=0.1']
    config = config_lib.load(f'configs/pretrain.py:size={args.size}', options)
    state, _ = train.train(config, f'{folder}/W')
    saved = sum(x.nbytes for x in jax.tree.leaves(state))
  most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  print(json.dumps({
    'GiB at most': round(most, 2),
    'GB of a checkpoint': round(saved / 1e9, 2),
    's a save stops it': round(max(stalls), 3),
  }))  # fmt: skip
