"""Probes a run or released weights: losses of kinds of pieces, minimal pairs, layers, attention.

    python -m bert_jax.tools.probe --model W --conllu $DATA/ud/en_ewt-ud-dev.conllu \
        --pairs 'blimp=$DATA/blimp/*.jsonl' [--checkpoint all] [--text de=german.txt]

W is a workdir, a Hugging Face folder, or another SRC of bert_jax.tools.convert. Results are written
to W/probe (or --out): STEP.json, table.txt, and STEP-pairs.jsonl with the choice in each pair.
"""

import argparse
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax import predict
from bert_jax.command_line import CHECKPOINT, command_line, command_parser
from bert_jax.convert import from_huggingface, hub
from bert_jax.copies import keep_compiled
from bert_jax.errors import InputError, log
from bert_jax.files import Path, write_sealed, write_whole
from bert_jax.tools import arguments
from bert_jax.tools.probe import data as probe_data
from bert_jax.tools.probe import layers as probe_layers
from bert_jax.tools.probe import pieces as probe_pieces
from bert_jax.tools.probe.data import Sentence
from bert_jax.tools.probe.pieces import Pair
from bert_jax.workdir import checkpoint

if TYPE_CHECKING:
  from pandas import DataFrame

ATTENTION_SENTENCES = 100  # that attention is averaged over
PAIRS = 'pairs', 'pairs_within_words'
# {kind: the options that give what it is probed on}
KINDS = {
  'losses': '--conllu or --text',
  'pairs': '--pairs',
  'pairs_within_words': '--pairs',
  'layers': 'more sentences of --conllu',
  'attention': '--conllu or --text',
}


def probe(
  model: predict.Model,
  args: argparse.Namespace,
  pairs: Sequence[Pair],
  counts: Counter[str],
) -> dict[str, Any]:
  """Probes a model as the arguments ask, {name: result}. counts: of the pairs left out."""
  counts = Counter(counts)
  sentences = probe_data.read(
    model.tokenizer,
    args.conllu,
    args.text,
    most=args.sentences,
    room=model.limit - 2,
    counts=counts,
  )
  results, skipped = {}, {}
  for kind in args.only:
    try:
      result = result_of(kind, model, sentences, pairs, counts)
    except InputError as error:  # this model has no such head
      skipped[kind] = str(error)
      continue
    if result:
      results[kind] = result
    else:
      skipped[kind] = f'nothing to probe with; give {KINDS[kind]}'
  return {
    'step': model.step,
    'sentences': len(sentences),
    **results,
    'counts': {kind: number for kind, number in counts.items() if number},
    'skipped': skipped,
  }


def result_of(
  kind: str,
  model: predict.Model,
  sentences: Sequence[Sentence],
  pairs: Sequence[Pair],
  counts: Counter[str],
) -> Any:
  """The result of one of KINDS; empty if there is nothing to probe with."""
  if kind == 'losses' and sentences:
    return probe_pieces.losses(model, sentences, counts)
  if kind == 'pairs' and pairs:
    return probe_pieces.minimal_pairs(model, pairs, counts)
  if kind == 'pairs_within_words' and pairs:
    return probe_pieces.minimal_pairs(model, pairs, counts, within_words=True)
  if kind == 'layers':
    tagged = [sentence for sentence in sentences if any(sentence.tags)]
    return probe_layers.linear(model, tagged)
  if kind == 'attention' and sentences:
    return probe_layers.attention(model, sentences[:ATTENTION_SENTENCES])
  return None


def table(results: Sequence[Mapping[str, Any]]) -> str:
  """A table with a row for each checkpoint, then the last checkpoint's by group."""
  import pandas as pd  # slow to import

  rows = []
  for result in results:
    row = {'step': result['step']}
    if 'losses' in result:
      row |= result['losses']['all']
    for kind in PAIRS:
      if kind in result:
        row[kind] = result[kind]['accuracy']
        for name, scores in result[kind]['by_group'].items():
          row[f'{name} of {kind}'] = scores['accuracy']
    if 'layers' in result:
      accuracy = result['layers']['accuracy']
      row['best layer'] = int(np.argmax(accuracy))
      row['its accuracy'] = max(accuracy)
    rows.append(row)
  parts = []
  for frame in [pd.DataFrame(rows), *groups(results[-1])]:
    if len(frame):
      parts.append(frame.to_string(index=False, float_format='{:.3f}'.format))
  for kind, why in results[-1]['skipped'].items():
    parts.append(f'not probed: {kind}: {why}')
  return '\n\n'.join(parts) + '\n'


