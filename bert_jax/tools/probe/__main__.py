"""Probes a run or released weights: losses of kinds of pieces, minimal pairs, layers, attention.

    python -m bert_jax.tools.probe --model W --conllu $DATA/ud/en_ewt-ud-dev.conllu \
        --pairs '$DATA/blimp/*.jsonl' [--checkpoint all] [--text de=german.txt]

W is a workdir, a Hugging Face folder, or another SRC of bert_jax.tools.convert. Results are written
to W/probe (or --out): STEP.json and table.txt; reports have what was found among the scores.
"""

import argparse
import contextlib
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import predict
from bert_jax.command_line import command_line, command_parser
from bert_jax.convert import from_huggingface, hub
from bert_jax.errors import InputError, log
from bert_jax.files import Path, write_sealed, write_whole
from bert_jax.predict.__main__ import keep_compiled
from bert_jax.tasks import TASKS
from bert_jax.text import files
from bert_jax.tools import arguments
from bert_jax.tools.probe import data as probe_data
from bert_jax.tools.probe import layers as probe_layers
from bert_jax.tools.probe import pieces as probe_pieces
from bert_jax.tools.probe.pieces import Pair
from bert_jax.workdir import checkpoint, contents

# {kind: the options that give what it is probed on}
KINDS = {
  'losses': '--conllu or --text',
  'pairs': '--pairs',
  'layers': 'more sentences of --conllu',
  'attention': '--conllu or --text',
}


def probe(
  model: predict.Model, args: argparse.Namespace, pairs: Sequence[Pair], counts: Counter[str]
) -> dict[str, Any]:
  """Probes a model as the arguments ask, {name: result}. counts: of the pairs left out."""
  counts, encoding, room = Counter(counts), args.text_encoding, model.limit - 2
  sentences = probe_data.read(
    model.tokenizer, args.conllu, args.text, args.sentences, room, counts, encoding
  )
  reference = []
  if args.reference:
    reference = probe_data.read(model.tokenizer, [], args.reference, 0, room, counts, encoding)
  tagged = [sentence for sentence in sentences if any(sentence.tags)]
  results, skipped = {}, {}
  for kind in args.only:
    try:
      if kind == 'losses' and sentences:
        results[kind] = probe_pieces.losses(model, sentences, reference, counts)
      elif kind == 'pairs' and pairs:
        results[kind] = probe_pieces.minimal_pairs(model, pairs, counts)
      elif kind == 'layers' and tagged:
        results[kind] = probe_layers.linear(model, tagged, args.words, counts)
      elif kind == 'attention' and sentences:
        results[kind] = probe_layers.attention(model, sentences[: args.attention_sentences])
    except InputError as error:  # this model has no such head
      skipped[kind] = str(error)
    if not results.get(kind) and kind not in skipped:
      results.pop(kind, None)
      skipped[kind] = f'nothing to probe with; give {KINDS[kind]}'
  probed_on = [(sentence.words, sentence.tags) for sentence in [*sentences, *reference]]
  return {
    'step': model.step,
    'settings': {
      'sentences': args.sentences,
      'words': args.words,
      'attention_sentences': args.attention_sentences,
      'data': zlib.crc32(repr([probed_on, pairs]).encode()),
    },
    'sentences': len(sentences),
    'tagged_sentences': len(tagged),
    **results,
    'counts': {kind: number for kind, number in counts.items() if number},
    'skipped': skipped,
  }


