"""Probes a run or released weights: losses of kinds of pieces, minimal pairs, layers, attention.

    python -m bert_jax.tools.probe --model W --conllu $DATA/ud/en_ewt-ud-dev.conllu \
        --pairs '$DATA/blimp/*.jsonl' [--checkpoint all] [--text de=german.txt]

W is a workdir, a Hugging Face folder, or another SRC of bert_jax.tools.convert. Results are written
to W/probe (or --out): STEP.json and table.txt. --checkpoint all probes what has not been probed. Of
a folder of runs (a sweep) all are probed; reports have what was found among the scores.
"""

import argparse
import contextlib
import copy
import json
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax import hosts, predict
from bert_jax.command_line import aligned, command_line, command_parser
from bert_jax.convert import from_huggingface, hub
from bert_jax.errors import InputError, log, printable
from bert_jax.files import Path, read_text, write_sealed, write_whole
from bert_jax.predict.__main__ import keep_compiled
from bert_jax.tasks import TASKS
from bert_jax.text import files
from bert_jax.tools import arguments
from bert_jax.tools.probe import data as probe_data
from bert_jax.tools.probe import layers as probe_layers
from bert_jax.tools.probe import pieces as probe_pieces
from bert_jax.tools.probe.pieces import Pair
from bert_jax.tools.report import panels as report
from bert_jax.workdir import checkpoint, contents, records, saved_steps

KINDS = ('losses', 'pairs', 'layers', 'attention')


def probe(
  model: predict.Model, args: argparse.Namespace, pairs: Sequence[Pair], counts: Counter[str]
) -> dict[str, Any]:
  """Probes a model as the arguments ask, {name: result}. counts: of the pairs left out."""
  counts, skipped = Counter(counts), {}
  room, pieces = model.limit - 2, model.tokenizer
  more = room, counts, args.text_encoding
  read = lambda conllu, text, most: probe_data.read(pieces, conllu, text, most, *more)
  sentences = read(args.conllu, args.text, args.sentences)
  reference = read([], args.reference, 0) if args.reference else []
  tagged = [s for s in sentences if any(s.tags)]
  some = sentences[: args.attention_sentences]
  # {kind: (what it is probed on, the option that gives it, the probe, its other arguments)}
  kinds: dict[str, Any] = {
    'losses': (sentences, '--conllu or --text', probe_pieces.losses, reference, counts),
    'pairs': (pairs, '--pairs', probe_pieces.minimal_pairs, counts),
    'layers': (tagged, 'more sentences of --conllu', probe_layers.linear, args.words, counts),
    'attention': (some, '--conllu or --text', probe_layers.attention),
  }
  out: dict[str, Any] = {
    'step': model.step,
    'sentences': len(sentences),
    'tagged_sentences': len(tagged),
  }
  for kind in args.only:
    given, option, function, *more = kinds[kind]
    try:
      if result := function(model, given, *more) if given else {}:
        out[kind] = result
      else:
        skipped[kind] = f'nothing to probe with; give {option}'
    except InputError as error:  # this model has no such head
      skipped[kind] = str(error)
  return out | {'counts': {k: n for k, n in counts.items() if n}, 'skipped': skipped}


def settings_of(args: argparse.Namespace, pairs: Sequence[Pair]) -> dict[str, Any]:
  """The settings on which a result depends; files count by name, size and time of modification."""
  stats = []
  for spec in (*args.conllu, *args.text, *args.reference):
    for _, part in files.parts(spec):
      paths = [] if files.is_named(part) else files.expand(part)
      stats += [part, *((str(x), x.stat().st_size, x.stat().st_mtime_ns) for x in paths)]
  names = 'conllu', 'text', 'reference', 'pairs', 'text_encoding'
  names += 'sentences', 'words', 'attention_sentences', 'only'
  out = {name: getattr(args, name) for name in names}
  return json.loads(json.dumps(out | {'data': zlib.crc32(repr([*stats, pairs]).encode())}))


