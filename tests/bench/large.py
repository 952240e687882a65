"""Measures how a training begins on a corpus of any size, which is simulated."""

import tempfile
from pathlib import Path

from bench import peers
from bench.start import text_options
from simulated_corpus import begun, simulated

from bert_jax import tokenizers

SIZES = {'10 MB': 10, '1 GB': 1000, '1 TB': 1_000_000}  # {text: blocks of 1 MB of it, about}


def planning(args):
  """Yields, for corpora of simulated sizes, the seconds in which a process plans the rows of a
  training and goes on at a late step, and its memory."""
  for kind in ('nsp', 'full'):
    smallest = None
    for size, number in SIZES.items():
      given = {'number': number, 'kind': kind}
      runs = [peers.results_of(peers.in_process('_planning', given)) for _ in range(args.repeat)]
      seconds, memory = ([run[0][name] for run in runs] for name in ('s', 'GiB'))
      smallest = smallest or min(seconds)
      yield {
        'what': f'planning, {size}, {kind} rows',
        **peers.spread('s', seconds),
        **peers.spread('s more than for 10 MB', [x - smallest for x in seconds]),
        **peers.spread('GiB at most', memory),
      }


def planning_once(given):
  """What `planning` measures in this process."""
  with tempfile.TemporaryDirectory() as folder:
    text_options(folder)
    tokenizer = tokenizers.load(Path(folder) / 'vocab.txt')
    facts = simulated(Path(folder) / 'D', given['number'])
    seconds = peers.seconds(lambda: begun(Path(folder) / 'D', facts, tokenizer, given['kind']))
  yield {'s': seconds, 'GiB': peers.peak_memory() / 2**30}