def table(results: Sequence[Mapping[str, Any]]) -> str:
  """A table with a row for each checkpoint, then the last checkpoint's by group."""
  import pandas as pd  # slow to import

  rows, losses = [], ('loss', 'unigram', 'bigram')
  for result in results:
    row = {'step': result['step']}
    if 'losses' in result:
      row |= {name: result['losses']['all'][name] for name in losses}
    if 'pairs' in result:
      row['pairs'] = result['pairs']['accuracy']
    if 'layers' in result:
      accuracy = result['layers']['accuracy']
      row |= {'best layer': int(np.argmax(accuracy)), 'its accuracy': max(accuracy)}
    rows.append(row)
  last, frames = results[-1], [pd.DataFrame(rows)]
  for name in ('by_pos', 'by_frequency', 'by_language'):
    groups = last.get('losses', {}).get(name, {})
    frames.append(pd.DataFrame([{name: key} | group for key, group in groups.items()]))
  for name in ('by_term', 'by_uid'):
    groups = last.get('pairs', {}).get(name, {})
    frames.append(pd.DataFrame(groups.items(), columns=[f'pairs {name}', 'accuracy']))
  if 'layers' in last:
    layers = pd.DataFrame({name: last['layers'][name] for name in ('accuracy', 'control')})
    frames.append(layers.reset_index(names='layer'))
    frames.append(pd.DataFrame([{x: last['layers'][x] for x in ('majority', 'of_the_word')}]))
  if 'attention' in last:
    heads = pd.DataFrame(last['attention'])
    looks = ['first', 'last', 'itself', 'before', 'after']
    best = heads.loc[[heads[name].idxmax() for name in looks], ['layer', 'head']]
    frames.append(best.assign(share=heads[looks].max().values, most=looks))
  shown = []
  for frame in frames:
    if len(frame):
      shown.append(frame.to_string(index=False, float_format='{:.3f}'.format))
  skipped = [f'not probed: {kind}: {why}' for kind, why in last['skipped'].items()]
  return '\n\n'.join(shown + skipped) + '\n'


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Probes the checkpoints that the arguments name, and writes what it found."""
  if not (args.conllu or args.text or args.pairs):
    raise InputError('there is nothing to probe with; give --conllu, --text or --pairs.')
  folder = hub.folder(args.model)
  is_released = from_huggingface.is_model(folder)
  if is_released and not args.out:
    raise InputError(f'{args.model} is a released model; name a folder for the results with --out.')
  steps: list[str | int] = [args.checkpoint]
  if args.checkpoint == 'all':
    with contextlib.closing(checkpoint.Checkpoints(folder)) as checkpoints:
      steps = list(checkpoints.steps())
    if not steps:
      raise InputError(f'{args.model} has no checkpoint yet; train it first.')
  if not is_released:
    config = contents.read_config(args.model)
    languages = TASKS[config.objective].card(config).languages
    for specs in (args.conllu, args.text, args.reference):
      parts = [pair for spec in specs for pair in files.parts(spec, languages)]
      specs[:] = [f'{name}={part}' if name else part for name, part in parts]
  out = Path(args.out or Path(args.model) / 'probe').expanduser()
  arguments.check_writable(out)
  counts: Counter[str] = Counter()
  pairs = probe_pieces.read_pairs(args.pairs, args.sentences, counts, args.text_encoding)
  results, damaged = [], ''
  for number, step in enumerate(steps, 1):
    log.info('checkpoint %s (%d of %d)', step, number, len(steps))
    try:
      model = predict.Model(args.model, step)
    except InputError as error:
      damaged = str(error)  # it was removed, or is damaged; the others are probed
      log.warning('checkpoint %s is left out: %s', step, damaged)
      continue
    result = {'model': Path(args.model).name} | probe(model, args, pairs, counts)
    results.append(result)
    out.mkdir(parents=True, exist_ok=True)
    write_sealed(out / f'{result["step"]}.json', result, indent=1)
  if not results:
    raise InputError(damaged)
  write_whole(out / 'table.txt', table(results))
  return results


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.probe', __doc__)
  add = parser.add_argument
  add('--model', required=True, metavar='W', help='workdir, or released weights')
  add('--checkpoint', default='latest', help='of a run: latest, best, a step, or all')
  add('--conllu', action='append', default=[], metavar='[LANGUAGE=]SPEC', help='tagged sentences')
  add('--text', action='append', default=[], metavar='[LANGUAGE=]SPEC', help='a sentence a line')
  more = dict(action='append', default=[], metavar='SPEC')
  counted = 'text whose unigrams and bigrams are the baselines; default: half of the sentences'
  add('--reference', help=counted, **more)
  add('--pairs', help="minimal pairs, BLiMP's JSONL", **more)
  add('--text-encoding', default='', help='of files that are not UTF-8; default: as letters tell')
  add('--sentences', type=int, default=500, help='of each SPEC, and pairs of each file; 0: all')
  add('--words', type=int, default=6000, help='that a linear probe is trained on')
  add('--attention-sentences', type=int, default=100, help='that attention is averaged over')
  add('--only', default=','.join(KINDS), metavar='A,B', help='default: all of these')
  add('--out', default='', help='folder of the results; default: MODEL/probe')
  args = parser.parse_args(argv)
  with command_line():
    args.only = args.only.split(',')
    for kind in args.only:
      if kind not in KINDS:
        raise InputError(f'--only {kind} is not known; use some of {", ".join(KINDS)}.')
    for name, least in (('sentences', 0), ('words', 1), ('attention_sentences', 1)):
      arguments.check_bounds(args, **{name: (least, math.inf)})
    keep_compiled()
    results = run(args)
    for kind, number in results[-1]['counts'].items():
      log.info('%s %s', f'{number:,}', kind)
    print(table(results), end='')


if __name__ == '__main__':
  main()