def weights_of(model: str, step: str | int) -> int:
  """Identifies the weights of a checkpoint, which may be replaced by a later or another run's."""
  path = Path(model).expanduser() / 'checkpoints' / str(step) / 'meta' / 'metadata'
  return path.stat().st_mtime_ns if path.is_file() else 0


def table(results: Sequence[Mapping[str, Any]]) -> list[str]:
  """The lines of a table with a row for each checkpoint, then the last checkpoint's by group."""
  losses, last = ('loss', 'unigram', 'bigram'), results[-1]
  rows: list[list] = [['step', *losses, 'pairs', 'best layer', 'its accuracy']]
  for result in results:
    every = result.get('losses', {}).get('all', {})
    accuracy = result.get('layers', {}).get('accuracy', [])
    best = max(range(len(accuracy)), key=accuracy.__getitem__, default='')
    row = [result['step'], *map(every.get, losses), result.get('pairs', {}).get('accuracy')]
    rows.append([*row, best, max(accuracy, default=None)])
  parts = [rows]
  for name in ('by_pos', 'by_frequency', 'by_language'):
    groups = last.get('losses', {}).get(name, {}).items()
    rows = [[key, f'{g["pieces"]:,}', *map(g.get, losses)] for key, g in groups]
    parts.append([[name.replace('_', ' '), 'pieces', *losses], *rows])
  for name in ('by_term', 'by_uid'):
    groups = last.get('pairs', {}).get(name, {})
    parts.append([[f'pairs {name.replace("_", " ")}', 'accuracy'], *map(list, groups.items())])
  if layers := last.get('layers'):
    pairs = enumerate(zip(layers['accuracy'], layers['control']))
    rows = [['layer', 'part of speech', 'control'], *([n, *both] for n, both in pairs)]
    usual = ["the word's usual tag", layers['of_the_word'], '']
    parts.append([*rows, ['majority', layers['majority'], ''], usual])
  if heads := last.get('attention'):
    names = 'first', 'last', 'itself', 'before', 'after'
    most = [(name, max(heads, key=lambda head, name=name: head[name])) for name in names]
    rows = [[name, head['layer'], head['head'], head[name]] for name, head in most]
    parts.append([['attends most to', 'layer', 'head', 'share'], *rows])
  shown = lambda x: '' if x is None else f'{x:.3f}' if isinstance(x, float) else str(x)
  texts = (aligned([list(map(shown, row)) for row in rows]) for rows in parts if len(rows) > 1)
  lines = [line for part in texts for line in ('', *part)]
  return lines[1:] + [f'\nnot probed: {kind}: {why}' for kind, why in last['skipped'].items()]


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
  if not (args.conllu or args.text or args.pairs):
    raise InputError('there is nothing to probe with; give --conllu, --text or --pairs.')
  folder, results, failed = hub.folder(args.model), [], {}
  released = from_huggingface.is_model(folder)
  if released and not args.out:
    raise InputError(f'{args.model} is a released model; name a folder for the results with --out.')
  steps: list[str | int] = ['latest' if args.checkpoint == 'all' else args.checkpoint]
  if args.checkpoint == 'all' and not released:
    with contextlib.closing(checkpoint.Checkpoints(folder)) as checkpoints:
      steps = [*checkpoints.steps()]
    if not steps:
      raise InputError(f'{args.model} has no checkpoint yet; train it first.')
  config = None if released else contents.read_config(args.model)
  languages = TASKS[config.objective].card(config).languages if config else ()
  for specs in (args.conllu, args.text, args.reference):
    if not languages and any('{language}' in spec for spec in specs):
      raise InputError('{language} stands for languages, and this model names none; give de=FILE.')
    parts = [pair for spec in specs for pair in files.parts(spec, languages)]
    specs[:] = [f'{name}={part}' if name else part for name, part in parts]
  out = Path(args.out or Path(args.model) / 'probe').expanduser()
  arguments.check_writable(out)
  counts: Counter[str] = Counter()
  pairs = probe_pieces.read_pairs(args.pairs, args.sentences, counts, args.text_encoding)
  settings = settings_of(args, pairs)
  for number, which in enumerate(steps, 1):
    newest = next(saved_steps.newest_first(folder / 'checkpoints'), which)
    at = newest if which == 'latest' else which
    result = {'settings': settings | {'weights': weights_of(args.model, at)}}
    if at not in ('latest', 'best'):
      with contextlib.suppress(InputError):
        known = contents.read_sealed(out / f'{at}.json')
        if known.get('settings') == result['settings']:
          results.append(known)
          continue
    log.info('checkpoint %s (%d of %d)', which, number, len(steps))
    try:
      model = predict.Model(args.model, which)
    except InputError as error:
      if len(steps) == 1:
        raise
      failed[which] = str(error)  # it was removed, or is damaged; the others are probed
      continue
    result |= {'model': Path(args.model).name} | probe(model, args, pairs, counts)
    results.append(result)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f'{result["step"]}.json'
    if earlier := read_text(path):  # by other settings, or of other weights
      aside = path.with_name(f'{path.stem}-{zlib.crc32(earlier.encode()):08x}.json')
      log.warning('%s, found by another command, is now %s', path, aside.name)
      write_whole(aside, earlier)
    write_sealed(path, result, indent=1)
  for which, sentence in failed.items():
    log.warning('checkpoint %s is left out: %s', which, sentence)
  if not results:
    raise InputError(f'no checkpoint of {args.model} can be read; the reasons stand above.')
  write_whole(out / 'table.txt', '\n'.join(table(results)) + '\n')
  return results


