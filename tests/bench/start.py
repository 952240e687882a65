"""Measures how soon commands answer."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bench import peers

from bert_jax import tokenizers
from bert_jax.errors import InputError

WORDS = 20_000  # in the text that is trained on, which takes no time to read
VOCABULARY = 30_522
BASE = 'configs/pretrain.py:size=base', '--config.model.dtype=float32', '--config.batch_size=8'
SMALL = 'configs/pretrain.py:runlocal', '--config.steps=20', '--config.eval.every=0'
PROGRAMS = ('train', 'evaluate', 'predict')
MODULE = {name: [sys.executable, '-m', f'bert_jax.{name}'] for name in PROGRAMS}


def start(args):
  """Yields the seconds from a command to its first step, or to its end, the first time and with
  what was compiled then."""
  with tempfile.TemporaryDirectory() as folder:
    text, env = text_options(folder), os.environ | {'JAX_COMPILATION_CACHE_DIR': f'{folder}/XLA'}
    for what, options in (('tiny', SMALL), ('base, 8 x 128', BASE)):
      command = [*MODULE['train'], '--config', *options, *text]
      workdirs = [Path(folder) / f'{what}-{n}' for n in range(1 + args.repeat)]
      times = [_to_first_step(command, workdir, env) for workdir in workdirs]
      yield _times(f'train, {what}: to the first step, s', times)
    small = f'{folder}/small'
    train = [*MODULE['train'], '--config', *SMALL, *text, '--workdir', small]
    _ends(train, env)
    commands = {
      'train, of a run that has ended, s': train,
      'evaluate, of a small run, s': [*MODULE['evaluate'], '--workdir', small],
    }
    if peers.installed(peers.SOURCE.partition('/')[0]):
      predict = [*MODULE['predict'], '--model', peers.SOURCE, '--task', 'embed']
      commands['predict, 6 layers, s'] = predict
    for what, command in commands.items():
      yield _times(what, [_ends(command, env) for _ in range(1 + args.repeat)])


def _ends(command, env):
  """Seconds that a command takes, which is given a line to read."""
  started = time.perf_counter()
  done = subprocess.run(command, env=env, input=b'hello\n', capture_output=True, check=False)
  if done.returncode:
    raise InputError(f'{" ".join(command[1:])} failed: {done.stderr.decode()[-500:]}')
  return time.perf_counter() - started


def _times(what, times):
  first = {'what': what, 'first time': round(times[0], 2)}
  return first | peers.spread('compiled before', times[1:])


def text_options(folder):
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
    with process, peers.killed([process]):
      while not (lines.exists() and lines.stat().st_size):
        if process.poll() is not None:
          log.seek(0)
          raise InputError(f'{" ".join(command[1:])} ended: {log.read().decode()[-500:]}')
        time.sleep(0.01)
      return time.perf_counter() - started