def groups(result: Mapping[str, Any]) -> Iterator['DataFrame']:
  """Yields the tables of one checkpoint: a row for each group, layer or kind of head."""
  import pandas as pd

  for name in ('by_pos', 'by_frequency', 'by_language'):
    of_groups = result.get('losses', {}).get(name, {})
    rows = []
    for key, group in of_groups.items():
      rows.append({name: key} | group)
    yield pd.DataFrame(rows)
  for kind in PAIRS:
    for name in ('by_group', 'by_field', 'by_term', 'by_uid'):
      of_groups = result.get(kind, {}).get(name, {})
      yield pd.DataFrame.from_dict(of_groups, 'index').reset_index(names=f'{kind} {name}')
  if 'layers' in result:
    layers = result['layers']
    frame = pd.DataFrame({'accuracy': layers['accuracy'], 'control': layers['control']})
    yield frame.reset_index(names='layer')
    guesses = {'majority': layers['majority'], 'of_the_word': layers['of_the_word']}
    yield pd.DataFrame([guesses])
  if 'attention' in result:
    heads = pd.DataFrame(result['attention'])
    rows = []
    for name in ('first', 'last', 'itself', 'before', 'after'):
      head = heads.loc[heads[name].idxmax()]
      row = {'layer': int(head['layer']), 'head': int(head['head'])}
      rows.append(row | {'share': head[name], 'most': name})
    yield pd.DataFrame(rows)


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Probes the checkpoints that the arguments name, and writes what it found."""
  if not (args.conllu or args.text or args.pairs):
    raise InputError('there is nothing to probe with; give --conllu, --text or --pairs.')
  folder = hub.folder(args.model)
  if from_huggingface.is_model(folder) and not args.out:
    raise InputError(f'{args.model} is a released model; name a folder for the results with --out.')
  steps: list[str | int] = [args.checkpoint]
  if args.checkpoint == 'all':
    with contextlib.closing(checkpoint.Checkpoints(folder)) as checkpoints:
      steps = list(checkpoints.steps())
    if not steps:
      raise InputError(f'{args.model} has no checkpoint yet; train it first.')
  out = Path(args.out or Path(args.model) / 'probe').expanduser()
  arguments.check_writable(out)
  counts: Counter[str] = Counter()
  pairs = probe_pieces.read_pairs(args.pairs, args.sentences, counts)
  results = []
  for number, step in enumerate(steps, 1):
    model = predict.Model(args.model, step)
    log.info('checkpoint %d (%d of %d)', model.step, number, len(steps))
    result: dict[str, Any] = {'model': Path(args.model).name}
    result |= probe(model, args, pairs, counts)
    results.append(result)
    out.mkdir(parents=True, exist_ok=True)
    for kind in PAIRS:
      if kind in result:
        items = result[kind].pop('items').to_json(orient='records', lines=True)
        write_whole(out / f'{result["step"]}-{kind}.jsonl', items)
    write_sealed(out / f'{result["step"]}.json', result, indent=1)
  write_whole(out / 'table.txt', table(results))
  return results


def main(argv: Sequence[str] | None = None) -> None:
  parser = command_parser('tools.probe', __doc__)
  add = parser.add_argument
  add('--model', required=True, metavar='W', help='workdir, or released weights')
  add('--checkpoint', default='', help=f'all, {CHECKPOINT}')
  add('--conllu', action='append', default=[], metavar='[LANGUAGE=]SPEC', help='tagged sentences')
  add('--text', action='append', default=[], metavar='[LANGUAGE=]SPEC', help='a sentence a line')
  add('--pairs', action='append', default=[], metavar='[NAME=]SPEC', help="pairs, BLiMP's JSONL")
  add('--sentences', type=int, default=500, help='of each SPEC, and pairs of each file; 0: all')
  usual = 'losses,pairs,layers,attention'
  add('--only', default=usual, metavar='A,B', help=f'some of {", ".join(KINDS)}; default: {usual}')
  add('--out', default='', help='folder of the results; default: MODEL/probe')
  args = parser.parse_args(argv)
  with command_line():
    args.only = args.only.split(',')
    for kind in args.only:
      if kind not in KINDS:
        raise InputError(f'--only {kind} is not known; use some of {", ".join(KINDS)}.')
    keep_compiled()
    results = run(args)
    for kind, number in results[-1]['counts'].items():
      log.info('%s %s', f'{number:,}', kind)
    print(table(results), end='')


if __name__ == '__main__':
  main()