def counts_of(results: Sequence[Mapping[str, Any]]) -> list[str]:
  """Lines on what the last of some results left out or cut."""
  return [f'{n:,} {kind}' for kind, n in results[-1]['counts'].items()]


def run_all(args: argparse.Namespace) -> None:
  """Probes all runs below a folder, and prints means and intervals over seeds; the table of a run
  lies in its folder."""
  if args.out:
    raise InputError(f'{args.model} holds several runs, which keep their results; leave out --out.')
  runs, failed, counted = records.below(args.model)[0], defaultdict(list), defaultdict(list)
  for number, found in enumerate(runs, 1):
    log.info('%s (%d of %d)', found.path, number, len(runs))
    try:
      own = argparse.Namespace(**copy.deepcopy(vars(args)) | {'model': str(found.path)})
      for line in counts_of(run(own)):
        counted[line].append(found.path)
    except InputError as error:
      failed[str(error)].append(found.path)
  which = lambda paths: f'{paths[0]}' + f' and {len(paths) - 1} more' * (len(paths) > 1)
  for sentence, paths in failed.items():
    if len(paths) == len(runs):
      raise InputError(sentence)
    log.warning('left out: %s: %s', which(paths), sentence)
  for line, paths in counted.items():
    log.info('%s', line if len(paths) == len(runs) else f'{which(paths)}: {line}')
  for panel in report.read(args.model).panels:
    for name in panel.metrics:
      if name.startswith('probe_'):
        table = report.comparison(panel, name)
        print(printable('\n'.join(['', name, *aligned(report.as_rows(table))])))


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
  add('--only', type=lambda x: x.split(','), default=KINDS, metavar='A,B', help=', '.join(KINDS))
  add('--out', default='', help='folder of the results; default: MODEL/probe')
  args = parser.parse_args(argv)
  with command_line():
    hosts.refuse_several('bert_jax.tools.probe')
    if wrong := [kind for kind in args.only if kind not in KINDS]:
      raise InputError(f'--only {wrong[0]} is not known; use some of {", ".join(KINDS)}.')
    for name, least in (('sentences', 0), ('words', 1), ('attention_sentences', 1)):
      arguments.check_bounds(args, **{name: (least, math.inf)})
    keep_compiled()
    folder = Path(args.model).expanduser()
    is_one = files.exists(folder / contents.CONFIG) or not folder.is_dir()
    if not is_one and [*folder.glob(f'*/{contents.CONFIG}')]:
      run_all(args)
    else:
      results = run(args)
      for line in counts_of(results):
        log.info('%s', line)
      print('\n'.join(table(results)))


if __name__ == '__main__':
  main()
